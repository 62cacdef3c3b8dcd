"""Many idle streams stay open, use little memory, and delay no other request. `python -m loadtests.idle` measures the
exact figures.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.integration import memory
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS
from tests.integration.serving import edge_pids, run_gateway, run_load

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

pytestmark = pytest.mark.figures

STREAMS, BEATS_SECONDS, QUIET_SECONDS = 300, 0.5, 8
# The promised limit is 40 KB; the first few hundred streams share the one-time allocations, and tests run unoptimised
# builds.
MAX_BYTES_PER_STREAM = 80 * memory.KIB
MAX_P99_US = 250_000


def test_hundreds_of_idle_streams_do_not_delay_new_requests(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"heartbeat_seconds": BEATS_SECONDS}}
    model = f"mock?chunks=2&chunk_ms={QUIET_SECONDS * 1000}"
    with run_gateway(tmp_path, tables) as running_gateway:
        url, (edge,) = running_gateway.base_url + CHAT_PATH, edge_pids(running_gateway)
        with run_load("stream", url, streams=50, rounds=4, seconds=5, headers=MOCK_HEADERS) as warm:
            pass
        assert warm["errors"] == 0
        # Writing their records counts tokens, which loads the vocabulary and its one-time memory.
        running_gateway.records(200)
        before = memory.rss(edge)
        with run_load(
            "hold", url, streams=STREAMS, seconds=QUIET_SECONDS + 10, model=model, expect_chunks=5, headers=MOCK_HEADERS
        ) as buffered:
            time.sleep(QUIET_SECONDS / 4)
            with run_load("rate", url, rate=50, seconds=QUIET_SECONDS / 2, connections=8, headers=MOCK_HEADERS) as new:
                pass
            grown = (memory.rss(edge) - before) / STREAMS
        print(buffered, new, f"{grown / memory.KIB:.0f} KiB for each")
        assert (buffered["finished"], buffered["failed"], buffered["errors"]) == (STREAMS, 0, 0)
        # Each stream received at least half of the expected heartbeats.
        assert buffered["bytes"] > STREAMS * len(": keep-alive\n\n") * QUIET_SECONDS / BEATS_SECONDS / 2
        assert (new["errors"], new["p99_us"] < MAX_P99_US) == (0, True)
        assert grown < MAX_BYTES_PER_STREAM
        outcomes = [record["outcome"] for record in running_gateway.records(STREAMS)]
        assert set(outcomes) == {"complete"}
