"""Large tables of the snapshot, which are read and cached in sections. The database itself encodes the rows as JSON."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import JSON, LargeBinary, String, Text, cast, func, literal_column, select

from penstock import engine
from penstock.schemas import now
from penstock.snapshot.append_log import Chunk
from penstock.store.snapshot_sections import DIGITS, MEMBER_BY_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.snapshot.build import StoreData

log = logging.getLogger("penstock")

# Rows of a section as JSON, their number, and the Unix time in milliseconds at which the first one expires, or `None`.
SectionRows = tuple[bytes, int, "int | None"]
ROW_SKIPPED = "the %s %r is left out: %s"
# Position, from 1, of the last two digits in an id.
FIRST_DIGIT = 35
# Fields that are never null and need no JSON escaping, because the gateway generates them from letters and digits.
UNESCAPED_FIELDS = {"id", "sha256", "workspace", "lacks", "version_id", "user_id"}
# Beginning of the JSON paths of validation errors: the position of a row in the validated document. The rest is a path
# in the row.
ROW_PATH = re.compile(r"^\$\.parts\[0\]\.\w+\[\d+\]\.?")


class Section(msgspec.Struct, frozen=True):
    """A section of the snapshot: its encoded rows, their number, and when the first one expires in milliseconds."""

    chunk: Chunk
    count: int
    end: int | None

    def is_expired(self, moment: int) -> bool:
        """Returns true if a row of the section has expired, so the section must be read again."""
        return is_expired(self.end, moment)


class SectionedTable:
    """A large table that is read and cached in sections, by section name."""

    def __init__(self, table: Table, rows: Callable[[bool], Select[*tuple[Any, ...]]]) -> None:
        """Stores the function for the query of the rows. Its parameter is true for PostgreSQL. `refresh` reads the
        sections.
        """
        self._name, self._rows, self._digits = table.name, rows, section_digits(table.c.id)
        self._member = MEMBER_BY_TABLE[table.name]
        self.parts: dict[str, Section] = {}

    def restore(self, stored: StoreData) -> None:
        """Restores the sections from a saved snapshot."""
        saved_sections = {name: entry for name, entry in stored.parts.items() if name.startswith(f"{self._name}/")}
        self.parts = {name: Section(stored.chunks[name], count, end) for name, (count, end) in saved_sections.items()}

    async def refresh(self, connection: AsyncConnection, changed: frozenset[str] | None) -> None:
        """Reads the sections that changed or that have expired rows. Reads all sections if `changed` is `None`."""
        requested: set[str] = set()
        old: dict[str, Section] = {}
        if changed is not None:
            requested = {name for name in changed if name.startswith(f"{self._name}/")}
            requested |= {name for name, part in self.parts.items() if part.is_expired(now())}
            if not requested:
                return
            old = {name: part for name, part in self.parts.items() if name not in requested}
        conditions = [self._digits.in_(sorted(name.rpartition("/")[2] for name in requested))] if requested else []
        fresh = {
            f"{self._name}/{digits}": rows
            for digits, rows in (await self._query_sections(connection, conditions)).items()
        }
        self.parts = old | {
            name: Section(self._encode_chunk(name, rows), count, end) for name, (rows, count, end) in fresh.items()
        }

    async def _query_sections(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        """Has the database encode rows as JSON. Returns the rows of each section, their number and the first expiry, by
        the section's digits.
        """
        is_postgres = connection.dialect.name == "postgresql"
        inner = self._rows(is_postgres).add_columns(self._digits.label("digits")).where(*conditions).subquery()
        if is_postgres:
            joined = func.convert_to(func.string_agg(inner.c.row, ","), "UTF8")
        else:
            joined = cast(func.group_concat(inner.c.row, ","), LargeBinary)
        query = select(inner.c.digits, joined, func.count(inner.c.counts), func.min(inner.c.ends))
        query = query.group_by(inner.c.digits)
        results = (await connection.execute(query)).all()
        return {digits: (rows, count, end) for digits, rows, count, end in results}

    def _encode_chunk(self, name: str, rows: bytes) -> Chunk:
        """Encodes a section in the format that the engine reads."""
        return Chunk.from_bytes(b'{"name":"%s","%s":[%s]}' % (name.encode(), self._member.encode(), rows))


class CheckedTable(SectionedTable):
    """A large table with rows that the engine compiles, such as configs. Rows that the engine rejects are omitted."""

    async def _query_sections(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        result = await self._query_rows(connection, conditions)
        # Runs in a thread, because the engine compiles the rows, which would block the event loop.
        used = await asyncio.to_thread(
            lambda: {digits: drop_invalid_rows(self._member, rows) for digits, (rows, _, _) in result.items()}
        )
        return {digits: (used[digits], count, end) for digits, (_, count, end) in result.items() if used[digits]}

    async def _query_rows(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        """Returns the rows of each section before they are validated."""
        return await super()._query_sections(connection, conditions)


def is_expired(end: int | None, moment: int) -> bool:
    """Returns true if an end time is set and not after `moment`. Both are in milliseconds."""
    return end is not None and end <= moment


def section_digits(column: ColumnElement[str]) -> ColumnElement[str]:
    """Returns an SQL expression for the id digits that select the section of a row in a large table."""
    return func.substr(column, FIRST_DIGIT, DIGITS, type_=String)


def drop_invalid_rows(member: str, rows: bytes) -> bytes:
    """Drops rows that the engine rejects. A row saved by an older release must not stop publishing for everyone."""
    if _row_errors(member, rows) is None:
        return rows
    valid_rows: list[bytes] = []
    for raw in msgspec.json.decode(b"[%s]" % rows, type=list[msgspec.Raw]):
        item = bytes(raw)
        if reason := _row_errors(member, item):
            log.warning(ROW_SKIPPED, member.removesuffix("s"), msgspec.json.decode(item)["slug"], reason)
        else:
            valid_rows.append(item)
    return b",".join(valid_rows)


def _row_errors(member: str, rows: bytes) -> str | None:
    """Returns the reason why the engine rejects these rows, or `None` if it accepts them."""
    try:
        engine.check("snapshot", b'{"epoch":"-","parts":[{"name":"-","%s":[%s]}]}' % (member.encode(), rows))
    except engine.EngineError as error:
        problems = [f"{ROW_PATH.sub('', problem['path'])} {problem['message']}" for problem in error.problems]
        return ", ".join(problems) or str(error)
    return None


def json_object(is_postgres: bool, **fields: ColumnElement[Any]) -> ColumnElement[str]:
    """Returns the SQL expression for a JSON object with these names and values."""
    if is_postgres:
        return _concat_json_object(fields)
    pairs: list[Any] = []
    for name, value in fields.items():
        pairs += [literal_column(f"'{name}'"), value]
    return func.json_object(*pairs)


def _concat_json_object(fields: Mapping[str, ColumnElement[Any]]) -> ColumnElement[str]:
    """Builds a JSON object by string concatenation, because PostgreSQL's own function for objects takes twice
    as long.
    """
    parts: list[ColumnElement[str]] = []
    for name, value in fields.items():
        parts += [literal_column(f"""'{"," if parts else "{"}"{name}":'"""), *_json_value(name, value)]
    return func.concat(*parts, literal_column("'}'"))


def _json_value(name: str, value: ColumnElement[Any]) -> list[ColumnElement[str]]:
    if name in UNESCAPED_FIELDS:
        return [literal_column("""'"'"""), value, literal_column("""'"'""")]
    written = cast(func.to_json(value), Text) if isinstance(value.type, String) else cast(value, Text)
    return [func.coalesce(written, literal_column("'null'"))]


def embed_json(is_postgres: bool, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Embeds a text column that contains JSON as part of a larger JSON value."""
    return cast(column, JSON) if is_postgres else func.json(column)
