"""Checks of `penstock doctor`: what each reports, without any password."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.jobs import doctor
from penstock.jobs.prepare import initialise_store
from penstock.settings import load_settings
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate
from tests.bootstrapped_store import PATIENT_STORE
from tests.certificates import write_certificate
from tests.processes import free_port
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.settings import Settings

PASSWORD = "password-that-nobody-may-see"


def load(folder: Path, text: str = "", **env: str) -> Settings:
    file = folder / "penstock.toml"
    file.write_text(text or f"[server]\nport = {free_port()}\n")
    body = {"PENSTOCK_STORE_DATA_DIR": str(folder / "data"), "PENSTOCK_SERVER_PORT": str(free_port()), **env}
    return load_settings(str(file), body)


def examine(settings: Settings, *, offline: bool = True) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in asyncio.run(doctor.examine(settings, offline=offline))}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a gateway with an embedded store."""
    actual = load(tmp_path)
    initialise_store(actual, None)
    return actual


def test_complete_installation_has_no_failure(settings: Settings):
    actual = examine(settings)
    assert not [finding for finding in actual.values() if finding.status == "failed"]
    assert {name: actual[name].status for name in ("settings", "store", "master key", "port", "log store")} == (
        dict.fromkeys(("settings", "store", "master key", "port", "log store"), "ok")
    )
    assert (actual["redis"].status, actual["providers"].status) == ("skipped", "skipped")


def test_nothing_is_created(tmp_path: Path):
    actual = examine(load(tmp_path))
    assert actual["store"].message == f"there is none yet; penstock serve creates it in {tmp_path / 'data'}"
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]


def test_gateway_without_a_store_skips_it(tmp_path: Path):
    actual = examine(load(tmp_path, PENSTOCK_STORE_ENABLED="false"))
    assert actual["store"].status == "skipped"


def test_reasons_why_a_store_cannot_be_used_are_reported(tmp_path: Path):
    settings = load(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (data / "penstock.key").write_text("short")
    (data / "penstock.key").chmod(0o600)
    assert "expected 32 bytes" in examine(settings)["master key"].message
    (data / "penstock.db").write_text("text " * 1000)
    actual = examine(load(tmp_path))["store"]
    assert (actual.status, actual.message) == ("failed", "SQLite cannot be used: file is not a database")
    url = f"postgresql://penstock:{PASSWORD}@127.0.0.1:{free_port()}/penstock"
    actual = examine(load(tmp_path, PENSTOCK_STORE_URL=url))["store"]
    assert actual.status == "failed"
    assert "Connect call failed" in actual.message
    assert PASSWORD not in actual.message


def test_old_revision_and_open_key_file_are_reported(settings: Settings):
    data = Path(settings.store.data_dir)

    async def go_back() -> None:
        database = Database(PATIENT_STORE, Secret(f"sqlite:///{data}/penstock.db"))
        await migrate(database, "0017_policies")
        await database.close()

    asyncio.run(go_back())
    (data / "penstock.key").chmod(0o644)
    actual = examine(settings)
    assert actual["store"].status == "failed"
    assert "0017_policies" in actual["store"].message
    assert "penstock migrate" in actual["store"].hint
    assert actual["master key"].status == "failed"
    assert actual["master key"].hint == f"chmod 600 {data}/penstock.key"


def test_another_master_key_is_reported(settings: Settings):
    (Path(settings.store.data_dir) / "penstock.key").write_bytes(base64.b64encode(b"2" * 32))
    actual = examine(settings)["store"]
    assert actual.status == "failed"
    assert "another master key" in actual.message
    assert "copy penstock.key" in actual.hint


def test_full_disk_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "FEW_BYTES", 1 << 60)
    assert examine(settings)["folder of data"].status == "warning"
    monkeypatch.setattr(doctor, "TOO_FEW_BYTES", 1 << 60)
    assert examine(settings)["folder of data"].status == "failed"


def test_program_on_the_port_is_reported(settings: Settings):
    with socket.create_server(("127.0.0.1", settings.server.port)) as server:

        def response() -> None:
            with server.accept()[0] as connection:
                connection.recv(1024)
                connection.sendall(b"SSH-2.0\r\n")

        threading.Thread(target=response, daemon=True).start()
        actual = examine(settings)["port"]
    assert (actual.status, actual.message.startswith("another program")) == ("failed", True)


def test_checks_redis_and_hides_its_password(tmp_path: Path):
    server = RedisServer(tmp_path)
    try:
        actual = examine(load(tmp_path, REDIS_URL=server.url))
        assert (actual["redis"].status, actual["clock"].status) == ("ok", "ok")
    finally:
        server.stop()
    away = examine(load(tmp_path, REDIS_URL=f"redis://user:{PASSWORD}@127.0.0.1:{free_port()}/0"))["redis"]
    assert away.status == "failed"
    assert PASSWORD not in repr(away)


def test_databases_that_do_not_answer_are_reported_without_passwords(tmp_path: Path):
    actual = examine(
        load(
            tmp_path,
            PENSTOCK_STORE_URL=f"postgresql://user:{PASSWORD}@127.0.0.1:{free_port()}/db",
            PENSTOCK_STORE_MASTER_KEY=base64.b64encode(b"1" * 32).decode(),
            PENSTOCK_LOG_STORE_URL=f"clickhouse://user:{PASSWORD}@127.0.0.1:{free_port()}/db",
        )
    )
    assert (actual["store"].status, actual["log store"].status) == ("failed", "failed")
    assert PASSWORD not in repr(actual)


def test_clock_that_differs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "MAX_CLOCK_SECONDS", -1.0)
    server = RedisServer(tmp_path)
    try:
        actual = examine(load(tmp_path, REDIS_URL=server.url))["clock"]
    finally:
        server.stop()
    assert (actual.status, "synchronise" in actual.hint) == ("failed", True)


@pytest.mark.parametrize(
    ("days", "status", "words"),
    [(60, "ok", "is valid until"), (5, "warning", "is valid until"), (-1, "failed", "expired")],
)
def test_end_of_the_certificate_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, status: str, words: str
):
    # The certificate of the tests is valid for a day.
    write_certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    files = {"CERTIFICATE": tmp_path / "tls.crt", "KEY": tmp_path / "tls.key"}
    settings = load(tmp_path, **{f"PENSTOCK_SERVER_TLS_{name}_FILE": str(file) for name, file in files.items()})
    now = time.time() - (days - 1) * 24 * 3600
    monkeypatch.setattr("penstock.jobs.doctor.time.time", lambda: now)
    (actual,) = doctor._check_certificate(settings)
    assert (actual.status, words in actual.message) == (status, True)


def test_clock_is_compared_with_the_provider_that_differs_least(tmp_path: Path, provider: str):
    settings = load(tmp_path, provider_table(provider), TRUSTED_CUSTOM_HOSTS="127.0.0.1")
    actual = examine(settings, offline=False)["clock"]
    assert (actual.status, "this machine and provider 127.0.0.1" in actual.message) == ("ok", True)
    assert examine(settings)["clock"].status == "skipped"


@pytest.mark.parametrize(("date", "status"), [("Thu, 01 Jan 2026 00:00:00 GMT", "failed"), ("yesterday", "skipped")])
def test_provider_with_another_or_no_time_is_reported(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch, date: str, status: str
):
    monkeypatch.setattr(Provider, "date_time_string", lambda *_: date)
    settings = load(tmp_path, provider_table(provider), TRUSTED_CUSTOM_HOSTS="127.0.0.1")
    assert examine(settings, offline=False)["clock"].status == status


class Provider(http.server.BaseHTTPRequestHandler):
    """A provider that rejects every request, as one does without a key."""

    def do_HEAD(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def provider_table(url: str) -> str:
    return f'[[providers]]\nslug = "own"\nprovider = "openai"\napi_key = "sk-0123456789"\ncustom_host = "{url}/v1"\n'


def test_checks_provider_hosts(tmp_path: Path, provider: str):
    settings = load(tmp_path, provider_table(provider), TRUSTED_CUSTOM_HOSTS="127.0.0.1")
    actual = examine(settings, offline=False)[f"provider {provider.removeprefix('http://')}"]
    assert (actual.status, actual.message) == ("ok", "it answers with status 401")


@pytest.mark.parametrize(("trusted", "words"), [("127.0.0.1", "cannot be reached"), ("", "is not allowed")])
def test_provider_that_cannot_be_reached_is_reported(tmp_path: Path, trusted: str, words: str):
    url = f"http://127.0.0.1:{free_port()}"
    settings = load(tmp_path, provider_table(url), **({"TRUSTED_CUSTOM_HOSTS": trusted} if trusted else {}))
    actual = examine(settings, offline=False)[f"provider {url.removeprefix('http://')}"]
    assert actual.status == "failed"
    assert words in actual.message
    assert "TRUSTED_CUSTOM_HOSTS" in actual.hint


def test_command_prints_json_and_fails_with_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    done = CliRunner().invoke(cli.main, ["doctor", "--offline", "--json"])
    assert done.exit_code == 1
    assert {"name", "status", "message", "hint"} == set(json.loads(done.stdout)[0])
    monkeypatch.delenv("REDIS_URL")
    done = CliRunner().invoke(cli.main, ["doctor", "--offline"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].endswith(" 0 failed, 3 skipped")


@pytest.mark.parametrize(
    ("provider", "custom_host", "url"),
    [
        ("openai", None, "https://api.openai.com/v1"),
        ("openai", "https://ai.example.com/v1", "https://ai.example.com/v1"),
        ("azure-openai", None, None),
        ("mock", None, None),
        ("unknown", None, None),
    ],
)
def test_base_url_is_that_of_the_catalogue_or_a_custom_host(provider: str, custom_host: str | None, url: str | None):
    assert doctor.base_url(provider, custom_host) == url
