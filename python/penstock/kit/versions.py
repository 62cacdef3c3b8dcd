"""Immutable versions of saved objects. They are numbered from 1 and deleted together with the object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from penstock.schemas import field_error, now
from penstock.store.tables import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kit.numbered_pages import PageRequest
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row, TenantStore


async def create_version(
    session: TenantSession,
    resource: str,
    owner: Row,
    content: Mapping[str, Any],
    version_id: str,
    hidden: str | None = None,
) -> int:
    """Stores the next version of the object `owner` under the id `version_id`, with its secret part `hidden` encrypted.
    Returns its number.
    """
    condition = versions.c.resource_id == owner["id"]
    last = await session.fetch_first(select(func.max(versions.c.number).label("number")).where(condition), versions)
    row: dict[str, Any] = {
        "id": version_id,
        # Set explicitly, because a session of the organisation has no workspace.
        "workspace_id": owner["workspace_id"],
        "resource": resource,
        "resource_id": owner["id"],
        "number": int((last["number"] if last else 0) or 0) + 1,
        "content": dict(content),
        "sealed": None if hidden is None else await session.seal(hidden, version_id),
        "created_by": session.caller.actor_id,
        "created_at": now(),
    }
    await session.insert(versions, row)
    return row["number"]


async def find_version(tenant: TenantStore, resource_id: str, key: str | int) -> Row | None:
    """Returns the version of an object with this id or number; `None` if there is none."""
    column = versions.c.number if isinstance(key, int) else versions.c.id
    return await tenant.fetch_first(
        select(versions).where(versions.c.resource_id == resource_id, column == key), versions
    )


async def list_versions(tenant: TenantStore, resource_id: str, requested: PageRequest) -> tuple[int, list[Row]]:
    """Returns the number of versions and the versions of the page. Selects them by number, because the numbers have no
    gaps.
    """
    if requested.sort != "created_at":
        raise field_error("sort", f"{requested.sort!r} is not allowed here: expected created_at")
    number, condition = versions.c.number, versions.c.resource_id == resource_id
    last = await tenant.fetch_first(select(func.max(number).label("number")).where(condition), versions)
    total = int((last["number"] if last else 0) or 0)
    start = requested.size * requested.number
    is_descending = requested.order == "desc"
    among = (
        number.between(total - start - requested.size + 1, total - start)
        if is_descending
        else number.between(start + 1, start + requested.size)
    )
    query = select(versions).where(condition, among).order_by(number.desc() if is_descending else number.asc())
    return total, await tenant.fetch_rows(query, versions)


async def delete_versions(tenant: TenantStore, resource_id: str) -> None:
    """Deletes all versions of an object."""
    await tenant.delete(versions, versions.c.resource_id == resource_id)
