"""Limits of workspaces that use integrations of their organisation. A workspace without its own access setting has the
limits of all workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, select

from penstock.integrations.saved_integrations import usable_condition
from penstock.store.tables import integration_workspaces, integrations, providers, workspaces

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

ACCESS_COLUMNS = ("usage_limits", "rate_limits", "last_reset_at", "created_at")


class IntegrationAccess(NamedTuple):
    """Use of an integration by a workspace. `limits` has the columns of a row with limits, as `embedded_rules` reads
    them.
    """

    integration_id: str
    slug: str
    organisation_id: str
    workspace_id: str
    limits: dict[str, Any]


async def list_accesses(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[IntegrationAccess]:
    """Returns an entry for each integration of the organisation and each active workspace that has a provider for it.
    `conditions` may refer to `providers.c.workspace_id`.
    """
    own, access = integrations.c, integration_workspaces.c
    uses = (
        select(providers.c.workspace_id, providers.c.integration_id)
        .where(providers.c.status == "active", *conditions)
        .distinct()
    ).subquery()
    query = (
        select(own.id, own.slug, own.organisation_id, own.global_access, own.created_at)
        .add_columns(uses.c.workspace_id.label("workspace"))
        .add_columns(*(access[name].label(f"own_{name}") for name in ("id", *ACCESS_COLUMNS)))
        .join(uses, uses.c.integration_id == own.id)
        .join(workspaces, and_(workspaces.c.id == uses.c.workspace_id, workspaces.c.status == "active"))
        .outerjoin(
            integration_workspaces,
            and_(access.integration_id == own.id, access.workspace_id == uses.c.workspace_id),
        )
        .where(own.status == "active", own.workspace_id.is_(None), usable_condition(uses.c.workspace_id))
        .order_by(own.id)
    )
    return [_to_access(row) for row in (await connection.execute(query)).mappings()]


def _to_access(row: Any) -> IntegrationAccess:  # noqa: ANN401 - a row
    if row["own_id"] is not None:
        limits = {name: row[f"own_{name}"] for name in ACCESS_COLUMNS}
    else:
        shared = row["global_access"]
        limits = {**{name: shared.get(name) for name in ACCESS_COLUMNS}, "created_at": row["created_at"]}
    return IntegrationAccess(row["id"], row["slug"], row["organisation_id"], row["workspace"], limits)
