"""Results of guardrails in records: verdicts for the metrics, and feedback on the trace."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from penstock.logs.guardrail_results import read_feedback

RECORD_ID = uuid.UUID("0199aaaa-0000-7000-8000-000000000001")
PASSED = {"id": "pg-a", "verdict": True, "deny": False, "checks": [{"id": "default.contains", "verdict": True}]}
DENIED = {
    "id": "pg-b",
    "verdict": False,
    "deny": True,
    "checks": [{"id": "default.contains", "verdict": False}, {"id": "default.webhook", "verdict": False, "error": {}}],
    "feedback": {"value": -5.0, "weight": 0.5, "metadata": {"team": "red"}},
}


def encode_results(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"before_request_hooks": before, "after_request_hooks": after})


def test_feedback_of_a_guardrail_belongs_to_the_trace():
    record = {"organisation_id": "o", "workspace_id": "w", "trace_id": "t", "created_at": "2026-11-28T00:00:00Z"}
    results = msgspec.Raw(encode_results([PASSED, DENIED], [DENIED]))
    payload = msgspec.json.encode({**record, "hook_results": results})
    first, second = read_feedback(RECORD_ID, payload)
    assert {name: first[name] for name in record} == record
    assert (first["value"], first["weight"]) == (-5.0, 0.5)
    assert first["metadata"] == {"team": "red", "guardrail": "pg-b", "stage": "input"}
    assert second["metadata"]["stage"] == "output"
    assert first["id"] != second["id"]
    # An amendment repeats earlier results, which are the same feedback.
    assert [item["id"] for item in read_feedback(RECORD_ID, payload)] == [first["id"], second["id"]]


def test_records_without_feedback_or_owner_have_none():
    results = msgspec.Raw(encode_results([DENIED], []))
    assert read_feedback(RECORD_ID, msgspec.json.encode({"hook_results": results})) == []
    assert read_feedback(RECORD_ID, b'{"organisation_id":"o","hook_results":{}}') == []
    assert read_feedback(RECORD_ID, b'{"feedback":{"') == []
