"""Data that the log worker inserts into the log store in one transaction."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """How far a spool has been read: segment number, and byte offset in the segment."""

    segment: int
    offset: int


class BodyLocation(msgspec.Struct, frozen=True):
    """Location of a record's bodies: key of the pack, and a range of bytes in it."""

    key: str
    offset: int
    length: int


class RecordBatch(msgspec.Struct):
    """Records, and changes to earlier records. Inserting a batch twice has the effect of inserting it once.

    `records` are JSON objects, one per item, without newlines. Each of `amendments` has the `id` of its record and the
    amendable columns that change. Each of `feedback` has `id` and `organisation_id`; new feedback also has `trace_id`,
    `value`, `weight`, `created_at`, `workspace_id` and `metadata`; an update has the fields that change.
    """

    node: str
    writer: str
    records: list[bytes] = msgspec.field(default_factory=list[bytes])
    amendments: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    feedback: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    bodies: dict[uuid.UUID, BodyLocation] = msgspec.field(default_factory=dict[uuid.UUID, BodyLocation])
    texts: dict[uuid.UUID, str] = msgspec.field(default_factory=dict[uuid.UUID, str])
    """Text of each record's bodies, for full-text search. `ingest.extract_search_text` extracts it."""
    may_repeat: bool = True
    """False if no record of the batch can have been inserted before, so that an engine need not look for duplicates."""
