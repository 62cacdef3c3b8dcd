"""Prompt partials: fields, versions, and the references between partials and prompts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.ids import new_id
from penstock.prompts import partials
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import SCOPES, add_version, create_partial, create_prompt, find_label, put_label

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret

# `tests/integration/test_prompt_routes.py` covers both databases.
ONE_STORE = True
PARTIALS = "prompts/partials"


def test_every_field_is_read_back(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": workspace["id"]})
        body = {"name": "Friendly tone", "string": "Be {{how}}.", "version_description": "first"}
        created = await api.request_ok("POST", PARTIALS, {**body, "collection_id": folder["id"]})
        assert re.fullmatch("ppp-friendly-t?-?[0-9a-f]{6}", created["slug"]), created["slug"]
        assert (set(created), created["object"]) == ({"id", "slug", "version_id", "object"}, "partial")
        fetched = await api.request_ok("GET", f"{PARTIALS}/{created['slug']}")
        expected = {
            **body,
            "id": created["id"],
            "slug": created["slug"],
            "collection_id": folder["id"],
            "workspace_id": workspace["id"],
            "version": 1,
            "default_version": 1,
            "latest_version": 1,
            "prompt_partial_version_id": created["version_id"],
            "prompt_partial_version_status": "active",
            "status": "active",
            "object": "partial",
        }
        assert {name: fetched[name] for name in expected} == expected
        path = f"{PARTIALS}/{created['id']}"
        # A client may send back everything that it read.
        same = await api.request_ok("PUT", path, fetched)
        assert same == {"prompt_partial_version_id": created["version_id"]}
        update = {"name": "new", "string": "Be brief.", "description": "second", "status": "archived"}
        after = await api.request_ok("PUT", path, update)
        assert after["prompt_partial_version_id"] != created["version_id"]
        fetched = await api.request_ok("GET", path)
        expected = {"name": "new", "string": "Be brief.", "version_description": "second", "version": 2}
        expected |= {"status": "archived", "default_version": 1, "prompt_partial_version_status": "archived"}
        assert {name: fetched[name] for name in expected} == expected
        listed = await api.request_ok("GET", f"{path}/versions")
        assert [(row["version"], row["string"], row["description"], row["is_default"]) for row in listed["data"]] == [
            (2, "Be brief.", "second", False),
            (1, "Be {{how}}.", "first", True),
        ]
        assert listed["data"][1]["prompt_partial_version_id"] == created["version_id"]
        assert {row["prompt_partial_id"] for row in listed["data"]} == {created["id"]}
        assert await api.request_ok("PUT", f"{path}/makeDefault", {"version": 2}) == {}
        assert (await api.request_ok("GET", f"{path}?version=default"))["version"] == 2
        assert (await api.request_ok("GET", f"{path}?version=1"))["string"] == "Be {{how}}."
        assert await api.request_ok("DELETE", path) == {}
        await api.expect_error(404, created["id"], "GET", path)

    run_scenario(bootstrapped_url, scenario)


def test_changed_name_or_status_makes_no_version(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        partial = await create_partial(api, workspace, "tone")
        for change in ({"name": "n"}, {"status": "archived"}, {"status": "active"}, {"string": "text"}):
            after = await api.request_ok("PUT", f"{PARTIALS}/tone", change)
            assert after == {"prompt_partial_version_id": partial["version_id"]}
        await api.expect_error(400, "send `string` with it", "PUT", f"{PARTIALS}/tone", {"description": "d"})
        await api.expect_error(404, "version 2 does not exist", "PUT", f"{PARTIALS}/tone/makeDefault", {"version": 2})

    run_scenario(bootstrapped_url, scenario)


def test_unknown_partials_and_cycles_are_rejected(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "n", "workspace_id": workspace, "slug": "one"}
        await api.expect_error(400, "'none', which does not exist", "POST", PARTIALS, {**body, "string": "{{>none}}"})
        await api.expect_error(400, "one > one", "POST", PARTIALS, {**body, "string": "{{>one}}"})
        await create_partial(api, workspace, "one")
        await create_partial(api, workspace, "two", "{{>one}}")
        await create_partial(api, workspace, "three", "{{>two}}")
        await api.expect_error(400, "one > three > two > one", "PUT", f"{PARTIALS}/one", {"string": "{{>three}}"})
        # An unpublished version counts too: publishing it must not make a cycle.
        await create_partial(api, workspace, "four")
        await api.request_ok("PUT", f"{PARTIALS}/four", {"string": "{{>three}}"})
        await api.expect_error(400, "one > four > three", "PUT", f"{PARTIALS}/one", {"string": "{{>four}}"})
        await api.request_ok("PUT", f"{PARTIALS}/four", {"string": "again without"})
        await api.request_ok("PUT", f"{PARTIALS}/one", {"string": "{{>four}}"})
        await api.expect_error(400, "version includes itself", "PUT", f"{PARTIALS}/four/makeDefault", {"version": 2})
        await api.request_ok("PUT", f"{PARTIALS}/four/makeDefault", {"version": 3})

    run_scenario(bootstrapped_url, scenario)


def test_partial_in_use_cannot_be_deleted_or_archived(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        await create_partial(api, first_workspace, "tone")
        await create_partial(api, first_workspace, "other", "{{>tone}}")
        theirs = await create_partial(api, second_workspace, "tone")
        prompt = await create_prompt(api, first_workspace, slug="greeting", string="{{>tone}}")
        path = f"{PARTIALS}/tone?workspace_id={first_workspace}"
        for method, body in (("DELETE", None), ("PUT", {"status": "archived"})):
            await api.expect_error(409, "the partial 'other', the prompt 'greeting'", method, path, body)
        await api.request_ok("DELETE", f"{PARTIALS}/{theirs['id']}")
        await api.request_ok("DELETE", f"{PARTIALS}/other")
        second = await add_version(api, prompt["id"], "tone without the partial")
        await api.expect_error(409, "the prompt 'greeting'", "DELETE", path)
        await api.request_ok("PUT", f"prompts/{prompt['id']}/makeDefault", {"version": 2})
        await put_label(api, prompt["id"], prompt["version_id"], await find_label(api, first_workspace, "staging"))
        await api.expect_error(409, "the prompt 'greeting'", "DELETE", path)
        await put_label(api, prompt["id"], second, "staging")
        await api.request_ok("PUT", path, {"status": "archived"})
        await api.expect_error(
            400,
            "'tone', which does not exist",
            "PUT",
            f"prompts/{prompt['id']}",
            {"string": "{{>tone}}", "patch": True},
        )
        await api.request_ok("DELETE", path)

    run_scenario(bootstrapped_url, scenario)


def test_partial_is_activated_only_if_its_partials_exist(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_partial(api, workspace, "inner")
        await create_partial(api, workspace, "outer", "{{>inner}}")
        await api.request_ok("PUT", f"{PARTIALS}/outer", {"status": "archived"})
        await api.request_ok("DELETE", f"{PARTIALS}/inner")
        await api.expect_error(
            400, "status refers to the partial 'inner'", "PUT", f"{PARTIALS}/outer", {"status": "active"}
        )

    run_scenario(bootstrapped_url, scenario)


def test_lists_filter_and_page(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        beta, two = [(await create_partial(api, first_workspace, slug))["id"] for slug in ("alpha", "beta")]
        three = (await create_partial(api, second_workspace, "alphabet"))["id"]
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": first_workspace})
        await api.request_ok("PUT", f"{PARTIALS}/{beta}", {"collection_id": folder["id"]})
        for query, actual in {
            "": [three, two, beta],
            f"workspace_id={first_workspace}&page_size=1": [two],
            f"collection_id={folder['slug']}": [beta],
            "search=Alph": [three, beta],
            "search=%25": [],
        }.items():
            listed = await api.request_ok("GET", f"{PARTIALS}?{query}")
            assert [row["id"] for row in listed["data"]] == actual, query
        _, inside = await api.create_key("workspace/service", workspace_id=second_workspace, scopes=SCOPES)
        assert [row["id"] for row in (await inside.request_ok("GET", PARTIALS))["data"]] == [three]
        for method in ("GET", "PUT", "DELETE"):
            await inside.expect_error(404, beta, method, f"{PARTIALS}/{beta}", {} if method == "PUT" else None)
        await inside.expect_error(403, "prompts.publish", "PUT", f"{PARTIALS}/{three}/makeDefault", {"version": 1})

    run_scenario(bootstrapped_url, scenario)


def test_numbers_of_partials_and_versions_are_limited(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(partials, "MAX_PARTIALS", 1)
    monkeypatch.setattr(partials, "MAX_VERSIONS", 2)

    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_partial(api, workspace, "one")
        body = {"name": "n", "string": "s", "workspace_id": workspace}
        await api.expect_error(409, "has 1 partials; at most 1 are allowed", "POST", PARTIALS, body)
        await api.request_ok("PUT", f"{PARTIALS}/one", {"string": "two"})
        await api.expect_error(409, "has 2 versions", "PUT", f"{PARTIALS}/one", {"string": "three"})
        await api.expect_error(400, "workspace_id", "POST", PARTIALS, {"name": "n", "string": "s"})
        await api.expect_error(404, "is no collection", "POST", PARTIALS, {**body, "collection_id": new_id()})

    run_scenario(bootstrapped_url, scenario)


def test_if_match_protects_partials(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        path = f"{PARTIALS}/{(await create_partial(api, workspace, 'tone'))['id']}"
        for method, target, change in (
            ("PUT", path, {"string": "new"}),
            ("PUT", f"{path}/makeDefault", {"version": 2}),
            ("DELETE", path, None),
        ):
            _, _, headers = await api("GET", path)
            stale = headers["etag"]
            await api.request_ok("PUT", path, {"name": f"before {method} {target}"})
            assert (await api(method, target, change, if_match=stale))[0] == 412, (method, target)
            _, _, headers = await api("GET", path)
            assert (await api(method, target, change, if_match=headers["etag"]))[0] == 200, (method, target)

    run_scenario(bootstrapped_url, scenario)
