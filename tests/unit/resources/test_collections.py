"""Collections of prompts: the tree, what it counts, and which collections can be deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.prompts import collections as prompt_collections
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import SCOPES, create_partial, create_prompt

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret

ONE_STORE = True


async def create_collection(api: ManagementClient, location: str | None, name: str, parent: str | None = None) -> Any:
    body = {"name": name, "parent_collection_id": parent, "workspace_id": location}
    return await api.request_ok("POST", "collections", body)


async def default_collection(api: ManagementClient, location: str) -> Any:
    rows = (await api.request_ok("GET", f"collections?workspace_id={location}"))["data"]
    return next(row for row in rows if row["is_default"])


def test_every_workspace_has_a_default_collection(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        await api.create_workspace()
        workspaces = (await api.request_ok("GET", "workspaces"))["data"]
        rows = (await api.request_ok("GET", "collections"))["data"]
        assert {row["workspace_id"] for row in rows} == {location["id"] for location in workspaces}
        assert {(row["name"], row["is_default"], row["parent_collection_id"]) for row in rows} == {
            ("Default", True, None)
        }
        location = workspaces[0]["id"]
        prompt = await create_prompt(api, location)
        fetched = await api.request_ok("GET", f"prompts/{prompt['id']}")
        own = await default_collection(api, location)
        assert fetched["collection_id"] == own["id"]
        path = f"collections/{own['id']}"
        await api.expect_error(409, "the default collection of a workspace cannot be deleted", "DELETE", path)
        assert await api.request_ok("PUT", path, {"name": "Main"}) == {}
        assert (await api.request_ok("GET", path))["name"] == "Main"

    run_scenario(bootstrapped_url, scenario)


def test_all_problems_of_a_collection_are_reported_at_once(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        parent = (await default_collection(api, workspace))["id"]
        monkeypatch.setattr(prompt_collections, "MAX_COLLECTIONS", 1)
        monkeypatch.setattr(prompt_collections, "MAX_DEPTH", 1)
        body = {"name": "x", "workspace_id": workspace}
        for words in ("nested 1 levels deep", "has 1 collections; at most 1 are allowed"):
            await api.expect_error(409, words, "POST", "collections", {**body, "parent_collection_id": parent})
        for words in ("'nope' is no collection", "has 1 collections; at most 1 are allowed"):
            await api.expect_error(400, words, "POST", "collections", {**body, "parent_collection_id": "nope"})
        await api.expect_error(404, "'nope'", "POST", "collections", {"name": "x", "parent_collection_id": "nope"})

    run_scenario(bootstrapped_url, scenario)


def test_collections_nest_and_count_what_they_contain(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        outer = await create_collection(api, workspace, "My prompts")
        assert re.fullmatch("co-my-prompts-[0-9a-f]{6}", outer["slug"])
        # The collection above decides the workspace.
        inner = await create_collection(api, None, "inner", outer["slug"])
        other = await create_collection(api, workspace, "another", outer["id"])
        prompt = await create_prompt(api, workspace, collection_id=outer["id"])
        await create_prompt(api, workspace, collection_id=inner["id"])
        await create_prompt(api, workspace, collection_id=inner["id"])
        fetched = await api.request_ok("GET", f"collections/{outer['slug']}")
        changed = (await api.request_ok("GET", f"prompts/{prompt['id']}"))["last_updated_at"]
        assert (fetched["name"], fetched["is_default"], fetched["status"]) == ("My prompts", False, "active")
        assert [(row["id"], row["name"]) for row in fetched["child_collections"]] == [
            (other["id"], "another"),
            (inner["id"], "inner"),
        ]
        assert [row["collection_details"]["prompts_count"] for row in fetched["child_collections"]] == [0, 2]
        rows = (await api.request_ok("GET", f"collections?workspace_id={workspace}"))["data"]
        details = {row["id"]: row["collection_details"] for row in rows}
        assert details[outer["id"]] == {
            "child_collections_count": 2,
            "prompts_count": 1,
            "child_collections_last_updated_at": fetched["child_collections"][0]["last_updated_at"],
            "prompts_last_updated_at": changed,
        }
        assert details[other["id"]] == {
            "child_collections_count": 0,
            "prompts_count": 0,
            "child_collections_last_updated_at": None,
            "prompts_last_updated_at": None,
        }
        assert next(row for row in rows if row["id"] == inner["id"])["parent_collection_id"] == outer["id"]

    run_scenario(bootstrapped_url, scenario)


def test_collection_with_contents_cannot_be_deleted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        outer = await create_collection(api, workspace, "outer")
        inner = await create_collection(api, workspace, "inner", outer["id"])
        prompt = await create_prompt(api, workspace, collection_id=outer["id"])
        await create_partial(api, workspace, "tone")
        await api.request_ok("PUT", "prompts/partials/tone", {"collection_id": outer["id"]})
        path = f"collections/{outer['id']}"
        message = "it has 1 prompts, 1 partials, 1 collections; move them or delete them first"
        await api.expect_error(409, message, "DELETE", path)
        await api.request_ok("DELETE", f"collections/{inner['slug']}")
        own = await default_collection(api, workspace)
        for target in (f"prompts/{prompt['id']}", "prompts/partials/tone"):
            await api.request_ok("PUT", target, {"collection_id": own["slug"]})
        assert await api.request_ok("DELETE", path) == {}
        await api.expect_error(404, outer["id"], "GET", path)

    run_scenario(bootstrapped_url, scenario)


def test_depth_and_number_of_collections_are_limited(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        parent: str | None = None
        for level in range(prompt_collections.MAX_DEPTH):
            parent = (await create_collection(api, workspace, f"level {level}", parent))["id"]
        body = {"name": "too deep", "parent_collection_id": parent}
        await api.expect_error(
            409, "is on level 8; collections may be nested 8 levels deep", "POST", "collections", body
        )
        # The limit includes the default collection.
        monkeypatch.setattr(prompt_collections, "MAX_COLLECTIONS", prompt_collections.MAX_DEPTH + 1)
        body = {"name": "one too many", "workspace_id": workspace}
        await api.expect_error(409, "has 9 collections; at most 9 are allowed", "POST", "collections", body)

    run_scenario(bootstrapped_url, scenario)


def test_lists_filter_by_workspace_and_name(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [await api.create_workspace(name) for name in ("here", "there")]
        collection = (await create_collection(api, first_workspace["id"], "Alpha"))["id"]
        two = (await create_collection(api, second_workspace["id"], "alphabet"))["id"]
        for query, actual in {
            "search=ALPHA": [two, collection],
            f"search=alpha&workspace_id={first_workspace['slug']}": [collection],
            "search=alpha&page_size=1&current_page=1": [collection],
            "search=co-alphabet": [two],
        }.items():
            assert [row["id"] for row in (await api.request_ok("GET", f"collections?{query}"))["data"]] == actual
        _, inside = await api.create_key("workspace/service", workspace_id=first_workspace["id"], scopes=SCOPES)
        assert (await inside.request_ok("GET", "collections"))["total"] == 2
        for method in ("GET", "PUT", "DELETE"):
            body = {"name": "n"} if method == "PUT" else None
            await inside.expect_error(404, two, method, f"collections/{two}", body)
        body = {"name": "n", "parent_collection_id": two}
        await inside.expect_error(404, "is no collection of this workspace", "POST", "collections", body)
        await api.expect_error(400, "workspace_id", "POST", "collections", {"name": "n"})
        await api.expect_error(400, "name", "PUT", f"collections/{collection}", {})

    run_scenario(bootstrapped_url, scenario)


def test_if_match_protects_collections(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        path = f"collections/{(await create_collection(api, workspace, 'c'))['id']}"
        _, fetched, headers = await api("GET", path)
        assert (await api("PUT", path, {**fetched, "name": "a"}, if_match=headers["etag"]))[0] == 200
        assert (await api("PUT", path, {"name": "b"}, if_match=headers["etag"]))[0] == 412
        assert (await api("DELETE", path, if_match=headers["etag"]))[0] == 412

    run_scenario(bootstrapped_url, scenario)
