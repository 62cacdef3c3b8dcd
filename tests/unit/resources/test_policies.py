"""Usage limits policies and rate limits policies: fields, validation, periods and usage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from penstock.ids import new_id
from penstock.limits import policies as limit_policies
from penstock.limits import usage
from penstock.store.limit_tables import limit_usage, usage_limits_policies
from penstock.store.tables import workspaces
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.test_log_pages import read_requests
from tests.unit.test_limit_fields import FakeClock

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

USAGE, RATE = "policies/usage-limits", "policies/rate-limits"
CONDITIONS = [
    {"key": "model", "value": ["@openai/*", "gpt-4o"]},
    {"key": "metadata.team", "value": "a", "excludes": True},
]
GROUPS = [{"key": "api_key"}, {"key": "metadata._user"}]
USAGE_POLICY: dict[str, Any] = {
    "name": "monthly budget",
    "description": "of each user",
    "conditions": CONDITIONS,
    "group_by": GROUPS,
    "type": "cost",
    "credit_limit": 12.5,
    "alert_threshold": 10,
    "periodic_reset": "weekly",
    "enforcement": "hard",
    "dry_run": True,
}
RATE_POLICY: dict[str, Any] = {
    "name": "fair use",
    "description": None,
    "conditions": [*CONDITIONS, {"key": "endpoint_type", "value": "chatComplete"}],
    "group_by": GROUPS,
    "type": "requests",
    "unit": "rpw",
    "value": 60,
    "window": "sliding",
    "dry_run": False,
    "target": "llm",
}
BODIES = {USAGE: USAGE_POLICY, RATE: RATE_POLICY}
MIDNIGHT = "T00:00:00.000Z"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


async def create_policy(api: ManagementClient, path: str, location: str, **fields: object) -> str:
    return (await api.request_ok("POST", path, {**BODIES[path], "workspace_id": location, **fields}))["id"]


async def add_usage(api: ManagementClient, policy: str, start: int, **usage: Any) -> dict[str, str]:
    """Adds entries to the ledger, as the data plane does; returns their ids by value."""
    ids: dict[str, str] = {}
    async with api.database.write_transaction() as connection:
        for value_key, fields in usage.items():
            row = {"id": new_id(), "limit_id": policy, "value_key": value_key, "period_start": start}
            counts = {"requests": 1, "tokens": 2, "nanodollars": 3, "measure": "cost", "resets": 0, "updated_at": start}
            state = {"status": "active", "is_threshold_alert_sent": False, "is_exhausted_alert_sent": False}
            await connection.execute(insert(limit_usage).values({**row, **counts, **state, **fields}))
            ids[value_key] = row["id"]
    return ids


async def read_usage(api: ManagementClient, policy: str) -> dict[str, Any]:
    return (await api.request_ok("GET", f"{USAGE}/{policy}?include_usage=true"))["value_key_usage_map"]


async def created_at(api: ManagementClient, policy: str) -> int:
    async with api.database.read_connection() as connection:
        query = select(usage_limits_policies.c.created_at).where(usage_limits_policies.c.id == policy)
        return await connection.scalar(query) or 0


def test_new_budget_begins_with_the_usage_of_its_groups(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        used = {"ada@x.test": 11.25, "new": 0}
        policy = await create_policy(api, USAGE, workspace, initial_usage=used)
        assert {key: entry["current_usage"] for key, entry in (await read_usage(api, policy)).items()} == {
            "ada@x.test": 11.25
        }
        fetched = await api.request_ok("GET", f"{USAGE}/{policy}")
        assert "initial_usage" not in fetched
        body = {**USAGE_POLICY, "workspace_id": workspace}
        for wrong in ({"type": "requests", "initial_usage": {"a": 1}}, {"initial_usage": {"ä" * 129: 1}}):
            await api.expect_error(400, "initial_usage", "POST", USAGE, {**body, **wrong})
        await api.expect_error(400, "initial_usage", "POST", USAGE, {**body, "initial_usage": {"a": -1}})

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("path", [USAGE, RATE])
def test_created_policy_is_read_listed_updated_and_archived(bootstrapped_url: Secret, path: str):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        created = await api.request_ok("POST", path, {**BODIES[path], "workspace_id": workspace["slug"]})
        kind = "usage-limits-policy" if path == USAGE else "rate-limits-policy"
        assert set(created) == {"id", "object"}
        assert created["object"] == kind
        fetched = await api.request_ok("GET", f"{path}/{created['id']}")
        assert {name: fetched[name] for name in BODIES[path]} == BODIES[path]
        assert (fetched["workspace_id"], fetched["status"], fetched["object"]) == (workspace["id"], "active", kind)
        assert await api.request_ok("GET", f"{path}?workspace_id={workspace['slug']}") == {
            "object": "list",
            "total": 1,
            "data": [fetched],
        }
        change = {"name": None, "description": "new", "conditions": [{"key": "provider", "value": "x"}]}
        assert await api.request_ok("PUT", f"{path}/{created['id']}", change) == {}
        after = await api.request_ok("GET", f"{path}/{created['id']}")
        assert after == {**fetched, **change, "last_updated_at": after["last_updated_at"]}
        # A client may send back everything that it read.
        await api.request_ok("PUT", f"{path}/{created['id']}", after)
        assert await api.request_ok("DELETE", f"{path}/{created['id']}") == {}
        await api.expect_error(404, "archived", "GET", f"{path}/{created['id']}")
        await api.expect_error(404, "archived", "PUT", f"{path}/{created['id']}", {"name": "n"})
        await api.expect_error(404, "archived", "DELETE", f"{path}/{created['id']}")
        assert (await api.request_ok("GET", path))["total"] == 0
        archived = await api.request_ok("GET", f"{path}/{created['id']}?status=archived")
        assert archived["status"] == "archived"
        assert (await api.request_ok("GET", f"{path}?status=archived"))["data"] == [archived]
        actions = [
            (row["resource_type"], row["action"])
            for row in (await api.request_ok("GET", f"audit-logs?workspace_id={workspace['id']}"))["records"]
        ]
        assert actions[:4] == [("policies", verb) for verb in ("delete", "update", "update", "create")]

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("path", [USAGE, RATE])
def test_conditions_that_nothing_meets_are_reported_and_saved(bootstrapped_url: Secret, path: str):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        conditions = [
            {"key": "virtual_key", "value": "mistyped"},
            {"key": "metadata.team", "value": ["a", "b"]},
            {"key": "metadata.team", "value": ["c"]},
            {"key": "metadata.plan", "value": "free"},
            {"key": "metadata.plan", "value": ["paid", "free"], "excludes": True},
        ]
        body = {**BODIES[path], "workspace_id": workspace, "conditions": conditions}
        created = await api.request_ok("POST", path, body)
        warnings = {warning["path"]: warning["message"] for warning in created["warnings"]}
        assert list(warnings) == [f"conditions[{index}].value" for index in (0, 2, 4)]
        assert "'mistyped' names no provider" in warnings["conditions[0].value"]
        assert "earlier condition on 'metadata.team'" in warnings["conditions[2].value"]
        location = f"{path}/{created['id']}"
        assert (await api.request_ok("GET", location))["conditions"] == conditions
        assert await api.request_ok("PUT", location, {"name": "other"}) == {"warnings": created["warnings"]}
        fixed = [
            {"key": "metadata.team", "value": ["a", "b"]},
            {"key": "metadata.team", "value": ["b", "c"]},
            {"key": "metadata.team", "value": "a", "excludes": True},
            {"key": "model", "value": "gpt-*"},
            {"key": "model", "value": "gpt-4*"},
        ]
        assert await api.request_ok("PUT", location, {"conditions": fixed}) == {}

    run_scenario(bootstrapped_url, scenario)


def test_lists_filter_by_type_and_unit(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        cost = await create_policy(api, USAGE, workspace)
        requests = await create_policy(api, USAGE, workspace, type="requests", credit_limit=20)
        weekly = await create_policy(api, RATE, workspace)
        tokens = await create_policy(api, RATE, workspace, type="tokens", unit="rpm")
        for query, actual in {
            f"{USAGE}?type=cost": [cost],
            f"{USAGE}?page_size=1&current_page=1": [cost],
            USAGE: [requests, cost],
            f"{RATE}?type=tokens&unit=rpm": [tokens],
            f"{RATE}?unit=rpw": [weekly],
            f"{RATE}?type=tokens&unit=rpw": [],
        }.items():
            assert [row["id"] for row in (await api.request_ok("GET", query))["data"]] == actual, query
        await api.expect_error(400, "unit", "GET", f"{RATE}?unit=rps")

    run_scenario(bootstrapped_url, scenario)


def test_workspace_key_needs_no_workspace_and_sees_only_its_own(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        scopes = [f"policies.{verb}" for verb in ("create", "read", "update", "delete", "list")]
        _, inside = await api.create_key("workspace/service", workspace_id=first_workspace, scopes=scopes)
        for path in (USAGE, RATE):
            theirs = await create_policy(api, path, second_workspace)
            own = (await inside.request_ok("POST", path, BODIES[path]))["id"]
            assert (await inside.request_ok("GET", f"{path}/{own}"))["workspace_id"] == first_workspace
            assert [row["id"] for row in (await inside.request_ok("GET", path))["data"]] == [own]
            for method in ("GET", "PUT", "DELETE"):
                await inside.expect_error(404, theirs, method, f"{path}/{theirs}", {} if method == "PUT" else None)
            await inside.expect_error(403, "not open", "POST", path, {**BODIES[path], "workspace_id": second_workspace})
            await api.expect_error(400, "workspace_id", "POST", path, BODIES[path])
            await api.expect_error(
                403,
                "organisation",
                "POST",
                path,
                {**BODIES[path], "workspace_id": first_workspace, "organisation_id": new_id()},
            )
        await inside.expect_error(404, "", "GET", f"{USAGE}/{theirs}/entities")

    run_scenario(bootstrapped_url, scenario)


def test_routes_have_aliases_under_v2(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for path in (USAGE, RATE):
            policy = await create_policy(api, path, workspace)
            response = await api.fetch(f"/v2/{path}/{policy}")
            assert (response.status, response.json()["id"]) == (200, policy)

    run_scenario(bootstrapped_url, scenario)


INVALID_BODIES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        USAGE,
        {
            "conditions": [
                {"key": "endpoint_type", "value": "embed"},
                {"key": "modle", "value": "a"},
                {"key": "metadata.", "value": "a"},
                {"key": "model", "value": ["@a/*", "g*t"]},
            ],
            "group_by": [{"key": "api_key"}, {"key": "mcp_tool"}, {"key": "api_key"}],
            "alert_threshold": 20,
            "periodic_reset_days": 3,
            "next_usage_reset_at": "2020-01-01T00:00:00Z",
        },
        {
            "conditions[0].key": "'endpoint_type' is only for rate limits policies; allowed: api_key,",
            "conditions[1].key": "'modle' is not known; did you mean 'model'?",
            "conditions[2].key": "metadata.<name>",
            "conditions[3].value[1]": "'g*t' is not allowed: `*` may only be the last character",
            "group_by[1].key": "'mcp_tool' is only for",
            "group_by[2].key": "'api_key' is there twice",
            "alert_threshold": "is 20; it must be less than credit_limit (12.5)",
            "periodic_reset_days": "3 cannot be combined with periodic_reset",
            "next_usage_reset_at": "2020-01-01T00:00:00.000Z is in the past",
        },
    ),
    (
        USAGE,
        {"type": "tokens", "credit_limit": 99, "alert_threshold": 1.5},
        {
            "credit_limit": "99 is not allowed for tokens: expected a whole number from 100",
            "alert_threshold": "1.5 is not allowed for tokens",
        },
    ),
    (USAGE, {"credit_limit": 0.5}, {"credit_limit": "0.5 is not allowed: expected"}),
    (USAGE, {"credit_limit": 1e12}, {"credit_limit": "expected a number from 1 to 9000000000"}),
    (
        USAGE,
        {
            "conditions": [],
            "group_by": [],
            "type": "cents",
            "periodic_reset": "daily",
            "enforcement": "firm",
            "description": "x" * 501,
            "name": "x" * 256,
            "unit": "rpm",
        },
        {
            "conditions": "has 0 items: expected 1 to 20",
            "group_by": "has 0 items",
            "type": "'cents' is not allowed: expected cost, requests or tokens",
            "periodic_reset": "expected monthly or weekly",
            "enforcement": "expected hard or soft",
            "description": "at most 500 characters",
            "name": "1 to 255 characters",
            "unit": "is an unknown field",
        },
    ),
    (
        RATE,
        {
            "conditions": [
                {"key": "endpoint_type", "value": ["embed", "chatComplet"]},
                {"key": "mcp_server", "value": "a"},
            ],
            "value": 1.5,
        },
        {
            "conditions[0].value[1]": "'chatComplet' is no kind of endpoint; did you mean 'chatComplete'?",
            "conditions[1].key": "'mcp_server' is only for policies with the target 'mcp_tools'",
            "value": "1.5 is not allowed: expected a whole number from 1",
        },
    ),
    (
        RATE,
        {"unit": "rps", "value": 0, "window": "rolling", "target": "all", "conditions": [{"key": "a", "value": []}]},
        {
            "unit": "expected rpd, rph, rpm or rpw",
            "value": "0 is not allowed",
            "window": "expected fixed or sliding",
            "target": "expected llm or mcp_tools",
            "conditions[0].value": "has 0 items",
        },
    ),
]


@pytest.mark.parametrize(("path", "fields", "problems"), INVALID_BODIES)
def test_reports_all_problems_of_a_body(
    bootstrapped_url: Secret, path: str, fields: dict[str, Any], problems: dict[str, str]
):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        status, response, _ = await api("POST", path, {**BODIES[path], "workspace_id": workspace, **fields})
        errors = {item["path"]: item["message"] for item in response["data"]["errors"]}
        assert (status, set(errors)) == (400, set(problems)), errors
        for field, words in problems.items():
            assert words in errors[field], (field, errors[field])
        assert (await api.request_ok("GET", path))["total"] == 0

    run_scenario(bootstrapped_url, scenario)


def test_update_validates_against_the_stored_policy(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        usage = await create_policy(api, USAGE, workspace)
        tools = await create_policy(
            api, RATE, workspace, target="mcp_tools", conditions=[{"key": "mcp_server", "value": "files"}]
        )
        plain = await create_policy(api, RATE, workspace)
        tool = {"conditions": [{"key": "mcp_tool", "value": ["read", "list"]}]}
        kinds = {"conditions": [{"key": "endpoint_type", "value": "embed"}]}
        await api.request_ok("PUT", f"{RATE}/{tools}", tool)
        await api.request_ok("PUT", f"{RATE}/{plain}", kinds)
        await api.expect_error(400, "mcp_tools", "PUT", f"{RATE}/{plain}", tool)
        await api.expect_error(400, "conditions[0].key", "PUT", f"{USAGE}/{usage}", kinds)
        await api.expect_error(400, "conditions", "PUT", f"{USAGE}/{usage}", {"conditions": []})
        await api.expect_error(400, "alert_threshold", "PUT", f"{USAGE}/{usage}", {"credit_limit": 9})
        for fixed in ({"type": "tokens"}, {"group_by": [{"key": "model"}]}):
            await api.expect_error(400, "cannot be changed here", "PUT", f"{USAGE}/{usage}", fixed)
        await api.expect_error(400, "cannot be changed here", "PUT", f"{RATE}/{plain}", {"target": "mcp_tools"})
        await api.request_ok("PUT", f"{RATE}/{plain}", {"unit": "rpm", "value": 7, "window": "fixed", "dry_run": True})
        fetched = await api.request_ok("GET", f"{RATE}/{plain}")
        assert (fetched["unit"], fetched["value"], fetched["window"], fetched["dry_run"]) == ("rpm", 7, "fixed", True)

    run_scenario(bootstrapped_url, scenario)


def test_period_is_replaced_and_its_next_reset_stays(bootstrapped_url: Secret, clock: FakeClock):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        policy = f"{USAGE}/{await create_policy(api, USAGE, workspace)}"

        async def read(*names: str) -> tuple[Any, ...]:
            fetched = await api.request_ok("GET", policy)
            return tuple(fetched[name] for name in names)

        names = ("periodic_reset", "periodic_reset_days", "next_usage_reset_at", "last_reset_at")
        assert await read(*names) == ("weekly", None, f"2026-11-23{MIDNIGHT}", None)
        await api.request_ok("PUT", policy, {"periodic_reset_days": 10})
        assert await read(*names) == (None, 10, f"2026-11-23{MIDNIGHT}", None)
        clock.set_time("2026-12-05T10:00:00")
        assert await read(*names) == (None, 10, f"2026-12-13{MIDNIGHT}", f"2026-12-03{MIDNIGHT}")
        # An update does not move the start of the current period.
        await api.request_ok("PUT", policy, {"credit_limit": 20})
        assert await read(*names) == (None, 10, f"2026-12-13{MIDNIGHT}", f"2026-12-03{MIDNIGHT}")
        await api.request_ok("PUT", policy, {"next_usage_reset_at": "2026-12-07T23:59:00+00:00"})
        assert await read(*names) == (None, 10, f"2026-12-07{MIDNIGHT}", f"2026-12-03{MIDNIGHT}")
        await api.request_ok("PUT", policy, {"periodic_reset_days": None, "name": "n"})
        assert await read(*names) == (None, None, None, f"2026-12-03{MIDNIGHT}")
        await api.request_ok("PUT", policy, {"next_usage_reset_at": f"2026-12-20{MIDNIGHT}"})
        await api.request_ok("PUT", policy, {"credit_limit": 21})
        assert await read(*names) == (None, None, f"2026-12-20{MIDNIGHT}", f"2026-12-03{MIDNIGHT}")
        clock.set_time("2026-12-21T10:00:00")
        assert await read(*names) == (None, None, None, f"2026-12-20{MIDNIGHT}")
        await api.expect_error(400, "in the past", "PUT", policy, {"next_usage_reset_at": f"2026-12-19{MIDNIGHT}"})

    run_scenario(bootstrapped_url, scenario)


def test_usage_is_shown_for_the_current_period_and_reset(bootstrapped_url: Secret, clock: FakeClock):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        policy = await create_policy(api, USAGE, workspace)
        exhausted = {"status": "exhausted", "is_threshold_alert_sent": True, "is_exhausted_alert_sent": True}
        start = await created_at(api, policy)
        ids = await add_usage(
            api, policy, start, ada={"nanodollars": 12_500_000_000, **exhausted}, bob={"nanodollars": 3_000_000_000}
        )
        await add_usage(api, policy, start - 1, old={})
        bob = {
            "current_usage": 3,
            "status": "active",
            "is_threshold_alerts_sent": False,
            "is_exhausted_alerts_sent": False,
        }
        ada = {
            "current_usage": 12.5,
            "status": "exhausted",
            "is_threshold_alerts_sent": True,
            "is_exhausted_alerts_sent": True,
        }
        assert await read_usage(api, policy) == {"ada": ada, "bob": bob}
        assert "value_key_usage_map" not in await api.request_ok("GET", f"{USAGE}/{policy}")
        entities = f"{USAGE}/{policy}/entities"
        rows = [
            {"id": ids["ada"], "value_key": "ada", "current_usage": 12.5, "status": "exhausted"},
            {"id": ids["bob"], "value_key": "bob", "current_usage": 3, "status": "active"},
        ]
        for query, total, actual in (
            ("", 2, rows),
            ("?status=exhausted", 1, rows[:1]),
            ("?search=BO", 1, rows[1:]),
            ("?search=%25", 0, []),
            ("?page_size=1&current_page=1", 2, rows[1:]),
        ):
            assert await api.request_ok("GET", entities + query) == {"object": "list", "total": total, "data": actual}
        await api.expect_error(400, "page_size", "GET", f"{entities}?page_size=101")
        await api.expect_error(404, "no entity", "PUT", f"{entities}/{new_id()}/reset")
        cleared = {**bob, "current_usage": 0}
        assert await api.request_ok("PUT", f"{entities}/{ids['ada']}/reset") == {}
        assert await read_usage(api, policy) == {"ada": cleared, "bob": bob}
        await api.request_ok("PUT", f"{USAGE}/{policy}", {"reset_usage_for_value": "bob"})
        await api.request_ok("PUT", f"{USAGE}/{policy}", {"reset_usage_for_value": "nobody"})
        assert await read_usage(api, policy) == {"ada": cleared, "bob": cleared}
        records = (await api.request_ok("GET", f"audit-logs?workspace_id={workspace}"))["records"]
        resets = [row for row in records if row["action"] == "reset"]
        assert [(row["before"]["value_key"], row["before"]["current_usage"]) for row in resets] == [
            ("bob", 3),
            ("ada", 12.5),
        ]
        # The next period follows without a write.
        clock.set_time("2026-11-23T00:00:01")
        assert await read_usage(api, policy) == {}

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize(
    ("change", "ada", "bob"),
    [
        ({"credit_limit": 30}, ("active", False, False), ("active", False, False)),
        ({"credit_limit": 11}, ("exhausted", True, True), ("active", True, False)),
        ({"alert_threshold": 11}, ("exhausted", False, True), ("active", False, False)),
        ({"alert_threshold": None}, ("exhausted", False, True), ("active", False, False)),
        ({"alert_threshold": 9}, ("exhausted", True, True), ("active", True, False)),
        ({"name": "other"}, ("exhausted", True, True), ("active", True, False)),
    ],
)
def test_raised_limit_reactivates_and_raised_threshold_clears_its_alert(
    bootstrapped_url: Secret, change: dict[str, Any], ada: tuple[Any, ...], bob: tuple[Any, ...]
):
    async def scenario(api: ManagementClient) -> None:
        policy = await create_policy(api, USAGE, (await api.create_workspace())["id"])
        sent = {"is_threshold_alert_sent": True}
        exhausted = {"status": "exhausted", "is_exhausted_alert_sent": True, **sent}
        await add_usage(api, policy, await created_at(api, policy), ada=exhausted, bob=sent)
        await api.request_ok("PUT", f"{USAGE}/{policy}", change)
        displayed = await read_usage(api, policy)
        states = {
            name: (item["status"], item["is_threshold_alerts_sent"], item["is_exhausted_alerts_sent"])
            for name, item in displayed.items()
        }
        assert states == {"ada": ada, "bob": bob}

    run_scenario(bootstrapped_url, scenario)


def test_number_of_active_policies_is_limited(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limit_policies, "MAX_ACTIVE_POLICIES", 2)

    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        policy = await create_policy(api, USAGE, first_workspace)
        await create_policy(api, RATE, first_workspace)
        await create_policy(api, RATE, second_workspace)
        for path in (USAGE, RATE):
            body = {**BODIES[path], "workspace_id": first_workspace}
            await api.expect_error(409, "has 2 active policies; at most 2 are allowed", "POST", path, body)
        await api.request_ok("DELETE", f"{USAGE}/{policy}")
        await create_policy(api, RATE, first_workspace)

    run_scenario(bootstrapped_url, scenario)


def test_map_of_usage_is_limited_to_the_highest(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "MAX_MAPPED_VALUES", 2)

    async def scenario(api: ManagementClient) -> None:
        policy = await create_policy(api, USAGE, (await api.create_workspace())["id"])
        start = await created_at(api, policy)
        await add_usage(api, policy, start, **{name: {"nanodollars": ord(name)} for name in "abc"})
        assert list(await read_usage(api, policy)) == ["c", "b"]

    run_scenario(bootstrapped_url, scenario)


def test_policies_end_with_their_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        policy = await create_policy(api, USAGE, workspace["id"])
        await create_policy(api, RATE, workspace["id"])
        await add_usage(api, policy, 1, a={})
        path = f"workspaces/{workspace['id']}"
        await api.expect_error(409, "1 usage_limits_policies, 1 rate_limits_policies", "DELETE", path)
        await api.request_ok("DELETE", path, {"name": workspace["name"], "force_delete": True})
        for where in (USAGE, RATE):
            assert (await api.request_ok("GET", where))["total"] == 0
        async with api.database.read_connection() as connection:
            assert (await connection.execute(select(limit_usage))).all() == []
            assert (await connection.execute(select(workspaces.c.status).order_by(workspaces.c.id))).all()

    run_scenario(bootstrapped_url, scenario)


def test_if_match_protects_policies(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for path in (USAGE, RATE):
            policy = f"{path}/{await create_policy(api, path, workspace)}"
            _, _, headers = await api("GET", policy)
            assert (await api("PUT", policy, {"name": "a"}, if_match=headers["etag"]))[0] == 200
            assert (await api("PUT", policy, {"name": "b"}, if_match=headers["etag"]))[0] == 412
            assert (await api("DELETE", policy, if_match=headers["etag"]))[0] == 412
            assert (await api.request_ok("GET", policy))["name"] == "a"
            reset = f"{policy}/entities/{new_id()}/reset"
            assert path == RATE or (await api("PUT", reset, if_match=headers["etag"]))[0] == 412

    run_scenario(bootstrapped_url, scenario)


def test_endpoint_types_are_operations_of_the_data_plane():
    source = (Path(__file__).parents[3] / "rust/llm/src/operation.rs").read_text()
    operations = set(re.findall(r'^    \(\w+, "\w+", "[^"]+", "(\w+)", \w+\),$', source, re.MULTILINE))
    internal = {name for name in operations if re.search("Batch(Job|Object|Dataset)$", name)}
    assert len(operations) > 50
    assert set(limit_policies.ENDPOINT_TYPES) == operations - internal | {"proxy"}


def test_requests_of_the_page_work(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        scopes = [f"policies.{verb}" for verb in ("create", "read", "update", "delete")]
        _, client = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
        requests = read_requests("docs/policies.md")
        assert len(requests) >= 7
        policy = ""
        for method, path, body in requests:
            created = await client.request_ok(method, path.replace("$POLICY_ID", policy), body)
            policy = created["id"] if path == USAGE else policy

    run_scenario(bootstrapped_url, scenario)
