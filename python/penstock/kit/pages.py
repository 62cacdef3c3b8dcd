"""Lists in OpenAI's shape: a page, the ids with which it begins and ends, and whether there is more."""

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


AfterCursor = Annotated[str | None, QueryParameter(description="id of the last one of the page before")]


class CursorQuery(NamedTuple):
    """What of a table is asked for."""

    limit: int
    # Of the last row on the page before.
    after: str | None = None
    newest_first: bool = True
    conditions: tuple[ColumnElement[bool], ...] = ()


class CursorPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list; who it is a list of adds `data`."""

    first_id: Annotated[str | None, Meta(description="id of the first of them")]
    last_id: Annotated[str | None, Meta(description="id of the last of them")]
    has_more: Annotated[bool, Meta(description="whether there are others after it")]
    object: Annotated[str, Meta(description="`list`")] = "list"

    @classmethod
    def from_rows(cls, rows: list[Row], limit: int, shown: Callable[[Row], Any]) -> Self:
        """Show rows, of which one more than the limit was looked for."""
        data = [shown(row) for row in rows[:limit]]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        more: dict[str, Any] = {"data": data}
        return cls(first_id=first, last_id=last, has_more=len(rows) > limit, **more)


async def fetch_rows(desk: TenantSession, table: Table, wanted: CursorQuery) -> list[Row]:
    """Give the rows of a page in the workspace of the caller, and one more where there is more."""
    # Files and batches are of a workspace: who is in none has none.
    _ = desk.required_workspace_id
    conditions = list(wanted.conditions)
    down = wanted.newest_first
    if wanted.after is not None:
        conditions.append(table.c.id < wanted.after if down else table.c.id > wanted.after)
    order = table.c.id.desc() if down else table.c.id
    query = select(table).where(*conditions).order_by(order).limit(wanted.limit + 1)
    return await desk.fetch_rows(query, table)
