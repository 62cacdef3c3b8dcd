"""Workspace and API key for a first try with the mock provider. The example commands use the key, so that the console
shows their requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from penstock.authorization import CALL_SCOPES
from penstock.ids import generate_key
from penstock.organisation.initial_rows import (
    build_key_rows,
    build_workspace_rows,
    find_organisation,
    save_key,
    write_operator_audit,
)
from penstock.store.snapshot_sections import section_name
from penstock.store.tables import api_keys, users, workspaces
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from penstock.store.database import Database
    from penstock.store.tenant import Row

DEMO_NAME = "Demo"
DEMO_SOURCE = "demo"
# Command that audit log entries name as the origin of a change.
DEMO_COMMAND = "penstock serve --mock"


async def issue_demo_key(database: Database, prefix: str = "") -> str:
    """Creates the demo workspace if it does not exist. Gives its API key a new value, and returns this value.

    The store has only a digest of the value. Each start therefore issues a new value, and the previous one stops
    working.
    """
    text = generate_key(prefix)
    async with database.write_transaction() as connection:
        tenant = TenantStore(connection, await find_organisation(connection), None)
        await tenant.lock_organisation(database.turn_ms)
        workspace = await _find_workspace(tenant) or await _create_workspace(tenant)
        before = await tenant.fetch_first(_demo_key_query(workspace["id"]), api_keys)
        rows = build_key_rows(
            text,
            before,
            organisation_id=tenant.organisation_id,
            workspace_id=workspace["id"],
            name=DEMO_NAME,
            type="workspace-service",
            scopes=before["scopes"] if before else sorted(CALL_SCOPES),
            defaults=before["defaults"] if before else {},
        )
        await save_key(tenant, before, rows, command=DEMO_COMMAND, resource="workspace_service_api_keys")
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
    query = select(users).where(users.c.role == "owner").order_by(users.c.id)
    owner = await tenant.fetch_first(query, users)
    rows = build_workspace_rows(
        tenant.organisation_id, DEMO_NAME, owner["id"] if owner else None, source=DEMO_SOURCE, is_default=False
    )
    for table, row in rows:
        await tenant.connection.execute(insert(table).values(row))
    (_, workspace), *_ = rows
    await write_operator_audit(tenant, workspace["id"], DEMO_COMMAND, "workspaces.create", (None, workspace))
    await tenant.mark_changed(section_name(workspaces, workspace["id"]))
    return workspace
