"""CLI command `rerate`: its requests, its table, and its sums over all parts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.cli_api import PretendedApi, pretended_api

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = {"ai_org": "openai", "ai_model": "m", "logs": 10, "corrected": 4, "unpriced": 1, "skipped": 2}


def respond(_method: str, path: str, body: Any) -> Any:
    assert path == "/v1/admin/logs/rerate"
    first = {**ROW, "old_cost": 100.0000001, "new_cost": 150.2}
    second = {**ROW, "ai_model": "n", "logs": 20, "old_cost": 50, "new_cost": 20}
    data = [first, second] if "cursor" in body else [first]
    if body.get("ai_model") == "none":
        data = []
    return {"data": data, "next_cursor": None if "cursor" in body else "next", "object": "rerating", "partial": True}


@pytest.fixture
def api() -> Iterator[PretendedApi]:
    with pretended_api(respond) as actual:
        yield actual


def test_all_parts_are_summed_by_model(api: PretendedApi):
    options = (
        "--from",
        "2026-11-01",
        "--to",
        "2026-11-20T12:00:00Z",
        "--provider",
        "openai, azure",
        "--workspace",
        "w",
    )
    done = api.run("rerate", *options)
    assert done.exit_code == 0, done.output
    assert [body.get("cursor") for body in api.bodies] == [None, "next"]
    assert api.bodies[1] == {
        "time_of_generation_min": "2026-11-01T00:00:00+00:00",
        "time_of_generation_max": "2026-11-20T12:00:00+00:00",
        "ai_org_model": "openai__,azure__",
        "workspace_slug": "w",
        "dry_run": False,
        "cursor": "next",
    }
    head, first, second, line, total, words = done.stdout.splitlines()
    assert head.split() == ["provider", "model", "logs", "old", "cost", "new", "cost", "difference", "corrected"]
    assert first.split() == ["openai", "m", "20", "$2.00", "$3.00", "+$1.00", "8"]
    assert second.split() == ["openai", "n", "20", "$0.5000", "$0.2000", "-$0.3000", "4"]
    assert set(line) == {"─"}
    assert total.split() == ["total", "40", "$2.50", "$3.20", "+$0.7040", "12"]
    assert words == "12 logs corrected"
    assert all(word in done.stderr for word in ("3 logs have no price", "6 logs keep their cost", "on each node"))


def test_dry_run_reports_no_change(api: PretendedApi):
    done = api.run("rerate", "--from", "2026-11-01", "--dry-run")
    assert "12 logs would be corrected; nothing was changed" in done.stdout
    assert all(body["dry_run"] for body in api.bodies)
    # The end of the range stays the same for all parts.
    assert len({body["time_of_generation_max"] for body in api.bodies}) == 1


def test_json_has_the_sums(api: PretendedApi):
    actual = json.loads(api.run("rerate", "--from", "2026-11-01", "--json").stdout)
    assert actual["total"] == {
        "logs": 40, "corrected": 12, "unpriced": 3, "skipped": 6, "old_cost": 250.0000002, "new_cost": 320.4,
    }  # fmt: skip
    assert [row["ai_model"] for row in actual["data"]] == ["m", "n"]


def test_reports_that_no_log_needs_rerating(api: PretendedApi):
    assert "no logs" in api.run("rerate", "--from", "2026-11-01", "--model", "none").stdout
    assert api.run("rerate").exit_code == 2
