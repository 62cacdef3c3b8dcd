"""Builds record lines for killed requests, and merges amendments into record lines."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.engine import count_interrupted
from penstock.logs.body_text import extract_text
from penstock.logs.spool_format import (
    BODIES_DROPPED,
    BODY_CUT,
    CLIENT_REQUEST,
    CLIENT_RESPONSE,
    UPSTREAM_REQUEST,
    UPSTREAM_RESPONSE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.logs.spool_reader import OpenRequest, SpoolEvent

# Time that a record waits for its amendment. The token count of a response takes less. If the amendment comes later,
# the record is written without it.
AMENDMENT_WAIT_SECONDS = 0.5
# Field of a record whose amendment follows: its usage as far as it was known, or nothing if the tokens were still to be
# counted. Only the record of a process that was killed needs it.
PENDING_USAGE = "pending_usage"
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
    record.pop(PENDING_USAGE, None)
    return msgspec.json.encode({**record, **fields}) if record else line


def encode_amendment(record_id: bytes, fields: Mapping[str, Any]) -> bytes:
    """Returns the line of an amendment."""
    return msgspec.json.encode({"id": str(uuid.UUID(bytes=record_id)), "is_amendment": True, **fields})


def make_line_of_killed_request(event: SpoolEvent, load_bodies: Callable[[OpenRequest], Mapping[int, bytes]]) -> bytes:
    """Returns the record of a request whose process was killed, built from its `BEGIN` frame. Its tokens are counted in
    its bodies, as far as they are known.
    """
    flags = event.request.flags if event.request else 0
    has_bodies = bool(event.request and event.request.bodies)
    body = "dropped" if flags & BODIES_DROPPED else "cut" if flags & BODY_CUT else "complete" if has_bodies else "off"
    begin = decode_fields(event.payload)
    bodies: Mapping[int, bytes] = load_bodies(event.request) if event.request and has_bodies else {}
    record = {
        **begin,
        **_count_units(begin, bodies),
        "id": str(uuid.UUID(bytes=event.id)),
        "outcome": "killed",
        "is_success": False,
        "body": body,
    }
    return msgspec.json.encode(record)


def find_missing_usage(event: SpoolEvent, load_bodies: Callable[[OpenRequest], Mapping[int, bytes]]) -> dict[str, Any]:
    """Returns the usage of an `UNAMENDED` record: what was known at its end, otherwise the tokens that are counted in its
    bodies. Empty if it has none.
    """
    record = decode_fields(event.payload)
    usage: dict[str, Any] | None = record.get(PENDING_USAGE)
    if usage or usage is None:
        return usage or {}
    bodies: Mapping[int, bytes] = load_bodies(event.request) if event.request and event.request.bodies else {}
    units = _count_units(record, bodies)
    units.pop("bytes_out", None)
    return units


def _count_units(begin: Mapping[str, Any], bodies: Mapping[int, bytes]) -> dict[str, Any]:
    """Returns the tokens and the bytes that the request and its response had so far. There is no cost, because nobody
    knows what the provider bills; re-rating adds one.
    """
    request = bodies.get(UPSTREAM_REQUEST) or bodies.get(CLIENT_REQUEST)
    if not request:
        return {}
    response = bodies.get(CLIENT_RESPONSE) or bodies.get(UPSTREAM_RESPONSE, b"")
    operation, model = str(begin.get("operation") or ""), str(begin.get("ai_model") or "")
    counted = count_interrupted(operation, model, request, extract_text(response, None, is_counted=True))
    if counted is None:
        return {"bytes_out": len(response)}
    units = {"req_units": counted[0], "res_units": counted[1], "total_units": sum(counted), "units_estimated": True}
    return {"bytes_out": len(response), **units}
