"""A blob is there whole or not at all, and for nobody else to read."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.blobs.folder import CHUNK_BYTES, BlobFolder
from penstock.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def pieces(*content: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
    if fails:
        raise ZeroDivisionError


async def everything(folder: BlobFolder, name: str) -> list[bytes]:
    return [piece async for piece in folder.read(name)]


def test_what_was_put_is_read_in_pieces_replaced_and_deleted(tmp_path: Path):
    async def scene() -> None:
        folder = BlobFolder(str(tmp_path / "a" / "b"))
        long = os.urandom(CHUNK_BYTES + 1)
        assert await folder.put("x", pieces(b"1", long)) == len(long) + 1
        assert [len(piece) for piece in await everything(folder, "x")] == [CHUNK_BYTES, 2]
        assert (tmp_path / "a" / "b" / "x").stat().st_mode & 0o777 == 0o600
        assert await folder.put("x", pieces(b"2")) == 1
        assert await everything(folder, "x") == [b"2"]
        await folder.delete("x")
        await folder.delete("x")
        with pytest.raises(NotFoundError):
            await everything(folder, "x")

    asyncio.run(scene())


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_what_breaks_off_leaves_what_was_there_before_and_nothing_else(tmp_path: Path):
    async def scene() -> None:
        folder = BlobFolder(str(tmp_path))
        await folder.put("x", pieces(b"1"))
        with pytest.raises(ZeroDivisionError):
            await folder.put("x", pieces(b"2", fails=True))
        assert await everything(folder, "x") == [b"1"]
        assert names(tmp_path) == ["x"]

    asyncio.run(scene())


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="files cannot be kept"):
        asyncio.run(BlobFolder(str(tmp_path / "file")).put("x", pieces(b"1")))
