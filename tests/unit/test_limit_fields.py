"""Reset times of usage limits. The next reset is always in the future, whatever was stored with the limit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock import schemas
from penstock.schemas import next_reset
from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


class FakeClock:
    """Replaces the current time with one that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_time("2026-11-18T10:00:00")
        monkeypatch.setattr(schemas.time, "time_ns", lambda: self.moment)

    def set_time(self, moment: str) -> None:
        self.moment = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


EXPIRING_KEY_FIELDS = {"scopes": ["completions.write"], "expires_at": "2026-11-20T10:00:00.123Z"}
PAST, MIDNIGHT = "2026-10-05T00:00:00.000Z", "T00:00:00.000Z"


@pytest.mark.parametrize(
    ("limit", "due"),
    [
        ({"periodic_reset": "weekly", "next_usage_reset_at": PAST}, f"2026-11-23{MIDNIGHT}"),
        ({"periodic_reset": "monthly", "next_usage_reset_at": PAST}, f"2026-12-01{MIDNIGHT}"),
        # The next reset is a whole number of periods after the stored one.
        ({"periodic_reset_days": 10, "next_usage_reset_at": PAST}, f"2026-11-24{MIDNIGHT}"),
        ({"periodic_reset_days": 44, "next_usage_reset_at": PAST}, f"2027-01-01{MIDNIGHT}"),
        ({"periodic_reset_days": 1, "next_usage_reset_at": PAST}, f"2026-11-19{MIDNIGHT}"),
        ({"periodic_reset": "weekly", "next_usage_reset_at": f"2026-12-03{MIDNIGHT}"}, f"2026-12-03{MIDNIGHT}"),
        ({"next_usage_reset_at": PAST}, None),
        ({"next_usage_reset_at": None}, None),
    ],
)
@pytest.mark.usefixtures("clock")
def test_next_reset_is_in_the_future(limit: dict[str, Any], due: str | None):
    assert next_reset(limit) == due


WEEKLY_LIMIT = {"credit_limit": 5, "periodic_reset": "weekly"}
FIRST, NEXT = f"2026-11-23{MIDNIGHT}", f"2026-12-07{MIDNIGHT}"


def test_next_reset_is_computed_on_read_and_stored_on_update(bootstrapped_url: Secret, clock: FakeClock):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        inside = f"?workspace_id={workspace}"
        key, _ = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=["logs.write"], usage_limits=WEEKLY_LIMIT
        )
        virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", "workspace_id": workspace}
        created = await api.request_ok("POST", "virtual-keys", {**virtual, "usage_limits": WEEKLY_LIMIT})
        await api.request_ok("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"})
        share = {"enabled": True, "usage_limits": [WEEKLY_LIMIT]}
        content = {"workspaces": [{"id": workspace, **share}], "global_workspace_access": share}
        paths = {
            f"api-keys/{key}": WEEKLY_LIMIT,
            f"virtual-keys/{created['slug']}{inside}": WEEKLY_LIMIT,
            f"workspaces/{workspace}": [WEEKLY_LIMIT],
        }
        await api.request_ok("PUT", f"workspaces/{workspace}", {"usage_limits": [WEEKLY_LIMIT]})
        await api.request_ok("PUT", "integrations/i/workspaces", content)

        async def fetch_reset_times() -> set[str]:
            listed = [(await api.request_ok("GET", path))["usage_limits"] for path in paths]
            access = await api.request_ok("GET", "integrations/i/workspaces")
            listed += [access["workspaces"][0]["usage_limits"], access["global_workspace_access"]["usage_limits"]]
            top = (await api.request_ok("GET", f"api-keys/{key}"))["next_usage_reset_at"]
            return {
                top,
                *(
                    limit["next_usage_reset_at"]
                    for limit in (item[0] if isinstance(item, list) else item for item in listed)
                ),
            }

        assert await fetch_reset_times() == {FIRST}
        clock.set_time("2026-12-01T10:00:00")
        api.clear_caller_cache()
        assert await fetch_reset_times() == {NEXT}
        for path, limits in paths.items():
            await api.request_ok("PUT", path, {"usage_limits": limits})
        await api.request_ok("PUT", "integrations/i/workspaces", content)
        # Without the update, an earlier reset would be returned now.
        clock.set_time("2026-11-18T10:00:00")
        api.clear_caller_cache()
        assert await fetch_reset_times() == {NEXT}

    run_scenario(bootstrapped_url, scenario)


def test_unchanged_past_expiry_is_accepted(bootstrapped_url: Secret, clock: FakeClock):
    async def scenario(api: ManagementClient) -> None:
        created, _ = await api.create_key(
            "workspace/service", workspace_id=(await api.create_workspace())["id"], **EXPIRING_KEY_FIELDS
        )
        path = f"api-keys/{created}"
        clock.set_time("2026-11-21T10:00:00")
        listed = await api.request_ok("GET", path)
        assert listed["status"] == "expired"
        await api.request_ok("PUT", path, {"name": "renamed", "expires_at": listed["expires_at"]})
        assert (await api.request_ok("GET", path))["expires_at"] == listed["expires_at"]
        await api.expect_error(400, "expires_at", "PUT", path, {"expires_at": "2026-11-20T10:00:01Z"})

    run_scenario(bootstrapped_url, scenario)
