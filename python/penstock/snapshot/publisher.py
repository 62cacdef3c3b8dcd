"""Snapshot publisher. Reads the store after a change, validates the snapshot, publishes it atomically, and saves it for
the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from penstock.errors import PenstockError
from penstock.job_loop import wait_for_event
from penstock.schemas import now
from penstock.secrets.references import load_secret_lookups
from penstock.snapshot.append_log import AppendLog
from penstock.snapshot.build import StoreData, build_valid_snapshot
from penstock.snapshot.query import SnapshotReader
from penstock.store.snapshot_sections import ALL_SECTIONS, SMALL_TABLES, all_sections
from penstock.store.tables import change_counter, change_log

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.access.token_verification import TokenVerifier
    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import MasterKeys, Vault
    from penstock.settings import Settings
    from penstock.snapshot.build import SnapshotChannel
    from penstock.store.database import Database

log = logging.getLogger("penstock")

# Interval at which the publisher checks for changes without a notification. Every change must be in use within a
# second.
POLL_INTERVAL_SECONDS = 0.5
# Interval at which the publisher checks for secrets that must be fetched from secret managers again.
SECRETS_INTERVAL_SECONDS = 1.0
SNAPSHOT_NOT_SAVED = "the snapshot is not saved for the next start: %s"
KEPT_FILES, PURPOSE = ("penstock.snapshot", "penstock.snapshot.other"), "snapshot"
# Maximum time that a snapshot waits for secret managers. The values of slower ones are fetched in the background.
SECRETS_TIMEOUT_SECONDS = 1.0
# Delay before a node that started from a saved snapshot reads all rows of the store once. The snapshot may be from
# another release, or the database may have been restored to an older state. An immediate read would delay the first
# change after the start.
FULL_READ_DELAY_SECONDS = 5.0
# Number of batches in which all rows are read. Reading a hundred thousand prompts at once would delay changes by many
# seconds.
FULL_READ_BATCHES = 32
# Minimum time between two reads of the store, if many changes follow each other.
MIN_READ_INTERVAL_SECONDS = 0.02


class SavedSnapshot:
    """The last valid rows of the store, encrypted in files. A node starts from them while the database is
    unavailable.
    """

    def __init__(self, settings: Settings, master: MasterKeys) -> None:
        """Stores the file paths and the master key."""
        self._paths = [settings.sibling_path(name) for name in KEPT_FILES]
        self._master = master
        self._append_log = AppendLog(self._open_file, self)

    def save(self, stored: StoreData) -> None:
        """Replaces the saved snapshot atomically."""
        head = msgspec.structs.replace(stored, chunks={})
        self._append_log.save(msgspec.msgpack.encode(head), stored.chunks)

    def load(self) -> StoreData | None:
        """Returns the saved snapshot, or `None` if there is none that can be decrypted."""
        loaded = self._append_log.load()
        return loaded and msgspec.structs.replace(msgspec.msgpack.decode(loaded[0], type=StoreData), chunks=loaded[1])

    def seal(self, content: bytes) -> bytes:
        """Encrypts a snapshot. The result can only be decrypted by `open`, because `PURPOSE` is part of the
        encryption.
        """
        return self._master.seal(content, PURPOSE)

    def open(self, sealed: bytes) -> bytes:
        """Decrypts a saved snapshot."""
        return self._master.open(sealed, PURPOSE)

    def _open_file(self, file_index: int, flags: int) -> int:
        return os.open(self._paths[file_index], flags | os.O_CLOEXEC, 0o600)


class SnapshotPublisher:
    """Publishes a snapshot after each change of the store. Checks the change counter when notified, and twice a
    second.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all are required dependencies
        self,
        settings: Settings,
        published: SnapshotChannel,
        database: Database,
        vault: Vault,
        secrets: SecretCache,
        saved_snapshot: SavedSnapshot,
        tokens: TokenVerifier | None,
    ) -> None:
        """Starts from the saved snapshot. `run` reads the store."""
        self._settings = settings
        self._published = published
        self._database = database
        self._vault = vault
        self._secrets = secrets
        self._gatherer = SnapshotReader(vault, secrets)
        self._kept = saved_snapshot
        self._tokens = tokens
        self._wake_event = asyncio.Event()
        # Number of the last change that was read.
        self._number: int = -1
        # Number of the last change that was published.
        self._through: int = -1
        # Number of changes of secrets in secret managers, and how many of these changes are published.
        self._fills = self._filled = 0
        self._due: int | None = None
        # Time at which all rows are read again even without a change.
        self._whole_at: float | None = None
        # Batches of sections that remain of a read of all rows.
        self._unread: list[frozenset[str]] = []
        if published.stored.number >= 0:
            self._gatherer.restore(published.stored)
            self._number = published.stored.number
            self._whole_at = time.monotonic() + FULL_READ_DELAY_SECONDS
        self._is_failing = self._is_running = False

    def notify(self) -> None:
        """Wakes the publisher, because the store changed."""
        self._wake_event.set()

    async def wait_until_applied(self, number: int) -> None:
        """Waits until each worker of this node runs a snapshot with this change, for at most
        `store.publish_wait_ms`.
        """
        seconds = self._settings.store.publish_wait_ms / 1000
        if not (seconds and self._is_running):
            return
        published, target_number = self._published, None

        def is_applied() -> bool:
            nonlocal target_number
            if published.closed or self._is_failing:
                return True
            if target_number is None and self._through >= number:
                target_number = published.number
            return target_number is not None and published.running.all_reached(target_number)

        if not await published.running.wait_until(seconds, is_applied) and target_number is not None:
            # Otherwise every later change would wait the full time for a worker that has died.
            published.running.drop_lagging_workers(target_number)

    async def run(self) -> None:
        """Publishes snapshots until cancelled."""
        self._secrets.restore_values(self._published.stored.secrets)
        watching = asyncio.create_task(self.refresh_secrets_forever())
        self._is_running = True
        try:
            await self._poll_forever()
        finally:
            self._is_running = False
            watching.cancel()

    async def _poll_forever(self) -> None:
        while True:
            await self._publish_or_log()
            polled_at = time.monotonic()
            self._published.running.notify()
            await wait_for_event(self._wake_event, POLL_INTERVAL_SECONDS)
            await asyncio.sleep(max(0.0, polled_at + MIN_READ_INTERVAL_SECONDS - time.monotonic()))
            self._wake_event.clear()

    async def _publish_or_log(self) -> None:
        try:
            await self.publish_changes()
            self._is_failing = False
        except PenstockError as error:
            if not self._is_failing:
                log.error("the old snapshot stays: %s", error)  # noqa: TRY400 - a traceback would add nothing to the problems
            self._is_failing = True
        except Exception:
            # An unexpected error, such as a bug that one row triggers, must not end publishing. It is logged once, and
            # publishing is tried again.
            if not self._is_failing:
                log.exception("the old snapshot stays")
            self._is_failing = True

    async def refresh_secrets_forever(self) -> None:
        """Fetches secrets from secret managers until cancelled. Fetches a secret when an integration begins to need it,
        and again when its value is old.
        """
        try:
            while True:
                try:
                    await self._start_due_fetches()
                except PenstockError as error:
                    log.warning("secrets cannot be refreshed: %s", error)
                await asyncio.sleep(SECRETS_INTERVAL_SECONDS)
        finally:
            await self._secrets.stop()

    async def _start_due_fetches(self) -> None:
        """Starts to fetch the secrets that are due. Each changed secret triggers publishing, without waiting for the
        others.
        """
        async with self._database.read_connection() as connection:
            lookups = await load_secret_lookups(connection, self._vault)
        self._secrets.start_refresh(lookups, self._publish_changed_secret)

    def _publish_changed_secret(self) -> None:
        self._fills += 1
        self.notify()

    async def _fetch_new_secrets(self) -> None:
        """Fetches secrets that an integration has just begun to need. Without this, the integration would be missing
        from the snapshot until the secrets arrive.
        """
        async with self._database.read_connection() as connection:
            number = await connection.scalar(select(change_counter.c.number)) or 0
            if number == self._number:
                return
            parts = await self._changed_sections(connection, number)
            if parts is not None and SMALL_TABLES not in parts:
                return
            lookups = await load_secret_lookups(connection, self._vault)
        await self._secrets.fetch_new(lookups, SECRETS_TIMEOUT_SECONDS, self._publish_changed_secret)

    async def publish_changes(self) -> None:
        """Publishes a snapshot if something changed, or if a published row has expired."""
        await self._fetch_new_secrets()
        async with self._database.read_connection() as connection:
            number = await connection.scalar(select(change_counter.c.number)) or 0
            fills = self._fills
            due = self._due is not None and self._due <= now()
            if self._whole_at is not None and self._whole_at <= time.monotonic():
                self._whole_at, self._unread = None, all_sections(FULL_READ_BATCHES)
            jwt = self._tokens.export_keys() if self._tokens else b""
            is_known = number == self._through and jwt == self._published.stored.jwt
            if is_known and not (due or self._unread or fills > self._filled):
                return
            parts = await self._changed_sections(connection, number)
            if parts is not None and self._unread:
                parts |= self._unread[0]
            stored, self._due = await self._gatherer.read_snapshot(connection, parts)
            stored = msgspec.structs.replace(stored, jwt=jwt, number=number)
        async with self._published.turn:
            previous = self._published.current
            snapshot = await asyncio.to_thread(build_valid_snapshot, self._settings, stored, previous)
            self._number, self._filled = number, fills
            self._unread = [] if parts is None else self._unread[1:]
            self._published.stored = stored
            # The snapshot is saved before it is published. If the process were killed in between, it would otherwise
            # restart from an older snapshot.
            await self._save_snapshot(stored)
            if snapshot.epoch != self._published.current.epoch:
                self._published.publish(snapshot)
                log.info("published snapshot %.12s from the store", snapshot.epoch)
            self._through = number
        if self._unread:
            self.notify()

    async def _save_snapshot(self, stored: StoreData) -> None:
        try:
            await asyncio.to_thread(self._kept.save, stored)
        except OSError as error:
            log.warning(SNAPSHOT_NOT_SAVED, error)

    async def _changed_sections(self, connection: AsyncConnection, number: int) -> frozenset[str] | None:
        """Returns the sections that changed since the last read. Returns `None` if the store no longer has the sections
        of every change.
        """
        since = [change_log.c.number > self._number, change_log.c.number <= number]
        rows = (await connection.scalars(select(change_log.c.parts).where(*since))).all()
        parts = frozenset(part for parts in rows for part in parts)
        if self._number < 0 or len(rows) != number - self._number or ALL_SECTIONS in parts:
            return None
        return parts | {SMALL_TABLES} if self._fills > self._filled else parts
