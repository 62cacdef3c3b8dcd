"""Benchmark of decoding Avro files to JSON lines, against fastavro."""

from __future__ import annotations

import io
import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).parents[1]
BUILD_COMMAND = ("cargo", "build", "--quiet", "--release", "--package", "penstock-llm", "--example", "avro")
ROUNDS = 5
# A text and its embedding, as in the results of an embedding job.
SCHEMA = {
    "type": "record",
    "name": "Result",
    "fields": [
        {"name": "custom_id", "type": "string"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "embedding", "type": {"type": "array", "items": "double"}},
    ],
}
RECORDS, DIMENSIONS = 2000, 256


def write_file(codec: str) -> bytes:
    """Returns an Avro file of some megabytes."""
    embedding = [number / 7 for number in range(DIMENSIONS)]
    records = [
        {"custom_id": f"line-{number}", "text": f"Text {number} of the batch. " * 8, "embedding": embedding}
        for number in range(RECORDS)
    ]
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), records, codec=codec)
    return file.getvalue()


def decode_with_fastavro(content: bytes) -> str:
    return "".join(json.dumps(record) + "\n" for record in fastavro.reader(io.BytesIO(content)))


def run_decoder(file: Path) -> tuple[list[Any], list[float]]:
    """Returns the records that Penstock's decoder reads, and the seconds of each round."""
    command = ("cargo", "metadata", "--no-deps", "--format-version", "1")
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    program = Path(metadata["target_directory"]) / "release/examples/avro"
    done = subprocess.run([program, file, str(ROUNDS)], check=True, capture_output=True, text=True)
    return list(map(json.loads, done.stdout.splitlines())), [int(line) / 1e9 for line in done.stderr.splitlines()]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_file_is_decoded(
    benchmark: BenchmarkFixture, tmp_path: Path, capsys: pytest.CaptureFixture[str], codec: str
) -> None:
    subprocess.run(BUILD_COMMAND, cwd=ROOT, check=True)
    content = write_file(codec)
    file = tmp_path / "results.avro"
    file.write_bytes(content)
    lines, theirs = "", list[float]()
    for _ in range(ROUNDS):
        started_at = time.perf_counter()
        lines = decode_with_fastavro(content)
        theirs.append(time.perf_counter() - started_at)
    records, ours = benchmark.pedantic(run_decoder, (file,), rounds=1)
    assert records == list(map(json.loads, lines.splitlines()))
    benchmark.extra_info["times as fast as fastavro"] = ratio = median(theirs) / median(ours)
    with capsys.disabled():
        print(
            f"\n{codec}: {len(content) / 1e6:.1f} MB as {len(lines) / 1e6:.1f} MB of JSON: {median(ours) * 1000:.0f} ms"
            f" against {median(theirs) * 1000:.0f} ms of fastavro {fastavro.__version__}: {ratio:.1f} ×"
        )
