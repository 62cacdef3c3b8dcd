"""Snapshot for the engine. Combines `penstock.toml` with the store's data and publishes each new version to waiting
workers.
"""

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

from penstock import config_references, engine, resource_paths
from penstock.errors import Problem, SettingsError
from penstock.pricing import engine_export
from penstock.settings import SNAPSHOT_TABLES, decode_secret, read_toml_file
from penstock.settings.secret import Secret
from penstock.similar_names import describe_unknown
from penstock.snapshot.append_log import AppendLog, Chunk, changed_chunks, chunk_digests
from penstock.store.snapshot_sections import section_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.settings import Settings

ENV_REFERENCE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SHA256_HEX_PATTERN = re.compile(r"[0-9a-f]{64}")
# Minimum length of a key. Shorter ones are easy to guess, and could match unrelated words: the engine looks for keys
# inside header values.
MIN_KEY_CHARS = 8
SLUG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


# Name of the chunk with the prices.
PRICES_CHUNK = "prices"
# A worker requests a snapshot at least every 20 s. A worker that sends no request for this long has exited.
WORKER_EXPIRY_SECONDS = 25.0
# Number of recent snapshots that are stored. A worker that runs on one of them receives only the changes since then.
MAX_RECENT_SNAPSHOTS = 8


class Snapshot(msgspec.Struct, frozen=True):
    """Complete configuration of the data plane, as the engine reads it."""

    epoch: str = ""
    # Encoded members of the JSON document that are always sent.
    base: bytes = b""
    # Chunks that are sent only if they changed: prices, and sections of the store's large tables.
    chunks: dict[str, Chunk] = {}
    keys: int = 0

    def __repr__(self) -> str:
        """Omits the content, because it contains credentials."""
        return f"Snapshot(epoch={self.epoch!r}, keys={self.keys})"

    @classmethod
    def from_content(cls, base: bytes, chunks: dict[str, Chunk], keys: int) -> Snapshot:
        """Returns a snapshot whose epoch is the hash of its content."""
        digest = hashlib.sha256(base)
        for name, chunk in sorted(chunks.items()):
            digest.update(name.encode() + chunk.digest)
        return cls(digest.hexdigest(), base, chunks, keys)

    def to_json(self, since: Snapshot | None = None) -> bytes:
        """Returns the JSON document that the engine compiles: everything, or only the chunks that changed since an
        earlier snapshot.
        """
        members = [b'"epoch":"%s"' % self.epoch.encode()]
        before: dict[str, Chunk] = {}
        # A snapshot without an epoch was never sent.
        if since is not None and since.epoch:
            members.append(b'"since":"%s"' % since.epoch.encode())
            before = since.chunks
        members += [self.base] if self.base else []
        changed = changed_chunks(self.chunks, chunk_digests(before))
        removed = [
            b'{"name":"%s","%s":[]}' % (name.encode(), section_member(name).encode())
            for name in before
            if name not in self.chunks
        ]
        if prices := changed.pop(PRICES_CHUNK, None):
            members.append(b'"prices":' + prices.data)
        members.append(b'"parts":[%s]' % b",".join([*(chunk.data for chunk in changed.values()), *removed]))
        return b"{%s}" % b",".join(members)


class StoreData(msgspec.Struct, frozen=True):
    """The part of a snapshot that comes from the store."""

    # Encoded sections of the large tables, by name.
    chunks: dict[str, Chunk] = {}
    # Rows of the other tables. Each field has the content of a JSON array without its brackets.
    providers: bytes = b""
    models: bytes = b""
    workspaces: bytes = b""
    departed: bytes = b""
    # Data for verifying JWTs, as a JSON object; empty if JWTs are not accepted.
    jwt: bytes = b""
    key_count: int = 0
    # Values from secret managers that providers use, each with the digest of its lookup.
    secrets: dict[str, tuple[bytes, str]] = {}
    # Change number of this read, after which the next incremental read continues.
    number: int = -1
    # Row count of each section, and the Unix time in milliseconds at which its first row expires.
    parts: dict[str, tuple[int, int | None]] = {}
    # Unix time in milliseconds at which the first of all other rows expires.
    rest_end: int | None = None

    def __repr__(self) -> str:
        """Omits the rows, because they contain credentials."""
        return f"StoreData(key_count={self.key_count})"


EMPTY_STORE_DATA = StoreData()


class PreparedStore(msgspec.Struct, frozen=True):
    """Result of preparing the store at startup."""

    stored: StoreData = EMPTY_STORE_DATA
    # Admin key. Set only if it was just created, because it is shown only once.
    admin_key: str | None = None
    # Secret of a sign-in link for the owner, which works once. Set only if the store was just created.
    sign_in_token: str | None = None
    # API key for the example commands. Set only for a start with the mock provider.
    demo_key: str | None = None
    # Master key. Set only if it comes from a secret manager, so that restarted processes need not fetch it again.
    master_key: str | None = None

    def __repr__(self) -> str:
        """Omits the keys."""
        return f"PreparedStore({self.stored!r})"


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


# Tables of a snapshot that only the store has, not the settings file.
STORE_ONLY_TABLES = ("models", "workspaces", "departed")


class _SnapshotHeader(msgspec.Struct, frozen=True):
    """A snapshot without its chunks."""

    epoch: str
    base: bytes
    keys: int


class SnapshotBackup:
    """Stores the last valid snapshot in anonymous memory files. It is available after the process that validated it has
    exited, and is never on the disk.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Stores the first snapshot."""
        self._memory_files = [_open_memory_file(), _open_memory_file()]
        self._append_log = AppendLog(self._duplicate_file)
        self.store(snapshot)

    def store(self, snapshot: Snapshot) -> None:
        """Replaces the stored snapshot."""
        head = _SnapshotHeader(snapshot.epoch, snapshot.base, snapshot.keys)
        self._append_log.save(msgspec.msgpack.encode(head), snapshot.chunks)

    def load_latest(self) -> Snapshot:
        """Returns the newest snapshot that was written completely. Raises `SettingsError` if there is none."""
        loaded = self._append_log.load()
        if loaded is None:
            message = "no snapshot was stored"
            raise SettingsError(message)
        head = msgspec.msgpack.decode(loaded[0], type=_SnapshotHeader)
        return Snapshot(head.epoch, head.base, loaded[1], head.keys)

    def _duplicate_file(self, file_index: int, _flags: int) -> int:
        return os.dup(self._memory_files[file_index])


class WorkerProgress:
    """Tracks the number of the snapshot on which each worker of this node runs. Workers report it when they request the
    next snapshot.
    """

    def __init__(self) -> None:
        """Starts without workers."""
        self.waits = self.given_up = 0
        self._reports: dict[int, tuple[float, int]] = {}
        self._changed = asyncio.Event()

    def values_by_name(self) -> dict[str, float]:
        """Returns the metrics by name."""
        return {"publish_waits": self.waits, "publish_waits_given_up": self.given_up}

    def record_worker(self, worker: int, number: int) -> None:
        """Records the number of the snapshot that a worker runs on."""
        self._reports[worker] = (time.monotonic(), number)
        self.notify()

    def notify(self) -> None:
        """Wakes all waiting tasks, so that they check their condition again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_until(self, seconds: float, is_so: Callable[[], bool]) -> bool:
        """Waits until a condition is true; returns false if it is not within `seconds`. Each `notify` call rechecks the
        condition.
        """
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
        """Ignores workers that run on an older snapshot, until they report again."""
        self._reports = {worker: report for worker, report in self._reports.items() if report[1] >= number}
        self.notify()

    def live_workers(self) -> set[int]:
        """Returns the numbers of the workers that requested a snapshot within `WORKER_EXPIRY_SECONDS`."""
        oldest = time.monotonic() - WORKER_EXPIRY_SECONDS
        return {worker for worker, (reported_at, _) in self._reports.items() if reported_at > oldest}

    def numbers_by_worker(self) -> dict[int, int]:
        """Returns the snapshot number of each worker in `live_workers`."""
        live = self.live_workers()
        return {worker: number for worker, (_, number) in self._reports.items() if worker in live}

    def all_reached(self, number: int) -> bool:
        """Returns true if no live worker runs on an older snapshot."""
        oldest = time.monotonic() - WORKER_EXPIRY_SECONDS
        return all(runs >= number for reported_at, runs in self._reports.values() if reported_at > oldest)


class SnapshotChannel:
    """Provides the current snapshot, and lets workers wait for the next one."""

    def __init__(self, snapshot: Snapshot, backup: SnapshotBackup | None = None) -> None:
        """Starts with a validated snapshot."""
        self.current = snapshot
        # Number of snapshots that were published before the current one.
        self.number = 0
        self.running = WorkerProgress()
        self._recent = deque([snapshot], MAX_RECENT_SNAPSHOTS)
        # Last data from the store. If only the file changes, the new snapshot is built with it.
        self.stored = EMPTY_STORE_DATA
        # Lock from building a snapshot to publishing it. Without it, an older snapshot could be published after a newer
        # one.
        self.turn = asyncio.Lock()
        self.closed = False
        self._kept = backup
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Replaces the current snapshot and wakes all waiting tasks."""
        if self._kept:
            self._kept.store(snapshot)
        self.current = snapshot
        self.number += 1
        self._recent.append(snapshot)
        self._notify()

    def find_recent(self, epoch: str) -> Snapshot | None:
        """Returns the snapshot of this epoch if it is among the recent ones, else `None`."""
        return next((snapshot for snapshot in self._recent if snapshot.epoch == epoch), None)

    def record_worker_epoch(self, worker: int, epoch: str) -> None:
        """Records that a worker runs on the snapshot of this epoch."""
        back = (back for back, snapshot in enumerate(reversed(self._recent)) if snapshot.epoch == epoch)
        self.running.record_worker(worker, self.number - next(back, MAX_RECENT_SNAPSHOTS))

    def close(self) -> None:
        """Wakes all waiting tasks, because the process exits."""
        self.closed = True
        self._notify()
        self.running.notify()

    async def wait_for_newer(self, epoch: str, seconds: float) -> Snapshot | None:
        """Waits until the current snapshot has another epoch than `epoch`. Returns `None` on timeout or shutdown."""
        changed = self._changed
        if self.current.epoch == epoch and not self.closed:
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                return None
        return self.current if self.current.epoch != epoch else None

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def build_snapshot(
    settings: Settings, environ: Mapping[str, str] = os.environ, stored: StoreData = EMPTY_STORE_DATA
) -> Snapshot:
    """Reads the current settings file and combines it with the store's data. Raises `SettingsError` with all problems
    found.
    """
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
    features = {"management": resource_paths.forwarded_prefixes(), "catalogue": settings.store_url is not None}
    members.append(msgspec.json.encode(features)[1:-1])
    prices = Chunk.from_bytes(msgspec.json.encode(engine_export.export_prices(settings)))
    return Snapshot.from_content(
        b",".join(members), {PRICES_CHUNK: prices, **stored.chunks}, len(rows["keys"]) + stored.key_count
    )


def find_missing_providers(settings: Settings) -> list[Problem]:
    """Returns a problem for each saved provider that a config in the settings file names, and that the file does not
    define.
    """
    document = read_toml_file(settings.file) if settings.file else {}
    providers, configs = (cast("list[dict[str, Any]]", document.get(table, [])) for table in ("providers", "configs"))
    existing = {str(row.get("slug")) for row in providers}
    problems: list[Problem] = []
    for index, row in enumerate(configs):
        config = row.get("config")
        content: object = msgspec.json.decode(config) if isinstance(config, str) else config
        problems += config_references.find_missing(content, f"configs[{index}].config", existing, "in this file")
    return problems


def build_valid_snapshot(
    settings: Settings, stored: StoreData = EMPTY_STORE_DATA, good: Snapshot | None = None
) -> Snapshot:
    """Builds a snapshot and validates it with the engine's parser. Validates only the differences from `good`, a
    snapshot that is already valid.
    """
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
    """Encodes a table as a JSON member. The rows of the settings file precede the others, so that the indexes in error
    paths are those in the file.
    """
    file_rows = msgspec.json.encode(rows or [])[1:-1]
    return b'"%s":[%s]' % (name.encode(), b",".join(part for part in (file_rows, others) if part))


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
            problems += [Problem(f"{path}.{key}", describe_unknown(key, fields)) for key in unknown]
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
    """Converts a message such as "Expected `int`, got `str` - at `$.a`" to a problem with a path in the
    settings file.
    """
    description, _, location = message.partition(" - at `$")
    return Problem(path + location.rstrip("`"), description[:1].lower() + description[1:])


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
        if variable := environ.get(reference[1]):
            return variable
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
    # Records contain the id, so it must not change. It is derived from the name, because the position in the file may
    # change.
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
    seen_keys: dict[str, int] = {}
    for index, row in enumerate(rows):
        first = seen_keys.setdefault(row[field], index)
        if first != index and row[field]:
            yield Problem(
                f"{table}[{index}]", f"has the same {'key' if field == 'sha256' else field} as {table}[{first}]"
            )
