"""Benchmarks of calls from Python into the engine: config check, snapshot update, catalogue and metrics."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import engine
from penstock.settings import Settings
from penstock.settings.engine_json import encode_engine_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

MANAGEMENT_PATHS = ["/v1/health", "/v1/version", "/schema", "/metrics", "/dataservice/metrics"]
CONFIG_JSON = json.dumps({"provider": "openai", "api_key": "sk-pretend"}).encode()


def build_snapshot(keys: int) -> bytes:
    """Returns a snapshot in the publisher's format, including its epoch."""
    content: dict[str, Any] = {
        "keys": [_build_key(number) for number in range(keys)],
        "providers": [{"slug": "my-openai", "provider": "openai", "api_key": "sk-pretend", "custom_host": None}],
        "configs": [{"slug": "pc-main", "config": {"provider": "openai"}}],
        "management": MANAGEMENT_PATHS,
    }
    epoch = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({"epoch": epoch, **content}).encode()


def _build_key(number: int) -> dict[str, Any]:
    digest = hashlib.sha256(f"key-{number}".encode()).hexdigest()
    return {"id": f"k-{number}", "name": f"key {number}", "sha256": digest, "expires_at": None}


@pytest.fixture
def running() -> Iterator[engine.Engine]:
    """Yields an engine that is not started; applying snapshots needs no event loop and no socket."""
    running_engine = engine.Engine(encode_engine_settings(Settings(), 1))
    yield running_engine
    running_engine.close()


def test_checks_small_config(benchmark: BenchmarkFixture) -> None:
    benchmark(engine.check, "config", CONFIG_JSON)


def test_reports_problem_in_config(benchmark: BenchmarkFixture) -> None:
    def check_invalid_config() -> engine.EngineError:
        with pytest.raises(engine.EngineError) as caught:
            engine.check("config", b'{"provider": 7}')
        return caught.value

    assert benchmark(check_invalid_config).problems


@pytest.mark.parametrize("keys", [1, 1000])
def test_applies_snapshot(benchmark: BenchmarkFixture, running: engine.Engine, keys: int) -> None:
    """Alternates between two snapshots, because the engine could skip one whose epoch it already has."""
    snapshots = [build_snapshot(keys), build_snapshot(keys + 1)]
    count = iter(range(1 << 40))
    benchmark(lambda: running.apply(snapshots[next(count) % 2]))


def test_reads_catalogue(benchmark: BenchmarkFixture) -> None:
    assert benchmark(engine.catalogue)


def test_reads_metrics(benchmark: BenchmarkFixture, running: engine.Engine) -> None:
    assert json.loads(benchmark(running.metrics)) is not None
