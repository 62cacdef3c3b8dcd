"""Lines of an uploaded file that arrives in chunks of any size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batches.files import BATCH, FILE, iter_lines, parse_prefixed_id
from penstock.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_LINE_BYTES = 4


class ChunkedBlob:
    def __init__(self, content: bytes, size: int) -> None:
        self.content, self.size = content, size

    async def read(self, _name: str) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), self.size):
            yield self.content[start : start + self.size]


def read_lines(content: bytes, size: int) -> list[tuple[int, bytes | None]]:
    chunks: Any = ChunkedBlob(content, size)

    async def collect_lines() -> list[tuple[int, bytes | None]]:
        return [line async for line in iter_lines(chunks, "name", MAX_LINE_BYTES)]

    return asyncio.run(collect_lines())


@given(st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r"]), max_size=40), st.integers(1, 9))
def test_lines_do_not_depend_on_chunks_and_long_ones_are_none(parts: list[bytes], size: int):
    content = b"".join(parts)
    numbered = enumerate(content.split(b"\n"), start=1)
    expected = [
        (number, None if len(line) > MAX_LINE_BYTES else line)
        for number, line in numbered
        if line.strip() or len(line) > MAX_LINE_BYTES
    ]
    assert read_lines(content, size) == expected


def test_rejects_foreign_file_ids():
    row = "01a201cb-7e66-76a4-ad8b-ed64bd7c3ab5"
    assert parse_prefixed_id(FILE, FILE + row) == row
    for prefix, prefixed_id in [
        (FILE, row),
        (FILE, BATCH + row),
        (BATCH, f"{BATCH}{row}x"),
        (FILE, f"{FILE}../x"),
        (FILE, FILE),
    ]:
        with pytest.raises(NotFoundError):
            parse_prefixed_id(prefix, prefixed_id)
