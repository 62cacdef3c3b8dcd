"""Configs that others need stay as they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_a_config_that_is_needed_is_archived_as_little_as_deleted(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        wanted = {"name": "c", "config": {"provider": "openai"}, "workspace_id": place}
        of_key, of_workspace, of_nobody = [(await api.good("POST", "configs", wanted))["slug"] for _ in range(3)]
        key, _ = await api.key_of(
            "workspace/service", workspace_id=place, scopes=["completions.write"], defaults={"config_id": of_key}
        )
        await api.good("PUT", f"workspaces/{place}", {"defaults": {"user_api_key_config": of_workspace}})
        for slug, word in ((of_key, "the key"), (of_workspace, "the workspace")):
            await api.refused(409, word, "PUT", f"configs/{slug}", {"status": "archived"})
            await api.refused(409, word, "DELETE", f"configs/{slug}")
            await api.good("PUT", f"configs/{slug}", {"status": "active", "name": "renamed"})
        await api.good("PUT", f"configs/{of_nobody}", {"status": "archived"})
        await api.good("DELETE", f"api-keys/{key}")
        await api.good("PUT", f"configs/{of_key}", {"status": "archived"})

    played(founded_url, scene)


def test_a_dry_run_goes_by_the_state_that_the_caller_counts_on(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        made = await api.good("POST", "configs", {"name": "c", "config": {"provider": "openai"}, "workspace_id": place})
        path = f"configs/{made['slug']}"
        _, _, headers = await api("GET", path)
        read, wanted = headers["etag"], {"config": {"provider": "anthropic"}}
        status, answer, _ = await api("PUT", f"{path}?dry_run=true", wanted, if_match=read)
        assert (status, answer["version_id"]) == (200, "")
        # It changed nothing: what was read is still so.
        status, _, _ = await api("PUT", path, wanted, if_match=read)
        assert status == 200
        for query in ("?dry_run=true", ""):
            assert (await api("PUT", f"{path}{query}", wanted, if_match=read))[0] == 412

    played(founded_url, scene)
