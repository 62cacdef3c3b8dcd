"""Rights of a key over itself and other keys: nothing beyond its own limits, expiry and bound config."""

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
from tests.unit.resources.management_api import (
    JWT_SETTINGS,
    ManagementClient,
    management_client,
    run_scenario,
    sign_token,
)

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

SERVICE_KEYS_PATH = "api-keys/workspace/service"
VERBS = ("create", "read", "update", "rotate")
KEY_SCOPES = ["completions.write", *(f"workspace_service_api_keys.{verb}" for verb in VERBS)]
DAY_MS = 24 * 3600 * 1000


def midnight_in_days(after: int) -> str:
    """Returns the UTC midnight that many days from today; negative for the past."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + timedelta(days=after)).isoformat().replace("+00:00", "Z")


KEY_LIMITS: dict[str, Any] = {
    "usage_limits": {"credit_limit": 10, "periodic_reset": "monthly"},
    "rate_limits": [{"type": "requests", "unit": "rpm", "value": 5}],
    "expires_at": midnight_in_days(30),
}
CHILD_KEY = {"name": "child", "scopes": ["completions.write"], **KEY_LIMITS}
CHANGES_BEYOND_LIMITS: list[dict[str, Any]] = [
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
    {"expires_at": midnight_in_days(31)},
]
CHANGES_WITHIN_LIMITS: list[dict[str, Any]] = [
    KEY_LIMITS,
    {"usage_limits": {"credit_limit": 9}},
    {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 4}, {"type": "tokens", "unit": "rpm", "value": 9}]},
    {"expires_at": midnight_in_days(29)},
]


def test_limited_key_cannot_lift_limits_or_give_more(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        own, limited = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=KEY_SCOPES, **KEY_LIMITS
        )
        free, _ = await api.create_key("workspace/service", workspace_id=workspace, scopes=["completions.write"])
        other, _ = await api.create_key("workspace/service", workspace_id=workspace, **CHILD_KEY)
        for more in CHANGES_BEYOND_LIMITS:
            (name,) = more
            for key in (own, other):
                await limited.expect_error(403, name, "PUT", f"api-keys/{key}", more)
        for less in CHANGES_WITHIN_LIMITS:
            await limited.request_ok("PUT", f"api-keys/{other}", less)
        await limited.request_ok("PUT", f"api-keys/{free}", {"name": "renamed"})
        # Usage counts against the key that is used, so a limited key must not learn the secret of another key.
        for more in (CHILD_KEY, {**CHILD_KEY, "usage_limits": {"credit_limit": 1}}):
            await limited.expect_error(403, "usage_limits apply to the calling key", "POST", SERVICE_KEYS_PATH, more)
        for key in (free, other):
            await limited.expect_error(
                403, "usage_limits apply to the calling key", "POST", f"api-keys/{key}/rotate", {}
            )
        for key in (own, other):
            await limited.expect_error(403, "reset", "PUT", f"api-keys/{key}", {"reset_usage": True})
        await limited.request_ok("POST", f"api-keys/{own}/rotate", {})
        # A key without limits may lift all of them.
        await api.request_ok("PUT", f"api-keys/{own}", dict.fromkeys(KEY_LIMITS) | {"reset_usage": True})
        await limited.request_ok("POST", SERVICE_KEYS_PATH, {"name": "child", "scopes": ["completions.write"]})

    run_scenario(bootstrapped_url, scenario)


def test_rate_limits_and_expiry_also_bind_created_keys(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        rates = {"rate_limits": KEY_LIMITS["rate_limits"]}
        _, slow = await api.create_key("workspace/service", workspace_id=workspace, scopes=KEY_SCOPES, **rates)
        child = {"name": "child", "scopes": ["completions.write"]}
        await slow.expect_error(
            403, "rate_limits apply to the calling key", "POST", SERVICE_KEYS_PATH, {**child, **rates}
        )
        # A limit that only alerts does not restrict the key.
        warned = {"expires_at": midnight_in_days(30), "usage_limits": {"alert_threshold": 5}}
        _, ending = await api.create_key("workspace/service", workspace_id=workspace, scopes=KEY_SCOPES, **warned)
        for late in ({}, {"expires_at": midnight_in_days(31)}):
            await ending.expect_error(403, "expires_at", "POST", SERVICE_KEYS_PATH, {**child, **late})
        created = await ending.request_ok("POST", SERVICE_KEYS_PATH, {**child, "expires_at": midnight_in_days(29)})
        await ending.request_ok("POST", f"api-keys/{created['id']}/rotate", {})

    run_scenario(bootstrapped_url, scenario)


def test_token_of_an_unknown_user_creates_no_key_beyond_its_expiry(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        organisation = (await api.request_ok("GET", f"workspaces/{workspace['id']}"))["organisation_id"]
        user = await api.create_user("u@x.test", workspaces=[{"id": workspace["id"], "role": "admin"}])
        lasting, _ = await api.create_key(
            "workspace/service", workspace_id=workspace["id"], scopes=["completions.write"]
        )
        claims = {"organisation_id": organisation, "workspace_slug": workspace["slug"], "scope": " ".join(KEY_SCOPES)}

        def client_with_token(name: str, end: float) -> ManagementClient:
            return api.with_key(sign_token(**claims, sub=name, exp=end))

        soon = time.time() + 600
        other_client = client_with_token("ci@idp.example", soon)
        child = {"name": "child", "scopes": ["completions.write"]}
        for late in ({"expires_at": None}, {"expires_at": midnight_in_days(2)}):
            await other_client.expect_error(403, "expires_at", "POST", SERVICE_KEYS_PATH, {**child, **late})
        await other_client.expect_error(403, "expires_at", "POST", f"api-keys/{lasting}/rotate", {})
        await other_client.expect_error(
            403, "expires_at", "PUT", f"api-keys/{lasting}", {"expires_at": midnight_in_days(2)}
        )
        created = await other_client.request_ok("POST", SERVICE_KEYS_PATH, child)
        end = (await api.request_ok("GET", f"api-keys/{created['id']}"))["expires_at"]
        # The fraction of `exp` is cut off.
        assert datetime.fromisoformat(end).timestamp() == int(soon)
        ends = datetime.fromtimestamp(soon - 60, UTC).isoformat()
        created = await other_client.request_ok("POST", SERVICE_KEYS_PATH, {**child, "expires_at": ends})
        await other_client.request_ok("POST", f"api-keys/{created['id']}/rotate", {})
        await other_client.request_ok("PUT", f"api-keys/{lasting}", {"name": "renamed"})
        await client_with_token("ci@idp.example", 1e15).request_ok(
            "POST", SERVICE_KEYS_PATH, {**child, "expires_at": midnight_in_days(2)}
        )
        # With a token of a known user, keys are created as with a session, without an enforced expiry.
        await client_with_token(user, soon).request_ok("POST", SERVICE_KEYS_PATH, child)

    run_scenario(bootstrapped_url, scenario, JWT_SETTINGS)


def test_config_bound_key_binds_the_keys_it_creates(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        expected = {"name": "c", "config": {"provider": "openai"}, "workspace_id": workspace}
        config, other = [(await api.request_ok("POST", "configs", expected))["id"] for _ in range(2)]
        bound = {"config_id": config, "allow_config_override": False}
        own, pinned = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=KEY_SCOPES, defaults=bound
        )
        child = {"name": "child", "scopes": ["completions.write"]}
        for defaults in (
            {},
            {"defaults": {"config_id": config}},
            {"defaults": {**bound, "config_id": other}},
            {"defaults": {"allow_config_override": False}},
        ):
            await pinned.expect_error(403, "defaults", "POST", SERVICE_KEYS_PATH, {**child, **defaults})
        for defaults in (None, {"config_id": config}, {**bound, "config_id": other}):
            await pinned.expect_error(403, "defaults", "PUT", f"api-keys/{own}", {"defaults": defaults})
        await pinned.request_ok("POST", SERVICE_KEYS_PATH, {**child, "defaults": {**bound, "metadata": {"team": "a"}}})
        # A key that may override its default config does not bind the keys that it creates.
        _, usual = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=KEY_SCOPES, defaults={"config_id": config}
        )
        await usual.request_ok("POST", SERVICE_KEYS_PATH, child)

    run_scenario(bootstrapped_url, scenario)


def test_limited_key_cannot_invite_users_with_unlimited_keys(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        scopes = sorted(rights.SCOPES_BY_KEY_TYPE["organisation-service"])
        _, limited = await api.create_key("organisation/service", scopes=scopes, usage_limits={"credit_limit": 5})
        body = {"email": "a@x.test", "role": "member", "workspaces": [{"id": workspace, "role": "member"}]}
        along = {"scopes": ["completions.write"]}
        promised = {**body, "workspace_api_key_details": along}
        await limited.expect_error(403, "usage_limits", "POST", "admin/users/invites", promised)
        created, _ = await api.invite_user("b@x.test", workspaces=body["workspaces"], workspace_api_key_details=along)
        await limited.expect_error(403, "usage_limits", "POST", f"admin/users/invites/{created}/resend")
        await limited.request_ok("POST", "admin/users/invites", body)

    run_scenario(bootstrapped_url, scenario)


def test_transition_is_shorter_than_the_rotation_period(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("u@x.test", workspaces=[{"id": workspace, "role": "member"}])
        owned = {"workspace_id": workspace, "user_id": user, "scopes": ["completions.write"]}
        before, _ = await api.create_key("workspace/user", **owned)
        await api.request_ok("PUT", "admin/organisation/settings", {"user_api_key_rotation_period": "weekly"})
        after, _ = await api.create_key("workspace/user", **owned)
        own_policy = {"rotation_policy": {"rotation_period_days": 7}}
        own, _ = await api.create_key("workspace/service", workspace_id=workspace, scopes=owned["scopes"], **own_policy)
        for key in (before, after, own):
            path = f"api-keys/{key}/rotate"
            for long in (7 * DAY_MS, 365 * DAY_MS):
                await api.expect_error(
                    400, "key_transition_period_ms", "POST", path, {"key_transition_period_ms": long}
                )
            await api.request_ok("POST", path, {"key_transition_period_ms": 7 * DAY_MS - 1})

    run_scenario(bootstrapped_url, scenario)


def test_next_reset_is_in_the_future_and_stays_with_its_period(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        usage = {"credit_limit": 10, "periodic_reset_days": 9}
        body = {"name": "k", "workspace_id": workspace, "scopes": ["completions.write"], "usage_limits": usage}
        for past in (midnight_in_days(-1), midnight_in_days(0), "2001-01-01T00:00:00Z"):
            broken = {**usage, "next_usage_reset_at": past}
            await api.expect_error(
                400, "usage_limits.next_usage_reset_at", "POST", SERVICE_KEYS_PATH, {**body, "usage_limits": broken}
            )
        key = (
            await api.request_ok(
                "POST",
                SERVICE_KEYS_PATH,
                {**body, "usage_limits": {**usage, "next_usage_reset_at": midnight_in_days(3)}},
            )
        )["id"]
        path, third = f"api-keys/{key}", midnight_in_days(3).replace("Z", ".000Z")

        async def fetch_next_reset() -> str:
            return (await api.request_ok("GET", path))["next_usage_reset_at"]

        assert await fetch_next_reset() == third
        fetched = (await api.request_ok("GET", path))["usage_limits"]
        for same in (usage, fetched, {**usage, "credit_limit": 20}):
            await api.request_ok("PUT", path, {"usage_limits": same})
            assert await fetch_next_reset() == third
        # A new period begins when the current one ends.
        await api.request_ok("PUT", path, {"usage_limits": {**usage, "periodic_reset_days": 8}})
        assert await fetch_next_reset() == third
        # A past reset time that is sent back unchanged is accepted.
        passed = {**fetched, "next_usage_reset_at": "2001-01-01T00:00:00.000Z"}
        async with api.database.write_transaction() as connection:
            await connection.execute(update(api_keys).where(api_keys.c.id == key).values(usage_limits=passed))
        await api.request_ok("PUT", path, {"usage_limits": passed})
        async with api.database.read_connection() as connection:
            remaining = await connection.scalar(select(api_keys.c.usage_limits).where(api_keys.c.id == key))
        assert remaining == passed
        limits = {"usage_limits": [{**usage, "next_usage_reset_at": midnight_in_days(4)}]}
        await api.request_ok("PUT", f"workspaces/{workspace}", limits)
        await api.request_ok("PUT", f"workspaces/{workspace}", {"usage_limits": [usage]})
        (actual,) = (await api.request_ok("GET", f"workspaces/{workspace}"))["usage_limits"]
        assert actual["next_usage_reset_at"] == midnight_in_days(4).replace("Z", ".000Z")

    run_scenario(bootstrapped_url, scenario)


def test_new_keys_have_the_prefix_and_old_ones_stay_valid(bootstrapped_url: Secret):
    async def scenario() -> None:
        async with management_client(bootstrapped_url) as api:
            workspace = (await api.create_workspace())["id"]
            body = {"name": "k", "scopes": ["models.list"], "workspace_id": workspace}
            old = await api.request_ok("POST", SERVICE_KEYS_PATH, body)
        async with management_client(bootstrapped_url, key_prefix="acme") as api:
            texts = [old["key"], (await api.request_ok("POST", SERVICE_KEYS_PATH, body))["key"]]
            texts.append((await api.request_ok("POST", f"api-keys/{old['id']}/rotate", {}))["key"])
            inside: dict[str, Any] = {"workspaces": [{"id": workspace, "role": "member"}]}
            scopes: dict[str, Any] = {"workspace_api_key_details": {"scopes": ["models.list"]}}
            _, invitation = await api.invite_user("u@x.test", **inside, **scopes)
            _, response, _ = await api.accept_invite(invitation)
            texts += [key["key"] for key in response["api_keys"]]
            assert [text.startswith("acme") for text in texts] == [False, True, True, True]
            for text in texts:
                await api.with_key(text).request_ok("GET", "models")
        async with management_client(bootstrapped_url, key_prefix="other") as api:
            for text in texts:
                await api.with_key(text).request_ok("GET", "models")

    asyncio.run(scenario())


def test_metadata_nesting_depth_is_limited(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for depth in (8, 9, 200, 900):
            metadata = {"flat": "x", "deep": json.loads("[" * (depth - 1) + '{"a":1}' + "]" * (depth - 1))}
            body = {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
            sent = ("POST", "api-keys/workspace/service", {**body, "defaults": {"metadata": metadata}})
            if depth == 8:
                created = await api.request_ok(*sent)
                assert (await api.request_ok("GET", f"api-keys/{created['id']}"))["defaults"]["metadata"] == metadata
            else:
                await api.expect_error(400, "defaults.metadata.deep", *sent)

    run_scenario(bootstrapped_url, scenario)


def test_keys_listed_by_id_are_on_one_page(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        key, _ = await api.create_key("organisation/service", scopes=["configs.list"])
        async with api.database.write_transaction() as connection:
            row = (await connection.execute(select(api_keys).where(api_keys.c.id == key))).mappings().one()
            others = [{**row, "id": new_id()} for _ in range(101)]
            await connection.execute(insert(api_keys), others)
        ids = ",".join(other["id"] for other in others)
        for query, actual in (("", 101), ("&page_size=7", 7)):
            page = await api.request_ok("GET", f"api-keys?ids={ids}{query}")
            assert (page["total"], len(page["data"])) == (101, actual)

    run_scenario(bootstrapped_url, scenario)
