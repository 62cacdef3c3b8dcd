"""What only publishers may do to prompts: nobody else gets around protected labels and the scope `prompts.publish`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import SCOPES, SMALL, add_version, create_partial, create_prompt, put_label

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True


async def writer_and_publisher(
    api: ManagementClient, workspace: str, *more: str
) -> tuple[ManagementClient, ManagementClient]:
    """Returns clients with the same scopes, of which only the second one may publish."""
    scopes = [*SCOPES, *more]
    _, writer = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
    _, publisher = await api.create_key(
        "workspace/service", workspace_id=workspace, scopes=[*scopes, "prompts.publish"]
    )
    return writer, publisher


def test_prompt_with_a_protected_label_is_removed_by_publishers_only(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        writer, publisher = await writer_and_publisher(api, workspace)
        prompt = await create_prompt(writer, workspace, slug="greeting")
        await publisher.request_ok("POST", "labels", {"name": "live", "protected": True})
        await put_label(publisher, prompt["id"], prompt["version_id"], "live")
        path = f"prompts/{prompt['slug']}"
        word = "it has the protected label 'live'"
        await writer.expect_error(403, word, "DELETE", path)
        await writer.expect_error(403, word, "PUT", path, {"status": "archived"})
        # Other changes and other labels stay possible.
        await writer.request_ok("PUT", path, {"name": "renamed"})
        second = await add_version(writer, prompt["id"], "two")
        await put_label(writer, prompt["id"], second, "staging")
        await writer.expect_error(
            403, "prompts.publish", "PUT", f"{path}/versions/{prompt['version_id']}", {"label_id": None}
        )
        await publisher.request_ok("PUT", path, {"status": "archived"})
        await writer.expect_error(403, word, "PUT", path, {"status": "active"})
        await publisher.request_ok("PUT", path, {"status": "active"})
        await publisher.request_ok("DELETE", path)

    run_scenario(bootstrapped_url, scenario)


def test_shared_prompt_is_removed_by_publishers_only(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        writer, publisher = await writer_and_publisher(api, here)
        prompt = await create_prompt(writer, here, slug="greeting")
        path = f"prompts/{prompt['id']}"
        await publisher.request_ok("POST", f"{path}/share", {"workspaces": [there]})
        await writer.expect_error(403, "it is shared with other workspaces", "DELETE", path)
        await writer.expect_error(403, "it is shared", "PUT", path, {"status": "archived"})
        # In the other workspace, only publishers may create a prompt with the slug of the shared one.
        their_writer, their_publisher = await writer_and_publisher(api, there)
        body = {"name": "p", **SMALL, "slug": "greeting"}
        await their_writer.expect_error(403, "another workspace shares a prompt", "POST", "prompts", body)
        assert (await create_prompt(their_writer, there, slug="greeting-2"))["slug"] == "greeting-2"
        await their_publisher.request_ok("POST", "prompts", body)
        await publisher.request_ok("DELETE", path)

    run_scenario(bootstrapped_url, scenario)


def test_slug_of_a_deleted_prompt_is_used_again_by_publishers_only(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        writer, publisher = await writer_and_publisher(api, here)
        body = {"name": "p", **SMALL, "slug": "greeting"}
        word = "cannot be used without the scope prompts.publish"
        for _ in range(2):
            prompt = await publisher.request_ok("POST", "prompts", body)
            await writer.request_ok("DELETE", f"prompts/{prompt['id']}")
            await writer.expect_error(403, word, "POST", "prompts", body)
        generated = await create_prompt(writer, here)
        await writer.request_ok("DELETE", f"prompts/{generated['id']}")
        await writer.expect_error(403, word, "POST", "prompts", {**body, "slug": generated["slug"]})
        # The slug is free in a workspace that never had such a prompt.
        other_writer, _ = await writer_and_publisher(api, there)
        await other_writer.request_ok("POST", "prompts", body)
        await publisher.request_ok("POST", "prompts", body)

    run_scenario(bootstrapped_url, scenario)


def test_slug_of_a_deleted_partial_is_used_again_by_publishers_only(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        writer, publisher = await writer_and_publisher(api, here)
        await create_partial(writer, here, "tone")
        await writer.request_ok("DELETE", "prompts/partials/tone")
        body = {"name": "Tone", "slug": "tone", "string": "other"}
        await writer.expect_error(403, "prompts.publish", "POST", "prompts/partials", body)
        # A copy of a prompt would bring a partial of this slug with it.
        await create_partial(api, there, "tone")
        source = await create_prompt(api, there, string="{{>tone}}")
        await api.request_ok("POST", f"prompts/{source['id']}/share", {"workspaces": [here]})
        await writer.expect_error(403, "prompts.publish", "POST", f"prompts/{source['id']}/fork", {})
        await publisher.request_ok("POST", f"prompts/{source['id']}/fork", {})

    run_scenario(bootstrapped_url, scenario)
