"""Limits of workspaces in the snapshot: which limits are published, and which sections are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from penstock.snapshot.build import StoreData
from penstock.snapshot.limit_sections import LimitSections
from penstock.store.snapshot_sections import LIMITS, limits_section
from penstock.store.tables import change_log
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.test_policies import RATE, RATE_POLICY, USAGE, create_policy
from tests.unit.test_limit_fields import FakeClock

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

USAGE_LIMITS = {"credit_limit": 5, "periodic_reset": "weekly"}
RATE_LIMITS = [{"type": "requests", "unit": "rpm", "value": 5}]
BOTH = {"usage_limits": USAGE_LIMITS, "rate_limits": RATE_LIMITS}
SHARED = {"enabled": True, "usage_limits": [{"credit_limit": 3}]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


async def read_rules(
    api: ManagementClient, sections: LimitSections, changed: frozenset[str] | None = None
) -> dict[str, list[str]]:
    """Returns the kind, owner and limit of each rule, by workspace."""
    async with api.database.read_connection() as connection:
        await sections.refresh(connection, changed)
    return {
        workspace: sorted(f"{rule['kind']} {rule['owner']['kind']} {rule['limit']}" for rule in rules)
        for workspace, rules in sections.rules_by_workspace().items()
    }


async def last_change(api: ManagementClient) -> frozenset[str]:
    async with api.database.read_connection() as connection:
        query = select(change_log.c.parts).order_by(change_log.c.number.desc()).limit(1)
        return frozenset(await connection.scalar(query) or ())


async def create_limits(api: ManagementClient, location: str) -> dict[str, str]:
    """Creates a limit of each kind in a workspace; returns the ids of some objects."""
    await api.request_ok("PUT", f"workspaces/{location}", {"usage_limits": [{"credit_limit": 9}]})
    inside = {"workspace_id": location}
    key, _ = await api.create_key("workspace/service", scopes=["completions.write"], **inside, **BOTH)
    await api.create_key("workspace/service", scopes=["completions.write"], **inside)
    virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", "rate_limits": RATE_LIMITS, **inside}
    provider = (await api.request_ok("POST", "virtual-keys", virtual))["slug"]
    return {
        "key": key,
        "provider": provider,
        "usage": await create_policy(api, USAGE, location),
        "rate": await create_policy(api, RATE, location),
        "tools": await create_policy(
            api, RATE, location, target="mcp_tools", conditions=[{"key": "mcp_tool", "value": "a"}]
        ),
    }


def test_limits_of_all_owners_are_published(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        limits = await create_limits(api, first_workspace)
        await api.request_ok("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"})
        own = {"id": first_workspace, "enabled": True, "rate_limits": [{**RATE_LIMITS[0], "value": 8}]}
        await api.request_ok(
            "PUT", "integrations/i/workspaces", {"workspaces": [own], "global_workspace_access": SHARED}
        )
        sections = LimitSections()
        rules = await read_rules(api, sections)
        assert rules[first_workspace] == sorted(
            [
                "usage workspace 9000000000",
                "usage api_key 5000000000",
                "rate api_key 5",
                "rate provider 5",
                "rate integration 8",
                "usage policy 12500000000",
                f"rate policy {RATE_POLICY['value']}",
            ]
        )
        # Other workspaces have the access that is set for all workspaces.
        others = [name for name in rules if name != first_workspace]
        assert second_workspace in others
        assert [rules[name] for name in others] == [["usage integration 3000000000"]] * len(others)
        every = [rule for actual in sections.rules_by_workspace().values() for rule in actual]
        assert len({rule["id"] for rule in every}) == len(every)
        assert {rule["owner"]["slug"] for rule in every} == {
            *("k", "i", limits["provider"], "monthly budget", "fair use"),
            (await api.request_ok("GET", f"workspaces/{first_workspace}"))["slug"],
        }
        for kind, policy in ((USAGE, limits["usage"]), (RATE, limits["rate"])):
            await api.request_ok("DELETE", f"{kind}/{policy}")
        await api.request_ok("DELETE", f"api-keys/{limits['key']}")
        rules = await read_rules(api, sections)
        assert rules[first_workspace] == ["rate integration 8", "rate provider 5", "usage workspace 9000000000"]

    run_scenario(bootstrapped_url, scenario)


def test_change_reads_only_the_section_of_its_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        limits = await create_limits(api, workspace)
        sections, section = LimitSections(), limits_section(workspace)
        before = await read_rules(api, sections)
        changes: list[tuple[str, str, Any, str]] = [
            ("PUT", f"{USAGE}/{limits['usage']}", {"credit_limit": 40}, "usage policy 40000000000"),
            ("PUT", f"{RATE}/{limits['rate']}", {"value": 41}, "rate policy 41"),
            ("PUT", f"api-keys/{limits['key']}", {"usage_limits": {"credit_limit": 42}}, "usage api_key 42000000000"),
            (
                "PUT",
                f"virtual-keys/{limits['provider']}?workspace_id={workspace}",
                {"usage_limits": {"credit_limit": 43}},
                "usage provider 43000000000",
            ),
        ]
        for method, path, body, rule in changes:
            await api.request_ok(method, path, body)
            parts = await last_change(api)
            assert section in parts
            # The changed limit is not read if the change log does not name its section.
            assert rule not in (await read_rules(api, sections, parts - {section}))[workspace]
            assert rule in (await read_rules(api, sections, parts))[workspace]
        assert set(await read_rules(api, sections, frozenset())) == set(before)
        integration = {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"}
        await api.request_ok("POST", "integrations", integration)
        await api.request_ok("PUT", "integrations/i/workspaces", {"global_workspace_access": SHARED})
        parts = await last_change(api)
        assert LIMITS in parts
        assert "usage integration 3000000000" in (await read_rules(api, sections, parts))[workspace]
        await api.request_ok("DELETE", f"workspaces/{workspace}", {"name": "w", "force_delete": True})
        assert workspace not in await read_rules(api, sections, frozenset({section}))

    run_scenario(bootstrapped_url, scenario)


def test_section_is_read_again_when_a_period_ends(bootstrapped_url: Secret, clock: FakeClock):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_policy(api, USAGE, workspace)
        sections = LimitSections()

        async def read_period() -> tuple[int, int]:
            await read_rules(api, sections, frozenset())
            ((rule,),) = sections.rules_by_workspace().values()
            return rule["period"]["start"], rule["period"]["end"]

        await read_rules(api, sections)
        (part,) = sections.parts.values()
        start, end = await read_period()
        assert part.end == end
        clock.set_time("2026-11-22T23:59:59")
        assert await read_period() == (start, end)
        clock.set_time("2026-11-23T00:00:00")
        assert await read_period() == (end, end + 7 * 86_400_000)
        # Another process continues with the sections that were saved.
        parts = sections.parts.items()
        stored = StoreData(
            chunks={name: part.chunk for name, part in parts},
            parts={name: (part.count, part.end) for name, part in parts},
        )
        restored = LimitSections()
        restored.restore(stored)
        assert restored.rules_by_workspace() == sections.rules_by_workspace()

    run_scenario(bootstrapped_url, scenario)
