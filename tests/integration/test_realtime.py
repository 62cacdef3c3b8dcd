"""WebSocket sessions through a real gateway, from the client's handshake to the record."""

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

from tests.integration.raw_http import MOCK_HEADERS
from tests.integration.serving import count_settled_records, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from websockets.sync.client import ClientConnection
    from websockets.sync.connection import Connection

    from tests.gateway import Gateway, Mock

API_KEY = "pk-0123456789"
TABLES = {
    "keys": [{"name": "k", "id": "k-1", "key": API_KEY}],
    "prices": [
        {
            "provider": "mock",
            "model": "gpt-realtime",
            "pay_as_you_go": {"request_token": {"price": 0.0004}, "response_token": {"price": 0.0016}},
        }
    ],
}
HEADERS = {**MOCK_HEADERS, "x-gateway-api-key": API_KEY}
REALTIME_PATH = "/v1/realtime?model=gpt-realtime"


def open_session(
    gateway: Gateway,
    path: str = REALTIME_PATH,
    headers: dict[str, str] | None = None,
    *,
    subprotocols: Sequence[Subprotocol] | None = None,
) -> ClientConnection:
    """Connects as a client does, with timeouts and a message size limit."""
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
def new_records(running_gateway: Gateway) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that waits for the records of this test."""
    before = count_settled_records(running_gateway, HEADERS)
    return lambda count=1: running_gateway.records(before + count)[before:]


def receive_until(socket: Connection, last: str) -> list[dict[str, Any]]:
    """Receives events until one of type `last` arrives, and returns all of them."""
    received: list[dict[str, Any]] = []
    while not received or received[-1]["type"] != last:
        received.append(json.loads(socket.recv(timeout=10)))
        assert len(received) < 100
    return received


def send_event(socket: Connection, **event: object) -> None:
    socket.send(json.dumps(event))


def test_session_relays_both_directions_and_writes_one_record(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    with open_session(running_gateway) as socket:
        assert json.loads(socket.recv(timeout=10))["session"]["model"] == "gpt-realtime"
        send_event(socket, type="response.create")
        received = receive_until(socket, "response.done")
        assert "".join(event.get("delta", "") for event in received) == "Hello from mock"
        socket.send(b"\x00\xff\x07")
        assert socket.recv(timeout=10) == b"\x00\xff\x07"
    (record,) = new_records()
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
        # Twelve tokens at 4,000 and eight tokens at 16,000 nanodollars each.
        "cost_nanodollars": 176_000,
    }
    assert {name: record.get(name) for name in expected} == expected


def test_provider_close_code_and_reason_are_passed_on(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    with open_session(running_gateway) as socket:
        send_event(socket, type="mock.close", code=4001, reason="enough")
        with pytest.raises(ConnectionClosed) as closed:
            receive_until(socket, "never")
    assert closed.value.rcvd
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "enough")
    assert new_records()[0]["outcome"] == "cut"


def test_lost_client_leaves_one_aborted_record(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    socket = open_session(running_gateway)
    send_event(socket, type="response.create")
    receive_until(socket, "response.done")
    socket.socket.shutdown(SHUT_RDWR)
    (record,) = new_records()
    assert (record["outcome"], record["total_units"]) == ("aborted", 20)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (REALTIME_PATH, MOCK_HEADERS, 401),
        (REALTIME_PATH, {"x-gateway-api-key": API_KEY}, 400),
        (REALTIME_PATH, {**HEADERS, "x-gateway-provider": "groq"}, 500),
        (f"{REALTIME_PATH}&mock-status=429", HEADERS, 429),
        ("/elsewhere", HEADERS, 404),
    ],
)
def test_rejected_handshake_returns_its_status(
    running_gateway: Gateway, path: str, headers: dict[str, str], status: int
):
    with pytest.raises(InvalidStatus) as refused:
        open_session(running_gateway, path, headers)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"{}")


def test_accepts_a_key_in_the_websocket_subprotocols(
    running_gateway: Gateway, new_records: Callable[..., list[dict[str, Any]]]
):
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{API_KEY}")]
    with open_session(running_gateway, headers=MOCK_HEADERS, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        receive_until(socket, "session.created")
    (record,) = new_records()
    assert record["api_key_id"] == "k-1"
    assert API_KEY not in json.dumps(record)


def test_relays_large_and_numerous_messages(running_gateway: Gateway):
    with open_session(running_gateway) as socket:
        receive_until(socket, "session.created")
        send_event(socket, type="mock.flood", count=50, bytes=200_000)
        for at in range(50):
            event = json.loads(socket.recv(timeout=10))
            assert (event["at"], len(event["text"])) == (at, 200_000)
        large = bytes(5_000_000)
        socket.send(large)
        assert socket.recv(timeout=20) == large


def test_disconnect_during_handshake_closes_the_provider_side(tmp_path: Path):
    with create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(10)
        with run_gateway(tmp_path, {"mock": {"host": f"http://127.0.0.1:{silent.getsockname()[1]}"}}) as gateway:
            fields = {**MOCK_HEADERS, "host": "a", "connection": "Upgrade", "upgrade": "websocket"}
            fields |= {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            at = urlsplit(gateway.base_url)
            with create_connection((at.hostname or "", at.port or 0)) as caller:
                caller.sendall(f"GET {REALTIME_PATH} HTTP/1.1\r\n{head}\r\n".encode())
                provider, _ = silent.accept()
                assert provider.recv(65_536)
            provider.settimeout(5)
            with provider:
                assert provider.recv(65_536) == b""
            wait_for(
                "the record", lambda: gateway.records_file.exists() and "aborted" in gateway.records_file.read_text(), 5
            )


@pytest.fixture
def own_gateway(provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that the test may stop."""
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        yield gateway


def test_shutdown_closes_open_sessions_with_code_1012(own_gateway: Gateway):
    with open_session(own_gateway, headers=MOCK_HEADERS) as socket:
        receive_until(socket, "session.created")
        own_gateway.program.process.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
    assert closed.value.rcvd
    assert closed.value.rcvd.code == 1012
    wait_for(
        "the record",
        lambda: own_gateway.records_file.exists() and "draining" in own_gateway.records_file.read_text(),
        10,
    )


def test_silent_session_is_not_closed_as_idle(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"header_timeout_ms": 400, "keep_alive_ms": 800}}
    with (
        run_gateway(tmp_path, tables) as gateway,
        open_session(gateway, headers=MOCK_HEADERS) as quiet,
        open_session(gateway, headers=MOCK_HEADERS) as says,
    ):
        receive_until(quiet, "session.created")
        receive_until(says, "session.created")
        for _ in range(12):
            # Sends audio without receiving events, as while a user speaks.
            send_event(says, type="input_audio_buffer.append", audio="AAAA")
            time.sleep(0.25)
        for socket in (quiet, says):
            send_event(socket, type="response.create")
            receive_until(socket, "response.done")
