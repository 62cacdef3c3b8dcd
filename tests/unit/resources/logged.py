"""Test harness of logs and analytics: a management API with a spool and a real log store, in one process."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.log_api.service import LogService
from penstock.logs.batch import BodyLocation
from penstock.logs.engines.duckdb import DuckDbEngine
from penstock.logs.ingest import StoreIngest
from penstock.logs.packs import PackStore, PackWriter
from penstock.logs.query import GetQuery
from penstock.logs.spool_format import CLIENT_REQUEST, END, UPSTREAM_HEAD, UPSTREAM_RESPONSE
from penstock.logs.spool_writer import NewFrame, SpoolWriter
from penstock.logs.tail import LiveTail
from tests.unit.resources.management_api import ManagementClient, management_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from penstock.logs.query import LogFilters, LogQuery
    from penstock.settings.secret import Secret

# Start of the requests that tests record.
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
RANGE = "time_of_generation_min=2026-11-20T00:00:00Z&time_of_generation_max=2026-11-21T00:00:00Z"


SETTINGS_FILE = "penstock.toml"


def write_prices(folder: Path, **prices: float) -> None:
    """Writes operator prices in cents per input token, by model, into the settings file. Output tokens are free."""
    (folder / SETTINGS_FILE).write_text(
        "".join(
            f'[[prices]]\nprovider = "openai"\nmodel = "{model}"\n[prices.pay_as_you_go]\n'
            f"request_token = {{ price = {price} }}\nresponse_token = {{ price = 0 }}\n"
            for model, price in prices.items()
        )
    )


class LocalLogs:
    """The log worker without its process: reads the spool before each query."""

    def __init__(self, folder: Path) -> None:
        self.spool = SpoolWriter(str(folder / "spool"), "control", "node")
        self._edge_spool = SpoolWriter(str(folder / "spool"), "edge-1", "node")
        self._engine = DuckDbEngine(folder / "store")
        self._engine.open()
        self._packs = PackStore(
            PackWriter(str(folder / "bodies"), "packs", is_remote=False, limit_bytes=2**30),
            None,
            None,  # pyright: ignore[reportArgumentType]
        )
        self._tail = LiveTail()
        self._ingest = StoreIngest(self._engine, str(folder / "spool"), self._packs.writer, self._tail.publish)
        # Raised by the next query, if set.
        self.failure: Exception | None = None
        self.queries: list[LogQuery] = []

    def close(self) -> None:
        self.spool.close()
        self._edge_spool.close()
        self._ingest.close()
        self._engine.close()

    def flush(self) -> None:
        """Inserts what is in the spool."""
        while self._ingest.run_once():
            pass

    async def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        if self.failure:
            raise self.failure
        # Encodes and decodes the query, as the socket between the processes does.
        sent = msgspec.json.decode(msgspec.json.encode(query), type=type(query))
        self.queries.append(sent)
        self.flush()
        return msgspec.json.decode(msgspec.json.encode(self._engine.run(sent, timeout_seconds)))

    async def get_bodies(
        self, record_id: str, organisation_id: str, workspace_id: str | None = None
    ) -> Mapping[str, bytes]:
        if self.failure:
            raise self.failure
        self.flush()
        workspaces = [workspace_id] if workspace_id else None
        query = GetQuery(organisation_id=organisation_id, id=record_id, workspace_ids=workspaces)
        self.queries.append(query)
        actual = self._engine.run(query, 10)
        if actual["bodies"] is None:
            return {}
        return await self._packs.read(msgspec.convert(actual["bodies"], BodyLocation))

    async def tail(self, filters: LogFilters) -> AsyncIterator[dict[str, Any]]:
        with self._tail.subscribe(filters) as subscriber:
            while True:
                yield await subscriber.next_event(0.05)

    def record(self, bodies: tuple[Any, ...] | None = None, /, **fields: Any) -> str:
        """Writes the record of a request as an edge worker does; returns its id. `bodies` are those of the client's
        request and the provider's response, and the head of the request to the provider.
        """
        record_id = str(uuid.uuid4())
        after = fields.pop("after", timedelta())
        record = {
            "id": record_id,
            "created_at": (START + after).isoformat().replace("+00:00", "Z"),
            "trace_id": record_id,
            "request_method": "POST",
            "request_url": "/v1/chat/completions",
            "response_status_code": 200,
            "is_success": True,
            "outcome": "complete",
            "response_time": 100,
            "ai_org": "openai",
            "ai_model": "gpt-5",
            "mode": "single",
            "req_units": 10,
            "res_units": 5,
            "total_units": 15,
            "cost_nanodollars": 20_000_000,
            "cache_status": "miss",
            "retry_success_count": 0,
            "source": "gateway",
            **fields,
        }
        key = uuid.UUID(record_id).bytes
        frames = [
            NewFrame(kind, key, msgspec.json.encode(body))
            for kind, body in zip((CLIENT_REQUEST, UPSTREAM_RESPONSE, UPSTREAM_HEAD), bodies or (), strict=False)
        ]
        self._edge_spool.append([*frames, NewFrame(END, key, msgspec.json.encode(record))])
        return record_id


@asynccontextmanager
async def logged_client(
    url: Secret, folder: Path, service: LogService | None = None, **sections: Any
) -> AsyncIterator[tuple[ManagementClient, LocalLogs]]:
    """Runs the management API with logs. The settings file may have prices; `sections` are further settings."""
    logs = LocalLogs(folder)
    log_service = service or LogService(logs, logs.spool)
    file = folder / SETTINGS_FILE
    try:
        async with management_client(
            url, log_service=log_service, settings_file=str(file) if file.exists() else None, **sections
        ) as api:
            yield api, logs
    finally:
        logs.close()


def run_logged(
    url: Secret,
    folder: Path,
    scenario: Callable[[ManagementClient, LocalLogs], Awaitable[None]],
    service: LogService | None = None,
) -> None:
    """Runs a scenario against a management API with logs."""

    async def run() -> None:
        async with logged_client(url, folder, service) as (api, logs):
            await scenario(api, logs)

    asyncio.run(run())


async def open_workspace(api: ManagementClient, name: str = "w") -> dict[str, str]:
    """Creates a workspace; returns the fields that its records have."""
    workspace = await api.create_workspace(name)
    organisation = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
    return {"organisation_id": organisation, "workspace_id": workspace["id"], "workspace_slug": workspace["slug"]}
