"""How long the head of a request may be, wherever it leads and whatever makes it long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.wire import CHAT, MESSAGES, MOCK, Wire, ask, asked

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

LIMIT = 65_536
SOCKET = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "a" * 22 + "==",
}


def long(length: int) -> dict[str, str]:
    return {**MOCK, "x-long": "a" * length}


def test_a_long_head_is_taken_up_to_the_limit(served: Gateway, provider: Mock):
    assert ask(served.base_url, CHAT, asked(), long(LIMIT - 1_000)).status == 200
    assert len(provider.ledger()) == 1


@pytest.mark.parametrize("over", [1_000, 60_000])
def test_a_longer_one_is_refused_in_the_callers_envelope_and_its_connection_goes_on(
    served: Gateway, provider: Mock, over: int
):
    with Wire(served.base_url) as wire:
        for path in (CHAT, MESSAGES, "/v1/proxy/anything", "/v1/api-keys", "/nowhere"):
            answer = wire.ask(path, asked(), long(LIMIT + over))
            assert answer.status == 431, path
            told = answer.json()["error"]
            assert told["message"] == f"the request's headers are larger than {LIMIT} bytes (server.header_bytes)"
            assert told["type"] == "invalid_request_error"
            assert path == MESSAGES or told["code"] == "headers_too_large"
        assert wire.ask(CHAT, asked(), MOCK).status == 200
    assert len(provider.ledger()) == 1


def test_many_fields_and_a_long_path_count_and_so_do_those_of_a_websocket(served: Gateway, provider: Mock):
    many = {**MOCK, **{f"x-{number}": "a" * 1_000 for number in range(70)}}
    assert ask(served.base_url, CHAT, asked(), many).status == 431
    path = f"{CHAT}?a={'a' * (LIMIT // 2)}"
    assert ask(served.base_url, path, asked(), long(LIMIT // 2)).status == 431
    assert ask(served.base_url, "/v1/realtime?model=m", None, {**long(LIMIT), **SOCKET}).status == 431
    assert provider.ledger() == []


def test_one_that_has_no_end_is_refused_by_the_server(served: Gateway, provider: Mock):
    assert ask(served.base_url, CHAT, asked(), long(1_000_000)).status == 431
    assert provider.ledger() == []
