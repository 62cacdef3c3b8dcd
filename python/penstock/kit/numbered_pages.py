"""Pagination of lists: numbered pages, newest first, with the sorting and filters that a resource allows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import and_, bindparam, or_, select

from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column, ColumnElement, Table

    from penstock.store.tenant import Query, Row, TenantStore

DEFAULT_SIZE, LARGEST_SIZE, FURTHEST = 100, 1000, 1_000_000


class PageSizes(NamedTuple):
    """Default and maximum number of rows on a page."""

    default: int = DEFAULT_SIZE
    maximum: int = LARGEST_SIZE


class PageRequest(msgspec.Struct, frozen=True):
    """Requested page of a list: its size and number, and the order of the list."""

    size: int = DEFAULT_SIZE
    number: int = 0
    sort: str = "created_at"
    order: str = "desc"
    # True if the client sent a page size.
    is_sized: bool = False

    def apply_sizes(self, sizes: PageSizes) -> PageRequest:
        """Applies the page sizes of a resource; rejects a size above the maximum."""
        if not self.is_sized:
            return msgspec.structs.replace(self, size=sizes.default)
        if self.size > sizes.maximum:
            raise field_error("page_size", f"{self.size} is not allowed: at most {sizes.maximum}")
        return self


def equality_conditions(table: Table, **requested: object) -> list[ColumnElement[bool]]:
    """Returns SQL conditions for columns that must equal the given values. Columns without a value are skipped."""
    return [table.c[name] == value for name, value in requested.items() if value is not None]


def search_conditions(search: str | None, *columns: Column[Any]) -> list[ColumnElement[bool]]:
    """Returns the SQL condition that one of the columns contains the text; nothing without a text. PostgreSQL ignores the
    case of all letters, SQLite that of ASCII letters only.
    """
    return [or_(*(column.icontains(search, autoescape=True) for column in columns))] if search else []


async def fetch_page(
    tenant: TenantStore,
    table: Table,
    requested: PageRequest,
    conditions: Sequence[ColumnElement[bool]] = (),
    without: frozenset[str] = frozenset(),
) -> tuple[int, list[Row]]:
    """Returns the total number of rows, and the rows of the page. A late page costs little more than an early one."""
    by = _sort_columns(table, requested)
    if requested.number == 0:
        query_args = (table, requested.sort, requested.order, without)
        if conditions:
            rows = await tenant.fetch_rows(_ordered_query(*query_args).where(*conditions).limit(requested.size), table)
        else:
            rows = await tenant.fetch_prepared(_first_page_query(*query_args), table, size=requested.size)
        # A first page that is not full contains all rows, so they need not be counted.
        return (await tenant.count(table, conditions) if len(rows) == requested.size else len(rows)), rows
    total = await tenant.count(table, conditions)
    start = requested.size * requested.number
    if start >= total:
        return total, []
    length = min(requested.size, total - start)
    # Reads from the nearer end of the list. Finds the first row of the page in the index, and then reads rows from
    # there.
    from_end = start > total - start - length
    skipped = total - start - length if from_end else start
    is_descending = (requested.order == "desc") != from_end
    edge = await tenant.fetch_first(
        select(*by).where(*conditions).order_by(*_apply_direction(by, is_descending=is_descending)).offset(skipped),
        table,
    )
    if edge is None:
        return total, []
    query = (
        _select_columns(table, without)
        .where(*conditions, _starting_at(by, edge, is_descending=is_descending))
        .order_by(*_apply_direction(by, is_descending=is_descending))
    )
    rows = await tenant.fetch_rows(query.limit(length), table)
    return total, rows[::-1] if from_end else rows


@cache
def _first_page_query(table: Table, sort: str, order: str, without: frozenset[str]) -> Query:
    return _ordered_query(table, sort, order, without).limit(bindparam("size"))


@cache
def _ordered_query(table: Table, sort: str, order: str, without: frozenset[str]) -> Query:
    by = _sort_columns(table, PageRequest(sort=sort))
    return _select_columns(table, without).order_by(*_apply_direction(by, is_descending=order == "desc"))


def _select_columns(table: Table, without: frozenset[str]) -> Query:
    return select(*(column for column in table.c if column.name not in without))


def _sort_columns(table: Table, requested: PageRequest) -> list[Column[Any]]:
    # Sorts by id, which is the order of creation, because the index that is used to count the rows contains the ids.
    if requested.sort == "created_at":
        return [table.c.id]
    if requested.sort not in table.c:
        raise field_error("sort", f"{requested.sort!r} is not allowed here: expected created_at or last_updated_at")
    return [table.c[requested.sort], table.c.id]


def _apply_direction(columns: Sequence[ColumnElement[Any]], *, is_descending: bool) -> list[ColumnElement[Any]]:
    return [column.desc() if is_descending else column.asc() for column in columns]


def _starting_at(columns: Sequence[Any], edge: Row, *, is_descending: bool) -> ColumnElement[bool]:
    """Returns the condition for the row `edge` and the rows after it. The last of the columns breaks ties."""
    *others, last = columns
    condition = last <= edge[last.name] if is_descending else last >= edge[last.name]
    for column in reversed(others):
        value = edge[column.name]
        after_cursor = column < value if is_descending else column > value
        condition = after_cursor | and_(column == value, condition)
    return condition
