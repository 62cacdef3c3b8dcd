"""The database killed, frozen, locked, full or read-only under load: no call notices, and who would change something is told when to ask again."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.snapshot.publisher import KEPT_FILES
from tests.integration.conftest import run_init
from tests.integration.managed import ADMIN_KEY, Client, expect_ok
from tests.integration.serving import control_pid, run_gateway, run_load
from tests.integration.wire import CHAT, MOCK, ask, asked
from tests.postgres import Postgres
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.alone

SECONDS = 3
LONGEST_ANSWER = 8
DISK_BYTES = 128 << 20
STORELESS = ("/v1/health", "/v1/version", "/v1/pricing/openai.json", "/v1/model-configs/pricing/openai/gpt-4o")


class Scene:
    """A gateway with a key of an app, under load while something is wrong with its store."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.admin = Client(gateway)
        (self.place,) = self.admin.read("/v1/workspaces")["data"]
        body = {"name": "app", "scopes": ["completions.write"], "workspace_id": self.place["id"]}
        self.key = self.admin.create("/v1/api-keys/workspace/service", body)["key"]
        wait("the key", lambda: self.call() == 200 or None)

    def call(self) -> int:
        headers = {**MOCK, "x-gateway-api-key": self.key}
        return ask(self.gateway.base_url, CHAT, asked(), headers).status

    def writes(self) -> Iterator[tuple[str, str, object]]:
        """A create, a change, a sign-in: with a key that is known, and with one that is to be looked up."""
        yield "POST", "/v1/workspaces", {"name": "x"}
        yield "POST", "/v1/configs", {"name": "x", "config": {"provider": "mock"}, "workspace_id": self.place["id"]}
        yield "PUT", "/v1/admin/organisation/settings", {"block_inline_config": False}
        yield "POST", "/v1/auth/sessions", {"api_key": ADMIN_KEY}

    def refused(self) -> None:
        """Every write says 503 and when to ask again, in time, and never that nobody is known."""
        for method, path, body in self.writes():
            began = time.monotonic()
            answer = self.admin.send(method, path, body)
            assert answer.status == 503, (method, path, answer.status, answer.body)
            assert answer.get("retry-after") == "1"
            assert answer.json()["data"]["errorCode"] == "AB04"
            assert time.monotonic() - began < LONGEST_ANSWER

    def read(self) -> None:
        """What stands on no rows is read as ever; of the rest no read says that nobody is known, whoever asks."""
        for path in STORELESS:
            assert self.admin.get(path).status == 200, path
        for path in ("/v1/workspaces", "/v1/configs", f"/v1/workspaces/{self.place['id']}"):
            answer = self.admin.get(path)
            assert answer.status in {200, 503}, (path, answer.status, answer.body)
            assert answer.status == 200 or answer.get("retry-after") == "1"

    def under_load(self, spoil: Callable[[], None], mend: Callable[[], None]) -> dict[str, Any]:
        headers = {**MOCK, "x-gateway-api-key": self.key}
        url = self.gateway.base_url + CHAT
        with run_load("rate", url, rate=50, connections=4, seconds=SECONDS, headers=headers) as calls:
            spoil()
            try:
                wait("a write to be refused", lambda: self._is_refused() or None, 10)
                self.refused()
                self.read()
            finally:
                mend()
        assert calls["errors"] == 0, calls
        wait("the store", lambda: self.admin.post("/v1/workspaces", {"name": "again"}).status == 200 or None, 15)
        return calls

    def _is_refused(self) -> bool:
        status = self.admin.post("/v1/workspaces", {"name": "x"}).status
        assert status in {200, 503}, status
        return status == 503


@contextmanager
def scene(folder: Path, provider: Mock, url: str) -> Generator[Scene]:
    env: Mapping[str, str] = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    if url.startswith("postgresql"):
        run_init(folder, env)
    with run_gateway(folder, {"mock": {"host": provider.url}}, env=env) as gateway:
        yield Scene(gateway)


def models(client: Client) -> list[str]:
    return [model["id"] for model in client.read("/v1/models?ai_service=mock")["data"]]


def narrowed_key(admin: Client, place: dict[str, str]) -> str:
    """Make two integrations with a model each, and a key whose own config names the second."""
    for slug in ("a", "b"):
        admin.create(
            "/v1/integrations", {"name": slug, "slug": slug, "ai_provider_id": "mock", "key": "sk-01234567", **place}
        )
        rows = [{"slug": "m", "enabled": True, "is_custom": True}, {"slug": "off", "enabled": False, "is_custom": True}]
        expect_ok(admin.put(f"/v1/integrations/{slug}/models", {"models": rows, "allow_all_models": False}))
    config = admin.create("/v1/configs", {"name": "narrow", "config": {"provider": "@b"}, **place})["slug"]
    body = {"name": "narrow", "scopes": ["completions.write"], "defaults": {"config_id": config}, **place}
    return admin.create("/v1/api-keys/workspace/service", body)["key"]


def test_a_frozen_server_is_noticed_by_nobody_who_calls(tmp_path: Path, provider: Mock, own_postgres: Postgres):
    with scene(tmp_path, provider, own_postgres.database()) as here:
        here.under_load(own_postgres.freeze, own_postgres.thaw)


def test_a_server_that_takes_no_writes_is_noticed_by_nobody_who_calls(
    tmp_path: Path, provider: Mock, own_postgres: Postgres
):
    def switch(how: str) -> Callable[[], None]:
        return lambda: own_postgres.set("default_transaction_read_only", how)

    with scene(tmp_path, provider, own_postgres.database()) as here:
        here.under_load(switch("on"), switch("off"))


def test_a_killed_server_is_noticed_by_nobody_who_calls_and_a_node_starts_without_it(
    tmp_path: Path, provider: Mock, own_postgres: Postgres
):
    url = own_postgres.database()
    with scene(tmp_path, provider, url) as here:
        here.under_load(own_postgres.crash, own_postgres.start)
        signed_in = here.admin.post("/v1/auth/sessions", {"api_key": ADMIN_KEY})
        session = {"cookie": (signed_in.get("set-cookie") or "").split(";")[0]}
        assert Client(here.gateway, "", session).get("/v1/auth/self").status == 200
        ends = datetime.now(UTC) + timedelta(seconds=8)
        short = {"name": "short", "provider": "mock", "key": "sk-01234567", "expires_at": ends.isoformat()}
        slug = here.admin.create("/v1/virtual-keys", {**short, "workspace_id": here.place["id"]})["slug"]
        named = {"content-type": "application/json", "x-gateway-api-key": here.key, "x-gateway-provider": f"@{slug}"}
        assert ask(here.gateway.base_url, CHAT, asked(), named).status == 200
        key, place = here.key, {"workspace_id": here.place["id"]}
        narrow = narrowed_key(here.admin, place)
        clients = (Client(here.gateway, key), Client(here.gateway, narrow))
        listed = [sorted(set(models(client)) - {f"@{slug}/mock"}) for client in clients]
        assert listed == [["@a/m", "@b/m"], ["@b/m"]]
        own_postgres.crash()
        # Who signed in is somebody still.
        answer = Client(here.gateway, "", session).get("/v1/auth/self")
        assert (answer.status, answer.get("retry-after")) == (503, "1")
        assert [models(client) for client in clients] == listed
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    began = time.monotonic()
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        assert time.monotonic() - began < 2
        # What ends meanwhile ends, though nobody publishes that.
        time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds() + 1))
        assert ask(gateway.base_url, CHAT, asked(), named).status == 400
        answer = ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": key})
        assert answer.status == 200
        # Who is not known any more, or never was, cannot be told from who is.
        for who in (Client(gateway), Client(gateway, "nobody")):
            assert who.get("/v1/workspaces").status == 503
        assert all(Client(gateway).get(path).status == 200 for path in STORELESS)
        # Of models the last snapshot says which there are, to keys that it knows; of all else a key like that is told to ask again.
        clients = (Client(gateway, key), Client(gateway, narrow))
        assert [models(client) for client in clients] == listed
        assert Client(gateway, key).read("/v1/models/@a/m")["owned_by"] == "mock"
        for path in ("/v1/configs", "/v1/files", "/v1/models?workspace_id=another", "/v1/workspaces"):
            assert Client(gateway, key).get(path).status == 503, path
        assert Client(gateway, "nobody").get("/v1/models").status == 503
        for who in (Client(gateway, "", session), Client(gateway, "nobody")):
            assert who.get("/v1/auth/self").status == 503
        # A key alone is never one there.
        assert Client(gateway, key).get("/v1/auth/self").status in {403, 503}
    # What is kept for that is of no use to who finds it.
    assert key.encode() not in (tmp_path / "penstock.snapshot.build").read_bytes()


def test_a_database_that_somebody_else_holds_is_noticed_by_nobody_who_calls(tmp_path: Path, provider: Mock):
    with scene(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
        here.under_load(lambda: other.execute("BEGIN IMMEDIATE"), other.rollback)
        # Reading goes on meanwhile.
        other.execute("BEGIN IMMEDIATE")
        assert here.admin.get("/v1/workspaces").status == 200
        other.close()


def test_a_node_starts_while_somebody_else_holds_its_database(tmp_path: Path, provider: Mock):
    url = f"sqlite:///{tmp_path}/penstock.db"
    with scene(tmp_path, provider, url) as here:
        key = here.key
    other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        assert ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": key}).status == 200
    other.close()


def test_a_start_needs_no_room_for_what_it_keeps(tmp_path: Path, provider: Mock):
    for name in KEPT_FILES:
        (tmp_path / name).symlink_to("/dev/full")
    with scene(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        assert here.call() == 200


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system that is soon full."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-disk-"))
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "penstock", folder]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("to mount a file system needs rights that are not there")
    yield folder
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


def test_a_server_whose_disk_is_full_is_noticed_by_nobody_who_calls(tmp_path: Path, provider: Mock, small_disk: Path):
    server, rest = Postgres(small_disk), small_disk / "rest"

    def fill() -> None:
        with rest.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    try:
        with scene(tmp_path, provider, server.database()) as here:
            here.under_load(fill, rest.unlink)
            # Reading goes on meanwhile.
            fill()
            assert here.admin.get("/v1/workspaces").status == 200
    finally:
        server.stop()
        rest.unlink(missing_ok=True)


def test_a_full_disk_is_noticed_by_nobody_who_calls(tmp_path: Path, provider: Mock):
    with scene(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        pid = control_pid(here.gateway)
        # A file of the process can grow no further than what the log of the database has already.
        size = (tmp_path / "penstock.db-wal").stat().st_size
        free = resource.prlimit(pid, resource.RLIMIT_FSIZE)

        def allow(limit: int) -> Callable[[], None]:
            return lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, free[1])), None)[1]

        here.under_load(allow(size), allow(free[0]))
        assert here.admin.get("/v1/workspaces").status == 200
