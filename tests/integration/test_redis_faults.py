"""Faults of a shared Redis, for one second each. `python -m loadtests.redis_faults` runs them for longer."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.redis_faults.__main__ import measure_faults
from loadtests.redis_faults.measure import FaultLoad
from loadtests.redis_faults.server import FAULT_NAMES

pytestmark = pytest.mark.figures


def test_redis_faults_fail_no_request_and_delay_one_per_worker():
    figures = asyncio.run(measure_faults(FaultLoad(fault_seconds=1, healthy_seconds=0.3, requests_per_second=60)))
    assert [figure.fault for figure in figures] == list(FAULT_NAMES)
    assert not {str(figure): figure.violations for figure in figures if figure.violations}
