"""Guardrails beside other requests: large texts, many patterns, and patterns that backtrack do not delay the probes.

`.venv/bin/python -m pytest tests/integration/test_guardrail_figures.py -m figures -s` prints the figures.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_http import CHAT_PATH, RawConnection, chat_body
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

pytestmark = pytest.mark.figures

TIME_FACTOR = float(os.environ.get("PENSTOCK_FIGURES_FACTOR", "1"))
MAX_P99_SECONDS, MAX_SECONDS = 0.010 * TIME_FACTOR, 0.100 * TIME_FACTOR
PROBES, PAUSE_SECONDS = 500, 0.01
# The last request of a sender may take long, because its checks run beside those of the others.
REQUEST_SECONDS = 300
LARGE_TEXT = "A usual sentence of a user, with no canary. " * 470_000
# Patterns that take exponential or polynomial time in a backtracking engine, each with a text that makes it do so.
REDOS: dict[str, str] = {
    r"(a+)+$": "a" * 15_000 + "!",
    r"(a|aa)+$": "a" * 15_000 + "!",
    r"(a|a?)+$": "a" * 15_000 + "!",
    r"(x+x+)+y": "x" * 15_000,
    r"^(([a-z])+.)+[A-Z]([a-z])+$": "a" * 15_000,
    r"(.*a){12}$": "a" * 3_000 + "b",
    r"^(\w+\s?)*$": "word " * 3_000 + "!",
    r"(\d+)*[^\d]x": "1" * 15_000,
    # These need look-around or back references.
    r"(\w+\s+)+\1z": "word " * 3_000,
    r"(?=(a+))a*b\1": "a" * 15_000,
    r"^(?=.*(a+)+b)": "a" * 15_000,
    r"(a*)*\1c": "a" * 15_000,
}


def pattern_check(rule: str) -> dict[str, Any]:
    return {"id": "default.regexMatch", "parameters": {"rule": rule, "not": True, "scope": "all"}}


def make_config(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a config with these checks, 50 in each guardrail."""
    hooks = [{"id": f"g{start}", "checks": checks[start : start + 50]} for start in range(0, len(checks), 50)]
    return {"provider": "mock", "before_request_hooks": hooks}


CONFIGS = {
    "large": make_config([
        {"id": "default.contains", "parameters": {"words": ["canary", "secret"], "operator": "any"}},
        {"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS", "CREDIT_CARD"], "scope": "all"}},
        {"id": "gateway.secrets", "parameters": {"scope": "all"}},
        {"id": "default.wordCount", "parameters": {"maxWords": 1}},
    ]),
    "many": make_config([pattern_check(f"word{number:04}[a-z]{{1,5}}[0-9]+x") for number in range(1000)]),
    "redos": make_config([pattern_check(rule) for rule in REDOS]),
}  # fmt: skip
TEXTS = {"large": [LARGE_TEXT], "many": ["some words of a user " * 10_000], "redos": list(REDOS.values())}


def send_until_over(url: str, slug: str, over: threading.Event, done: dict[str, int]) -> None:
    headers = {"x-gateway-config": slug, "content-type": "application/json"}
    bodies = [chat_body(messages=[{"role": "user", "content": text}]) for text in TEXTS[slug]]
    with RawConnection(url, timeout=REQUEST_SECONDS) as connection:
        while not over.is_set():
            for body in bodies:
                response = connection.request(CHAT_PATH, body, headers)
                assert response.status in {200, 246}, (slug, response.status, response.body[:500])
                done[slug] += 1
                if over.is_set():
                    return


def test_probes_respond_while_guardrails_work(provider: Mock, tmp_path: Path):
    configs = [{"slug": slug, "config": json.dumps(config)} for slug, config in CONFIGS.items()]
    over, done = threading.Event(), dict.fromkeys(CONFIGS, 0)
    durations: list[float] = []
    with run_gateway(tmp_path, {"mock": {"host": provider.url}, "configs": configs}) as gateway:
        url = gateway.base_url
        senders = [threading.Thread(target=send_until_over, args=(url, slug, over, done)) for slug in CONFIGS]
        for sender in senders:
            sender.start()
        try:
            with RawConnection(url) as connection:
                while len(durations) < PROBES:
                    began = time.monotonic()
                    assert connection.request("/live", headers={}).status == 200
                    durations.append(time.monotonic() - began)
                    time.sleep(PAUSE_SECONDS)
        finally:
            over.set()
            for sender in senders:
                sender.join()
    durations.sort()
    figures = {
        "p50": durations[len(durations) // 2],
        "p99": durations[int(len(durations) * 0.99)],
        "max": durations[-1],
    }
    print({name: f"{seconds * 1000:.2f} ms" for name, seconds in figures.items()}, done)
    assert all(done.values()), done
    assert figures["p99"] <= MAX_P99_SECONDS
    assert figures["max"] <= MAX_SECONDS
