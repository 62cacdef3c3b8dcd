"""Store access restricted to one organisation and, optionally, one workspace. Queries cannot reach rows of other
tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import bindparam, func, insert, or_, select, update
from sqlalchemy import delete as delete_from

from penstock.errors import InvalidError, Problem
from penstock.store.tables import change_counter, change_log, organisations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import BindParameter, Column, ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    Query = Select[*tuple[Any, ...]]
    Condition = ColumnElement[bool]

Row = Mapping[str, Any]
# Row limit of a lookup: two rows suffice to detect an ambiguous slug.
AMBIGUITY_LIMIT = 2
# Maximum number of scoped queries that are cached.
MAX_SCOPED_QUERIES = 1000
# Query parameter for the list of accessible workspaces.
WORKSPACES_PARAMETER = "among"


class ChangeFlag:
    """Records if a transaction changed data of the data plane, and in which snapshot sections. All stores on one
    transaction share it.
    """

    number: int | None = None

    def __init__(self) -> None:
        """Starts without changes."""
        self.parts: set[str] = set()
        # Budgets, or their owners, whose limit or threshold changed, as the ledger names them.
        self.budgets: set[str] = set()

    @property
    def is_set(self) -> bool:
        """True if something changed."""
        return self.number is not None


class TenantStore:
    """Reads and writes rows of one organisation, or of one workspace if `workspace_id` is set."""

    def __init__(self, connection: AsyncConnection, organisation_id: str, workspace_id: str | None) -> None:
        """Creates a store on an open connection."""
        self.connection = connection
        self.organisation_id = organisation_id
        self.workspace_id = workspace_id
        # Accessible workspaces, if `workspace_id` is `None`. The value `None` means that all are accessible.
        self.among: frozenset[str] | None = None
        self.change_flag = ChangeFlag()

    async def lock_organisation(self, wait_ms: int) -> None:
        """Locks the organisation against other writers until the transaction ends, so that later reads stay valid.

        SQLite has only one writer and needs no lock. Taking this row lock first gives all writers one lock order. A
        wait longer than `wait_ms` fails with an error that names concurrent changes, not an unavailable store. Other
        transactions may still insert rows that refer to the organisation.
        """
        if self.connection.dialect.name == "sqlite":
            return
        waiting = func.set_config("lock_timeout", str(wait_ms), True)
        query = select(waiting).where(organisations.c.id == self.organisation_id)
        await self.connection.execute(query.select_from(organisations).with_for_update(key_share=True))

    def organisation(self) -> TenantStore:
        """Returns a store for the whole organisation, for resources that all workspaces share. The calling code must
        restrict its queries.
        """
        tenant = TenantStore(self.connection, self.organisation_id, None)
        tenant.change_flag = self.change_flag
        return tenant

    async def find(self, table: Table, key: str) -> Row | None:
        """Returns the row with this id or slug; `None` if there is none. Raises `InvalidError` if several workspaces
        have the slug.
        """
        return _single_row(key, await self.fetch_prepared(_find_query(table), table, key=key))

    async def find_all(self, table: Table, ids: Iterable[str]) -> dict[str, Row]:
        """Returns the rows with these ids, by id."""
        return {row["id"]: row for row in await self.fetch_prepared(_find_all_query(table), table, ids=list(ids))}

    async def fetch_prepared(self, query: Query, table: Table, **values: object) -> list[Row]:
        """Returns the rows of a query object that is built once and run with parameters. Building a query takes longer
        than running it.
        """
        scope: dict[str, Any] = {name: value for name, value in self._scope_values(table).items() if value is not None}
        if self.workspace_id is None and self.among is not None and _workspace_column(table) is not None:
            scope[WORKSPACES_PARAMETER] = sorted(self.among)
        inside = _scoped_query(query, table, tuple(scope))
        rows = await self.connection.execute(inside, {**values, **scope})
        return [cast("Row", row) for row in rows.mappings()]

    async def fetch_first(self, query: Query, *tables: Table) -> Row | None:
        """Returns the first row of a query over these tables; `None` if there is none."""
        rows = await self.fetch_rows(query.limit(1), *tables)
        return rows[0] if rows else None

    async def fetch_rows(self, query: Query, *tables: Table) -> list[Row]:
        """Returns the rows of a query over these tables."""
        inside = query.where(*self._scope_conditions(tables))
        rows = await self.connection.execute(inside)
        return [cast("Row", row) for row in rows.mappings()]

    async def count(self, table: Table, conditions: Sequence[Condition] = ()) -> int:
        """Returns the number of rows in scope that match the conditions."""
        if not conditions:
            return (await self.fetch_prepared(_count_query(table), table))[0]["count"]
        return (await self.fetch_rows(_count_query(table).where(*conditions), table))[0]["count"]

    async def insert(self, table: Table, values: Mapping[str, Any]) -> Row:
        """Inserts a row with the organisation and workspace of this store, and returns it. Raises `InvalidError` if the
        row belongs to a workspace that is not accessible.
        """
        scope = self._scope_values(table)
        row = {**scope, **values, **{name: value for name, value in scope.items() if value is not None}}
        self._check_workspace(table, row)
        await self.connection.execute(insert(table).values(row))
        return row

    def _check_workspace(self, table: Table, row: Mapping[str, Any]) -> None:
        """Rejects a row of another workspace, for example one that takes its workspace from an object it is made of."""
        column = _workspace_column(table)
        workspace_id = None if column is None else row.get(column.key)
        if self.workspace_id is not None or self.among is None or workspace_id is None or workspace_id in self.among:
            return
        reason = "is required: the caller may make no such change in the workspace of the source"
        raise InvalidError(f"workspace_id {reason}", [Problem("workspace_id", reason)])

    async def insert_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Inserts rows with the organisation and workspace of this store."""
        scope = {name: value for name, value in self._scope_values(table).items() if value is not None}
        if rows:
            await self.connection.execute(insert(table), [{**row, **scope} for row in rows])

    async def update(self, table: Table, row_id: str, values: Mapping[str, Any]) -> None:
        """Updates a row if it is in scope."""
        query = update(table).where(table.c.id == row_id, *self._scope_conditions([table])).values(dict(values))
        await self.connection.execute(query)

    async def update_all(self, table: Table, values: Mapping[str, Any]) -> None:
        """Updates every row in scope."""
        await self.connection.execute(update(table).where(*self._scope_conditions([table])).values(dict(values)))

    async def delete(self, table: Table, *conditions: Condition) -> int:
        """Deletes the matching rows in scope; returns their number."""
        done = await self.connection.execute(delete_from(table).where(*conditions, *self._scope_conditions([table])))
        return done.rowcount

    async def mark_changed(self, *parts: str) -> None:
        """Records that snapshot sections changed, so that the data plane loads them again. See
        `penstock.store.snapshot_sections`.
        """
        change = self.change_flag
        if change.parts.issuperset(parts):
            return
        change.parts.update(parts)
        row_values = {"parts": sorted(change.parts)}
        if change.number is not None:
            await self.connection.execute(
                update(change_log).where(change_log.c.number == change.number).values(row_values)
            )
            return
        # The update locks the counter until commit, so the numbers follow the commit order.
        counted = update(change_counter).values(number=change_counter.c.number + 1).returning(change_counter.c.number)
        change.number = await self.connection.scalar(counted)
        await self.connection.execute(insert(change_log).values(number=change.number, **row_values))

    def _scope_conditions(self, tables: Iterable[Table]) -> list[Condition]:
        conditions: list[Condition] = []
        for table in tables:
            if (
                self.workspace_id is None
                and self.among is not None
                and (column := _workspace_column(table)) is not None
            ):
                conditions.append(column.in_(sorted(self.among)))
            conditions += [
                table.c[name] == value for name, value in self._scope_values(table).items() if value is not None
            ]
        return conditions

    def _scope_values(self, table: Table) -> dict[str, str | None]:
        if table.name == "organisations":
            return {"id": self.organisation_id}
        # The row of a workspace has the workspace's id in `id` instead of `workspace_id`. It is visible inside that
        # workspace.
        workspace = "id" if table.name == "workspaces" else "workspace_id"
        scope = {"organisation_id": self.organisation_id, workspace: self.workspace_id}
        if "organisation_id" not in table.c:
            message = f"the table {table.name!r} belongs to no organisation"
            raise LookupError(message)
        return {name: value for name, value in scope.items() if name in table.c}


def _single_row(key: str, rows: list[Row]) -> Row | None:
    """Returns the only row, or the row whose id is `key`. Raises `InvalidError` if several rows have `key` as their
    slug.
    """
    if len(rows) < AMBIGUITY_LIMIT:
        return rows[0] if rows else None
    if rows[0]["id"] != key:
        reason = f"is needed: several workspaces have {key!r}; hint: or use its id instead of its slug"
        raise InvalidError(f"workspace_id {reason}", [Problem("workspace_id", reason)])
    return rows[0]


def select_by_id_or_slug(table: Table, key: str | BindParameter[str]) -> Query:
    """Returns a query for the row with this id or slug. A match by id sorts before matches by slug."""
    if "slug" not in table.c:
        return select(table).where(table.c.id == key)
    return select(table).where(or_(table.c.id == key, table.c.slug == key)).order_by(table.c.id != key)


@cache
def _find_query(table: Table) -> Query:
    return select_by_id_or_slug(table, bindparam("key")).limit(AMBIGUITY_LIMIT)


@cache
def _find_all_query(table: Table) -> Query:
    return select(table).where(table.c.id.in_(bindparam("ids", expanding=True)))


@cache
def _count_query(table: Table) -> Query:
    return select(func.count().label("count")).select_from(table)


@lru_cache(MAX_SCOPED_QUERIES)
def _scoped_query(query: Query, table: Table, parameter_names: tuple[str, ...]) -> Query:
    equal = [table.c[name] == bindparam(name) for name in parameter_names if name != WORKSPACES_PARAMETER]
    column = _workspace_column(table)
    if WORKSPACES_PARAMETER in parameter_names and column is not None:
        return query.where(*equal, column.in_(bindparam(WORKSPACES_PARAMETER, expanding=True)))
    return query.where(*equal)


def _workspace_column(table: Table) -> Column[str] | None:
    # The row of a workspace has the workspace's id in `id` instead of `workspace_id`.
    return table.c.get("id" if table.name == "workspaces" else "workspace_id")
