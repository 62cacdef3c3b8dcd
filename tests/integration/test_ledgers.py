"""Clients, provider and log store must agree on which requests there were, although every process is killed and every
server has outages meanwhile.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import duckdb
import pytest
import zstandard

from penstock.logs.packs import decode_bodies
from penstock.logs.spool_format import MEBIBYTE
from tests.bootstrapped_store import ADMIN_KEY, create_database
from tests.gateway import ROOT
from tests.integration.amazon import run_moto_program
from tests.integration.ledger_traffic import CountingProvider
from tests.integration.management_client import Client
from tests.integration.serving import has_usual_priority, is_log_worker, read_metrics, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.gateway import Gateway
    from tests.postgres import Postgres
    from tests.processes import Program
    from tests.redis_server import RedisServer

# Number of requests that all clients send together.
REQUESTS = int(os.environ.get("PENSTOCK_LEDGER_REQUESTS", "200000"))
# Number of kills of edge workers. The log worker and the control process are killed half as often.
KILLS = int(os.environ.get("PENSTOCK_LEDGER_KILLS", "20"))
CLIENTS, WORKERS = 2, 2
REGION, BUCKET = "eu-west-1", "bodies"
OUTAGE_SECONDS = 2.0
SETTLE_SECONDS = 180
# Maximum time until a killed process is replaced.
RESTART_SECONDS = 30
MASTER_KEY = "A" * 43 + "="


class Disturbances:
    """Kills processes and freezes servers in a fixed random order until the clients are done."""

    def __init__(
        self, gateway: Gateway, outages: dict[str, Callable[[], contextlib.AbstractContextManager[None]]]
    ) -> None:
        self.done: collections.Counter[str] = collections.Counter()
        self._gateway, self._outages = gateway, outages
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._chance = random.Random(25)  # noqa: S311 - the order is no secret
        self._plan = ["edge"] * KILLS + ["log worker", "control"] * (KILLS // 2) + list(outages) * max(1, KILLS // 8)
        self._chance.shuffle(self._plan)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            for name in self._plan:
                if self._over.wait(self._chance.uniform(0.2, 1.5)):
                    return
                if name in self._outages:
                    with self._outages[name]():
                        self._over.wait(OUTAGE_SECONDS)
                else:
                    self._kill(name)
                self.done[name] += 1
        except Exception as error:  # noqa: BLE001 - raised in the thread of the test
            self._failure = error

    def _kill(self, name: str) -> None:
        """Kills a process as soon as all of them run again. Finds them through the operating system, because the
        gateway may be busy.
        """
        started = time.monotonic()
        pids = wait_for(f"the processes before a kill of {name}", self._find_processes, RESTART_SECONDS)
        print(f"{name} is killed after {time.monotonic() - started:.1f} s")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(pids[name]), signal.SIGKILL)

    def _find_processes(self) -> dict[str, list[int]] | None:
        """Returns the pids of each kind of process; `None` if one of them does not run."""
        pids: dict[str, list[int]] = collections.defaultdict(list)
        for pid in self._gateway.pids().keys() - {self._gateway.program.pid}:
            # The control process has a lower priority than the edge workers.
            name = "log worker" if is_log_worker(pid) else "edge" if has_usual_priority(pid) else "control"
            pids[name].append(pid)
        expected = {"edge": WORKERS, "control": 1, "log worker": 1}
        return pids if {name: len(numbers) for name, numbers in pids.items()} == expected else None


@contextlib.contextmanager
def suspended(suspend: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    suspend()
    try:
        yield
    finally:
        resume()


def freeze_program(program: Program) -> contextlib.AbstractContextManager[None]:
    return suspended(lambda: os.kill(program.pid, signal.SIGSTOP), lambda: os.kill(program.pid, signal.SIGCONT))


def start_client(gateway: Gateway, number: int, headers: dict[str, str]) -> subprocess.Popen[str]:
    options = {"url": gateway.base_url, "count": REQUESTS // CLIENTS, "name": f"c{number}", "headers": headers}
    command = [sys.executable, "-m", "tests.integration.ledger_traffic", json.dumps(options)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT)


class LoggedRecord(NamedTuple):
    """Fields of a record in the log store, with the location of its bodies."""

    trace_id: str
    outcome: str
    body: str
    key: str | None
    offset: int
    length: int
    tokens: int | None
    limits: str | None


def read_logged(folder: Path) -> dict[str, list[LoggedRecord]]:
    """Returns the records of each trace, read from the files of the stopped log store."""
    logged: dict[str, list[LoggedRecord]] = collections.defaultdict(list)
    location = ", ".join(
        f"coalesce(a.{name}, r.{name})" for name in ("body_key", "body_offset", "body_length", "total_units")
    )
    with duckdb.connect(folder / "records.duckdb", read_only=True) as connection:
        columns = "id, trace_id, outcome, body, body_key, body_offset, body_length, total_units, limits"
        sources = [f"SELECT {columns} FROM records"]  # noqa: S608 - as below
        sources += [f"SELECT {columns} FROM '{path}'" for path in (folder / "days").glob("*.parquet")]  # noqa: S608 - a path of the test
        rows = connection.execute(
            f"SELECT r.trace_id, r.outcome, r.body, {location}, r.limits FROM ({' UNION ALL '.join(sources)}) AS r "  # noqa: S608 - as above
            "LEFT JOIN amendments AS a USING (id)"
        )
        for row in rows.fetchall():
            logged[row[0]].append(LoggedRecord(*row))
    return logged


def check_bodies(records: Iterable[LoggedRecord], read_file: Callable[[str], bytes]) -> None:
    """Reads the bodies of all records back. Each must have the body of its own request."""
    by_key: dict[str, list[LoggedRecord]] = collections.defaultdict(list)
    for record in records:
        if record.body == "complete":
            assert record.key, f"{record} has no bodies"
            by_key[record.key].append(record)
    assert by_key, "no record has bodies"
    for key, stored in by_key.items():
        content = read_file(key)
        for record in stored:
            packed = content[record.offset : record.offset + record.length]
            bodies = decode_bodies(zstandard.ZstdDecompressor().decompress(packed, max_output_size=MEBIBYTE))
            assert json.loads(bodies["client_request"])["user"] == record.trace_id, record
    print(f"{sum(map(len, by_key.values()))} bodies in {len(by_key)} files")


@pytest.mark.figures
@pytest.mark.timeout(1800)
def test_ledgers_agree_through_kills_and_outages(tmp_path: Path, own_postgres: Postgres, redis: RedisServer):
    database = own_postgres.create_database()
    create_database(database)
    with CountingProvider() as provider, run_moto_program(tmp_path) as (moto, moto_url):
        keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "aws-canary-0123456789"}
        bucket = {"Bucket": BUCKET, "CreateBucketConfiguration": {"LocationConstraint": REGION}}
        s3 = boto3.client("s3", region_name=REGION, endpoint_url=moto_url, **keys)  # type: ignore[arg-type]
        s3.create_bucket(**bucket)  # type: ignore[arg-type]
        tables = {
            "server": {"workers": WORKERS},
            "mock": {"host": provider.url},
            "redis": {"url": redis.url},
            "metrics": {"enabled": True},
            "log_store": {"enabled": True, "bodies": f"s3://{BUCKET}/logs", "s3_endpoint_url": moto_url},
        }
        env = {
            **{name.upper(): value for name, value in keys.items()},
            "AWS_REGION": REGION,
            "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
            "PENSTOCK_STORE_URL": database,
            "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY,
        }
        with run_gateway(tmp_path, tables, env=env) as gateway:
            admin = Client(gateway)
            workspace = admin.create("/v1/admin/workspaces", {"name": "ledgers"})["id"]
            key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
            headers = {"x-gateway-api-key": key, "x-gateway-provider": "mock"}
            budget = create_budget(admin, workspace)
            disturbances = Disturbances(
                gateway,
                {
                    "PostgreSQL": lambda: suspended(own_postgres.suspend, own_postgres.resume),
                    "Redis": lambda: suspended(redis.suspend, redis.resume),
                    "S3": lambda: freeze_program(moto),
                },
            )
            started = time.monotonic()
            clients = [start_client(gateway, number, headers) for number in range(CLIENTS)]
            with disturbances:
                reports = [json.loads(client.communicate()[0]) for client in clients]
            seconds = time.monotonic() - started
            wait_for("readiness after the last kill", gateway.is_ready, 60)
            wait_until_read(gateway)
            used = wait_for_usage(admin, budget)
        logged = read_logged(tmp_path / "store" / "records")
        check_ledgers(reports, provider.served, logged)
        counted = [
            record.tokens or 0 for record in itertools.chain(*logged.values()) if budget in (record.limits or "")
        ]
        assert len(counted) > REQUESTS // 2
        assert used == sum(counted)

        def read_file(key: str) -> bytes:
            """Returns a file that is in the bucket, or that waits for its upload."""
            waiting = tmp_path / "store" / "waiting" / key
            if waiting.exists():
                return waiting.read_bytes()
            return s3.get_object(Bucket=BUCKET, Key=f"logs/{key}")["Body"].read()

        check_bodies(itertools.chain(*logged.values()), read_file)
    print(f"{REQUESTS} requests in {seconds:.0f} s, {dict(disturbances.done)}")
    assert disturbances.done["edge"] == KILLS, "the clients were done before the last kill; send more requests"


def create_budget(admin: Client, workspace: str) -> str:
    """Creates a budget of tokens that no request exhausts; returns its id."""
    fields = {"name": "all", "conditions": [{"key": "model", "value": "*"}], "group_by": [{"key": "workspace_id"}]}
    limit = {"type": "tokens", "credit_limit": 10**12, "workspace_id": workspace}
    return admin.create("/v1/policies/usage-limits", {**fields, **limit})["id"]


def wait_for_usage(admin: Client, budget: str) -> int:
    """Returns the usage of the budget, once it no longer changes."""
    usages: list[int] = []

    def read_usage() -> int | None:
        rows = admin.read(f"/v1/policies/usage-limits/{budget}?include_usage=true")["value_key_usage_map"]
        usages.append(sum(row["current_usage"] for row in rows.values()))
        time.sleep(1)
        return usages[-1] if usages[-4:] == usages[-1:] * 4 else None

    return wait_for("the usage of the budget", read_usage, SETTLE_SECONDS)


def wait_until_read(gateway: Gateway) -> None:
    """Waits until the log store has everything that is in the spool."""

    def is_read() -> bool | None:
        return read_metrics(gateway).get("penstock_log_worker_lag_seconds") == 0 or None

    # Three checks, because a log worker that has just started may report no lag.
    for _ in range(3):
        wait_for("the log worker", is_read, SETTLE_SECONDS)
        time.sleep(1)


def check_ledgers(reports: list[dict[str, Any]], served: list[str], logged: dict[str, list[LoggedRecord]]) -> None:
    sent = {trace_id for report in reports for trace_id in report["sent"]}
    acknowledged = {trace_id for report in reports for trace_id in report["acknowledged"]}
    outcomes = collections.Counter(record.outcome for actual in logged.values() for record in actual)
    print(f"sent {len(sent)}, acknowledged {len(acknowledged)}, at the provider {len(served)}, logged {outcomes}")
    missing = (acknowledged | set(served)) - logged.keys()
    assert not missing, f"{len(missing)} without a record, such as {sorted(missing)[:5]}"
    doubled = [trace_id for trace_id, actual in logged.items() if len(actual) > 1]
    assert not doubled, f"{len(doubled)} with two records, such as {doubled[:5]}"
    assert logged.keys() <= sent
    assert len(served) == len(set(served)), "the provider received a request twice"
    incomplete = [trace_id for trace_id in acknowledged if logged[trace_id][0].outcome != "complete"]
    assert not incomplete, f"{len(incomplete)} acknowledged, but not complete, such as {incomplete[:5]}"
