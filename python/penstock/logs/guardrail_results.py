"""Feedback on the trace that guardrails leave in records."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import msgspec

# Bytes that a record contains only if a guardrail result in it has feedback.
FEEDBACK_MARK = b'"feedback":{"'


class HookFeedback(msgspec.Struct, frozen=True):
    """Feedback that a guardrail adds to the trace."""

    value: float = 0
    weight: float = 1
    metadata: dict[str, Any] = {}


class GuardrailResult(msgspec.Struct, frozen=True):
    """Result of one guardrail, without its verdict."""

    id: str = ""
    feedback: HookFeedback | None = None


class GuardrailResults(msgspec.Struct, frozen=True):
    """Results of the guardrails of a request, by stage."""

    before_request_hooks: list[GuardrailResult] = []
    after_request_hooks: list[GuardrailResult] = []

    def by_stage(self) -> list[tuple[str, GuardrailResult]]:
        """Returns each result with the name of its stage."""
        return [
            *(("input", result) for result in self.before_request_hooks),
            *(("output", result) for result in self.after_request_hooks),
        ]


class _RecordWithFeedback(msgspec.Struct, frozen=True):
    created_at: str | None = None
    organisation_id: str | None = None
    workspace_id: str | None = None
    trace_id: str | None = None
    hook_results: GuardrailResults = GuardrailResults()


_decode_record = msgspec.json.Decoder(_RecordWithFeedback).decode


def read_feedback(record_id: uuid.UUID, payload: bytes) -> list[dict[str, Any]]:
    """Returns the feedback of guardrails in a record or an amendment. The ids of the feedback are derived from that of
    the record, so that reading it twice has the effect of once.
    """
    if FEEDBACK_MARK not in payload:
        return []
    try:
        record = _decode_record(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    if record.organisation_id is None:
        return []
    rows: list[dict[str, Any]] = []
    numbers = Counter[tuple[str, str]]()
    for stage, result in record.hook_results.by_stage():
        numbers[stage, result.id] += 1
        if result.feedback is not None:
            name = f"guardrail:{stage}:{result.id}:{numbers[stage, result.id]}"
            rows.append(
                {
                    "id": str(uuid.uuid5(record_id, name)),
                    "organisation_id": record.organisation_id,
                    "workspace_id": record.workspace_id,
                    "trace_id": record.trace_id or str(record_id),
                    "value": result.feedback.value,
                    "weight": result.feedback.weight,
                    "metadata": {**result.feedback.metadata, "guardrail": result.id, "stage": stage},
                    "created_at": record.created_at,
                }
            )
    return rows
