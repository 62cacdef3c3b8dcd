"""WebSockets through a real gateway: from the client's handshake to the record."""

from __future__ import annotations

import json
import time
from socket import SHUT_RDWR, create_connection, create_server
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.integration.serving import running, settled
from tests.integration.wire import MOCK
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from websockets.sync.client import ClientConnection
    from websockets.sync.connection import Connection

    from tests.gateway import Gateway, Mock

KEY = "pk-0123456789"
TABLES = {
    "keys": [{"name": "k", "id": "k-1", "key": KEY}],
    "prices": [
        {
            "provider": "mock",
            "model": "gpt-realtime",
            "pay_as_you_go": {"request_token": {"price": 0.0004}, "response_token": {"price": 0.0016}},
        }
    ],
}
HEADERS = {**MOCK, "x-gateway-api-key": KEY}
PATH = "/v1/realtime?model=gpt-realtime"


def open_at(
    gateway: Gateway,
    path: str = PATH,
    headers: dict[str, str] | None = None,
    *,
    subprotocols: Sequence[Subprotocol] | None = None,
) -> ClientConnection:
    """Connect as a client does, within reason."""
    url = gateway.base_url.replace("http://", "ws://") + path
    return connect(
        url,
        additional_headers=HEADERS if headers is None else headers,
        open_timeout=10,
        close_timeout=5,
        compression=None,
        proxy=None,
        subprotocols=subprotocols,
        max_size=2**24,
    )


@pytest.fixture
def new(served: Gateway) -> Callable[..., list[dict[str, Any]]]:
    """Wait for the records of this test."""
    before = settled(served, HEADERS)
    return lambda count=1: served.records(before + count)[before:]


def events(socket: Connection, last: str) -> list[dict[str, Any]]:
    """Hear until an event of this type."""
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != last:
        heard.append(json.loads(socket.recv(timeout=10)))
        assert len(heard) < 100
    return heard


def say(socket: Connection, **event: object) -> None:
    socket.send(json.dumps(event))


def test_a_session_is_carried_both_ways_and_leaves_one_record(
    served: Gateway, new: Callable[..., list[dict[str, Any]]]
):
    with open_at(served) as socket:
        assert json.loads(socket.recv(timeout=10))["session"]["model"] == "gpt-realtime"
        say(socket, type="response.create")
        heard = events(socket, "response.done")
        assert "".join(event.get("delta", "") for event in heard) == "Hello from mock"
        socket.send(b"\x00\xff\x07")
        assert socket.recv(timeout=10) == b"\x00\xff\x07"
    (record,) = new()
    expected = {
        "operation": "realtime",
        "request_method": "GET",
        "ai_org": "mock",
        "ai_model": "gpt-realtime",
        "response_status_code": 101,
        "outcome": "complete",
        "is_success": True,
        "api_key_id": "k-1",
        "total_units": 20,
        # Twelve tokens at 4,000 and eight at 16,000 billionths of a dollar.
        "cost_nanodollars": 176_000,
    }
    assert {name: record.get(name) for name in expected} == expected


def test_the_providers_close_comes_with_its_code_and_reason(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    with open_at(served) as socket:
        say(socket, type="mock.close", code=4001, reason="enough")
        with pytest.raises(ConnectionClosed) as closed:
            events(socket, "never")
    assert closed.value.rcvd
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "enough")
    assert new()[0]["outcome"] == "cut"


def test_a_client_that_is_gone_without_a_word_leaves_one_record(
    served: Gateway, new: Callable[..., list[dict[str, Any]]]
):
    socket = open_at(served)
    say(socket, type="response.create")
    events(socket, "response.done")
    socket.socket.shutdown(SHUT_RDWR)
    (record,) = new()
    assert (record["outcome"], record["total_units"]) == ("aborted", 20)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, MOCK, 401),
        (PATH, {"x-gateway-api-key": KEY}, 400),
        (PATH, {**HEADERS, "x-gateway-provider": "groq"}, 500),
        (f"{PATH}&mock-status=429", HEADERS, 429),
        ("/elsewhere", HEADERS, 404),
    ],
)
def test_what_refuses_a_client_is_told_with_its_status(
    served: Gateway, path: str, headers: dict[str, str], status: int
):
    with pytest.raises(InvalidStatus) as refused:
        open_at(served, path, headers)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"{}")


def test_a_browser_brings_its_key_among_the_protocols(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    with open_at(served, headers=MOCK, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        events(socket, "session.created")
    (record,) = new()
    assert record["api_key_id"] == "k-1"
    assert KEY not in json.dumps(record)


def test_large_messages_and_many_of_them_come_through(served: Gateway):
    with open_at(served) as socket:
        events(socket, "session.created")
        say(socket, type="mock.flood", count=50, bytes=200_000)
        for at in range(50):
            event = json.loads(socket.recv(timeout=10))
            assert (event["at"], len(event["text"])) == (at, 200_000)
        large = bytes(5_000_000)
        socket.send(large)
        assert socket.recv(timeout=20) == large


def test_who_leaves_before_there_is_a_session_leaves_nothing_behind(tmp_path: Path):
    with create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(10)
        with running(tmp_path, {"mock": {"host": f"http://127.0.0.1:{silent.getsockname()[1]}"}}) as gateway:
            fields = {**MOCK, "host": "a", "connection": "Upgrade", "upgrade": "websocket"}
            fields |= {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            at = urlsplit(gateway.base_url)
            with create_connection((at.hostname or "", at.port or 0)) as caller:
                caller.sendall(f"GET {PATH} HTTP/1.1\r\n{head}\r\n".encode())
                provider, _ = silent.accept()
                assert provider.recv(65_536)
            provider.settimeout(5)
            with provider:
                assert provider.recv(65_536) == b""
            wait(
                "the record", lambda: gateway.records_file.exists() and "aborted" in gateway.records_file.read_text(), 5
            )


@pytest.fixture
def alone(provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that a test may end."""
    with running(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        yield gateway


def test_a_gateway_that_ends_says_so_to_open_sessions(alone: Gateway):
    with open_at(alone, headers=MOCK) as socket:
        events(socket, "session.created")
        alone.program.process.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
    assert closed.value.rcvd
    assert closed.value.rcvd.code == 1012
    wait("the record", lambda: alone.records_file.exists() and "draining" in alone.records_file.read_text(), 10)


def test_a_session_in_which_one_side_or_both_are_silent_is_no_idle_connection(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 800}}
    with (
        running(tmp_path, tables) as gateway,
        open_at(gateway, headers=MOCK) as quiet,
        open_at(gateway, headers=MOCK) as says,
    ):
        events(quiet, "session.created")
        events(says, "session.created")
        for _ in range(12):
            # Audio goes out for as long as somebody speaks, and nothing comes back.
            say(says, type="input_audio_buffer.append", audio="AAAA")
            time.sleep(0.25)
        for socket in (quiet, says):
            say(socket, type="response.create")
            events(socket, "response.done")
