"""What was saved under a name before: numbered from 1, never changed, gone with what they are versions of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from penstock.kit.ids import new_id
from penstock.kit.record import now
from penstock.store.tables import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kit.desk import Desk
    from penstock.store.tenant import Row, Tenant


async def keep(desk: Desk, resource: str, resource_id: str, content: Mapping[str, Any], hidden: str | None) -> str:
    """Keep the next version, what is secret of it sealed, and give its id."""
    here = versions.c.resource_id == resource_id
    last = await desk.first(select(func.max(versions.c.number).label("number")).where(here), versions)
    version_id = new_id()
    row: dict[str, Any] = {
        "id": version_id,
        "resource": resource,
        "resource_id": resource_id,
        "number": int((last["number"] if last else 0) or 0) + 1,
        "content": dict(content),
        "sealed": None if hidden is None else await desk.seal(hidden, version_id),
        "created_by": desk.caller.actor,
        "created_at": now(),
    }
    await desk.insert(versions, row)
    return version_id


async def all_of(tenant: Tenant, resource_id: str) -> list[Row]:
    """Give all versions, newest first."""
    query = select(versions).where(versions.c.resource_id == resource_id).order_by(versions.c.number.desc())
    return await tenant.rows(query, versions)


async def drop(tenant: Tenant, resource_id: str) -> None:
    """Drop all versions."""
    await tenant.delete(versions, versions.c.resource_id == resource_id)
