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
from tests.integration.wire import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.postgres import Postgres
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.alone

LOAD_SECONDS = 3
MAX_RESPONSE_SECONDS = 8
DISK_BYTES = 128 << 20
PATHS_WITHOUT_DATABASE = (
    "/v1/health",
    "/v1/version",
    "/v1/pricing/openai.json",
    "/v1/model-configs/pricing/openai/gpt-4o",
)


class DatabaseFaultScenario:
    """A gateway with a key of an app, under load while something is wrong with its store."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.admin = Client(gateway)
        (self.place,) = self.admin.read("/v1/workspaces")["data"]
        body = {"name": "app", "scopes": ["completions.write"], "workspace_id": self.place["id"]}
        self.key = self.admin.create("/v1/api-keys/workspace/service", body)["key"]
        wait_for("the key", lambda: self.chat_status() == 200 or None)

    def chat_status(self) -> int:
        headers = {**MOCK_HEADERS, "x-gateway-api-key": self.key}
        return send_raw_request(self.gateway.base_url, CHAT_PATH, chat_body(), headers).status

    def iter_writes(self) -> Iterator[tuple[str, str, object]]:
        """A create, a change, a sign-in: with a key that is known, and with one that is to be looked up."""
        yield "POST", "/v1/workspaces", {"name": "x"}
        yield "POST", "/v1/configs", {"name": "x", "config": {"provider": "mock"}, "workspace_id": self.place["id"]}
        yield "PUT", "/v1/admin/organisation/settings", {"block_inline_config": False}
        yield "POST", "/v1/auth/sessions", {"api_key": ADMIN_KEY}

    def check_writes_rejected(self) -> None:
        """Every write says 503 and when to ask again, in time, and never that nobody is known."""
        for method, path, body in self.iter_writes():
            began = time.monotonic()
            answer = self.admin.send(method, path, body)
            assert answer.status == 503, (method, path, answer.status, answer.body)
            assert answer.get_header("retry-after") == "1"
            assert answer.json()["data"]["errorCode"] == "AB04"
            assert time.monotonic() - began < MAX_RESPONSE_SECONDS

    def check_reads(self) -> None:
        """What stands on no rows is read as ever; of the rest no read says that nobody is known, whoever asks."""
        for path in PATHS_WITHOUT_DATABASE:
            assert self.admin.get(path).status == 200, path
        for path in ("/v1/workspaces", "/v1/configs", f"/v1/workspaces/{self.place['id']}"):
            answer = self.admin.get(path)
            assert answer.status in {200, 503}, (path, answer.status, answer.body)
            assert answer.status == 200 or answer.get_header("retry-after") == "1"

    def run_under_load(self, spoil: Callable[[], None], mend: Callable[[], None]) -> dict[str, Any]:
        headers = {**MOCK_HEADERS, "x-gateway-api-key": self.key}
        url = self.gateway.base_url + CHAT_PATH
        with run_load("rate", url, rate=50, connections=4, seconds=LOAD_SECONDS, headers=headers) as calls:
            spoil()
            try:
                wait_for("a write to be refused", lambda: self._is_write_rejected() or None, 10)
                self.check_writes_rejected()
                self.check_reads()
            finally:
                mend()
        assert calls["errors"] == 0, calls
        wait_for("the store", lambda: self.admin.post("/v1/workspaces", {"name": "again"}).status == 200 or None, 15)
        return calls

    def _is_write_rejected(self) -> bool:
        status = self.admin.post("/v1/workspaces", {"name": "x"}).status
        assert status in {200, 503}, status
        return status == 503


@contextmanager
def start_scenario(folder: Path, provider: Mock, url: str) -> Generator[DatabaseFaultScenario]:
    env: Mapping[str, str] = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    if url.startswith("postgresql"):
        run_init(folder, env)
    with run_gateway(folder, {"mock": {"host": provider.url}}, env=env) as gateway:
        yield DatabaseFaultScenario(gateway)


def list_models(client: Client) -> list[str]:
    return [model["id"] for model in client.read("/v1/models?ai_service=mock")["data"]]


def create_narrowed_key(admin: Client, place: dict[str, str]) -> str:
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


def test_frozen_database_fails_no_model_request(tmp_path: Path, provider: Mock, own_postgres: Postgres):
    with start_scenario(tmp_path, provider, own_postgres.create_database()) as here:
        here.run_under_load(own_postgres.freeze, own_postgres.thaw)


def test_read_only_database_fails_no_model_request(tmp_path: Path, provider: Mock, own_postgres: Postgres):
    def set_read_only(how: str) -> Callable[[], None]:
        return lambda: own_postgres.set_option("default_transaction_read_only", how)

    with start_scenario(tmp_path, provider, own_postgres.create_database()) as here:
        here.run_under_load(set_read_only("on"), set_read_only("off"))


def test_killed_database_fails_no_model_request_nor_a_node_start(
    tmp_path: Path, provider: Mock, own_postgres: Postgres
):
    url = own_postgres.create_database()
    with start_scenario(tmp_path, provider, url) as here:
        here.run_under_load(own_postgres.crash, own_postgres.start)
        signed_in = here.admin.post("/v1/auth/sessions", {"api_key": ADMIN_KEY})
        session = {"cookie": (signed_in.get_header("set-cookie") or "").split(";")[0]}
        assert Client(here.gateway, "", session).get("/v1/auth/self").status == 200
        ends = datetime.now(UTC) + timedelta(seconds=8)
        short = {"name": "short", "provider": "mock", "key": "sk-01234567", "expires_at": ends.isoformat()}
        slug = here.admin.create("/v1/virtual-keys", {**short, "workspace_id": here.place["id"]})["slug"]
        named = {"content-type": "application/json", "x-gateway-api-key": here.key, "x-gateway-provider": f"@{slug}"}
        assert send_raw_request(here.gateway.base_url, CHAT_PATH, chat_body(), named).status == 200
        key, place = here.key, {"workspace_id": here.place["id"]}
        narrow = create_narrowed_key(here.admin, place)
        clients = (Client(here.gateway, key), Client(here.gateway, narrow))
        listed = [sorted(set(list_models(client)) - {f"@{slug}/mock"}) for client in clients]
        assert listed == [["@a/m", "@b/m"], ["@b/m"]]
        own_postgres.crash()
        # Who signed in is somebody still.
        answer = Client(here.gateway, "", session).get("/v1/auth/self")
        assert (answer.status, answer.get_header("retry-after")) == (503, "1")
        assert [list_models(client) for client in clients] == listed
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    began = time.monotonic()
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        assert time.monotonic() - began < 2
        # What ends meanwhile ends, though nobody publishes that.
        time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds() + 1))
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), named).status == 400
        answer = send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": key})
        assert answer.status == 200
        # Who is not known any more, or never was, cannot be told from who is.
        for who in (Client(gateway), Client(gateway, "nobody")):
            assert who.get("/v1/workspaces").status == 503
        assert all(Client(gateway).get(path).status == 200 for path in PATHS_WITHOUT_DATABASE)
        # Of models the last snapshot says which there are, to keys that it knows; of all else a key like that is told to ask again.
        clients = (Client(gateway, key), Client(gateway, narrow))
        assert [list_models(client) for client in clients] == listed
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


def test_locked_database_fails_no_model_request(tmp_path: Path, provider: Mock):
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
        here.run_under_load(lambda: other.execute("BEGIN IMMEDIATE"), other.rollback)
        # Reading goes on meanwhile.
        other.execute("BEGIN IMMEDIATE")
        assert here.admin.get("/v1/workspaces").status == 200
        other.close()


def test_node_starts_while_its_database_is_locked(tmp_path: Path, provider: Mock):
    url = f"sqlite:///{tmp_path}/penstock.db"
    with start_scenario(tmp_path, provider, url) as here:
        key = here.key
    other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        assert (
            send_raw_request(
                gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": key}
            ).status
            == 200
        )
    other.close()


def test_starts_without_disk_space_for_the_snapshot(tmp_path: Path, provider: Mock):
    for name in KEPT_FILES:
        (tmp_path / name).symlink_to("/dev/full")
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        assert here.chat_status() == 200


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


def test_full_disk_of_the_database_server_fails_no_model_request(tmp_path: Path, provider: Mock, small_disk: Path):
    server, rest = Postgres(small_disk), small_disk / "rest"

    def fill_disk() -> None:
        with rest.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    try:
        with start_scenario(tmp_path, provider, server.create_database()) as here:
            here.run_under_load(fill_disk, rest.unlink)
            # Reading goes on meanwhile.
            fill_disk()
            assert here.admin.get("/v1/workspaces").status == 200
    finally:
        server.stop()
        rest.unlink(missing_ok=True)


def test_full_disk_fails_no_model_request(tmp_path: Path, provider: Mock):
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as here:
        pid = control_pid(here.gateway)
        # A file of the process can grow no further than what the log of the database has already.
        size = (tmp_path / "penstock.db-wal").stat().st_size
        free = resource.prlimit(pid, resource.RLIMIT_FSIZE)

        def limit_file_size(limit: int) -> Callable[[], None]:
            return lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, free[1])), None)[1]

        here.run_under_load(limit_file_size(size), limit_file_size(free[0]))
        assert here.admin.get("/v1/workspaces").status == 200
