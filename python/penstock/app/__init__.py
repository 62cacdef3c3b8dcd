"""Application factory of the control process. Connects settings, jobs and resources."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from litestar.datastructures import State
from litestar.serialization import encode_json

from penstock import resources
from penstock.app.application import Application, ApplicationParts
from penstock.app.routers import register_routes
from penstock.app.store_components import open_store
from penstock.forwarded import TrustedProxies
from penstock.job_loop import run_with_restarts, stop_jobs
from penstock.kit.openapi import build_openapi as whole
from penstock.log_api.service import LogService
from penstock.logs.client import LogClient
from penstock.logs.spool_writer import CONTROL_WRITER, SpoolWriter
from penstock.logs.spooled_records import SpooledRecords
from penstock.metrics import BatchMetrics, JobMetrics, MetricsStore, RefusalCounter
from penstock.metrics_report import MetricsReport
from penstock.node_store import NodeStore
from penstock.pricing.price_book import PriceBook
from penstock.settings import Settings
from penstock.settings.secret import Secret
from penstock.settings.store import Store
from penstock.snapshot.build import Snapshot, SnapshotChannel
from penstock.snapshot.file_watcher import ConfigFileWatcher

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

    from litestar import Litestar


def create_app(
    settings: Settings,
    published: SnapshotChannel,
    log_service: LogService | None = None,
    metrics_socket: socket.socket | None = None,
    registered: Application | None = None,
) -> Application:
    """Builds the application; jobs start with its lifespan. Routes read logs from `log_service`. Metrics are served on
    `metrics_socket` too. `registered` is an earlier application whose routes tests use again; it gets the new services.
    """
    is_durable = settings.records.durability == "power"
    spool = SpoolWriter(settings.spool_folder, CONTROL_WRITER, os.uname().nodename, is_durable=is_durable)
    log_client = LogClient(settings.log_socket if settings.records.enabled else "")
    if log_service is None:
        log_service = create_log_service(settings, log_client, spool)
    batch_figures, job_figures, refusals = BatchMetrics(), JobMetrics(), RefusalCounter()
    workers = MetricsStore()
    report = MetricsReport(
        workers,
        log_client,
        published.running.values_by_name,
        batch_figures.values_by_name,
        job_figures.values_by_name,
        refusals.values_by_name,
    )
    services: dict[str, object] = {
        "settings": settings,
        "published": published,
        "figures": workers,
        "metrics_report": report,
        "notes": NodeStore(),
        "log_client": log_client,
        "prices": PriceBook(settings),
    }
    url = settings.store_url
    own_records = SpooledRecords(spool)
    store = (
        open_store(settings, published, url, (batch_figures, job_figures, workers), own_records, refusals, log_service)
        if url
        else None
    )

    @asynccontextmanager
    async def run_jobs() -> AsyncGenerator[None]:
        watcher = ConfigFileWatcher(settings, published)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, watcher.request_reload)
        loops = [*([watcher.run] if settings.file else []), *(store.job_loops if store else [])]
        if metrics_socket:
            from penstock.jobs.metrics_server import MetricsServer

            paths = resources.path_prefixes("metrics")
            loops.append(MetricsServer(metrics_socket, paths, report, settings.metrics.token).run)
        running = [loop.create_task(run_with_restarts(job, job_figures)) for job in loops]
        try:
            yield
        finally:
            published.close()
            await stop_jobs(running)
            if store:
                await store.blobs.close()
                await store.database.close()
            spool.close()
            await log_client.close()

    state = State(
        {
            "identify": store.authenticate if store else None,
            "services": store.services if store else None,
            "refusals": store.refusals if store else None,
            "proxies": TrustedProxies(settings.security.trusted_proxies),
            "header_aliases": settings.security.header_aliases,
            "public_url": settings.server.public_url,
            "key_headers": [f"{prefix}api-key" for prefix in ("x-gateway-", *settings.security.header_aliases)],
        }
    )
    parts = ApplicationParts(services | (store.dependencies if store else {}), store, run_jobs, state)
    app = registered or register_routes(parts)
    app.connect(parts)
    return app


def create_log_service(settings: Settings, client: LogClient, spool: SpoolWriter) -> LogService:
    """Returns the service through which routes read logs. Without a log store, the routes report that it is disabled."""
    if not (settings.records.enabled and settings.log_store.enabled):
        return LogService()
    # Each node with an embedded log store sees its own records only.
    is_shared = settings.store_url is not None and settings.store_url.reveal().startswith("postgresql")
    return LogService(
        client,
        spool,
        settings.log_store.format,
        keeps_bodies=settings.records.bodies,
        is_partial=is_shared and settings.log_store.clickhouse_url is None,
    )


def create_documented_app() -> Litestar:
    """Builds the application with all of its routes, to generate documentation; it is never run."""
    described = Store(url=Secret("sqlite:///penstock.db"), master_key=Secret(base64.b64encode(bytes(32)).decode()))
    return create_app(Settings(store=described), SnapshotChannel(Snapshot()))


@cache
def openapi_json() -> bytes:
    """Returns the OpenAPI document of the management API, the same as `/schema/openapi.json`."""
    return encode_json(whole(create_documented_app()))
