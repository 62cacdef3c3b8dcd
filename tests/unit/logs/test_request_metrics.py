"""Request metrics: counts by labels, bounds of labels, escaping, and usage that becomes known late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.logs.batch import Position
from penstock.logs.record_file import WaitingLine
from penstock.logs.request_metrics import MILLISECONDS_BOUNDS, SECONDS_BOUNDS, RequestMetrics
from penstock.settings import Settings
from penstock.settings.monitoring import Metrics

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

RECORD = {
    "id": "0199aaaa-0000-7000-8000-000000000001",
    "request_method": "POST",
    "operation": "chat_completions",
    "response_status_code": 200,
    "ai_org": "openai",
    "ai_model": "gpt",
    "source": "gateway",
    "stream_mode": True,
    "cache_status": "miss",
    "config": "pc-main",
    "api_key_id": "key-1",
    "api_key_name": "team a",
    "workspace_slug": "red",
    "metadata": {"team-id": "blue", "_user": "ann"},
    "attempts": [{"provider": "openai", "duration": 900.0}],
    "response_time": 1500.0,
    "time_to_first_byte": 1000.0,
    "gateway_processing_time": 100.0,
    "request_parsing_time": 1.0,
    "pre_processing_time": 3.0,
    "cache_processing_time": 0.5,
    "authentication_time": 0.2,
    "limit_check_time": 0.05,
    "total_units": 30,
    "cost_nanodollars": 2_500_000_000,
}
LABELS = {
    "method": "POST",
    "endpoint": "chat_completions",
    "code": "200",
    "provider": "openai",
    "source": "gateway",
    "stream": "true",
    "cacheStatus": "miss",
    "app": "penstock",
}


def make_metrics(**options: Any) -> RequestMetrics:
    return RequestMetrics(Settings(metrics=Metrics(**{"enabled": True, **options})))


def make_line(*, is_refused: bool = False, original: dict[str, Any] | None = None, **fields: Any) -> WaitingLine:
    before = json.dumps(original).encode() if original else b""
    line = json.dumps({**RECORD, **fields} if original is None else fields).encode()
    return WaitingLine("edge-1", Position(1, 0), line, is_refused, 0.0, before)


def samples(metrics: RequestMetrics, name: str = "request_count_total") -> list[Sample]:
    return [sample for family in parse(metrics.render()) for sample in family.samples if sample.name == name]


def values_by(label: str, all_samples: list[Sample]) -> dict[str, float]:
    return {sample.labels.get(label, ""): sample.value for sample in all_samples}


def test_counts_requests_tokens_and_dollars_with_all_labels():
    metrics = make_metrics()
    metrics.observe([make_line(), make_line(), make_line(response_status_code=503, total_units=None)])
    (good, bad) = samples(metrics)
    assert (good.labels, good.value) == (LABELS, 2)
    assert (bad.labels, bad.value) == ({**LABELS, "code": "503"}, 1)
    assert values_by("code", samples(metrics, "llm_token_sum")) == {"200": 60, "503": 0}
    assert values_by("code", samples(metrics, "llm_cost_sum")) == {"200": 5, "503": 2.5}


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("http_request_duration_seconds", 1.5),
        ("gateway_request_duration_milliseconds", 1500),
        ("llm_request_duration_milliseconds", 1400),
        ("llm_last_byte_diff_duration_milliseconds", 500),
        ("gateway_processing_time_excluding_last_byte_ms", 100),
        ("pre_request_processing_duration_milliseconds", 4),
        ("post_request_processing_duration_milliseconds", 7),
        ("llm_cache_processing_duration_milliseconds", 0.5),
        ("authentication_duration_milliseconds", 0.2),
        ("api_key_rate_limit_check_duration_milliseconds", 0.05),
    ],
)
def test_durations_become_histograms(name: str, total: float):
    metrics = make_metrics()
    metrics.observe([make_line(response_parsing_time=7.0)])
    bounds = SECONDS_BOUNDS if name.endswith("seconds") and "milli" not in name else MILLISECONDS_BOUNDS
    buckets = [(float(sample.labels["le"]), sample.value) for sample in samples(metrics, f"{name}_bucket")]
    assert buckets == [*((bound, float(total <= bound)) for bound in bounds), (float("inf"), 1)]
    assert samples(metrics, f"{name}_sum")[0].value == total
    assert samples(metrics, f"{name}_count")[0].value == 1


def test_request_without_a_provider_has_no_provider_time():
    metrics = make_metrics()
    line = json.dumps({name: value for name, value in RECORD.items() if name != "attempts"}).encode()
    metrics.observe([WaitingLine("edge-1", Position(1, 0), line, False, 0.0)])
    assert not samples(metrics, "llm_request_duration_milliseconds_count")
    assert samples(metrics, "http_request_duration_seconds_count")[0].value == 1


def test_operator_chooses_further_labels():
    metrics = make_metrics(
        include_model=True,
        labels=("config_name", "api_key_name", "workspace", "metadata_team-id", "metadata_absent"),
        app="ai",
        environment="test",
    )
    metrics.observe([make_line(), make_line(api_key_name=None)])
    first, second = samples(metrics)
    more = {"model": "gpt", "config_name": "pc-main", "api_key_name": "team a", "workspace": "red"}
    assert first.labels == {**LABELS, **more, "metadata_team_id": "blue", "app": "ai", "env": "test"}
    assert second.labels["api_key_name"] == "key-1"


@pytest.mark.parametrize("name", ['say "hi"', "a\nb", "back\\slash", "\\n", 'x"} 9\nup 1\n', "日本\u2028\x00\r", ""])
def test_label_values_are_escaped(name: str):
    metrics = make_metrics(include_model=True)
    metrics.observe([make_line(ai_model=name)])
    (sample,) = samples(metrics)
    assert (sample.labels.get("model", ""), sample.value) == (name, 1)


def test_long_label_values_are_cut():
    metrics = make_metrics(include_model=True)
    metrics.observe([make_line(ai_model="m" * 5000)])
    assert samples(metrics)[0].labels["model"] == "m" * 128


def test_ten_thousand_models_make_few_series():
    metrics = make_metrics(include_model=True, label_values=50)
    metrics.observe(make_line(ai_model=f"m{number}") for number in range(10_000))
    counts = values_by("model", samples(metrics))
    assert len(counts) == metrics.label_sets == 51
    assert (counts["m0"], counts["m49"], counts["other"]) == (1, 1, 9950)
    assert metrics.overflows == 9950
    # The other labels still have their own values.
    metrics.observe([make_line(ai_model="m77", response_status_code=500)])
    assert {(sample.labels["model"], sample.labels["code"]) for sample in samples(metrics)} >= {("other", "500")}


def test_combinations_beyond_the_limit_share_one_series():
    metrics = make_metrics(include_model=True, label_sets=3)
    metrics.observe(make_line(ai_model=f"m{number}") for number in range(100))
    all_samples = samples(metrics)
    assert len(all_samples) == metrics.label_sets == 4
    rest = next(sample for sample in all_samples if sample.labels["model"] == "other")
    assert rest.labels == {**dict.fromkeys([*LABELS, "model"], "other"), "app": "penstock"}
    assert (rest.value, sum(sample.value for sample in all_samples), metrics.overflows) == (97, 100, 97)
    metrics.observe([make_line(ai_model="m1")])
    assert values_by("model", samples(metrics))["m1"] == 2


def test_client_without_a_valid_key_chooses_no_label_value():
    metrics = make_metrics(include_model=True, labels=("metadata__user",))
    metrics.observe(
        make_line(is_refused=True, request_method=f"X{number}", ai_model=f"m{number}", metadata={"_user": str(number)})
        for number in range(20)
    )
    (sample,) = samples(metrics)
    assert (sample.labels["method"], sample.value, "model" in sample.labels) == ("other", 20, False)


def test_paths_and_killed_requests_have_values_of_their_own():
    metrics = make_metrics()
    metrics.observe([make_line(operation="", is_proxy_call=True), make_line(operation="")])
    killed = json.dumps({"id": "x", "operation": "embeddings", "outcome": "killed"}).encode()
    metrics.observe([WaitingLine("edge-1", Position(1, 0), killed, False, 0.0)])
    codes = {sample.labels["endpoint"]: sample.labels["code"] for sample in samples(metrics)}
    assert codes == {"proxy": "200", "unknown": "200", "embeddings": "0"}


def test_late_usage_is_added_to_the_labels_of_its_request():
    metrics = make_metrics()
    early = {**RECORD, "total_units": 10, "cost_nanodollars": None}
    metrics.observe([make_line(**early)])
    metrics.observe([make_line(original=early, is_amendment=True, total_units=30, cost_nanodollars=1_000_000_000)])
    (count,), (tokens,) = samples(metrics), samples(metrics, "llm_token_sum")
    assert (count.value, tokens.labels, tokens.value) == (1, LABELS, 30)
    assert samples(metrics, "llm_cost_sum")[0].value == 1
    # Counters never decrease.
    metrics.observe([make_line(original=RECORD, is_amendment=True, total_units=1, cost_nanodollars=0)])
    assert samples(metrics, "llm_token_sum")[0].value == 30


def test_unreadable_records_are_counted_and_skipped():
    metrics = make_metrics(labels=("metadata_team",))
    metrics.observe([make_line(response_status_code="x"), make_line(metadata={"team": [1]}), make_line()])
    assert (metrics.invalid, samples(metrics)[0].value) == (2, 1)


def test_nothing_is_counted_while_metrics_are_off():
    metrics = make_metrics(enabled=False)
    metrics.observe([make_line()])
    assert (metrics.label_sets, samples(metrics)) == (0, [])


CONTAINS = {"id": "default.contains", "verdict": False}
DENIED = {"id": "pg-a", "verdict": False, "deny": True, "checks": [CONTAINS, {"id": "default.webhook", "error": {}}]}
PASSED = {"id": "pg-b", "verdict": True, "checks": [{"id": "default.contains", "error": None}]}
OTHERS = [{"id": "pg-c", "verdict": False, "would_deny": True}, {"id": "pg-d", "skipped": True}, {"verdict": False}]


def count_verdicts(metrics: RequestMetrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels.get("guardrail") or sample.labels.get("check", ""), sample.labels["verdict"]): sample.value
        for family in parse(metrics.render())
        for sample in family.samples
        if family.name.startswith("guardrail")
    }


def test_guardrail_verdicts_are_counted_once():
    metrics = make_metrics(label_values=5)
    line = json.dumps(
        {**RECORD, "hook_results": {"before_request_hooks": [DENIED], "after_request_hooks": []}}
    ).encode()
    late = {"before_request_hooks": [DENIED], "after_request_hooks": [PASSED, *OTHERS, DENIED]}
    amended = json.dumps({"id": RECORD["id"], "is_amendment": True, "hook_results": late}).encode()
    position = Position(1, 0)
    metrics.observe([WaitingLine("w", position, line, is_refused=False, due=0.0)])
    metrics.observe([WaitingLine("w", position, amended, is_refused=False, due=0.0, original=line)])
    guardrails = {("pg-a", "denied"): 2, ("pg-b", "passed"): 1, ("pg-c", "would_deny"): 1, ("pg-d", "skipped"): 1}
    checks = {("default.contains", "failed"): 2, ("default.contains", "passed"): 1, ("default.webhook", "error"): 2}
    assert count_verdicts(metrics) == {**guardrails, ("", "failed"): 1, **checks}
    more = [{"id": name, "verdict": True} for name in ("pg-y", "pg-z", "pg-a")]
    metrics.observe([make_line(hook_results={"before_request_hooks": more}), make_line(hook_results=[1])])
    verdicts = count_verdicts(metrics)
    assert (verdicts["other", "passed"], metrics.overflows, metrics.invalid) == (3, 3, 1)
    assert samples(metrics)[0].value == 3
