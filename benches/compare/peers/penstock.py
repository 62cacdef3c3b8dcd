"""Penstock as an operator runs it: with a gateway key check and one record for each request."""

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
    """Runs `penstock serve` with a penstock.toml in its folder and without tuning."""

    name = "penstock"

    def __init__(self, workers: int | None = None) -> None:
        """Sets the number of edge processes; without it the gateway chooses the number."""
        self._workers = f"workers = {workers}\n" if workers else ""

    def install(self) -> str:
        # Reads the version in a separate process, because this one must not load an extension that a build may replace.
        try:
            return run(sys.executable, "-c", VERSION).strip()
        except Unavailable as reason:
            message = f"`penstock` is not built for this Python: {reason}; run `make build`"
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
        # Also counts the records in rotated files.
        return sum(_lines(path) for path in stand.folder.glob(f"{RECORDS}*"))


class Burning(Penstock):
    """Penstock with the management route that keeps its Python interpreter busy."""

    def command(self, stand: Stand) -> list[str]:
        super().command(stand)
        return [sys.executable, "-m", burning.__name__, "serve"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY)}


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
