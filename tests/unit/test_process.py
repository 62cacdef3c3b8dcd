"""Threads work in batches while there is much to do, and only then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from penstock.process import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def policy() -> Iterator[Callable[[], int]]:
    """The policy of this process, put back afterwards."""
    yield lambda: os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_follows_the_load_up_and_down(policy: Callable[[], int]) -> None:
    done = 0
    pace = Pace(lambda: done)
    seen = []
    for more in (0, 4_900, 5_100, 2_600, 2_400, 4_900):
        done += int(more * Pace.LOOK_SECONDS)
        pace.look()
        seen.append(policy())
    calm, busy = os.SCHED_OTHER, os.SCHED_BATCH
    assert seen == [calm, calm, busy, busy, calm, calm]
