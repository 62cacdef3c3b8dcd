"""State of this node's parts: workers, snapshot, store, Redis, spool and log worker. For the people who operate it."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.errors import UnavailableError
from penstock.kit.tenant_session import RequestContext, Services
from penstock.logs.client import LogClient
from penstock.metrics import MetricsStore
from penstock.settings import Settings
from penstock.snapshot.build import SnapshotChannel
from penstock.store.revision import current_revision

PartState = Literal["up", "down", "off"]


class WorkerState(msgspec.Struct, frozen=True):
    """One edge worker."""

    worker: Annotated[int, Meta(description="number of the worker, from 1")]
    requests_in_flight: Annotated[int, Meta(description="requests in progress")]
    is_current: Annotated[bool, Meta(description="false while the worker runs on an older snapshot")]


class SnapshotState(msgspec.Struct, frozen=True):
    """The configuration that workers run on."""

    epoch: Annotated[str, Meta(description="digest of the current snapshot")]
    published: Annotated[int, Meta(description="snapshots that this process published after the first one")]


class StoreState(msgspec.Struct, frozen=True):
    """The database."""

    state: Annotated[PartState, Meta(description="`down` if it does not answer")]
    kind: Annotated[Literal["sqlite", "postgresql"], Meta(description="kind of the database")]
    revision: Annotated[str | None, Meta(description="revision of its tables; null if it does not answer")]
    milliseconds: Annotated[float | None, Meta(description="time that it needed to answer; null if it did not")]


class RedisState(msgspec.Struct, frozen=True):
    """Redis, which several nodes share."""

    state: Annotated[PartState, Meta(description="`off` if none is configured, `down` if a worker runs without it")]


class LogState(msgspec.Struct, frozen=True):
    """The spool of records, and the process that reads it."""

    state: Annotated[PartState, Meta(description="state of the log worker; `off` if records are off")]
    store: Annotated[PartState, Meta(description="state of the log store; `off` if none is enabled")]
    spool_bytes: Annotated[int, Meta(description="bytes of the spool that are not deleted yet")]
    spool_limit_bytes: Annotated[int, Meta(description="size at which bodies, then records are dropped")]
    lag_seconds: Annotated[
        float | None, Meta(description="time since the log store had everything that was in the spool; null if off")
    ]


class System(msgspec.Struct, frozen=True):
    """State of this node."""

    workers: Annotated[list[WorkerState], Meta(description="edge workers that reported within the last minute")]
    snapshot: Annotated[SnapshotState, Meta(description="the configuration that workers run on")]
    store: Annotated[StoreState, Meta(description="the database")]
    redis: Annotated[RedisState, Meta(description="Redis")]
    logs: Annotated[LogState, Meta(description="spool, log worker and log store")]
    object: Annotated[Literal["system"], Meta(description="`system`")] = "system"


@get("/", guards=[require_scopes("organisation_settings.read")], summary="Get the system state", tags=["Service"])
async def get_system(
    settings: NamedDependency[Settings],
    figures: NamedDependency[MetricsStore],
    published: NamedDependency[SnapshotChannel],
    log_client: NamedDependency[LogClient],
    services: NamedDependency[Services],
    context: NamedDependency[RequestContext],
) -> System:
    """Returns the state of the workers, the snapshot, the database, Redis, the spool and the log worker of this node."""
    del context  # It identifies the caller.
    pushes = {push.worker: (push, numbers) for push, numbers in figures.recent_pushes()}
    numbers = published.running.numbers_by_worker()
    workers = [
        WorkerState(
            worker,
            int(pushes[worker][1].get("in_flight", 0)) if worker in pushes else 0,
            numbers.get(worker, published.number) >= published.number,
        )
        for worker in sorted(pushes.keys() | numbers.keys())
    ]
    snapshot = SnapshotState(published.current.epoch, published.number)
    redis_values = [values["redis_up"] for _, values in pushes.values() if "redis_up" in values]
    redis_state: PartState = "up" if all(redis_values) else "down"
    redis = RedisState(redis_state if settings.redis.url else "off")
    return System(workers, snapshot, await _examine_store(services), redis, await _examine_logs(settings, log_client))


async def _examine_store(services: Services) -> StoreState:
    database = services.database
    kind: Literal["sqlite", "postgresql"] = "sqlite" if database.embedded else "postgresql"
    start = time.perf_counter()
    try:
        revision = await current_revision(database)
    except UnavailableError:
        return StoreState("down", kind, None, None)
    return StoreState("up", kind, revision, round((time.perf_counter() - start) * 1000, 1))


async def _examine_logs(settings: Settings, log_client: LogClient) -> LogState:
    limit = settings.records.spool_bytes
    if not settings.records.enabled:
        return LogState("off", "off", 0, limit, None)
    values = await log_client.get_metrics()
    if not values.get("log_worker_up"):
        return LogState("down", "down" if settings.log_store.enabled else "off", 0, limit, None)
    store: PartState = "up" if values.get("log_store_up") else "down"
    is_stored = settings.log_store.enabled
    return LogState(
        "up",
        store if is_stored else "off",
        int(values.get("log_spool_bytes", 0)),
        limit,
        round(values.get("log_worker_lag_seconds", 0.0), 3) if is_stored else None,
    )


routes = [get_system]
