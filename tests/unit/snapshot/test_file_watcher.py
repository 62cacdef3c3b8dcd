"""Config file watcher. Publishes changes of the file; reports an invalid file once and keeps the last snapshot."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from penstock.settings import Settings
from penstock.snapshot.append_log import Chunk
from penstock.snapshot.build import SnapshotChannel, StoreData, build_valid_snapshot
from penstock.snapshot.file_watcher import ConfigFileWatcher

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ONE, TWO = "[[keys]]\nname = 'a'\nkey = 'key-of-one'\n", "[[keys]]\nname = 'a'\nkey = 'key-of-two'\n"
STORE_CHUNK = b'{"name":"configs/00","configs":[{"slug":"pc-new","config":{"provider":"mock"}}]}'


class WatcherHarness:
    """A config file, the snapshot built from it, and its watcher."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "penstock.toml"
        self.path.write_text(ONE)
        self.settings = Settings(file=str(self.path))
        self.published = SnapshotChannel(build_valid_snapshot(self.settings))
        self.watcher = ConfigFileWatcher(self.settings, self.published)
        self.first = self.epoch

    @property
    def epoch(self) -> str:
        return self.published.current.epoch

    def check_file(self, times: int = 1) -> None:
        async def check_repeatedly() -> None:
            for _ in range(times):
                await self.watcher.check_file()

        asyncio.run(check_repeatedly())


def test_publishes_a_change_once_the_file_is_stable(tmp_path: Path):
    harness = WatcherHarness(tmp_path)
    harness.check_file(3)
    assert harness.epoch == harness.first
    harness.path.write_text(TWO)
    harness.check_file()
    assert harness.epoch == harness.first
    harness.check_file()
    assert harness.epoch != harness.first


def test_partially_written_file_revokes_nothing(tmp_path: Path):
    harness = WatcherHarness(tmp_path)
    harness.check_file(2)
    for half in ("", "[[keys]]\nname = 'a'\n", TWO):
        harness.path.write_text(half)
        harness.check_file()
        assert harness.epoch == harness.first


def test_detects_a_file_replaced_by_rename(tmp_path: Path):
    harness = WatcherHarness(tmp_path)
    harness.check_file(2)
    before = harness.path.stat()
    other = tmp_path / "other"
    other.write_text(TWO)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(harness.path)
    harness.check_file(2)
    assert harness.epoch != harness.first


def test_concurrent_store_update_is_not_lost(tmp_path: Path):
    harness = WatcherHarness(tmp_path)
    harness.check_file()

    async def scenario() -> None:
        async with harness.published.turn:
            probe = asyncio.create_task(harness.watcher.check_file())
            await asyncio.sleep(0)
            harness.published.stored = StoreData({"configs/00": Chunk.from_bytes(STORE_CHUNK)})
        await probe

    asyncio.run(scenario())
    assert b"pc-new" in harness.published.current.to_json()


def test_invalid_file_is_logged_once_and_snapshot_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    harness = WatcherHarness(tmp_path)
    harness.check_file(2)
    harness.path.write_text("[[keys]]\nname = 'a'\nkye = 'canary'\n")
    harness.check_file(5)
    assert harness.epoch == harness.first
    content = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(content) == 1
    assert "keys[0].kye" in content[0]
    assert "canary" not in content[0]
    harness.path.write_text(TWO)
    harness.check_file(2)
    assert harness.epoch != harness.first


def test_deleted_file_changes_nothing(tmp_path: Path):
    harness = WatcherHarness(tmp_path)
    harness.check_file(2)
    harness.path.unlink()
    harness.check_file(3)
    assert harness.epoch == harness.first


def test_polls_by_itself_and_at_once_on_request(tmp_path: Path):
    async def scenario(harness: WatcherHarness) -> None:
        watching = asyncio.create_task(harness.watcher.run())
        await asyncio.sleep(0.05)
        harness.path.write_text(TWO)
        harness.watcher.request_reload()
        snapshot = await harness.published.wait_for_newer(harness.first, 5)
        assert snapshot is not None
        watching.cancel()

    asyncio.run(scenario(WatcherHarness(tmp_path)))
