"""A provider whose answer is no HTTP gets a clear 502 told about it, and the worker lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.canned import Canned
from tests.integration.serving import edges
from tests.integration.wire import CHAT, JSON, MESSAGES, Wire, ask, asked

if TYPE_CHECKING:
    from tests.gateway import Gateway

TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
OK = b"HTTP/1.1 200 OK\r\n"
GARBAGE = {
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
    "a head that stops": OK + b"content-type: text/pl",
    "a field without a colon": OK + b"content-length 5\r\n\r\nhello",
    "a blank in a name": OK + b"content length: 5\r\n\r\nhello",
    "a nought in a value": OK + b"x-a: b\0c\r\n\r\n",
    "a negative length": OK + b"content-length: -1\r\n\r\nhello",
    "a length that is no number": OK + b"content-length: five\r\n\r\nhello",
    "a huge length": OK + b"content-length: 99999999999999999999\r\n\r\nhello",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "too many fields": OK + b"x-a: b\r\n" * 1000 + b"\r\n",
    "an endless head": OK + b"x-a: " + b"b" * 1_000_000 + b"\r\n\r\n",
    "endless hints": b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 5000,
    "a whole body with a bad chunk": OK + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
}


def assert_clear(answer_json: dict, words: str = "") -> None:
    assert answer_json["error"]["message"].startswith("the provider's answer broke off: ")
    assert words in answer_json["error"]["message"]
    assert answer_json["error"]["type"] == "api_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("status", [0, 1, 42, 99, 1000, 9999, 65636, 4294967295])
def test_a_status_that_is_none_is_a_502_and_the_worker_lives(served: Gateway, path: str, status: int, stream: bool):
    before = edges(served)
    with Wire(served.base_url) as wire:
        answer = wire.ask(path, asked(f"mock?status={status}", stream=stream))
        assert (answer.status, answer.get("x-gateway-provider")) == (502, "mock")
        assert_clear(answer.json())
        # The connection is as good as before.
        assert wire.ask(path, asked()).status == 200
    assert edges(served) == before


@pytest.mark.parametrize("status", [100, 103, 199])
def test_a_status_that_promises_an_answer_and_none_comes_ends_at_the_timeout(served: Gateway, status: int):
    before = edges(served)
    headers = {"x-gateway-provider": "mock", "x-gateway-request-timeout": "300", **JSON}
    assert ask(served.base_url, CHAT, asked(f"mock?status={status}"), headers).status in {408, 502}
    assert edges(served) == before


@pytest.mark.parametrize("status", [203, 299, 418, 499, 529, 599, 600, 799, 999])
def test_a_status_that_nobody_knows_passes(served: Gateway, status: int):
    before = edges(served)
    assert ask(served.base_url, CHAT, asked(f"mock?status={status}")).status == status
    assert edges(served) == before


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_502_and_the_worker_lives(served: Gateway, name: str):
    before = edges(served)
    with Canned(GARBAGE[name]) as canned, Wire(served.base_url) as wire:
        answer = wire.ask(CHAT, asked(), {**canned.headers, **JSON})
        assert answer.status == 502
        assert_clear(answer.json())
        assert ask(served.base_url, CHAT, asked()).status == 200
    assert edges(served) == before


def test_a_provider_that_is_not_there_is_a_502_with_its_name(served: Gateway):
    with Canned(b"") as canned:
        pass
    answer = ask(served.base_url, CHAT, asked(), {**canned.headers, **JSON})
    assert answer.status == 502
    assert canned.url.removeprefix("http://") in answer.json()["error"]["message"]
