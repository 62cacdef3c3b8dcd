"""Behaviour with default settings. The gateway serves only this machine, and reports configuration mistakes clearly."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.fork_server import run_penstock
from tests.gateway import find_binary
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.gateway import Mock


def get_startup_error(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> str:
    """Runs `serve` where startup must fail, and returns its error output."""
    done = run_penstock("serve", "--port", str(free_port()), *options, env=env or {}, cwd=folder, timeout=15)
    assert done.returncode == 1, done
    assert not done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def start_serve(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> tuple[Program, str]:
    port = free_port()
    command = [sys.executable, "-m", "penstock", "serve", "--port", str(port), *options]
    program = Program(command, folder / "serve.log", env=env or {}, cwd=folder)

    def is_listening() -> bool | None:
        program.check_alive()
        return "listens on" in program.read_output() or None

    try:
        wait_for("the gateway", is_listening, 15)
    except BaseException:
        program.kill()
        raise
    return program, f"http://127.0.0.1:{port}"


def test_serves_loopback_without_a_key_and_without_a_store(tmp_path: Path):
    program, url = start_serve(tmp_path, "--no-store")
    try:
        assert send_raw_request(url, "/ready", headers={}).status == 200
        response = send_raw_request(url, CHAT_PATH, chat_body(), {"content-type": "application/json"})
        assert (response.status, response.json()["error"]["code"]) == (400, "provider_required")
        # Records go to the documented path, and no other files are created.
        wait_for("the records", lambda: (tmp_path / "logs/store/records/records.duckdb").exists() or None)
    finally:
        status = program.stop()
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "serve.log"]


def test_mock_provider_is_off_by_default(tmp_path: Path):
    program, url = start_serve(tmp_path, "--no-store")
    try:
        assert send_raw_request(url, CHAT_PATH, chat_body()).status in {400, 502}
    finally:
        program.stop()


def test_mock_option_prints_working_example_commands(tmp_path: Path):
    program, url = start_serve(tmp_path, "--no-store", "--mock", str(find_binary("penstock-mock")))
    try:
        assert url in program.read_output()
        wait_for("lines to try", lambda: "curl" in program.read_output() or None)
        response = send_raw_request(url, CHAT_PATH, chat_body(stream=True))
        assert response.events[-1] == b"data: [DONE]"
    finally:
        assert program.stop() == 0
    assert not program.session_processes()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_refuses_to_serve_other_machines_without_a_key(tmp_path: Path, host: str):
    message = get_startup_error(tmp_path, "--no-store", "--host", host)
    assert message.startswith("penstock: no gateway key is configured")
    assert "hint: add a key to penstock.toml" in message


def test_serves_other_machines_with_a_key(provider: Mock, tmp_path: Path):
    key = "pk-0123456789"
    tables = {"mock": {"host": provider.url}, "server": {"host": "0.0.0.0"}, "keys": [{"name": "k", "key": key}]}
    with run_gateway(tmp_path, tables) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 401
        assert (
            send_raw_request(
                gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": key}
            ).status
            == 200
        )


def test_removing_all_keys_keeps_authentication_on(provider: Mock, tmp_path: Path):
    key = {"name": "k", "key": "pk-0123456789"}
    tables = {"mock": {"host": provider.url}, "server": {"host": "0.0.0.0"}, "keys": [key]}
    with run_gateway(tmp_path, tables) as gateway:
        gateway.configure({name: table for name, table in tables.items() if name != "keys"})
        headers = {**MOCK_HEADERS, "x-gateway-api-key": key["key"]}
        wait_for(
            "the key gone",
            lambda: send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), headers).status == 401 or None,
        )
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 401


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1", "server.prot: is not known; did you mean 'port'? allowed: host, port"),
        ("[sever]\nport = 1", "sever: is not known; did you mean 'server'? allowed: server, security"),
        ("[server]\nbacklog = 1", "server.backlog: 1 is not allowed"),
        ("[server]\nport = 1\n[limits]\nbody_bytes = 'x'", "limits.body_bytes"),
        ("server = 1", "server: must be a table"),
        ("[server\n", "is not valid TOML"),
        ("keys = [{name = 'a'}]", "keys[0]: needs either key or sha256"),
    ],
)
def test_config_file_error_reports_its_path(tmp_path: Path, text: str, words: str):
    (tmp_path / "penstock.toml").write_text(text)
    assert words in get_startup_error(tmp_path)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"REQUEST_TIMEOUT": "soon"}, "REQUEST_TIMEOUT"),
        ({"PENSTOCK_SERVER_PROT": "1"}, "PENSTOCK_SERVER_PROT: is not known"),
        ({"PENSTOCK_CONFIG": "nowhere.toml"}, "cannot read"),
        ({"PENSTOCK_SERVER_HOST": "example.org"}, "'example.org' is not allowed: expected an IP address"),
    ],
)
def test_environment_error_names_the_variable(tmp_path: Path, env: dict[str, str], words: str):
    assert words in get_startup_error(tmp_path, env=env)


def test_environment_overrides_the_config_file(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "upstream": {"request_timeout_ms": 60_000}}
    with run_gateway(tmp_path, tables, env={"REQUEST_TIMEOUT": "80"}) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body("mock?first_ms=20000")).status == 408


def test_block_inline_config_rejects_inline_providers(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "providers": [{"slug": "mine", "provider": "mock"}]}
    with run_gateway(tmp_path, tables, env={"BLOCK_INLINE_CONFIG": "true"}) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status >= 400
        assert (
            send_raw_request(
                gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-provider": "@mine"}
            ).status
            == 200
        )


def test_private_custom_hosts_must_be_trusted(provider: Mock, tmp_path: Path):
    headers = {**MOCK_HEADERS, "x-gateway-provider": "openai", "x-gateway-custom-host": f"{provider.url}/v1"}
    (tmp_path / "closed").mkdir()
    with run_gateway(tmp_path / "closed", {}) as gateway:
        response = send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), headers)
        assert response.status == 400
        assert "TRUSTED_CUSTOM_HOSTS" in response.json()["error"]["message"]
    assert not provider.ledger()
    (tmp_path / "open").mkdir()
    with run_gateway(tmp_path / "open", {}, env={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), headers).status == 200
        names = {**headers, "x-gateway-custom-host": "http://169.254.169.254/latest"}
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), names).status == 400
