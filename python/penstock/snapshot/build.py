"""Gathers what the engine needs to know from `penstock.toml` and the store, and publishes it to whoever waits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock import engine, resources
from penstock.errors import Problem, SettingsError
from penstock.pricing import engine_export
from penstock.settings import SNAPSHOT_TABLES, decode_secret, read_toml_file
from penstock.settings.secret import Secret
from penstock.snapshot.append_log import AppendLog, Chunk, changed_chunks, chunk_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.settings import Settings

ENV_REFERENCE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SHA256_HEX_PATTERN = re.compile(r"[0-9a-f]{64}")
# What is shorter is guessed, and stands by chance in what has nothing to do with it.
MIN_KEY_CHARS = 8
SLUG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


# The piece that has what is known of prices.
PRICES_CHUNK = "prices"
# A worker asks for news at least every 20 s: one that has not been heard of for so long is no more.
WORKER_EXPIRY_SECONDS = 25.0
# What was told of late is kept in mind: whoever knows it is told what changed since.
MAX_RECENT_SNAPSHOTS = 8


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that was decided, as the engine reads it."""

    epoch: str = ""
    # Members of a JSON object that are always told.
    base: bytes = b""
    # Told where they changed: prices, and parts of the store's large tables.
    pieces: dict[str, Chunk] = {}
    keys: int = 0

    def __repr__(self) -> str:
        """Leave the content out: it holds credentials."""
        return f"Snapshot(epoch={self.epoch!r}, keys={self.keys})"

    @classmethod
    def from_content(cls, base: bytes, pieces: dict[str, Chunk], keys: int) -> Snapshot:
        """Make one whose epoch follows its content."""
        digest = hashlib.sha256(base)
        for name, piece in sorted(pieces.items()):
            digest.update(name.encode() + piece.digest)
        return cls(digest.hexdigest(), base, pieces, keys)

    def to_json(self, since: Snapshot | None = None) -> bytes:
        """Write what the engine compiles: everything, or of the pieces those that are others than they were."""
        members = [b'"epoch":"%s"' % self.epoch.encode()]
        before: dict[str, Chunk] = {}
        # What has no epoch was never told.
        if since is not None and since.epoch:
            members.append(b'"since":"%s"' % since.epoch.encode())
            before = since.pieces
        members += [self.base] if self.base else []
        told = changed_chunks(self.pieces, chunk_digests(before))
        gone = [b'{"name":"%s","keys":[],"configs":[]}' % name.encode() for name in before if name not in self.pieces]
        if prices := told.pop(PRICES_CHUNK, None):
            members.append(b'"prices":' + prices.data)
        members.append(b'"parts":[%s]' % b",".join([*(piece.data for piece in told.values()), *gone]))
        return b"{%s}" % b",".join(members)


class StoreData(msgspec.Struct, frozen=True):
    """What the store adds."""

    # Parts of its large tables, as the engine reads them.
    pieces: dict[str, Chunk] = {}
    # Rows, as the insides of JSON arrays.
    providers: bytes = b""
    models: bytes = b""
    workspaces: bytes = b""
    departed: bytes = b""
    # What is needed to check tokens, as a JSON object; empty where none are taken.
    jwt: bytes = b""
    key_count: int = 0
    # What other places said of secrets that providers are made of: the digest of the question, and the answer.
    secrets: dict[str, tuple[bytes, str]] = {}
    # Where reading goes on for who has this: the change that it was read at, of each part how many rows it has and when
    # the first one ends, and when the first of the rest does.
    number: int = -1
    parts: dict[str, tuple[int, int | None]] = {}
    rest_end: int | None = None

    def __repr__(self) -> str:
        """Leave the rows out: they hold credentials."""
        return f"Stored(key_count={self.key_count})"


EMPTY_STORE_DATA = StoreData()


class PreparedStore(msgspec.Struct, frozen=True):
    """What a start goes on with after the store was seen to."""

    stored: StoreData = EMPTY_STORE_DATA
    # Only where it was just made: it is shown once.
    admin_key: str | None = None
    # Only where it is kept elsewhere: what is started anew need not ask for it again.
    master_key: str | None = None

    def __repr__(self) -> str:
        """Leave the keys out."""
        return f"Prepared({self.stored!r})"


class KeyRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[keys]]` table."""

    name: str
    id: str | None = None
    key: Secret | None = None
    sha256: str | None = None
    expires_at: datetime | int | None = None


class ProviderRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[providers]]` table."""

    slug: str
    provider: str
    api_key: Secret | None = None
    custom_host: str | None = None
    anthropic_inspect_stream_for_overloaded_error: bool | None = None
    options: dict[str, str] = {}


class ConfigRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[configs]]` table."""

    slug: str
    config: dict[str, Any] | str


ROW_TYPES: dict[str, type[KeyRow | ProviderRow | ConfigRow]] = dict(
    zip(SNAPSHOT_TABLES, (KeyRow, ProviderRow, ConfigRow), strict=True)
)


# Tables that only the store has.
STORE_ONLY_TABLES = ("models", "workspaces", "departed")


class _SnapshotHeader(msgspec.Struct, frozen=True):
    """A snapshot without its pieces."""

    epoch: str
    base: bytes
    keys: int


class SnapshotBackup:
    """The last good snapshot, in memory that outlives whoever found it good and touches no disk."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Keep the first."""
        self._places = [_open_memory_file(), _open_memory_file()]
        self._journal = AppendLog(self._duplicate_file)
        self.store(snapshot)

    def store(self, snapshot: Snapshot) -> None:
        """Put it in the place of the one before."""
        head = _SnapshotHeader(snapshot.epoch, snapshot.base, snapshot.keys)
        self._journal.save(msgspec.msgpack.encode(head), snapshot.pieces)

    def load_latest(self) -> Snapshot:
        """Read the newest that is whole."""
        found = self._journal.load()
        if found is None:
            message = "no snapshot was kept"
            raise SettingsError(message)
        head = msgspec.msgpack.decode(found[0], type=_SnapshotHeader)
        return Snapshot(head.epoch, head.base, found[1], head.keys)

    def _duplicate_file(self, place: int, _flags: int) -> int:
        return os.dup(self._places[place])


class WorkerProgress:
    """Which snapshot each worker of this node runs on, as it says itself when it asks for the next."""

    def __init__(self) -> None:
        """Know of no worker."""
        self.waits = self.given_up = 0
        self._heard: dict[int, tuple[float, int]] = {}
        self._changed = asyncio.Event()

    def record_worker(self, worker: int, number: int) -> None:
        """Note on which one a worker runs."""
        self._heard[worker] = (time.monotonic(), number)
        self.notify()

    def notify(self) -> None:
        """Have those who wait look again."""
        bell, self._changed = self._changed, asyncio.Event()
        bell.set()

    async def wait_until(self, seconds: float, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so, which may change whenever somebody rings; say whether it came to that."""
        self.waits += 1
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    await self._changed.wait()
        except TimeoutError:
            self.given_up += 1
            return False
        return True

    def drop_lagging_workers(self, number: int) -> None:
        """Wait no more for those that do not come to this one, until they are heard of again."""
        self._heard = {worker: heard for worker, heard in self._heard.items() if heard[1] >= number}
        self.notify()

    def all_reached(self, number: int) -> bool:
        """Whether no worker that is there runs on an older one."""
        oldest = time.monotonic() - WORKER_EXPIRY_SECONDS
        return all(runs >= number for heard, runs in self._heard.values() if heard > oldest)


class SnapshotChannel:
    """The snapshot of the moment, and a bell for those who wait for the next."""

    def __init__(self, snapshot: Snapshot, kept: SnapshotBackup | None = None) -> None:
        """Start with a snapshot that was found good."""
        self.current = snapshot
        # How many were published before it.
        self.number = 0
        self.running = WorkerProgress()
        self._recent = deque([snapshot], MAX_RECENT_SNAPSHOTS)
        # What the store said last: the file may change meanwhile, and is then gathered with it.
        self.stored = EMPTY_STORE_DATA
        # Held from gathering to publishing: else what was gathered before a change is published after it.
        self.turn = asyncio.Lock()
        self.closed = False
        self._kept = kept
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Put a new snapshot in the place of the old one."""
        if self._kept:
            self._kept.store(snapshot)
        self.current = snapshot
        self.number += 1
        self._recent.append(snapshot)
        self._notify()

    def find_recent(self, epoch: str) -> Snapshot | None:
        """Give the snapshot of this epoch, if it was published of late."""
        return next((snapshot for snapshot in self._recent if snapshot.epoch == epoch), None)

    def record_worker_epoch(self, worker: int, epoch: str) -> None:
        """Note that a worker runs on the snapshot of this epoch."""
        back = (back for back, snapshot in enumerate(reversed(self._recent)) if snapshot.epoch == epoch)
        self.running.record_worker(worker, self.number - next(back, MAX_RECENT_SNAPSHOTS))

    def close(self) -> None:
        """Let everyone who waits go home."""
        self.closed = True
        self._notify()
        self.running.notify()

    async def wait_for_newer(self, epoch: str, seconds: float) -> Snapshot | None:
        """Wait until the snapshot is not the one the caller has, or the time is up."""
        changed = self._changed
        if self.current.epoch == epoch and not self.closed:
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                return None
        return self.current if self.current.epoch != epoch else None

    def _notify(self) -> None:
        bell, self._changed = self._changed, asyncio.Event()
        bell.set()


def build_snapshot(
    settings: Settings, environ: Mapping[str, str] = os.environ, stored: StoreData = EMPTY_STORE_DATA
) -> Snapshot:
    """Read the file of the moment, and write down what the engine compiles of it and the store."""
    document = read_toml_file(settings.file) if settings.file else {}
    problems: list[Problem] = []
    rows = {table: list(_parse_rows(table, document, environ, problems)) for table in SNAPSHOT_TABLES}
    content = {
        "keys": [_key_entry(path, row, problems) for path, row in rows["keys"]],
        "providers": [_provider_entry(path, row, problems) for path, row in rows["providers"]],
        "configs": [_config_entry(path, row, problems) for path, row in rows["configs"]],
    }
    for table, field in (("keys", "name"), ("keys", "sha256"), ("providers", "slug"), ("configs", "slug")):
        problems += _find_duplicates(table, field, content[table])
    if problems:
        message = f"{settings.file!r} cannot be used:"
        raise SettingsError(message, problems)
    members = [
        _encode_table(table, content.get(table), getattr(stored, table, b""))
        for table in (*content, *STORE_ONLY_TABLES)
    ]
    members += [b'"jwt":' + stored.jwt] if stored.jwt else []
    ours = {"management": resources.forwarded_prefixes(), "catalogue": settings.store_url is not None}
    members.append(msgspec.json.encode(ours)[1:-1])
    prices = Chunk.from_bytes(msgspec.json.encode(engine_export.export_prices(settings)))
    return Snapshot.from_content(
        b",".join(members), {PRICES_CHUNK: prices, **stored.pieces}, len(rows["keys"]) + stored.key_count
    )


def build_valid_snapshot(
    settings: Settings, stored: StoreData = EMPTY_STORE_DATA, good: Snapshot | None = None
) -> Snapshot:
    """Gather, and have the engine's own parser agree with what is other than in one with which it has agreed."""
    snapshot = build_snapshot(settings, stored=stored)
    if good is not None and snapshot.epoch == good.epoch:
        return snapshot
    try:
        engine.check("snapshot", snapshot.to_json(good))
    except engine.EngineError as error:
        message = f"{settings.file!r} cannot be used:"
        problems = [Problem(problem["path"].removeprefix("$."), problem["message"]) for problem in error.problems]
        raise SettingsError(message, problems or [Problem("", str(error))]) from None
    return snapshot


def _encode_table(name: str, rows: list[dict[str, object]] | None, others: bytes) -> bytes:
    """Put the store's rows behind those of the file, so that problems name the place in the file."""
    own = msgspec.json.encode(rows or [])[1:-1]
    return b'"%s":[%s]' % (name.encode(), b",".join(part for part in (own, others) if part))


def _open_memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("snapshot")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _parse_rows(
    table: str, document: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]
) -> Iterator[tuple[str, Any]]:
    tables = document.get(table, [])
    if not isinstance(tables, list) or not all(isinstance(raw, dict) for raw in cast("list[object]", tables)):
        problems.append(Problem(table, f"must be a list of tables: [[{table}]]"))
        return
    fields = ROW_TYPES[table].__struct_fields__
    for index, raw in enumerate(cast("list[dict[str, Any]]", tables)):
        path = f"{table}[{index}]"
        if unknown := sorted(set(raw) - set(fields)):
            message = f"is not known; allowed: {', '.join(fields)}"
            problems += [Problem(f"{path}.{key}", message) for key in unknown]
            continue
        try:
            yield (
                path,
                msgspec.convert(
                    _resolve_env_references(path, raw, environ, problems), ROW_TYPES[table], dec_hook=decode_secret
                ),
            )
        except msgspec.ValidationError as error:
            problems.append(_to_problem(path, str(error)))


def _to_problem(path: str, message: str) -> Problem:
    """Turn "Expected `int`, got `str` - at `$.a`" into a path of ours."""
    what, _, where = message.partition(" - at `$")
    return Problem(path + where.rstrip("`"), what[:1].lower() + what[1:])


def _resolve_env_references(path: str, value: Any, environ: Mapping[str, str], problems: list[Problem]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _resolve_env_references(f"{path}.{key}", inner, environ, problems) for key, inner in table.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _resolve_env_references(f"{path}[{index}]", inner, environ, problems) for index, inner in enumerate(items)
        ]
    if isinstance(value, str) and (reference := ENV_REFERENCE_PATTERN.fullmatch(value)):
        if found := environ.get(reference[1]):
            return found
        problems.append(Problem(path, f"the environment variable {reference[1]!r} is not set"))
        return ""
    return value


def _key_entry(path: str, row: KeyRow, problems: list[Problem]) -> dict[str, object]:
    digest = (row.sha256 or "").lower()
    if not row.name:
        problems.append(Problem(f"{path}.name", "must not be empty"))
    if (row.key is None) == (row.sha256 is None):
        problems.append(Problem(path, "needs either key or sha256"))
    elif row.key is not None:
        if len(row.key.reveal()) < MIN_KEY_CHARS:
            problems.append(Problem(f"{path}.key", f"must have {MIN_KEY_CHARS} characters or more"))
        digest = hashlib.sha256(row.key.reveal().encode()).hexdigest()
    elif not SHA256_HEX_PATTERN.fullmatch(digest):
        problems.append(Problem(f"{path}.sha256", "must be 64 hexadecimal digits"))
    # A name may be said aloud in records; its position in the file may change.
    identity = row.id or f"k-{hashlib.sha256(row.name.encode()).hexdigest()[:8]}"
    return {"id": identity, "name": row.name, "sha256": digest, "expires_at": _to_unix_seconds(row.expires_at)}


def _to_unix_seconds(moment: datetime | int | None) -> int | None:
    if not isinstance(moment, datetime):
        return moment
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _provider_entry(path: str, row: ProviderRow, problems: list[Problem]) -> dict[str, object]:
    _check_slug(path, row.slug, problems)
    return {
        "slug": row.slug,
        "provider": row.provider,
        "api_key": row.api_key.reveal() if row.api_key else None,
        "custom_host": row.custom_host,
        "anthropic_inspect_stream_for_overloaded_error": row.anthropic_inspect_stream_for_overloaded_error,
        "options": row.options,
    }


def _config_entry(path: str, row: ConfigRow, problems: list[Problem]) -> dict[str, object]:
    _check_slug(path, row.slug, problems)
    config: object = row.config
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError as error:
            problems.append(Problem(f"{path}.config", f"is not valid JSON: {error}"))
    return {"slug": row.slug, "config": config}


def _check_slug(path: str, slug: str, problems: list[Problem]) -> None:
    if not SLUG_PATTERN.fullmatch(slug):
        problems.append(Problem(f"{path}.slug", f"{slug!r} is not allowed: use letters, digits, dot, dash, underscore"))


def _find_duplicates(table: str, field: str, rows: Any) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        first = seen.setdefault(row[field], index)
        if first != index and row[field]:
            yield Problem(
                f"{table}[{index}]", f"has the same {'key' if field == 'sha256' else field} as {table}[{first}]"
            )
