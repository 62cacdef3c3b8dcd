"""Labels of prompt versions: names, built-in labels, and protected labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.ids import new_id
from penstock.prompts import labels as saved_labels
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import SCOPES, add_version, create_prompt, find_label, put_label

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True
PUBLISH = "prompts.publish"


async def create_label(api: ManagementClient, location: str, name: str, **fields: object) -> str:
    label = await api.request_ok("POST", "labels", {"name": name, "workspace_id": location, **fields})
    assert label["object"] == "label"
    return label["id"]


def test_every_field_is_read_back(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        fields = {"name": "canary", "description": "for a few", "color_code": "#00ff00", "protected": True}
        organisation = {"organization_id": workspace["organisation_id"]}
        label = await create_label(api, workspace["slug"], **{**fields, **organisation})
        path = f"labels/{label}"
        fetched = await api.request_ok("GET", f"{path}?organisation_id={workspace['organisation_id']}")
        expected = {**fields, "id": label, "workspace_id": workspace["id"], "is_universal": False, "status": "active"}
        expected |= {"organisation_id": workspace["organisation_id"], "object": "label"}
        assert {name: fetched[name] for name in expected} == expected
        assert await api.request_ok("PUT", path, fetched) == {}
        changed = {"name": "beta", "description": None, "color_code": None, "protected": False}
        assert await api.request_ok("PUT", path, changed) == {}
        fetched = await api.request_ok("GET", path)
        assert {name: fetched[name] for name in changed} == changed
        assert await api.request_ok("DELETE", path) == {}
        await api.expect_error(404, label, "GET", path)

    run_scenario(bootstrapped_url, scenario)


def test_all_problems_of_a_label_are_reported_at_once(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_labels, "MAX_LABELS", 3)

    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "production", "workspace_id": workspace}
        for words in ("'production' is the name of another label", "has 3 labels; at most 3 are allowed"):
            await api.expect_error(409, words, "POST", "labels", body)
        faulty = {"name": "latest", "description": 1, "color_code": 2, "protected": "x", "colour": "red"}
        for field in faulty:
            await api.expect_error(400, field, "POST", "labels", {**body, **faulty})

    run_scenario(bootstrapped_url, scenario)


def test_built_in_labels_keep_their_names(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        rows = (await api.request_ok("GET", f"labels?workspace_id={workspace}"))["data"]
        assert {(row["name"], row["is_universal"], row["protected"]) for row in rows} == {
            (name, True, False) for name in ("production", "staging", "development")
        }
        path = f"labels/{rows[0]['id']}"
        await api.expect_error(409, "is built in and cannot be deleted", "DELETE", path)
        await api.expect_error(409, "name cannot be changed", "PUT", path, {"name": "other"})
        assert await api.request_ok("PUT", path, {**rows[0], "color_code": "red"}) == {}
        assert (await api.request_ok("GET", path))["color_code"] == "red"

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("name", ["latest", "default", "12", "", "a@b", "a b", "a..b", "x" * 256, "a\n"])
def test_names_that_select_no_label_are_rejected(bootstrapped_url: Secret, name: str):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await api.expect_error(400, "name", "POST", "labels", {"name": name, "workspace_id": workspace})

    run_scenario(bootstrapped_url, scenario)


def test_names_of_labels_are_unique_in_a_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        for name in ("v1.2", "1a", "Latest", "-_"):
            await create_label(api, first_workspace, name)
        await create_label(api, second_workspace, "1a")
        for name in ("1a", "production"):
            body = {"name": name, "workspace_id": first_workspace}
            await api.expect_error(409, "is the name of another label", "POST", "labels", body)
        label = await find_label(api, first_workspace, "v1.2")
        await api.expect_error(409, "is the name of another label", "PUT", f"labels/{label}", {"name": "1a"})
        body = {"name": "b", "workspace_id": first_workspace}
        for field in ("organisation_id", "organization_id"):
            await api.expect_error(403, "organisation", "POST", "labels", {**body, field: new_id()})
        await api.expect_error(400, "workspace_id", "POST", "labels", {"name": "b"})

    run_scenario(bootstrapped_url, scenario)


def test_lists_filter_by_workspace_and_name(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [(await api.create_workspace(name))["id"] for name in ("here", "there")]
        label, two = (
            await create_label(api, first_workspace, "Canary-1"),
            await create_label(api, second_workspace, "canary-2"),
        )
        for query, actual in {
            "search=CANARY": [two, label],
            f"search=canary&workspace_id={first_workspace}": [label],
            "search=canary&page_size=1&current_page=1": [label],
            "search=%25": [],
        }.items():
            assert [row["id"] for row in (await api.request_ok("GET", f"labels?{query}"))["data"]] == actual
        _, inside = await api.create_key("workspace/service", workspace_id=first_workspace, scopes=SCOPES)
        assert (await inside.request_ok("GET", "labels"))["total"] == 4
        for method in ("GET", "PUT", "DELETE"):
            await inside.expect_error(404, two, method, f"labels/{two}", {} if method == "PUT" else None)

    run_scenario(bootstrapped_url, scenario)


def test_label_on_a_version_cannot_be_deleted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        label = await create_label(api, workspace, "canary")
        created = [await create_prompt(api, workspace, slug=f"p{number}") for number in range(7)]
        for prompt in created:
            await put_label(api, prompt["id"], prompt["version_id"], label)
        users = "'p0', 'p1', 'p2', 'p3', 'p4' and 2 more; remove it from them first"
        await api.expect_error(409, users, "DELETE", f"labels/{label}")
        await api.request_ok("PUT", f"labels/{label}", {"name": "beta"})
        assert (await api.request_ok("GET", "prompts/p0?version=beta"))["prompt_version_label_id"] == label
        for prompt in created:
            await api.request_ok("DELETE", f"prompts/{prompt['id']}")
        await api.request_ok("DELETE", f"labels/{label}")

    run_scenario(bootstrapped_url, scenario)


def test_protected_label_needs_the_scope_to_publish(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        _, writer = await api.create_key("workspace/service", workspace_id=workspace, scopes=SCOPES)
        _, publisher = await api.create_key("workspace/service", workspace_id=workspace, scopes=[*SCOPES, PUBLISH])
        prompt = await create_prompt(api, workspace)
        second = await add_version(api, prompt["id"], "two")
        label, free = await find_label(api, workspace, "production"), await find_label(api, workspace, "staging")
        path = f"prompts/{prompt['id']}/versions"
        await writer.expect_error(403, PUBLISH, "PUT", f"labels/{label}", {"protected": True})
        await writer.expect_error(403, PUBLISH, "POST", "labels", {"name": "x", "protected": True})
        await publisher.request_ok("PUT", f"labels/{label}", {"protected": True})
        for change in ({"protected": False}, {"description": "mine"}):
            await writer.expect_error(403, PUBLISH, "PUT", f"labels/{label}", change)
        put: dict[str, Any] = {"label_id": label}
        await writer.expect_error(403, PUBLISH, "PUT", f"{path}/{second}", put)
        await put_label(writer, prompt["id"], second, free)
        await put_label(publisher, prompt["id"], prompt["version_id"], label)
        # A protected label may be put on the version that already has it, because nothing changes.
        await put_label(writer, prompt["id"], prompt["version_id"], label)
        await writer.expect_error(403, PUBLISH, "PUT", f"{path}/{second}", put)
        await writer.expect_error(403, PUBLISH, "PUT", f"{path}/{prompt['version_id']}", {"label_id": None})
        await put_label(writer, prompt["id"], second, None)
        await put_label(publisher, prompt["id"], prompt["version_id"], None)

    run_scenario(bootstrapped_url, scenario)


def test_number_of_labels_is_limited(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_labels, "MAX_LABELS", 4)

    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_label(api, workspace, "one")
        body = {"name": "two", "workspace_id": workspace}
        await api.expect_error(409, "has 4 labels; at most 4 are allowed", "POST", "labels", body)

    run_scenario(bootstrapped_url, scenario)


def test_if_match_protects_labels(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        path = f"labels/{await create_label(api, workspace, 'canary')}"
        _, _, headers = await api("GET", path)
        assert (await api("PUT", path, {"description": "a"}, if_match=headers["etag"]))[0] == 200
        assert (await api("PUT", path, {"description": "b"}, if_match=headers["etag"]))[0] == 412
        assert (await api("DELETE", path, if_match=headers["etag"]))[0] == 412

    run_scenario(bootstrapped_url, scenario)
