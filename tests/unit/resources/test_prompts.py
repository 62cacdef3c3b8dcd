"""Prompts: fields, versions, the published version, labels on versions, lists and limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from penstock.ids import new_id
from penstock.prompts import saved_prompts
from penstock.prompts.templates import MAX_TEMPLATE_BYTES
from penstock.store.prompt_tables import prompt_labels
from penstock.store.tables import versions
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import (
    SCOPES,
    SMALL,
    TEMPLATE,
    add_version,
    create_partial,
    create_prompt,
    find_label,
    put_label,
)
from tests.unit.resources.test_log_pages import read_requests

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret

ONE_STORE = True

DATA_PLANE_ACTIONS = ("/completions", "/render", "/compare")
PAGES = ("docs/prompts.md", "docs/prompt-comparison.md", "docs/prompt-sharing.md")


async def read_version(api: ManagementClient, prompt: str, selector: str = "") -> Any:
    query = f"?version={selector}" if selector else ""
    return await api.request_ok("GET", f"prompts/{prompt}{query}")


def test_every_field_is_read_back(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": workspace["id"]})
        # A collection decides the workspace.
        body = {**TEMPLATE, "name": "My greeting!", "collection_id": folder["slug"], "version_description": "first"}
        created = await api.request_ok("POST", "prompts", body)
        assert re.fullmatch("pp-my-greetin-[0-9a-f]{6}", created["slug"])
        assert (set(created), created["object"]) == ({"id", "slug", "version_id", "warnings", "object"}, "prompt")
        stored = await read_version(api, created["slug"])
        assert {name: stored[name] for name in TEMPLATE} == TEMPLATE
        expected = {
            "id": created["id"],
            "slug": created["slug"],
            "name": "My greeting!",
            "collection_id": folder["id"],
            "workspace_id": workspace["id"],
            "organisation_id": workspace["organisation_id"],
            "prompt_version": 1,
            "prompt_version_id": created["version_id"],
            "prompt_version_description": "first",
            "prompt_version_status": "active",
            "prompt_version_label_id": None,
            "prompt_version_label_name": None,
            "prompt_version_labels": [],
            "default_version": 1,
            "latest_version": 1,
            "status": "active",
            "access_level": "workspace",
            "share_organisation_id": None,
            "shared_at": None,
            "shared_by_user_id": None,
            "shared_from_version_id": None,
            "allow_all_workspaces": False,
            "shared_with": [],
            "prompt_owning_workspace_id": workspace["id"],
            "forked_from_prompt_id": None,
            "forked_from_prompt_version_id": None,
            "object": "prompt",
        }
        assert {name: stored[name] for name in expected} == expected
        changed = {
            "string": "{{other}}",
            "parameters": {"n": 2},
            "virtual_key": "other",
            "model": None,
            "functions": [],
            "tools": None,
            "tool_choice": "auto",
            "is_raw_template": 0,
        }
        update = {**changed, "prompt_metadata": {"a": 1}, "version_description": "second", "name": "renamed"}
        after = await api.request_ok("PUT", f"prompts/{created['id']}", update)
        assert set(after) == {"id", "slug", "prompt_version_id", "warnings"}
        stored = await read_version(api, created["id"])
        expected = {**changed, "tools": [], "is_raw_template": False, "template_metadata": {"a": 1}, "name": "renamed"}
        assert {name: stored[name] for name in expected} == expected
        assert (stored["prompt_version"], stored["prompt_version_description"]) == (2, "second")

    run_scenario(bootstrapped_url, scenario)


def test_template_change_makes_a_version_that_is_not_published(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace)
        path = f"prompts/{created['slug']}"
        assert await api.request_ok("PUT", path, {"name": "only the name"}) == {}
        # A version that would repeat the newest one is not created.
        same = await api.request_ok("PUT", path, SMALL)
        assert same["prompt_version_id"] == created["version_id"]
        second = await api.request_ok("PUT", path, {**SMALL, "string": "two"})
        third = await api.request_ok("PUT", path, {"patch": True, "model": "gpt-5"})
        stored = await read_version(api, created["id"])
        numbers = (stored["prompt_version"], stored["default_version"], stored["latest_version"])
        assert (numbers, stored["string"], stored["model"]) == ((3, 1, 3), "two", "gpt-5")
        assert stored["prompt_version_id"] == third["prompt_version_id"]
        for selector, string in {"1": SMALL["string"], "2": "two", "latest": "two", "default": SMALL["string"]}.items():
            assert (await read_version(api, created["id"], selector))["string"] == string, selector
        assert await api.request_ok("PUT", f"{path}/makeDefault", {"version": 2}) == {}
        stored = await read_version(api, created["id"], "default")
        assert (stored["prompt_version"], stored["default_version"]) == (2, 2)
        stored = await api.request_ok("GET", f"{path}/versions/{second['prompt_version_id']}")
        assert (stored["prompt_version"], stored["string"]) == (2, "two")
        listed = await api.request_ok("GET", f"{path}/versions")
        assert (listed["object"], listed["total"]) == ("list", 3)
        rows = [(row["prompt_version"], row["is_default"], row["prompt_template"]["string"]) for row in listed["data"]]
        assert rows == [(3, False, "two"), (2, True, "two"), (1, False, SMALL["string"])]
        assert {row["prompt_id"] for row in listed["data"]} == {created["id"]}
        assert [row["id"] for row in listed["data"]][2] == created["version_id"]

    run_scenario(bootstrapped_url, scenario)


def test_unknown_versions_are_not_found(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created, other = await create_prompt(api, workspace), await create_prompt(api, workspace)
        path = f"prompts/{created['id']}"
        for selector in ("2", "0", "9" * 30, "production", "-1"):
            await api.expect_error(404, "has no version", "GET", f"{path}?version={selector}")
        for version in (other["version_id"], new_id(), "1"):
            await api.expect_error(404, "no version with the id", "GET", f"{path}/versions/{version}")
            await api.expect_error(404, "no version", "PUT", f"{path}/versions/{version}", {"label_id": None})
        await api.expect_error(404, "version 2 does not exist", "PUT", f"{path}/makeDefault", {"version": 2})
        for version in (0, 10**12, None, "x"):
            await api.expect_error(400, "version", "PUT", f"{path}/makeDefault", {"version": version})
        await api.expect_error(404, "was found", "GET", f"prompts/{new_id()}")

    run_scenario(bootstrapped_url, scenario)


def test_new_version_without_patch_needs_all_template_fields(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace, functions=[{"name": "f"}], version_description="d")
        path = f"prompts/{created['id']}"
        status, answer, _ = await api("PUT", path, {"string": "new", "tool_choice": "auto"})
        problems = {problem["path"]: problem["message"] for problem in answer["data"]["errors"]}
        assert (status, set(problems)) == (400, {"parameters", "virtual_key", "model"})
        assert all("`patch`: true" in message for message in problems.values())
        # Fields that are not sent are empty in the new version, unless it is created from the newest one.
        await api.request_ok("PUT", path, {"string": "patched", "patch": True})
        stored = await read_version(api, created["id"])
        assert (stored["functions"], stored["prompt_version_description"]) == ([{"name": "f"}], None)
        await api.request_ok("PUT", path, {**SMALL, "string": "whole"})
        assert (await read_version(api, created["id"]))["functions"] == []
        await api.request_ok("PUT", path, {"patch": True, "version_description": "a reason"})
        stored = await read_version(api, created["id"])
        assert (stored["prompt_version"], stored["prompt_version_description"]) == (4, "a reason")

    run_scenario(bootstrapped_url, scenario)


def test_prompt_can_be_written_back_as_it_was_read(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for fields in (TEMPLATE, SMALL, {"functions": [], "tools": [], "template_metadata": {}}):
            created = await create_prompt(api, workspace, **fields)
            path = f"prompts/{created['id']}"
            stored = await api.request_ok("GET", path)
            assert (await api.request_ok("PUT", path, stored))["prompt_version_id"] == created["version_id"]
            again = await api.request_ok("GET", path)
            assert {**again, "last_updated_at": ""} == {**stored, "last_updated_at": ""}
        await api.expect_error(400, "cannot be changed here", "PUT", path, {**stored, "prompt_version": 7})
        await api.expect_error(400, "cannot be changed here", "PUT", path, {"slug": "other"})

    run_scenario(bootstrapped_url, scenario)


def test_invalid_fields_are_all_reported(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {
            "name": "",
            "string": 1,
            "parameters": [],
            "functions": [1],
            "tools": {},
            "tool_choice": 3,
            "is_raw_template": 2,
            "virtual_key": "",
            "model": 4,
            "slug": new_id(),
            "colour": "red",
        }
        status, answer, _ = await api("POST", "prompts", {**body, "workspace_id": workspace})
        names = {problem["path"].partition("[")[0] for problem in answer["data"]["errors"]}
        assert (status, names) == (400, set(body))
        await api.expect_error(400, "workspace_id", "POST", "prompts", {"name": "p", **SMALL})
        inside = {"name": "p", **SMALL, "workspace_id": workspace}
        await api.expect_error(404, "is no collection", "POST", "prompts", {**inside, "collection_id": "co-none"})
        await api.expect_error(400, "'partials' is not allowed", "POST", "prompts", {**inside, "slug": "partials"})
        both = {"template_metadata": {}, "prompt_metadata": {"a": 1}}
        await api.expect_error(400, "send one of them", "POST", "prompts", {**inside, **both})
        await create_prompt(api, workspace, slug="mine")
        await api.expect_error(409, "this slug is taken", "POST", "prompts", {**inside, "slug": "mine"})

    run_scenario(bootstrapped_url, scenario)


def test_problems_of_all_checks_are_reported_together(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        wrong: dict[str, Any] = {
            "string": "{{#a}}",
            "collection_id": "co-none",
            "template_metadata": {},
            "prompt_metadata": {"a": 1},
        }
        expected = {"string", "collection_id", "prompt_metadata"}
        body = {"name": "p", **SMALL, **wrong, "slug": "partials", "workspace_id": workspace}
        status, answer, _ = await api("POST", "prompts", body)
        assert (status, {problem["path"] for problem in answer["data"]["errors"]}) == (400, {*expected, "slug"})
        created = await create_prompt(api, workspace)
        path = f"prompts/{created['id']}"
        status, answer, _ = await api("PUT", path, wrong)
        missing = {"parameters", "virtual_key", "model"}
        assert (status, {problem["path"] for problem in answer["data"]["errors"]}) == (400, expected | missing)
        status, answer, _ = await api("PUT", path, {**wrong, "patch": True})
        assert (status, {problem["path"] for problem in answer["data"]["errors"]}) == (400, expected)
        status, answer, _ = await api("POST", f"{path}/fork", {"version": 7, "collection_id": "co-none"})
        assert {problem["path"] for problem in answer["data"]["errors"]} == {"version", "collection_id"}
        partial = {"name": "t", "string": "{{#a}}", "collection_id": "co-none", "workspace_id": workspace}
        status, answer, _ = await api("POST", "prompts/partials", partial)
        assert {problem["path"] for problem in answer["data"]["errors"]} == {"string", "collection_id"}

    run_scenario(bootstrapped_url, scenario)


def test_missing_provider_is_a_warning(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace)
        message = "names the saved provider '@my-openai', which does not exist in this workspace"
        assert created["warnings"] == [{"path": "virtual_key", "message": message}]
        provider = {"name": "v", "slug": "my-openai", "provider": "openai", "key": "sk-0123456789"}
        await api.request_ok("POST", "virtual-keys", {**provider, "workspace_id": workspace})
        assert "warnings" not in await create_prompt(api, workspace)
        body = {"patch": True, "virtual_key": "my-opena"}
        answer = await api.request_ok("PUT", f"prompts/{created['id']}", body)
        assert "did you mean '@my-openai'?" in answer["warnings"][0]["message"]

    run_scenario(bootstrapped_url, scenario)


def test_partials_of_a_template_must_exist(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        await create_partial(api, here, "tone")
        await create_partial(api, there, "theirs")
        body = {"name": "p", **SMALL, "workspace_id": here, "string": "{{>tone}} {{>tune}} {{>theirs}}"}
        status, answer, _ = await api("POST", "prompts", body)
        assert (status, answer["data"]["errors"]) == (
            400,
            [
                {
                    "path": "string",
                    "message": "refers to the partial 'tune', which does not exist; did you mean 'tone'?",
                },
                {
                    "path": "string",
                    "message": "refers to the partial 'theirs', which does not exist; create the partial first",
                },
            ],
        )
        created = await create_prompt(api, here, string="{{>tone}}")
        await api.expect_error(400, "'none'", "PUT", f"prompts/{created['id']}", {"string": "{{>none}}", "patch": True})
        await add_version(api, created["id"], "no partial")
        await api.request_ok("PUT", f"prompts/{created['id']}/makeDefault", {"version": 2})
        # No published version uses the partial any more, so it can be deleted.
        await api.request_ok("DELETE", "prompts/partials/tone")
        await api.expect_error(
            400, "version refers to the partial 'tone'", "PUT", f"prompts/{created['id']}/makeDefault", {"version": 1}
        )
        label = await find_label(api, here, "staging")
        path = f"prompts/{created['id']}/versions/{created['version_id']}"
        await api.expect_error(400, "'tone'", "PUT", path, {"label_id": label})

    run_scenario(bootstrapped_url, scenario)


def test_label_moves_from_one_version_to_another(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        created = await create_prompt(api, here)
        first, prompt = created["version_id"], created["slug"]
        second = await add_version(api, prompt, "two")
        production, staging = [await find_label(api, here, name) for name in ("production", "staging")]
        await put_label(api, prompt, first, production)
        stored = await read_version(api, prompt, "production")
        assert (stored["prompt_version"], stored["prompt_version_label_id"]) == (1, production)
        assert stored["prompt_version_label_name"] == "production"
        await put_label(api, prompt, first, "staging")
        stored = await read_version(api, prompt, "1")
        assert (stored["prompt_version_label_id"], len(stored["prompt_version_labels"])) == (staging, 2)
        await put_label(api, prompt, second, production)
        await put_label(api, prompt, second, production)
        assert (await read_version(api, prompt, "production"))["prompt_version"] == 2
        rows = (await api.request_ok("GET", f"prompts/{prompt}/versions"))["data"]
        assert [(row["label_id"], [label["name"] for label in row["labels"]]) for row in rows] == [
            (production, ["production"]),
            (staging, ["staging"]),
        ]
        await put_label(api, prompt, second, None)
        await put_label(api, prompt, second, None)
        await api.expect_error(404, "has no version 'production'", "GET", f"prompts/{prompt}?version=production")
        other = await find_label(api, there, "production")
        path = f"prompts/{prompt}/versions/{first}"
        for unknown in (other, new_id(), "none"):
            await api.expect_error(404, "is no label of this workspace", "PUT", path, {"label_id": unknown})
        await api.expect_error(400, "label_id is needed", "PUT", path, {})
        records = (await api.request_ok("GET", f"audit-logs?workspace_id={here}"))["records"]
        actions = [row["action"] for row in records if row["resource_type"] == "prompt_labels"]
        assert actions == ["delete", "update", "create", "create"]

    run_scenario(bootstrapped_url, scenario)


def test_lists_filter_and_page(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": here})
        first = (await create_prompt(api, here, name="Alpha", collection_id=folder["id"]))["id"]
        two = (await create_prompt(api, here, name="Beta 100%"))["id"]
        three = (await create_prompt(api, there, name="Gamma", slug="alphabet"))["id"]
        for query, expected_ids in {
            "": [three, two, first],
            f"workspace_id={here}": [two, first],
            f"workspace_id={here}&page_size=1&current_page=1": [first],
            f"collection_id={folder['id']}": [first],
            f"collection_id={folder['slug']}": [first],
            f"collection_id={new_id()}": [],
            "search=ALPHA": [three, first],
            "search=100%25": [two],
            "sort=name&order=asc": [first, two, three],
            "type=shared": [],
        }.items():
            listed = await api.request_ok("GET", f"prompts?{query}")
            assert [row["id"] for row in listed["data"]] == expected_ids, query
            assert listed["object"] == "list"
        (row,) = (await api.request_ok("GET", f"prompts?workspace_id={there}"))["data"]
        assert {"model": "gpt-4o", "status": "active", "object": "prompt", "slug": "alphabet"}.items() <= row.items()
        assert "access_level" not in row
        (row,) = (await api.request_ok("GET", f"prompts?workspace_id={there}&show_prompt_share=true"))["data"]
        assert (row["access_level"], row["prompt_owning_workspace_id"]) == ("workspace", there)
        await api.expect_error(400, "type", "GET", "prompts?type=mine")

    run_scenario(bootstrapped_url, scenario)


def test_prompt_is_deleted_with_its_versions_and_labels(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace)
        await put_label(api, created["id"], created["version_id"], "production")
        assert await api.request_ok("DELETE", f"prompts/{created['slug']}") == {}
        await api.expect_error(404, created["slug"], "GET", f"prompts/{created['slug']}")
        async with api.database.read_connection() as connection:
            for table in (versions, prompt_labels):
                assert await connection.scalar(select(func.count()).select_from(table)) == 0
        records = (await api.request_ok("GET", f"audit-logs?workspace_id={workspace}"))["records"]
        actions = [(row["resource_type"], row["action"]) for row in records]
        assert actions[:3] == [("prompts", "delete"), ("prompt_labels", "create"), ("prompts", "create")]

    run_scenario(bootstrapped_url, scenario)


def test_prompt_moves_to_another_collection_and_can_be_archived(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": here})
        theirs = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": there})
        path = f"prompts/{(await create_prompt(api, here))['id']}"
        assert await api.request_ok("PUT", path, {"collection_id": folder["slug"], "status": "archived"}) == {}
        stored = await api.request_ok("GET", path)
        assert (stored["collection_id"], stored["status"]) == (folder["id"], "archived")
        assert stored["prompt_version_status"] == "archived"
        await api.expect_error(404, "is no collection", "PUT", path, {"collection_id": theirs["id"]})
        await api.expect_error(400, "expected active or archived", "PUT", path, {"status": "deleted"})

    run_scenario(bootstrapped_url, scenario)


def test_largest_template_is_read_back(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        # Each character takes six bytes in the request.
        largest = "\x01" * MAX_TEMPLATE_BYTES
        created = await create_prompt(api, workspace, string=largest)
        assert (await read_version(api, created["id"]))["string"] == largest
        body = {"patch": True, "string": f"{largest}x"}
        await api.expect_error(
            400, "string has 1048577 bytes; at most 1048576", "PUT", f"prompts/{created['id']}", body
        )
        body = {"name": "n", "string": f"{largest}x", "workspace_id": workspace}
        await api.expect_error(400, "string has 1048577 bytes", "POST", "prompts/partials", body)

    run_scenario(bootstrapped_url, scenario)


def test_number_of_versions_is_limited(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_prompts, "MAX_VERSIONS", 2)

    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace)
        await add_version(api, created["id"], "two")
        body = {"string": "three", "patch": True}
        await api.expect_error(409, "has 2 versions, and at most 2", "PUT", f"prompts/{created['id']}", body)
        assert await api.request_ok("PUT", f"prompts/{created['id']}", {"name": "n"}) == {}

    run_scenario(bootstrapped_url, scenario)


def test_if_match_and_idempotency_keys_are_observed(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "p", **SMALL, "workspace_id": workspace}
        first, again = [(await api("POST", "prompts", body, idempotency_key="k")) for _ in range(2)]
        assert (first[1], again[2].get("idempotency-replayed")) == (again[1], "true")
        path = f"prompts/{first[1]['id']}"
        version = f"{path}/versions/{first[1]['version_id']}"
        for method, target, change in (
            ("PUT", path, {"name": "new"}),
            ("PUT", path, {"string": "new", "patch": True}),
            ("PUT", version, {"label_id": "production"}),
            ("PUT", f"{path}/makeDefault", {"version": 2}),
            ("PUT", f"{path}/share", {}),
            ("DELETE", f"{path}/share", None),
            ("DELETE", path, None),
        ):
            _, _, headers = await api("GET", path)
            stale = headers["etag"]
            await api.request_ok("PUT", path, {"name": f"before {method} {target}"})
            assert (await api(method, target, change, if_match=stale))[0] == 412, (method, target)
            _, _, headers = await api("GET", path)
            status, _, after = await api(method, target, change, if_match=headers["etag"])
            assert status == 200, (method, target)
            assert method == "DELETE" or after["etag"].partition(".")[0] != headers["etag"].partition(".")[0]

    run_scenario(bootstrapped_url, scenario)


def test_keys_of_a_workspace_reach_only_its_prompts(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        _, inside = await api.create_key("workspace/service", workspace_id=here, scopes=SCOPES)
        theirs = await create_prompt(api, there)
        own = await inside.request_ok("POST", "prompts", {"name": "p", **SMALL})
        assert [row["id"] for row in (await inside.request_ok("GET", "prompts"))["data"]] == [own["id"]]
        path, version = f"prompts/{theirs['id']}", f"prompts/{theirs['id']}/versions/{theirs['version_id']}"
        for method, target, body in (
            ("GET", path, None),
            ("PUT", path, {"name": "stolen"}),
            ("DELETE", path, None),
            ("GET", f"{path}/versions", None),
            ("GET", version, None),
            ("PUT", version, {"label_id": None}),
            ("POST", f"{path}/fork", {}),
        ):
            await inside.expect_error(404, theirs["id"], method, target, body)
        folder = (await api.request_ok("GET", f"collections?workspace_id={there}"))["data"][0]["id"]
        await inside.expect_error(
            404, "is no collection", "POST", "prompts", {"name": "p", **SMALL, "collection_id": folder}
        )

    run_scenario(bootstrapped_url, scenario)


def test_publishing_needs_its_own_scope(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        _, writer = await api.create_key("workspace/service", workspace_id=workspace, scopes=SCOPES)
        _, publisher = await api.create_key("workspace/service", workspace_id=workspace, scopes=["prompts.publish"])
        created = await create_prompt(writer, workspace)
        path = f"prompts/{created['id']}"
        for method, target, body in (
            ("PUT", f"{path}/makeDefault", {"version": 1}),
            ("POST", f"{path}/share", {}),
            ("DELETE", f"{path}/unshare", None),
        ):
            await writer.expect_error(403, "prompts.publish", method, target, body)
            await publisher.request_ok(method, target, body)
        await publisher.expect_error(403, "prompts.update", "PUT", path, {"name": "n"})

    run_scenario(bootstrapped_url, scenario)


def test_members_read_prompts_and_write_them_only_if_the_workspace_lets_them(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("m@example.test", workspaces=[{"id": workspace, "role": "member"}])
        scopes = [*SCOPES, "prompts.publish"]
        _, member = await api.create_key("workspace/user", workspace_id=workspace, user_id=user, scopes=scopes)
        created = await create_prompt(api, workspace)
        path = f"prompts/{created['id']}"
        changes: list[tuple[str, str, Any]] = [
            ("POST", "prompts", {"name": "p", **SMALL}),
            ("PUT", path, {"name": "n"}),
            ("PUT", f"{path}/makeDefault", {"version": 1}),
            ("POST", "labels", {"name": "canary"}),
            ("POST", "collections", {"name": "c"}),
            ("POST", "prompts/partials", {"name": "p", "string": "s"}),
        ]
        for target in (path, f"{path}/versions", "prompts", "prompts/partials", "collections", "labels"):
            await member.request_ok("GET", target)
        for method, target, body in changes:
            await member.expect_error(403, "prompts.", method, target, body)
        settings = {"security_settings": {"membersWritePrompts": True}}
        await api.request_ok("PUT", f"workspaces/{workspace}", settings)
        member.clear_caller_cache()
        for method, target, body in changes:
            await member.request_ok(method, target, body)
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": {"membersViewPrompts": False}})
        member.clear_caller_cache()
        for target in (path, "prompts", "labels"):
            await member.expect_error(403, "prompts.", "GET", target)

    run_scenario(bootstrapped_url, scenario)


def test_user_of_several_workspaces_selects_one_with_the_collection(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        here, there = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        roles = [{"id": workspace, "role": "manager"} for workspace in (here, there)]
        user = await api.create_user("u@example.test", workspaces=roles)
        _, client = await api.create_key("organisation/user", user_id=user, scopes=SCOPES)
        folder = (await api.request_ok("GET", f"collections?workspace_id={there}"))["data"][0]["id"]
        created = await client.request_ok("POST", "prompts", {"name": "p", **SMALL, "collection_id": folder})
        assert (await api.request_ok("GET", f"prompts/{created['id']}"))["workspace_id"] == there
        await client.request_ok("PUT", f"prompts/{created['id']}", {"string": "two", "patch": True})
        await client.expect_error(400, "workspace_id", "POST", "prompts", {"name": "p", **SMALL})

    run_scenario(bootstrapped_url, scenario)


def test_routes_have_aliases_under_v2(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        created = await create_prompt(api, workspace)
        await create_partial(api, workspace, "tone")
        for path in (f"prompts/{created['id']}", "prompts/partials/tone"):
            for prefix in ("/v2", "/v1/v2"):
                assert (await api.fetch(f"{prefix}/{path}")).status == 200, (prefix, path)

    run_scenario(bootstrapped_url, scenario)


def test_requests_of_the_page_work(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await api.create_workspace("support")
        other = (await api.request_ok("GET", "workspaces?exact_name=support"))["data"][0]["slug"]
        scopes = [*SCOPES, "prompts.publish"]
        _, client = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
        # An integration test sends the requests to the data plane and those about analytics.
        requests = [
            request
            for page in PAGES
            for request in read_requests(page)
            if not request[1].endswith(DATA_PLANE_ACTIONS) and not request[1].startswith("analytics/")
        ]
        assert len(requests) >= 12
        created: dict[str, str] = {"ws-support-1f2e3d": other}
        for method, path, body in requests:
            for name, value in created.items():
                path = path.replace(name, value)  # noqa: PLW2901 - the ids of this run
                body = fill_in(body, name, value)  # noqa: PLW2901 - as above
            # Paths below `/v2` exist below `/v1/v2`, too.
            answer = await client.request_ok(method, path.removeprefix("$URL/"), body)
            if (method, path) == ("POST", "prompts"):
                created["$PROMPT"] = answer["slug"]
            if "prompt_version_id" in answer and method == "PUT":
                created["$VERSION_ID"] = answer["prompt_version_id"]
            if (method, path) == ("POST", "collections"):
                created["co-support-1f2e3d"] = answer["slug"]

    run_scenario(bootstrapped_url, scenario)


def fill_in(body: Any, name: str, value: str) -> Any:
    """Replaces a placeholder in the values of a body."""
    if isinstance(body, dict):
        return {key: fill_in(item, name, value) for key, item in body.items()}
    if isinstance(body, list):
        return [fill_in(item, name, value) for item in body]
    return value if body == name else body
