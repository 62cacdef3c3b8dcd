"""Health check: what it reports of a gateway that is ready, not ready, silent or absent, and that it always ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

import pytest
from click.testing import CliRunner, Result

from penstock.cli import find_gateway_url, main
from penstock.errors import SettingsError
from penstock.health_check import check_health

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nready"
DRAINING = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\nnot ready"


class Server:
    """Answers each connection with the same bytes, or with none. Stores the first line of each request."""

    def __init__(self, response: bytes) -> None:
        self._response = response
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in (self._listener, *self._open):
            connection.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self.requests.append(connection.recv(65536).decode().partition("\r\n")[0])
                connection.sendall(self._response)


@pytest.fixture
def ready() -> Iterator[Server]:
    with Server(READY) as server:
        yield server


def run_health(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["health", *words], env=env)


def test_ready_gateway_has_exit_status_0(ready: Server):
    done = run_health("--url", ready.url)
    assert (done.exit_code, done.output) == (0, f"ready: {ready.url}/ready\n")
    assert ready.requests == ["GET /ready HTTP/1.1"]


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_environment_names_the_gateway(ready: Server, suffix: str):
    done = run_health(PENSTOCK_URL=ready.url + suffix)
    assert (done.exit_code, done.output) == (0, f"ready: {ready.url}/ready\n")


def test_draining_gateway_has_exit_status_1():
    with Server(DRAINING) as server:
        done = run_health("--url", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"not ready: {server.url}/ready: status 503, not ready\n"


# The second response never gets complete, although each of its parts arrives in time.
@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\nx-a: "])
def test_silent_gateway_fails_at_the_time_limit(response: bytes):
    with Server(response) as server:
        done = run_health("--url", server.url, "--timeout", "0.2")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"not ready: {server.url}/ready")


@pytest.mark.parametrize("response", [b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x01\x00\x02\x02\x0a"])
def test_other_protocol_is_not_ready(response: bytes):
    with Server(response) as server:
        assert not check_health(server.url, 0.5).is_ready


def test_absent_gateway_is_reported_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
    health = check_health(f"http://127.0.0.1:{port}/", 3)
    assert health == (False, f"not ready: http://127.0.0.1:{port}/ready: Connection refused")


def test_base_url_may_have_a_path(ready: Server):
    assert check_health(f"{ready.url}/tools/gateway/", 3).is_ready
    assert ready.requests == ["GET /tools/gateway/ready HTTP/1.1"]


def test_credentials_of_the_url_are_not_shown(ready: Server):
    health = check_health(ready.url.replace("http://", "http://user:canary@"), 3)
    assert (health.is_ready, "canary" in health.message) == (True, False)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8787", "ftp://a", "http://", "http://a:canary", "http://[::1", "http://a:0"]
)
def test_wrong_url_is_rejected(url: str):
    with pytest.raises(SettingsError, match="expected a URL such as http") as caught:
        check_health(url, 1)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("seconds", ["0", "3601", "soon", "nan"])
def test_wrong_time_limit_is_rejected(seconds: str):
    assert run_health("--url", "http://127.0.0.1:1", "--timeout", seconds).exit_code == 2


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:9000"), ("::", "http://[::1]:9000"), ("10.0.0.1", "http://10.0.0.1:9000")],
)
def test_address_is_that_of_the_settings(tmp_path: Path, host: str, url: str):
    file = tmp_path / "penstock.toml"
    file.write_text(f"[server]\nhost = {host!r}\nport = 9000\n")
    assert find_gateway_url(str(file)) == (url, None)


def test_gateway_is_checked_while_its_settings_file_has_errors(ready: Server, tmp_path: Path):
    """A running gateway keeps its settings, so an error in the file must not make it look dead."""
    file = tmp_path / "penstock.toml"
    file.write_text("[server")
    done = run_health(PENSTOCK_CONFIG=str(file), PENSTOCK_SERVER_PORT=ready.url.rpartition(":")[2])
    assert done.exit_code == 0, done.output
