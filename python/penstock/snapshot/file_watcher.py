"""File watcher for `penstock.toml`. Publishes a new snapshot when the file changes and is valid."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.job_loop import wait_for_event
from penstock.snapshot.build import build_valid_snapshot

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.snapshot.build import SnapshotChannel

log = logging.getLogger("penstock")

POLL_INTERVAL_SECONDS = 0.1

FileStamp = tuple[int, int, int] | None


class ConfigFileWatcher:
    """Checks the file several times a second. An invalid file changes nothing."""

    def __init__(self, settings: Settings, published: SnapshotChannel) -> None:
        """Starts as if the file had changed, because the current snapshot may be older than the file."""
        self._settings = settings
        self._published = published
        self._requested = asyncio.Event()
        self._taken: FileStamp = None
        self._seen: FileStamp = None

    def request_reload(self) -> None:
        """Makes `run` read the file again at once, even if it has not changed."""
        self._taken = None
        self._requested.set()

    async def run(self) -> None:
        """Checks the file until cancelled."""
        while True:
            await self.check_file()
            await wait_for_event(self._requested, POLL_INTERVAL_SECONDS)
            self._requested.clear()

    async def check_file(self) -> None:
        """Reads the file if it changed and then stayed the same between two checks."""
        before, self._seen = self._seen, self._file_stamp()
        # The file must be unchanged between two checks: an editor may empty it first, and a partial file must not
        # revoke keys.
        if self._seen is None or self._seen == self._taken or self._seen != before:
            return
        self._taken = self._seen
        async with self._published.turn:
            await self._load_and_publish()

    async def _load_and_publish(self) -> None:
        try:
            previous = self._published.current
            snapshot = await asyncio.to_thread(build_valid_snapshot, self._settings, self._published.stored, previous)
        except PenstockError as error:
            log.error("the old snapshot stays: %s", error)  # noqa: TRY400 - a traceback would add nothing to the problems
            return
        if self._file_stamp() != self._taken:
            self._taken = None
        elif snapshot.epoch != self._published.current.epoch:
            self._published.publish(snapshot)
            log.info("published snapshot %.12s from %s", snapshot.epoch, self._settings.file)

    def _file_stamp(self) -> FileStamp:
        try:
            file_status = os.stat(self._settings.file or "")
        except OSError:
            return None
        return file_status.st_mtime_ns, file_status.st_ino, file_status.st_size
