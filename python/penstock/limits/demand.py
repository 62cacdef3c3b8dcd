"""Reads the logs for a simulation of proposed limits. Also counts the requests that existing limits rejected."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.query import MAX_USAGE_ROWS, DemandQuery, LogFilters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime

    from penstock.log_api.service import LogService
    from penstock.log_api.visibility import LogAccess

# Maximum number of logs that one request reads, and maximum time in which it reads them. The edge worker waits 30
# seconds.
MAX_ROWS, MAX_SECONDS = 500_000, 15.0
# Time range of one query. It is short, because the log store sorts all rows of the range.
SLICE = timedelta(days=1)
# Maximum number of `RefusedGroup` entries in one response.
MAX_REFUSED_GROUPS = 10_000


class DemandReader:
    """Reads the logs of a range of time, the oldest first."""

    def __init__(self, log_service: LogService, access: LogAccess, start: datetime, end: datetime) -> None:
        """Stores the log store, the caller's access to it, and the time range."""
        self._logs, self._access, self._start, self._end = log_service, access, start, end
        self.is_complete = True

    async def read_pages(
        self, metadata_keys: Sequence[str] = (), *, only_limited: bool = False
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yields pages of rows, with the columns of `engines.demand`. If there are too many, stops early and sets
        `is_complete` to false.
        """
        deadline, count, start = asyncio.get_running_loop().time() + MAX_SECONDS, 0, self._start
        while start < self._end:
            until = min(start + SLICE, self._end)
            filters = LogFilters(
                organisation_id=self._access.organisation_id,
                workspace_ids=self._access.workspace_ids,
                restricted_to=self._access.restriction,
                time_of_generation_min=start,
                # The filter includes both ends, so a slice must end before the next one starts.
                time_of_generation_max=until - timedelta(milliseconds=1) if until < self._end else until,
            )
            cursor: str | None = None
            while True:
                query = DemandQuery(
                    filters=filters, metadata_keys=list(metadata_keys), only_limited=only_limited, cursor=cursor
                )
                page = await self._logs.run(query)
                count += len(page["data"])
                yield page["data"]
                cursor = page["next_cursor"]
                is_late = asyncio.get_running_loop().time() > deadline
                if (is_late or count > MAX_ROWS - MAX_USAGE_ROWS) and (cursor is not None or until < self._end):
                    self.is_complete = False
                    return
                if cursor is None:
                    break
            start = until


class RefusedGroup(msgspec.Struct, kw_only=True):
    """Requests of one API key and group that one limit rejected, or would have rejected in a dry run. Times are in Unix
    milliseconds.
    """

    limit_id: str
    value_key: str
    api_key_id: str | None
    api_key_name: str | None
    refused: int = 0
    would_reject: int = 0
    first_seen: int = 0
    last_seen: int = 0


class _Rejection(msgspec.Struct):
    id: str
    group: str = ""
    dry_run: bool = False


class _RecordedLimits(msgspec.Struct):
    rejections: list[_Rejection] = []


async def list_refusals(reader: DemandReader) -> list[RefusedGroup]:
    """Counts the requests that limits rejected, by limit, group and API key."""
    groups: dict[tuple[str, str, str | None], RefusedGroup] = {}
    async for rows in reader.read_pages(only_limited=True):
        for row in rows:
            for rejection in msgspec.convert(row["limits"], _RecordedLimits).rejections:
                key = rejection.id, rejection.group, row["api_key_id"]
                if key not in groups and len(groups) >= MAX_REFUSED_GROUPS:
                    reader.is_complete = False
                    continue
                group = groups.setdefault(
                    key,
                    RefusedGroup(
                        limit_id=rejection.id,
                        value_key=rejection.group,
                        api_key_id=row["api_key_id"],
                        api_key_name=row["api_key_name"],
                        first_seen=row["at"],
                    ),
                )
                if rejection.dry_run:
                    group.would_reject += 1
                else:
                    group.refused += 1
                group.last_seen = max(group.last_seen, row["at"])
    return list(groups.values())
