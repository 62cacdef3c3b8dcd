"""Penstock as an operator runs it: a gateway key checked and a record written for each request."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from benches.compare.peers import burning, saved_configs
from benches.compare.peers.peer import REPOSITORY, Peer, Stand, Unavailable, run

if TYPE_CHECKING:
    from pathlib import Path

KEY = secrets.token_hex(24)
FILE = "penstock.toml"
RECORDS = "records.jsonl"
KEPT = '{"provider": "mock", "cache": {"mode": "simple"}}'
VERSION = "import penstock, penstock.engine; print(penstock.__version__)"
CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
{workers}
[records]
path = "{folder}/{records}"

[metrics]
enabled = true

[mock]
host = "{provider}"

[[keys]]
name = "bench"
key = "{key}"
"""


class Penstock(Peer):
    """Started as `penstock serve` with a penstock.toml beside it and nothing tuned."""

    name = "penstock"

    def __init__(self, workers: int | None = None) -> None:
        """Take as many edge processes as are asked for, else the number that it chooses by itself."""
        self._workers = f"workers = {workers}\n" if workers else ""

    def install(self) -> str:
        # In a process of its own: this one must not hold an extension that a build may replace.
        try:
            return run(sys.executable, "-c", VERSION).strip()
        except Unavailable as reason:
            message = f"`penstock` is not built for this Python: {reason}; hint: `make build`"
            raise Unavailable(message) from reason

    def command(self, stand: Stand) -> list[str]:
        places = {"port": stand.port, "folder": stand.folder, "provider": stand.provider}
        text = CONFIG.format(records=RECORDS, key=KEY, workers=self._workers, **places)
        (stand.folder / FILE).write_text(text)
        return [sys.executable, "-m", "penstock", "serve"]

    def headers(self, stand: Stand) -> dict[str, str]:
        return {
            **super().headers(stand),
            "x-gateway-api-key": KEY,
            "x-gateway-provider": "mock",
        }

    def headers_routed(self, stand: Stand, config: str) -> dict[str, str]:
        return {
            **super().headers(stand),
            "x-gateway-api-key": KEY,
            "x-gateway-config": KEPT if config == "kept" else f"pc-{config}",
        }

    def save_configs(self, stand: Stand) -> None:
        with (stand.folder / FILE).open("a") as file:
            file.write(saved_configs.tables())

    def written(self, stand: Stand) -> int | None:
        # Those put aside when the file grew too large count as well.
        return sum(_lines(path) for path in stand.folder.glob(f"{RECORDS}*"))


class Burning(Penstock):
    """The same with a management route that keeps its interpreter busy."""

    def command(self, stand: Stand) -> list[str]:
        super().command(stand)
        return [sys.executable, "-m", burning.__name__, "serve"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY)}


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
