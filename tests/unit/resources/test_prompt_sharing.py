"""Sharing of prompts with other workspaces: who may read them, forks, and what sharing blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.ids import new_id
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import SCOPES, SMALL, TEMPLATE, add_version, create_partial, create_prompt

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

# `tests/integration/test_prompt_routes.py` covers both databases.
ONE_STORE = True


async def create_workspaces(api: ManagementClient, *names: str) -> list[Any]:
    return [await api.create_workspace(name) for name in names]


async def client_of(api: ManagementClient, workspace: Any) -> ManagementClient:
    _, client = await api.create_key(
        "workspace/service", workspace_id=workspace["id"], scopes=[*SCOPES, "prompts.publish"]
    )
    return client


def test_shared_prompt_can_be_read_and_not_changed(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient, other_client = await create_workspaces(api, "owner", "friend", "stranger")
        prompt = await create_prompt(api, owner["id"], name="greeting")
        await create_prompt(api, owner["id"], name="private")
        path = f"prompts/{prompt['slug']}"
        theirs, others, own = [await client_of(api, location) for location in (recipient, other_client, owner)]
        await theirs.expect_error(404, prompt["slug"], "GET", path)
        shared = await own.request_ok("POST", f"{path}/share", {"workspaces": [recipient["slug"], owner["id"]]})
        expected = {
            "access_level": "organisation",
            "share_organisation_id": owner["organisation_id"],
            "shared_from_version_id": prompt["version_id"],
            "allow_all_workspaces": False,
            "shared_with": [recipient["id"]],
            "prompt_owning_workspace_id": owner["id"],
        }
        assert {name: shared[name] for name in expected} == expected
        assert shared["shared_at"]
        fetched = await theirs.request_ok("GET", path)
        assert {name: fetched[name] for name in expected} == expected
        assert (await theirs.request_ok("GET", f"{path}/versions"))["total"] == 1
        await theirs.request_ok("GET", f"{path}/versions/{prompt['version_id']}")
        for method, target, body in (
            ("PUT", path, {"name": "stolen"}),
            ("DELETE", path, None),
            ("PUT", f"{path}/makeDefault", {"version": 1}),
            ("POST", f"{path}/share", {}),
            ("DELETE", f"{path}/unshare", None),
            ("PUT", f"{path}/versions/{prompt['version_id']}", {"label_id": None}),
        ):
            await theirs.expect_error(404, prompt["slug"], method, target, body)
        (row,) = (await theirs.request_ok("GET", "prompts?type=shared&show_prompt_share=true"))["data"]
        assert (row["id"], row["shared_with"]) == (prompt["id"], [recipient["id"]])
        assert (await theirs.request_ok("GET", "prompts"))["total"] == 0
        for client, count in ((others, 0), (own, 0), (api, 1)):
            assert (await client.request_ok("GET", "prompts?type=shared"))["total"] == count
        await others.expect_error(404, prompt["slug"], "GET", path)
        await own.request_ok("PUT", f"{path}/share", {"allow_all_workspaces": True})
        fetched = await others.request_ok("GET", path)
        assert (fetched["allow_all_workspaces"], fetched["shared_with"]) == (True, [])
        await own.request_ok("PUT", path, {"status": "archived"})
        await others.expect_error(404, prompt["slug"], "GET", path)
        await own.request_ok("PUT", path, {"status": "active"})
        await own.request_ok("DELETE", f"{path}/unshare")
        await others.expect_error(404, prompt["slug"], "GET", path)
        fetched = await own.request_ok("GET", path)
        assert (fetched["access_level"], fetched["shared_at"]) == ("workspace", None)
        records = (await api.request_ok("GET", f"audit-logs?workspace_id={owner['id']}"))["records"]
        actions = [row["action"] for row in records if row["resource_id"] == prompt["id"]]
        assert actions == ["unshare", "update", "update", "share", "share", "create"]

    run_scenario(bootstrapped_url, scenario)


def test_share_and_unshare_work_with_each_method_and_path(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        (owner,) = await create_workspaces(api, "owner")
        path = f"prompts/{(await create_prompt(api, owner['id']))['id']}"
        for prefix in ("", "v2/"):
            for share, (unshare, below) in (
                ("POST", ("POST", "unshare")),
                ("PUT", ("PUT", "unshare")),
                ("POST", ("DELETE", "unshare")),
                ("POST", ("DELETE", "share")),
            ):
                assert (await api.request_ok(share, f"{prefix}{path}/share"))["allow_all_workspaces"]
                assert await api.request_ok(unshare, f"{prefix}{path}/{below}") == {}
                assert (await api.request_ok("GET", path))["access_level"] == "workspace"

    run_scenario(bootstrapped_url, scenario)


def test_invalid_shares_are_rejected(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient = await create_workspaces(api, "owner", "friend")
        path = f"prompts/{(await create_prompt(api, owner['id']))['id']}/share"
        for status, word, body in (
            (404, "workspaces[1] 'ws-none'", {"workspaces": [recipient["id"], "ws-none"]}),
            (404, "also workspaces[2] 'ws-gone'", {"workspaces": ["ws-none", recipient["id"], "ws-gone"]}),
            (400, "only the prompt's own workspace", {"workspaces": [owner["id"]]}),
            (400, "send one of them", {"workspaces": [recipient["id"]], "allow_all_workspaces": True}),
            (400, "workspaces is needed", {"allow_all_workspaces": False}),
            (400, "workspaces has 0 items", {"workspaces": []}),
            (400, "unknown field", {"workspace": recipient["id"]}),
        ):
            await api.expect_error(status, word, "POST", path, body)

    run_scenario(bootstrapped_url, scenario)


def test_fork_copies_the_version_and_missing_partials(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient = await create_workspaces(api, "owner", "friend")
        await create_partial(api, owner["id"], "inner", "deep")
        await create_partial(api, owner["id"], "outer", "{{>inner}}")
        await create_partial(api, owner["id"], "same", "of the owner")
        await create_partial(api, recipient["id"], "same", "of the friend")
        text = "{{>outer}} {{>same}}"
        prompt = await create_prompt(api, owner["id"], **{**TEMPLATE, "string": text}, name="greeting")
        await add_version(api, prompt["id"], "newer")
        theirs = await client_of(api, recipient)
        await theirs.expect_error(404, prompt["slug"], "POST", f"prompts/{prompt['slug']}/fork")
        await api.request_ok("POST", f"prompts/{prompt['id']}/share", {"workspaces": [recipient["id"]]})
        fork = await theirs.request_ok("POST", f"v2/prompts/{prompt['slug']}/fork")
        fetched = await theirs.request_ok("GET", f"prompts/{fork['id']}")
        assert {name: fetched[name] for name in TEMPLATE} == {**TEMPLATE, "string": text}
        expected = {
            "name": "greeting",
            "workspace_id": recipient["id"],
            "forked_from_prompt_id": prompt["id"],
            "forked_from_prompt_version_id": prompt["version_id"],
            "access_level": "workspace",
            "latest_version": 1,
        }
        assert {name: fetched[name] for name in expected} == expected
        texts = {
            slug: (await theirs.request_ok("GET", f"prompts/partials/{slug}"))["string"]
            for slug in ("inner", "outer", "same")
        }
        assert texts == {"inner": "deep", "outer": "{{>inner}}", "same": "of the friend"}
        second = await theirs.request_ok("PUT", f"prompts/{prompt['slug']}/fork", {"version": 2, "name": "second"})
        fetched = await theirs.request_ok("GET", f"prompts/{second['id']}")
        assert (fetched["string"], fetched["name"]) == ("newer", "second")
        # A fork does not depend on its source.
        await api.request_ok("DELETE", f"prompts/{prompt['id']}/unshare")
        await api.request_ok("DELETE", f"prompts/{prompt['id']}")
        assert (await theirs.request_ok("GET", f"prompts/{fork['id']}"))["forked_from_prompt_id"] == prompt["id"]

    run_scenario(bootstrapped_url, scenario)


def test_key_of_the_organisation_forks_into_any_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient = await create_workspaces(api, "owner", "friend")
        prompt = await create_prompt(api, owner["id"])
        inside = await api.request_ok("POST", f"prompts/{prompt['id']}/fork")
        assert (await api.request_ok("GET", f"prompts/{inside['id']}"))["workspace_id"] == owner["id"]
        folder = await api.request_ok("POST", "collections", {"name": "c", "workspace_id": recipient["id"]})
        target = {"workspace_id": recipient["slug"], "collection_id": folder["slug"]}
        there = await api.request_ok("POST", f"prompts/{prompt['slug']}/fork", target)
        fetched = await api.request_ok("GET", f"prompts/{there['id']}")
        assert (fetched["workspace_id"], fetched["collection_id"]) == (recipient["id"], folder["id"])
        path = f"prompts/{prompt['id']}/fork"
        await api.expect_error(404, "version 3 does not exist", "POST", path, {"version": 3})
        await api.expect_error(404, "is no collection", "POST", path, {"collection_id": new_id()})
        await api.expect_error(403, "not open", "POST", path, {"workspace_id": "ws-none"})
        _, _, headers = await api("GET", f"prompts/{prompt['id']}")
        await api.request_ok("PUT", f"prompts/{prompt['id']}", {"name": "n"})
        assert (await api("PUT", path, {}, if_match=headers["etag"]))[0] == 412

    run_scenario(bootstrapped_url, scenario)


def test_member_of_both_workspaces_forks_between_them(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient, other_client = await create_workspaces(api, "owner", "friend", "stranger")
        roles = [{"id": workspace["id"], "role": "manager"} for workspace in (owner, recipient)]
        user = await api.create_user("u@example.test", workspaces=roles)
        _, client = await api.create_key("organisation/user", user_id=user, scopes=SCOPES)
        prompt = await create_prompt(api, owner["id"])
        hidden = await create_prompt(api, other_client["id"])
        fork = await client.request_ok("POST", f"prompts/{prompt['id']}/fork", {"workspace_id": recipient["id"]})
        assert (await client.request_ok("GET", f"prompts/{fork['id']}"))["workspace_id"] == recipient["id"]
        fork = await client.request_ok("POST", f"prompts/{prompt['id']}/fork")
        assert (await client.request_ok("GET", f"prompts/{fork['id']}"))["workspace_id"] == owner["id"]
        for body in ({}, {"workspace_id": recipient["id"]}):
            await client.expect_error(404, hidden["id"], "POST", f"prompts/{hidden['id']}/fork", body)

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("role_in_owner", [None, "member"])
def test_fork_needs_a_workspace_in_which_the_caller_may_create(bootstrapped_url: Secret, role_in_owner: str | None):
    async def scenario(api: ManagementClient) -> None:
        owner, recipient = await create_workspaces(api, "owner", "friend")
        roles = [{"id": recipient["id"], "role": "manager"}]
        if role_in_owner:
            roles.append({"id": owner["id"], "role": role_in_owner})
        user = await api.create_user("u@example.test", workspaces=roles)
        _, client = await api.create_key("organisation/user", user_id=user, scopes=SCOPES)
        await create_partial(api, owner["id"], "tone")
        prompt = await create_prompt(api, owner["id"], **{**TEMPLATE, "string": "{{>tone}}"})
        await api.request_ok("POST", f"prompts/{prompt['id']}/share", {"workspaces": [recipient["id"]]})
        path = f"prompts/{prompt['id']}/fork"
        for body in (None, {}, {"name": "copy"}):
            await client.expect_error(400, "workspace_id is required", "POST", path, body)
        await client.expect_error(
            403, "prompts.create" if role_in_owner else "not open", "POST", path, {"workspace_id": owner["id"]}
        )
        assert (await api.request_ok("GET", f"prompts?workspace_id={owner['id']}"))["total"] == 1
        fork = await client.request_ok("POST", path, {"workspace_id": recipient["id"]})
        assert (await client.request_ok("GET", f"prompts/{fork['id']}"))["workspace_id"] == recipient["id"]

    run_scenario(bootstrapped_url, scenario)


def test_workspace_with_shared_prompts_cannot_be_deleted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, _ = await create_workspaces(api, "owner", "friend")
        prompt = await create_prompt(api, owner["id"])
        await create_partial(api, owner["id"], "tone")
        path, forced = f"workspaces/{owner['id']}", {"name": "owner", "force_delete": True}
        await api.expect_error(409, "1 prompts, 1 prompt_partials", "DELETE", path)
        await api.request_ok("POST", f"prompts/{prompt['id']}/share")
        for body in (None, forced):
            await api.expect_error(409, "unshare them first", "DELETE", path, body)
        await api.request_ok("POST", f"prompts/{prompt['id']}/unshare")
        await api.request_ok("DELETE", path, forced)
        for listed in ("prompts", "prompts/partials"):
            assert (await api.request_ok("GET", listed))["total"] == 0
        for listed in ("collections", "labels"):
            rows = (await api.request_ok("GET", listed))["data"]
            assert owner["id"] not in {row["workspace_id"] for row in rows}

    run_scenario(bootstrapped_url, scenario)


def test_shared_prompt_does_not_take_over_a_slug(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        attacker, victim, third = await create_workspaces(api, "one", "two", "three")
        refusal = "means another prompt in workspaces that this one would be shared with"
        for slug in ("active", "archived", "deleted"):
            mine = await create_prompt(api, victim["id"], slug=slug)
            if slug == "archived":
                await api.request_ok("PUT", f"prompts/{mine['id']}", {"status": "archived"})
            if slug == "deleted":
                await api.request_ok("DELETE", f"prompts/{mine['id']}")
            other = await create_prompt(api, attacker["id"], slug=slug)
            path = f"prompts/{other['id']}/share"
            for body in (None, {"workspaces": [third["slug"], victim["slug"]]}):
                await api.expect_error(409, refusal, "POST", path, body)
            # Sharing with other workspaces is still possible.
            await api.request_ok("POST", path, {"workspaces": [third["slug"]]})
            later = await create_prompt(api, victim["id"], slug=f"{slug}-2")
            await api.request_ok("POST", f"prompts/{later['id']}/share")
        # What is shared already keeps its slug.
        second = await create_prompt(api, attacker["id"], slug="active-2")
        body = {"workspaces": [third["slug"]]}
        await api.expect_error(409, refusal, "POST", f"prompts/{second['id']}/share", body)

    run_scenario(bootstrapped_url, scenario)


def test_slug_of_several_shared_prompts_is_ambiguous(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def accept(*_: object) -> None:
        """Accepts a slug that is already taken, as earlier releases did."""

    monkeypatch.setattr("penstock.prompts.sharing._reject_taken_slug", accept)

    async def scenario(api: ManagementClient) -> None:
        workspaces, two, recipient = await create_workspaces(api, "one", "two", "friend")
        created = [await create_prompt(api, location["id"], slug="same") for location in (workspaces, two)]
        for prompt in created:
            await api.request_ok("POST", f"prompts/{prompt['id']}/share")
        client = await client_of(api, recipient)
        await client.expect_error(400, "several shared prompts", "GET", "prompts/same")
        assert (await client.request_ok("GET", f"prompts/{created[1]['id']}"))["workspace_id"] == two["id"]
        # Its own prompt comes first.
        own = await client.request_ok("POST", "prompts", {"name": "p", **SMALL, "slug": "same"})
        assert (await client.request_ok("GET", "prompts/same"))["id"] == own["id"]

    run_scenario(bootstrapped_url, scenario)
