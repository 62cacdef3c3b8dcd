"""CRUD operations of a resource. Each writes an audit log entry and publishes the change to the data plane if
necessary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Table, select

from penstock.errors import NotFoundError
from penstock.ids import new_id
from penstock.kit import numbered_pages
from penstock.schemas import now
from penstock.store.snapshot_sections import changed_sections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement

    from penstock.kit.numbered_pages import PageRequest
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row


class Resource(msgspec.Struct, frozen=True):
    """Rows of one table, under the resource name that scopes and the audit log use."""

    name: str
    table: Table
    # True if changes must be published to the data plane.
    publishes: bool = False
    # Columns that list queries do not read, because lists do not contain them and they may be large.
    unlisted: frozenset[str] = frozenset()

    async def create(self, session: TenantSession, values: Mapping[str, Any]) -> Row:
        """Inserts a row."""
        moment = now()
        row = await session.insert(
            self.table, {"id": new_id(), "created_at": moment, "last_updated_at": moment, **values}
        )
        # Columns without a value in `values` are null in the database.
        await self._record_change(session, "create", None, {**dict.fromkeys(self.table.c.keys()), **row})
        return row

    async def get(self, session: TenantSession, key: str) -> Row:
        """Returns a row by id or slug. Raises NotFoundError if it does not exist or belongs to another workspace."""
        row = await session.find(self.table, key)
        if row is None:
            message = f"no object with the id or slug {key!r} was found"
            raise NotFoundError(message)
        session.set_requested_row(self.table, row)
        return row

    async def list_page(
        self, session: TenantSession, requested: PageRequest, conditions: Sequence[ColumnElement[bool]] = ()
    ) -> tuple[int, list[Row]]:
        """Returns the total number of rows, and the rows of the page."""
        return await numbered_pages.fetch_page(session, self.table, requested, conditions, self.unlisted)

    async def update(self, session: TenantSession, row: Row, values: Mapping[str, Any], verb: str = "update") -> Row:
        """Updates a row. The audit log entry has the action `verb`."""
        await session.check_precondition(self.table, row)
        changed = {**values, "last_updated_at": now()}
        await session.update(self.table, row["id"], changed)
        after = {**row, **changed}
        await self._record_change(session, verb, row, after)
        return after

    async def delete(self, session: TenantSession, row: Row) -> None:
        """Deletes a row."""
        await session.check_precondition(self.table, row)
        await session.delete(self.table, self.table.c.id == row["id"])
        await self._record_change(session, "delete", row, None)

    async def delete_all(self, session: TenantSession, *conditions: ColumnElement[bool]) -> None:
        """Deletes all rows that match the conditions, with an audit log entry for each."""
        rows = await session.fetch_rows(select(self.table).where(*conditions), self.table)
        if not rows:
            return
        await session.delete(self.table, *conditions)
        await session.record_deletions(f"{self.name}.delete", rows)
        if self.publishes:
            await session.mark_changed(*{part for row in rows for part in changed_sections(self.table, row)})

    async def _record_change(self, session: TenantSession, verb: str, before: Row | None, after: Row | None) -> None:
        await session.record_change(f"{self.name}.{verb}", before=before, after=after)
        row = after or before
        if self.publishes and row:
            await session.mark_changed(*changed_sections(self.table, row))
