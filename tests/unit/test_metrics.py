"""Metrics: what the engines push is exported to Prometheus."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock import metrics as module
from penstock.engine import Engine
from penstock.errors import InvalidError
from penstock.metrics import METRIC_FAMILIES, MetricsStore
from penstock.settings import Settings
from penstock.settings.engine_json import encode_engine_settings


def make_push(worker: int, **figures: object) -> bytes:
    return json.dumps({"worker": worker, "pid": worker + 100, **figures}).encode()


def parse_samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_each_worker_has_its_own_samples():
    figures = MetricsStore()
    figures.accept_push(make_push(1, requests={"2xx": 3}, in_flight=2))
    figures.accept_push(make_push(2, requests={"2xx": 4}))
    figures.accept_push(make_push(1, requests={"2xx": 5}, in_flight=1))
    read = parse_samples(figures.render({"files_deleted": 9}))
    assert read["penstock_requests_total", "status=2xx", "worker=1"] == 5
    assert read["penstock_requests_total", "status=2xx", "worker=2"] == 4
    assert read["penstock_requests_in_flight", "worker=1"] == 1
    assert read["penstock_files_deleted_total",] == 9


def test_durations_become_a_histogram_in_seconds():
    figures = MetricsStore()
    figures.accept_push(make_push(1, duration_bounds_ms=[1, 250], durations=[2, 3, 4], duration_us=1_500_000))
    read = parse_samples(figures.render({}))
    name = "penstock_request_duration_seconds"
    assert read[f"{name}_bucket", "le=0.001", "worker=1"] == 2
    assert read[f"{name}_bucket", "le=0.25", "worker=1"] == 5
    assert read[f"{name}_bucket", "le=+Inf", "worker=1"] == 9
    assert (read[f"{name}_count", "worker=1"], read[f"{name}_sum", "worker=1"]) == (9, 1.5)


def test_unknown_metric_is_exported_under_its_own_name():
    figures = MetricsStore()
    figures.accept_push(make_push(1, brand_new=5))
    assert parse_samples(figures.render({}))["penstock_brand_new", "worker=1"] == 5


def test_every_engine_metric_has_a_family():
    reported = json.loads(Engine(encode_engine_settings(Settings(), 1)).metrics())
    assert set(reported) - {"duration_bounds_ms", "duration_us"} <= set(METRIC_FAMILIES)


def test_silent_worker_is_removed(monkeypatch: pytest.MonkeyPatch):
    figures = MetricsStore()
    figures.accept_push(make_push(1))
    assert [worker.pid for worker in figures.live_workers()] == [101]
    monkeypatch.setattr(module, "FORGET_SECONDS", -1.0)
    assert figures.live_workers() == []


@pytest.mark.parametrize("data", [b"", b"[]", b'{"worker": 1}', b'{"worker": "x", "pid": 1}'])
def test_rejects_an_invalid_push(data: bytes):
    with pytest.raises(InvalidError):
        MetricsStore().accept_push(data)
