"""Benchmarks of the log worker's input: frames of the spool, and records decoded into columns for DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs import spool_format as spool
from penstock.logs.engines.duckdb import make_decoder
from tests.unit.logs.samples import Sample

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

RECORDS = 1000


def test_decodes_thousand_records(benchmark: BenchmarkFixture) -> None:
    lines = Sample(RECORDS).batch().records
    decoder = make_decoder()
    assert len(benchmark(decoder.decode, lines, "node", [])) == RECORDS


def test_decodes_frames_of_thousand_records(benchmark: BenchmarkFixture) -> None:
    data = b"".join(
        spool.encode_frame(kind, 0, number.to_bytes(16, "big"), line)
        for number, line in enumerate(Sample(RECORDS).batch().records)
        for kind in (spool.BEGIN, spool.END)
    )
    assert len(benchmark(spool.decode_frames, data, 0, 2 * RECORDS).frames) == RECORDS
