"""A file of Avro becomes lines, and one that says that it holds much takes no more than it may."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import fastavro

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = fastavro.parse_schema({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "string"]}]})
MEGABYTE = 1024 * 1024


def avro(*values: str | None) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, [{"a": value} for value in values], codec="deflate")
    return file.getvalue()


def read(content: bytes, written: Path, before: str = "pass") -> tuple[int, bytes]:
    program = f"from penstock.jobs import avro; {before}; avro.main()"
    with written.open("wb") as out:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, input=content, stdout=out, stderr=subprocess.PIPE, check=False, timeout=30)
    return done.returncode, done.stderr


def test_each_record_becomes_a_line(tmp_path: Path):
    assert read(avro("ä", None), tmp_path / "x") == (0, b"")
    assert [json.loads(line) for line in (tmp_path / "x").read_bytes().splitlines()] == [{"a": "ä"}, {"a": None}]


def test_what_is_no_avro_or_too_large_fails(tmp_path: Path):
    large = avro("x" * 300 * MEGABYTE)
    assert len(large) < MEGABYTE
    assert read(b"<html>", tmp_path / "x")[0] != 0
    assert b"MemoryError" in read(large, tmp_path / "x", f"avro.MOST_MEMORY = {200 * MEGABYTE}")[1]
    assert b"too large" in read(avro("x" * 2 * MEGABYTE), tmp_path / "x", f"avro.LONGEST_OUTPUT = {MEGABYTE}")[1]
