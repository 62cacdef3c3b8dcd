"""The five common verbs of a resource. A verb that differs is written out where it differs; none of these takes a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Table, select

from penstock.errors import NotFoundError
from penstock.ids import new_id
from penstock.kit import listing
from penstock.schemas import now
from penstock.store.snapshot_sections import section_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement

    from penstock.kit.listing import PageRequest
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row


class Resource(msgspec.Struct, frozen=True):
    """Rows of one table under the name that scopes and the audit log use."""

    name: str
    table: Table
    # Whether the data plane must know of a change.
    publishes: bool = False
    # Columns that lists show nothing of, and that may be long.
    unlisted: frozenset[str] = frozenset()

    async def create(self, desk: TenantSession, values: Mapping[str, Any]) -> Row:
        """Make one."""
        moment = now()
        row = await desk.insert(self.table, {"id": new_id(), "created_at": moment, "last_updated_at": moment, **values})
        await self._record_change(desk, "create", None, row)
        return row

    async def get(self, desk: TenantSession, key: str) -> Row:
        """Find one by id or slug; one of another workspace is as good as none."""
        row = await desk.find(self.table, key)
        if row is None:
            message = f"there is nothing under {key!r} here"
            raise NotFoundError(message)
        desk.set_requested_row(self.table, row)
        return row

    async def list_page(
        self, desk: TenantSession, wanted: PageRequest, conditions: Sequence[ColumnElement[bool]] = ()
    ) -> tuple[int, list[Row]]:
        """Give how many there are, and those of a page."""
        return await listing.fetch_page(desk, self.table, wanted, conditions, self.unlisted)

    async def update(self, desk: TenantSession, row: Row, values: Mapping[str, Any], verb: str = "update") -> Row:
        """Change one; it is noted as what was asked for."""
        await desk.check_precondition(self.table, row)
        changed = {**values, "last_updated_at": now()}
        await desk.update(self.table, row["id"], changed)
        after = {**row, **changed}
        await self._record_change(desk, verb, row, after)
        return after

    async def delete(self, desk: TenantSession, row: Row) -> None:
        """Remove one."""
        await desk.check_precondition(self.table, row)
        await desk.delete(self.table, self.table.c.id == row["id"])
        await self._record_change(desk, "delete", row, None)

    async def delete_all(self, desk: TenantSession, *conditions: ColumnElement[bool]) -> None:
        """Remove all rows of which this is so; each is noted."""
        rows = await desk.fetch_rows(select(self.table).where(*conditions), self.table)
        if not rows:
            return
        await desk.delete(self.table, *conditions)
        await desk.record_deletions(f"{self.name}.delete", rows)
        if self.publishes:
            await desk.mark_changed(*{section_name(self.table, row["id"]) for row in rows})

    async def _record_change(self, desk: TenantSession, verb: str, before: Row | None, after: Row | None) -> None:
        await desk.record_change(f"{self.name}.{verb}", before=before, after=after)
        row = after or before
        if self.publishes and row:
            await desk.mark_changed(section_name(self.table, row["id"]))
