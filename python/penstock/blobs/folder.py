"""Blob storage in a local folder. Each blob is one file that only its owner can read."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

CHUNK_BYTES = 256 * 1024


class BlobFolder:
    """Stores blobs as files. Blocking disk operations run in threads."""

    def __init__(self, path: str) -> None:
        """Sets the path. The folder is created with the first blob."""
        self._path = Path(path)

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores a blob, replacing one of the same name, and returns its size in bytes."""
        try:
            draft, written = await asyncio.to_thread(self._open_draft), 0
            try:
                with draft:
                    async for chunk in chunks:
                        written += await asyncio.to_thread(draft.write, chunk)
                    await asyncio.to_thread(_flush_to_disk, draft)
                await asyncio.to_thread(os.replace, draft.name, self._path / name)
            except BaseException:
                _remove_file(draft.name)
                raise
        except OSError as error:
            raise _storage_error(error) from None
        return written

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yields the content of a blob in chunks."""
        try:
            file = await asyncio.to_thread((self._path / name).open, "rb")
            with file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            message = "the stored content of this file is missing"
            raise NotFoundError(message) from None
        except OSError as error:
            raise _storage_error(error) from None

    async def delete(self, *names: str) -> None:
        """Deletes the blobs; ignores names without a blob."""
        try:
            await asyncio.to_thread(self._delete_files, names)
        except OSError as error:
            raise _storage_error(error) from None

    async def sign_url(self, name: str, filename: str, media_type: str, seconds: int) -> None:
        """Returns `None`: only the gateway itself can read the folder."""

    async def close(self) -> None:
        """Does nothing: no file stays open."""

    def _delete_files(self, names: Iterable[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def _open_draft(self) -> BinaryIO:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Temporary files are readable only by their owner.
        return tempfile.NamedTemporaryFile(dir=self._path, prefix=".", delete=False)  # pyright: ignore[reportReturnType]


def _remove_file(name: str) -> None:
    # Called without a thread: removing a file is a single system call.
    Path(name).unlink(missing_ok=True)


def _flush_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _storage_error(error: OSError) -> UnavailableError:
    return UnavailableError(f"files cannot be stored or read or read for now: {error.strerror}")
