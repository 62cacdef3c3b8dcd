"""Metrics as a real Prometheus reads them: every panel of the Grafana board, the alert rules, restarts, and many models."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.gateway import ROOT
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import log_worker_pid, run_gateway
from tests.processes import free_port, wait_for
from tests.prometheus_server import PrometheusServer, find_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock

DEPLOY = ROOT / "deploy"
TOKEN = "token-of-the-tests"
CACHE = json.dumps({"provider": "mock", "api_key": "k", "cache": {"mode": "simple"}})
# Panels that have data only with Redis or a bucket for bodies.
OPTIONAL_PANELS = {"Redis", "Circuit breaker of the bucket"}

GOOD, BAD = 'request_count{provider="x",code="200"}', 'request_count{provider="x",code="%s"}'
ADDED = "gateway_processing_time_excluding_last_byte_ms_bucket"
SLOW = {f'{ADDED}{{le="100"}}': "0+9x60", f'{ADDED}{{le="1000"}}': "0+99x60", f'{ADDED}{{le="+Inf"}}': "0+99x60"}
FAST = {f'{ADDED}{{le="100"}}': "0+99x60", f'{ADDED}{{le="1000"}}': "0+99x60", f'{ADDED}{{le="+Inf"}}': "0+99x60"}
# By alert: series with which it fires, and series with which it does not.
ALERT_CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "PenstockDown": ({"up": "0x60"}, {"up": "1x60"}),
    "PenstockManyServerErrors": (
        {'request_count{code="200"}': "0+90x60", 'request_count{code="500"}': "0+10x60"},
        {'request_count{code="200"}': "0+99x60", 'request_count{code="500"}': "0+1x60"},
    ),
    "PenstockProviderFails": (
        {GOOD: "0+70x60", BAD % "429": "0+30x60"},
        {GOOD: "0+70x60", BAD % "400": "0+30x60"},
    ),
    "PenstockAddsLatency": (SLOW, FAST),
    "PenstockCircuitBreakerOpen": (
        {"penstock_circuit_breakers_open": "1x60"},
        {"penstock_circuit_breakers_open": "0x20 1x5"},
    ),
    "PenstockLogWorkerDown": ({"penstock_log_worker_up": "0x60"}, {"penstock_log_worker_up": "1x60"}),
    "PenstockLogStoreDown": ({"penstock_log_store_up": "0x60"}, {"penstock_log_store_up": "1x60"}),
    "PenstockLogsLate": (
        {"penstock_log_worker_lag_seconds": "0+60x60"},
        {"penstock_log_worker_lag_seconds": "10x60"},
    ),
    "PenstockSpoolFillsUp": ({"penstock_log_spool_bytes": "9000000000x60"}, {"penstock_log_spool_bytes": "7e9x60"}),
    "PenstockRecordsLost": ({"penstock_records_dropped_total": "0+1x60"}, {"penstock_records_dropped_total": "5x60"}),
    "PenstockBodiesLost": (
        {"penstock_record_bodies_dropped_total": "0x60", "penstock_log_bodies_dropped_total": "0+1x60"},
        {"penstock_record_bodies_dropped_total": "3x60", "penstock_log_bodies_dropped_total": "3x60"},
    ),
    "PenstockSpoolDamaged": (
        {"penstock_log_spool_damaged_total": "0x20 1x40"},
        {"penstock_log_spool_damaged_total": "1x60"},
    ),
    "PenstockBodyUploadsFail": ({"penstock_log_breaker_state": "2x60"}, {"penstock_log_breaker_state": "1x60"}),
    "PenstockRedisDown": ({"penstock_redis_up": "0x60"}, {"penstock_redis_up": "1x60"}),
    "PenstockRequestsWithoutPrice": (
        {"penstock_requests_unpriced_total": "0+1x60"},
        {"penstock_requests_unpriced_total": "7x60"},
    ),
    "PenstockTooManyLabelValues": (
        {"penstock_request_metrics_overflows_total": "0+1x60"},
        {"penstock_request_metrics_overflows_total": "0x60"},
    ),
}


class ScrapedGateway(NamedTuple):
    """A gateway with traffic, and the Prometheus server that scrapes it."""

    gateway: Gateway
    prometheus: PrometheusServer


def send_traffic(gateway: Gateway, count: int = 4) -> None:
    """Sends requests of every kind that a panel shows."""
    cached = {"content-type": "application/json", "x-gateway-config": CACHE}
    for _ in range(count):
        for model, stream in (
            ("gpt-4o", False),
            ("gpt-4o", True),
            ("mock?fault=429", False),
            ("mock?fault=reset", False),
        ):
            send_raw_request(gateway.base_url, CHAT_PATH, chat_body(model, stream=stream), MOCK_HEADERS)
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body("cached"), cached).status == 200
        send_raw_request(gateway.base_url, CHAT_PATH, chat_body('quote" \\ \n é'), MOCK_HEADERS)


@pytest.fixture(scope="module")
def scraped_gateway(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedGateway]:
    port = free_port()
    tables = {
        "server": {"workers": 2},
        "log_store": {"enabled": True},
        "mock": {"host": provider.url},
        "metrics": {"enabled": True, "token": TOKEN, "listen": f"127.0.0.1:{port}", "include_model": True},
    }
    with run_gateway(tmp_path_factory.mktemp("gateway"), tables) as gateway:
        server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{port}", TOKEN)
        try:
            # Sends the requests twice, because a rate needs samples from before and after, and each worker has its own
            # cache.
            send_traffic(gateway)
            wait_for("the first requests", lambda: server.value("sum(request_count)"), 20)
            send_traffic(gateway)
            wait_for("a rate", lambda: server.value("sum(rate(request_count[1m])) > 0"), 20)
            time.sleep(2.5)
            yield ScrapedGateway(gateway, server)
        finally:
            server.stop()


def board_panels() -> list[dict[str, Any]]:
    board = json.loads((DEPLOY / "grafana/penstock.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def fill_variables(expression: str) -> str:
    """Replaces the variables of an expression, as Grafana does."""
    filled = expression.replace("$__rate_interval", "1m").replace("$__range", "5m").replace("$instance", ".*")
    assert "$" not in filled
    return filled


def test_prometheus_scrapes_without_an_error(scraped_gateway: ScrapedGateway):
    (target,) = scraped_gateway.prometheus.targets()
    assert (target["health"], target["lastError"]) == ("up", "")
    assert scraped_gateway.prometheus.value("scrape_samples_scraped") == scraped_gateway.prometheus.value(
        "scrape_samples_post_metric_relabeling"
    )


def test_every_panel_of_the_board_is_valid_and_has_data(scraped_gateway: ScrapedGateway):
    panels = board_panels()
    assert {"Requests by endpoint", "Cost", "Cache hits", "Spool", *OPTIONAL_PANELS} <= {
        panel["title"] for panel in panels
    }
    without_data: dict[str, list[str]] = {}
    for panel in panels:
        expressions = [fill_variables(target["expr"]) for target in panel["targets"]]
        result = [series for expression in expressions for series in scraped_gateway.prometheus.query(expression)]
        numbers = [float(series["value"][1]) for series in result]
        if not numbers or not all(map(math.isfinite, numbers)):
            without_data[panel["title"]] = expressions
    assert set(without_data) == OPTIONAL_PANELS, without_data


def test_panels_show_the_traffic(scraped_gateway: ScrapedGateway):
    query = {panel["title"]: fill_variables(panel["targets"][0]["expr"]) for panel in board_panels()}
    value, series = scraped_gateway.prometheus.value, scraped_gateway.prometheus.query
    assert (value(query["Requests"]) or 0) > 0
    assert 0 < (value(query["Failed requests"]) or 0) < 1
    assert 0 < (value(query["Cache hits"]) or 0) <= 1
    assert {point["metric"]["code"] for point in series(query["Requests by status"])} >= {"200", "429", "502"}
    assert {point["metric"]["endpoint"] for point in series(query["Requests by endpoint"])} == {"chatComplete"}
    by_model = {point["metric"]["model"] for point in series("sum by (model) (request_count)")}
    assert by_model >= {"gpt-4o", 'quote" \\ \n é', "cached"}
    assert value(query["Log worker and log store"]) == 1


def test_board_is_what_its_script_generates():
    done = subprocess.run([sys.executable, DEPLOY / "grafana/board.py", "--check"], check=False, capture_output=True)
    assert done.returncode == 0, done.stdout
    panels = json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    locations = [tuple(panel["gridPos"][name] for name in "xywh") for panel in panels]
    cells = [(x + dx, y + dy) for x, y, w, h in locations for dx in range(w) for dy in range(h)]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_alert_rules_and_example_configuration_are_valid(tmp_path: Path):
    for name in ("prometheus.yml", "penstock.rules.yml"):
        (tmp_path / name).write_text((DEPLOY / "prometheus" / name).read_text())
    (tmp_path / "penstock.token").write_text(TOKEN)
    (tmp_path / "compose.yml").write_text((DEPLOY / "compose/prometheus.yml").read_text())
    for label, name in (("rules", "penstock.rules.yml"), ("config", "prometheus.yml"), ("config", "compose.yml")):
        done = subprocess.run(
            [find_program("promtool"), "check", label, tmp_path / name], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def add_target_labels(series: str) -> str:
    """Adds the labels that Prometheus adds to what it scrapes."""
    name, _, labels = series.rstrip("}").partition("{")
    return f'{name}{{job="penstock",instance="a"{"," if labels else ""}{labels}}}'


def run_rules(folder: Path, alert: str, series: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Evaluates the rules for half an hour; fails unless only this alert fires then, or none if it is empty."""
    rules = folder / "rules.yml"
    rules.write_text((DEPLOY / "prometheus/penstock.rules.yml").read_text())
    fires = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    expected = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "30m",
        "exp_samples": fires,
    }
    body = [{"series": name, "values": values} for name, values in series.items()]
    case = {"interval": "1m", "input_series": body, "promql_expr_test": [expected]}
    # JSON is YAML.
    (folder / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": [case]}))
    command = [find_program("promtool"), "test", "rules", folder / "test.yml"]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_each_alert_fires_on_its_own_problem(tmp_path: Path):
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus/penstock.rules.yml").read_text())
    assert set(alerts) == set(ALERT_CASES)
    for alert, (bad, good) in ALERT_CASES.items():
        for expected, series in ((alert, bad), ("", good)):
            done = run_rules(tmp_path, expected, {add_target_labels(name): text for name, text in series.items()})
            assert done.returncode == 0, f"{alert}: {done.stdout}{done.stderr}"


def test_alert_rules_use_metrics_that_exist(scraped_gateway: ScrapedGateway):
    rules = (DEPLOY / "prometheus/penstock.rules.yml").read_text()
    names = set(re.findall(r"\b([a-z_]+)\{job=", rules)) - {"up"}
    assert len(names) > 10
    # A scrape lacks metrics of the log worker if that does not respond in time.
    series = scraped_gateway.prometheus.query('last_over_time({job="penstock"}[5m])')
    exported = {point["metric"]["__name__"] for point in series}
    assert names - exported == {"penstock_redis_up", "penstock_log_breaker_state"}


def test_promtool_accepts_the_exposition(scraped_gateway: ScrapedGateway):
    text = send_raw_request(
        scraped_gateway.gateway.base_url, "/metrics", headers={"authorization": f"Bearer {TOKEN}"}
    ).body.decode()
    done = subprocess.run(
        [find_program("promtool"), "check", "metrics"], check=False, capture_output=True, text=True, input=text
    )
    # Status 3: names that its style guide advises against, because dashboards for other gateways use them.
    assert done.returncode == 3, done.stderr
    advice = {line.split()[0] for line in done.stderr.splitlines()}
    assert not {name for name in advice if name.startswith("penstock_") and "duplicate" in name}
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))


def test_metrics_need_the_token(scraped_gateway: ScrapedGateway):
    (port,) = {int(target["scrapeUrl"].split(":")[2].split("/")[0]) for target in scraped_gateway.prometheus.targets()}
    own = f"http://127.0.0.1:{port}"
    for url in (scraped_gateway.gateway.base_url, own):
        assert send_raw_request(url, "/metrics", headers={}).status == 401
        assert send_raw_request(url, "/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status == 200
    assert send_raw_request(own, CHAT_PATH, chat_body(), MOCK_HEADERS).status == 404


def test_restarts_of_the_log_worker_double_nothing(scraped_gateway: ScrapedGateway):
    gateway, prometheus = scraped_gateway
    total = 'sum(increase(request_count{model="counted"}[5m]))'
    send = lambda: send_raw_request(gateway.base_url, CHAT_PATH, chat_body("counted"), MOCK_HEADERS)  # noqa: E731
    send()
    wait_for("the first sample", lambda: prometheus.value('sum(request_count{model="counted"})'), 20)
    time.sleep(1.5)
    os.kill(log_worker_pid(gateway), signal.SIGKILL)
    for _ in range(5):
        assert send().status == 200
    wait_for("the requests of then", lambda: prometheus.value('sum(request_count{model="counted"}) == 5'), 20)
    # `increase` extrapolates to the ends of the window, so the result is not exactly the number of requests.
    assert 4 <= (prometheus.value(total) or 0) <= 8
    assert prometheus.value('min(rate(request_count{model="counted"}[1m])) < 0') is None


def test_many_models_make_few_series(provider: Mock, tmp_path: Path):
    tables = {
        "mock": {"host": provider.url},
        "metrics": {"enabled": True, "include_model": True, "label_values": 20},
    }
    with run_gateway(tmp_path, tables) as gateway:
        for number in range(100):
            send_raw_request(gateway.base_url, CHAT_PATH, chat_body(f"m{number}"), MOCK_HEADERS)

        def read_counts() -> dict[str, float] | None:
            text = send_raw_request(gateway.base_url, "/metrics", headers={}).body.decode()
            actual = re.findall(r'^request_count\{.*model="([^"]*)".*\} (\d+)$', text, re.MULTILINE)
            counts = {model: float(count) for model, count in actual}
            return counts if sum(counts.values()) >= 100 else None

        counts = wait_for("100 requests", read_counts, 15)
        assert (len(counts), counts["other"], counts["m0"]) == (21, 80, 1)
