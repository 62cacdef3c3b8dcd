"""Durability of acknowledged writes. The control process is killed at random moments during its writes, and no
acknowledged write is lost.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from penstock.app import create_app
from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.settings import Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.build import Snapshot, SnapshotChannel
from penstock.store.database import Database
from penstock.store.migrate import migrate
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS
from tests.integration.serving import control_pid, run_gateway, run_load
from tests.postgres import find_program
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.gateway import Mock
    from tests.postgres import Postgres

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

# Number of kills; set `PENSTOCK_KILLS` for a longer run of, for example, 1,000.
KILL_COUNT = int(os.environ.get("PENSTOCK_KILLS", "40"))
SHORTEST, LONGEST = 0.0, 0.03
WRITER_COUNT = 4
MASTER_KEY = base64.b64encode(bytes(32)).decode()


class ForkedApp:
    """The control process's application without its server, in a forked process that can be killed at any moment."""

    def __init__(self, settings: Settings, workspace: str) -> None:
        # The app opens nothing before its first use, so each process opens its own connections.
        self._app: Any = create_app(settings, SnapshotChannel(Snapshot()))
        self._workspace = workspace

    def fork_writer(self) -> tuple[int, int]:
        """Forks; returns the child's process id and the pipe to which it writes each acknowledged slug."""
        out, into = os.pipe()
        child = os.fork()
        if child:
            os.close(into)
            return child, out
        # The child must end here in every case.
        try:
            os.close(out)
            asyncio.run(self._run_writers(into))
        finally:
            os._exit(1)

    async def _run_writers(self, into: int) -> None:
        async def write_configs() -> None:
            while True:
                slug = await self._create_config()
                os.write(into, f"{slug}\n".encode())

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITER_COUNT):
                group.create_task(write_configs())

    async def _create_config(self) -> str:
        body = {"name": "kept", "config": {"provider": "mock"}, "workspace_id": self._workspace}
        fields = {"host": "control", "x-gateway-api-key": ADMIN_KEY, "content-type": "application/json"}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/configs",
            "raw_path": b"/v1/configs",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "state": {},
        }
        content: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message: Any) -> None:
            content.append(message)

        await self._app(scope, receive, send)
        assert content[0]["status"] == 200, content
        return json.loads(content[1]["body"])["slug"]


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/penstock.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create_database()


@pytest.fixture
def app(address: str) -> ForkedApp:
    settings = Settings(store=Store(url=Secret(address), master_key=Secret(MASTER_KEY)))

    async def init_database() -> str:
        database = Database(settings.store, Secret(address))
        await migrate(database)
        await bootstrap_organisation(database, Secret(ADMIN_KEY))
        async with database.read_connection() as connection:
            workspace = await connection.exec_driver_sql("SELECT id FROM workspaces")
            found_id = str(workspace.scalar_one())
        await database.close()
        return found_id

    return ForkedApp(settings, asyncio.run(init_database()))


def read_stored_slugs(address: str) -> set[str]:
    """Returns the stored slugs, read directly from the database."""
    query = "SELECT slug FROM configs"
    if address.startswith("sqlite"):
        connection = sqlite3.connect(address.removeprefix("sqlite:///"))
        try:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            return {slug for (slug,) in connection.execute(query)}
        finally:
            connection.close()
    name, _, host = address.removeprefix("postgresql://penstock@/").partition("?host=")
    command = [find_program("psql"), "-h", host, "-U", "penstock", "-d", name, "-Atc", query]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.split())


def collect_acknowledged_slugs(app: ForkedApp, chance: random.Random) -> list[str]:
    """Kills the child at a random time after its first acknowledgement, and returns all slugs that it acknowledged."""
    child, out = app.fork_writer()
    with os.fdopen(out, "rb") as pipe:
        content = pipe.readline()
        time.sleep(chance.uniform(SHORTEST, LONGEST))
        os.kill(child, signal.SIGKILL)
        # A slug without its newline was not acknowledged.
        content += pipe.read()
    os.waitpid(child, 0)
    return [line.decode() for line in content.split(b"\n")[:-1]]


@pytest.mark.timeout(60 + 2 * KILL_COUNT)
def test_acknowledged_writes_survive_a_kill_at_any_moment(app: ForkedApp, address: str):
    chance = random.Random(5)  # noqa: S311 - when to kill is no secret
    gc.freeze()
    content: list[str] = []
    for _ in range(KILL_COUNT if address.startswith("sqlite") else max(1, KILL_COUNT // 4)):
        some = collect_acknowledged_slugs(app, chance)
        assert some
        content += some
    there = read_stored_slugs(address)
    print(f"{len(content)} acknowledged writes, {len(there)} there")
    assert not set(content) - there
    # A write in progress at a kill may or may not be stored, so at most that many more rows exist.
    assert len(there) <= len(content) + KILL_COUNT * WRITER_COUNT


class ConfigWriters:
    """Creates configs through the gateway until stopped, and collects the acknowledged slugs."""

    def __init__(self, admin: Client, workspace: str) -> None:
        self.said: list[str] = []
        self.statuses: set[int] = set()
        self._admin = admin
        self._workspace = workspace
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._create_configs) for _ in range(WRITER_COUNT)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _create_configs(self) -> None:
        while not self._over.is_set():
            body = {"name": "kept", "config": {"provider": "mock"}, "workspace_id": self._workspace}
            response = self._admin.post("/v1/configs", body)
            self.statuses.add(response.status)
            if response.status == 200:
                self.said.append(response.json()["slug"])


@pytest.fixture
def gateway_env(address: str) -> Mapping[str, str]:
    return {"PENSTOCK_STORE_URL": address, "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}


def test_repeated_control_process_kills_fail_no_request(
    app: ForkedApp, address: str, gateway_env: Mapping[str, str], tmp_path: Path, provider: Mock
):
    assert app
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=gateway_env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        body = {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace["id"]}
        key = admin.create("/v1/api-keys/workspace/service", body)["key"]
        headers = {**MOCK_HEADERS, "x-gateway-api-key": key}
        time.sleep(0.5)
        with (
            run_load("rate", gateway.base_url + CHAT_PATH, rate=50, connections=4, seconds=4, headers=headers) as calls,
            ConfigWriters(admin, workspace["id"]) as writers,
        ):
            for _ in range(3):
                before = len(writers.said)
                wait_for("writes", lambda before=before: len(writers.said) > before + 5 or None, 10)
                os.kill(control_pid(gateway), signal.SIGKILL)
        assert calls["errors"] == 0, calls
        assert writers.statuses <= {200, 503}, writers.statuses
        wait_for("the control process", lambda: admin.get("/v1/workspaces").status == 200 or None, 15)
    assert not set(writers.said) - read_stored_slugs(address)
