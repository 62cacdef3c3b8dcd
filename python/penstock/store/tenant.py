"""The store from inside one organisation and one workspace: what belongs to others cannot be named from here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import bindparam, func, insert, or_, select, update
from sqlalchemy import delete as delete_from

from penstock.errors import InvalidError, Problem
from penstock.store.fast_reads import ReadConnection
from penstock.store.tables import change_counter, change_log, organisations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import BindParameter, ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.fast_reads import Query

    Condition = ColumnElement[bool]

Row = Mapping[str, Any]
# More than one.
AMBIGUITY_LIMIT = 2
# So many queries that were written once are kept as they are asked in a place.
MAX_SCOPED_QUERIES = 1000
# The parameter that says which workspaces are open.
WORKSPACES_PARAMETER = "among"


class ChangeFlag:
    """Whether a transaction changed what the data plane must know, and in which parts; shared by all who stand in it."""

    number: int | None = None

    def __init__(self) -> None:
        """Nothing changed yet."""
        self.parts: set[str] = set()

    @property
    def is_set(self) -> bool:
        """Whether something changed."""
        return self.number is not None


class TenantStore:
    """Reads and writes rows of one organisation; of one workspace where one is chosen."""

    def __init__(self, connection: AsyncConnection, organisation_id: str, workspace_id: str | None) -> None:
        """Stand inside."""
        self.connection = connection
        self.organisation_id = organisation_id
        self.workspace_id = workspace_id
        # Where no single one is chosen: the workspaces that are open, and no others.
        self.among: frozenset[str] | None = None
        self.bell = ChangeFlag()

    async def lock_organisation(self, wait_ms: int) -> None:
        """Let nobody else change the organisation until this transaction ends: what is read from here on stays so.

        An embedded database has one writer anyway. To hold this one row first keeps everyone in one order; who waits
        longer than that is told so, and not that the store is away. Rows may go on referring to it meanwhile.
        """
        if self.connection.dialect.name == "sqlite":
            return
        waiting = func.set_config("lock_timeout", str(wait_ms), True)
        query = select(waiting).where(organisations.c.id == self.organisation_id)
        await self.connection.execute(query.select_from(organisations).with_for_update(key_share=True))

    def organisation(self) -> TenantStore:
        """Step out of the workspace: for what all of the organisation shares. The caller narrows it."""
        tenant = TenantStore(self.connection, self.organisation_id, None)
        tenant.bell = self.bell
        return tenant

    async def find(self, table: Table, key: str) -> Row | None:
        """Find a row by its id, or by its slug where it has one; what several workspaces have is not chosen among."""
        return _single_row(key, await self.fetch_prepared(_find_query(table), table, key=key))

    async def find_all(self, table: Table, ids: Iterable[str]) -> dict[str, Row]:
        """Find rows by their ids."""
        return {row["id"]: row for row in await self.fetch_prepared(_find_all_query(table), table, ids=list(ids))}

    async def fetch_prepared(self, query: Query, table: Table, **values: object) -> list[Row]:
        """Give the rows of a query that was written once, with parameters: to write one takes longer than its answer."""
        own: dict[str, Any] = {name: value for name, value in self._scope_values(table).items() if value is not None}
        if self.workspace_id is None and self.among is not None and _workspace_column(table) is not None:
            own[WORKSPACES_PARAMETER] = sorted(self.among)
        inside = _scoped_query(query, table, tuple(own))
        if isinstance(self.connection, ReadConnection):
            return await self.connection.fetch_prepared(inside, {**values, **own})
        found = await self.connection.execute(inside, {**values, **own})
        return [cast("Row", row) for row in found.mappings()]

    async def fetch_first(self, query: Query, *tables: Table) -> Row | None:
        """Give the first row of a query over these tables."""
        rows = await self.fetch_rows(query.limit(1), *tables)
        return rows[0] if rows else None

    async def fetch_rows(self, query: Query, *tables: Table) -> list[Row]:
        """Give the rows of a query over these tables."""
        inside = query.where(*self._scope_conditions(tables))
        if isinstance(self.connection, ReadConnection):
            return await self.connection.fetch_rows(inside)
        found = await self.connection.execute(inside)
        return [cast("Row", row) for row in found.mappings()]

    async def count(self, table: Table, conditions: Sequence[Condition] = ()) -> int:
        """Count rows."""
        if not conditions:
            return (await self.fetch_prepared(_count_query(table), table))[0]["count"]
        return (await self.fetch_rows(_count_query(table).where(*conditions), table))[0]["count"]

    async def insert(self, table: Table, values: Mapping[str, Any]) -> Row:
        """Add a row here."""
        own = self._scope_values(table)
        row = {**own, **values, **{name: value for name, value in own.items() if value is not None}}
        await self.connection.execute(insert(table).values(row))
        return row

    async def insert_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows here."""
        own = {name: value for name, value in self._scope_values(table).items() if value is not None}
        if rows:
            await self.connection.execute(insert(table), [{**row, **own} for row in rows])

    async def update(self, table: Table, row_id: str, values: Mapping[str, Any]) -> None:
        """Change a row, if it is here."""
        query = update(table).where(table.c.id == row_id, *self._scope_conditions([table])).values(dict(values))
        await self.connection.execute(query)

    async def update_all(self, table: Table, values: Mapping[str, Any]) -> None:
        """Change every row that is here."""
        await self.connection.execute(update(table).where(*self._scope_conditions([table])).values(dict(values)))

    async def delete(self, table: Table, *conditions: Condition) -> int:
        """Remove rows, and say how many."""
        done = await self.connection.execute(delete_from(table).where(*conditions, *self._scope_conditions([table])))
        return done.rowcount

    async def mark_changed(self, *parts: str) -> None:
        """Note that the data plane must know of a change, and in which parts of what it knows: `penstock.store.snapshot_sections`."""
        bell = self.bell
        if bell.parts.issuperset(parts):
            return
        bell.parts.update(parts)
        said = {"parts": sorted(bell.parts)}
        if bell.number is not None:
            await self.connection.execute(update(change_log).where(change_log.c.number == bell.number).values(said))
            return
        # Who changes something after us waits here until this is kept: numbers are in the order of what they count.
        counted = update(change_counter).values(number=change_counter.c.number + 1).returning(change_counter.c.number)
        bell.number = await self.connection.scalar(counted)
        await self.connection.execute(insert(change_log).values(number=bell.number, **said))

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
        # A workspace's own row is named by its id: who is inside one sees that one.
        workspace = "id" if table.name == "workspaces" else "workspace_id"
        own = {"organisation_id": self.organisation_id, workspace: self.workspace_id}
        if "organisation_id" not in table.c:
            message = f"the table {table.name!r} belongs to no organisation"
            raise LookupError(message)
        return {name: value for name, value in own.items() if name in table.c}


def _single_row(key: str, found: list[Row]) -> Row | None:
    """Give the one row that is meant: an id names no other."""
    if len(found) < AMBIGUITY_LIMIT:
        return found[0] if found else None
    if found[0]["id"] != key:
        why = f"is needed: several workspaces have {key!r}; hint: or its id in the place of its slug"
        raise InvalidError(f"workspace_id {why}", [Problem("workspace_id", why)])
    return found[0]


def select_by_id_or_slug(table: Table, key: str | BindParameter[str]) -> Query:
    """Ask for the row that has this id, or this slug: where one has it as its id and others as their slug, that one first."""
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
def _scoped_query(query: Query, table: Table, own: tuple[str, ...]) -> Query:
    equal = [table.c[name] == bindparam(name) for name in own if name != WORKSPACES_PARAMETER]
    column = _workspace_column(table)
    if WORKSPACES_PARAMETER in own and column is not None:
        return query.where(*equal, column.in_(bindparam(WORKSPACES_PARAMETER, expanding=True)))
    return query.where(*equal)


def _workspace_column(table: Table) -> ColumnElement[str] | None:
    # A workspace's own row is named by its id.
    return table.c.get("id" if table.name == "workspaces" else "workspace_id")
