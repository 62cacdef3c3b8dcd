"""Log worker under the real supervisor: records of the spool are stored once, also after it is killed at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from penstock.logs import spool_format as spool
from penstock.logs.client import LogClient
from penstock.logs.query import GetQuery, ListQuery, LogFilters
from penstock.logs.spool_writer import NewFrame, SpoolWriter
from tests.integration.serving import log_worker_pid, read_metrics, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.gateway import Gateway

ORGANISATION = "0199aaaa-0000-7000-8000-000000000001"
WORKSPACE = "0199aaaa-0000-7000-8000-000000000002"
KILL_COUNT = int(os.environ.get("PENSTOCK_KILLS", "12"))
TABLES = {"metrics": {"enabled": True}, "log_store": {"enabled": True}}


def make_record(**fields: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".000Z",
        "organisation_id": ORGANISATION,
        "workspace_id": WORKSPACE,
        "workspace_slug": "red",
        "ai_org": "openai",
        "ai_model": "m",
        "response_status_code": 200,
        "outcome": "complete",
        "total_units": 3,
        "body": "complete",
        **fields,
    }


def frames_of(record: dict[str, Any], *, with_bodies: bool = True) -> list[NewFrame]:
    name = uuid.UUID(record["id"]).bytes
    bodies = [
        NewFrame(spool.CLIENT_REQUEST, name, json.dumps({"question": record["id"]}).encode()),
        NewFrame(spool.UPSTREAM_RESPONSE, name, b"answer"),
    ]
    begin = NewFrame(spool.BEGIN, name, json.dumps({"created_at": record["created_at"]}).encode())
    return [begin, *(bodies if with_bodies else []), NewFrame(spool.END, name, json.dumps(record).encode())]


def open_spool(gateway: Gateway, writer: str = "edge-9") -> SpoolWriter:
    return SpoolWriter(str(gateway.folder / "store" / "spool"), writer, "node-1")


def ask(gateway: Gateway, lookup: Callable[[LogClient], Any]) -> Any:
    (socket_path,) = gateway.temporary.rglob("logs.sock")

    async def run() -> Any:
        client = LogClient(str(socket_path))
        try:
            return await lookup(client)
        finally:
            await client.close()

    return asyncio.run(run())


def stored_records(gateway: Gateway) -> list[dict[str, Any]]:
    """Returns all records of the log store, page by page."""

    async def read_pages(client: LogClient) -> list[dict[str, Any]]:
        actual, cursor = [], None
        while True:
            query = ListQuery(filters=LogFilters(organisation_id=ORGANISATION), cursor=cursor, limit=1000)
            page = await client.run(query, 10)
            actual += page["data"]
            if not (cursor := page["next_cursor"]):
                return actual

    return ask(gateway, read_pages)


def wait_for_stored(gateway: Gateway, count: int, seconds: float = 10) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]] | None:
        try:
            actual = stored_records(gateway)
        except Exception as error:  # the log worker may be starting
            if "log worker" in str(error) or "not open" in str(error):
                return None
            raise
        return actual if len(actual) >= count else None

    return wait_for(f"{count} stored records", read, seconds)


def test_record_is_visible_with_its_bodies_in_time(tmp_path: Path):
    with run_gateway(tmp_path, TABLES) as gateway:
        writer = open_spool(gateway)
        writer.append(frames_of(make_record()))
        wait_for_stored(gateway, 1)
        record = make_record()
        started_at = time.monotonic()
        writer.append(frames_of(record))
        wait_for_stored(gateway, 2, 5)
        assert time.monotonic() - started_at < 1.5
        query = GetQuery(organisation_id=ORGANISATION, id=record["id"])
        actual = ask(gateway, lambda client: client.run(query, 5))
        assert (actual["record"]["workspace_slug"], actual["record"]["node"]) == ("red", "node-1")
        bodies = ask(gateway, lambda client: client.get_bodies(record["id"], ORGANISATION))
        assert bodies == {
            "client_request": b'{"question": "%b"}' % record["id"].encode(),
            "upstream_response": b"answer",
        }
        assert [line["id"] for line in gateway.records(2)][1] == record["id"]
        words = LogFilters(organisation_id=ORGANISATION, q=record["id"])
        page = ask(gateway, lambda client: client.run(ListQuery(filters=words), 5))
        assert [row["id"] for row in page["data"]] == [record["id"]]
        wait_for("the size of the spool", lambda: read_metrics(gateway)["penstock_log_spool_bytes"] > 0 or None)
        metrics = read_metrics(gateway)
        assert metrics["penstock_log_worker_up"] == metrics["penstock_log_store_up"] == 1
        assert metrics["penstock_log_records_stored_total"] == 2


@pytest.mark.slow(37)
def test_kills_of_the_log_worker_lose_and_double_nothing(tmp_path: Path):
    tables = {
        **TABLES,
        "records": {"rotate_bytes": 60_000, "max_rotated_files": 1000, "path": str(tmp_path / "records.jsonl")},
    }
    with run_gateway(tmp_path, tables) as gateway:
        writer = SpoolWriter(str(tmp_path / "store" / "spool"), "edge-9", "node-1", segment_bytes=100_000)
        expected: list[str] = []
        chance = random.Random(7)  # noqa: S311 - moments of kills
        for _ in range(KILL_COUNT):
            until = time.monotonic() + chance.uniform(0.2, 1.2)
            while time.monotonic() < until:
                records = [make_record() for _ in range(5)]
                # Frames of concurrent requests interleave.
                writer.append(frame for group in zip(*map(frames_of, records), strict=True) for frame in group)
                expected += [record["id"] for record in records]
                time.sleep(0.005)
            os.kill(log_worker_pid(gateway), signal.SIGKILL)
        for_stored = wait_for_stored(gateway, len(expected), 60)
        assert sorted(row["id"] for row in for_stored) == sorted(expected)
        wait_for("the record file", lambda: len(file_ids(tmp_path)) >= len(expected) or None, 20)
        assert sorted(file_ids(tmp_path)) == sorted(expected)
        for name in (expected[0], expected[len(expected) // 2], expected[-1]):
            bodies = ask(gateway, lambda client, name=name: client.get_bodies(name, ORGANISATION))
            assert bodies["client_request"] == json.dumps({"question": name}).encode()
        spool_folder = tmp_path / "store" / "spool" / "edge-9"
        wait_for("deletion of segments", lambda: len(list(spool_folder.glob("*.seg"))) <= 2 or None, 10)


def file_ids(folder: Path) -> list[str]:
    lines = [line for path in folder.glob("records.jsonl*") if "position" not in path.name
             for line in path.read_bytes().split(b"\n")[:-1]]  # fmt: skip
    return [json.loads(line)["id"] for line in lines]


def test_frames_written_before_the_stop_are_read_before_the_end(tmp_path: Path):
    records = [make_record() for _ in range(3000)]
    with run_gateway(tmp_path, TABLES) as gateway:
        writer = open_spool(gateway)
        for record in records:
            writer.append(frames_of(record))
        writer.close()
    assert sorted(file_ids(tmp_path)) == sorted(record["id"] for record in records)


def test_requests_refused_without_a_key_are_in_a_file_of_their_own(tmp_path: Path):
    with run_gateway(tmp_path, TABLES) as gateway:
        writer = open_spool(gateway)
        record = make_record(organisation_id=None)
        name = uuid.UUID(record["id"]).bytes
        writer.append([NewFrame(spool.END, name, json.dumps(record).encode(), spool.REFUSED)])
        writer.append(frames_of(make_record()))
        assert [line["id"] for line in gateway.refused_records()] == [record["id"]]
        assert len(gateway.records(1)) == 1
        assert len(wait_for_stored(gateway, 1)) == 1


def test_metrics_access_log_and_refused_requests_need_no_record_file(tmp_path: Path):
    tables = {**TABLES, "records": {"file": False, "path": str(tmp_path / "records.jsonl")}, "log": {"access": True}}
    with run_gateway(tmp_path, tables) as gateway:
        writer = open_spool(gateway)
        good, late, refused = make_record(), make_record(total_units=None), make_record(response_status_code=401)
        *before, end = frames_of(late)
        writer.append([*frames_of(good), *before, end._replace(flags=spool.AMENDMENT_FOLLOWS)])
        name = uuid.UUID(refused["id"]).bytes
        writer.append([NewFrame(spool.END, name, json.dumps(refused).encode(), spool.REFUSED)])
        assert [line["id"] for line in gateway.refused_records()] == [refused["id"]]
        assert len(wait_for_stored(gateway, 2)) == 2
        writer.append([NewFrame(spool.AMEND, uuid.UUID(late["id"]).bytes, b'{"total_units":7}')])
        # Three tokens of the first request, three of the rejected one, and seven that became known later.
        wait_for("the late usage", lambda: read_metrics(gateway).get("llm_token_sum") == 13 or None)
        assert read_metrics(gateway)["request_count_total"] == 3
        output = gateway.program.read_output()
        assert not gateway.records_file.exists()
    assert all(f"id={record['id']}" in output for record in (good, late, refused))


def test_late_usage_is_part_of_the_record(tmp_path: Path):
    with run_gateway(tmp_path, TABLES) as gateway:
        writer = open_spool(gateway)
        record = make_record()
        del record["total_units"]
        *before, end = frames_of(record)
        writer.append([*before, end._replace(flags=spool.AMENDMENT_FOLLOWS)])
        time.sleep(0.2)
        amendment = b'{"total_units":7,"cost_nanodollars":5000}'
        writer.append([NewFrame(spool.AMEND, uuid.UUID(record["id"]).bytes, amendment)])
        (line,) = gateway.records(1)
        assert (line["id"], line["total_units"], line["cost_nanodollars"]) == (record["id"], 7, 5000)
        wait_for(
            "the amended cost",
            lambda: [row["total_units"] for row in wait_for_stored(gateway, 1)] == [7] or None,
        )


def test_live_tail_sends_matching_records(tmp_path: Path):
    with run_gateway(tmp_path, TABLES) as gateway:
        writer = open_spool(gateway)
        writer.append(frames_of(make_record()))
        wait_for_stored(gateway, 1)

        async def follow(client: LogClient) -> list[dict[str, Any]]:
            events = client.tail(LogFilters(organisation_id=ORGANISATION, ai_model=["wanted"]))
            actual: list[dict[str, Any]] = []

            async def collect() -> None:
                async for event in events:
                    actual.append(event)
                    if len(actual) >= 2:
                        return

            task = asyncio.create_task(collect())
            await asyncio.sleep(0.5)
            for model in ("other", "wanted", "other", "wanted"):
                writer.append(frames_of(make_record(ai_model=model)))
            await asyncio.wait_for(task, 5)
            return actual

        actual = ask(gateway, follow)
        assert [event["log"]["ai_model"] for event in actual] == ["wanted", "wanted"]


def test_gateway_serves_while_its_log_worker_is_killed(tmp_path: Path):
    with run_gateway(tmp_path, TABLES) as gateway:
        for _ in range(4):
            os.kill(log_worker_pid(gateway), signal.SIGKILL)
            time.sleep(0.2)
            assert httpx2.get(f"{gateway.base_url}/ready").status_code == 200
