"""Says that the management API answers; the edge answers for itself at /live and /ready."""

from __future__ import annotations

import time

import msgspec
from litestar import get

from penstock.caller import anyone
from penstock.metrics import Figures

STARTED = time.monotonic()


class Worker(msgspec.Struct, frozen=True):
    """One edge process that was heard of within the last minute."""

    worker: int
    pid: int


class Health(msgspec.Struct, frozen=True):
    """How the gateway is."""

    status: str
    uptime_seconds: int
    workers: list[Worker]


@get("/", guards=[anyone], sync_to_thread=False, summary="Health", tags=["Service"])
def health(figures: Figures) -> Health:
    """Say that the management API is up, for how long, and which edge workers report to it."""
    workers = [Worker(push.worker, push.pid) for push in figures.workers()]
    return Health("success", int(time.monotonic() - STARTED), workers)


routes = [health]
