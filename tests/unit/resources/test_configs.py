"""Archiving and deletion of configs. A config that a key or a workspace uses can be neither archived nor deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_config_in_use_cannot_be_archived_or_deleted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        expected = {"name": "c", "config": {"provider": "openai"}, "workspace_id": workspace}
        of_key, of_workspace, of_nobody = [
            (await api.request_ok("POST", "configs", expected))["slug"] for _ in range(3)
        ]
        key, _ = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=["completions.write"], defaults={"config_id": of_key}
        )
        await api.request_ok("PUT", f"workspaces/{workspace}", {"defaults": {"user_api_key_config": of_workspace}})
        for slug, word in ((of_key, "the key"), (of_workspace, "the workspace")):
            await api.expect_error(409, word, "PUT", f"configs/{slug}", {"status": "archived"})
            await api.expect_error(409, word, "DELETE", f"configs/{slug}")
            await api.request_ok("PUT", f"configs/{slug}", {"status": "active", "name": "renamed"})
        await api.request_ok("PUT", f"configs/{of_nobody}", {"status": "archived"})
        await api.request_ok("DELETE", f"api-keys/{key}")
        await api.request_ok("PUT", f"configs/{of_key}", {"status": "archived"})

    run_scenario(bootstrapped_url, scenario)


def test_dry_run_checks_if_match(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        config = await api.request_ok(
            "POST", "configs", {"name": "c", "config": {"provider": "openai"}, "workspace_id": workspace}
        )
        path = f"configs/{config['slug']}"
        _, _, headers = await api("GET", path)
        read, expected = headers["etag"], {"config": {"provider": "anthropic"}}
        status, response, _ = await api("PUT", f"{path}?dry_run=true", expected, if_match=read)
        assert (status, response["version_id"]) == (200, "")
        # The dry run changed nothing, so the ETag is still valid.
        status, _, _ = await api("PUT", path, expected, if_match=read)
        assert status == 200
        for query in ("?dry_run=true", ""):
            assert (await api("PUT", f"{path}{query}", expected, if_match=read))[0] == 412

    run_scenario(bootstrapped_url, scenario)


def test_key_of_the_workspace_sees_versions_that_a_key_of_the_organisation_saved(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "c", "config": {"provider": "openai"}, "workspace_id": workspace}
        path = f"configs/{(await api.request_ok('POST', 'configs', body))['slug']}"
        await api.request_ok("PUT", path, {"config": {"provider": "anthropic"}})
        _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=["configs.read"])
        for client in (api, inside):
            listed = await client.request_ok("GET", f"{path}/versions")
            assert ["anthropic" in row["config"] for row in listed["data"]] == [True, False]

    run_scenario(bootstrapped_url, scenario)
