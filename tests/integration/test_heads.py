"""Size limit of request heads, on every route and for every cause of a long head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    send_raw_request,
)

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

MAX_HEAD_BYTES = 65_536
WEBSOCKET_HEADERS = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "a" * 22 + "==",
}


def long_headers(length: int) -> dict[str, str]:
    return {**MOCK_HEADERS, "x-long": "a" * length}


def test_accepts_a_head_up_to_the_limit(running_gateway: Gateway, provider: Mock):
    assert (
        send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), long_headers(MAX_HEAD_BYTES - 1_000)).status
        == 200
    )
    assert len(provider.ledger()) == 1


@pytest.mark.parametrize("over", [1_000, 60_000])
def test_rejects_a_longer_head_and_keeps_the_connection(running_gateway: Gateway, provider: Mock, over: int):
    with RawConnection(running_gateway.base_url) as connection:
        for path in (CHAT_PATH, MESSAGES_PATH, "/v1/proxy/anything", "/v1/api-keys", "/nowhere"):
            response = connection.request(path, chat_body(), long_headers(MAX_HEAD_BYTES + over))
            assert response.status == 431, path
            reported = response.json()["error"]
            assert (
                reported["message"]
                == f"the request's headers are larger than {MAX_HEAD_BYTES} bytes (server.header_bytes)"
            )
            assert reported["type"] == "invalid_request_error"
            assert path == MESSAGES_PATH or reported["code"] == "headers_too_large"
        assert connection.request(CHAT_PATH, chat_body(), MOCK_HEADERS).status == 200
    assert len(provider.ledger()) == 1


def test_limit_counts_all_fields_the_path_and_websocket_heads(running_gateway: Gateway, provider: Mock):
    many = {**MOCK_HEADERS, **{f"x-{number}": "a" * 1_000 for number in range(70)}}
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), many).status == 431
    path = f"{CHAT_PATH}?a={'a' * (MAX_HEAD_BYTES // 2)}"
    assert (
        send_raw_request(running_gateway.base_url, path, chat_body(), long_headers(MAX_HEAD_BYTES // 2)).status == 431
    )
    assert (
        send_raw_request(
            running_gateway.base_url,
            "/v1/realtime?model=m",
            None,
            {**long_headers(MAX_HEAD_BYTES), **WEBSOCKET_HEADERS},
        ).status
        == 431
    )
    assert provider.ledger() == []


def test_server_rejects_a_head_far_over_the_limit(running_gateway: Gateway, provider: Mock):
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), long_headers(1_000_000)).status == 431
    assert provider.ledger() == []
