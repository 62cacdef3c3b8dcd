"""Storage of bodies. A pack has the compressed bodies of many records. Its key has the position of its first record in
the spool, and a part that each process chooses anew. So a process that reads the spool again changes no earlier pack.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import logging
import math
import os
import re
import secrets
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import zstandard

from penstock.errors import NotFoundError, UnavailableError
from penstock.logs.batch import BodyLocation
from penstock.logs.breaker import BreakerState
from penstock.logs.messages import DAMAGED
from penstock.logs.spool_format import BODY_NAMES, MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.logs.batch import Position
    from penstock.logs.breaker import StorageBreaker

log = logging.getLogger("penstock")

MAX_PACK_BYTES = 32 * MEBIBYTE
# Time after which a pack is complete even if it is small. Only complete packs are uploaded, because an object in a
# bucket cannot be extended.
MAX_PACK_AGE_SECONDS = 60.0
BUFFER_BYTES = 8 * MEBIBYTE
COMPRESSION_LEVEL = 1
# Maximum size of one record's bodies. Protects the reader from a damaged location with a huge length.
MAX_BODIES_BYTES = 512 * MEBIBYTE
OWNER_ONLY_MODE, FOLDER_MODE = 0o600, 0o700
PACKS, PACK_SUFFIX, DRAFT_SUFFIX = "packs", ".pack", ".new"
# First folder in the paths of single objects (`v1`, `v2`). Lifecycle rules of buckets can select it, and other tools
# expect this name.
OBJECT_CLASS = "30"
# Number of slashes in the key of an object of `v1`: `30/organisation/log.json`.
OBJECT_NAME_SLASHES = 2
UUID_V7, UUID_V7_TIME_SHIFT = 7, 80
UNSAFE_PATTERN = re.compile(r"[^A-Za-z0-9_.-]")
HOUR_PATTERN = re.compile(r"(\d{4})-(\d{2})-(\d{2})T(\d{2})")
UPLOAD_RETRY_SECONDS = 1.0
PROCESS_NAME_BYTES = 4


class PackedRecord(msgspec.Struct, frozen=True):
    """Fields of a record that determine the path of its bodies."""

    id: str = ""
    organisation_id: str | None = None
    workspace_id: str | None = None
    workspace_slug: str | None = None
    created_at: str = ""
    trace_id: str | None = None


class StoredBodies(msgspec.Struct, frozen=True):
    """Part of a single object (`v1`, `v2`) with the bodies of a record."""

    bodies: dict[str, dict[str, str]]


class Bucket(Protocol):
    """Remote storage of blobs."""

    async def put_bytes(self, name: str, content: bytes) -> None:
        """Stores a blob."""
        ...

    async def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Returns a range of bytes of a blob."""
        ...

    async def list_folders(self, start: str) -> list[str]:
        """Returns the names of folders directly below a name."""
        ...

    async def list_names(self, start: str, *, is_direct: bool = False) -> list[str]:
        """Returns up to 1,000 names that start with this text, in alphabetical order. If `is_direct`, there is no slash
        after this text.
        """
        ...

    async def delete(self, *names: str) -> None:
        """Deletes blobs."""
        ...

    async def delete_below(self, folder: str) -> int:
        """Deletes the blobs of a folder."""
        ...

    async def probe(self) -> None:
        """Checks that blobs can be written."""
        ...


class OpenPack(msgspec.Struct):
    """A pack to which bodies are still added."""

    key: str
    opened_at: float
    size: int = 0
    buffer: bytearray = msgspec.field(default_factory=bytearray)


class SealedFile(NamedTuple):
    """A complete file that may be uploaded."""

    key: str
    size: int


class PackWriter:
    """Writes packs, or one object per record, into a local folder. Used by one thread.

    The bodies of a batch are in files before its records are inserted. A pack of an earlier process is never continued.
    """

    def __init__(
        self, root: str, layout: str, *, is_remote: bool, limit_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Sets folder and layout: `packs`, `v1` or `v2`. At most `limit_bytes` wait for the upload to a bucket."""
        self.root = Path(root)
        self.dropped = 0
        # Two separate counters, because another thread uploads and each thread changes only one of them.
        self.added_bytes = 0
        self.uploaded_bytes = 0
        self._layout = layout
        self._is_remote = is_remote
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        self._open: dict[tuple[str, str, str], OpenPack] = {}
        self._buffered = 0
        # Part of the keys of packs that tells those of this process from those of earlier ones.
        self._process_name = secrets.token_hex(PROCESS_NAME_BYTES)
        self._full: list[SealedFile] = []
        # Complete files. Those of an earlier process are always complete.
        self.sealed: list[SealedFile] = []
        if is_remote:
            for path in sorted(self.root.rglob("*")):
                if path.is_file() and path.suffix != DRAFT_SUFFIX:
                    file = SealedFile(path.relative_to(self.root).as_posix(), path.stat().st_size)
                    self.sealed.append(file)
                    self.added_bytes += file.size

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for their upload to a bucket."""
        return max(0, self.added_bytes - self.uploaded_bytes) if self._is_remote else 0

    def list_open_keys(self) -> set[str]:
        """Returns the keys of packs to which bodies may still be added. Another thread may call this."""
        return {pack.key for pack in list(self._open.values())}

    def add(
        self, record: PackedRecord, bodies: Mapping[int, bytes], node: str, writer: str, at: Position
    ) -> BodyLocation | None:
        """Adds the bodies of a record and returns their location. Returns `None` and drops the bodies if too many bytes
        wait for their upload.
        """
        if self._is_remote and self.waiting_bytes >= self._limit_bytes:
            self.dropped += 1
            return None
        if self._layout != PACKS:
            return self._write_object(record, bodies)
        content = self._compressor.compress(encode_bodies(bodies))
        hour = _hour_path(record.created_at)
        workspace = (_safe(record.organisation_id), _safe(record.workspace_id), hour)
        pack = self._open.get(workspace)
        if pack and pack.size and pack.size + len(content) > MAX_PACK_BYTES:
            self._write_buffer(pack)
            self._full.append(SealedFile(pack.key, pack.size))
            pack = None
        if pack is None:
            name = f"{_safe(node)}-{_safe(writer)}-{at.segment}-{at.offset}-{self._process_name}{PACK_SUFFIX}"
            pack = OpenPack(f"{PACKS}/{hour}/{workspace[0]}/{workspace[1]}/{name}", self._clock())
            self._open[workspace] = pack
        location = BodyLocation(pack.key, pack.size, len(content))
        pack.buffer += content
        pack.size += len(content)
        self._buffered += len(content)
        self.added_bytes += len(content)
        if self._buffered >= BUFFER_BYTES:
            self.flush()
        return location

    def flush(self) -> None:
        """Writes the added bodies to the files. After an `OSError` it may be called again."""
        for pack in self._open.values():
            self._write_buffer(pack)
        self._buffered = 0

    def commit(self, *, is_final: bool = False) -> None:
        """Marks full and old packs as complete, or all packs if `is_final`. Called after their records were
        inserted.
        """
        oldest = self._clock() - MAX_PACK_AGE_SECONDS
        for location, pack in list(self._open.items()):
            if is_final or pack.opened_at <= oldest:
                self._full.append(SealedFile(pack.key, pack.size))
                del self._open[location]
        if self._is_remote:
            self.sealed += self._full
        self._full = []

    def _write_buffer(self, pack: OpenPack) -> None:
        if not pack.buffer:
            return
        path = self.root / pack.key
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        start = pack.size - len(pack.buffer)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY_MODE)
        try:
            view, at = memoryview(pack.buffer), start
            while view:
                written = os.pwrite(file, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(file)
        pack.buffer = bytearray()

    def _write_object(self, record: PackedRecord, bodies: Mapping[int, bytes]) -> BodyLocation:
        names = [OBJECT_CLASS, _safe(record.organisation_id)]
        if self._layout == "v2":
            date, hour = _hour_path(record.created_at).split("/")
            names += [_safe(record.workspace_slug or record.workspace_id), *date.split("-"), hour]
        key = f"{'/'.join(names)}/{_safe(record.id)}.json"
        content = encode_record_bodies(record, bodies)
        path = self.root / key
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        draft = path.with_name(path.name + DRAFT_SUFFIX)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY_MODE), "wb") as file:
            file.write(content)
        draft.replace(path)
        self.added_bytes += len(content)
        self._full.append(SealedFile(key, len(content)))
        return BodyLocation(key, 0, len(content))


class PackStore:
    """Reads and deletes stored bodies. Uploads packs if a bucket is configured."""

    def __init__(self, writer: PackWriter, bucket: Bucket | None, breaker: StorageBreaker) -> None:
        """Stores the writer of local files, and the bucket to which they are moved."""
        self.writer = writer
        self.breaker = breaker
        self.uploaded = 0
        self.failed_uploads = 0
        self._bucket = bucket

    async def run_uploads(self) -> None:
        """Uploads complete packs for as long as the process runs."""
        while True:
            if not await self.upload_next():
                await asyncio.sleep(min(UPLOAD_RETRY_SECONDS, max(0.05, self.breaker.seconds_until_probe)))

    async def upload_next(self) -> bool:
        """Uploads the next complete pack. Returns false if there is none or the upload failed."""
        if not self._bucket or not self.writer.sealed or self.breaker.state is BreakerState.OPEN:
            return False
        key, size = self.writer.sealed[0]
        path = self.writer.root / key
        try:
            if self.breaker.state is BreakerState.PROBING:
                await self._bucket.probe()
                self.breaker.record_success()
            content = await asyncio.to_thread(path.read_bytes)
            await self._bucket.put_bytes(key, content)
        except FileNotFoundError:
            # Retention has deleted it, or it was written again under the same name, and uploaded already.
            self.writer.sealed.pop(0)
            self.writer.uploaded_bytes += size
            return True
        except (UnavailableError, NotFoundError) as error:
            self.failed_uploads += 1
            self.breaker.record_failure(str(error))
            return False
        self.breaker.record_success()
        self.writer.sealed.pop(0)
        self.uploaded += 1
        await asyncio.to_thread(path.unlink, missing_ok=True)
        self.writer.uploaded_bytes += size
        return True

    async def upload_rest(self, seconds: float) -> None:
        """Uploads complete packs, for a bounded time. The others are uploaded after the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self.upload_next():
                    pass

    async def read(self, location: BodyLocation) -> dict[str, bytes]:
        """Returns the bodies of a record by name. If they cannot be decoded, the only name is `DAMAGED`. Raises
        `NotFoundError` if they were deleted.
        """
        try:
            content = await asyncio.to_thread(_read_file_range, self.writer.root / location.key, location)
        except OSError:
            if not self._bucket:
                message = "the bodies of this log are no longer stored"
                raise NotFoundError(message) from None
            content = await self._bucket.read_range(location.key, location.offset, location.length)
        try:
            if not location.key.endswith(PACK_SUFFIX):
                return decode_record_bodies(content)
            return decode_bodies(zstandard.ZstdDecompressor().decompress(content, max_output_size=MAX_BODIES_BYTES))
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, KeyError) as error:
            log.warning("the stored bodies %s at %d cannot be decoded: %s", location.key, location.offset, error)
            return {DAMAGED: b""}

    async def delete_before(self, day: dt.date) -> int:
        """Deletes packs and single objects (`v1`, `v2`) of earlier days."""
        count = await asyncio.to_thread(self._delete_local, day)
        if self._bucket:
            for name in await self._bucket.list_folders(f"{PACKS}/"):
                if _is_day(name) and name < day.isoformat():
                    count += await self._bucket.delete_below(f"{PACKS}/{name}")
            for organisation in await self._bucket.list_folders(f"{OBJECT_CLASS}/"):
                count += await _delete_objects_before(self._bucket, f"{OBJECT_CLASS}/{organisation}", day)
        return count

    def _delete_local(self, day: dt.date) -> int:
        count = 0
        # Errors of files that cannot be deleted. They do not prevent the deletion of others.
        failures: list[OSError] = []
        # Records may have an old time, so bodies may still be added to packs of earlier days.
        open_keys = self.writer.list_open_keys()
        for folder in _list_day_folders(self.writer.root / PACKS, day):
            for path in list(folder.rglob("*")):
                if path.is_file() and path.relative_to(self.writer.root).as_posix() not in open_keys:
                    count += _delete_file(path, failures)
            _remove_empty_folders(folder)
        oldest = time.mktime(day.timetuple())
        for path in (self.writer.root / OBJECT_CLASS).rglob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    count += _delete_file(path, failures)
        if failures:
            log.warning("%d files with old bodies cannot be deleted, for example: %s", len(failures), failures[0])
        return count


def _list_day_folders(packs: Path, day: dt.date) -> list[Path]:
    """Returns the folders with packs of earlier days."""
    folders = sorted(packs.iterdir()) if packs.is_dir() else []
    return [folder for folder in folders if _is_day(folder.name) and folder.name < day.isoformat()]


def _delete_file(path: Path, failures: list[OSError]) -> int:
    """Deletes a file, and returns the number of deleted files. Adds an error to `failures`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        failures.append(error)
        return 0
    return 1


async def _delete_objects_before(bucket: Bucket, organisation: str, day: dt.date) -> int:
    """Deletes the single objects of an organisation that are of earlier days. Those of `v2` are in folders by date. The
    names of those of `v1` begin with the time of their records, and are listed in this order.
    """
    count = 0
    for workspace in await bucket.list_folders(f"{organisation}/"):
        for folder in await _list_date_folders(bucket, f"{organisation}/{workspace}"):
            if "-".join(folder.split("/")[-3:]) < day.isoformat():
                count += await bucket.delete_below(folder)
    limit_ms = int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp() * 1000)
    while names := await bucket.list_names(f"{organisation}/0", is_direct=True):
        old = [name for name in names if _time_of_object(name) < limit_ms]
        if not old:
            break
        await bucket.delete(*old)
        count += len(old)
    return count


async def _list_date_folders(bucket: Bucket, workspace: str) -> list[str]:
    """Returns the folders `year/month/day` of a workspace."""
    folders = [workspace]
    for pattern in (r"\d{4}", r"\d{2}", r"\d{2}"):
        folders = [
            f"{folder}/{name}"
            for folder in folders
            for name in await bucket.list_folders(f"{folder}/")
            if re.fullmatch(pattern, name)
        ]
    return folders


def _time_of_object(name: str) -> float:
    """Returns the time in the id that is the name of an object, in milliseconds. Other names are never old."""
    try:
        identifier = uuid.UUID(name.rsplit("/", 1)[-1].removesuffix(".json"))
    except ValueError:
        return math.inf
    is_direct = name.count("/") == OBJECT_NAME_SLASHES
    return identifier.int >> UUID_V7_TIME_SHIFT if is_direct and identifier.version == UUID_V7 else math.inf


def encode_bodies(bodies: Mapping[int, bytes]) -> bytes:
    """Returns the bodies of one record as a line with their names and lengths, followed by their bytes."""
    kinds = sorted(bodies)
    head = msgspec.json.encode([[BODY_NAMES[kind], len(bodies[kind])] for kind in kinds])
    return b"\n".join([head, b"".join(bodies[kind] for kind in kinds)])


def decode_bodies(content: bytes) -> dict[str, bytes]:
    """Returns the bodies of one record by name."""
    head, _, rest = content.partition(b"\n")
    bodies: dict[str, bytes] = {}
    at = 0
    for name, length in msgspec.json.decode(head, type=list[tuple[str, int]]):
        bodies[name] = rest[at : at + length]
        at += length
    return bodies


def encode_text(body: bytes) -> dict[str, str]:
    """Returns a body as JSON: as text if it is UTF-8, otherwise as Base64."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def encode_record_bodies(record: PackedRecord, bodies: Mapping[int, bytes]) -> bytes:
    """Returns the bodies of one record as a JSON object, for other tools."""
    bodies_by_name = {BODY_NAMES[kind]: encode_text(body) for kind, body in sorted(bodies.items())}
    return msgspec.json.encode({**msgspec.structs.asdict(record), "bodies": bodies_by_name})


def decode_record_bodies(content: bytes) -> dict[str, bytes]:
    """Returns the bodies in a JSON object of `encode_record_bodies`, by name."""
    document = msgspec.json.decode(content, type=StoredBodies)
    return {
        name: body["text"].encode() if "text" in body else base64.b64decode(body["base64"])
        for name, body in document.bodies.items()
    }


def _read_file_range(path: Path, location: BodyLocation) -> bytes:
    with path.open("rb") as file:
        file.seek(location.offset)
        return file.read(location.length)


def _remove_empty_folders(folder: Path) -> None:
    """Removes a folder and those in it, except for those with files."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _hour_path(created_at: str) -> str:
    match = HOUR_PATTERN.match(created_at)
    return "-".join(match.groups()[:3]) + f"/{match[4]}" if match else "1970-01-01/00"


def _is_day(name: str) -> bool:
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", name) is not None


def _safe(name: str | None) -> str:
    text = UNSAFE_PATTERN.sub("_", name or "none")[:128]
    return text if text.strip(".") else "_"
