"""Database faults under load: killed, frozen, locked, full or read-only. Model requests are unaffected, and failed
writes say when to retry.
"""

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
from tests.integration.management_client import ADMIN_KEY, Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import control_pid, run_gateway, run_load
from tests.postgres import Postgres
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tests.gateway import Gateway, Mock

pytestmark = pytest.mark.figures

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
    """Gateway with an app's key, under load while its database fails."""

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
        """Yields a create, an update and a sign-in. The first requests use a cached key; the sign-in looks its key up
        in the database.
        """
        yield "POST", "/v1/workspaces", {"name": "x"}
        yield "POST", "/v1/configs", {"name": "x", "config": {"provider": "mock"}, "workspace_id": self.place["id"]}
        yield "PUT", "/v1/admin/organisation/settings", {"block_inline_config": False}
        yield "POST", "/v1/auth/sessions", {"api_key": ADMIN_KEY}

    def check_writes_rejected(self) -> None:
        """Checks that every write returns 503 with Retry-After in time, and never an authentication error."""
        for method, path, body in self.iter_writes():
            began = time.monotonic()
            response = self.admin.send(method, path, body)
            assert response.status == 503, (method, path, response.status, response.body)
            assert response.get_header("retry-after") == "1"
            assert response.json()["data"]["errorCode"] == "AB04"
            assert time.monotonic() - began < MAX_RESPONSE_SECONDS

    def check_reads(self) -> None:
        """Checks that reads without database rows still work, and that other reads return 200 or 503 and never an
        authentication error.
        """
        for path in PATHS_WITHOUT_DATABASE:
            assert self.admin.get(path).status == 200, path
        for path in ("/v1/workspaces", "/v1/configs", f"/v1/workspaces/{self.place['id']}"):
            response = self.admin.get(path)
            assert response.status in {200, 503}, (path, response.status, response.body)
            assert response.status == 200 or response.get_header("retry-after") == "1"

    def run_under_load(self, break_store: Callable[[], None], repair: Callable[[], None]) -> dict[str, Any]:
        headers = {**MOCK_HEADERS, "x-gateway-api-key": self.key}
        url = self.gateway.base_url + CHAT_PATH
        with run_load("rate", url, rate=50, connections=4, seconds=LOAD_SECONDS, headers=headers) as calls:
            break_store()
            try:
                wait_for("a write to be refused", lambda: self._is_write_rejected() or None, 10)
                self.check_writes_rejected()
                self.check_reads()
            finally:
                repair()
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


def create_narrowed_key(admin: Client, location: dict[str, str]) -> str:
    """Creates two integrations with one model each, and a key whose default config selects the second."""
    for slug in ("a", "b"):
        admin.create(
            "/v1/integrations", {"name": slug, "slug": slug, "ai_provider_id": "mock", "key": "sk-01234567", **location}
        )
        rows = [{"slug": "m", "enabled": True, "is_custom": True}, {"slug": "off", "enabled": False, "is_custom": True}]
        expect_ok(admin.put(f"/v1/integrations/{slug}/models", {"models": rows, "allow_all_models": False}))
    config = admin.create("/v1/configs", {"name": "narrow", "config": {"provider": "@b"}, **location})["slug"]
    body = {"name": "narrow", "scopes": ["completions.write"], "defaults": {"config_id": config}, **location}
    return admin.create("/v1/api-keys/workspace/service", body)["key"]


def test_frozen_database_fails_no_model_request(tmp_path: Path, provider: Mock, own_postgres: Postgres):
    with start_scenario(tmp_path, provider, own_postgres.create_database()) as restartable_gateway:
        restartable_gateway.run_under_load(own_postgres.suspend, own_postgres.resume)


def test_read_only_database_fails_no_model_request(tmp_path: Path, provider: Mock, own_postgres: Postgres):
    def set_read_only(how: str) -> Callable[[], None]:
        return lambda: own_postgres.set_option("default_transaction_read_only", how)

    with start_scenario(tmp_path, provider, own_postgres.create_database()) as restartable_gateway:
        restartable_gateway.run_under_load(set_read_only("on"), set_read_only("off"))


def test_killed_database_fails_no_model_request_nor_a_node_start(
    tmp_path: Path, provider: Mock, own_postgres: Postgres
):
    url = own_postgres.create_database()
    with start_scenario(tmp_path, provider, url) as restartable_gateway:
        restartable_gateway.run_under_load(own_postgres.crash, own_postgres.start)
        signed_in = restartable_gateway.admin.post("/v1/auth/sessions", {"api_key": ADMIN_KEY})
        session = {"cookie": (signed_in.get_header("set-cookie") or "").split(";")[0]}
        assert Client(restartable_gateway.gateway, "", session).get("/v1/auth/self").status == 200
        ends = datetime.now(UTC) + timedelta(seconds=8)
        short = {"name": "short", "provider": "mock", "key": "sk-01234567", "expires_at": ends.isoformat()}
        slug = restartable_gateway.admin.create(
            "/v1/virtual-keys", {**short, "workspace_id": restartable_gateway.place["id"]}
        )["slug"]
        names = {
            "content-type": "application/json",
            "x-gateway-api-key": restartable_gateway.key,
            "x-gateway-provider": f"@{slug}",
        }
        assert send_raw_request(restartable_gateway.gateway.base_url, CHAT_PATH, chat_body(), names).status == 200
        key, workspace = restartable_gateway.key, {"workspace_id": restartable_gateway.place["id"]}
        narrow = create_narrowed_key(restartable_gateway.admin, workspace)
        clients = (Client(restartable_gateway.gateway, key), Client(restartable_gateway.gateway, narrow))
        listed = [sorted(set(list_models(client)) - {f"@{slug}/mock"}) for client in clients]
        assert listed == [["@a/m", "@b/m"], ["@b/m"]]
        own_postgres.crash()
        # A signed-in user gets 503, not 401.
        response = Client(restartable_gateway.gateway, "", session).get("/v1/auth/self")
        assert (response.status, response.get_header("retry-after")) == (503, "1")
        assert [list_models(client) for client in clients] == listed
    env = {"PENSTOCK_STORE_URL": url, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    began = time.monotonic()
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        assert time.monotonic() - began < 2
        # Expiry takes effect even though no new snapshot can be published.
        time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds() + 1))
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), names).status == 400
        response = send_raw_request(
            gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": key}
        )
        assert response.status == 200
        # Without the database, an unknown or deleted key cannot be distinguished from a valid one.
        for who in (Client(gateway), Client(gateway, "nobody")):
            assert who.get("/v1/workspaces").status == 503
        assert all(Client(gateway).get(path).status == 200 for path in PATHS_WITHOUT_DATABASE)
        # The last snapshot lists the models for keys that it contains. All other requests with such a key return 503.
        clients = (Client(gateway, key), Client(gateway, narrow))
        assert [list_models(client) for client in clients] == listed
        assert Client(gateway, key).read("/v1/models/@a/m")["owned_by"] == "mock"
        for path in ("/v1/configs", "/v1/files", "/v1/models?workspace_id=another", "/v1/workspaces"):
            assert Client(gateway, key).get(path).status == 503, path
        assert Client(gateway, "nobody").get("/v1/models").status == 503
        for who in (Client(gateway, "", session), Client(gateway, "nobody")):
            assert who.get("/v1/auth/self").status == 503
        # A bare API key is never accepted there.
        assert Client(gateway, key).get("/v1/auth/self").status in {403, 503}
    # The stored snapshot does not contain usable keys.
    assert key.encode() not in (tmp_path / "penstock.snapshot").read_bytes()


def test_locked_database_fails_no_model_request(tmp_path: Path, provider: Mock):
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as restartable_gateway:
        other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
        restartable_gateway.run_under_load(lambda: other.execute("BEGIN IMMEDIATE"), other.rollback)
        # Reads still work.
        other.execute("BEGIN IMMEDIATE")
        assert restartable_gateway.admin.get("/v1/workspaces").status == 200
        other.close()


def test_node_starts_while_its_database_is_locked(tmp_path: Path, provider: Mock):
    url = f"sqlite:///{tmp_path}/penstock.db"
    with start_scenario(tmp_path, provider, url) as restartable_gateway:
        key = restartable_gateway.key
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
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as restartable_gateway:
        assert restartable_gateway.chat_status() == 200


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Mounts a small file system that fills up quickly."""
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
        with start_scenario(tmp_path, provider, server.create_database()) as restartable_gateway:
            restartable_gateway.run_under_load(fill_disk, rest.unlink)
            # Reads still work.
            fill_disk()
            assert restartable_gateway.admin.get("/v1/workspaces").status == 200
    finally:
        server.stop()
        rest.unlink(missing_ok=True)


def test_full_disk_fails_no_model_request(tmp_path: Path, provider: Mock):
    with start_scenario(tmp_path, provider, f"sqlite:///{tmp_path}/penstock.db") as restartable_gateway:
        pid = control_pid(restartable_gateway.gateway)
        # Files of the process cannot grow beyond the current size of the database's write-ahead log.
        size = (tmp_path / "penstock.db-wal").stat().st_size
        free = resource.prlimit(pid, resource.RLIMIT_FSIZE)

        def limit_file_size(limit: int) -> Callable[[], None]:
            return lambda: (resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, free[1])), None)[1]

        restartable_gateway.run_under_load(limit_file_size(size), limit_file_size(free[0]))
        assert restartable_gateway.admin.get("/v1/workspaces").status == 200
