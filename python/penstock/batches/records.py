"""Records of lines that a provider answered in a batch of its own: what they used, and what that costs in a batch."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import select

from penstock.batches.files import BATCH
from penstock.batches.gateway_batch import line_id
from penstock.engine import BatchRecorder
from penstock.pricing import engine_export
from penstock.pricing.wire_format import PricingConfig
from penstock.store.tables import integration_models, integrations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.batches.gateway_batch import BatchDependencies
    from penstock.batches.input import BatchLine

log = logging.getLogger("penstock")

# So often a record file that cannot be written is tried again before records are lost.
MAX_WRITE_ATTEMPTS = 60
RETRY_DELAY_SECONDS = 1.0


class BatchInfo(NamedTuple):
    """Whose lines they are, and when they were answered."""

    id: str
    job: Mapping[str, Any]
    # As the request's header had it that made the batch.
    metadata: str | None
    ended_at: int


class AnsweredLine(NamedTuple):
    """A line, and what was answered."""

    line_number: int
    line: BatchLine
    response: Mapping[str, Any]


class BatchBilling:
    """Writes the records of one batch; nothing is looked up before the first line."""

    def __init__(self, batch: BatchInfo, places: BatchDependencies) -> None:
        """Know the batch."""
        self._batch = batch
        self._places = places
        self._ledger: BatchRecorder | None = None
        self._own: dict[str, list[dict[str, Any]]] = {}
        self._adjustment: dict[str, Any] | None = None

    async def write_records(self, answers: Iterable[AnsweredLine], *, again: bool) -> None:
        """Write the records of some lines together; those that may be written already are looked for."""
        found = list(answers)
        if not found or not self._places.settings.records.enabled:
            return
        ledger = self._ledger or await self._open_ledger()
        before = ledger.cost
        lines = b"".join(ledger.record(self._encode_entry(answer), _encode_body(answer)) for answer in found)
        self._places.metrics.cost_nanodollars += ledger.cost - before
        for _ in range(MAX_WRITE_ATTEMPTS):
            # What it waits for is a disk.
            if await asyncio.to_thread(self._places.records.append_lines, lines, again=again):
                return
            await asyncio.sleep(RETRY_DELAY_SECONDS)
        log.error("%d records of the batch %s are lost: the record file cannot be written", len(found), self._batch.id)

    async def _open_ledger(self) -> BatchRecorder:
        if integration_id := self._batch.job.get("integration_id"):
            self._own, self._adjustment = await self._load_saved_prices(integration_id)
        self._ledger = await asyncio.to_thread(_create_ledger, self._places)
        return self._ledger

    async def _load_saved_prices(
        self, integration_id: str
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any] | None]:
        """Give the prices that were saved with the provider, by model; and by what all others differ."""
        adjustments = select(integrations.c.pricing_adjustments).where(integrations.c.id == integration_id)
        query = select(integration_models.c.slug, integration_models.c.pricing_config).where(
            integration_models.c.integration_id == integration_id, integration_models.c.pricing_config.is_not(None)
        )
        async with self._places.database.read_connection() as connection:
            rows = (await connection.execute(query)).all()
            adjustment = engine_export.export_adjustments(await connection.scalar(adjustments))
        own = {
            row.slug: engine_export.export_operator_prices(msgspec.convert(row.pricing_config, PricingConfig))
            for row in rows
        }
        return own, adjustment

    def _encode_entry(self, answer: AnsweredLine) -> bytes:
        model = str(answer.line.body.get("model", ""))
        entry = {
            "id": line_id(self._batch.id, answer.line_number),
            "created_at": self._batch.ended_at,
            "trace_id": BATCH + self._batch.id,
            "path": answer.line.url,
            "provider": self._batch.job["provider"],
            "model": model,
            "status": answer.response.get("status_code", 200),
            "api_key_id": self._batch.job.get("api_key_id"),
            "metadata": self._batch.metadata,
            "prices": self._own.get(model, []),
            "adjustment": self._adjustment,
        }
        return msgspec.json.encode(entry)


def _create_ledger(places: BatchDependencies) -> BatchRecorder:
    return BatchRecorder(msgspec.json.encode(engine_export.export_prices(places.settings)))


def _encode_body(answer: AnsweredLine) -> bytes:
    return msgspec.json.encode(answer.response.get("body"))
