"""`python -m loadtests.sharing`: runs every Redis fault under load and prints its effect on requests."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare import gateway, ports, provider
from benches.compare.peers.penstock import KEY, Penstock
from loadtests.sharing.callers import Callers
from loadtests.sharing.measure import Figures, Load, measure
from loadtests.sharing.server import FAULTS, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.compare.peers.peer import Stand

WORKERS = 2


class Sharing(Penstock):
    """Penstock with two workers and a control process that share a Redis, and a store that publishes its changes
    through it.
    """

    def __init__(self, url: str) -> None:
        super().__init__(WORKERS)
        self._url = url
        self._store = ""

    def command(self, stand: Stand) -> list[str]:
        self._store = f"sqlite:///{stand.folder}/penstock.db"
        return super().command(stand)

    def environment(self) -> dict[str, str]:
        return {"REDIS_URL": self._url, "PENSTOCK_STORE_URL": self._store, "PENSTOCK_ADMIN_KEY": "k" * 32}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a limit is violated."""
    asked = _parser().parse_args(arguments)
    load = Load(asked.seconds, asked.well, asked.rate, asked.strict)
    figures = asyncio.run(measured(load, asked.faults))
    broken = [f"{one.fault}: {wrong}" for one in figures for wrong in one.wrong]
    print("\n".join(broken), file=sys.stderr)
    return int(bool(broken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.sharing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="how long each fault lasts")
    parser.add_argument("--well", type=float, default=10, metavar="S", help="time without a fault before each fault")
    parser.add_argument("--rate", type=float, default=500, metavar="R", help="requests a second")
    parser.add_argument(
        "--faults", nargs="+", default=list(FAULTS), choices=FAULTS, help="faults to run, in this order"
    )
    parser.add_argument(
        "--strict", action="store_true", help="also check latencies; requires an otherwise idle machine"
    )
    return parser


async def measured(load: Load, faults: Sequence[str] = FAULTS) -> list[Figures]:
    """Runs all faults one after the other with one gateway and returns the results."""
    figures: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="sharing-") as folder, provider.running(ports.free()) as address:
        async with running(Path(folder)) as server:
            penstock = Sharing(server.url)
            penstock.install()
            # Starts the gateway in a thread: the proxy to Redis runs in this process, and the gateway connects to it
            # during startup.
            started = gateway.running(penstock, address, core=None)
            loaded = await asyncio.to_thread(started.__enter__)
            callers = Callers(loaded.host, KEY)
            try:
                for fault in faults:
                    figures.append(await measure(server, loaded, callers, fault, load))
                    print(figures[-1], flush=True)
            finally:
                await callers.close()
                await asyncio.to_thread(started.__exit__, None, None, None)
    return figures


if __name__ == "__main__":
    sys.exit(main())
