"""Builds record lines for killed requests, and merges amendments into record lines."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.spool_format import BODIES_DROPPED, BODY_CUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.logs.spool_reader import SpoolEvent

# Time that a record waits for its amendment. The token count of a response takes less. If the amendment comes later,
# the record is written without it.
AMENDMENT_WAIT_SECONDS = 0.5
# Field of an amendment that corrects the cost of a record.
PREVIOUS_COST = "previous_cost_nanodollars"


def decode_fields(payload: bytes) -> dict[str, Any]:
    """Decodes a payload as a JSON object. Returns an empty one if it is not valid."""
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def amend_line(line: bytes, fields: dict[str, Any]) -> bytes:
    """Returns a record line with fields replaced."""
    record = decode_fields(line)
    return msgspec.json.encode({**record, **fields}) if record else line


def encode_amendment(record_id: bytes, fields: Mapping[str, Any]) -> bytes:
    """Returns the line of an amendment."""
    return msgspec.json.encode({"id": str(uuid.UUID(bytes=record_id)), "is_amendment": True, **fields})


def make_killed_line(event: SpoolEvent) -> bytes:
    """Returns the record of a request whose process was killed, built from its `BEGIN` frame."""
    flags = event.request.flags if event.request else 0
    has_bodies = bool(event.request and event.request.bodies)
    body = "dropped" if flags & BODIES_DROPPED else "cut" if flags & BODY_CUT else "complete" if has_bodies else "off"
    record = {
        **decode_fields(event.payload),
        "id": str(uuid.UUID(bytes=event.id)),
        "outcome": "killed",
        "is_success": False,
        "body": body,
    }
    return msgspec.json.encode(record)
