"""Records of lines that a provider answered in a batch of its own: what they used, and what that costs in a batch."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import select

from penstock.batches.files import BATCH
from penstock.batches.gateway_batch import line_id
from penstock.engine import Ledger
from penstock.pricing import engine_export
from penstock.pricing.wire_format import PricingConfig
from penstock.store.tables import integration_models, integrations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.batches.gateway_batch import Places
    from penstock.batches.input import Line

log = logging.getLogger("penstock")

# So often a record file that cannot be written is tried again before records are lost.
TRIES = 60
PAUSE = 1.0


class Batch(NamedTuple):
    """Whose lines they are, and when they were answered."""

    id: str
    job: Mapping[str, Any]
    # As the request's header had it that made the batch.
    metadata: str | None
    ended_at: int


class Answer(NamedTuple):
    """A line, and what was answered."""

    number: int
    line: Line
    response: Mapping[str, Any]


class Book:
    """Writes the records of one batch; nothing is looked up before the first line."""

    def __init__(self, batch: Batch, places: Places) -> None:
        """Know the batch."""
        self._batch = batch
        self._places = places
        self._ledger: Ledger | None = None
        self._own: dict[str, list[dict[str, Any]]] = {}
        self._adjustment: dict[str, Any] | None = None

    async def write(self, answers: Iterable[Answer], *, again: bool) -> None:
        """Write the records of some lines together; those that may be written already are looked for."""
        found = list(answers)
        if not found or not self._places.settings.records.enabled:
            return
        ledger = self._ledger or await self._opened()
        before = ledger.cost
        lines = b"".join(ledger.record(self._entry(answer), _body(answer)) for answer in found)
        self._places.figures.cost += ledger.cost - before
        for _ in range(TRIES):
            # What it waits for is a disk.
            if await asyncio.to_thread(self._places.records.add, lines, again=again):
                return
            await asyncio.sleep(PAUSE)
        log.error("%d records of the batch %s are lost: the record file cannot be written", len(found), self._batch.id)

    async def _opened(self) -> Ledger:
        if integration_id := self._batch.job.get("integration_id"):
            self._own, self._adjustment = await self._stated(integration_id)
        self._ledger = await asyncio.to_thread(_ledger, self._places)
        return self._ledger

    async def _stated(self, integration_id: str) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any] | None]:
        """Give the prices that were saved with the provider, by model; and by what all others differ."""
        adjustments = select(integrations.c.pricing_adjustments).where(integrations.c.id == integration_id)
        query = select(integration_models.c.slug, integration_models.c.pricing_config).where(
            integration_models.c.integration_id == integration_id, integration_models.c.pricing_config.is_not(None)
        )
        async with self._places.database.reading() as connection:
            rows = (await connection.execute(query)).all()
            adjustment = engine_export.adjusted(await connection.scalar(adjustments))
        own = {row.slug: engine_export.stated(msgspec.convert(row.pricing_config, PricingConfig)) for row in rows}
        return own, adjustment

    def _entry(self, answer: Answer) -> bytes:
        model = str(answer.line.body.get("model", ""))
        entry = {
            "id": line_id(self._batch.id, answer.number),
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


def _ledger(places: Places) -> Ledger:
    return Ledger(msgspec.json.encode(engine_export.published(places.settings)))


def _body(answer: Answer) -> bytes:
    return msgspec.json.encode(answer.response.get("body"))
