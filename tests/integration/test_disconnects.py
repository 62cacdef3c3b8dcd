"""Client disconnects. A disconnect cancels the request at once in every phase, and leaves exactly one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import count_settled_records, wait_for_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

# Shorter than the pauses of the mock provider. `test_disconnect_latency.py` measures the promised limit of 100 ms.
MAX_DETECTION_SECONDS = 15.0
UPLOAD_HEADERS = {**MOCK_HEADERS, "content-type": "application/octet-stream", "content-length": "50000000"}


@pytest.fixture(params=["FIN", "RST"])
def leave(request: pytest.FixtureRequest) -> Callable[[RawConnection], None]:
    return RawConnection.close if request.param == "FIN" else RawConnection.reset


@pytest.fixture
def count_before(running_gateway: Gateway, provider: Mock) -> int:
    """Returns the number of records before the test."""
    count = count_settled_records(running_gateway)
    provider.clear_ledger()
    return count


def assert_one_aborted_record(running_gateway: Gateway, count_before: int, model: str = "") -> dict[str, Any]:
    """Checks that exactly one record was added, and returns it."""
    running_gateway.records(count_before + 1)
    # The record of this later request is written after any record that is still pending.
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("after-it"))

    def read_new_records() -> list[dict[str, Any]] | None:
        records = running_gateway.records(0)[count_before:]
        return records if records[-1]["ai_model"] == "after-it" else None

    record, _ = wait_for("the record after it", read_new_records)
    assert (record["outcome"], record["is_success"], record["ai_model"]) == ("aborted", False, model)
    return record


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_while_waiting_for_the_first_byte(
    running_gateway: Gateway,
    provider: Mock,
    count_before: int,
    leave: Callable[[RawConnection], None],
    path: str,
    stream: bool,
):
    model = "mock?first_ms=30000"
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", path, MOCK_HEADERS, chat_body(model, stream=stream)))
        wait_for_request(provider)
        leave(connection)
    received = wait_for_request(provider, ended=True, seconds=MAX_DETECTION_SECONDS)
    assert received["outcome"] == "client_closed"
    record = assert_one_aborted_record(running_gateway, count_before, model)
    assert record["response_status_code"] == 499


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("chunk_ms", [10, 20_000])
def test_disconnect_during_a_stream(
    running_gateway: Gateway,
    provider: Mock,
    count_before: int,
    leave: Callable[[RawConnection], None],
    path: str,
    chunk_ms: int,
):
    model = f"mock?chunks=5000&chunk_ms={chunk_ms}"
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", path, MOCK_HEADERS, chat_body(model, stream=True)))
        connection.read_events(connection.read_head(), 2)
        leave(connection)
    received = wait_for_request(provider, ended=True, seconds=MAX_DETECTION_SECONDS)
    assert received["outcome"] == "client_closed"
    record = assert_one_aborted_record(running_gateway, count_before, model)
    assert record["response_status_code"] == 200
    assert record["bytes_out"] > 0


def test_disconnect_during_a_large_response(
    running_gateway: Gateway, provider: Mock, count_before: int, leave: Callable[[RawConnection], None]
):
    model = "mock?response_bytes=50000000"
    with RawConnection(running_gateway.base_url, receive_buffer=4096) as connection:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body(model)))
        connection.read_head()
        leave(connection)
    assert wait_for_request(provider, ended=True, seconds=MAX_DETECTION_SECONDS)["outcome"] == "client_closed"
    assert_one_aborted_record(running_gateway, count_before, model)


def test_disconnect_during_an_upload(
    running_gateway: Gateway, provider: Mock, count_before: int, leave: Callable[[RawConnection], None]
):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", "/v1/files", UPLOAD_HEADERS, b"x" * 3_000_000))
        # The mock provider shows nothing yet, because it writes its ledger when a request is complete or aborted.
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("after-it")).status == 200
        leave(connection)
    received = wait_for_request(provider, "/v1/files", ended=True, seconds=MAX_DETECTION_SECONDS)
    assert received["outcome"] == "client_closed"
    running_gateway.records(count_before + 2)
    aborted = [record for record in running_gateway.records(0)[count_before:] if record["request_url"] == "/v1/files"]
    assert [record["outcome"] for record in aborted] == ["aborted"]


def test_disconnect_during_a_chunked_upload(
    running_gateway: Gateway, provider: Mock, count_before: int, leave: Callable[[RawConnection], None]
):
    headers = {**MOCK_HEADERS, "content-type": "application/octet-stream", "transfer-encoding": "chunked"}
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", "/v1/files", headers, b"%x\r\n%s\r\n" % (2_000_000, b"x" * 2_000_000)))
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("after-it")).status == 200
        leave(connection)
    received = wait_for_request(provider, "/v1/files", ended=True, seconds=MAX_DETECTION_SECONDS)
    assert received["outcome"] == "client_closed"
    running_gateway.records(count_before + 2)
    aborted = [record for record in running_gateway.records(0)[count_before:] if record["request_url"] == "/v1/files"]
    assert [record["outcome"] for record in aborted] == ["aborted"]


def test_disconnect_before_a_small_body_is_complete(
    running_gateway: Gateway, provider: Mock, count_before: int, leave: Callable[[RawConnection], None]
):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, {**MOCK_HEADERS, "content-length": "1000"}, b'{"model":'))
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("between")).status == 200
        leave(connection)
    assert wait_for_request(provider)["model"] == "between"
    records = running_gateway.records(count_before + 2)[count_before:]
    remaining = [record for record in records if record["ai_model"] != "between"]
    # The gateway cannot distinguish a disconnect from broken framing here.
    assert [record["outcome"] for record in remaining] in (["aborted"], ["refused"])


def test_disconnect_on_a_keep_alive_connection(
    running_gateway: Gateway, provider: Mock, count_before: int, leave: Callable[[RawConnection], None]
):
    model = "mock?chunks=5000&chunk_ms=10"
    with RawConnection(running_gateway.base_url) as connection:
        for _ in range(3):
            connection.request(CHAT_PATH, chat_body("first", stream=True))
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body(model, stream=True)))
        connection.read_events(connection.read_head(), 2)
        running_gateway.records(count_before + 3)
        provider.clear_ledger()
        leave(connection)
    wait_for("its record", lambda: len(running_gateway.records(0)) == count_before + 4 or None, MAX_DETECTION_SECONDS)
    record = assert_one_aborted_record(running_gateway, count_before + 3, model)
    assert record["outcome"] == "aborted"


def test_a_hundred_disconnects_at_once(running_gateway: Gateway, provider: Mock, count_before: int):
    connections = [RawConnection(running_gateway.base_url) for _ in range(100)]
    for connection in connections:
        connection.send(encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?first_ms=30000", stream=True)))
    wait_for("all at the provider", lambda: len(provider.ledger()) == 100 or None, 10)
    for connection in connections:
        connection.close()
    wait_for(
        "all gone", lambda: all(received["outcome"] == "client_closed" for received in provider.ledger()) or None, 5
    )
    records = running_gateway.records(count_before + 100)[count_before:]
    assert [record["outcome"] for record in records] == ["aborted"] * 100
    assert len({record["id"] for record in records}) == 100


def test_connected_client_is_not_reported_as_disconnected(running_gateway: Gateway, provider: Mock, count_before: int):
    with RawConnection(running_gateway.base_url) as connection:
        for model in ("mock?first_ms=400", "mock?chunks=10&chunk_ms=50"):
            assert connection.request(CHAT_PATH, chat_body(model, stream=True)).events[-1] == b"data: [DONE]"
    assert [record["outcome"] for record in running_gateway.records(count_before + 2)[count_before:]] == [
        "complete"
    ] * 2
    assert [received["outcome"] for received in provider.ledger()] == ["complete"] * 2
