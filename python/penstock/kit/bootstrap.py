"""Bootstrap of an empty store. Creates the first organisation with its workspace, its owner and an admin key with all
scopes. Also replaces the admin key, if it was lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, inspect, select

from penstock.authorization import SCOPES_BY_KEY_TYPE, Caller
from penstock.errors import SettingsError
from penstock.ids import EMAIL_PATTERN, MAX_EMAIL_LENGTH, generate_key, generate_slug, mask_secret, new_id, sha256_hex
from penstock.kit.audit import RequestInfo, write_audit_rows
from penstock.kit.prompt_defaults import initial_rows
from penstock.schemas import now
from penstock.store.snapshot_sections import section_name
from penstock.store.tables import api_keys, change_counter, key_digests, members, organisations, users, workspaces
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings.secret import Secret
    from penstock.store.database import Database

MIN_KEY_LENGTH = 20
ADMIN_KEY_NAME = "admin"
ADMIN_KEY_CONDITIONS = (
    api_keys.c.name == ADMIN_KEY_NAME,
    api_keys.c.type == "organisation-service",
    api_keys.c.creation_mode == "auto",
)
DEFAULT_OWNER_EMAIL = "owner@localhost"


def normalise_email(email: str) -> str:
    """Returns an e-mail address in the form by which users are found; raises SettingsError if it is invalid."""
    plain = email.strip().lower()
    if len(plain) > MAX_EMAIL_LENGTH or not re.match(EMAIL_PATTERN, plain):
        message = f"the owner's e-mail address {email!r} is not allowed: expected one like owner@example.com"
        raise SettingsError(message)
    return plain


async def bootstrap_organisation(
    database: Database, admin_key: Secret | None, *, email: str = DEFAULT_OWNER_EMAIL, prefix: str = ""
) -> str | None:
    """Creates the organisation if none exists. Returns the admin key, which begins with `prefix`, if it was generated
    here; else `None`.
    """
    _check_length(admin_key)
    async with database.write_transaction() as connection:
        if await connection.scalar(select(func.count()).select_from(organisations)):
            return None
        key = admin_key.reveal() if admin_key else generate_key(prefix)
        await _insert_organisation(connection, key, normalise_email(email))
    return None if admin_key else key


async def describe_admin_key_problem(database: Database, admin_key: Secret) -> str | None:
    """Returns why the configured admin key does not work in a store that exists; `None` if it does."""
    async with database.read_connection() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(organisations.name)):
            return None
        if await connection.scalar(select(organisations.c.id).limit(1)) is None:
            return None
        query = select(key_digests.c.expires_at).where(key_digests.c.sha256 == sha256_hex(admin_key.reveal()))
        found = (await connection.execute(query)).first()
    if found and (found.expires_at is None or found.expires_at > now()):
        return None
    return (
        "PENSTOCK_ADMIN_KEY (store.admin_key) is not a key of this store and does not work: it is used only when the "
        "store is created; hint: `penstock keys reset-admin` makes it the admin key"
    )


async def replace_admin_key(database: Database, admin_key: Secret | None, *, prefix: str = "") -> str | None:
    """Gives the admin key of the organisation a new value and all scopes, or creates the key if it was deleted. The
    previous value no longer works. Returns the value if it was generated here.
    """
    _check_length(admin_key)
    text = admin_key.reveal() if admin_key else generate_key(prefix)
    async with database.write_transaction() as connection:
        organisation_id = await connection.scalar(select(organisations.c.id).order_by(organisations.c.id).limit(1))
        if organisation_id is None:
            message = "the store has no organisation yet; hint: penstock init"
            raise SettingsError(message)
        tenant = TenantStore(connection, organisation_id, None)
        await tenant.lock_organisation(database.turn_ms)
        await _reject_other_use(tenant, text)
        before = await tenant.fetch_first(
            select(api_keys).where(*ADMIN_KEY_CONDITIONS).order_by(api_keys.c.id), api_keys
        )
        key_id = before["id"] if before else new_id()
        times = {"created_at": before["created_at"] if before else now(), "last_updated_at": now()}
        (_, row), (_, digest) = _admin_key_rows(text, {"organisation_id": organisation_id, **times}, key_id)
        if before:
            await tenant.delete(key_digests, key_digests.c.api_key_id == key_id)
            row |= {
                "last_rotated_at": now(),
                **dict.fromkeys(("expires_at", "usage_limits", "rate_limits", "rotation_policy")),
            }
            await tenant.update(api_keys, key_id, row)
        else:
            await connection.execute(insert(api_keys).values(row))
        await connection.execute(insert(key_digests).values(digest))
        caller = Caller(id=key_id, type="operator", organisation_id=organisation_id)
        request_info = RequestInfo("POST", "penstock keys reset-admin", "", new_id(), "")
        verb = "rotate" if before else "create"
        change = (before, {**(before or {}), **row})
        await write_audit_rows(tenant, caller, request_info, f"organisation_service_api_keys.{verb}", [change])
        await tenant.mark_changed(section_name(api_keys, key_id))
    return None if admin_key else text


def _check_length(admin_key: Secret | None) -> None:
    if admin_key and len(admin_key.reveal()) < MIN_KEY_LENGTH:
        message = f"store.admin_key is not allowed: it needs {MIN_KEY_LENGTH} characters or more"
        raise SettingsError(message)


async def _reject_other_use(tenant: TenantStore, text: str) -> None:
    """Raises SettingsError if another key of the organisation has this value."""
    query = select(key_digests.c.api_key_id).where(key_digests.c.sha256 == sha256_hex(text))
    found = await tenant.fetch_first(query, key_digests)
    key = found and await tenant.find(api_keys, found["api_key_id"])
    if key and not (key["name"] == ADMIN_KEY_NAME and key["creation_mode"] == "auto"):
        message = f"store.admin_key is the value of the key {key['name']!r} already; choose another"
        raise SettingsError(message)


async def _insert_organisation(connection: AsyncConnection, key: str, email: str) -> None:
    moment = now()
    times = {"created_at": moment, "last_updated_at": moment}
    organisation: dict[str, Any] = {"id": new_id(), "slug": "default", "name": "Default", "settings": {}, **times}
    common: dict[str, Any] = {"organisation_id": organisation["id"], **times}
    owner: dict[str, Any] = {
        "id": new_id(),
        "email": email,
        "first_name": "",
        "last_name": "",
        "role": "owner",
        **common,
    }
    workspace: dict[str, Any] = {
        "id": new_id(),
        "slug": generate_slug("ws", "shared", 20),
        "name": "Shared",
        "is_default": True,
        "status": "active",
        "defaults": {},
        "settings": {},
        "created_by": owner["id"],
        "creation_source": "init",
        **common,
    }
    member: dict[str, Any] = {
        "id": new_id(),
        "workspace_id": workspace["id"],
        "user_id": owner["id"],
        "role": "admin",
        "scopes": [],
    }
    rows: list[tuple[Table, dict[str, Any]]] = [
        (organisations, organisation),
        (users, owner),
        (workspaces, workspace),
        (members, {**member, **common}),
        *initial_rows(organisation["id"], workspace["id"]),
        *_admin_key_rows(key, common),
        (change_counter, {"id": 1, "number": 0}),
    ]
    for table, row in rows:
        await connection.execute(insert(table).values(row))


def _admin_key_rows(key: str, common: dict[str, Any], key_id: str | None = None) -> list[tuple[Table, dict[str, Any]]]:
    row: dict[str, Any] = {
        "id": key_id or new_id(),
        "name": ADMIN_KEY_NAME,
        "type": "organisation-service",
        "status": "active",
        "creation_mode": "auto",
        "masked": mask_secret(key),
        "scopes": sorted(SCOPES_BY_KEY_TYPE["organisation-service"]),
        "defaults": {},
        **common,
    }
    digested: dict[str, Any] = {
        "id": new_id(),
        "organisation_id": common["organisation_id"],
        "api_key_id": row["id"],
        "sha256": sha256_hex(key),
        "created_at": common["last_updated_at"],
    }
    return [(api_keys, row), (key_digests, digested)]
