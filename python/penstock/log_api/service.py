"""Access of routes to the log store: queries through the log worker, and writes through the spool of this process."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from penstock.errors import InvalidError, NotFoundError, Problem, QueryTooLargeError, UnavailableError
from penstock.logs.engines.protocol import LogEngineError
from penstock.logs.engines.protocol import QueryTooLargeError as EngineQueryTooLargeError
from penstock.logs.query import LogFilterError
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from penstock.logs.query import LogFilters, LogQuery
    from penstock.logs.spool_writer import NewFrame, SpoolWriter

Item = TypeVar("Item")

# Less than the 30 seconds that the edge worker waits for the control process.
QUERY_TIMEOUT_SECONDS = 20.0
DISABLED_MESSAGE = "no request logs are stored here; hint: records.enabled and log_store.enabled must both be true"
TOO_LARGE_HINT = "hint: choose a shorter range of time, or more filters"
# Maximum number of items in the body of a request that writes logs or feedback.
MAX_ITEMS = 1000
# Name of the invalid field, with which an error message of the log store begins.
FIELD_NAME = re.compile(r"^[a-z_.]+(?= )")


def list_items(data: Item | list[Item]) -> list[Item]:
    """Returns the items of a body that is one item or a list of them. Raises InvalidError for an empty or a long list."""
    items = cast("list[Item]", data) if isinstance(data, list) else [data]
    if not 0 < len(items) <= MAX_ITEMS:
        raise field_error("", f"the body has {len(items)} items: expected 1 to {MAX_ITEMS}")
    return items


class LogReader(Protocol):
    """Client of the log worker."""

    async def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        """Runs a query."""
        ...

    async def get_bodies(
        self, record_id: str, organisation_id: str, workspace_id: str | None = None
    ) -> Mapping[str, bytes]:
        """Returns the stored bodies of a record by name: `client_request`, `upstream_request`, `upstream_response` and
        `client_response`; also `upstream_head`, see `UpstreamHead`.
        """
        ...

    def tail(self, filters: LogFilters) -> AsyncIterator[dict[str, Any]]:
        """Yields events: `log` with a new record that matches the filters, `dropped` with a number of records, or
        `heartbeat`.
        """
        ...


class LogService:
    """The log store as routes see it. Every method raises `NotFoundError` if logs are disabled."""

    def __init__(
        self,
        reader: LogReader | None = None,
        spool: SpoolWriter | None = None,
        body_format: str = "packs",
        *,
        keeps_bodies: bool = True,
        is_partial: bool = False,
    ) -> None:
        """Stores the client of the log worker and the spool of this process; both are `None` if logs are disabled."""
        self._reader = reader
        self._spool = spool
        self.body_format = body_format
        self.keeps_bodies = keeps_bodies
        # True if other nodes have their own log stores, so that results contain only the logs of this node.
        self.is_partial = is_partial

    async def run(self, query: LogQuery) -> dict[str, Any]:
        """Runs a query. Raises InvalidError, QueryTooLargeError or UnavailableError."""
        reader = self._require_reader()
        try:
            result = await reader.run(query, QUERY_TIMEOUT_SECONDS)
        except LogFilterError as error:
            message = str(error)
            name = FIELD_NAME.match(message)
            path = name[0] if name else ""
            raise InvalidError(message, [Problem(path, message.removeprefix(path).strip())]) from None
        except EngineQueryTooLargeError as error:
            raise QueryTooLargeError(f"{error}; {TOO_LARGE_HINT}") from None
        except LogEngineError as error:
            raise UnavailableError(f"the log store does not answer: {error}") from None
        return {**result, "partial": True} if self.is_partial else result

    async def get_bodies(
        self, record_id: str, organisation_id: str, workspace_id: str | None = None
    ) -> Mapping[str, bytes]:
        """Returns the stored bodies of a record by name; empty if none are stored. Reads for one workspace share the
        query slots of that workspace.
        """
        try:
            return await self._require_reader().get_bodies(record_id, organisation_id, workspace_id)
        except LogEngineError as error:
            raise UnavailableError(f"the log store does not answer: {error}") from None

    async def tail(self, filters: LogFilters) -> AsyncIterator[dict[str, Any]]:
        """Yields events about new records that match the filters."""
        try:
            async for event in self._require_reader().tail(filters):
                yield event
        except LogEngineError as error:
            raise UnavailableError(f"the log store does not answer: {error}") from None

    async def append(self, frames: Iterable[NewFrame]) -> None:
        """Writes frames to the spool; they are visible in the log store within about a second."""
        if self._spool is None:
            raise NotFoundError(DISABLED_MESSAGE)
        try:
            await asyncio.to_thread(self._spool.append, list(frames))
        except OSError as error:
            raise UnavailableError(f"logs cannot be written for now: {error.strerror}") from None

    def _require_reader(self) -> LogReader:
        if self._reader is None:
            raise NotFoundError(DISABLED_MESSAGE)
        return self._reader
