"""Custom logs as records of the spool."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from penstock.log_api.custom_logs import (
    CustomLog,
    CustomLogWriter,
    CustomRequest,
    CustomResponse,
    LogIdentity,
    LogOrigin,
)
from penstock.pricing.cost_calculator import CostCalculator
from penstock.settings import Settings

RECORD_ID = "0199aaaa-0000-7000-8000-000000000001"


def encode_record(url: str = "/x", **metadata: Any) -> dict[str, Any]:
    log = CustomLog(request=CustomRequest(url=url, body={}), response=CustomResponse(body={}), metadata=metadata)
    settings = Settings()
    writer = CustomLogWriter(settings, CostCalculator(settings))
    origin = LogOrigin({"organisation_id": "o"}, keeps_bodies=False, providers={}, prices={})
    identity = LogIdentity(RECORD_ID, 1_763_640_000_123)
    ids, (frame,) = asyncio.run(writer.encode_frames([log], origin, [identity]))
    assert ids == [RECORD_ID]
    return json.loads(frame.payload)


def test_record_has_the_given_id_and_time():
    record = encode_record()
    assert (record["id"], record["created_at"]) == (RECORD_ID, "2025-11-20T12:00:00.123Z")


def test_trace_fields_of_other_types_are_ignored():
    record = encode_record(trace_id={"a": 1}, span_id=["x"], span_name=None, parentSpanId=7)
    assert record["trace_id"] == RECORD_ID
    assert record["parent_span_id"] == "7"
    assert not {"span_id", "span_name"} & record.keys()


def test_url_that_is_not_valid_is_masked():
    record = encode_record("https://user:secret@[[1]]/x")
    assert (record["request_url"], record["ai_org"]) == ("*****", "")
