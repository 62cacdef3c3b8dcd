"""Re-rating: computes the costs of stored logs again with the prices of today, and corrects those that differ.

A correction is an amendment in the spool. So it reaches the log store and the record file like usage that becomes known
after the request. It contains the previous cost, so that code that sums up costs can add the difference.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import select

from penstock.logs.engines.buckets import to_ms
from penstock.logs.engines.lists import decode_cursor, encode_cursor
from penstock.logs.query import MAX_USAGE_ROWS, LogFilterError, LogFilters, UsageQuery
from penstock.logs.record_lines import PREVIOUS_COST
from penstock.logs.spool_format import AMEND
from penstock.logs.spool_writer import NewFrame
from penstock.pricing.cost_calculator import StoredRequest
from penstock.pricing.saved_prices import SavedPrices, load_saved_prices
from penstock.schemas import field_error
from penstock.store.tables import integrations, providers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from penstock.kit.tenant_session import TenantSession
    from penstock.log_api.service import LogService
    from penstock.pricing.cost_calculator import Cost, CostCalculator

# Time after which a request returns, with a cursor for the next request. The edge worker waits 30 seconds.
SLICE_SECONDS = 8.0
# First, minimum and maximum time window of one query. It is limited because the log store sorts all rows of the range,
# and adapts to the traffic.
FIRST_WINDOW, SHORTEST_WINDOW, LONGEST_WINDOW = timedelta(hours=1), timedelta(minutes=1), timedelta(days=7)
# Id that sorts after all records of the same millisecond.
LAST_ID = str(uuid.UUID(int=2**128 - 1))
BATCH_SOURCE = "batch"
PAGE_ROWS = MAX_USAGE_ROWS


class ModelRating(msgspec.Struct, kw_only=True):
    """Result of re-rating the logs of one model. Costs are in nano-dollars."""

    logs: int = 0
    corrected: int = 0
    # Number of logs whose model has no price today. Their stored cost stays as it is.
    unpriced: int = 0
    # Number of logs whose cost cannot be computed again.
    skipped: int = 0
    old_cost: int = 0
    new_cost: int = 0


class RatingSlice(NamedTuple):
    """Result of one slice, by provider and model, and the cursor of the next slice."""

    ratings: dict[tuple[str, str], ModelRating]
    next_cursor: str | None


class SavedProviders(NamedTuple):
    """Saved providers of an organisation, and the prices of their integrations."""

    # Ids of integrations, by workspace and slug of the provider.
    integration_ids: Mapping[tuple[str, str], str]
    # Slugs of the providers in the settings file, which have no integration.
    file_slugs: frozenset[str]
    prices: Mapping[str, SavedPrices]

    def find_prices(self, row: Mapping[str, Any]) -> SavedPrices | None:
        """Returns the saved prices of a log; `None` if it has none. Raises KeyError if its provider no longer exists."""
        slug, integration_id = row["virtual_key"], row["integration_id"]
        if not slug and not integration_id:
            return None
        if not integration_id and (row["workspace_id"] or "", slug) not in self.integration_ids:
            if slug in self.file_slugs:
                return None
            raise KeyError(slug)
        return self.prices[integration_id or self.integration_ids[row["workspace_id"] or "", slug]]


async def load_saved_providers(session: TenantSession) -> SavedProviders:
    """Returns the saved providers of the session's organisation, with their prices."""
    org_session = session.organisation()
    columns = (providers.c.workspace_id, providers.c.slug, providers.c.integration_id)
    rows = await org_session.fetch_rows(select(*columns), providers)
    is_own = integrations.c.organisation_id == session.organisation_id
    return SavedProviders(
        {(row["workspace_id"], row["slug"]): row["integration_id"] for row in rows},
        session.file_provider_slugs(),
        await load_saved_prices(session.connection, is_own),
    )


class Rerater:
    """Re-rates the logs of a range of time, one slice at a time."""

    def __init__(self, log_service: LogService, calculator: CostCalculator, saved: SavedProviders) -> None:
        """Stores the log store and the prices."""
        self._logs = log_service
        self._calculator = calculator
        self._saved = saved

    async def run_slice(self, filters: LogFilters, cursor: str | None, *, is_dry_run: bool) -> RatingSlice:
        """Re-rates logs, the oldest first, for about `SLICE_SECONDS`. `filters` must have a range of time."""
        start, end = filters.time_of_generation_min, filters.time_of_generation_max
        if start is None or end is None:
            raise field_error("time_of_generation_min", "is required")
        if cursor is not None:
            start = max(start, _decode_time(cursor))
        deadline = asyncio.get_running_loop().time() + SLICE_SECONDS
        ratings: dict[tuple[str, str], ModelRating] = {}
        window = FIRST_WINDOW
        while True:
            until = min(start + window, end)
            part = msgspec.structs.replace(filters, time_of_generation_max=until)
            page = await self._logs.run(UsageQuery(filters=part, cursor=cursor, limit=PAGE_ROWS))
            rows: list[dict[str, Any]] = page["data"]
            frames = await asyncio.to_thread(self._rate, rows, ratings)
            if frames and not is_dry_run:
                await self._logs.append(frames)
            cursor = page["next_cursor"]
            if cursor is not None:
                start, window = _decode_time(cursor), max(window / 2, SHORTEST_WINDOW)
            elif until >= end:
                return RatingSlice(ratings, None)
            else:
                start, cursor = until, encode_cursor(to_ms(until), LAST_ID)
                if len(rows) < PAGE_ROWS // 4:
                    window = min(window * 2, LONGEST_WINDOW)
            if asyncio.get_running_loop().time() >= deadline:
                return RatingSlice(ratings, cursor)

    def _rate(self, rows: Sequence[Mapping[str, Any]], ratings: dict[tuple[str, str], ModelRating]) -> list[NewFrame]:
        """Adds the costs of some logs to `ratings`. Returns the corrections."""
        priced: list[tuple[Mapping[str, Any], StoredRequest]] = []
        for row in rows:
            rating = ratings.setdefault(_model_of(row), ModelRating())
            rating.logs += 1
            rating.old_cost += row["cost_nanodollars"] or 0
            if request := self._to_request(row):
                priced.append((row, request))
            else:
                rating.skipped += 1
                rating.new_cost += row["cost_nanodollars"] or 0
        frames: list[NewFrame] = []
        costs = self._calculator.compute_costs([request for _, request in priced])
        for (row, _), cost in zip(priced, costs, strict=True):
            rating, old_cost = ratings[_model_of(row)], row["cost_nanodollars"]
            if cost is None:
                rating.unpriced += 1
                rating.new_cost += old_cost or 0
            elif cost.nanodollars == old_cost or _has_same_price(row, cost):
                rating.new_cost += old_cost or 0
            else:
                rating.corrected += 1
                rating.new_cost += cost.nanodollars
                frames.append(_to_correction(row, cost))
        return frames

    def _to_request(self, row: Mapping[str, Any]) -> StoredRequest | None:
        """Returns the data from which the cost of a log is computed; `None` if its cost must not change."""
        if row["cost_nanodollars"] == 0 and row["price_version"] is None:
            # The request was free of charge, for example because its capacity is paid for by the hour.
            return None
        try:
            saved = self._saved.find_prices(row)
        except KeyError:
            return None
        request = StoredRequest(
            provider=row["ai_org"] or "",
            model=row["ai_model"] or "",
            created_at_ms=row["at"],
            req_units=row["req_units"],
            res_units=row["res_units"],
            usage=row["usage"],
            is_batch=row["source"] == BATCH_SOURCE,
            saved=saved,
        )
        return request if request.is_computable else None


def _model_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["ai_org"] or "", row["ai_model"] or ""


def _has_same_price(row: Mapping[str, Any], cost: Cost) -> bool:
    """Returns true if the price of a log is unchanged. Its stored cost is then right, even if it differs: the gateway
    knew more about the request than the record contains.
    """
    return row["cost_nanodollars"] is not None and row["price_version"] == cost.price_version


def _to_correction(row: Mapping[str, Any], cost: Cost) -> NewFrame:
    fields: dict[str, Any] = {
        "cost_nanodollars": cost.nanodollars,
        "cost_currency": "USD",
        "price_version": cost.price_version,
        PREVIOUS_COST: row["cost_nanodollars"],
        "previous_price_version": row["price_version"],
    }
    if row["limits"] is not None:
        # The usage ledger adds the difference to the budgets that the request counted for.
        fields["limits"] = row["limits"]
    return NewFrame(AMEND, uuid.UUID(row["id"]).bytes, msgspec.json.encode(fields))


def _decode_time(cursor: str) -> datetime:
    try:
        return decode_cursor(cursor)[0]
    except LogFilterError as error:
        raise field_error("cursor", str(error).removeprefix("cursor ")) from None
