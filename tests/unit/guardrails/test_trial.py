"""Trials that take too long, and the results of trials."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import InvalidError
from penstock.guardrails import trial as guardrail_trial
from penstock.guardrails.saved_guardrails import Content, make_content
from penstock.guardrails.trial import TRIAL_SLOTS, TrialRequest, TrialResult, run_trial
from penstock.kit.costly_work import CostlyWork
from penstock.settings import load_settings

# Takes quadratic time: a fraction of a second for this text, and hours for the longest one that is allowed.
SLOW_RULE, SLOW_TEXT = r"(?=(a+))\1+b", "a" * 6000


def make_slow_content() -> Content:
    check = {"id": "default.regexMatch", "is_enabled": True, "parameters": {"rule": SLOW_RULE}}
    return asyncio.run(make_content([check], {"deny": True}))


async def try_rule(content: Content, text: str, slug: str = "") -> TrialResult:
    return await run_trial(load_settings(None, {}), content, TrialRequest(text=text), slug)


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "guardrail-trial":
            thread.join()


def test_a_slow_trial_uses_no_thread_that_others_need(monkeypatch: pytest.MonkeyPatch):
    content = make_slow_content()
    monkeypatch.setattr(guardrail_trial, "_trials", CostlyWork("guardrail-trial", TRIAL_SLOTS, 0.01))

    async def run() -> None:
        shared = ThreadPoolExecutor(1)
        shared.shutdown()
        # The default executor is shut down, so a task that uses it would fail.
        asyncio.get_running_loop().set_default_executor(shared)
        with pytest.raises(InvalidError, match="took longer than"):
            await try_rule(content, SLOW_TEXT)

    asyncio.run(run())
    join_threads()


def test_result_of_a_saved_guardrail_has_its_slug():
    result = asyncio.run(try_rule(make_slow_content(), "ab", "pg-mine-1a2b3c"))
    assert [result_row["id"] for result_row in result.results] == ["pg-mine-1a2b3c"]
