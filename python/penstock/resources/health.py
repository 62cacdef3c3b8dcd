"""Says that the management API answers; the edge answers for itself at /live and /ready."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from msgspec import Meta

from penstock.authorization import allow_anyone
from penstock.metrics import MetricsStore

STARTED_AT = time.monotonic()


class WorkerHealth(msgspec.Struct, frozen=True):
    """One edge process that was heard of within the last minute."""

    worker: Annotated[int, Meta(description="number of the worker, from 1")]
    pid: Annotated[int, Meta(description="id of its process")]


class Health(msgspec.Struct, frozen=True):
    """How the gateway is."""

    status: Annotated[str, Meta(description="`success`, or there is no answer")]
    uptime_seconds: Annotated[int, Meta(description="since the control process was started")]
    workers: Annotated[list[WorkerHealth], Meta(description="edge workers that reported within the last minute")]


@get("/", guards=[allow_anyone], sync_to_thread=False, summary="Health", tags=["Service"])
def get_health(figures: NamedDependency[MetricsStore]) -> Health:
    """Say that the management API is up, for how long, and which edge workers report to it."""
    workers = [WorkerHealth(push.worker, push.pid) for push in figures.live_workers()]
    return Health("success", int(time.monotonic() - STARTED_AT), workers)


routes = [get_health]
