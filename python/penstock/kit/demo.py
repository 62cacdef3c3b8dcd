"""Workspace and API key for a first try with the mock provider. The example commands use the key, so that their requests
are in the console.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from penstock.authorization import CALL_SCOPES, Caller
from penstock.errors import SettingsError
from penstock.ids import generate_key, generate_slug, mask_secret, new_id, sha256_hex
from penstock.kit.audit import RequestInfo, write_audit_rows
from penstock.kit.prompt_defaults import initial_rows
from penstock.schemas import now
from penstock.store.snapshot_sections import section_name
from penstock.store.tables import api_keys, key_digests, members, organisations, users, workspaces
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from penstock.store.database import Database
    from penstock.store.tenant import Row

DEMO_NAME = "Demo"
DEMO_SOURCE = "demo"


async def issue_demo_key(database: Database, prefix: str = "") -> str:
    """Creates the demo workspace if it does not exist, and gives its key a new value, which it returns.

    The value is not stored, so each start issues another one; the previous value stops working.
    """
    text = generate_key(prefix)
    async with database.write_transaction() as connection:
        organisation_id = await connection.scalar(select(organisations.c.id).order_by(organisations.c.id).limit(1))
        if organisation_id is None:
            message = "the store has no organisation yet; hint: penstock init"
            raise SettingsError(message)
        tenant = TenantStore(connection, organisation_id, None)
        await tenant.lock_organisation(database.turn_ms)
        workspace = await _find_workspace(tenant) or await _create_workspace(tenant)
        before = await tenant.fetch_first(_demo_key_query(workspace["id"]), api_keys)
        key_id = before["id"] if before else new_id()
        row = _key_row(text, key_id, workspace, before)
        if before:
            await tenant.delete(key_digests, key_digests.c.api_key_id == key_id)
            await tenant.update(api_keys, key_id, {**row, "last_rotated_at": now()})
        else:
            await connection.execute(insert(api_keys).values(row))
        digest = {"id": new_id(), "organisation_id": organisation_id, "api_key_id": key_id}
        await connection.execute(
            insert(key_digests).values({**digest, "sha256": sha256_hex(text), "created_at": now()})
        )
        caller = Caller(id=key_id, type="operator", organisation_id=organisation_id)
        request_info = RequestInfo("POST", "penstock serve --mock", "", new_id(), "")
        verb = "rotate" if before else "create"
        await write_audit_rows(tenant, caller, request_info, f"workspace_service_api_keys.{verb}", [(before, row)])
        await tenant.mark_changed(section_name(api_keys, key_id))
    return text


def _demo_key_query(workspace_id: str) -> Any:  # noqa: ANN401 - a query
    return (
        select(api_keys)
        .where(
            api_keys.c.workspace_id == workspace_id, api_keys.c.name == DEMO_NAME, api_keys.c.creation_mode == "auto"
        )
        .order_by(api_keys.c.id)
    )


async def _find_workspace(tenant: TenantStore) -> Row | None:
    query = select(workspaces).where(workspaces.c.creation_source == DEMO_SOURCE, workspaces.c.status == "active")
    return await tenant.fetch_first(query.order_by(workspaces.c.id), workspaces)


async def _create_workspace(tenant: TenantStore) -> Row:
    times = {"created_at": now(), "last_updated_at": now()}
    query = select(users).where(users.c.role == "owner").order_by(users.c.id)
    owner = await tenant.fetch_first(query, users)
    workspace: dict[str, Any] = {
        "id": new_id(),
        "organisation_id": tenant.organisation_id,
        "slug": generate_slug("ws", DEMO_NAME, 20),
        "name": DEMO_NAME,
        "is_default": False,
        "status": "active",
        "defaults": {},
        "settings": {},
        "created_by": owner["id"] if owner else None,
        "creation_source": DEMO_SOURCE,
        **times,
    }
    rows: list[tuple[Any, dict[str, Any]]] = [(workspaces, workspace)]
    if owner:
        common = {"organisation_id": tenant.organisation_id, "workspace_id": workspace["id"], **times}
        rows.append((members, {"id": new_id(), "user_id": owner["id"], "role": "admin", "scopes": [], **common}))
    for table, row in [*rows, *initial_rows(tenant.organisation_id, workspace["id"])]:
        await tenant.connection.execute(insert(table).values(row))
    caller = Caller(id=workspace["id"], type="operator", organisation_id=tenant.organisation_id)
    request_info = RequestInfo("POST", "penstock serve --mock", "", new_id(), "")
    await write_audit_rows(tenant, caller, request_info, "workspaces.create", [(None, workspace)])
    await tenant.mark_changed(section_name(workspaces, workspace["id"]))
    return workspace


def _key_row(text: str, key_id: str, workspace: Row, before: Row | None) -> dict[str, Any]:
    return {
        "id": key_id,
        "organisation_id": workspace["organisation_id"],
        "workspace_id": workspace["id"],
        "name": DEMO_NAME,
        "type": "workspace-service",
        "status": "active",
        "creation_mode": "auto",
        "masked": mask_secret(text),
        "scopes": sorted(CALL_SCOPES) if before is None else before["scopes"],
        "defaults": {} if before is None else before["defaults"],
        "created_at": now() if before is None else before["created_at"],
        "last_updated_at": now(),
    }
