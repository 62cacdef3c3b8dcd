"""A batch that a provider runs. Checks its lines, submits it once, polls until it ends, collects and checks its
results.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update

from penstock.access.default_metadata import merge_metadata
from penstock.batches.batch_object import CANCELLED, COMPLETED, EXPIRED, FAILED, BatchClaimLostError
from penstock.batches.checked_lines import CheckedLines, checked_file_id, results_after, without_results
from penstock.batches.files import new_file_row
from penstock.batches.gateway_batch import format_output_line
from penstock.batches.hook_summary import HookSummary
from penstock.batches.provider_batch_guardrails import (
    CheckStoppedError,
    GuardedStages,
    LineChecker,
    find_guarded_stages,
    guardrail_error,
    is_success,
    with_request_results,
)
from penstock.batches.providers import batch_provider_for
from penstock.batches.providers.batch_provider import LineResult
from penstock.batches.providers.client import ProviderBusyError, RequestRejectedError
from penstock.batches.records import BatchBilling, BatchInfo, CompletedLine
from penstock.errors import EdgeUnavailableError, IncompleteResponseError, ResultsNotFoundError, UnavailableError
from penstock.job_loop import wait_for_event
from penstock.schemas import now
from penstock.store.job_tables import batch_lines, batches, files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.batches.gateway_batch import BatchDependencies
    from penstock.batches.input import BatchInput, BatchLine
    from penstock.batches.providers.batch_provider import BatchStatus
    from penstock.batches.providers.client import BatchClient
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

PAGE_LINES = 200
# Marks a stored result that is not yet translated to the client format.
RAW_PREFIX = "raw:"
# Maximum number of polls after a cancellation was requested, and of attempts to collect the results.
MAX_FINAL_POLLS = 60
# Maximum number of submissions of one batch that may get no response.
MAX_LOST_SUBMISSIONS = 3
RETRY_DELAY_SECONDS = 1.0


class ProviderBatch:
    """Runs one batch at its provider."""

    def __init__(self, row: Row, client: BatchClient, dependencies: BatchDependencies) -> None:
        """Resumes where the last run ended. Setting `stop` requests cancellation of the batch."""
        self.stop = asyncio.Event()
        self._row_id: str = row["id"]
        self._owner = {name: row[name] for name in ("organisation_id", "workspace_id")}
        self._job: dict[str, Any] = dict(row["job"])
        _, self._database, self._settings, self._figures, _ = self._dependencies = dependencies
        self._client = client
        self._provider = batch_provider_for(self._job["provider"])(client)
        # Jobs of earlier releases have no metadata.
        self._metadata = self._job.get("metadata") or merge_metadata(client.headers.get("x-gateway-metadata"))
        # If an earlier run collected the results, it may also have written the records of some lines.
        self._is_retry = "collected" in self._job
        self._row = row
        self._details: dict[str, Any] = row["details"] or {}
        self._hook_summary = HookSummary.load(self._details)
        self._checker = LineChecker(client, self.stop, dependencies.settings.batches.concurrency)

    async def check_requests(self, batch_input: BatchInput) -> bool:
        """Runs the guardrails on all lines, and stores the lines that may be sent as the new input file. Returns false if
        the batch was stopped before.
        """
        stages = await self._find_guarded_stages(batch_input)
        if stages is None:
            return False
        if not stages.input:
            await self._save_progress(guarded=stages._asdict())
            return True
        checked_lines = CheckedLines(self._row_id, self._checker, self._hook_summary, self._insert_lines)
        # An earlier run that was interrupted may have stored lines.
        async with self._database.write_transaction() as connection:
            await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == self._row_id))
        file_id = checked_file_id(self._row_id)
        try:
            size = await self._client.store_lines(file_id, checked_lines.write(batch_input))
        except CheckStoppedError:
            return False
        await self._save_checked_file(file_id, size, checked_lines, stages)
        return True

    async def _find_guarded_stages(self, batch_input: BatchInput) -> GuardedStages | None:
        while not self.stop.is_set():
            with suppress(EdgeUnavailableError, ProviderBusyError):
                return await find_guarded_stages(self._client, batch_input)
            await self._wait_poll_interval()
        return None

    async def _save_checked_file(self, file_id: str, size: int, lines: CheckedLines, stages: GuardedStages) -> None:
        owner = {**self._owner, "created_by": self._row["created_by"]}
        name = f"{self._row_id}_checked.jsonl"
        file = new_file_row("batch", name, self._settings.files.retention_seconds, **owner)
        file.update(id=file_id, bytes=size)
        progress = {
            "guarded": stages._asdict(),
            "checked_file_id": file_id,
            "withheld": lines.withheld,
            "failed_input": lines.failed,
            "sendable": lines.sendable,
        }
        self._job.update(progress)
        changes = {
            "job": self._job,
            "input_file_id": file_id,
            "failed": lines.failed,
            "completed": lines.withheld - lines.failed,
            "details": self._details_with_results(),
        }
        async with self._database.write_transaction() as connection:
            await connection.execute(delete(files).where(files.c.id == file_id))
            await connection.execute(insert(files).values(file))
            await self._write_row(connection, changes)

    def _details_with_results(self) -> dict[str, Any]:
        return {**self._details, "hook_results": msgspec.to_builtins(self._hook_summary)}

    async def run(self, batch_input: BatchInput) -> str:
        """Runs the batch and stores its results. Returns its final status."""
        # Batches of earlier releases were not checked before this status.
        if "id" not in self._job and "guarded" not in self._job and not await self.check_requests(batch_input):
            return CANCELLED
        if file_id := self._job.get("checked_file_id"):
            batch_input = batch_input.with_checked_file(file_id)
        if self._job.get("sendable") == 0:
            return COMPLETED
        if "id" not in self._job:
            name = await self._submit(batch_input)
            if name is None:
                return CANCELLED
            await self._save_progress(id=name)
        if "ended" not in self._job:
            batch_status = await self._wait_until_ended()
            if batch_status.status == FAILED:
                raise RequestRejectedError(batch_status.failure_reason or "the provider failed to run this batch")
            await self._save_progress(ended=batch_status.status, ended_at=now(), paths=list(batch_status.result_paths))
        if "collected" not in self._job:
            await self._collect_with_retries()
            await self._save_progress(collected=True)
        await self._translate_results(batch_input)
        return self._job["ended"]

    async def _save_progress(self, **facts: Any) -> None:  # noqa: ANN401 - the saved values differ by step
        """Saves the progress in the batch's row, so that a later run resumes there."""
        self._job.update(facts)
        await self._update_row({"job": self._job})

    async def _update_row(self, values: dict[str, Any]) -> None:
        while True:
            try:
                async with self._database.write_transaction() as connection:
                    await self._write_row(connection, values)
            except UnavailableError as error:
                # Tried until it succeeds: if the provider's id of the batch were lost, the batch would be submitted
                # twice.
                log.warning("the progress of the batch %s is not saved yet: %s", self._row_id, error)
                await asyncio.sleep(RETRY_DELAY_SECONDS)
            else:
                return

    async def _write_row(self, connection: AsyncConnection, values: dict[str, Any]) -> None:
        """Writes to the batch's row. Raises BatchClaimLostError if another node has continued the batch meanwhile."""
        query = update(batches).where(batches.c.id == self._row_id, batches.c.run_by == self._row["run_by"])
        if not (await connection.execute(query.values(values))).rowcount:
            raise BatchClaimLostError

    async def _submit(self, batch_input: BatchInput) -> str | None:
        """Submits the batch and returns its id at the provider. Returns `None` if the batch was cancelled before it was
        submitted.
        """
        is_repeated = "tried" in self._job
        losses = 0
        if not is_repeated:
            await self._save_progress(tried=True)
        while not self.stop.is_set():
            try:
                # The last run may have ended after the provider accepted the batch and before its id was saved.
                name = await self._provider.find_submitted() if is_repeated else None
                return name or await self._provider.submit(batch_input)
            except (EdgeUnavailableError, ProviderBusyError):
                # The provider did nothing, so submitting again is safe.
                await self._wait_poll_interval()
            except RequestRejectedError:
                raise
            except IncompleteResponseError as error:
                # The outcome is unknown: a worker may have died during the request, or the response was truncated.
                losses += 1
                if losses > MAX_LOST_SUBMISSIONS or not self._provider.CAN_RESUBMIT:
                    raise RequestRejectedError(f"the batch could not be submitted: {error.message}") from None
                log.warning("checking whether the batch %s was submitted: %s", self._row_id, error.message)
                is_repeated = True
                await self._wait_poll_interval()
        return None

    async def _wait_until_ended(self) -> BatchStatus:
        questions = 0
        while True:
            if self.stop.is_set():
                await self._cancel()
                questions += 1
            try:
                batch_status = await self._provider.fetch_status(self._job["id"])
            except RequestRejectedError:
                raise
            except (EdgeUnavailableError, IncompleteResponseError) as error:
                log.warning("the status of the batch %s is unavailable for now: %s", self._row_id, error.message)
            else:
                failed: int = self._job.get("failed_input", 0)
                completed: int = self._job.get("withheld", 0) - failed
                counts = {"completed": batch_status.completed + completed, "failed": batch_status.failed + failed}
                self._job["polled"] = {
                    "status": batch_status.status,
                    "at": now(),
                    "completed": batch_status.completed,
                    "failed": batch_status.failed,
                }
                await self._update_row({**counts, "job": self._job})
                if batch_status.status in {COMPLETED, CANCELLED, EXPIRED, FAILED}:
                    return batch_status
            if questions > MAX_FINAL_POLLS:
                raise RequestRejectedError("the provider does not end the batch")
            await self._wait_poll_interval()

    async def _cancel(self) -> None:
        if "cancelled" in self._job:
            return
        with suppress(EdgeUnavailableError):
            # If the provider rejects the cancellation, the batch is already over.
            with suppress(IncompleteResponseError):
                await self._provider.cancel(self._job["id"])
            await self._save_progress(cancelled=True)

    async def _wait_poll_interval(self) -> None:
        seconds = self._settings.batches.poll_ms / 1000
        if self.stop.is_set():
            await asyncio.sleep(seconds)
            return
        await wait_for_event(self.stop, seconds)

    async def _collect_with_retries(self) -> None:
        """Collects the results. After an interruption, collects all of them again."""
        reason = ""
        for _ in range(MAX_FINAL_POLLS):
            try:
                return await self._collect_results()
            except RequestRejectedError:
                raise
            except (EdgeUnavailableError, IncompleteResponseError) as error:
                reason = error.message
                log.warning("the results of the batch %s are not available yet: %s", self._row_id, reason)
            await self._wait_poll_interval()
        raise RequestRejectedError(f"the results cannot be fetched from the provider: {reason}")

    async def _collect_results(self) -> None:
        """Stores the results as the provider returns them."""
        async with self._database.write_transaction() as connection:
            # Results of denied lines stay.
            conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.content.startswith(RAW_PREFIX))
            await connection.execute(delete(batch_lines).where(*conditions))
        rows: list[dict[str, Any]] = []
        seen_numbers: set[int] = set()
        async for number, text in self._read_results():
            if number in seen_numbers:
                continue
            seen_numbers.add(number)
            content = RAW_PREFIX + text.decode("utf-8", "replace")
            rows.append({"batch_id": self._row_id, "number": number, "failed": True, "content": content})
            if len(rows) >= PAGE_LINES:
                await self._insert_lines(rows)
                rows = []
        await self._insert_lines(rows)

    async def _read_results(self) -> AsyncIterator[tuple[int, bytes]]:
        for path in self._job["paths"]:
            try:
                async for result in self._provider.fetch_results(path):
                    yield result
            except ResultsNotFoundError:
                # A batch that ended early may have no results.
                if self._job["ended"] == COMPLETED:
                    raise

    async def _insert_lines(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            async with self._database.write_transaction() as connection:
                await connection.execute(insert(batch_lines), rows)

    async def _translate_results(self, batch_input: BatchInput) -> None:
        """Translates the results to the client format, a page at a time. Skips results that an earlier run has
        translated.
        """
        page: dict[int, BatchLine] = {}
        ended_at: int = self._job.get("ended_at") or now()
        batch = BatchInfo(self._row_id, self._job, self._metadata, ended_at, self._owner)
        billing = BatchBilling(batch, self._dependencies)
        async for number, line in batch_input.requests():
            page[number] = line
            if len(page) >= PAGE_LINES:
                await self._translate_page(page, billing)
                page = {}
        await self._translate_page(page, billing)
        async with self._database.write_transaction() as connection:
            # Results that are still raw belong to lines that the input does not have.
            conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.content.startswith(RAW_PREFIX))
            await connection.execute(delete(batch_lines).where(*conditions))
        counts = {"completed": await self._count_lines(failed=False), "failed": await self._count_lines(failed=True)}
        await self._update_row(counts)
        self._figures.succeeded_lines += counts["completed"]
        self._figures.failed_lines += counts["failed"]

    async def _translate_page(self, page: dict[int, BatchLine], billing: BatchBilling) -> None:
        conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number.in_(list(page)))
        query = select(batch_lines.c.number, batch_lines.c.content).where(*conditions).order_by(batch_lines.c.number)
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(query)).all()
        read = {
            row.number: self._parse_result(page[row.number], row.content)
            for row in rows
            if row.content.startswith(RAW_PREFIX)
        }
        responses = [
            CompletedLine(number, page[number], outcome.response)
            for number, outcome in read.items()
            if outcome.response
        ]
        # Records are written first, so that every translated result has its record.
        await billing.write_records(responses, is_retry=self._is_retry)
        changes = [self._to_output_row(number, page[number], outcome) for number, outcome in read.items()]
        if self._job["ended"] == COMPLETED:
            await self._insert_lines(
                [
                    self._missing_result_row(number, page[number])
                    for number in page.keys() - {row.number for row in rows}
                ]
            )
        if changes:
            line_conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number == bindparam("line"))
            async with self._database.write_transaction() as connection:
                await connection.execute(update(batch_lines).where(*line_conditions), changes)

    def _parse_result(self, line: BatchLine, raw: str) -> LineResult:
        try:
            return self._provider.parse_result(line, raw.removeprefix(RAW_PREFIX).encode())
        except msgspec.MsgspecError as error:
            return LineResult(None, {"code": "answer_unreadable", "message": str(error)})

    def _to_output_row(self, number: int, line: BatchLine, outcome: LineResult) -> dict[str, Any]:
        response = outcome.response and with_request_results(outcome.response, line.hook_results)
        content = format_output_line(self._row_id, number, line.custom_id, response, outcome.error)
        return {"line": number, "failed": outcome.is_failed, "content": content}

    async def check_responses(self, batch_input: BatchInput) -> None:
        """Runs the guardrails on the responses that the provider returned. Continues after the last line that an earlier
        run has checked.
        """
        page: dict[int, BatchLine] = {}
        async for number, line in batch_input.requests():
            if number <= self._job.get("checked_responses", 0):
                continue
            page[number] = line
            if len(page) >= PAGE_LINES:
                await self._check_page(page)
                page = {}
        if page:
            await self._check_page(page)
        counts = {"completed": await self._count_lines(failed=False), "failed": await self._count_lines(failed=True)}
        await self._update_row(counts)

    async def _check_page(self, page: dict[int, BatchLine]) -> None:
        conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number.in_(list(page)))
        async with self._database.read_connection() as connection:
            rows = (
                await connection.execute(select(batch_lines.c.number, batch_lines.c.content).where(*conditions))
            ).all()
        responses: dict[int, dict[str, Any]] = {}
        for row in rows:
            response: dict[str, Any] | None = msgspec.json.decode(row.content)["response"]
            if response is not None and is_success(response):
                responses[row.number] = response
        bodies: dict[int, tuple[BatchLine, object]] = {
            number: (page[number], without_results(response["body"])) for number, response in responses.items()
        }
        outcomes = await self._checker.check_responses(bodies)
        changes: list[dict[str, Any]] = []
        for number, outcome in outcomes.items():
            line, response = page[number], responses[number]
            if isinstance(outcome, str):
                result = LineResult(None, guardrail_error(outcome))
            else:
                self._hook_summary.add({"after_request_hooks": results_after(outcome.body)})
                result = LineResult({**response, "status_code": outcome.status, "body": outcome.body}, None)
            changes.append(self._to_output_row(number, line, result))
        self._job["checked_responses"] = max(page)
        line_conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.number == bindparam("line"))
        progress = {"job": self._job, "details": self._details_with_results()}
        async with self._database.write_transaction() as connection:
            if changes:
                await connection.execute(update(batch_lines).where(*line_conditions), changes)
            await self._write_row(connection, progress)

    def _missing_result_row(self, number: int, line: BatchLine) -> dict[str, Any]:
        error = {"code": "no_answer", "message": "the provider returned no result for this line"}
        content = format_output_line(self._row_id, number, line.custom_id, None, error)
        return {"batch_id": self._row_id, "number": number, "failed": True, "content": content}

    async def _count_lines(self, *, failed: bool) -> int:
        conditions = (batch_lines.c.batch_id == self._row_id, batch_lines.c.failed == failed)
        async with self._database.read_connection() as connection:
            return await connection.scalar(select(func.count()).select_from(batch_lines).where(*conditions)) or 0
