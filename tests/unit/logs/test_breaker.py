"""Breaker of the storage for bodies, with a fake clock."""

from __future__ import annotations

import pytest

from penstock.logs.breaker import BreakerState, StorageBreaker


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> StorageBreaker:
    return StorageBreaker(5, 60, clock)


def fail(breaker: StorageBreaker, times: int) -> None:
    for _ in range(times):
        breaker.record_failure("refused")


def test_opens_at_the_threshold_of_consecutive_failures_only(breaker: StorageBreaker):
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED
    breaker.record_success()
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker, 1)
    assert breaker.state is BreakerState.OPEN


def test_stays_open_for_the_backoff_then_probes(breaker: StorageBreaker, clock: Clock):
    fail(breaker, 5)
    clock.now += 59.9
    assert (breaker.state, round(breaker.seconds_until_probe, 1)) == (BreakerState.OPEN, 0.1)
    clock.now += 0.1
    assert breaker.state is BreakerState.PROBING


def test_successful_probe_closes_it_with_a_fresh_count(breaker: StorageBreaker, clock: Clock):
    fail(breaker, 5)
    clock.now += 60
    assert breaker.state is BreakerState.PROBING
    breaker.record_success()
    assert breaker.state is BreakerState.CLOSED
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED


def test_failed_probe_opens_it_again_for_the_same_backoff(breaker: StorageBreaker, clock: Clock):
    fail(breaker, 5)
    for _ in range(3):
        clock.now += 60
        assert breaker.state is BreakerState.PROBING
        fail(breaker, 1)
        assert (breaker.state, breaker.seconds_until_probe) == (BreakerState.OPEN, 60)
