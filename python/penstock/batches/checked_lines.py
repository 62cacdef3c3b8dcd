"""Lines of a provider's batch that its guardrails have checked. They become the new input file; denied lines get their
result at once.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid5

import msgspec

from penstock.batches.gateway_batch import format_output_line
from penstock.batches.input import MAX_CHECKED_LINE_BYTES
from penstock.batches.provider_batch_guardrails import AFTER, BEFORE, CheckedLine, guardrail_error, is_success

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.batches.hook_summary import HookSummary
    from penstock.batches.input import BatchInput, BatchLine
    from penstock.batches.provider_batch_guardrails import LineChecker

# Number of results that are stored together.
PAGE_LINES = 200


class CheckedLines:
    """Checks the lines of one batch, and writes those that may be sent. Each keeps its number: an empty line stands for
    one that is not sent.
    """

    def __init__(
        self,
        batch_id: str,
        checker: LineChecker,
        summary: HookSummary,
        store_rows: Callable[[list[dict[str, Any]]], Awaitable[None]],
    ) -> None:
        """Stores results of lines that are not sent with `store_rows`, and adds all results to `summary`."""
        self._batch_id = batch_id
        self._checker = checker
        self._summary = summary
        self._store_rows = store_rows
        self._rows: list[dict[str, Any]] = []
        # Numbers of lines: sent to the provider, not sent, and not sent without a successful result.
        self.sendable = 0
        self.withheld = 0
        self.failed = 0

    async def write(self, batch_input: BatchInput) -> AsyncIterator[bytes]:
        """Yields the new input file. Raises a `CheckStoppedError` when the batch is stopped."""
        written = 0
        async with aclosing(self._checker.check_requests(batch_input)) as outcomes:
            async for number, line, outcome in outcomes:
                content = self._encode_line(line, outcome)
                if content is None:
                    await self._withhold_line(number, line, outcome)
                    continue
                self.sendable += 1
                yield b"\n" * (number - 1 - written) + content + b"\n"
                written = number
        await self._store_rows(self._rows)

    def _encode_line(self, line: BatchLine, outcome: CheckedLine | str) -> bytes | None:
        """Returns a line that may be sent, or `None`."""
        if isinstance(outcome, str) or outcome.is_denied:
            return None
        results: list[dict[str, Any]] = (outcome.hook_results or {}).get(BEFORE, [])
        body: dict[str, Any] = line.body if outcome.body is None else outcome.body
        content = msgspec.json.encode(msgspec.structs.replace(line, body=body, hook_results=results))
        if len(content) > MAX_CHECKED_LINE_BYTES:
            return None
        self._summary.add(outcome.hook_results)
        return content

    async def _withhold_line(self, number: int, line: BatchLine, outcome: CheckedLine | str) -> None:
        """Stores the result of a line that is not sent: its denial, or the reason why it could not be checked."""
        response, error = None, None
        if isinstance(outcome, str):
            error = guardrail_error(outcome)
        elif not outcome.is_denied:
            error = guardrail_error(f"the checked line is longer than {MAX_CHECKED_LINE_BYTES} bytes")
        else:
            self._summary.add(outcome.body.get("hook_results"))
            response = {"status_code": outcome.status, "request_id": "", "body": outcome.body}
        failed = not is_success(response)
        self.withheld += 1
        self.failed += failed
        content = format_output_line(self._batch_id, number, line.custom_id, response, error)
        self._rows.append({"batch_id": self._batch_id, "number": number, "failed": failed, "content": content})
        if len(self._rows) >= PAGE_LINES:
            await self._store_rows(self._rows)
            self._rows = []


def checked_file_id(batch_id: str) -> str:
    """Returns the id of the file with the checked lines. It is deterministic, so that an interrupted run leaves no file
    behind.
    """
    return str(uuid5(UUID(batch_id), "checked"))


def without_results(body: object) -> object:
    """Returns the body of a response without results of guardrails."""
    if not isinstance(body, dict):
        return body
    fields = cast("dict[str, Any]", body)
    return {name: value for name, value in fields.items() if name != "hook_results"}


def results_after(body: object) -> list[Any]:
    """Returns the results of the guardrails after a response, from its body."""
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    results = fields.get("hook_results")
    return cast("dict[str, Any]", results).get(AFTER, []) if isinstance(results, dict) else []
