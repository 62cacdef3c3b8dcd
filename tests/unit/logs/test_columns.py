"""Columns of the log store: unique names, and every field that engines and the API use."""

from __future__ import annotations

from penstock.logs.columns import AMENDABLE_COLUMNS, COLUMNS, COLUMNS_BY_NAME, render_markdown

# `AnalyticsMetrics` of the API. The others of its fields are made from these.
METRICS = {
    "id", "organisation_id", "prompt_id", "prompt_version_id", "config_id", "created_at", "is_success", "ai_org", "ai_model",
    "req_units", "res_units", "total_units", "cost_currency", "request_url", "request_method", "response_status_code",
    "response_time", "is_proxy_call", "cache_status", "cache_type", "stream_mode", "retry_success_count", "trace_id", "span_id",
    "span_name", "parent_span_id", "mode", "virtual_key", "source", "runtime", "runtime_version", "sdk_version", "config",
    "last_used_option_index", "config_version_id", "prompt_slug", "workspace_slug", "api_key_id",
    "request_parsing_time", "pre_processing_time", "cache_processing_time", "response_parsing_time", "gateway_processing_time",
    "upstream_response_time",
}  # fmt: skip


def test_names_are_unique():
    assert len(COLUMNS_BY_NAME) == len(COLUMNS)


def test_every_metric_of_the_api_has_a_column():
    assert not METRICS - COLUMNS_BY_NAME.keys()


def test_usage_cost_results_and_bodies_are_amendable():
    assert {column.name for column in AMENDABLE_COLUMNS} == {
        "req_units", "res_units", "total_units", "cost_nanodollars", "cost_currency", "units_estimated", "price_version",
        "previous_cost_nanodollars", "previous_price_version", "usage", "hook_results", "body_key", "body_offset",
        "body_length",
    }  # fmt: skip


def test_page_has_one_row_per_column():
    assert len(render_markdown()[-1].splitlines()) == len(COLUMNS) + 2
