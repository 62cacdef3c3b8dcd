"""Load test of client disconnects in every phase and way; prints how soon the provider's connection is closed."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

import uvloop

from benches.compare import gateway
from benches.compare.peers.penstock import Penstock
from loadtests.disconnects.measure import (
    DisconnectLoad,
    DisconnectResults,
    make_clients,
    measure_disconnects,
    render_table,
)
from loadtests.disconnects.provider import PHASES, Provider
from loadtests.options import make_int_parser

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a latency target is missed."""
    options = _build_parser().parse_args(arguments)
    penstock = Penstock()
    penstock.install()
    figures = uvloop.run(_measure_all(penstock, options))
    print(render_table(figures))
    broken = [str(figure) for figure in figures if not figure.meets_targets]
    print("\n".join(broken), file=sys.stderr)
    return int(bool(broken))


async def _measure_all(penstock: Penstock, options: argparse.Namespace) -> list[DisconnectResults]:
    provider, figures = Provider(), []
    load = DisconnectLoad(options.clients, options.rate)
    async with provider.listen():
        # Starts the gateway in a thread, because the gateway sends a request to this process's provider during startup.
        running = gateway.run_gateway(penstock, provider.url, core=None)
        loaded = await asyncio.to_thread(running.__enter__)
        try:
            for name, client in make_clients(f"http://{loaded.host}", loaded.request_headers()).items():
                for phase in options.phases:
                    figures.append(await measure_disconnects(provider, client, (phase, name), load))
                    print(figures[-1], file=sys.stderr, flush=True)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
    return figures


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.disconnects", description=__doc__)
    parser.add_argument("--clients", type=make_int_parser(1, 5000), default=1000, metavar="N", help="at once")
    parser.add_argument("--rate", type=float, default=400, metavar="R", help="disconnects per second")
    parser.add_argument(
        "--phases", nargs="+", default=list(PHASES), choices=PHASES, help="phases to run, in this order"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
