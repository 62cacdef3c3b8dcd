"""Live tail: sends new records to subscribers, with filters and a bounded rate."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.columns import NANODOLLARS_PER_CENT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from penstock.logs.query import LogFilters

log = logging.getLogger("penstock")

MAX_PER_SECOND = 100
# Maximum number of live tails: of all tenants, of one organisation, and of one scope in it, such as one workspace.
MAX_SUBSCRIBERS, MAX_SUBSCRIBERS_PER_ORGANISATION, MAX_SUBSCRIBERS_PER_SCOPE = 64, 48, 16
# Number of records that are offered at once, before the event loop does other work.
OFFERED_RECORDS = 100
# Maximum number of records that wait until they are offered. An insertion has up to 10,000 records.
MAX_WAITING_RECORDS = 20_000

# Field of a record for each filter that is a list of allowed values.
FIELD_BY_FILTER = {
    "workspace_ids": "workspace_id",
    "status_code": "response_status_code",
    "virtual_keys": "virtual_key",
    "configs": "config",
    "api_key_ids": "api_key_id",
    "user_ids": "user_id",
    "ai_model": "ai_model",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "prompt_slug": "prompt_slug",
    "cache_status": "cache_status",
    "outcome": "outcome",
}
# Field of a record for each range filter, by the name of the filter without `_min` and `_max`.
FIELD_BY_RANGE = {
    "total_units": "total_units",
    "prompt_token": "req_units",
    "completion_token": "res_units",
}


def matches_filters(record: dict[str, Any], filters: LogFilters) -> bool:
    """Returns true if a new record meets all filters. A new record has no feedback yet, so filters of feedback never
    match. Filters of time are ignored.
    """
    if record.get("organisation_id") != filters.organisation_id:
        return False
    for name, field in FIELD_BY_FILTER.items():
        allowed = getattr(filters, name)
        # A config may be named by its slug or its id.
        values = {record.get(field), record.get("config_id")} if name == "configs" else {record.get(field)}
        # A record of a killed request has no status.
        if name == "status_code":
            values = {record.get(field) or 0}
        if allowed is not None and not values & set(allowed):
            return False
    if (own := filters.restricted_to) and not (
        record.get("user_id") in own.user_ids or record.get("api_key_id") in own.api_key_ids
    ):
        return False
    if filters.weighted_feedback_min is not None or filters.weighted_feedback_max is not None:
        return False
    if filters.rescued is not None and not _find_rescues(record) & set(filters.rescued):
        return False
    return (
        all(_is_within(record.get(field), filters, name) for name, field in FIELD_BY_RANGE.items())
        and _is_within(_cost_in_cents(record), filters, "cost")
        and _matches_models(record, filters.ai_org_model)
        and _matches_metadata(record, filters.metadata)
        and (filters.guardrails is None or not _find_guardrails(record).isdisjoint(filters.guardrails))
    )


def _is_within(value: float | None, filters: LogFilters, name: str) -> bool:
    lowest, highest = getattr(filters, f"{name}_min"), getattr(filters, f"{name}_max")
    if lowest is None and highest is None:
        return True
    return value is not None and (lowest is None or value >= lowest) and (highest is None or value <= highest)


def _cost_in_cents(record: dict[str, Any]) -> float | None:
    nanodollars = record.get("cost_nanodollars")
    return None if nanodollars is None else nanodollars / NANODOLLARS_PER_CENT


def _matches_models(record: dict[str, Any], models: list[str] | None) -> bool:
    if models is None:
        return True
    pairs = (model.partition("__") for model in models)
    return any(
        provider == record.get("ai_org") and model in {"", record.get("ai_model")} for provider, _, model in pairs
    )


def _find_guardrails(record: dict[str, Any]) -> set[str]:
    """Returns the ids of the guardrails that have a result in a record."""
    stages: dict[str, list[dict[str, Any]]] = record.get("hook_results") or {}
    return {str(result.get("id")) for results in stages.values() for result in results}


def _find_rescues(record: dict[str, Any]) -> set[str]:
    """Returns the values of the filter `rescued` that match a record."""
    rescues: set[str] = set()
    if record.get("is_success"):
        if (record.get("retry_success_count") or 0) > 0:
            rescues.add("retry")
        steps: list[dict[str, Any]] = record.get("decisions") or []
        if any(step.get("strategy") == "fallback" and step.get("target") for step in steps):
            rescues.add("fallback")
    return rescues


def _matches_metadata(record: dict[str, Any], metadata_filter: dict[str, list[str]] | None) -> bool:
    if not metadata_filter:
        return True
    metadata: dict[str, Any] = record.get("metadata") or {}
    return all(str(metadata.get(key)) in values for key, values in metadata_filter.items() if key in metadata) and all(
        key in metadata for key in metadata_filter
    )


class TooManyTailsError(Exception):
    """There are too many live tails; the message names the limit that was reached."""


class TailSubscriber:
    """Queue of one subscriber. Records beyond the rate are dropped and counted."""

    def __init__(self, filters: LogFilters, clock: Callable[[], float]) -> None:
        """Stores the filters for records, and the clock for the rate limit."""
        self.filters = filters
        # Organisation and workspaces, by which the number of live tails is limited.
        self.scope = (filters.organisation_id, tuple(filters.workspace_ids or ()))
        self._clock = clock
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._second = 0
        self._sent = 0
        self._dropped = 0

    def offer(self, record: dict[str, Any]) -> None:
        """Queues a record that matches the filters. Drops it if there are too many in this second, or if the queue is
        full.
        """
        if not matches_filters(record, self.filters):
            return
        second = int(self._clock())
        if second != self._second:
            self._second, self._sent = second, 0
        if self._sent >= MAX_PER_SECOND or self._events.qsize() >= MAX_PER_SECOND:
            self._dropped += 1
            return
        if self._dropped:
            self._events.put_nowait({"dropped": self._dropped})
            self._dropped = 0
        self._sent += 1
        self._events.put_nowait({"log": record})

    def count_dropped(self, dropped: Counter[tuple[str, str]]) -> None:
        """Counts records that were dropped before they were offered, by organisation and workspace."""
        workspaces = self.filters.workspace_ids
        self._dropped += sum(
            count
            for (organisation_id, workspace_id), count in dropped.items()
            if organisation_id == self.filters.organisation_id and (workspaces is None or workspace_id in workspaces)
        )

    async def next_event(self, seconds: float) -> dict[str, Any]:
        """Returns the next event: `log`, `dropped`, or `heartbeat` after this many seconds without one."""
        try:
            async with asyncio.timeout(seconds):
                return await self._events.get()
        except TimeoutError:
            if dropped := self._dropped:
                self._dropped = 0
                return {"dropped": dropped}
            return {"heartbeat": True}


class LiveTail:
    """Live tail for all subscribers. `publish` may be called from any thread, the other methods only from the event
    loop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Stores the event loop of the subscribers."""
        self._loop = loop
        self._clock = clock
        self._subscribers: set[TailSubscriber] = set()
        # Records that are not offered yet, and the number of those that were dropped since, by organisation and
        # workspace. One task offers them, so that they keep their order.
        self._waiting: deque[dict[str, Any]] = deque()
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._is_offering = False
        self._lock = threading.Lock()

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._subscribers)

    def publish(self, lines: Iterable[bytes]) -> None:
        """Sends record lines to all subscribers. Does nothing without subscribers."""
        if not self._subscribers:
            return
        records = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        if self._loop is None:
            self._offer(records)
            return
        with self._lock:
            accepted = max(0, MAX_WAITING_RECORDS - len(self._waiting))
            self._waiting.extend(records[:accepted])
            self._dropped.update(
                (record.get("organisation_id", ""), record.get("workspace_id", "")) for record in records[accepted:]
            )
            if self._is_offering:
                return
            self._is_offering = True
        self._loop.call_soon_threadsafe(self._start_offering)

    @contextmanager
    def subscribe(self, filters: LogFilters) -> Generator[TailSubscriber]:
        """Yields a new subscriber, which gets records until the end of the block. Raises `TooManyTailsError`."""
        subscriber = TailSubscriber(filters, self._clock)
        organisation = [other for other in self._subscribers if other.scope[0] == subscriber.scope[0]]
        scope = [other for other in organisation if other.scope == subscriber.scope]
        for name, subscribers, limit in (
            ("this workspace", scope, MAX_SUBSCRIBERS_PER_SCOPE),
            ("this organisation", organisation, MAX_SUBSCRIBERS_PER_ORGANISATION),
            ("this node", self._subscribers, MAX_SUBSCRIBERS),
        ):
            if len(subscribers) >= limit:
                raise TooManyTailsError(f"{name} has {limit} live tails already; close one first")
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    def _start_offering(self) -> None:
        self._task = asyncio.ensure_future(self._offer_waiting())

    async def _offer_waiting(self) -> None:
        """Offers the waiting records until there are none."""
        while True:
            with self._lock:
                records = list(islice(self._waiting, OFFERED_RECORDS))
                for _ in records:
                    self._waiting.popleft()
                dropped = Counter[tuple[str, str]]()
                if not self._waiting:
                    dropped, self._dropped = self._dropped, dropped
                self._is_offering = bool(records or dropped)
                if not self._is_offering:
                    return
            try:
                self._offer(records)
            except Exception:
                log.exception("records cannot be sent to live tails")
            for subscriber in self._subscribers if dropped else ():
                subscriber.count_dropped(dropped)
            await asyncio.sleep(0)

    def _offer(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            for subscriber in self._subscribers:
                subscriber.offer(record)
