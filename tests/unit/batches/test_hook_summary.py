"""Sums of guardrail results over the lines of a batch."""

from __future__ import annotations

import msgspec

from penstock.batches.hook_summary import MAX_GUARDRAILS, BatchGuardrailSummary, HookSummary


def line_results(**fields: object) -> dict[str, object]:
    result = {"id": "g", "type": "guardrail", "verdict": True, "deny": False, "transformed": False, **fields}
    return {"before_request_hooks": [result], "after_request_hooks": []}


def test_results_of_lines_are_counted_by_guardrail():
    summary = HookSummary()
    assert summary.is_empty
    for fields in ({}, {"verdict": False}, {"verdict": False, "deny": True}, {"transformed": True}):
        summary.add(line_results(**fields))
    assert summary.before_request_hooks == [
        BatchGuardrailSummary(
            id="g", verdict=False, deny=True, transformed=True, lines=4, failed_lines=2, denied_lines=1
        )
    ]
    assert summary.after_request_hooks == []


def test_skipped_guardrails_count_only_if_they_deny():
    summary = HookSummary()
    summary.add(line_results(skipped=True))
    assert summary.is_empty
    summary.add(line_results(skipped=True, deny=True))
    assert summary.before_request_hooks[0].denied_lines == 1


def test_other_forms_are_ignored_and_the_number_of_guardrails_is_bounded():
    summary = HookSummary()
    for other in (None, [], "x", {"before_request_hooks": 1}, {"before_request_hooks": [{"id": 1}]}):
        summary.add(other)
    assert summary.is_empty
    for number in range(MAX_GUARDRAILS + 5):
        summary.add(line_results(id=f"g{number}"))
    assert len(summary.before_request_hooks) == MAX_GUARDRAILS


def test_summary_is_read_from_the_details_of_a_batch():
    summary = HookSummary()
    summary.add(line_results())
    assert HookSummary.load({"hook_results": msgspec.to_builtins(summary)}) == summary
    assert HookSummary.load(None) == HookSummary.load({}) == HookSummary()
