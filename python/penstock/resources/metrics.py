"""Figures for Prometheus: what the engines pushed, and the control process's own."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency

from penstock.authorization import anyone
from penstock.errors import MissingError
from penstock.metrics import BatchFigures, Figures, JobFigures
from penstock.records import RecordFeed
from penstock.settings import Settings
from penstock.snapshot.build import Published

# Litestar adds the charset.
TEXT_FORMAT = "text/plain; version=0.0.4"


@get("/", guards=[anyone], sync_to_thread=False, media_type=TEXT_FORMAT, summary="Metrics", tags=["Service"])
def metrics(
    settings: NamedDependency[Settings],
    figures: NamedDependency[Figures],
    records: NamedDependency[RecordFeed],
    batch_figures: NamedDependency[BatchFigures],
    job_figures: NamedDependency[JobFigures],
    published: NamedDependency[Published],
) -> str:
    """Give all figures in the text format of Prometheus; only when `metrics.enabled` is set."""
    if not settings.metrics.enabled:
        message = "metrics are off; hint: set ENABLE_PROMETHEUS=true"
        raise MissingError(message)
    own = {"record_batches_written": records.written, "record_batches_refused": records.refused}
    running = {"publish_waits": published.running.waits, "publish_waits_given_up": published.running.given_up}
    return figures.render({**own, **running, **batch_figures.read(), **job_figures.read()})


routes = [metrics]
