"""`penstock` with an additional management route that keeps Python busy for one second.

As a program it has the command line of `penstock`; everything else is unchanged.
"""

from __future__ import annotations

import time

BURN_PATH = "/v1/health/burn"
BURN_RESPONSE = "burnt"
BURN_SECONDS = 1.0


def add_burn_route() -> None:
    """Adds the route below `/v1/health`, where no key is required."""
    from litestar import get  # noqa: PLC0415 - edge processes load no web framework

    from penstock.authorization import allow_anyone  # noqa: PLC0415 - needed only in the child process
    from penstock.resources import health  # noqa: PLC0415 - needed only in the child process

    @get("/burn", guards=[allow_anyone], sync_to_thread=False)
    def burn_cpu() -> str:
        end = time.monotonic() + BURN_SECONDS
        while time.monotonic() < end:
            sum(range(1000))
        return BURN_RESPONSE

    health.routes.append(burn_cpu)


if __name__ == "__main__":
    from penstock import cli

    add_burn_route()
    cli.main()
