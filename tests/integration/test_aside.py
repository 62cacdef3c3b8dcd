"""Over HTTP/2 a stream that nobody reads ends alone: those beside it on its connection go on, and who reads again is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.frames import DATA, END_STREAM, GOAWAY
from tests.integration.canned import CHUNKED, Canned
from tests.integration.http2 import Http2
from tests.integration.serving import WAYS, running, settled
from tests.integration.wire import CHAT, MESSAGES, MOCK, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Gateway, Mock

ENDLESS = "mock?chunks=100000&chunk_bytes=4096"
FILE = "/v1/files/f-1/content"
LARGE = b"%x\r\n" % 40_000_000 + b"hello" * 6_000_000
PLENTY = 1 << 30
WINDOW = 1000
# More than this of one connection are not left like that.
MOST_ASIDE = 8
ROOM = 20.0


@pytest.fixture(scope="module", params=WAYS)
def stalling(
    request: pytest.FixtureRequest, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    tables = {
        "mock": {"host": provider.url},
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
        "server": {"write_stall_ms": 400},
    }
    with running(tmp_path_factory.mktemp(request.param), tables, request.param) as gateway:
        yield gateway


@pytest.fixture
def line(stalling: Gateway) -> Iterator[Http2]:
    # Little of each stream, so that nothing waits in the socket, which has a limit of its own; of all together what they like.
    with Http2(stalling.base_url, ROOM, WINDOW) as line:
        line.grant(0, PLENTY)
        yield line


def given_up(provider: Mock, count: int = 1) -> None:
    """Wait until the provider of so many streams saw that nobody wants more."""

    def look() -> bool | None:
        return sum(seen["outcome"] == "client_closed" for seen in provider.ledger()) >= count or None

    wait("the stream given up", look, ROOM)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_events_that_nobody_reads_end_alone_and_say_why(provider: Mock, line: Http2, path: str):
    provider.forget()
    line.ask(1, "POST", path, MOCK, asked(ENDLESS, stream=True))
    given_up(provider)
    for number in (3, 5):
        line.ask(number, "POST", CHAT, MOCK, asked())
        assert json.loads(line.until_ended(number)[number])["object"] == "chat.completion"
    line.grant(1, PLENTY)
    told = line.until_ended(1)[1]
    *_, last = told.rstrip().split(b"\n\n")
    assert b"was not read for 400 ms" in last
    assert b"[DONE]" not in told
    assert b"message_stop" not in told
    line.ask(7, "POST", CHAT, MOCK, asked(stream=True))
    line.grant(7, PLENTY)
    assert line.until_ended(7)[7].endswith(b"data: [DONE]\n\n")


def test_its_record_says_that_it_was_not_read(stalling: Gateway, provider: Mock, line: Http2):
    provider.forget()
    before = settled(stalling)
    line.ask(1, "POST", CHAT, MOCK, asked(ENDLESS, stream=True))
    given_up(provider)
    record = stalling.records(before + 1)[before]
    assert (record["outcome"], record["error"], record["is_success"]) == ("cut", "not_read", False)


def test_an_answer_of_known_length_ends_alone(provider: Mock, line: Http2):
    provider.forget()
    line.ask(1, "POST", CHAT, MOCK, asked("mock?answer_bytes=16000000"))
    given_up(provider)
    line.ask(3, "POST", CHAT, MOCK, asked())
    assert line.until_ended(3)[3]
    line.grant(1, PLENTY)
    # Less than was promised: an error of this one stream.
    assert len(line.until_ended(1)[1]) < 16_000_000
    line.ask(5, "POST", CHAT, MOCK, asked())
    assert line.until_ended(5)[5]


def test_an_answer_of_unknown_length_takes_its_connection_along_only_when_it_is_read_again(
    line: Http2, stalling: Gateway
):
    before = settled(stalling)
    with Canned(CHUNKED + LARGE, pause=ROOM) as canned:
        line.ask(1, "GET", FILE, canned.headers)
        assert stalling.records(before + 1)[before]["error"] == "not_read"
        line.ask(3, "POST", CHAT, MOCK, asked())
        assert line.until_ended(3)[3]
    line.grant(1, PLENTY)
    frames = [(kind, flags) for kind, flags, number, _ in line.frames() if number == 1 or kind == GOAWAY]
    assert not any(kind == DATA and flags & END_STREAM for kind, flags in frames)


def test_no_more_than_a_few_are_left_like_that(provider: Mock, line: Http2, stalling: Gateway):
    provider.forget()
    for number in range(MOST_ASIDE + 1):
        line.ask(1 + 2 * number, "POST", CHAT, MOCK, asked(ENDLESS, stream=True))
    given_up(provider, MOST_ASIDE + 1)
    # To its end.
    assert not [number for kind, flags, number, _ in line.frames() if kind == DATA and flags & END_STREAM]
    assert ask(stalling.base_url, CHAT, asked()).status == 200


def test_who_resets_them_may_have_as_many_again(provider: Mock, line: Http2):
    provider.forget()
    for number in range(MOST_ASIDE):
        line.ask(1 + 2 * number, "POST", CHAT, MOCK, asked(ENDLESS, stream=True))
    given_up(provider, MOST_ASIDE)
    for number in range(MOST_ASIDE):
        line.reset(1 + 2 * number)
    line.ask(101, "POST", CHAT, MOCK, asked(ENDLESS, stream=True))
    given_up(provider, MOST_ASIDE + 1)
    line.ask(103, "POST", CHAT, MOCK, asked())
    assert line.until_ended(103)[103]
