"""Cursor pagination in OpenAI's format: a page, its first and last id, and whether more rows follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta
from sqlalchemy import select

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Table

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row


AfterCursor = Annotated[str | None, QueryParameter(description="id of the last row of the previous page")]


class CursorQuery(NamedTuple):
    """Parameters of one page of a table."""

    limit: int
    # Id of the last row of the previous page.
    after: str | None = None
    newest_first: bool = True
    conditions: tuple[ColumnElement[bool], ...] = ()


class CursorPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list; subclasses add `data`."""

    first_id: Annotated[str | None, Meta(description="id of the first row")]
    last_id: Annotated[str | None, Meta(description="id of the last row")]
    has_more: Annotated[bool, Meta(description="true if more rows follow")]
    object: Annotated[str, Meta(description="`list`")] = "list"

    @classmethod
    def from_rows(cls, rows: list[Row], limit: int, convert: Callable[[Row], Any]) -> Self:
        """Builds a page from up to `limit` + 1 rows; the extra row sets `has_more`."""
        data = [convert(row) for row in rows[:limit]]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        more: dict[str, Any] = {"data": data}
        return cls(first_id=first, last_id=last, has_more=len(rows) > limit, **more)


async def fetch_rows(session: TenantSession, table: Table, requested: CursorQuery) -> list[Row]:
    """Returns the rows of a page in the caller's workspace, and one extra row if another page follows."""
    # Raises ForbiddenError if the session has no workspace: the rows, files and batches, belong to one.
    _ = session.bound_workspace_id
    conditions = list(requested.conditions)
    is_descending = requested.newest_first
    if requested.after is not None:
        conditions.append(table.c.id < requested.after if is_descending else table.c.id > requested.after)
    order = table.c.id.desc() if is_descending else table.c.id
    query = select(table).where(*conditions).order_by(order).limit(requested.limit + 1)
    return await session.fetch_rows(query, table)
