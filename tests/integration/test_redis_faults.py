"""Every way in which a Redis that is shared may fail, for a second each; `python -m loadtests.sharing` has them last."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.sharing.__main__ import measured
from loadtests.sharing.measure import Load
from loadtests.sharing.server import FAULTS

pytestmark = pytest.mark.alone


def test_no_fault_of_redis_fails_a_request_or_makes_more_than_one_of_a_worker_wait():
    figures = asyncio.run(measured(Load(seconds=1, well=0.3, rate=60)))
    assert [one.fault for one in figures] == list(FAULTS)
    assert not {str(one): one.wrong for one in figures if one.wrong}
