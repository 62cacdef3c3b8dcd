"""Bootstrap of an empty store. Creates the first organisation with its workspace, its owner and an admin key with all
scopes. Also replaces an admin key that the operator lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, inspect, select

from penstock.authorization import SCOPES_BY_KEY_TYPE
from penstock.errors import SettingsError
from penstock.ids import EMAIL_PATTERN, MAX_EMAIL_LENGTH, generate_key, new_id, sha256_hex
from penstock.organisation.initial_rows import (
    KeyRows,
    build_key_rows,
    build_workspace_rows,
    find_organisation,
    save_key,
)
from penstock.schemas import now
from penstock.store.tables import api_keys, change_counter, key_digests, organisations, users
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.organisation.initial_rows import TableRow
    from penstock.settings.secret import Secret
    from penstock.store.database import Database
    from penstock.store.tenant import Row

MIN_KEY_LENGTH = 20
ADMIN_KEY_NAME = "admin"
ADMIN_KEY_CONDITIONS = (
    api_keys.c.name == ADMIN_KEY_NAME,
    api_keys.c.type == "organisation-service",
    api_keys.c.creation_mode == "auto",
)
DEFAULT_OWNER_EMAIL = "owner@localhost"


def normalise_email(email: str) -> str:
    """Returns an e-mail address in the form that user look-ups need: trimmed and in lower case. Raises SettingsError if
    it is invalid.
    """
    plain = email.strip().lower()
    if len(plain) > MAX_EMAIL_LENGTH or not re.match(EMAIL_PATTERN, plain):
        message = f"the owner's e-mail address {email!r} is not allowed: expected one like owner@example.com"
        raise SettingsError(message)
    return plain


async def bootstrap_organisation(
    database: Database, admin_key: Secret | None, *, email: str = DEFAULT_OWNER_EMAIL, prefix: str = ""
) -> str | None:
    """Creates the organisation if none exists. Without `admin_key`, generates a key that begins with `prefix` and
    returns it; else returns `None`.
    """
    _check_length(admin_key)
    async with database.write_transaction() as connection:
        if await connection.scalar(select(func.count()).select_from(organisations)):
            return None
        key = admin_key.reveal() if admin_key else generate_key(prefix)
        await _insert_organisation(connection, key, normalise_email(email))
    return None if admin_key else key


async def describe_admin_key_problem(database: Database, admin_key: Secret) -> str | None:
    """Returns why the configured admin key does not work in the existing store. Returns `None` if it works, or if the
    store has no organisation yet.
    """
    async with database.read_connection() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(organisations.name)):
            return None
        if await connection.scalar(select(organisations.c.id).limit(1)) is None:
            return None
        query = select(key_digests.c.expires_at).where(key_digests.c.sha256 == sha256_hex(admin_key.reveal()))
        row = (await connection.execute(query)).first()
    if row and (row.expires_at is None or row.expires_at > now()):
        return None
    return (
        "PENSTOCK_ADMIN_KEY (store.admin_key) is not a key of this store and does not work: it is used only when the "
        "store is created; hint: `penstock keys reset-admin` makes it the admin key"
    )


async def replace_admin_key(database: Database, admin_key: Secret | None, *, prefix: str = "") -> str | None:
    """Gives the admin key of the organisation a new value and all scopes, or creates the key if it was deleted. The
    previous value no longer works. Returns the new value if this function generated it; else `None`.
    """
    _check_length(admin_key)
    text = admin_key.reveal() if admin_key else generate_key(prefix)
    async with database.write_transaction() as connection:
        organisation_id = await find_organisation(connection)
        tenant = TenantStore(connection, organisation_id, None)
        await tenant.lock_organisation(database.turn_ms)
        await _reject_other_use(tenant, text)
        before = await tenant.fetch_first(
            select(api_keys).where(*ADMIN_KEY_CONDITIONS).order_by(api_keys.c.id), api_keys
        )
        rows = _admin_key_rows(text, organisation_id, before)
        if before:
            rows.key.update(dict.fromkeys(("expires_at", "usage_limits", "rate_limits", "rotation_policy")))
        command = "penstock keys reset-admin"
        await save_key(tenant, before, rows, command=command, resource="organisation_service_api_keys")
    return None if admin_key else text


def _check_length(admin_key: Secret | None) -> None:
    if admin_key and len(admin_key.reveal()) < MIN_KEY_LENGTH:
        message = f"store.admin_key is not allowed: it needs {MIN_KEY_LENGTH} characters or more"
        raise SettingsError(message)


async def _reject_other_use(tenant: TenantStore, text: str) -> None:
    """Raises SettingsError if another key of the organisation has this value."""
    query = select(key_digests.c.api_key_id).where(key_digests.c.sha256 == sha256_hex(text))
    row = await tenant.fetch_first(query, key_digests)
    key = row and await tenant.find(api_keys, row["api_key_id"])
    if key and not (key["name"] == ADMIN_KEY_NAME and key["creation_mode"] == "auto"):
        message = f"store.admin_key is the value of the key {key['name']!r} already; choose another"
        raise SettingsError(message)


async def _insert_organisation(connection: AsyncConnection, key: str, email: str) -> None:
    moment = now()
    times = {"created_at": moment, "last_updated_at": moment}
    organisation_id = new_id()
    organisation: dict[str, Any] = {
        "id": organisation_id,
        "slug": "default",
        "name": "Default",
        "settings": {},
        **times,
    }
    owner: dict[str, Any] = {
        "id": new_id(),
        "email": email,
        "first_name": "",
        "last_name": "",
        "role": "owner",
        "organisation_id": organisation_id,
        **times,
    }
    rows: list[TableRow] = [
        (organisations, organisation),
        (users, owner),
        *build_workspace_rows(organisation_id, "Shared", owner["id"], source="init", is_default=True),
        *_admin_key_rows(key, organisation_id).inserts,
        (change_counter, {"id": 1, "number": 0}),
    ]
    for table, row in rows:
        await connection.execute(insert(table).values(row))


def _admin_key_rows(text: str, organisation_id: str, before: Row | None = None) -> KeyRows:
    kind = "organisation-service"
    scopes = sorted(SCOPES_BY_KEY_TYPE[kind])
    return build_key_rows(text, before, organisation_id=organisation_id, name=ADMIN_KEY_NAME, type=kind, scopes=scopes)
