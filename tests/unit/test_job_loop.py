"""Job loop. A waiting job ends on cancellation at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.job_loop import run_with_restarts, stop_jobs, wait_for_event
from penstock.metrics import JobMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    JobFunction = Callable[[asyncio.Event], Coroutine[None, None, None]]


async def run_listener(change_flag: asyncio.Event) -> None:
    """Waits for an event in a loop, as all jobs do."""
    while True:
        await wait_for_event(change_flag, 60)
        change_flag.clear()


@pytest.mark.parametrize("turns", range(6))
def test_cancel_during_an_event_is_not_lost(turns: int):
    async def scenario() -> bool:
        change_flag = asyncio.Event()
        job = asyncio.create_task(run_listener(change_flag))
        await asyncio.sleep(0.001)
        change_flag.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        job.cancel()
        await asyncio.wait({job}, timeout=1)
        return job.cancelled()

    assert asyncio.run(scenario())


def test_wait_for_event_times_out():
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await wait_for_event(asyncio.Event(), 0.01)
        return loop.time() - before

    assert asyncio.run(scenario()) >= 0.009


def test_job_that_swallows_a_cancel_is_cancelled_again(caplog: pytest.LogCaptureFixture):
    lost: list[bool] = []

    async def swallow_cancel() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.append(True)
        await asyncio.sleep(60)

    async def fail() -> None:
        raise LookupError("of a test")

    async def scenario() -> list[bool]:
        jobs = [asyncio.create_task(work()) for work in (swallow_cancel, fail)]
        await asyncio.sleep(0.001)
        await stop_jobs(jobs, max_wait=0.01)
        return [job.done() for job in jobs]

    assert asyncio.run(scenario()) == [True, True]
    assert (lost, "a job had failed" in caplog.text, "do not end" in caplog.text) == ([True], True, False)


def test_failed_job_restarts_and_finished_job_does_not(caplog: pytest.LogCaptureFixture):
    begun: list[int] = []

    async def fail_twice() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            message = "no such key"
            raise KeyError(message)

    figures = JobMetrics()
    asyncio.run(run_with_restarts(fail_twice, figures, pause=0))
    assert (begun, figures.values_by_name()["job_restarts"]) == ([0, 1, 2], 2)
    assert [record.getMessage() for record in caplog.records] == ["a job failed, and begins again"] * 2
