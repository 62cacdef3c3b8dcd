"""Prometheus metrics: those that the engines pushed, and those of the control process."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency

from penstock.authorization import allow_anyone
from penstock.errors import NotFoundError
from penstock.metrics import BatchMetrics, JobMetrics, MetricsStore
from penstock.records import RecordFeed
from penstock.settings import Settings
from penstock.snapshot.build import SnapshotChannel

# Litestar adds the charset.
PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4"


@get(
    "/",
    guards=[allow_anyone],
    sync_to_thread=False,
    media_type=PROMETHEUS_CONTENT_TYPE,
    summary="Metrics",
    tags=["Service"],
)
def get_metrics(
    settings: NamedDependency[Settings],
    figures: NamedDependency[MetricsStore],
    records: NamedDependency[RecordFeed],
    batch_figures: NamedDependency[BatchMetrics],
    job_figures: NamedDependency[JobMetrics],
    published: NamedDependency[SnapshotChannel],
) -> str:
    """Returns all metrics in the Prometheus text format; 404 unless `metrics.enabled` is set."""
    if not settings.metrics.enabled:
        message = "metrics are off; hint: set ENABLE_PROMETHEUS=true"
        raise NotFoundError(message)
    record_counts = {"record_batches_written": records.written, "record_batches_refused": records.refused}
    running = {"publish_waits": published.running.waits, "publish_waits_given_up": published.running.given_up}
    return figures.render(
        {**record_counts, **running, **batch_figures.values_by_name(), **job_figures.values_by_name()}
    )


routes = [get_metrics]
