"""Guardrails of a batch that a provider runs. Its requests do not pass the gateway, so each line is checked before the
batch is submitted, and each response after it was downloaded. What cannot be checked that way is rejected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.batches.providers.batch_provider import SUCCESS_STATUS_END
from penstock.batches.providers.client import RequestRejectedError
from penstock.errors import EdgeUnavailableError, IncompleteResponseError
from penstock.job_loop import wait_for_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.batches.edge_messages import EdgeResponse
    from penstock.batches.input import BatchInput, BatchLine
    from penstock.batches.providers.client import BatchClient

# Attempts to check a line. After the last one, the line or its response is withheld.
MAX_ATTEMPTS = 3
RETRY_DELAY_SECONDS = 1.0
RETRYABLE_STATUSES = frozenset([408, 409, 425, 429, 500, 502, 503, 504, 529])
# Status of a response of which a guardrail failed that does not deny.
FAILED_STATUS = 246
BEFORE, AFTER = "before_request_hooks", "after_request_hooks"


class GuardrailDeniedError(RequestRejectedError):
    """A guardrail or config applies to the batch that cannot act on it, so the batch must not be sent to its
    provider.
    """


class CheckStoppedError(Exception):
    """The batch is stopped before all of its lines were checked."""


class AppliedGuardrail(msgspec.Struct, frozen=True):
    """A guardrail that applies to the requests of a batch."""

    id: str
    stage: str
    origin: str
    deny: bool
    changes: bool
    restores: bool = False
    is_async: bool = msgspec.field(name="async", default=False)
    dry_run: bool = False

    @property
    def must_see_lines(self) -> bool:
        """True if the batch must not run without this guardrail, which denies or changes requests or responses."""
        return (self.deny or self.changes) and self.has_visible_results

    @property
    def has_visible_results(self) -> bool:
        """True if clients see its results. Others would only be in the logs of requests, which a batch does not have."""
        return not self.is_async and not self.dry_run


class ExplainedTarget(msgspec.Struct, frozen=True):
    """A target that requests of the batch would be sent to."""

    target: str = ""
    guardrails: list[AppliedGuardrail] = []
    changes_parameters: bool = False

    @property
    def is_only_target(self) -> bool:
        """False if the config has several targets, whose guardrails may differ."""
        return "targets" not in self.target


class Explanation(msgspec.Struct, frozen=True):
    """Targets, guardrails and overrides that the gateway would use for a request of the batch."""

    targets: list[ExplainedTarget]


class GuardedStages(NamedTuple):
    """Stages at which guardrails check the lines of a batch."""

    input: bool
    output: bool


class CheckedLine(msgspec.Struct, frozen=True):
    """Outcome of a check of a line or of its response. Without a body, the line stays as it is."""

    status: int
    is_denied: bool
    body: Any = None
    hook_results: dict[str, Any] | None = None


async def find_guarded_stages(client: BatchClient, batch_input: BatchInput) -> GuardedStages:
    """Returns the stages with guardrails. Raises a `GuardrailDeniedError` if guardrails or overrides apply to the batch
    that could not act on it.
    """
    first = await anext(aiter(batch_input.requests()), None)
    if first is None:
        return GuardedStages(False, False)
    _, line = first
    request = {"path": line.url, "method": "POST", "body": {"model": line.body.get("model")}}
    explanation = await client.request_json(Explanation, "POST", "/v1/explain", msgspec.json.encode(request))
    for target in explanation.targets:
        _reject_unsupported(target)
    guardrails = [item for target in explanation.targets if target.is_only_target for item in target.guardrails]
    stages = {item.stage for item in guardrails if item.has_visible_results}
    return GuardedStages("input" in stages, "output" in stages)


def _reject_unsupported(target: ExplainedTarget) -> None:
    hint = "use the completion_window 'immediate', with which the gateway sends each line itself"
    for guardrail in target.guardrails:
        name = f"the guardrail {guardrail.id} ({guardrail.origin})"
        if guardrail.must_see_lines and not target.is_only_target:
            raise GuardrailDeniedError(f"{name} cannot check a batch whose config has several targets; {hint}")
        if guardrail.restores and guardrail.has_visible_results:
            raise GuardrailDeniedError(f"{name} cannot restore values in a batch that a provider runs; {hint}")
    if target.changes_parameters:
        raise GuardrailDeniedError(f"the config changes requests, but not those of a provider's batch; {hint}")


class LineChecker:
    """Runs the guardrails of a batch on its lines."""

    def __init__(self, client: BatchClient, stop: asyncio.Event, concurrency: int) -> None:
        """Checks up to `concurrency` lines at the same time."""
        self._client = client
        self._stop = stop
        self._concurrency = concurrency

    async def check_requests(self, batch_input: BatchInput) -> AsyncGenerator[tuple[int, BatchLine, CheckedLine | str]]:
        """Yields each line, in order, with its outcome, or with the reason why it could not be checked. Raises a
        `CheckStoppedError` when the batch is stopped.
        """
        running: deque[tuple[int, BatchLine, asyncio.Task[CheckedLine | str]]] = deque()
        try:
            async for number, line in batch_input.requests():
                if self._stop.is_set():
                    raise CheckStoppedError
                running.append((number, line, asyncio.create_task(self._check(line, None))))
                if len(running) >= self._concurrency:
                    yield await self._take_first(running)
            while running:
                yield await self._take_first(running)
        finally:
            for _, _, task in running:
                task.cancel()
            await asyncio.gather(*(task for _, _, task in running), return_exceptions=True)

    async def _take_first(
        self, running: deque[tuple[int, BatchLine, asyncio.Task[CheckedLine | str]]]
    ) -> tuple[int, BatchLine, CheckedLine | str]:
        number, line, task = running[0]
        outcome = await task
        running.popleft()
        return number, line, outcome

    async def check_responses(self, responses: dict[int, tuple[BatchLine, object]]) -> dict[int, CheckedLine | str]:
        """Returns the outcome of each response body by its line's number, or the reason why it could not be checked."""
        slots = asyncio.Semaphore(self._concurrency)

        async def check(line: BatchLine, body: object) -> CheckedLine | str:
            async with slots:
                return await self._check(line, body)

        outcomes = await asyncio.gather(*(check(line, body) for line, body in responses.values()))
        return dict(zip(responses, outcomes, strict=True))

    async def _check(self, line: BatchLine, response: object) -> CheckedLine | str:
        document = {"path": line.url, "request": line.body, "response": response}
        body, attempts, failure = msgspec.json.encode(document), 0, ""
        while attempts < MAX_ATTEMPTS:
            try:
                return _decode_outcome(await self._client.check_line(body))
            except EdgeUnavailableError:
                # Nothing was checked, so this does not count as an attempt. A response is checked even if the batch is
                # stopped, because its client gets it.
                if self._stop.is_set() and response is None:
                    raise CheckStoppedError from None
            except RequestRejectedError as error:
                return error.message
            except IncompleteResponseError as error:
                attempts, failure = attempts + 1, error.message
            await _pause(self._stop, is_stoppable=response is None)
        return failure


async def _pause(stop: asyncio.Event, *, is_stoppable: bool) -> None:
    if is_stoppable:
        await wait_for_event(stop, RETRY_DELAY_SECONDS)
    else:
        await asyncio.sleep(RETRY_DELAY_SECONDS)


def _decode_outcome(reply: EdgeResponse) -> CheckedLine:
    if reply.status == HTTPStatus.OK:
        try:
            return msgspec.json.decode(reply.body, type=CheckedLine)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestRejectedError(f"the guardrails could not be run: {error}") from None
    message = f"the guardrails could not be run: {reply.status} {reply.body[:300].decode('utf-8', 'replace')}"
    raise (IncompleteResponseError if reply.status in RETRYABLE_STATUSES else RequestRejectedError)(message)


def guardrail_error(reason: str) -> dict[str, str]:
    """Returns the error of a line that could not be checked."""
    return {"code": "guardrail_failed", "message": reason}


def with_request_results(response: dict[str, Any], results: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Returns the response of a line with the results of its request, and with status 246 if one of them failed."""
    content = response.get("body")
    if not results or not isinstance(content, dict):
        return response
    body = cast("dict[str, Any]", content)
    own = body.get("hook_results")
    after: list[Any] = cast("dict[str, Any]", own).get(AFTER, []) if isinstance(own, dict) else []
    status: int = response.get("status_code", HTTPStatus.OK)
    has_failed = any(result.get("verdict") is False for result in results)
    if has_failed and status == HTTPStatus.OK:
        status = FAILED_STATUS
    return {**response, "status_code": status, "body": {**body, "hook_results": {BEFORE: results, AFTER: after}}}


def is_success(response: dict[str, Any] | None) -> bool:
    """True if a line has a response with a success status."""
    return response is not None and response.get("status_code", SUCCESS_STATUS_END) < SUCCESS_STATUS_END
