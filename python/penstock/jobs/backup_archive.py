"""The ZIP file of a backup: its manifest, and the files that are copied into it and out of it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import msgspec

from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from penstock.settings import Settings

FORMAT = 1
MANIFEST, TABLES_DIR, FILES_DIR, LOGS_DIR = "manifest.json", "tables", "files", "logs"
# Size of the chunks in which files are copied.
CHUNK_BYTES = 1024 * 1024
MAX_MANIFEST_BYTES = 1024 * 1024
# As a file: standard output of a backup, standard input of a restore.
STANDARD_STREAM = Path("-")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a backup: its format and version, and what it contains."""

    format: int
    version: str
    created_at: str
    # Revision of the tables: the last migration that the store had.
    revision: str
    # Number of rows by table, in an order in which they can be inserted.
    tables: dict[str, int]
    files: int = 0
    logs: int = 0


class BackupSource(msgspec.Struct, frozen=True):
    """A file that the backup contains."""

    path: Path
    name: str


@contextmanager
def create_archive(path: Path) -> Generator[zipfile.ZipFile]:
    """Yields a new ZIP file with mode 0600, or one that is written to standard output for `-`. A file has a temporary
    name until it is complete.
    """
    if path == STANDARD_STREAM:
        with _write_to_standard_output() as archive:
            yield archive
        return
    if path.exists():
        message = f"{str(path)!r} exists; hint: choose another name"
        raise SettingsError(message)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(_create_private(draft), "wb") as opened:
            with _zip_into(opened) as archive:
                yield archive
            opened.flush()
            os.fsync(opened.fileno())
        draft.rename(path)
    except OSError as error:
        message = f"cannot write {str(path)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _write_to_standard_output() -> Generator[zipfile.ZipFile]:
    if sys.stdout.isatty():
        message = "standard output is a terminal; hint: penstock backup - > penstock.zip"
        raise SettingsError(message)
    try:
        with _zip_into(sys.stdout.buffer) as archive:
            yield archive
        sys.stdout.buffer.flush()
    except OSError as error:
        message = f"cannot write to standard output: {error.strerror or error}"
        raise SettingsError(message) from None


def _zip_into(opened: IO[bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=6)


@contextmanager
def open_archive(path: Path) -> Generator[zipfile.ZipFile]:
    """Yields a backup for reading; `-` is standard input. Raises `SettingsError` if it cannot be read, or is damaged."""
    name = describe_archive(path)
    try:
        with _open_seekable(path) as opened, zipfile.ZipFile(opened) as archive:
            yield archive
    except OSError as error:
        message = f"cannot read {name}: {error.strerror or error}"
        raise SettingsError(message) from None
    except (zipfile.BadZipFile, zlib.error, msgspec.DecodeError, EOFError, zipfile.LargeZipFile) as error:
        message = f"{name} is not a complete backup: {error}"
        raise SettingsError(message) from None


@contextmanager
def _open_seekable(path: Path) -> Generator[IO[bytes]]:
    """Opens a file for reading. The index of a ZIP file is at its end, so standard input is copied to a private
    temporary file first.
    """
    if path != STANDARD_STREAM:
        with path.open("rb") as opened:
            yield opened
        return
    if sys.stdin.isatty():
        message = "standard input is a terminal; hint: penstock restore - < penstock.zip"
        raise SettingsError(message)
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, CHUNK_BYTES)
        yield copy


def describe_archive(path: Path) -> str:
    """Returns how messages name the file of a backup that is read."""
    return "standard input" if path == STANDARD_STREAM else repr(str(path))


def read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    """Returns the manifest. Raises `SettingsError` if there is none, or if it has another format."""
    try:
        with archive.open(MANIFEST) as member:
            content = member.read(MAX_MANIFEST_BYTES)
        manifest = msgspec.json.decode(content, type=Manifest)
    except (KeyError, RuntimeError, msgspec.ValidationError):
        message = f"{describe_archive(path)} is not a backup of Penstock: it has no valid {MANIFEST}"
        raise SettingsError(message) from None
    if manifest.format != FORMAT:
        message = (
            f"{describe_archive(path)} has the format {manifest.format}; allowed: {FORMAT}; hint: use a newer release"
        )
        raise SettingsError(message)
    return manifest


def open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Opens one file of the backup. Raises `SettingsError` if it is missing or unreadable."""
    try:
        return archive.open(name)
    except (KeyError, RuntimeError) as error:
        # The file is missing, encrypted, or compressed with a method that no backup uses.
        reason = error.args[0] if error.args else error
        message = f"the backup is incomplete: {name!r} cannot be read: {reason}"
        raise SettingsError(message) from None


def iter_files(folder: Path, prefix: str) -> Iterator[BackupSource]:
    """Yields the files of a folder and its subfolders, without symbolic links."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield BackupSource(path, f"{prefix}/{path.relative_to(folder).as_posix()}")


def plan_files(archive: zipfile.ZipFile, manifest: Manifest, settings: Settings) -> dict[str, Path]:
    """Returns the target of each file of the archive. Raises `SettingsError` if one exists, is outside its folder, or
    is missing in the archive.
    """
    folders = {FILES_DIR: Path(settings.files_folder), LOGS_DIR: Path(settings.log_store_folder)}
    targets: dict[str, Path] = {}
    for name in archive.namelist():
        first, *rest = PurePosixPath(name).parts or ("",)
        if first not in folders:
            continue
        if not rest or ".." in rest or name.startswith("/") or name.endswith("/"):
            message = f"the backup has a file with a name that is not allowed: {name!r}"
            raise SettingsError(message)
        targets[name] = folders[first].joinpath(*rest)
    if len(targets) != manifest.files + manifest.logs:
        message = (
            f"the backup is incomplete: it has {len(targets)} files, and should have {manifest.files + manifest.logs}"
        )
        raise SettingsError(message)
    if existing := [str(path) for path in targets.values() if path.exists()]:
        message = (
            f"{len(existing)} files would be overwritten, such as {existing[0]!r}; hint: restore into a new folder"
        )
        raise SettingsError(message)
    return targets


def copy_into(archive: zipfile.ZipFile, source: BackupSource) -> bool:
    """Copies a file into the archive. Returns false if a request has deleted the file meanwhile."""
    try:
        opened = source.path.open("rb")
    except FileNotFoundError:
        return False
    except OSError as error:
        message = f"cannot read {str(source.path)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    with opened, archive.open(source.name, "w", force_zip64=True) as member:
        while chunk := opened.read(CHUNK_BYTES):
            member.write(chunk)
    return True


def copy_out(archive: zipfile.ZipFile, name: str, target: Path, written: list[Path]) -> None:
    """Copies one file out of the backup, with mode 0600, and adds it to `written`."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_member(archive, name) as member, os.fdopen(_create_private(target), "wb") as opened:
            written.append(target)
            while chunk := member.read(CHUNK_BYTES):
                opened.write(chunk)
    except OSError as error:
        message = f"cannot write {str(target)!r}: {error.strerror or error}"
        raise SettingsError(message) from None


def _create_private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


@contextmanager
def delete_after_failure() -> Generator[list[Path]]:
    """Yields a list to which the block adds the files that it writes. Deletes these files if the block fails."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
