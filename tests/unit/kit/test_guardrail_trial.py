"""Trials that take too long: they keep their places, and nothing else waits for them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import InvalidError, UnavailableError
from penstock.kit import guardrail_trial
from penstock.kit.guardrail_trial import MAX_TRIALS, TrialRequest, TrialResult, run_trial
from penstock.kit.guardrails import Content, make_content
from penstock.settings import load_settings

# Takes quadratic time: a fraction of a second for this text, and hours for the longest one that is allowed.
SLOW_RULE, SLOW_TEXT = r"(?=(a+))\1+b", "a" * 6000
SECONDS = "MAX_TRIAL_SECONDS"


def make_slow_content() -> Content:
    check = {"id": "default.regexMatch", "is_enabled": True, "parameters": {"rule": SLOW_RULE}}
    return asyncio.run(make_content([check], {"deny": True}))


async def try_rule(content: Content, text: str, slug: str = "") -> TrialResult:
    return await run_trial(load_settings(None, {}), content, TrialRequest(text=text), slug)


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "guardrail-trial":
            thread.join()


@pytest.fixture(autouse=True)
def _new_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardrail_trial, "_trials", asyncio.Semaphore(MAX_TRIALS))


def test_slow_trials_use_no_thread_that_others_need(monkeypatch: pytest.MonkeyPatch):
    content = make_slow_content()

    async def run() -> list[TrialResult | BaseException]:
        shared = ThreadPoolExecutor(1)
        shared.shutdown()
        # A task that uses it fails.
        asyncio.get_running_loop().set_default_executor(shared)
        monkeypatch.setattr(guardrail_trial, SECONDS, 0.01)
        first = await asyncio.gather(
            *(try_rule(content, SLOW_TEXT) for _ in range(MAX_TRIALS + 1)), return_exceptions=True
        )
        join_threads()
        monkeypatch.setattr(guardrail_trial, SECONDS, 60)
        return [*first, *await asyncio.gather(*(try_rule(content, "ab") for _ in range(MAX_TRIALS + 1)))]

    results = asyncio.run(run())
    slow, waiting, later = results[:MAX_TRIALS], results[MAX_TRIALS], results[MAX_TRIALS + 1 :]
    assert all(isinstance(error, InvalidError) and "took longer than" in str(error) for error in slow)
    assert isinstance(waiting, UnavailableError)
    assert "4 other trials are running" in str(waiting)
    assert all(isinstance(result, TrialResult) and result.verdict for result in later)


def test_result_of_a_saved_guardrail_has_its_slug():
    result = asyncio.run(try_rule(make_slow_content(), "ab", "pg-mine-1a2b3c"))
    assert [found["id"] for found in result.results] == ["pg-mine-1a2b3c"]
