"""A job that waits ends when it is told to, whenever that is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.job_loop import run_with_restarts, stop_jobs, wait_for_event
from penstock.metrics import JobMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work = Callable[[asyncio.Event], Coroutine[None, None, None]]


async def listen(bell: asyncio.Event) -> None:
    """Do as all jobs do."""
    while True:
        await wait_for_event(bell, 60)
        bell.clear()


@pytest.mark.parametrize("turns", range(6))
def test_a_cancel_that_comes_with_the_ring_is_heard(turns: int):
    async def scene() -> bool:
        bell = asyncio.Event()
        job = asyncio.create_task(listen(bell))
        await asyncio.sleep(0.001)
        bell.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        job.cancel()
        await asyncio.wait({job}, timeout=1)
        return job.cancelled()

    assert asyncio.run(scene())


def test_a_bell_that_nobody_rings_is_waited_for_no_longer_than_that():
    async def scene() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await wait_for_event(asyncio.Event(), 0.01)
        return loop.time() - before

    assert asyncio.run(scene()) >= 0.009


def test_a_job_that_lost_one_cancel_is_told_again(caplog: pytest.LogCaptureFixture):
    lost: list[bool] = []

    async def deaf() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.append(True)
        await asyncio.sleep(60)

    async def failing() -> None:
        raise LookupError("of a test")

    async def scene() -> list[bool]:
        jobs = [asyncio.create_task(work()) for work in (deaf, failing)]
        await asyncio.sleep(0.001)
        await stop_jobs(jobs, patience=0.01)
        return [job.done() for job in jobs]

    assert asyncio.run(scene()) == [True, True]
    assert (lost, "a job had failed" in caplog.text, "do not end" in caplog.text) == ([True], True, False)


def test_a_job_that_fails_begins_again_counted_and_one_that_is_done_does_not(caplog: pytest.LogCaptureFixture):
    begun: list[int] = []

    async def work() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            message = "no such key"
            raise KeyError(message)

    figures = JobMetrics()
    asyncio.run(run_with_restarts(work, figures, pause=0))
    assert (begun, figures.values_by_name()) == ([0, 1, 2], {"job_restarts": 2})
    assert [record.getMessage() for record in caplog.records] == ["a job failed, and begins again"] * 2
