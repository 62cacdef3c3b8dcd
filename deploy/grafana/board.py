"""Generator of the Grafana board `penstock.json`; `--check` only reports whether the file is out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

BOARD = Path(__file__).with_name("penstock.json")
# Grafana replaces this with a window that has enough samples for the resolution of the panel.
WINDOW = "[$__rate_interval]"
WIDTH, ROW_HEIGHT, STAT_HEIGHT, GRAPH_HEIGHT = 24, 1, 4, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
FAILED = 'code!~"1..|2.."'


class Query(NamedTuple):
    """One expression of a panel, and the name of its series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel. Widths are in 24ths of the board."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    kind: str = "timeseries"
    width: int = 8


def select(name: str, *conditions: str) -> str:
    """Returns the selector of a metric on the chosen instances."""
    return name + "{" + ",".join(['instance=~"$instance"', *conditions]) + "}"


def rate(name: str, *conditions: str) -> str:
    """Returns the increase of a counter per second."""
    return f"rate({select(name, *conditions)}{WINDOW})"


def sum_of_rates(by: str, name: str, *conditions: str) -> str:
    """Returns the increase of a counter per second, summed for each value of the labels in `by`, or in total if it is
    empty.
    """
    return f"sum by ({by}) ({rate(name, *conditions)})" if by else f"sum({rate(name, *conditions)})"


def quantiles(name: str) -> tuple[Query, ...]:
    """Returns the median, and the 95th and 99th percentile of a histogram."""
    buckets = sum_of_rates("le", f"{name}_bucket")
    return tuple(Query(f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99))


def quantile_by(label: str, name: str, *conditions: str) -> Query:
    """Returns the 95th percentile of a histogram by a label."""
    buckets = sum_of_rates(f"le, {label}", f"{name}_bucket", *conditions)
    return Query(f"histogram_quantile(0.95, {buckets})", f"{{{{{label}}}}}")


def ratio(part: str, whole: str) -> str:
    """Returns the ratio of two expressions. It is 0 while no series matches `part`."""
    return f"({part} or vector(0)) / {whole}"


def single_query(expression: str, legend: str = "") -> tuple[Query, ...]:
    """Returns the queries of a panel with one expression."""
    return (Query(expression, legend),)


COST_BY_MODEL = sum_of_rates("model", "llm_cost_sum", 'model!=""')
REQUESTS = sum_of_rates("", "request_count")
HITS = sum_of_rates("", "request_count", 'cacheStatus=~"hit|semantic_hit"')
LOOKUPS = sum_of_rates("", "request_count", 'cacheStatus=~"hit|semantic_hit|miss|refresh"')

ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        Panel("Requests", "reqps", single_query(REQUESTS), kind="stat", width=4),
        Panel(
            "Failed requests",
            "percentunit",
            single_query(ratio(sum_of_rates("", "request_count", FAILED), REQUESTS)),
            kind="stat",
            width=4,
        ),
        Panel(
            "In progress", "short", single_query(f"sum({select('penstock_requests_in_flight')})"), kind="stat", width=4
        ),
        Panel(
            "Latency p95",
            "ms",
            single_query(quantiles("gateway_request_duration_milliseconds")[1].expression),
            kind="stat",
            width=4,
        ),
        Panel(
            "Cost",
            "currencyUSD",
            single_query(f"sum(increase({select('llm_cost_sum')}[$__range]))"),
            kind="stat",
            width=4,
        ),
        Panel("Cache hits", "percentunit", single_query(ratio(HITS, LOOKUPS)), "Of requests with a cache.", "stat", 4),
    ),
    "Traffic": (
        Panel("Requests by endpoint", "reqps", single_query(sum_of_rates("endpoint", "request_count"), "{{endpoint}}")),
        Panel("Requests by status", "reqps", single_query(sum_of_rates("code", "request_count"), "{{code}}")),
        Panel("Requests by provider", "reqps", single_query(sum_of_rates("provider", "request_count"), "{{provider}}")),
    ),
    "Errors": (
        Panel(
            "Failed requests by provider",
            "reqps",
            single_query(sum_of_rates("provider, code", "request_count", FAILED), "{{provider}} {{code}}"),
        ),
        Panel(
            "Failed requests by model",
            "reqps",
            single_query(sum_of_rates("model, code", "request_count", FAILED, 'model!=""'), "{{model}} {{code}}"),
            "Needs PROMETHEUS_INCLUDE_MODEL_LABEL=true.",
        ),
        Panel(
            "Retries, hedging, circuit breakers",
            "ops",
            (
                Query(sum_of_rates("", "penstock_retries_total"), "retries"),
                Query(sum_of_rates("", "penstock_requests_hedged_total"), "hedged"),
                Query(sum_of_rates("", "penstock_circuit_breakers_opened_total"), "breakers opened"),
                Query(sum_of_rates("", "penstock_circuit_breaker_skips_total"), "targets skipped"),
            ),
        ),
        Panel(
            "Responses that did not end well",
            "ops",
            (
                Query(sum_of_rates("", "penstock_requests_aborted_total"), "client disconnected"),
                Query(sum_of_rates("", "penstock_responses_truncated_total"), "cut off by the provider"),
                Query(sum_of_rates("", "penstock_panics_total"), "panics"),
            ),
        ),
        Panel(
            "Requests rejected for lack of memory",
            "ops",
            (
                Query(sum_of_rates("", "penstock_request_bodies_refused_total"), "model requests"),
                Query(sum_of_rates("", "penstock_management_requests_refused_total"), "management requests"),
            ),
        ),
        Panel(
            "Open circuit breakers", "short", single_query(f"sum({select('penstock_circuit_breakers_open')})", "open")
        ),
    ),
    "Latency": (
        Panel("Request", "ms", quantiles("gateway_request_duration_milliseconds")),
        Panel(
            "Provider, p95",
            "ms",
            (quantile_by("provider", "llm_request_duration_milliseconds"),),
            "Until the last byte, retries included.",
        ),
        Panel(
            "Added by the gateway",
            "ms",
            quantiles("gateway_processing_time_excluding_last_byte_ms"),
            "Until the first byte of the response.",
        ),
        Panel("Before the provider", "ms", quantiles("pre_request_processing_duration_milliseconds")),
        Panel(
            "First to last byte of streams",
            "ms",
            (quantile_by("provider", "llm_last_byte_diff_duration_milliseconds", 'stream="true"'),),
        ),
        Panel("Cache lookup", "ms", quantiles("llm_cache_processing_duration_milliseconds")),
    ),
    "Tokens and cost": (
        Panel("Tokens by provider", "ops", single_query(sum_of_rates("provider", "llm_token_sum"), "{{provider}}")),
        Panel(
            "Input and output tokens",
            "ops",
            (
                Query(sum_of_rates("", "penstock_tokens_in_total"), "input"),
                Query(sum_of_rates("", "penstock_tokens_out_total"), "output"),
                Query(sum_of_rates("", "penstock_tokens_estimated_total"), "estimated"),
            ),
        ),
        Panel(
            "Cost per hour by provider",
            "currencyUSD",
            single_query(f"{sum_of_rates('provider', 'llm_cost_sum')} * 3600", "{{provider}}"),
        ),
        Panel(
            "Cost per hour by model",
            "currencyUSD",
            single_query(f"topk(10, {COST_BY_MODEL} * 3600)", "{{model}}"),
            "Needs PROMETHEUS_INCLUDE_MODEL_LABEL=true.",
        ),
        Panel(
            "Requests without a price",
            "reqps",
            single_query(sum_of_rates("", "penstock_requests_unpriced_total"), "no price"),
        ),
        Panel(
            "Requests by cache status",
            "reqps",
            single_query(sum_of_rates("cacheStatus", "request_count"), "{{cacheStatus}}"),
        ),
    ),
    "Logs": (
        Panel(
            "Log worker and log store",
            "short",
            (
                Query(f"min({select('penstock_log_worker_up')})", "log worker"),
                Query(f"min({select('penstock_log_store_up')})", "log store"),
            ),
            "1: it works. 0: it does not.",
        ),
        Panel(
            "Lag",
            "s",
            (
                Query(f"max({select('penstock_log_worker_lag_seconds')})", "log store"),
                Query(f"max({select('penstock_record_file_lag_seconds')})", "record file"),
            ),
        ),
        Panel("Spool", "bytes", single_query(f"sum({select('penstock_log_spool_bytes')})", "bytes")),
        Panel(
            "Lost records and bodies",
            "ops",
            (
                Query(sum_of_rates("", "penstock_records_dropped_total"), "records"),
                Query(sum_of_rates("", "penstock_record_bodies_dropped_total"), "bodies, spool full"),
                Query(sum_of_rates("", "penstock_log_bodies_dropped_total"), "bodies, log worker"),
                Query(sum_of_rates("", "penstock_log_spool_damaged_total"), "damaged places"),
            ),
        ),
        Panel(
            "Failed writes",
            "ops",
            (
                Query(sum_of_rates("", "penstock_log_store_failures_total"), "log store"),
                Query(sum_of_rates("", "penstock_record_file_failures_total"), "record file"),
                Query(sum_of_rates("", "penstock_log_upload_failures_total"), "uploads of bodies"),
            ),
            "Each is repeated.",
        ),
        Panel(
            "Circuit breaker of the bucket",
            "short",
            single_query(f"max({select('penstock_log_breaker_state')})", "0 closed, 1 probing, 2 open"),
            "Only if bodies are stored in a bucket.",
        ),
    ),
    "Metrics and Redis": (
        Panel(
            "Label combinations",
            "short",
            single_query(f"max({select('penstock_request_metrics_label_sets')})", "combinations"),
            "At most `metrics.label_sets`.",
        ),
        Panel(
            "Requests counted as other",
            "reqps",
            single_query(sum_of_rates("", "penstock_request_metrics_overflows_total"), "other"),
        ),
        Panel(
            "Redis", "short", single_query(f"min({select('penstock_redis_up')})", "1: it responds"), "Only with Redis."
        ),
    ),
}


def make_panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """Returns the JSON of a panel."""
    height = STAT_HEIGHT if panel.kind == "stat" else GRAPH_HEIGHT
    targets = [
        {"datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend, "refId": chr(ord("A") + index)}
        for index, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def make_panels() -> list[dict[str, Any]]:
    """Returns the JSON of all rows and panels, from left to right and from top to bottom."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        position = {"x": 0, "y": y, "w": WIDTH, "h": ROW_HEIGHT}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": position})
        x, y = 0, y + ROW_HEIGHT
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + panels[-1]["gridPos"]["h"]
            panels.append(make_panel(panel, len(panels) + 1, x, y))
            x += panel.width
        y += panels[-1]["gridPos"]["h"]
    return panels


def make_board() -> dict[str, Any]:
    """Returns the JSON of the board."""
    instances = "label_values(penstock_requests_in_flight, instance)"
    return {
        "uid": "penstock",
        "title": "Penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Instance",
                    "datasource": SOURCE,
                    "definition": instances,
                    "query": {"query": instances, "refId": "instances"},
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                    "refresh": 2,
                },
            ]
        },
        "panels": make_panels(),
    }


def main() -> int:
    """Writes the board. With `--check`, returns 1 if the file is out of date."""
    text = json.dumps(make_board(), indent=2) + "\n"
    is_current = BOARD.exists() and BOARD.read_text() == text
    if "--check" in sys.argv:
        if not is_current:
            print("deploy/grafana/penstock.json is out of date; run `make docs`")
        return int(not is_current)
    if not is_current:
        BOARD.write_text(text)
        print("deploy/grafana/penstock.json written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
