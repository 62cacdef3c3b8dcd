"""Groups by guardrail and by check: one row for each result in a record, with how often each verdict was reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs.engines.measures import count_if

if TYPE_CHECKING:
    from penstock.logs.engines.sql import SqlFragments

GUARDRAIL, CHECK = "guardrail", "guardrail_check"
_STAGES = ("before_request_hooks", "after_request_hooks")
# Paths of the lists of results in the column `hook_results`.
_PATHS = {GUARDRAIL: [(stage,) for stage in _STAGES], CHECK: [(stage, "checks") for stage in _STAGES]}
# Field of a result that is set for each verdict. If several are set, the first verdict applies. A check has an error or
# a verdict.
_VERDICTS = {
    GUARDRAIL: {"denied": "deny", "would_deny": "would_deny", "skipped": "skipped", "passed": "verdict"},
    CHECK: {"errors": "error", "passed": "verdict"},
}
# Paths of the lists with the guardrails of a record.
GUARDRAIL_PATHS = _PATHS[GUARDRAIL]
VERDICT_COLUMNS = ("passed", "failed", "denied", "would_deny", "skipped", "errors")


def list_verdict_columns(group_by: str) -> list[str]:
    """Returns the columns for the verdicts that guardrails or checks may have. Returns none for other groups."""
    verdicts = {*_VERDICTS.get(group_by, {}), *({"failed"} if group_by in _VERDICTS else ())}
    return [column for column in VERDICT_COLUMNS if column in verdicts]


def select_results(fragments: SqlFragments, group_by: str, records: str) -> tuple[str, str]:
    """Returns a FROM item `r` with one row for each result, and the expression of its id."""
    items = fragments.json_items('r."hook_results"', _PATHS[group_by])
    return f"(SELECT r.*, {items} AS item FROM {records}) AS r", fragments.json_text('r."item"', "id")


def count_verdicts(fragments: SqlFragments, group_by: str, verdict: str) -> str:
    """Returns the aggregate that counts the results with a verdict."""
    earlier: list[str] = []
    for name, field in _VERDICTS[group_by].items():
        has = fragments.json_has if field == "error" else fragments.json_is_true
        condition = has('r."item"', field)
        if name == verdict:
            return count_if(" AND ".join([condition, *earlier]))
        earlier.append(f"NOT {condition}")
    return count_if(" AND ".join(earlier))
