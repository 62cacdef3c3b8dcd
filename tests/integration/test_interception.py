"""Interception of requests before they become Python tasks. Fails if requests are no longer intercepted; the plain ASGI
path is tested too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_chunks,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import ENTRY_MODES, read_metrics, run_gateway, wait_for_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

INTERCEPTED, PLAIN = "penstock_requests_fast_path_total", "penstock_requests_asgi_fallback_total"
METRICS_TABLE = {"metrics": {"enabled": True}}


@pytest.fixture(params=ENTRY_MODES)
def entry_mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new_gateway(entry_mode: str, provider: Mock, tmp_path: Path) -> Iterator[Gateway]:
    with run_gateway(tmp_path, {"mock": {"host": provider.url}, **METRICS_TABLE}, entry_mode) as gateway:
        yield gateway


def wait_for_counts(gateway: Gateway, count: int) -> tuple[float, float]:
    """Returns the numbers of intercepted and plain requests, once the engine has counted at least `count`."""

    def read_counts() -> tuple[float, float] | None:
        figures = read_metrics(gateway)
        intercepted, plain = figures.get(INTERCEPTED, 0), figures.get(PLAIN, 0)
        return (intercepted, plain) if intercepted + plain >= count else None

    return wait_for("the engine's figures", read_counts, 10)


def send_every_kind(gateway: Gateway, provider: Mock) -> None:
    """Sends buffered and streamed requests, uploads with both framings, an invalid body, a provider error, a management
    request, and a stream that the client aborts.
    """
    url = gateway.base_url
    assert send_raw_request(url, CHAT_PATH, chat_body()).status == 200
    assert send_raw_request(url, CHAT_PATH, chat_body(stream=True)).events[-1] == b"data: [DONE]"
    assert (
        send_raw_request(url, "/v1/files", b"x" * 100_000, {**MOCK_HEADERS, "content-type": "text/plain"}).json()[
            "body_bytes"
        ]
        == 100_000
    )
    framing = {"transfer-encoding": "chunked", "content-type": "text/plain"}
    assert (
        send_raw_request(url, "/v1/files", encode_chunks(b"a", b"bc"), {**MOCK_HEADERS, **framing}).json()["body_bytes"]
        == 3
    )
    assert send_raw_request(url, CHAT_PATH, b"{").status == 400
    assert send_raw_request(url, CHAT_PATH, chat_body("mock?fault=429")).status == 429
    assert send_raw_request(url, "/v1/version", headers={}).status == 200
    provider.clear_ledger()
    with RawConnection(url) as connection:
        connection.send(
            encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body("mock?chunk_ms=50&chunks=1000", stream=True))
        )
        connection.read_events(connection.read_head(), 2)
    assert wait_for_request(provider, ended=True)["outcome"] == "client_closed"


def test_requests_enter_through_the_expected_path(new_gateway: Gateway, provider: Mock, entry_mode: str):
    send_every_kind(new_gateway, provider)
    intercepted, plain = wait_for_counts(new_gateway, 8)
    if entry_mode == "intercepted":
        assert intercepted >= 8
        # Not a single one: a request that is not intercepted costs 50 % more, and would go unnoticed.
        assert plain == 0, "requests are no longer intercepted; see what changed between Granian and the engine"
    else:
        assert (intercepted, plain >= 8) == (0, True)


def test_both_entry_paths_write_the_same_records(new_gateway: Gateway, provider: Mock):
    send_every_kind(new_gateway, provider)
    # In any order, because a record is written after its tokens are counted.
    received = sorted((record["outcome"], record["response_status_code"]) for record in new_gateway.records(7))
    assert received == [("aborted", 200), *[("complete", 200)] * 4, ("complete", 429), ("refused", 400)]
