"""Results of guardrails in records: verdicts for the metrics, and feedback on the trace."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import msgspec

# Bytes that a record contains only if a guardrail result in it has feedback.
FEEDBACK_MARK = b'"feedback":{"'
PASSED, FAILED, ERROR = "passed", "failed", "error"


class CheckVerdict(msgspec.Struct, frozen=True):
    """Result of one check, without its data."""

    id: str = ""
    verdict: bool = True
    error: dict[str, Any] | None = None

    @property
    def word(self) -> str:
        """The verdict as a word, for metrics: `passed`, `failed` or `error`."""
        return ERROR if self.error is not None else PASSED if self.verdict else FAILED


class HookFeedback(msgspec.Struct, frozen=True):
    """Feedback that a guardrail adds to the trace."""

    value: float = 0
    weight: float = 1
    metadata: dict[str, Any] = {}


class GuardrailVerdict(msgspec.Struct, frozen=True):
    """Result of one guardrail."""

    id: str = ""
    verdict: bool = True
    deny: bool = False
    would_deny: bool = False
    skipped: bool = False
    checks: list[CheckVerdict] = []
    feedback: HookFeedback | None = None

    @property
    def word(self) -> str:
        """The verdict as a word, for metrics. A guardrail in a dry run has `would_deny` in place of `deny`."""
        if self.deny:
            return "denied"
        if self.would_deny:
            return "would_deny"
        return "skipped" if self.skipped else PASSED if self.verdict else FAILED


class GuardrailResults(msgspec.Struct, frozen=True):
    """Results of the guardrails of a request, by stage."""

    before_request_hooks: list[GuardrailVerdict] = []
    after_request_hooks: list[GuardrailVerdict] = []

    def by_stage(self) -> list[tuple[str, GuardrailVerdict]]:
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


_decode_results = msgspec.json.Decoder(GuardrailResults).decode
_decode_record = msgspec.json.Decoder(_RecordWithFeedback).decode


def count_verdicts(results: msgspec.Raw) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Returns the number of results by id and verdict, for guardrails and for checks. Raises a `MsgspecError` if
    `results` has another form.
    """
    guardrails, checks = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    if results:
        for _, result in _decode_results(results).by_stage():
            guardrails[result.id, result.word] += 1
            checks.update((check.id, check.word) for check in result.checks)
    return guardrails, checks


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
