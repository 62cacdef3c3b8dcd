"""Blobs in a folder: a file for each, which nobody else may read."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK_BYTES = 256 * 1024


class BlobFolder:
    """Keeps blobs as files; disks are waited for on threads."""

    def __init__(self, path: str) -> None:
        """Make nothing before the first blob comes."""
        self._path = Path(path)

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        """Keep what comes under a name, in the place of what was there, and say how long it is."""
        try:
            draft, written = await asyncio.to_thread(self._open_draft), 0
            try:
                with draft:
                    async for piece in pieces:
                        written += await asyncio.to_thread(draft.write, piece)
                    await asyncio.to_thread(_flush_to_disk, draft)
                await asyncio.to_thread(os.replace, draft.name, self._path / name)
            except BaseException:
                _remove_file(draft.name)
                raise
        except OSError as error:
            raise _storage_error(error) from None
        return written

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Give a blob piece by piece."""
        try:
            file = await asyncio.to_thread((self._path / name).open, "rb")
            with file:
                while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield piece
        except FileNotFoundError:
            message = "what was kept of this file is gone"
            raise NotFoundError(message) from None
        except OSError as error:
            raise _storage_error(error) from None

    async def delete(self, name: str) -> None:
        """Forget a blob, if it is there."""
        try:
            await asyncio.to_thread((self._path / name).unlink, missing_ok=True)
        except OSError as error:
            raise _storage_error(error) from None

    def _open_draft(self) -> BinaryIO:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Readable by its owner alone.
        return tempfile.NamedTemporaryFile(dir=self._path, prefix=".", delete=False)  # pyright: ignore[reportReturnType]


def _remove_file(name: str) -> None:
    # One call of the system: no thread is worth it.
    Path(name).unlink(missing_ok=True)


def _flush_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _storage_error(error: OSError) -> UnavailableError:
    return UnavailableError(f"files cannot be kept or read for now: {error.strerror}")
