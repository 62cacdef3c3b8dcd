"""Invalid HTTP from a provider. The client gets a 502 that says so, and the worker survives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.canned import CannedProvider
from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    RawConnection,
    chat_body,
    send_raw_request,
)
from tests.integration.serving import edge_pids

if TYPE_CHECKING:
    from tests.gateway import Gateway

TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
OK_LINE = b"HTTP/1.1 200 OK\r\n"
INVALID_RESPONSES = {
    "nothing": b"",
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "noughts": b"\0" * 1000,
    "another protocol": b"HTTP/2 200\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "a huge status": b"HTTP/1.1 18446744073709551816 OK\r\n\r\n",
    "status 000": b"HTTP/1.1 000 No\r\ncontent-length: 0\r\n\r\n",
    "status 099": b"HTTP/1.1 099 No\r\ncontent-length: 0\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "a head that stops": OK_LINE + b"content-type: text/pl",
    "a field without a colon": OK_LINE + b"content-length 5\r\n\r\nhello",
    "a blank in a name": OK_LINE + b"content length: 5\r\n\r\nhello",
    "a nought in a value": OK_LINE + b"x-a: b\0c\r\n\r\n",
    "a negative length": OK_LINE + b"content-length: -1\r\n\r\nhello",
    "a length that is no number": OK_LINE + b"content-length: five\r\n\r\nhello",
    "a huge length": OK_LINE + b"content-length: 99999999999999999999\r\n\r\nhello",
    "two lengths": OK_LINE + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "too many fields": OK_LINE + b"x-a: b\r\n" * 1000 + b"\r\n",
    "an endless head": OK_LINE + b"x-a: " + b"b" * 1_000_000 + b"\r\n\r\n",
    "endless hints": b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 5000,
    "a whole body with a bad chunk": OK_LINE
    + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
}


def assert_invalid_response_error(answer_json: dict, words: str = "") -> None:
    assert answer_json["error"]["message"].startswith("the provider's response broke off: ")
    assert words in answer_json["error"]["message"]
    assert answer_json["error"]["type"] == "api_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("status", [0, 1, 42, 99, 1000, 9999, 65636, 4294967295])
def test_invalid_status_is_a_502_and_the_worker_survives(
    running_gateway: Gateway, path: str, status: int, stream: bool
):
    before = edge_pids(running_gateway)
    with RawConnection(running_gateway.base_url) as connection:
        response = connection.request(path, chat_body(f"mock?status={status}", stream=stream))
        assert (response.status, response.get_header("x-gateway-provider")) == (502, "mock")
        assert_invalid_response_error(response.json())
        # The client's connection stays usable.
        assert connection.request(path, chat_body()).status == 200
    assert edge_pids(running_gateway) == before


@pytest.mark.parametrize("status", [100, 103, 199])
def test_informational_status_without_a_response_times_out(running_gateway: Gateway, status: int):
    before = edge_pids(running_gateway)
    headers = {"x-gateway-provider": "mock", "x-gateway-request-timeout": "300", **JSON_HEADERS}
    assert send_raw_request(
        running_gateway.base_url, CHAT_PATH, chat_body(f"mock?status={status}"), headers
    ).status in {
        408,
        502,
    }
    assert edge_pids(running_gateway) == before


@pytest.mark.parametrize("status", [203, 299, 418, 499, 529, 599, 600, 799, 999])
def test_forwards_unknown_status_codes(running_gateway: Gateway, status: int):
    before = edge_pids(running_gateway)
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(f"mock?status={status}")).status == status
    assert edge_pids(running_gateway) == before


@pytest.mark.parametrize("name", INVALID_RESPONSES)
def test_invalid_http_is_a_502_and_the_worker_survives(running_gateway: Gateway, name: str):
    before = edge_pids(running_gateway)
    with CannedProvider(INVALID_RESPONSES[name]) as canned, RawConnection(running_gateway.base_url) as connection:
        response = connection.request(CHAT_PATH, chat_body(), {**canned.headers, **JSON_HEADERS})
        assert response.status == 502
        assert_invalid_response_error(response.json())
        assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body()).status == 200
    assert edge_pids(running_gateway) == before


def test_unreachable_provider_is_a_502_with_its_address(running_gateway: Gateway):
    with CannedProvider(b"") as canned:
        pass
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), {**canned.headers, **JSON_HEADERS})
    assert response.status == 502
    assert canned.url.removeprefix("http://") in response.json()["error"]["message"]
