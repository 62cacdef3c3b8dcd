"""A change of the file is published; a bad one is said once and changes nothing."""

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
PART = b'{"name":"configs/00","configs":[{"slug":"pc-new","config":{"provider":"mock"}}]}'


class Scene:
    """A file, what is published from it, and the one who watches."""

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

    def look(self, times: int = 1) -> None:
        async def looks() -> None:
            for _ in range(times):
                await self.watcher.check_file()

        asyncio.run(looks())


def test_a_change_is_published_when_the_file_has_come_to_rest(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.look(3)
    assert scene.epoch == scene.first
    scene.path.write_text(TWO)
    scene.look()
    assert scene.epoch == scene.first
    scene.look()
    assert scene.epoch != scene.first


def test_a_file_that_is_being_written_revokes_nothing(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.look(2)
    for half in ("", "[[keys]]\nname = 'a'\n", TWO):
        scene.path.write_text(half)
        scene.look()
        assert scene.epoch == scene.first


def test_a_file_that_is_put_in_the_place_of_the_old_one_is_noticed(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.look(2)
    before = scene.path.stat()
    other = tmp_path / "other"
    other.write_text(TWO)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(scene.path)
    scene.look(2)
    assert scene.epoch != scene.first


def test_what_the_store_says_meanwhile_is_not_undone(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.look()

    async def both() -> None:
        async with scene.published.turn:
            look = asyncio.create_task(scene.watcher.check_file())
            await asyncio.sleep(0)
            scene.published.stored = StoreData({"configs/00": Chunk.from_bytes(PART)})
        await look

    asyncio.run(both())
    assert b"pc-new" in scene.published.current.to_json()


def test_a_bad_file_is_said_once_and_the_old_snapshot_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    scene = Scene(tmp_path)
    scene.look(2)
    scene.path.write_text("[[keys]]\nname = 'a'\nkye = 'canary'\n")
    scene.look(5)
    assert scene.epoch == scene.first
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert "keys[0].kye" in said[0]
    assert "canary" not in said[0]
    scene.path.write_text(TWO)
    scene.look(2)
    assert scene.epoch != scene.first


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.look(2)
    scene.path.unlink()
    scene.look(3)
    assert scene.epoch == scene.first


def test_it_looks_by_itself_and_at_once_when_asked(tmp_path: Path):
    async def live(scene: Scene) -> None:
        watching = asyncio.create_task(scene.watcher.run())
        await asyncio.sleep(0.05)
        scene.path.write_text(TWO)
        scene.watcher.request_reload()
        snapshot = await scene.published.wait_for_newer(scene.first, 5)
        assert snapshot is not None
        watching.cancel()

    asyncio.run(live(Scene(tmp_path)))
