"""Bootstrap of an empty store. Creates the first organisation with its workspace, its owner and an admin key with all
scopes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select

from penstock.authorization import SCOPES_BY_KEY_TYPE
from penstock.errors import SettingsError
from penstock.ids import EMAIL_PATTERN, MAX_EMAIL_LENGTH, generate_key, generate_slug, mask_secret, new_id, sha256_hex
from penstock.schemas import now
from penstock.store.tables import api_keys, change_counter, key_digests, members, organisations, users, workspaces

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.settings.secret import Secret
    from penstock.store.database import Database

MIN_KEY_LENGTH = 20
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
    if admin_key and len(admin_key.reveal()) < MIN_KEY_LENGTH:
        message = f"store.admin_key is not allowed: it needs {MIN_KEY_LENGTH} characters or more"
        raise SettingsError(message)
    async with database.write_transaction() as connection:
        if await connection.scalar(select(func.count()).select_from(organisations)):
            return None
        key = admin_key.reveal() if admin_key else generate_key(prefix)
        await _insert_organisation(connection, key, normalise_email(email))
    return None if admin_key else key


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
        *_admin_key_rows(key, common),
        (change_counter, {"id": 1, "number": 0}),
    ]
    for table, row in rows:
        await connection.execute(insert(table).values(row))


def _admin_key_rows(key: str, common: dict[str, Any]) -> list[tuple[Table, dict[str, Any]]]:
    row: dict[str, Any] = {
        "id": new_id(),
        "name": "admin",
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
        "created_at": common["created_at"],
    }
    return [(api_keys, row), (key_digests, digested)]
