"""`python -m loadtests.redis_faults`: runs every Redis fault under load and prints its effect on requests."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare import gateway, ports, provider
from benches.compare.peers.penstock import GATEWAY_KEY, Penstock
from loadtests.redis_faults.clients import LoadClient
from loadtests.redis_faults.measure import FaultLoad, FaultResults, measure_fault
from loadtests.redis_faults.server import FAULT_NAMES, run_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.compare.peers.peer import LaunchContext

WORKER_COUNT = 2


class SharedRedisPenstock(Penstock):
    """Penstock with two workers and a control process that share a Redis, and a store that publishes its changes
    through it.
    """

    def __init__(self, url: str) -> None:
        super().__init__(WORKER_COUNT)
        self._url = url
        self._store = ""

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        self._store = f"sqlite:///{launch.folder}/penstock.db"
        return super().prepare_command(launch)

    def environment(self) -> dict[str, str]:
        return {"REDIS_URL": self._url, "PENSTOCK_STORE_URL": self._store, "PENSTOCK_ADMIN_KEY": "k" * 32}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a limit is violated."""
    options = _build_parser().parse_args(arguments)
    load = FaultLoad(options.seconds, options.well, options.rate, options.strict)
    figures = asyncio.run(measure_faults(load, options.faults))
    broken = [f"{figure.fault}: {wrong}" for figure in figures for wrong in figure.violations]
    print("\n".join(broken), file=sys.stderr)
    return int(bool(broken))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.redis_faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="how long each fault lasts")
    parser.add_argument("--well", type=float, default=10, metavar="S", help="time without a fault before each fault")
    parser.add_argument("--rate", type=float, default=500, metavar="R", help="requests a second")
    parser.add_argument(
        "--faults", nargs="+", default=list(FAULT_NAMES), choices=FAULT_NAMES, help="faults to run, in this order"
    )
    parser.add_argument(
        "--strict", action="store_true", help="also check latencies; requires an otherwise idle machine"
    )
    return parser


async def measure_faults(load: FaultLoad, faults: Sequence[str] = FAULT_NAMES) -> list[FaultResults]:
    """Runs all faults one after the other with one gateway and returns the results."""
    figures: list[FaultResults] = []
    with (
        tempfile.TemporaryDirectory(prefix="sharing-") as folder,
        provider.run_provider(ports.find_free_port()) as address,
    ):
        async with run_server(Path(folder)) as server:
            penstock = SharedRedisPenstock(server.url)
            penstock.install()
            # Starts the gateway in a thread: the proxy to Redis runs in this process, and the gateway connects to it
            # during startup.
            started = gateway.run_gateway(penstock, address, core=None)
            loaded = await asyncio.to_thread(started.__enter__)
            client = LoadClient(loaded.host, GATEWAY_KEY)
            try:
                for fault in faults:
                    figures.append(await measure_fault(server, loaded, client, fault, load))
                    print(figures[-1], flush=True)
            finally:
                await client.close()
                await asyncio.to_thread(started.__exit__, None, None, None)
    return figures


if __name__ == "__main__":
    sys.exit(main())
