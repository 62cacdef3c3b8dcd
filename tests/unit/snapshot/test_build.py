"""Snapshot of the engine: built from the config file, validated, and delivered to waiting workers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import SettingsError
from penstock.settings import Settings
from penstock.snapshot.append_log import Chunk
from penstock.snapshot.build import Snapshot, SnapshotBackup, SnapshotChannel, build_snapshot, build_valid_snapshot

if TYPE_CHECKING:
    from pathlib import Path

VALID_FILE = """
[server]
port = 1

[[keys]]
name = "dev"
key = "${DEV_KEY}"
expires_at = 2030-01-01T00:00:00Z

[[keys]]
id = "k-ops"
name = "ops"
sha256 = "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B"

[[providers]]
slug = "my-openai"
provider = "openai"
api_key = "${OPENAI_KEY}"

[[configs]]
slug = "pc-table"
config = { provider = "@my-openai" }

[[configs]]
slug = "pc-text"
config = '{"provider": "@my-openai"}'
"""
ENV = {"DEV_KEY": "canary-dev", "OPENAI_KEY": "canary-openai"}


def make_settings(folder: Path, text: str) -> Settings:
    file = folder / "penstock.toml"
    file.write_text(text)
    return Settings(file=str(file))


def read_document(snapshot: Snapshot) -> dict[str, Any]:
    return json.loads(snapshot.to_json())


def test_without_a_file_only_management_paths_are_known():
    content = read_document(build_snapshot(Settings()))
    assert (content["keys"], content["providers"], content["configs"]) == ([], [], [])
    assert set(content["management"]) >= {"/v1/health", "/v1/version", "/schema", "/metrics", "/dataservice/metrics"}
    assert not [path for path in content["management"] if "internal" in path]


def test_tables_become_the_engines_snapshot(tmp_path: Path):
    snapshot = build_snapshot(make_settings(tmp_path, VALID_FILE), ENV)
    content = read_document(snapshot)
    digest = hashlib.sha256(b"canary-dev").hexdigest()
    assert content["keys"][0] | {"id": ""} == {"id": "", "name": "dev", "sha256": digest, "expires_at": 1893456000}
    assert content["keys"][1]["id"] == "k-ops"
    assert content["keys"][1]["sha256"].startswith("2bb80d")
    assert content["providers"] == [
        {
            "slug": "my-openai",
            "provider": "openai",
            "api_key": "canary-openai",
            "custom_host": None,
            "anthropic_inspect_stream_for_overloaded_error": None,
            "options": {},
        }
    ]
    assert [row["config"] for row in content["configs"]] == [{"provider": "@my-openai"}] * 2
    assert content["epoch"] == snapshot.epoch
    assert snapshot.keys == 2
    assert "canary-dev" not in snapshot.to_json().decode()
    assert "canary" not in repr(snapshot)


def test_epoch_depends_on_the_content_only(tmp_path: Path):
    first = build_snapshot(make_settings(tmp_path, VALID_FILE), ENV)
    assert build_snapshot(make_settings(tmp_path, "# a remark\n" + VALID_FILE), ENV).epoch == first.epoch
    assert build_snapshot(make_settings(tmp_path, VALID_FILE), {**ENV, "OPENAI_KEY": "other"}).epoch != first.epoch


def test_key_keeps_its_id_when_it_moves_in_the_file(tmp_path: Path):
    first, second = "[[keys]]\nname = 'a'\nkey = 'key-of-x'\n", "[[keys]]\nname = 'b'\nkey = 'key-of-y'\n"
    ids = {
        key["name"]: key["id"] for key in read_document(build_snapshot(make_settings(tmp_path, first + second)))["keys"]
    }
    assert {
        key["name"]: key["id"] for key in read_document(build_snapshot(make_settings(tmp_path, second + first)))["keys"]
    } == ids


@pytest.mark.parametrize(
    ("text", "path", "content"),
    [
        ("[[keys]]\nname = 'a'\nkye = 'x'", "keys[0].kye", "allowed: name, id, key, sha256, expires_at"),
        ("[[keys]]\nname = 'a'", "keys[0]", "needs either key or sha256"),
        ("[[keys]]\nname = 'a'\nkey = ''", "keys[0].key", "must have 8 characters or more"),
        ("[[keys]]\nname = 'a'\nkey = 'seven-7'", "keys[0].key", "must have 8 characters or more"),
        ("[[keys]]\nname = ''\nkey = 'key-of-x'", "keys[0].name", "must not be empty"),
        ("[[keys]]\nname = 'a'\nkey = 1", "keys[0].key", "expected `str`, got `int`"),
        ("[[keys]]\nname = 'a'\nsha256 = 'zz'", "keys[0].sha256", "64 hexadecimal digits"),
        ("[[keys]]\nname = 'a'\nkey = '${NOT_SET}'", "keys[0].key", "'NOT_SET' is not set"),
        (
            "[[keys]]\nname = 'a'\nkey = 'key-of-x'\n[[keys]]\nname = 'a'\nkey = 'key-of-y'",
            "keys[1]",
            "same name as keys[0]",
        ),
        (
            "[[keys]]\nname = 'a'\nkey = 'key-of-x'\n[[keys]]\nname = 'b'\nkey = 'key-of-x'",
            "keys[1]",
            "same key as keys[0]",
        ),
        ("[[providers]]\nslug = 'a'", "providers[0]", "missing required field `provider`"),
        ("[[providers]]\nslug = 'a b'\nprovider = 'openai'", "providers[0].slug", "'a b' is not allowed"),
        ("[[configs]]\nslug = 'a'\nconfig = '{'", "configs[0].config", "is not valid JSON"),
        ("keys = 1", "keys", "must be a list of tables"),
    ],
)
def test_errors_are_reported_with_their_path(tmp_path: Path, text: str, path: str, content: str):
    with pytest.raises(SettingsError) as caught:
        build_snapshot(make_settings(tmp_path, text), {})
    first = caught.value.problems[0]
    assert (first.path, content in first.message) == (path, True), str(caught.value)


def test_engine_parser_validates_the_snapshot_last(tmp_path: Path):
    with pytest.raises(SettingsError) as caught:
        build_valid_snapshot(make_settings(tmp_path, "[[providers]]\nslug = 'a'\nprovider = 'no-such-maker'\n"))
    assert caught.value.problems[0].path.startswith("providers[0]")


def test_removed_sections_are_sent_without_rows():
    members = {"api_keys/0a": "keys", "prompts/0b": "prompts", "prompt_partials/0c": "partials", "limits/0d": "limits"}
    members |= {"guardrails/0e": "guardrails"}
    chunks = {
        name: Chunk.from_bytes(json.dumps({"name": name, member: [{}]}).encode()) for name, member in members.items()
    }
    before, after = Snapshot.from_content(b"", chunks, 0), Snapshot.from_content(b"", {}, 0)
    parts = json.loads(after.to_json(since=before))["parts"]
    assert parts == [{"name": name, member: []} for name, member in members.items()]


def test_waiting_worker_gets_the_next_snapshot_at_once():
    async def scenario() -> None:
        published = SnapshotChannel(Snapshot("1", b"one"))
        assert (await published.wait_for_newer("", 5)) == published.current
        waiting = [asyncio.create_task(published.wait_for_newer("1", 5)) for _ in range(3)]
        await asyncio.sleep(0)
        published.publish(Snapshot("2", b"two"))
        assert [snapshot.epoch for snapshot in await asyncio.gather(*waiting) if snapshot] == ["2"] * 3
        assert await published.wait_for_newer("2", 0.01) is None

    asyncio.run(scenario())


def test_wait_for_a_slow_worker_is_bounded_and_counted():
    async def scenario() -> None:
        published = SnapshotChannel(Snapshot("1", b"one"))
        running = published.running
        for worker in (1, 2):
            published.record_worker_epoch(worker, "1")
        published.publish(Snapshot("2", b"two"))
        waiting = asyncio.create_task(running.wait_until(5, lambda: running.all_reached(1)))
        published.record_worker_epoch(1, "2")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        published.record_worker_epoch(2, "2")
        assert await waiting
        published.publish(Snapshot("3", b"three"))
        published.record_worker_epoch(1, "3")
        # A worker that runs an unknown snapshot is behind as well.
        published.record_worker_epoch(2, "x")
        assert not await running.wait_until(0.01, lambda: running.all_reached(published.number))
        assert (running.waits, running.given_up) == (2, 1)
        # Other waiters and later changes do not wait for this worker either, until it reports again.
        waiting = asyncio.create_task(running.wait_until(5, lambda: running.all_reached(published.number)))
        await asyncio.sleep(0)
        running.drop_lagging_workers(published.number)
        assert await waiting
        published.record_worker_epoch(2, "x")
        assert not running.all_reached(published.number)
        published.record_worker_epoch(2, "3")
        assert running.all_reached(published.number)

    asyncio.run(scenario())


def test_vanished_worker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    published = SnapshotChannel(Snapshot("1", b"one"))
    published.record_worker_epoch(1, "1")
    published.publish(Snapshot("2", b"two"))
    assert not published.running.all_reached(1)
    monkeypatch.setattr("penstock.snapshot.build.WORKER_EXPIRY_SECONDS", 0.0)
    assert published.running.all_reached(1)


def test_closing_ends_all_waits():
    async def scenario() -> None:
        published = SnapshotChannel(Snapshot("1", b"one"))
        waiting = asyncio.create_task(published.wait_for_newer("1", 60))
        await asyncio.sleep(0)
        published.close()
        assert await waiting is None
        assert await published.wait_for_newer("1", 60) is None

    asyncio.run(scenario())


def test_published_snapshot_is_stored_for_a_restart():
    first, second = Snapshot("1", b"one"), Snapshot("2", b"two" * 100_000, {"p": Chunk.from_bytes(b"piece")}, 2)
    remaining = SnapshotBackup(first)
    published = SnapshotChannel(remaining.load_latest(), remaining)
    assert published.current == first
    published.publish(second)
    assert remaining.load_latest() == second


def test_crash_during_a_write_keeps_the_previous_snapshot(monkeypatch: pytest.MonkeyPatch):
    remaining = SnapshotBackup(Snapshot("1", b"one"))
    remaining.store(Snapshot("2", b"two"))

    def write_partially(location: int, data: bytes, offset: int) -> int:
        if len(data) < 10:
            raise KeyboardInterrupt
        return complete(location, data[: len(data) - 9], offset)

    complete = os.pwrite
    with monkeypatch.context() as dying:
        dying.setattr("os.pwrite", write_partially)
        with pytest.raises(KeyboardInterrupt):
            remaining.store(Snapshot("3", b"three"))
    assert remaining.load_latest().epoch == "2"
    remaining.store(Snapshot("4", b"four"))
    assert remaining.load_latest().epoch == "4"
