"""CLI commands of limits: their requests and tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.cli_api import PretendedApi, pretended_api

if TYPE_CHECKING:
    from collections.abc import Iterator

USAGE = {
    "limit_id": "p",
    "kind": "policy",
    "owner_name": "budget",
    "value_key": "ada",
    "type": "cost",
    "credit_limit": 20,
    "current_usage": 18.5,
    "reserved": 0.25,
    "used_percent": 92.5,
    "status": "active",
    "next_usage_reset_at": "2026-12-01T00:00:00.000Z",
}
RATE = {
    "kind": "api_key",
    "owner_name": "app",
    "value_key": "",
    "type": "requests",
    "unit": "rpm",
    "value": 60,
    "current_usage": 7,
    "peak_usage": 57,
    "used_percent": 95.0,
}
UNMATCHED = {
    "policy_id": "p-1",
    "policy_name": "old",
    "kind": "rate-limits",
    "path": "conditions[0].value",
    "message": "'@gone/*' names no provider of the workspace",
}
REFUSAL = {
    "limit_id": "gone",
    "kind": None,
    "owner_name": None,
    "value_key": "",
    "api_key_id": "k-1",
    "api_key_name": "app",
    "refused": 12,
    "would_reject": 3,
    "last_seen": "2026-11-26T00:00:00.000Z",
}
GROUP = {
    "value_key": "ada",
    "requests": 50,
    "refused": 5,
    "usage": 50,
    "peak": 61,
    "peak_percent": 101.7,
    "first_refused_at": None,
}
SIMULATED = {"refused": 5, "matched": 50, "refused_percent": 10.0, "groups": 3, "complete": False, "data": [GROUP]}


def respond(_method: str, path: str, _body: Any) -> Any:
    return {
        "/v1/limits/tokens/t-1/reset": {},
        "/v1/limits/usage": {"data": [USAGE], "total": 1},
        "/v1/limits/rates": {"data": [RATE], "total": 1, "complete": True},
        "/v1/limits/unmatched": {"data": [UNMATCHED], "total": 1, "complete": False},
        "/v1/limits/refusals": {"data": [REFUSAL], "total": 1, "complete": True, "partial": True},
        "/v1/limits/simulate": SIMULATED,
    }[path]


@pytest.fixture
def api() -> Iterator[PretendedApi]:
    with pretended_api(respond) as actual:
        yield actual


def test_lists_budgets_that_are_close_to_their_limit(api: PretendedApi):
    done = api.run("limits", "near", "--min-used", "90", "--workspace", "here")
    assert (api.query["min_used_percent"], api.query["workspace_id"]) == (["90.0"], ["here"])
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[1] == ["policy", "budget", "ada", "$18.50", "$0.2500", "$20.00", "92.5", "active", "2026-12-01"]
    assert rows[3] == ["api_key", "app", "-", "7", "57", "60", "requests", "rpm", "95"]
    output = json.loads(api.run("limits", "near", "--json").output)
    assert (output["budgets"]["data"], output["rates"]["data"]) == ([USAGE], [RATE])


def test_resets_the_budgets_of_a_users_tokens(api: PretendedApi, monkeypatch: pytest.MonkeyPatch):
    done = api.run("limits", "reset", "budget")
    assert (done.exit_code, "no token of 'budget'" in done.output) == (1, True)
    monkeypatch.setitem(USAGE, "kind", "token")
    monkeypatch.setitem(USAGE, "owner_id", "t-1")
    done = api.run("limits", "reset", "budget")
    assert (done.exit_code, done.output) == (0, "reset $18.50 cost of budget\n")
    assert json.loads(api.run("limits", "reset", "budget", "--json").output) == {"reset": [USAGE]}


def test_lists_policies_that_match_nothing(api: PretendedApi):
    done = api.run("limits", "unmatched", "--days", "30")
    assert api.query == {"days": ["30"]}
    assert done.output.splitlines()[1].split()[:3] == ["old", "rate-limits", "conditions[0].value"]
    assert "names no provider" in done.output
    assert "not everything could be checked" in done.output
    assert json.loads(api.run("limits", "unmatched", "--json").output)["data"] == [UNMATCHED]


def test_lists_what_limits_refused(api: PretendedApi):
    done = api.run("limits", "refused", "--days", "1")
    assert api.query == {"days": ["1"]}
    assert done.output.splitlines()[1].split()[:5] == ["gone", "-", "app", "12", "3"]
    assert "one node only" in done.output
    assert json.loads(api.run("limits", "refused", "--json").output)["data"] == [REFUSAL]


def test_simulates_a_rate_and_a_budget(api: PretendedApi):
    words = ("--condition", "metadata.team!=red", "--by", "api_key", "--type", "requests", "--rate", "60/rpm")
    done = api.run("limits", "simulate", *words, "--sliding")
    assert api.bodies[-1] == {
        "days": 7,
        "conditions": [{"key": "metadata.team", "value": "red", "excludes": True}],
        "group_by": [{"key": "api_key"}],
        "type": "requests",
        "value": 60,
        "unit": "rpm",
        "window": "sliding",
    }
    assert "would have refused 5 of 50 requests (10 %)" in done.output
    assert "2 further groups" in done.output
    assert "too many logs" in done.output
    api.run("limits", "simulate", "--type", "cost", "--budget", "20", "--reset", "30", "--days", "30")
    assert api.bodies[-1] == {
        "days": 30,
        "conditions": [{"key": "model", "value": "*"}],
        "group_by": [{"key": "workspace_id"}],
        "type": "cost",
        "credit_limit": 20.0,
        "periodic_reset_days": 30,
    }
    api.run("limits", "simulate", "--policy", "p-1")
    assert api.bodies[-1] == {"days": 7, "policy_id": "p-1"}


@pytest.mark.parametrize(
    "words", [("--rate", "60"), ("--rate", "x/rpm"), ("--reset", "daily"), ("--condition", "model")], ids=str
)
def test_rejects_options_that_are_no_limit(api: PretendedApi, words: tuple[str, str]):
    done = api.run("limits", "simulate", *words)
    assert done.exit_code == 2
    assert words[1] in done.output
    assert not api.bodies
