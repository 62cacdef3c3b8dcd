"""How jobs wait for a bell, and how they end."""

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

# A job that is told to end does so at once; one that did not hear it is told again.
PATIENCE, TIMES = 1.0, 10
# A job that failed begins again after so many seconds.
RESTART_DELAY_SECONDS = 5.0


async def wait_for_event(bell: asyncio.Event, seconds: float) -> None:
    """Wait until it is rung, at most so long.

    Not with `wait_for`: a cancel that comes between the ring and its being heard is lost there, and the job never ends.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await bell.wait()


async def run_with_restarts(
    work: Callable[[], Coroutine[Any, Any, None]], figures: JobMetrics, pause: float = RESTART_DELAY_SECONDS
) -> None:
    """Do work that is to go on for ever: a fault of ours ends it no more than for a pause of seconds, and is counted."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("a job failed, and begins again")
            figures.restart_count += 1
        await asyncio.sleep(pause)


async def stop_jobs(jobs: Collection[asyncio.Task[None]], patience: float = PATIENCE) -> None:
    """End jobs: libraries may lose a cancel as well, so that each is told until it does."""
    left = set(jobs)
    for _ in range(TIMES):
        for job in left:
            job.cancel()
        if left:
            done, left = await asyncio.wait(left, timeout=patience)
            for job in done:
                if not job.cancelled() and (error := job.exception()):
                    log.error("a job had failed", exc_info=error)
    if left:
        log.error("%d jobs do not end", len(left))
