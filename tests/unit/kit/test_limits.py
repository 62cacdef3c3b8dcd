"""When counting begins anew: always a moment that is to come, whatever was so when the limit was written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock import schemas
from penstock.schemas import next_reset
from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


class Clock:
    """What time it is, as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set("2026-11-18T10:00:00")
        monkeypatch.setattr(schemas.time, "time_ns", lambda: self.moment)

    def set(self, moment: str) -> None:
        self.moment = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


EXPIRING = {"scopes": ["completions.write"], "expires_at": "2026-11-20T10:00:00.123Z"}
PAST, MIDNIGHT = "2026-10-05T00:00:00.000Z", "T00:00:00.000Z"


@pytest.mark.parametrize(
    ("limit", "due"),
    [
        ({"periodic_reset": "weekly", "next_usage_reset_at": PAST}, f"2026-11-23{MIDNIGHT}"),
        ({"periodic_reset": "monthly", "next_usage_reset_at": PAST}, f"2026-12-01{MIDNIGHT}"),
        # 44 days later: after whole periods.
        ({"periodic_reset_days": 10, "next_usage_reset_at": PAST}, f"2026-11-24{MIDNIGHT}"),
        ({"periodic_reset_days": 44, "next_usage_reset_at": PAST}, f"2027-01-01{MIDNIGHT}"),
        ({"periodic_reset_days": 1, "next_usage_reset_at": PAST}, f"2026-11-19{MIDNIGHT}"),
        ({"periodic_reset": "weekly", "next_usage_reset_at": f"2026-12-03{MIDNIGHT}"}, f"2026-12-03{MIDNIGHT}"),
        ({"next_usage_reset_at": PAST}, None),
        ({"next_usage_reset_at": None}, None),
    ],
)
@pytest.mark.usefixtures("clock")
def test_the_next_reset_is_to_come(limit: dict[str, Any], due: str | None):
    assert next_reset(limit) == due


WEEKLY = {"credit_limit": 5, "periodic_reset": "weekly"}
FIRST, NEXT = f"2026-11-23{MIDNIGHT}", f"2026-12-07{MIDNIGHT}"


def test_it_is_read_so_and_written_so_when_the_limit_is_sent_again(founded_url: Secret, clock: Clock):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        inside = f"?workspace_id={place}"
        key, _ = await api.key_of("workspace/service", workspace_id=place, scopes=["logs.write"], usage_limits=WEEKLY)
        virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", "workspace_id": place}
        made = await api.good("POST", "virtual-keys", {**virtual, "usage_limits": WEEKLY})
        await api.good("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"})
        share = {"enabled": True, "usage_limits": [WEEKLY]}
        said = {"workspaces": [{"id": place, **share}], "global_workspace_access": share}
        paths = {
            f"api-keys/{key}": WEEKLY,
            f"virtual-keys/{made['slug']}{inside}": WEEKLY,
            f"workspaces/{place}": [WEEKLY],
        }
        await api.good("PUT", f"workspaces/{place}", {"usage_limits": [WEEKLY]})
        await api.good("PUT", "integrations/i/workspaces", said)

        async def resets() -> set[str]:
            shown = [(await api.good("GET", path))["usage_limits"] for path in paths]
            access = await api.good("GET", "integrations/i/workspaces")
            shown += [access["workspaces"][0]["usage_limits"], access["global_workspace_access"]["usage_limits"]]
            top = (await api.good("GET", f"api-keys/{key}"))["next_usage_reset_at"]
            return {
                top,
                *(
                    limit["next_usage_reset_at"]
                    for limit in (one[0] if isinstance(one, list) else one for one in shown)
                ),
            }

        assert await resets() == {FIRST}
        clock.set("2026-12-01T10:00:00")
        api.forget()
        assert await resets() == {NEXT}
        for path, limits in paths.items():
            await api.good("PUT", path, {"usage_limits": limits})
        await api.good("PUT", "integrations/i/workspaces", said)
        # Before it was written anew, another one would be told now.
        clock.set("2026-11-18T10:00:00")
        api.forget()
        assert await resets() == {NEXT}

    played(founded_url, scene)


def test_an_end_that_has_passed_is_no_news_when_it_is_sent_back(founded_url: Secret, clock: Clock):
    async def scene(api: Plane) -> None:
        made, _ = await api.key_of("workspace/service", workspace_id=(await api.workspace())["id"], **EXPIRING)
        path = f"api-keys/{made}"
        clock.set("2026-11-21T10:00:00")
        shown = await api.good("GET", path)
        assert shown["status"] == "expired"
        await api.good("PUT", path, {"name": "renamed", "expires_at": shown["expires_at"]})
        assert (await api.good("GET", path))["expires_at"] == shown["expires_at"]
        await api.refused(400, "expires_at", "PUT", path, {"expires_at": "2026-11-20T10:00:01Z"})

    played(founded_url, scene)
