"""Writes billing records for the lines of a batch that a provider ran. A record contains the usage of a line and its
cost at batch prices.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import select

from penstock.batches.budgets import BatchBudgets, BatchSubject
from penstock.batches.files import BATCH
from penstock.batches.gateway_batch import line_id
from penstock.engine import BatchRecorder
from penstock.pricing import engine_export
from penstock.pricing.saved_prices import SavedPrices, load_saved_prices
from penstock.store.tables import integrations, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.batches.gateway_batch import BatchDependencies
    from penstock.batches.input import BatchLine

log = logging.getLogger("penstock")

# Maximum number of attempts to write records to the spool. After the last one, the records are lost.
MAX_WRITE_ATTEMPTS = 60
RETRY_DELAY_SECONDS = 1.0
# Value of `source` in the records.
SOURCE = "batch"


class BatchInfo(NamedTuple):
    """The batch that lines belong to, and when it ended."""

    id: str
    job: Mapping[str, Any]
    # Metadata of the request that created the batch, with that of its key and workspace.
    metadata: Mapping[str, str]
    ended_at: int
    # Columns of the batch's row that name its owners: `organisation_id` and `workspace_id`.
    owner: Mapping[str, Any] = {}


class CompletedLine(NamedTuple):
    """A batch line with the response that the provider returned for it."""

    line_number: int
    line: BatchLine
    response: Mapping[str, Any]


class BatchBilling:
    """Writes the records of one batch. Loads prices only when the first line is written."""

    def __init__(self, batch: BatchInfo, dependencies: BatchDependencies) -> None:
        """Stores the batch and its dependencies. `write_records` loads the prices."""
        self._batch = batch
        self._dependencies = dependencies
        self._ledger: BatchRecorder | None = None
        self._saved = SavedPrices({})
        self._budgets: BatchBudgets | None = None
        self._fields: dict[str, Any] = {"source": SOURCE, "metadata": batch.metadata, **batch.owner}

    async def write_records(self, responses: Iterable[CompletedLine], *, is_retry: bool) -> None:
        """Writes the records of these lines together. If `is_retry` is true, skips lines whose records an earlier run has
        written.
        """
        all_responses = list(responses)
        if not all_responses or not self._dependencies.settings.records.enabled:
            return
        ledger = self._ledger or await self._open_ledger()
        before = ledger.cost
        lines = b"".join(self._encode_line(ledger, response) for response in all_responses)
        self._dependencies.metrics.cost_nanodollars += ledger.cost - before
        for _ in range(MAX_WRITE_ATTEMPTS):
            # In a thread, because the write blocks on disk I/O.
            if await asyncio.to_thread(self._dependencies.records.append_lines, lines, is_retry=is_retry):
                return
            await asyncio.sleep(RETRY_DELAY_SECONDS)
        log.error(
            "%d records of the batch %s are lost: the spool cannot be written", len(all_responses), self._batch.id
        )

    async def _open_ledger(self) -> BatchRecorder:
        if integration_id := self._batch.job.get("integration_id"):
            self._saved = await self._load_saved_prices(integration_id)
            self._fields["integration_id"] = integration_id
        if workspace_id := self._batch.owner.get("workspace_id"):
            self._fields["workspace_slug"] = await self._find_workspace_slug(workspace_id)
            self._budgets = await self._load_budgets(workspace_id)
        self._ledger = await asyncio.to_thread(_create_ledger, self._dependencies)
        return self._ledger

    async def _load_saved_prices(self, integration_id: str) -> SavedPrices:
        async with self._dependencies.database.read_connection() as connection:
            saved_prices = await load_saved_prices(connection, integrations.c.id == integration_id)
        return saved_prices.get(integration_id, SavedPrices({}))

    async def _load_budgets(self, workspace_id: str) -> BatchBudgets:
        """Returns the budgets that the lines count for, in the period in which the batch ends."""
        job = self._batch.job
        subject = BatchSubject(
            workspace_id,
            job.get("api_key_id"),
            job.get("integration_id"),
            job["provider"],
            job.get("virtual_key"),
            job.get("endpoint", ""),
            self._batch.metadata,
        )
        async with self._dependencies.database.read_connection() as connection:
            return await BatchBudgets.load(connection, subject)

    async def _find_workspace_slug(self, workspace_id: str) -> str | None:
        async with self._dependencies.database.read_connection() as connection:
            return await connection.scalar(select(workspaces.c.slug).where(workspaces.c.id == workspace_id))

    def _encode_line(self, ledger: BatchRecorder, answered_line: CompletedLine) -> bytes:
        line = ledger.record(self._encode_entry(answered_line), _encode_body(answered_line))
        record: dict[str, Any] = msgspec.json.decode(line)
        budgets = self._budgets.list_uses(record["ai_model"]) if self._budgets else []
        limits = {"limits": {"budgets": budgets}} if budgets else {}
        return msgspec.json.encode(record | self._fields | limits) + b"\n"

    def _encode_entry(self, answered_line: CompletedLine) -> bytes:
        model = str(answered_line.line.body.get("model", ""))
        entry = {
            "id": line_id(self._batch.id, answered_line.line_number),
            "created_at": self._batch.ended_at,
            "trace_id": BATCH + self._batch.id,
            "path": answered_line.line.url,
            "provider": self._batch.job["provider"],
            "model": model,
            "status": answered_line.response.get("status_code", 200),
            "api_key_id": self._batch.job.get("api_key_id"),
            "prices": self._saved.prices_by_model.get(model, []),
            "adjustment": self._saved.adjustment,
        }
        return msgspec.json.encode(entry)


def _create_ledger(dependencies: BatchDependencies) -> BatchRecorder:
    return BatchRecorder(msgspec.json.encode(engine_export.export_prices(dependencies.settings)))


def _encode_body(answered_line: CompletedLine) -> bytes:
    return msgspec.json.encode(answered_line.response.get("body"))
