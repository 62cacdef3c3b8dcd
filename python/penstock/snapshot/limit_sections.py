"""Snapshot sections with the limits of each workspace. A section is read again when a limit in it changes, and when a
usage period in it ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import and_, or_, select

from penstock.integrations.limits import list_accesses
from penstock.limits.rules import (
    LimitOwner,
    embedded_rules,
    integration_counter_id,
    rate_policy_rule,
    usage_policy_rule,
)
from penstock.schemas import now
from penstock.snapshot.append_log import Chunk
from penstock.snapshot.sectioned_table import section_digits
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies
from penstock.store.snapshot_sections import LIMITS, limits_section
from penstock.store.tables import api_keys, providers, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.limits.rules import JsonObject
    from penstock.snapshot.build import StoreData
    from penstock.store.tenant import Row

    RulesByWorkspace = dict[str, list[JsonObject]]

TABLES_BY_OWNER: dict[str, Table] = {"workspace": workspaces, "api_key": api_keys, "provider": providers}


class LimitSection(msgspec.Struct, frozen=True):
    """One section: its encoded rules, their number, and when the first usage period in it ends in milliseconds."""

    chunk: Chunk
    count: int
    end: int | None


class LimitSections:
    """Cache of all limits in the store, in sections of several workspaces each."""

    def __init__(self) -> None:
        """Starts without sections. `refresh` reads them."""
        self.parts: dict[str, LimitSection] = {}

    def restore(self, stored: StoreData) -> None:
        """Restores the sections from a saved snapshot."""
        saved = {name: entry for name, entry in stored.parts.items() if name.startswith(f"{LIMITS}/")}
        self.parts = {name: LimitSection(stored.chunks[name], count, end) for name, (count, end) in saved.items()}

    async def refresh(self, connection: AsyncConnection, changed: frozenset[str] | None) -> None:
        """Reads the sections that changed or in which a usage period ended. Reads all sections if `changed` is
        `None`.
        """
        requested: set[str] | None = None
        if changed is not None and LIMITS not in changed:
            requested = {name for name in changed if name.startswith(f"{LIMITS}/")}
            requested |= {name for name, part in self.parts.items() if part.end is not None and part.end <= now()}
            if not requested:
                return
        digits = None if requested is None else sorted(name.rpartition("/")[2] for name in requested)
        fresh = await _read_sections(connection, digits)
        remaining = (
            {} if requested is None else {name: part for name, part in self.parts.items() if name not in requested}
        )
        self.parts = remaining | fresh

    def rules_by_workspace(self) -> RulesByWorkspace:
        """Returns the rules of each workspace, by its id."""
        documents = [msgspec.json.decode(part.chunk.data) for part in self.parts.values()]
        return {row["workspace"]: row["limits"] for document in documents for row in document[LIMITS]}


async def _read_sections(connection: AsyncConnection, digits: list[str] | None) -> dict[str, LimitSection]:
    by_workspace: RulesByWorkspace = {}
    for owner, table in TABLES_BY_OWNER.items():
        for row in await _fetch(connection, _select_owners(table, digits)):
            _add(by_workspace, row["workspace"], embedded_rules(LimitOwner(owner, row["id"], row["slug"]), row))
    for access in await list_accesses(connection, *_section_conditions(providers.c.workspace_id, digits)):
        owner = LimitOwner("integration", access.integration_id, access.slug)
        counter = integration_counter_id(access.integration_id, access.workspace_id)
        _add(by_workspace, access.workspace_id, embedded_rules(owner, access.limits, counter))
    for row in await _fetch(connection, _select_policies(usage_limits_policies, digits)):
        _add(by_workspace, row["workspace_id"], [usage_policy_rule(row)])
    llm = rate_limits_policies.c.target == "llm"
    for row in await _fetch(connection, _select_policies(rate_limits_policies, digits).where(llm)):
        _add(by_workspace, row["workspace_id"], [rate_policy_rule(row)])
    by_section: dict[str, list[JsonObject]] = {}
    for workspace_id, rules in sorted(by_workspace.items()):
        row = {"workspace": workspace_id, LIMITS: rules}
        by_section.setdefault(limits_section(workspace_id), []).append(row)
    sections: dict[str, LimitSection] = {}
    for name, rows in by_section.items():
        sections[name] = _encode_section(name, rows)
        # Lets other tasks run: thousands of keys may have limits, and encoding them would block the event loop.
        await asyncio.sleep(0)
    return sections


async def _fetch(connection: AsyncConnection, query: Select[*tuple[Any, ...]]) -> list[Row]:
    return [cast("Row", row) for row in (await connection.execute(query)).mappings()]


def _add(rules_by_workspace: RulesByWorkspace, workspace_id: str, rules: Iterable[JsonObject]) -> None:
    for rule in rules:
        rules_by_workspace.setdefault(workspace_id, []).append(rule)


def _encode_section(name: str, rows: list[JsonObject]) -> LimitSection:
    rules = [rule for row in rows for rule in row[LIMITS]]
    ends = [rule["period"]["end"] for rule in rules if rule.get("period", {}).get("end") is not None]
    chunk = Chunk.from_bytes(msgspec.json.encode({"name": name, LIMITS: rows}))
    return LimitSection(chunk, len(rules), min(ends, default=None))


def _select_owners(table: Table, digits: list[str] | None) -> Select[*tuple[Any, ...]]:
    """Selects the active workspaces, keys or providers that have limits."""
    own = table.c
    workspace_id = own.id if table is workspaces else own.workspace_id
    slug = own.slug if "slug" in own else own.name
    names = (own.id, slug.label("slug"), workspace_id.label("workspace"))
    query = select(*names, own.usage_limits, own.rate_limits, own.last_reset_at, own.created_at)
    has_limits = or_(own.usage_limits.is_not(None), own.rate_limits.is_not(None))
    query = query.where(own.status == "active", has_limits, workspace_id.is_not(None))
    if table is not workspaces:
        query = query.join(workspaces, and_(workspaces.c.id == workspace_id, workspaces.c.status == "active"))
    return query.where(*_section_conditions(workspace_id, digits)).order_by(own.id)


def _select_policies(table: Table, digits: list[str] | None) -> Select[*tuple[Any, ...]]:
    query = select(table).where(table.c.status == "active")
    return query.where(*_section_conditions(table.c.workspace_id, digits)).order_by(table.c.id)


def _section_conditions(workspace_id: ColumnElement[str], digits: list[str] | None) -> list[ColumnElement[bool]]:
    return [] if digits is None else [section_digits(workspace_id).in_(digits)]
