"""Results of the guardrails of a batch, summed up over its lines. Each output line has its own results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

# Maximum number of guardrails in each list of a summary. A config has far fewer.
MAX_GUARDRAILS = 100
SIDES = ("before_request_hooks", "after_request_hooks")


class BatchGuardrailSummary(msgspec.Struct, kw_only=True):
    """Results of one guardrail on the lines of a batch."""

    id: Annotated[str, Meta(description="id or slug of the guardrail")]
    type: Annotated[str, Meta(description="`guardrail` or `mutator`")] = "guardrail"
    verdict: Annotated[bool, Meta(description="true: all lines passed")] = True
    deny: Annotated[bool, Meta(description="true: at least one line was denied")] = False
    transformed: Annotated[bool, Meta(description="true: at least one line was changed")] = False
    lines: Annotated[int, Meta(description="number of lines that were checked")] = 0
    failed_lines: Annotated[int, Meta(description="number of lines that failed a check")] = 0
    denied_lines: Annotated[int, Meta(description="number of lines that were denied")] = 0


class HookSummary(msgspec.Struct, kw_only=True):
    """Results of all guardrails of a batch: of its requests, and of their responses."""

    before_request_hooks: Annotated[list[BatchGuardrailSummary], Meta(description="results of the requests")] = []
    after_request_hooks: Annotated[list[BatchGuardrailSummary], Meta(description="results of the responses")] = []

    @classmethod
    def load(cls, details: Mapping[str, Any] | None) -> HookSummary:
        """Reads the summary from the details of a batch's row."""
        return msgspec.convert((details or {}).get("hook_results") or {}, cls)

    @property
    def is_empty(self) -> bool:
        """True if no guardrail has checked a line."""
        return not self.before_request_hooks and not self.after_request_hooks

    def add(self, hook_results: object) -> None:
        """Adds the `hook_results` of one line. Results in another form are ignored."""
        if not isinstance(hook_results, dict):
            return
        try:
            results = msgspec.convert(hook_results, _LineResults)
        except msgspec.ValidationError:
            return
        for side in SIDES:
            for result in getattr(results, side):
                self._add_result(getattr(self, side), result)

    def _add_result(self, summaries: list[BatchGuardrailSummary], result: _LineResult) -> None:
        if result.skipped and not result.deny:
            return
        summary = next((item for item in summaries if item.id == result.id), None)
        if summary is None:
            if len(summaries) >= MAX_GUARDRAILS:
                return
            summary = BatchGuardrailSummary(id=result.id, type=result.type)
            summaries.append(summary)
        has_passed = result.verdict and not result.deny
        summary.lines += 1
        summary.failed_lines += not has_passed
        summary.denied_lines += result.deny
        summary.verdict = summary.verdict and has_passed
        summary.deny = summary.deny or result.deny
        summary.transformed = summary.transformed or result.transformed


class _LineResult(msgspec.Struct):
    """Result of one guardrail on one line."""

    id: str
    type: str = "guardrail"
    skipped: bool = False
    verdict: bool = True
    deny: bool = False
    transformed: bool = False


class _LineResults(msgspec.Struct):
    """Results of all guardrails on one line."""

    before_request_hooks: list[_LineResult] = []
    after_request_hooks: list[_LineResult] = []
