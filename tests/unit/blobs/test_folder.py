"""Blob folder. Writes are atomic, and only the owner can read the files."""

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


async def iter_chunks(*content: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk
    if fails:
        raise ZeroDivisionError


async def read_chunks(folder: BlobFolder, name: str) -> list[bytes]:
    return [chunk async for chunk in folder.read(name)]


def test_put_read_replace_and_delete(tmp_path: Path):
    async def scenario() -> None:
        folder = BlobFolder(str(tmp_path / "a" / "b"))
        long = os.urandom(CHUNK_BYTES + 1)
        assert await folder.put("x", iter_chunks(b"1", long)) == len(long) + 1
        assert [len(chunk) for chunk in await read_chunks(folder, "x")] == [CHUNK_BYTES, 2]
        assert (tmp_path / "a" / "b" / "x").stat().st_mode & 0o777 == 0o600
        assert await folder.put("x", iter_chunks(b"2")) == 1
        assert await read_chunks(folder, "x") == [b"2"]
        await folder.put("y", iter_chunks(b"3"))
        await folder.delete("x", "y")
        await folder.delete("x")
        await folder.delete()
        assert file_names(tmp_path / "a" / "b") == []
        assert await folder.sign_url("x", "x.jsonl", "application/jsonl", 60) is None
        with pytest.raises(NotFoundError):
            await read_chunks(folder, "x")

    asyncio.run(scenario())


def file_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_failed_upload_leaves_the_previous_blob_only(tmp_path: Path):
    async def scenario() -> None:
        folder = BlobFolder(str(tmp_path))
        await folder.put("x", iter_chunks(b"1"))
        with pytest.raises(ZeroDivisionError):
            await folder.put("x", iter_chunks(b"2", fails=True))
        assert await read_chunks(folder, "x") == [b"1"]
        assert file_names(tmp_path) == ["x"]

    asyncio.run(scenario())


def test_unwritable_disk_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="files cannot be stored or read"):
        asyncio.run(BlobFolder(str(tmp_path / "file")).put("x", iter_chunks(b"1")))
