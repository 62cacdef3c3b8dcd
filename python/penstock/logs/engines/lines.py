"""Prepares the record lines and changes of a batch for the JSON readers of the engines. For DuckDB, Rust decodes the
record lines instead.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.logs.columns import AMENDABLE_COLUMNS, RECORD_COLUMNS, ColumnType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.logs.batch import BodyLocation, RecordBatch

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
FEEDBACK_FIELDS = ("id", "organisation_id", "workspace_id", "trace_id", "value", "weight", "metadata", "created_at")


class Head(msgspec.Struct):
    """Fields of a record line that the insertion reads."""

    id: uuid.UUID
    created_at: dt.datetime
    organisation_id: str | None = None
    workspace_id: str | None = None


class PreparedChanges(msgspec.Struct):
    """Merged changes of a batch: amendments with one object per record, and feedback."""

    amendments: dict[uuid.UUID, dict[str, Any]] = {}
    feedback: list[dict[str, Any]] = []
    invalid_count: int = 0


class PreparedBatch(msgspec.Struct):
    """Record lines by identifier, including the fields that the log worker adds, and the changes to earlier records."""

    heads: dict[uuid.UUID, Head]
    lines: dict[uuid.UUID, bytes]
    changes: PreparedChanges
    invalid_count: int = 0

    def time_range(self) -> tuple[dt.datetime, dt.datetime]:
        """Returns the earliest and the latest time of the records."""
        times = [head.created_at for head in self.heads.values()]
        return min(times), max(times)


_HEAD_DECODER = msgspec.json.Decoder(Head)


def prepare_batch(batch: RecordBatch) -> PreparedBatch:
    """Prepares a batch. Omits lines that are not valid or that repeat an identifier. Adds the location of bodies to all
    other lines.
    """
    prepared = PreparedBatch({}, {}, PreparedChanges())
    suffix = b',"node":' + msgspec.json.encode(batch.node)
    for line in batch.records:
        try:
            head = _HEAD_DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            prepared.invalid_count += 1
            continue
        if head.created_at.tzinfo is None or not line.endswith(b"}"):
            prepared.invalid_count += 1
            continue
        location = batch.bodies.get(head.id)
        fields = suffix
        if location is not None:
            key = msgspec.json.encode(location.key)
            fields += b',"body_key":%b,"body_offset":%d,"body_length":%d' % (key, location.offset, location.length)
        prepared.heads[head.id] = head
        prepared.lines[head.id] = line[:-1] + fields + b"}"
    prepared.changes = prepare_changes(
        batch, {key: location for key, location in batch.bodies.items() if key not in prepared.heads}
    )
    prepared.invalid_count += prepared.changes.invalid_count
    return prepared


def prepare_changes(batch: RecordBatch, late_bodies: Mapping[uuid.UUID, BodyLocation]) -> PreparedChanges:
    """Checks and merges amendments and feedback. `late_bodies` has the locations of bodies whose records are in earlier
    batches.
    """
    changes = PreparedChanges()
    for identifier, location in late_bodies.items():
        fields = {"body_key": location.key, "body_offset": location.offset, "body_length": location.length}
        changes.amendments.setdefault(identifier, {}).update(fields)
    for amendment in batch.amendments:
        _add_amendment(changes, amendment)
    changes.feedback = _merge_feedback(batch, changes)
    return changes


def _merge_feedback(batch: RecordBatch, changes: PreparedChanges) -> list[dict[str, Any]]:
    """Merges entries with the same feedback id and organisation: a later value replaces an earlier one."""
    merged: dict[str, dict[str, Any]] = {}
    for item in batch.feedback:
        feedback = _prepare_feedback(item)
        if feedback is None:
            changes.invalid_count += 1
            continue
        first = merged.setdefault(feedback["id"], feedback)
        if first["organisation_id"] == feedback["organisation_id"]:
            remaining = {field: first[field] for field in ("workspace_id", "created_at") if first[field] is not None}
            first |= {field: value for field, value in feedback.items() if value is not None} | remaining
    return list(merged.values())


def _add_amendment(changes: PreparedChanges, amendment: dict[str, Any]) -> None:
    try:
        identifier = uuid.UUID(str(amendment.get("id")))
    except ValueError:
        changes.invalid_count += 1
        return
    fields = {
        column.name: value
        for column in AMENDABLE_COLUMNS
        if (value := coerce_value(amendment.get(column.name), column.type)) is not None
    }
    changes.amendments.setdefault(identifier, {}).update(fields)


def _prepare_feedback(item: dict[str, Any]) -> dict[str, Any] | None:
    try:
        feedback = {field: item.get(field) for field in FEEDBACK_FIELDS}
        feedback["id"] = str(uuid.UUID(str(item["id"])))
        feedback["organisation_id"] = str(item["organisation_id"])
        feedback["workspace_id"] = None if item.get("workspace_id") is None else str(item["workspace_id"])
        for field in ("value", "weight"):
            feedback[field] = None if item.get(field) is None else float(item[field])
        if item.get("metadata") is not None:
            feedback["metadata"] = msgspec.json.encode(item["metadata"]).decode()
        created = item.get("created_at")
        feedback["created_at"] = None if created is None else parse_time(created).isoformat()
    except (KeyError, ValueError, TypeError):
        return None
    return feedback


def parse_time(value: object) -> dt.datetime:
    """Parses a time: RFC 3339 text, milliseconds since the epoch, or a `datetime`. Returns UTC."""
    if isinstance(value, (int, float)):
        return dt.datetime.fromtimestamp(value / 1000, dt.UTC)
    moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def clean_line(line: bytes) -> bytes:
    """Returns a line in which every value has the type of its column. A value of another type becomes null.

    Engines reject a whole batch for one value of a wrong type, so this is used after such a failure.
    """
    fields = cast("dict[str, object]", msgspec.json.decode(line))
    cleaned = dict(fields)
    for column in RECORD_COLUMNS:
        if column.name in fields:
            cleaned[column.name] = coerce_value(fields[column.name], column.type)
    return msgspec.json.encode(cleaned)


def coerce_value(value: object, column_type: ColumnType) -> object:
    """Returns the value if it fits a column, and None otherwise."""
    match column_type:
        case ColumnType.JSON | ColumnType.UUID | ColumnType.TIMESTAMP:
            return value
        case ColumnType.MAP:
            pairs = cast("dict[str, object]", value) if isinstance(value, dict) else {}
            return {key: item for key, item in pairs.items() if isinstance(item, str)}
        case ColumnType.BOOLEAN:
            return value if isinstance(value, bool) else None
        case ColumnType.INTEGER:
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            return value if is_integer and MIN_INTEGER <= cast("int", value) <= MAX_INTEGER else None
        case ColumnType.FLOAT:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return value if is_number and math.isfinite(cast("float", value)) else None
        case _:
            return value if isinstance(value, str) else None
