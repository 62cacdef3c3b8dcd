"""Rows of a workspace and of an API key that the gateway itself creates. It does so when it creates the store, replaces
the admin key, or starts with the mock provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import insert, select

from penstock.access.audit import RequestInfo, write_audit_rows
from penstock.authorization import Caller
from penstock.errors import SettingsError
from penstock.ids import generate_slug, mask_secret, new_id, sha256_hex
from penstock.prompts.default_labels import initial_prompt_rows
from penstock.schemas import now
from penstock.store.snapshot_sections import section_name
from penstock.store.tables import api_keys, key_digests, members, organisations, workspaces

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.tenant import Row, TenantStore

TableRow = tuple["Table", dict[str, Any]]


class KeyRows(NamedTuple):
    """Rows of an API key, and of the digest by which the gateway finds the key."""

    key: dict[str, Any]
    digest: dict[str, Any]

    @property
    def inserts(self) -> list[TableRow]:
        """Returns both rows with their tables. The key comes first, because the digest refers to it."""
        return [(api_keys, self.key), (key_digests, self.digest)]


def build_workspace_rows(
    organisation_id: str, name: str, owner_id: str | None, *, source: str, is_default: bool
) -> list[TableRow]:
    """Returns the rows of a new workspace: the workspace itself, its owner as a member, and the initial collection and
    labels for prompts. The workspace comes first.
    """
    moment = now()
    common: dict[str, Any] = {"organisation_id": organisation_id, "created_at": moment, "last_updated_at": moment}
    workspace: dict[str, Any] = {
        "id": new_id(),
        "slug": generate_slug("ws", name.lower(), 20),
        "name": name,
        "is_default": is_default,
        "status": "active",
        "defaults": {},
        "settings": {},
        "created_by": owner_id,
        "creation_source": source,
        **common,
    }
    rows: list[TableRow] = [(workspaces, workspace)]
    if owner_id:
        member: dict[str, Any] = {
            "id": new_id(),
            "workspace_id": workspace["id"],
            "user_id": owner_id,
            "role": "admin",
            "scopes": [],
        }
        rows.append((members, {**member, **common}))
    return [*rows, *initial_prompt_rows(organisation_id, workspace["id"])]


def build_key_rows(text: str, before: Row | None = None, **columns: Any) -> KeyRows:  # noqa: ANN401 - columns of a table
    """Returns the rows of an API key with the secret `text`. An existing key, `before`, keeps its id and creation time.

    `columns` must contain the organisation, name, type and scopes.
    """
    moment = now()
    key: dict[str, Any] = {
        "id": before["id"] if before else new_id(),
        "status": "active",
        "creation_mode": "auto",
        "masked": mask_secret(text),
        "defaults": {},
        **columns,
        "created_at": before["created_at"] if before else moment,
        "last_updated_at": moment,
    }
    digest = {"id": new_id(), "organisation_id": key["organisation_id"], "api_key_id": key["id"]}
    return KeyRows(key, {**digest, "sha256": sha256_hex(text), "created_at": moment})


async def save_key(tenant: TenantStore, before: Row | None, rows: KeyRows, *, command: str, resource: str) -> None:
    """Inserts a key, or updates the key `before` and deletes its previous digest. Writes the audit row."""
    key_id, row = rows.key["id"], rows.key
    if before:
        row = {**row, "last_rotated_at": now()}
        await tenant.delete(key_digests, key_digests.c.api_key_id == key_id)
        await tenant.update(api_keys, key_id, row)
    else:
        await tenant.connection.execute(insert(api_keys).values(row))
    await tenant.connection.execute(insert(key_digests).values(rows.digest))
    change = (before, {**(before or {}), **row})
    await write_operator_audit(tenant, key_id, command, f"{resource}.{'rotate' if before else 'create'}", change)
    await tenant.mark_changed(section_name(api_keys, key_id))


async def write_operator_audit(
    tenant: TenantStore, caller_id: str, command: str, action: str, change: tuple[Row | None, Row | None]
) -> None:
    """Writes the audit row of a change by a command of the operator."""
    caller = Caller(id=caller_id, type="operator", organisation_id=tenant.organisation_id)
    await write_audit_rows(tenant, caller, RequestInfo("POST", command, "", new_id(), ""), action, [change])


async def find_organisation(connection: AsyncConnection) -> str:
    """Returns the id of the first organisation. Raises `SettingsError` if there is none."""
    organisation_id = await connection.scalar(select(organisations.c.id).order_by(organisations.c.id).limit(1))
    if organisation_id is None:
        message = "the store has no organisation yet; hint: penstock init"
        raise SettingsError(message)
    return organisation_id
