"""CLI commands of logs: their requests, tables and trees, and the commands of the documentation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from penstock.cli import main
from tests.unit.cli_api import PretendedApi, pretended_api

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = {
    "id": "0199aaaa-0000-7000-8000-000000000001",
    "created_at": "2026-11-20T12:00:00.000Z",
    "response_status_code": 200,
    "outcome": "complete",
    "ai_org": "openai",
    "ai_model": "gpt-5",
    "total_units": 1500,
    "cost": 0.25,
    "response_time": 1234.5,
    "span_id": "s",
    "span_name": None,
}
LOG_WITH_NULLS = {**LOG, "cost": None, "total_units": None, "ai_model": "red\x1b[31m"}


def whole_log(cost: float | None = 0.25) -> dict[str, Any]:
    metrics = {**LOG, "cost": cost, "request_method": "POST", "request_url": "/v1/chat/completions", "req_units": 10}
    return {
        "_id": LOG["id"],
        "metrics": {**metrics, "metadata.key": ["team"], "metadata.value": ["red"]},
        "details": {
            "outcome": "complete",
            "body": "cut",
            "attempts": [
                {"target": "config.targets[0]", "status": 429, "duration": 2, "reason": "quota-exceeded"},
                {
                    "target": "config.targets[1]",
                    "provider": "openai",
                    "virtual_key": "openai-main",
                    "model": "gpt-5-mini",
                    "host": "api.openai.com",
                    "status": 200,
                    "duration": 12.5,
                    "error": None,
                },
            ],
            "decisions": [{"step": "chose", "at": "config", "strategy": "fallback", "target": 1}],
        },
        "request": {"body": {"model": "gpt-5", "messages": [{"content": "x" * 5000}]}},
        "response": {"body": None},
    }


def respond(_method: str, path: str, _body: Any) -> Any:
    if path == "/v1/logs/tail":
        events = [("connected", {}), ("log", LOG), ("dropped", {"count": 3}), ("error", {"message": "the end"})]
        return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events).encode()
    if path == "/v1/logs":
        return {"data": [LOG, LOG_WITH_NULLS], "has_more": True, "next_cursor": "c"}
    if path.startswith("/v1/traces/"):
        child = {**LOG, "span_id": "child", "children": []}
        return {"data": [{**LOG, "span_name": "root", "children": [child]}], "object": "trace"}
    return whole_log(None if path.endswith("unpriced") else 0.25)


@pytest.fixture
def api() -> Iterator[PretendedApi]:
    with pretended_api(respond) as actual:
        yield actual


def test_logs_are_listed_as_a_table(api: PretendedApi):
    options = (
        "--status",
        "200,500",
        "--metadata",
        "team=red",
        "--workspace",
        "ws-a",
        "-q",
        "zebra",
        "-n",
        "2",
        "--rescued",
        "fallback",
    )
    done = api.run("logs", "list", *options)
    assert done.exit_code == 0, done.output
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["time", "(UTC)", "status", "provider", "model", "tokens", "cost", "ms", "id"]
    assert first.split() == [
        *("2026-11-20", "12:00:00", "200", "openai", "gpt-5", "1,500", "$0.0025"),
        *("1,234", LOG["id"]),
    ]
    # Control characters in values of clients do not reach the terminal.
    assert second.split()[4:7] == ["red�[31m", "-", "-"]
    assert "more than 2" in done.stderr
    assert (api.query["status_code"], api.query["rescued"]) == (["200,500"], ["fallback"])
    assert (api.query["metadata"], api.query["q"], api.query["page_size"]) == (['{"team":"red"}'], ["zebra"], ["2"])
    assert api.query["workspace_slug"] == ["ws-a"]


def test_search_joins_its_words(api: PretendedApi):
    assert api.run("logs", "search", "refund", "policy").exit_code == 0
    assert api.query["q"] == ["refund policy"]
    assert api.run("logs", "search").exit_code == 2


def test_ranges_and_time_zones_are_those_of_the_options(api: PretendedApi):
    done = api.run(
        "logs", "list", "--from", "2026-11-01", "--to", "2026-11-02T12:00:00+02:00", "--time-zone", "Asia/Tokyo"
    )
    assert "time (Asia/Tokyo)" in done.stdout
    assert "2026-11-20 21:00:00" in done.stdout
    assert api.query["time_of_generation_min"] == ["2026-11-01T00:00:00+00:00"]
    assert api.query["time_of_generation_max"] == ["2026-11-02T12:00:00+02:00"]
    api.run("logs", "list", "--to", "2026-11-02", "--since", "2d")
    assert api.query["time_of_generation_min"] == ["2026-10-31T00:00:00+00:00"]


def test_json_is_the_response_of_the_api(api: PretendedApi):
    assert json.loads(api.run("logs", "list", "--json").stdout)["next_cursor"] == "c"
    assert api.query["workspace_slug"] == ["*"]
    assert json.loads(api.run("logs", "show", "x/y", "--json").stdout)["_id"] == LOG["id"]
    assert api.paths[-1] == "/v1/logs/x%2Fy"
    assert json.loads(api.run("logs", "trace", "t", "--json").stdout)["object"] == "trace"


def test_one_log_is_shown_with_attempts_and_bodies(api: PretendedApi):
    done = api.run("logs", "show", "x")
    assert done.exit_code == 0, done.output
    words = done.stdout.split()
    assert {"$0.0025", "POST", "metadata.team", "red", "api.openai.com", "12.5"} <= set(words)
    assert {"config.targets[1]", "openai-main", "gpt-5-mini", "quota-exceeded"} <= set(words)
    assert "200 complete" in done.stdout
    assert "strategy fallback, target 1" in done.stdout
    assert "more characters; hint: --json" in done.stdout
    assert "response: not stored (cut)" in done.stdout
    assert "no price is known" in api.run("logs", "show", "unpriced").stdout


def test_trace_is_a_tree(api: PretendedApi):
    done = api.run("logs", "trace", "t")
    assert [line[:9].rstrip() for line in done.stdout.splitlines()] == ["span", "root", "└ child"]


def test_tail_prints_logs_until_the_stream_ends(api: PretendedApi):
    done = api.run("logs", "tail", "--status", "200")
    assert LOG["id"] in done.stdout
    assert "3 logs were left out" in done.stderr
    assert (done.exit_code, "the stream ended: the end" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "options",
    [
        ("--since", "7"),
        ("--since", "0d"),
        ("--metadata", "team"),
        ("--from", "yesterday"),
        ("--time-zone", "Mars/Olympus"),
    ],
)
def test_wrong_options_are_reported(api: PretendedApi, options: tuple[str, ...]):
    done = api.run("logs", "list", *options)
    assert done.exit_code == 2
    assert "Error: Invalid value" in done.stderr


@pytest.mark.parametrize("page", ["docs/logs.md", "docs/analytics.md"])
def test_commands_of_the_documentation_exist(page: str):
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("penstock ")]
    assert commands
    for words in commands:
        group, arguments = main, words
        while isinstance(group, click.Group):
            actual = group.commands[arguments[0]]
            group, arguments = actual, arguments[1:]
        assert group.make_context("x", [*arguments, "--api-key", "k"])
