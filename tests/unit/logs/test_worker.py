"""The log worker: queries of several tenants at once, and retention on a full disk."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from yarl import URL

from penstock.errors import UnavailableError
from penstock.logs.client import LogClient
from penstock.logs.engines.protocol import LogEngineError
from penstock.logs.messages import QueryRequest
from penstock.logs.query import GetQuery, ListQuery, LogFilters, Restriction
from penstock.logs.worker import NODE_NAME_FILE, LogWorker, list_scopes, read_node_name
from penstock.settings import Records, Settings
from tests.unit.logs.engine import MemoryEngine

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from penstock.logs.query import LogQuery


class SlowEngine(MemoryEngine):
    """Engine in which queries of the organisation `busy` wait for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.running = 0
        self.most_running = 0
        self.steps: list[str] = []

    def run(self, query: LogQuery, timeout_seconds: float) -> dict[str, Any]:
        assert timeout_seconds > 0
        if list_scopes(query)[0] == "busy":
            self.running += 1
            self.most_running = max(self.running, self.most_running)
            self.free.wait(10)
            self.running -= 1
        return {}

    def seal_days(self, now: dt.datetime) -> None:
        del now
        self.steps.append("seal")
        raise OSError(28, "No space left on device")

    def drop_before(self, records: dt.date, bodies: dt.date) -> None:
        del records, bodies
        self.steps.append("drop")


def make_worker(folder: Path, engine: SlowEngine) -> LogWorker:
    worker = LogWorker(Settings(records=Records(path=str(folder / "records.jsonl"))), engine)
    worker._is_open = True
    return worker


def make_request(organisation: str, workspace: str, seconds: float = 10) -> QueryRequest:
    filters = LogFilters(organisation_id=organisation, workspace_ids=[workspace])
    return QueryRequest(ListQuery(filters=filters), seconds)


def test_one_tenant_leaves_query_slots_to_others(tmp_path: Path):
    engine = SlowEngine()

    async def scenario() -> None:
        worker = make_worker(tmp_path, engine)
        busy = [
            asyncio.ensure_future(worker._run_query(make_request("busy", f"w{number % 5}"))) for number in range(50)
        ]
        await asyncio.wait_for(worker._run_query(make_request("other", "w")), 5)
        # A query that gets no slot in its time is given up, so that no queue of abandoned queries grows.
        with pytest.raises(LogEngineError, match="other queries are running"):
            await worker._run_query(make_request("busy", "w0", 0.05))
        engine.free.set()
        await asyncio.gather(*busy)

    asyncio.run(scenario())
    assert engine.most_running == 3


def test_workspaces_and_users_have_query_slots_of_their_own():
    filters = LogFilters(organisation_id="o", workspace_ids=["w1", "w2"], restricted_to=Restriction(user_ids=["u"]))
    assert list_scopes(ListQuery(filters=filters)) == ("o", "w1 w2 u")
    assert list_scopes(GetQuery(organisation_id="o", id="x")) == ("o", "*")


def test_bodies_are_read_in_the_query_slots_of_their_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    worker, client = make_worker(tmp_path, SlowEngine()), LogClient(str(tmp_path / "socket"))
    queries: list[LogQuery] = []

    async def run_query(requested: QueryRequest) -> dict[str, Any]:
        queries.append(requested.query)
        return {}

    async def send(_method: str, path: str, _seconds: float) -> bytes:
        request = SimpleNamespace(query=URL(path).query, match_info={"id": URL(path).path.split("/")[2]})
        response: Any = await worker._handle_bodies(request)  # pyright: ignore[reportArgumentType]
        return response.body

    monkeypatch.setattr(worker, "_run_query", run_query)
    monkeypatch.setattr(client, "_send", send)
    assert asyncio.run(client.get_bodies("x", "o&", "w 1")) == {}
    assert asyncio.run(client.get_bodies("x", "o")) == {}
    assert [list_scopes(query) for query in queries] == [("o&", "w 1"), ("o", "*")]


def test_nodes_with_the_same_host_name_have_different_names(tmp_path: Path):
    names = [read_node_name(tmp_path / folder) for folder in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith(os.uname().nodename) for name in names)


@pytest.mark.parametrize("content", ["", "\n"])
def test_node_with_an_empty_file_gets_a_name(tmp_path: Path, content: str):
    path = tmp_path / NODE_NAME_FILE
    path.write_text(content)
    name = read_node_name(tmp_path)
    assert name.startswith(os.uname().nodename)
    assert (read_node_name(tmp_path), list(tmp_path.iterdir())) == (name, [path])


def test_retention_deletes_before_it_needs_space(tmp_path: Path):
    engine = SlowEngine()

    async def scenario() -> None:
        worker = make_worker(tmp_path, engine)
        # It is not tried again at once.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker._run_retention(), 0.2)
        assert worker.metrics()["log_seal_failures"] == 1

    asyncio.run(scenario())
    assert engine.steps == ["drop", "seal"]


@pytest.mark.parametrize("error", [UnavailableError("no bucket"), PermissionError(13, "Permission denied")])
def test_records_are_deleted_although_bodies_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    engine = SlowEngine()
    worker = make_worker(tmp_path, engine)

    async def fail(_day: dt.date) -> int:
        raise error

    monkeypatch.setattr(worker._store, "delete_before", fail)
    asyncio.run(worker._delete_and_seal(engine))
    assert engine.steps == ["drop", "seal"]
