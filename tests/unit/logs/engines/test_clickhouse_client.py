"""The ClickHouse client: URLs, bound values, errors of the server, and a server that does not answer."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from penstock.logs.engines.clickhouse_client import (
    ClickHouseClient,
    ClickHouseInputError,
    encode_parameter,
    parse_url,
)
from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError
from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.logs.engines.clickhouse import ClickHouseEngine


def test_url_has_all_parts():
    address = parse_url("clickhouse://us%40er:p%3Aw@db.example:9000/logs?secure=1&cluster=main")
    assert (address.host, address.port, address.user, address.password) == ("db.example", 9000, "us@er", "p:w")
    assert (address.database, address.is_secure, address.cluster) == ("logs", True, "main")


def test_url_has_defaults():
    address = parse_url("clickhouse://localhost")
    assert (address.port, address.user, address.password, address.database) == (8123, "default", "", "default")
    assert parse_url("clickhouse://localhost?secure=true").port == 8443


@pytest.mark.parametrize("url", ["", "http://user:hunter2@x", "clickhouse://", "clickhouse://u:hunter2@h/d?compress=1"])
def test_invalid_url_is_rejected_without_its_password(url: str):
    with pytest.raises(ValueError, match="url must be") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "a'b", "\\", "\t\n\r\0\b\f", "日本", "{p:String}", "\\N", "'] OR 1"])
def test_bound_values_arrive_unchanged(loaded_clickhouse: ClickHouseEngine, text: str):
    rows = loaded_clickhouse._fetch(
        "SELECT {a:String}, {b:Array(String)}", {"a": encode_parameter(text), "b": encode_parameter([text, "z"])}
    )
    assert rows == [(text, [text, "z"])]


@pytest.fixture
def server_response() -> Iterator[dict[str, object]]:
    """Starts a server and returns the response that it sends, which the test may change, with the server's port."""
    response: dict[str, object] = {"status": 200, "code": None, "body": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(response["status"])
            if response["code"]:
                self.send_header("X-ClickHouse-Exception-Code", response["code"])
            self.end_headers()
            self.wfile.write(response["body"])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    response["port"] = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield response
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "body", "expected"),
    [
        (500, "241", b"memory", QueryTooLargeError),
        (500, "159", b"timeout", QueryTooLargeError),
        (400, "27", b"cannot parse", ClickHouseInputError),
        (500, "999", b"keeper", LogEngineError),
        (503, None, b"proxy", LogEngineError),
        (200, None, b'{"data": [[1]', LogEngineError),
        (200, None, b"[]", LogEngineError),
    ],
)
def test_errors_of_the_server_are_typed(
    server_response: dict, status: int, code: str, body: bytes, expected: type[Exception]
):
    server_response.update(status=status, code=code, body=body)
    client = ClickHouseClient(parse_url(f"clickhouse://user:hunter2@127.0.0.1:{server_response['port']}/d"))
    with pytest.raises(LogEngineError) as caught:
        client.query("SELECT 1", {}, 5, memory_bytes=1)
    assert type(caught.value) is expected
    assert "hunter2" not in str(caught.value)
    client.close()


def test_refused_connection_is_an_error_without_the_password():
    client = ClickHouseClient(parse_url(f"clickhouse://user:hunter2@127.0.0.1:{free_port()}/d"))
    with pytest.raises(LogEngineError, match="does not answer") as caught:
        client.command("SELECT 1")
    assert "hunter2" not in str(caught.value)


def test_server_that_hangs_is_left_after_the_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.logs.engines.clickhouse_client.CLIENT_GRACE_SECONDS", 0.1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = ClickHouseClient(parse_url(f"clickhouse://127.0.0.1:{listener.getsockname()[1]}/d"))
        with pytest.raises(LogEngineError, match="does not answer"):
            client.query("SELECT 1", {}, 0.1, memory_bytes=1)
        client.close()


def test_client_recovers_after_the_server_closed_the_connection(loaded_clickhouse: ClickHouseEngine):
    client = loaded_clickhouse._client
    assert client.query("SELECT 1", {}, 5, memory_bytes=10**9) == [(1,)]
    client._local.connection.sock.shutdown(socket.SHUT_RDWR)
    assert client.query("SELECT 1", {}, 5, memory_bytes=10**9) == [(1,)]
