"""What uses a saved provider or a prompt: configs, prompts, policies and forks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import add_version, create_prompt, find_label, put_label

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True


async def create_provider(api: ManagementClient, workspace: Any, slug: str) -> str:
    integration = {"name": slug, "ai_provider_id": "openai", "key": "sk-0123456789"}
    created = await api.request_ok("POST", "integrations", integration)
    enabled = {"workspaces": [{"id": workspace["id"], "enabled": True}]}
    await api.request_ok("PUT", f"integrations/{created['slug']}/workspaces", enabled)
    body = {"name": slug, "slug": slug, "integration_id": created["slug"], "workspace_id": workspace["id"]}
    return (await api.request_ok("POST", "providers", body))["id"]


async def read_users(api: ManagementClient, path: str) -> tuple[int, list[tuple[str, str, list[str]]]]:
    response = await api.request_ok("GET", f"{path}/references")
    return response["hidden"], [(row["kind"], row["name"], row["fields"]) for row in response["data"]]


async def create_policy(api: ManagementClient, workspace: Any, name: str, key: str, value: object) -> None:
    body = {"name": name, "workspace_id": workspace["id"], "conditions": [{"key": key, "value": value}]}
    body |= {"group_by": [{"key": "api_key"}], "type": "requests", "unit": "rpm", "value": 9}
    await api.request_ok("POST", "policies/rate-limits", body)


def test_provider_lists_configs_prompts_and_policies(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        provider = await create_provider(api, workspace, "main")
        await create_provider(api, workspace, "main-2")
        assert await read_users(api, f"providers/{provider}") == (0, [])
        targets = [{"provider": "@main"}, {"virtual_key": "main"}, {"provider": "@main-2"}]
        config = {"strategy": {"mode": "fallback"}, "targets": targets}
        await api.request_ok("POST", "configs", {"name": "c", "config": config, "workspace_id": workspace["id"]})
        prompt = await create_prompt(api, workspace["id"], name="p", virtual_key="main")
        await create_prompt(api, workspace["id"], name="q", virtual_key="main-2")
        await create_policy(api, workspace, "limit", "virtual_key", ["x", "main"])
        await create_policy(api, workspace, "other", "virtual_key", "main-2")
        expected = [
            ("config", "c", ["config.targets[0].provider", "config.targets[1].virtual_key"]),
            ("prompt", "p", ["versions[1].virtual_key"]),
            ("policy", "limit", ["conditions[0]"]),
        ]
        assert await read_users(api, f"providers/{provider}") == (0, expected)
        # Versions that nothing selects any more do not count.
        second = await add_version(api, prompt["id"], "two", virtual_key="@main")
        await add_version(api, prompt["id"], "three", virtual_key="main-2")
        await put_label(api, prompt["id"], second, await find_label(api, workspace["id"], "staging"))
        _, users = await read_users(api, f"providers/{provider}")
        assert users[1] == ("prompt", "p", ["versions[1].virtual_key", "versions[2].virtual_key"])
        await put_label(api, prompt["id"], second, None)
        await api.request_ok("PUT", f"prompts/{prompt['id']}/makeDefault", {"version": 3})
        _, users = await read_users(api, f"providers/{provider}")
        assert [kind for kind, _, _ in users] == ["config", "policy"]
        _, client = await api.create_key("workspace/service", workspace_id=workspace["id"], scopes=["providers.read"])
        assert await read_users(client, f"providers/{provider}") == (2, [])

    run_scenario(bootstrapped_url, scenario)


def test_prompt_lists_forks_and_policies(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        prompt = await create_prompt(api, workspace["id"], slug="greeting")
        await api.request_ok("POST", f"prompts/{prompt['id']}/fork", {"name": "Copy"})
        await create_policy(api, workspace, "limit", "prompt", "greeting")
        await create_policy(api, workspace, "other", "prompt", "greetings")
        expected = [("prompt", "Copy", ["forked_from_prompt_id"]), ("policy", "limit", ["conditions[0]"])]
        assert await read_users(api, "prompts/greeting") == (0, expected)

    run_scenario(bootstrapped_url, scenario)
