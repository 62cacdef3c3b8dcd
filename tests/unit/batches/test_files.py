"""Lines of a file that comes in pieces of any size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batches.files import BATCH, FILE, iter_lines, parse_wire_id
from penstock.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONGEST = 4


class Pieces:
    def __init__(self, content: bytes, size: int) -> None:
        self.content, self.size = content, size

    async def read(self, _name: str) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), self.size):
            yield self.content[start : start + self.size]


def read(content: bytes, size: int) -> list[tuple[int, bytes | None]]:
    pieces: Any = Pieces(content, size)

    async def scene() -> list[tuple[int, bytes | None]]:
        return [line async for line in iter_lines(pieces, "name", LONGEST)]

    return asyncio.run(scene())


@given(st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r"]), max_size=40), st.integers(1, 9))
def test_lines_are_the_same_whatever_the_pieces_and_one_that_is_too_long_is_nothing(parts: list[bytes], size: int):
    content = b"".join(parts)
    numbered = enumerate(content.split(b"\n"), start=1)
    expected = [
        (number, None if len(line) > LONGEST else line)
        for number, line in numbered
        if line.strip() or len(line) > LONGEST
    ]
    assert read(content, size) == expected


def test_only_an_id_of_ours_has_a_row():
    row = "01a201cb-7e66-76a4-ad8b-ed64bd7c3ab5"
    assert parse_wire_id(FILE, FILE + row) == row
    for prefix, wire in [
        (FILE, row),
        (FILE, BATCH + row),
        (BATCH, f"{BATCH}{row}x"),
        (FILE, f"{FILE}../x"),
        (FILE, FILE),
    ]:
        with pytest.raises(NotFoundError):
            parse_wire_id(prefix, wire)
