"""Prompts and partials in the snapshot, in sections. Versions that a request can select without a number are part of
the snapshot. The engine fetches other versions one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, BigInteger, Integer, Text, cast, exists, func, literal_column, null, or_, select

from penstock.snapshot.sectioned_table import CheckedTable, embed_json, json_object
from penstock.store.prompt_tables import labels, prompt_labels, prompt_partials, prompts
from penstock.store.tables import versions, workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.snapshot.sectioned_table import SectionRows

# Last two hexadecimal digits of ids. Each value is one section.
ALL_DIGITS = [f"{number:02x}" for number in range(256)]
# Number of sections that one statement reads.
SECTIONS_PER_STATEMENT = 8


class VersionedTable(CheckedTable):
    """A large table whose rows are published with some of their versions."""

    async def _query_rows(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        if conditions:
            return await super()._query_rows(connection, conditions)
        sections: dict[str, SectionRows] = {}
        # The contents are large, and one statement for all rows could exceed its time limit.
        for start in range(0, len(ALL_DIGITS), SECTIONS_PER_STATEMENT):
            digits = ALL_DIGITS[start : start + SECTIONS_PER_STATEMENT]
            sections |= await super()._query_rows(connection, [self._digits.in_(digits)])
        return sections


class PromptTable(VersionedTable):
    """The table of prompts, each with its default version, its newest version and those with a label."""

    def __init__(self) -> None:
        """Prepares the table; no section is read yet."""
        super().__init__(prompts, _select_prompts)


class PartialTable(VersionedTable):
    """The table of partials, each with its default version and its newest version."""

    def __init__(self) -> None:
        """Prepares the table; no section is read yet."""
        super().__init__(prompt_partials, _select_partials)


def _select_prompts(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    version = json_object(
        is_postgres,
        number=versions.c.number,
        id=versions.c.id,
        content=embed_json(is_postgres, versions.c.content["content"]),
    )
    is_labelled = (
        exists()
        .where(prompt_labels.c.prompt_id == prompts.c.id, prompt_labels.c.number == versions.c.number)
        .correlate(prompts, versions)
    )
    row = json_object(
        is_postgres,
        id=prompts.c.id,
        slug=prompts.c.slug,
        name=prompts.c.name,
        workspace=prompts.c.workspace_id,
        default=prompts.c.default_version,
        latest=prompts.c.latest_version,
        labels=_join_labels(is_postgres),
        shared_with=embed_json(is_postgres, prompts.c.shared_with),
        versions=_join_versions(is_postgres, prompts, version, is_labelled),
    )
    return _select_active(prompts, row)


def _select_partials(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    version = json_object(
        is_postgres,
        number=versions.c.number,
        id=versions.c.id,
        string=embed_json(is_postgres, versions.c.content["string"]),
    )
    row = json_object(
        is_postgres,
        id=prompt_partials.c.id,
        slug=prompt_partials.c.slug,
        workspace=prompt_partials.c.workspace_id,
        default=prompt_partials.c.default_version,
        latest=prompt_partials.c.latest_version,
        versions=_join_versions(is_postgres, prompt_partials, version),
    )
    return _select_active(prompt_partials, row)


def _select_active(table: Table, row: ColumnElement[str]) -> Select[*tuple[Any, ...]]:
    """Selects the JSON of the active rows in active workspaces."""
    ends, counts = cast(null(), BigInteger).label("ends"), literal_column("1", Integer).label("counts")
    return (
        select(row.label("row"), ends, counts)
        .join(workspaces, workspaces.c.id == table.c.workspace_id)
        .where(table.c.status == "active", workspaces.c.status == "active")
    )


def _join_versions(
    is_postgres: bool, table: Table, version: ColumnElement[str], *conditions: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Returns the SQL expression for a JSON array with the published versions of a row."""
    is_published = or_(versions.c.number.in_([table.c.default_version, table.c.latest_version]), *conditions)
    joined = _aggregate(is_postgres, version, versions.c.number)
    published = select(joined).where(versions.c.resource_id == table.c.id, is_published)
    return _wrap_json(is_postgres, "[", published.correlate(table).scalar_subquery(), "]")


def _join_labels(is_postgres: bool) -> ColumnElement[Any]:
    """Returns the SQL expression for a JSON object with the labels of a prompt: the number of the version by name."""
    quoted = cast(func.to_json(labels.c.name), Text) if is_postgres else func.json_quote(labels.c.name, type_=Text)
    pair = quoted.concat(":").concat(cast(prompt_labels.c.number, Text))
    labelled = (
        select(_aggregate(is_postgres, pair, labels.c.name))
        .select_from(prompt_labels)
        .join(labels, labels.c.id == prompt_labels.c.label_id)
        .where(prompt_labels.c.prompt_id == prompts.c.id)
    )
    return _wrap_json(is_postgres, "{", labelled.correlate(prompts).scalar_subquery(), "}")


def _aggregate(is_postgres: bool, value: ColumnElement[str], order: ColumnElement[Any]) -> ColumnElement[str]:
    if is_postgres:
        # Imported only here: SQLAlchemy's module for PostgreSQL takes 2 MB, which a gateway with SQLite does not need.
        from sqlalchemy.dialects.postgresql import aggregate_order_by  # noqa: PLC0415 - see the comment above

        return func.string_agg(value, aggregate_order_by(literal_column("','", Text), order))
    return func.group_concat(value, ",")


def _wrap_json(is_postgres: bool, opening: str, joined: ColumnElement[Any], closing: str) -> ColumnElement[Any]:
    """Returns the SQL expression for JSON that encloses `joined` in an opening and a closing bracket."""
    start, end = literal_column(f"'{opening}'", Text), literal_column(f"'{closing}'", Text)
    content = func.coalesce(joined, literal_column("''", Text))
    if is_postgres:
        return cast(func.concat(start, content, end), JSON)
    return func.json(start.concat(content).concat(end))
