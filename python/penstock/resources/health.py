"""Health route of the management API. The edge has its own routes, /live and /ready."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from msgspec import Meta

from penstock.authorization import allow_anyone
from penstock.metrics import MetricsStore
from penstock.snapshot.build import SnapshotChannel

STARTED_AT = time.monotonic()


class WorkerHealth(msgspec.Struct, frozen=True):
    """One edge worker process that reported within the last minute."""

    worker: Annotated[int, Meta(description="number of the worker, from 1")]


class Health(msgspec.Struct, frozen=True):
    """Health of the gateway."""

    status: Annotated[str, Meta(description="always `success`; a gateway that is down does not respond")]
    uptime_seconds: Annotated[int, Meta(description="seconds since the control process started")]
    workers: Annotated[list[WorkerHealth], Meta(description="edge workers that reported within the last minute")]


@get("/", guards=[allow_anyone], sync_to_thread=False, summary="Health", tags=["Service"])
def get_health(figures: NamedDependency[MetricsStore], published: NamedDependency[SnapshotChannel]) -> Health:
    """Confirms that the management API is up. Returns its uptime and the edge workers that report to it."""
    # A worker that has just started is known by its snapshot request. Its first metrics follow a second later.
    numbers = {push.worker for push in figures.live_workers()} | published.running.live_workers()
    workers = [WorkerHealth(number) for number in sorted(numbers)]
    return Health("success", int(time.monotonic() - STARTED_AT), workers)


routes = [get_health]
