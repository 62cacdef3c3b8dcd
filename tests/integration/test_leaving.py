"""A caller who leaves ends the work for him at once, whatever the work was at, and leaves exactly one record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.serving import entry, settled
from tests.integration.wire import CHAT, MESSAGES, MOCK, Wire, ask, asked, request
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

# The promise is 100 ms at most; a machine that is busy compiling gets more.
SOON = 2.0
UPLOAD = {**MOCK, "content-type": "application/octet-stream", "content-length": "50000000"}


@pytest.fixture(params=["FIN", "RST"])
def leave(request: pytest.FixtureRequest) -> Callable[[Wire], None]:
    return Wire.close if request.param == "FIN" else Wire.reset


@pytest.fixture
def before(served: Gateway, provider: Mock) -> int:
    """How many records there were."""
    count = settled(served)
    provider.forget()
    return count


def assert_one_aborted(served: Gateway, before: int, model: str = "") -> dict[str, Any]:
    """One record more than before, and no second one after it."""
    served.records(before + 1)
    # A later record stands behind whatever could still be on its way.
    ask(served.base_url, CHAT, asked("after-it"))

    def later() -> list[dict[str, Any]] | None:
        records = served.records(0)[before:]
        return records if records[-1]["ai_model"] == "after-it" else None

    record, _ = wait("the record after it", later)
    assert (record["outcome"], record["is_success"], record["ai_model"]) == ("aborted", False, model)
    return record


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_while_waiting_for_the_first_byte(
    served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None], path: str, stream: bool
):
    model = "mock?first_ms=30000"
    with Wire(served.base_url) as wire:
        wire.send(request("POST", path, MOCK, asked(model, stream=stream)))
        entry(provider)
        left = time.monotonic()
        leave(wire)
    seen = entry(provider, ended=True, seconds=SOON)
    assert seen["outcome"] == "client_closed"
    assert time.monotonic() - left < SOON
    record = assert_one_aborted(served, before, model)
    assert record["response_status_code"] == 499


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("chunk_ms", [10, 20_000])
def test_in_a_stream(
    served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None], path: str, chunk_ms: int
):
    model = f"mock?chunks=5000&chunk_ms={chunk_ms}"
    with Wire(served.base_url) as wire:
        wire.send(request("POST", path, MOCK, asked(model, stream=True)))
        wire.events(wire.head(), 2)
        leave(wire)
    seen = entry(provider, ended=True, seconds=SOON)
    assert seen["outcome"] == "client_closed"
    record = assert_one_aborted(served, before, model)
    assert record["response_status_code"] == 200
    assert record["bytes_out"] > 0


def test_in_a_large_answer(served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None]):
    model = "mock?answer_bytes=50000000"
    with Wire(served.base_url, receive_buffer=4096) as wire:
        wire.send(request("POST", CHAT, MOCK, asked(model)))
        wire.head()
        leave(wire)
    assert entry(provider, ended=True, seconds=SOON)["outcome"] == "client_closed"
    assert_one_aborted(served, before, model)


def test_while_uploading(served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None]):
    with Wire(served.base_url) as wire:
        wire.send(request("POST", "/v1/files", UPLOAD, b"x" * 3_000_000))
        # The provider has seen nothing that it could show yet: its ledger is written when a request is complete or broken off.
        assert ask(served.base_url, CHAT, asked("after-it")).status == 200
        leave(wire)
    seen = entry(provider, "/v1/files", ended=True, seconds=SOON)
    assert seen["outcome"] == "client_closed"
    served.records(before + 2)
    aborted = [record for record in served.records(0)[before:] if record["request_url"] == "/v1/files"]
    assert [record["outcome"] for record in aborted] == ["aborted"]


def test_while_uploading_in_chunks(served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None]):
    headers = {**MOCK, "content-type": "application/octet-stream", "transfer-encoding": "chunked"}
    with Wire(served.base_url) as wire:
        wire.send(request("POST", "/v1/files", headers, b"%x\r\n%s\r\n" % (2_000_000, b"x" * 2_000_000)))
        assert ask(served.base_url, CHAT, asked("after-it")).status == 200
        leave(wire)
    seen = entry(provider, "/v1/files", ended=True, seconds=SOON)
    assert seen["outcome"] == "client_closed"
    served.records(before + 2)
    aborted = [record for record in served.records(0)[before:] if record["request_url"] == "/v1/files"]
    assert [record["outcome"] for record in aborted] == ["aborted"]


def test_before_a_small_body_has_come(served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None]):
    with Wire(served.base_url) as wire:
        wire.send(request("POST", CHAT, {**MOCK, "content-length": "1000"}, b'{"model":'))
        assert ask(served.base_url, CHAT, asked("between")).status == 200
        leave(wire)
    assert entry(provider)["model"] == "between"
    records = served.records(before + 2)[before:]
    left = [record for record in records if record["ai_model"] != "between"]
    # Nobody can tell a caller who left from one who broke the framing.
    assert [record["outcome"] for record in left] in (["aborted"], ["refused"])


def test_on_a_kept_connection(served: Gateway, provider: Mock, before: int, leave: Callable[[Wire], None]):
    model = "mock?chunks=5000&chunk_ms=10"
    with Wire(served.base_url) as wire:
        for _ in range(3):
            wire.ask(CHAT, asked("first", stream=True))
        wire.send(request("POST", CHAT, MOCK, asked(model, stream=True)))
        wire.events(wire.head(), 2)
        served.records(before + 3)
        provider.forget()
        leave(wire)
    wait("its record", lambda: len(served.records(0)) == before + 4 or None, SOON)
    record = assert_one_aborted(served, before + 3, model)
    assert record["outcome"] == "aborted"


def test_a_hundred_at_once(served: Gateway, provider: Mock, before: int):
    wires = [Wire(served.base_url) for _ in range(100)]
    for wire in wires:
        wire.send(request("POST", CHAT, MOCK, asked("mock?first_ms=30000", stream=True)))
    wait("all at the provider", lambda: len(provider.ledger()) == 100 or None, 10)
    for wire in wires:
        wire.close()
    wait("all gone", lambda: all(seen["outcome"] == "client_closed" for seen in provider.ledger()) or None, 5)
    records = served.records(before + 100)[before:]
    assert [record["outcome"] for record in records] == ["aborted"] * 100
    assert len({record["id"] for record in records}) == 100


def test_a_caller_who_stays_is_not_taken_for_one_who_left(served: Gateway, provider: Mock, before: int):
    with Wire(served.base_url) as wire:
        for model in ("mock?first_ms=400", "mock?chunks=10&chunk_ms=50"):
            assert wire.ask(CHAT, asked(model, stream=True)).events[-1] == b"data: [DONE]"
    assert [record["outcome"] for record in served.records(before + 2)[before:]] == ["complete"] * 2
    assert [seen["outcome"] for seen in provider.ledger()] == ["complete"] * 2
