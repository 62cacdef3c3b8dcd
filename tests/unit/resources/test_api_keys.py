"""What a key may do about itself and others: nothing beyond its own limits, end and bound config."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from penstock import authorization as rights
from penstock.ids import new_id
from penstock.store.tables import api_keys
from tests.unit.resources.managed import JWT, Plane, plane, played, token

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

SERVICE = "api-keys/workspace/service"
VERBS = ("create", "read", "update", "rotate")
SCOPES = ["completions.write", *(f"workspace_service_api_keys.{verb}" for verb in VERBS)]
DAY = 24 * 3600 * 1000


def day(after: int) -> str:
    """The midnight of a day to come, or of one that was."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + timedelta(days=after)).isoformat().replace("+00:00", "Z")


LIMITS: dict[str, Any] = {
    "usage_limits": {"credit_limit": 10, "periodic_reset": "monthly"},
    "rate_limits": [{"type": "requests", "unit": "rpm", "value": 5}],
    "expires_at": day(30),
}
CHILD = {"name": "child", "scopes": ["completions.write"], **LIMITS}
BEYOND: list[dict[str, Any]] = [
    {"usage_limits": None},
    {"usage_limits": {"credit_limit": 11, "periodic_reset": "monthly"}},
    {"usage_limits": {"alert_threshold": 5, "periodic_reset": "monthly"}},
    {"usage_limits": {"credit_limit": 10, "periodic_reset": "weekly"}},
    {"usage_limits": {"credit_limit": 10, "periodic_reset_days": 1}},
    {"usage_limits": {"credit_limit": 10, "type": "tokens", "periodic_reset": "monthly"}},
    {"rate_limits": None},
    {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 6}]},
    {"rate_limits": [{"type": "requests", "unit": "rph", "value": 5}]},
    {"rate_limits": [{"type": "tokens", "unit": "rpm", "value": 5}]},
    {"expires_at": None},
    {"expires_at": day(31)},
]
WITHIN: list[dict[str, Any]] = [
    LIMITS,
    {"usage_limits": {"credit_limit": 9}},
    {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 4}, {"type": "tokens", "unit": "rpm", "value": 9}]},
    {"expires_at": day(29)},
]


def test_a_key_with_limits_lifts_none_of_them_and_gives_them_to_no_other(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        own, limited = await api.key_of("workspace/service", workspace_id=place, scopes=SCOPES, **LIMITS)
        free, _ = await api.key_of("workspace/service", workspace_id=place, scopes=["completions.write"])
        other, _ = await api.key_of("workspace/service", workspace_id=place, **CHILD)
        for more in BEYOND:
            (name,) = more
            for key in (own, other):
                await limited.refused(403, name, "PUT", f"api-keys/{key}", more)
        for less in WITHIN:
            await limited.good("PUT", f"api-keys/{other}", less)
        await limited.good("PUT", f"api-keys/{free}", {"name": "renamed"})
        # What another one spends counts against that one, and who learns its text spends that too.
        for more in (CHILD, {**CHILD, "usage_limits": {"credit_limit": 1}}):
            await limited.refused(403, "usage_limits hold the key", "POST", SERVICE, more)
        for key in (free, other):
            await limited.refused(403, "usage_limits hold the key", "POST", f"api-keys/{key}/rotate", {})
        for key in (own, other):
            await limited.refused(403, "reset", "PUT", f"api-keys/{key}", {"reset_usage": True})
        await limited.good("POST", f"api-keys/{own}/rotate", {})
        # Whoever is not limited may lift all of them.
        await api.good("PUT", f"api-keys/{own}", dict.fromkeys(LIMITS) | {"reset_usage": True})
        await limited.good("POST", SERVICE, {"name": "child", "scopes": ["completions.write"]})

    played(founded_url, scene)


def test_so_does_one_with_rate_limits_and_one_with_an_end_gives_no_later_one(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        rates = {"rate_limits": LIMITS["rate_limits"]}
        _, slow = await api.key_of("workspace/service", workspace_id=place, scopes=SCOPES, **rates)
        child = {"name": "child", "scopes": ["completions.write"]}
        await slow.refused(403, "rate_limits hold the key", "POST", SERVICE, {**child, **rates})
        # One that only warns holds nothing back.
        warned = {"expires_at": day(30), "usage_limits": {"alert_threshold": 5}}
        _, ending = await api.key_of("workspace/service", workspace_id=place, scopes=SCOPES, **warned)
        for late in ({}, {"expires_at": day(31)}):
            await ending.refused(403, "expires_at", "POST", SERVICE, {**child, **late})
        made = await ending.good("POST", SERVICE, {**child, "expires_at": day(29)})
        await ending.good("POST", f"api-keys/{made['id']}/rotate", {})

    played(founded_url, scene)


def test_a_token_of_nobody_who_is_known_leaves_no_key_behind_that_outlives_it(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace()
        organisation = (await api.good("GET", f"workspaces/{place['id']}"))["organisation_id"]
        user = await api.person("u@x.test", workspaces=[{"id": place["id"], "role": "admin"}])
        lasting, _ = await api.key_of("workspace/service", workspace_id=place["id"], scopes=["completions.write"])
        claims = {"organisation_id": organisation, "workspace_slug": place["slug"], "scope": " ".join(SCOPES)}

        def known_as(name: str, end: float) -> Plane:
            return api.holding(token(**claims, sub=name, exp=end))

        soon = time.time() + 600
        stranger = known_as("ci@idp.example", soon)
        child = {"name": "child", "scopes": ["completions.write"]}
        for late in ({"expires_at": None}, {"expires_at": day(2)}):
            await stranger.refused(403, "expires_at", "POST", SERVICE, {**child, **late})
        await stranger.refused(403, "expires_at", "POST", f"api-keys/{lasting}/rotate", {})
        await stranger.refused(403, "expires_at", "PUT", f"api-keys/{lasting}", {"expires_at": day(2)})
        made = await stranger.good("POST", SERVICE, child)
        end = (await api.good("GET", f"api-keys/{made['id']}"))["expires_at"]
        assert abs(datetime.fromisoformat(end).timestamp() - soon) < 0.01
        ends = datetime.fromtimestamp(soon - 60, UTC).isoformat()
        made = await stranger.good("POST", SERVICE, {**child, "expires_at": ends})
        await stranger.good("POST", f"api-keys/{made['id']}/rotate", {})
        await stranger.good("PUT", f"api-keys/{lasting}", {"name": "renamed"})
        await known_as("ci@idp.example", 1e300).good("POST", SERVICE, {**child, "expires_at": day(2)})
        # Who is a user makes keys as with a session.
        await known_as(user, soon).good("POST", SERVICE, child)

    played(founded_url, scene, JWT)


def test_a_key_that_is_bound_to_a_config_binds_those_that_it_makes(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        wanted = {"name": "c", "config": {"provider": "openai"}, "workspace_id": place}
        config, other = [(await api.good("POST", "configs", wanted))["id"] for _ in range(2)]
        bound = {"config_id": config, "allow_config_override": False}
        own, pinned = await api.key_of("workspace/service", workspace_id=place, scopes=SCOPES, defaults=bound)
        child = {"name": "child", "scopes": ["completions.write"]}
        for defaults in (
            {},
            {"defaults": {"config_id": config}},
            {"defaults": {**bound, "config_id": other}},
            {"defaults": {"allow_config_override": False}},
        ):
            await pinned.refused(403, "defaults", "POST", SERVICE, {**child, **defaults})
        for defaults in (None, {"config_id": config}, {**bound, "config_id": other}):
            await pinned.refused(403, "defaults", "PUT", f"api-keys/{own}", {"defaults": defaults})
        await pinned.good("POST", SERVICE, {**child, "defaults": {**bound, "metadata": {"team": "a"}}})
        # One that may bring another config is bound to none.
        _, usual = await api.key_of(
            "workspace/service", workspace_id=place, scopes=SCOPES, defaults={"config_id": config}
        )
        await usual.good("POST", SERVICE, child)

    played(founded_url, scene)


def test_a_limited_key_of_the_organisation_promises_no_keys_without_limits(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        scopes = sorted(rights.SCOPES_BY_KEY_TYPE["organisation-service"])
        _, limited = await api.key_of("organisation/service", scopes=scopes, usage_limits={"credit_limit": 5})
        body = {"email": "a@x.test", "role": "member", "workspaces": [{"id": place, "role": "member"}]}
        along = {"scopes": ["completions.write"]}
        promised = {**body, "workspace_api_key_details": along}
        await limited.refused(403, "usage_limits", "POST", "admin/users/invites", promised)
        made, _ = await api.invited("b@x.test", workspaces=body["workspaces"], workspace_api_key_details=along)
        await limited.refused(403, "usage_limits", "POST", f"admin/users/invites/{made}/resend")
        await limited.good("POST", "admin/users/invites", body)

    played(founded_url, scene)


def test_a_transition_is_shorter_than_the_cadence(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        user = await api.person("u@x.test", workspaces=[{"id": place, "role": "member"}])
        owned = {"workspace_id": place, "user_id": user, "scopes": ["completions.write"]}
        before, _ = await api.key_of("workspace/user", **owned)
        await api.good("PUT", "admin/organisation/settings", {"user_api_key_rotation_period": "weekly"})
        after, _ = await api.key_of("workspace/user", **owned)
        own_policy = {"rotation_policy": {"rotation_period_days": 7}}
        own, _ = await api.key_of("workspace/service", workspace_id=place, scopes=owned["scopes"], **own_policy)
        for key in (before, after, own):
            path = f"api-keys/{key}/rotate"
            for long in (7 * DAY, 365 * DAY):
                await api.refused(400, "key_transition_period_ms", "POST", path, {"key_transition_period_ms": long})
            await api.good("POST", path, {"key_transition_period_ms": 7 * DAY - 1})

    played(founded_url, scene)


def test_the_next_reset_is_to_come_and_stays_where_the_period_does(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        usage = {"credit_limit": 10, "periodic_reset_days": 9}
        body = {"name": "k", "workspace_id": place, "scopes": ["completions.write"], "usage_limits": usage}
        for past in (day(-1), day(0), "2001-01-01T00:00:00Z"):
            spoilt = {**usage, "next_usage_reset_at": past}
            await api.refused(
                400, "usage_limits.next_usage_reset_at", "POST", SERVICE, {**body, "usage_limits": spoilt}
            )
        key = (await api.good("POST", SERVICE, {**body, "usage_limits": {**usage, "next_usage_reset_at": day(3)}}))[
            "id"
        ]
        path, third = f"api-keys/{key}", day(3).replace("Z", ".000Z")

        async def due() -> str:
            return (await api.good("GET", path))["next_usage_reset_at"]

        assert await due() == third
        shown = (await api.good("GET", path))["usage_limits"]
        for same in (usage, shown, {**usage, "credit_limit": 20}):
            await api.good("PUT", path, {"usage_limits": same})
            assert await due() == third
        await api.good("PUT", path, {"usage_limits": {**usage, "periodic_reset_days": 8}})
        assert await due() == day(8).replace("Z", ".000Z")
        # What has passed comes back as it was shown.
        passed = {**shown, "next_usage_reset_at": "2001-01-01T00:00:00.000Z"}
        async with api.database.write_transaction() as connection:
            await connection.execute(update(api_keys).where(api_keys.c.id == key).values(usage_limits=passed))
        await api.good("PUT", path, {"usage_limits": passed})
        async with api.database.read_connection() as connection:
            kept = await connection.scalar(select(api_keys.c.usage_limits).where(api_keys.c.id == key))
        assert kept == passed
        limits = {"usage_limits": [{**usage, "next_usage_reset_at": day(4)}]}
        await api.good("PUT", f"workspaces/{place}", limits)
        await api.good("PUT", f"workspaces/{place}", {"usage_limits": [usage]})
        (found,) = (await api.good("GET", f"workspaces/{place}"))["usage_limits"]
        assert found["next_usage_reset_at"] == day(4).replace("Z", ".000Z")

    played(founded_url, scene)


def test_new_keys_have_the_prefix_and_those_of_before_go_on(founded_url: Secret):
    async def scene() -> None:
        async with plane(founded_url) as api:
            place = (await api.workspace())["id"]
            made = {"name": "k", "scopes": ["models.list"], "workspace_id": place}
            old = await api.good("POST", SERVICE, made)
        async with plane(founded_url, key_prefix="acme") as api:
            texts = [old["key"], (await api.good("POST", SERVICE, made))["key"]]
            texts.append((await api.good("POST", f"api-keys/{old['id']}/rotate", {}))["key"])
            inside = {"workspaces": [{"id": place, "role": "member"}]}
            scopes = {"workspace_api_key_details": {"scopes": ["models.list"]}}
            _, invitation = await api.invited("u@x.test", **inside, **scopes)
            _, answer, _ = await api.accepted(invitation)
            texts += [key["key"] for key in answer["api_keys"]]
            assert [text.startswith("acme") for text in texts] == [False, True, True, True]
            for text in texts:
                await api.holding(text).good("GET", "models")
        async with plane(founded_url, key_prefix="other") as api:
            for text in texts:
                await api.holding(text).good("GET", "models")

    asyncio.run(scene())


def test_metadata_nests_to_a_depth_that_it_can_be_told_in(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        for depth in (8, 9, 200, 900):
            metadata = {"flat": "x", "deep": json.loads("[" * (depth - 1) + '{"a":1}' + "]" * (depth - 1))}
            body = {"name": "k", "scopes": ["completions.write"], "workspace_id": place}
            sent = ("POST", "api-keys/workspace/service", {**body, "defaults": {"metadata": metadata}})
            if depth == 8:
                made = await api.good(*sent)
                assert (await api.good("GET", f"api-keys/{made['id']}"))["defaults"]["metadata"] == metadata
            else:
                await api.refused(400, "defaults.metadata.deep", *sent)

    played(founded_url, scene)


def test_all_keys_that_are_asked_for_by_their_ids_are_on_one_page(founded_url: Secret):
    async def scene(api: Plane) -> None:
        made, _ = await api.key_of("organisation/service", scopes=["configs.list"])
        async with api.database.write_transaction() as connection:
            row = (await connection.execute(select(api_keys).where(api_keys.c.id == made))).mappings().one()
            others = [{**row, "id": new_id()} for _ in range(101)]
            await connection.execute(insert(api_keys), others)
        ids = ",".join(one["id"] for one in others)
        for query, found in (("", 101), ("&page_size=7", 7)):
            page = await api.good("GET", f"api-keys?ids={ids}{query}")
            assert (page["total"], len(page["data"])) == (101, found)

    played(founded_url, scene)
