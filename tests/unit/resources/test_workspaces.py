"""Limits of workspaces, who may loosen them, and the ETags of workspace responses."""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING, Any

from tests.unit.resources.management_api import JWT_SETTINGS, PASSWORD, ManagementClient, run_scenario, sign_token
from tests.unit.resources.prompted import SMALL

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret

USAGE, RATE = {"credit_limit": 5}, {"type": "requests", "unit": "rpm", "value": 5}
WORKSPACE_LIMITS: dict[str, Any] = {
    "usage_limits": [USAGE],
    "rate_limits": [RATE],
    "settings": {"block_inline_config": True, "user_api_key_rotation_period": 7},
}
LOOSER_LIMITS: list[dict[str, Any]] = [
    {"usage_limits": None},
    {"usage_limits": [{"credit_limit": 6}]},
    {"rate_limits": None},
    {"rate_limits": [{**RATE, "value": 6}]},
    {"settings": {"block_inline_config": False}},
    {"settings": {"block_inline_config": None}},
    {"settings": {"user_api_key_rotation_period": None}},
    {"settings": {"user_api_key_rotation_period": 8}},
]


def test_workspace_key_cannot_loosen_the_workspaces_limits(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        path = f"workspaces/{workspace}"
        await api.request_ok("PUT", path, WORKSPACE_LIMITS)
        scopes = ["workspaces.read", "workspaces.update"]
        _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
        before = await api.request_ok("GET", path)
        for more in LOOSER_LIMITS:
            await inside.expect_error(403, next(iter(more)), "PUT", path, more)
        assert await api.request_ok("GET", path) == before
        tighter = {
            "usage_limits": [{"credit_limit": 4}],
            "rate_limits": [{**RATE, "value": RATE["value"] - 1}],
            "settings": {"user_api_key_rotation_period": 6},
            "description": "ours",
        }
        await inside.request_ok("PUT", path, tighter)
        fetched = await api.request_ok("GET", path)
        # Omitted settings are unchanged.
        assert fetched["settings"] == {"block_inline_config": True, "user_api_key_rotation_period": 6}
        assert fetched["description"] == "ours"
        for more in LOOSER_LIMITS:
            await api.request_ok("PUT", path, more)
        await api.request_ok(
            "PUT", path, {"settings": {"block_inline_config": None, "user_api_key_rotation_period": None}}
        )
        assert (await api.request_ok("GET", path))["settings"] == {}

    run_scenario(bootstrapped_url, scenario)


def test_workspace_without_a_rotation_period_uses_the_orgs(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        await api.request_ok("PUT", "admin/organisation/settings", {"user_api_key_rotation_period": "weekly"})
        workspace = (await api.create_workspace())["id"]
        path = f"workspaces/{workspace}"
        scopes = ["workspaces.read", "workspaces.update"]
        _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
        await inside.expect_error(403, "settings", "PUT", path, {"settings": {"user_api_key_rotation_period": 365}})
        await inside.request_ok("PUT", path, {"settings": {"user_api_key_rotation_period": 6}})
        # Without its own period the workspace would fall back to the organisation's, which is longer.
        await inside.expect_error(403, "settings", "PUT", path, {"settings": {"user_api_key_rotation_period": None}})
        await api.request_ok("PUT", path, {"settings": {"user_api_key_rotation_period": 365}})

    run_scenario(bootstrapped_url, scenario)


def test_workspace_admins_cannot_loosen_its_limits(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        path = f"workspaces/{workspace['id']}"
        await api.request_ok("PUT", path, WORKSPACE_LIMITS)
        before = await api.request_ok("GET", path)
        inside = [{"id": workspace["id"], "role": "admin"}]
        manager = await api.create_user("m@x.test", workspaces=inside)
        leader = await api.create_user("a@x.test", role="admin")
        (organisation,) = {before["organisation_id"]}
        for user, tightens, loosens in ((manager, 200, 403), (leader, 200, 200)):
            email = (await api.request_ok("GET", f"admin/users/{user}"))["email"]
            for caller, fields in await clients_by_credential(api, organisation, workspace["slug"], user, email):
                lower = {"usage_limits": [{"credit_limit": 4}], "description": "ours"}
                assert (await caller("PUT", path, lower, **fields))[0] == tightens
                await api.request_ok("PUT", path, WORKSPACE_LIMITS)
                for more in LOOSER_LIMITS:
                    status, response, _ = await caller("PUT", path, more, **fields)
                    assert (status, loosens != 403 or "only keys and admins of the organisation" in str(response)) == (
                        loosens,
                        True,
                    )
                    await api.request_ok("PUT", path, WORKSPACE_LIMITS)

    run_scenario(bootstrapped_url, scenario, JWT_SETTINGS)


async def clients_by_credential(
    api: ManagementClient, organisation: str, slug: str, user: str, email: str
) -> list[tuple[ManagementClient, dict[str, str]]]:
    """Returns clients of one user: with a session, with tokens, and with an organisation key."""
    no_match = api.with_key("")
    _, response, headers = await no_match("POST", "auth/sessions", {"email": email, "password": PASSWORD})
    cookie = {"cookie": headers["set-cookie"].partition(";")[0], "x_csrf_token": response["csrf_token"]}
    claim_set = {"organisation_id": organisation, "sub": user, "exp": time.time() + 600, "scope": "workspaces.update"}
    tokens = [sign_token(**claims) for claims in (claim_set, {**claim_set, "workspace_slug": slug})]
    _, own = await api.create_key("organisation/user", user_id=user, scopes=["workspaces.update"])
    return [(no_match, cookie), (own, {}), *((api.with_key(text), {}) for text in tokens)]


def test_workspace_lists_the_sections_that_the_organisation_decides(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace("below")
        path = f"workspaces/{workspace['id']}"
        assert workspace["organisation_sections"] == []
        overrides = {"security_settings_overrides": {"mcp": False, "configs": True, "logs": None, "api_keys": False}}
        await api.request_ok("PUT", "admin/organisation/settings", overrides)
        fetched = await api.request_ok("GET", path)
        assert fetched["organisation_sections"] == ["api_keys", "mcp"]
        # Clients send back what they read.
        await api.request_ok("PUT", path, {"name": "n", "organisation_sections": fetched["organisation_sections"]})
        (listed,) = (await api.request_ok("GET", "workspaces?name=n"))["data"]
        assert listed["organisation_sections"] == ["api_keys", "mcp"]

    run_scenario(bootstrapped_url, scenario)


def test_etag_changes_with_every_part_of_the_response(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("a@x.test")
        path = f"workspaces/{workspace}"
        _, _, headers = await api("GET", path)
        tag = headers["etag"]
        status, body, again = await api("GET", path, if_none_match=tag)
        assert (status, body, again["etag"]) == (304, None, tag)
        await api.request_ok("POST", f"{path}/users", {"users": [{"id": user, "role": "member"}]})
        status, body, headers = await api("GET", path, if_none_match=tag)
        assert (status, len(body["users"]), headers["etag"] != tag) == (200, 1, True)
        fields = {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789", "workspace_id": workspace}
        integration = await api.request_ok("POST", "integrations", fields)
        (provider,) = (await api.request_ok("GET", f"providers?workspace_id={workspace}"))["data"]
        provider_path = f"providers/{provider['slug']}?workspace_id={workspace}"
        _, _, headers = await api("GET", provider_path)
        reported = {"configurations": {"openai_project": "p"}}
        await api.request_ok("PUT", f"integrations/{integration['id']}", reported)
        status, body, _ = await api("GET", provider_path, if_none_match=headers["etag"])
        assert (status, body["model_config"]) == (200, {"openai_project": "p"})

    run_scenario(bootstrapped_url, scenario)


def test_if_match_covers_the_row_and_not_related_rows(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("a@x.test")
        path = f"workspaces/{workspace}"
        _, _, headers = await api("GET", path)
        read = headers["etag"]
        await api.request_ok("POST", f"{path}/users", {"users": [{"id": user, "role": "member"}]})
        status, _, headers = await api("PUT", path, {"name": "first"}, if_match=read)
        changed = headers["etag"]
        assert (status, (await api("PUT", path, {"name": "lost"}, if_match=read))[0]) == (200, 412)
        # The ETag of an update's response is as good as that of a read.
        status, _, _ = await api("PUT", path, {"name": "second"}, if_match=changed)
        assert status == 200

    run_scenario(bootstrapped_url, scenario)


def test_guardrails_are_ids_or_slugs_and_at_most_100(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        path = f"workspaces/{(await api.create_workspace())['id']}"
        for fields in (["a b"], [""], ["x" * 256], [*map(str, range(101))], [{"name": "pg-a"}]):
            for target, body in (
                (path, {"defaults": {"input_guardrails": fields}}),
                ("admin/organisation/defaults", {"output_guardrails": fields}),
            ):
                await api.expect_error(400, "_guardrails", "PUT", target, body)

    run_scenario(bootstrapped_url, scenario)


def test_equal_names_get_unique_slugs_despite_collisions(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def scenario(api: ManagementClient) -> None:
        workspace = {"workspace_id": (await api.create_workspace())["id"]}
        vault = {"vault_addr": "https://v.example", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        secret = {"manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        for path, body in (
            ("workspaces", {}),
            ("configs", {"config": {"provider": "openai"}, **workspace}),
            ("integrations", {"ai_provider_id": "openai", **workspace}),
            ("virtual-keys", {"provider": "openai", "key": "sk-0123456789", **workspace}),
            ("secret-references", secret),
            ("prompts", {**SMALL, **workspace}),
            ("prompts/partials", {"string": "text", **workspace}),
            ("collections", workspace),
            ("guardrails", {"checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}], **workspace}),
        ):
            chance = (f"{number // 2:06x}" for number in itertools.count())
            monkeypatch.setattr(secrets, "token_hex", lambda _count, chance=chance: next(chance))
            created = [(await api.request_ok("POST", path, {"name": "alike", **body}))["slug"] for _ in range(3)]
            assert len(set(created)) == 3, (path, created)

    run_scenario(bootstrapped_url, scenario)
