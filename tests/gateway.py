"""Gateway and mock provider as real processes for one test."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from tests.processes import Program, free_port, responds_ok, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]
CARGO_TARGET_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
SettingsTables = dict[str, Any]


def find_binary(name: str) -> Path:
    """Returns the path of a program of the workspace: the one set in the environment, or the newest build."""
    if body := os.environ.get(name.upper().replace("-", "_")):
        return Path(body)
    built = [path for profile in ("release", "debug") if (path := CARGO_TARGET_DIR / profile / name).exists()]
    if not built:
        raise FileNotFoundError(f"{name} is not built; hint: make build")
    return max(built, key=lambda path: path.stat().st_mtime)


class Mock:
    """Mock provider process and the requests that it received."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [find_binary("penstock-mock"), "--host", "127.0.0.1", "--port", "0", *options]
        self.program = Program(command, folder / "mock.log", env={}, cwd=folder)
        self.url = self.program.wait_until_listening()
        # No certificates: loading those of the system takes tens of milliseconds.
        self._client = httpx2.Client(base_url=self.url, timeout=20, verify=False)

    def ledger(self) -> list[dict[str, Any]]:
        """Returns every request since the start, oldest first."""
        return self._client.get("/_ledger").json()

    def clear_ledger(self) -> None:
        """Clears the ledger."""
        self._client.delete("/_ledger").raise_for_status()

    def stop(self) -> None:
        self._client.close()
        self.program.kill()


class Gateway:
    """`penstock serve` process with its own `penstock.toml`."""

    def __init__(
        self,
        folder: Path,
        tables: SettingsTables,
        env: Mapping[str, str],
        options: Sequence[str] = (),
        program: Sequence[str | Path] = ("-m", "penstock"),
    ) -> None:
        self.folder, self.env = folder, env
        self.records_file = folder / "records.jsonl"
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.own: SettingsTables = {
            "server": {"host": "127.0.0.1", "port": self.port, "drain_seconds": 3},
            # Most tests read records in the file.
            "records": {"path": str(self.records_file), "file": True},
            # Few tests read logs; the others start sooner without their store.
            "log_store": {"enabled": False},
        }
        self.configure(tables)
        # Not in the test's folder, because the path of a Unix socket must be shorter than 108 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="penstock-test-"))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.program = Program(
            [sys.executable, *program, "serve", "--config", self.config_file, *options],
            folder / "gateway.log",
            env={"PATH": path, "TMPDIR": str(self.temporary), **env},
            cwd=folder,
        )
        try:
            self.wait_until_ready()
        except BaseException:
            self.program.kill()
            shutil.rmtree(self.temporary)
            raise

    @property
    def config_file(self) -> Path:
        return self.folder / "penstock.toml"

    def configure(self, tables: SettingsTables) -> None:
        """Replaces `penstock.toml` atomically, as an editor would; a running gateway reloads it."""
        merged = {
            name: {**self.own.get(name, {}), **table} if isinstance(table, dict) else table
            for name, table in tables.items()
        }
        draft = self.folder / ".penstock.toml.new"
        draft.write_text(to_toml({**self.own, **merged}))
        draft.rename(self.config_file)

    def is_ready(self) -> bool | None:
        """Checks readiness once; returns true or `None` for use with `wait_for`."""
        self.program.check_alive()
        return responds_ok(f"{self.base_url}/ready") or None

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        wait_for(f"{self.base_url}/ready", self.is_ready, seconds)

    def pids(self) -> dict[int, str]:
        """Returns the command line of every live process of this gateway by pid, including the supervisor."""
        return self.program.session_processes()

    def refused_records(self, count: int = 1) -> list[dict[str, Any]]:
        """Waits until there are `count` records of requests without a valid key, then returns all of them."""
        file = self.records_file
        return self.records(count, file=file.with_name(f"{file.stem}-refused{file.suffix}"))

    def records(self, count: int = 1, seconds: float = 20.0, *, file: Path | None = None) -> list[dict[str, Any]]:
        """Waits until there are `count` records, then returns all of them; with 0, returns those that are there now."""
        file = file or self.records_file

        def read_records() -> list[dict[str, Any]]:
            # Splits at `\n` only, because `splitlines` also splits at characters that text may contain. Skips a last
            # line that is still being written.
            lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
            actual: dict[str, dict[str, Any]] = {}
            for fields in map(json.loads, lines):
                # An amendment follows its record and replaces some of its fields.
                record = actual.setdefault(fields["id"], fields)
                record |= fields
                record.pop("is_amendment", None)
            return list(actual.values())

        def read_enough_records() -> list[dict[str, Any]] | None:
            records = read_records()
            return records if len(records) >= count else None

        return wait_for(f"{count} records in {file}", read_enough_records, seconds) if count else read_records()

    def stop(self) -> None:
        """Stops the gateway with SIGTERM, as an operator would. Fails if a process or temporary file is left."""
        if self.program.process.poll() is None:
            status = self.program.stop()
            assert status == 0, f"`penstock serve` ended with {status} after SIGTERM:\n{self.program.read_output()}"
        remaining = self.program.session_processes()
        self.program.kill()
        stray = sorted(path.relative_to(self.temporary) for path in self.temporary.rglob("*"))
        shutil.rmtree(self.temporary)
        assert not remaining, f"processes left behind: {remaining}"
        assert not stray, f"files left behind: {stray}"


def to_toml(value: SettingsTables) -> str:
    """Renders tables as TOML, each on one line."""
    return "".join(f"{key} = {_to_inline_toml(item)}\n" for key, item in value.items())


def _to_inline_toml(value: object) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_to_inline_toml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_to_inline_toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
