"""Helpers for background jobs: wait for an event, restart after a failure, and stop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from typing import Any

    from penstock.metrics import JobMetrics

log = logging.getLogger("penstock")

# A cancelled job ends at once. A job that does not end is cancelled again after `CANCEL_RETRY_SECONDS`, up to
# `MAX_CANCELLATIONS` times in total.
CANCEL_RETRY_SECONDS, MAX_CANCELLATIONS = 1.0, 10
# Delay in seconds before a failed job restarts.
RESTART_DELAY_SECONDS = 5.0


async def wait_for_event(changed: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, for at most `seconds`.

    Does not use `wait_for`, which loses a cancellation that comes between setting the event and waking up. The job
    would then never end.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()


async def run_with_restarts(
    job: Callable[[], Coroutine[Any, Any, None]], figures: JobMetrics, pause: float = RESTART_DELAY_SECONDS
) -> None:
    """Runs a job that should never end. After an unexpected exception, counts a restart and runs it again after `pause`
    seconds.
    """
    while True:
        try:
            return await job()
        except Exception:
            log.exception("a job failed, and begins again")
            figures.restart_count += 1
        await asyncio.sleep(pause)


async def stop_jobs(jobs: Collection[asyncio.Task[None]], max_wait: float = CANCEL_RETRY_SECONDS) -> None:
    """Cancels jobs until they end. Libraries may lose a cancellation, so it is repeated."""
    remaining = set(jobs)
    for _ in range(MAX_CANCELLATIONS):
        for job in remaining:
            job.cancel()
        if remaining:
            done, remaining = await asyncio.wait(remaining, timeout=max_wait)
            for job in done:
                if not job.cancelled() and (error := job.exception()):
                    log.error("a job had failed", exc_info=error)
    if remaining:
        log.error("%d jobs do not end", len(remaining))
