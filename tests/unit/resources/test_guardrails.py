"""Guardrails: fields, versions, credentials, scopes, defaults, exclusions, and what the data plane gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import update

from penstock import engine
from penstock.ids import mask_secret
from penstock.snapshot.guardrail_sections import GuardrailTable
from penstock.snapshot.query import _read_workspaces
from penstock.store.guardrail_tables import guardrails
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.test_log_pages import read_requests
from tests.unit.snapshot.test_limit_sections import last_change

if TYPE_CHECKING:
    from penstock.secrets.vault import Vault
    from penstock.settings.secret import Secret

ONE_STORE = True

WORDS: dict[str, Any] = {"id": "default.wordCount", "parameters": {"minWords": 1, "maxWords": 9}}
TOKEN = "a-token-of-a-webhook"
URL = "https://hooks.example/check"
SCOPES = [f"guardrails.{verb}" for verb in ("create", "read", "update", "delete", "list")]
FULL_ACTIONS = {
    "deny": False,
    "async": False,
    "sequential": False,
    "dry_run": False,
    "on_success": {"feedback": {"value": 5, "weight": 1, "metadata": {}}},
    "on_fail": {"feedback": {"value": -5, "weight": 1, "metadata": {}}},
}


def webhook(**parameters: object) -> dict[str, Any]:
    return {
        "id": "default.webhook",
        "parameters": {"webhookURL": URL, "headers": {"authorization": TOKEN}, **parameters},
    }


async def create_guardrail(api: ManagementClient, **fields: object) -> Any:
    return await api.request_ok("POST", "guardrails", {"name": "g", "checks": [WORDS], **fields})


async def published_guardrails(api: ManagementClient) -> dict[str, Any]:
    """Returns the rows that the data plane gets, by slug."""
    vault: Vault = api.app.state["services"].vault
    async with api.database.read_connection() as connection:
        actual = await GuardrailTable(vault)._query_rows(connection, [])
    rows = [row for text, _, _ in actual.values() for row in msgspec.json.decode(b"[%s]" % text)]
    return {row["slug"]: row for row in rows}


async def workspace_defaults(api: ManagementClient, workspace_id: str) -> dict[str, Any]:
    """Returns the default guardrails that the data plane gets for a workspace."""
    async with api.database.read_connection() as connection:
        rows = await _read_workspaces(connection)
    row = next(row for row in rows if row["id"] == workspace_id)
    return {name: value for name, value in row.items() if name.endswith("_guardrails")}


def test_every_field_is_read_back_and_versions_are_kept(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        checks = [{**WORDS, "name": "Length", "is_enabled": False}]
        actions = {"deny": True, "async": True, "on_fail": {"feedback": {"value": -8.5, "metadata": '{"team": "a"}'}}}
        body = {"name": "My guardrail!", "checks": checks, "actions": actions, "workspace_id": workspace["slug"]}
        guardrail = await api.request_ok("POST", "guardrails", body)
        assert re.fullmatch("pg-my-gua-[0-9a-f]{6}", guardrail["slug"])
        assert set(guardrail) == {"id", "slug", "version_id", "object", "warnings"}
        fetched = await api.request_ok("GET", f"guardrails/{guardrail['slug']}")
        expected = {
            **FULL_ACTIONS,
            **actions,
            "on_fail": {"feedback": {"value": -8.5, "weight": 1, "metadata": {"team": "a"}}},
        }
        assert (fetched["checks"], fetched["actions"]) == ([{**checks[0], "soft_deny_200": False}], expected)
        assert (fetched["workspace_id"], fetched["organisation_id"]) == (workspace["id"], workspace["organisation_id"])
        assert (fetched["version_id"], fetched["status"]) == (guardrail["version_id"], "active")
        # A client may send back what it read, which changes nothing; a new name makes no version.
        path = f"guardrails/{guardrail['id']}"
        assert await api.request_ok("PUT", path, fetched) == guardrail
        assert await api.request_ok("PUT", path, {"name": "renamed"}) == guardrail
        changed = await api.request_ok("PUT", path, {"checks": [WORDS]})
        assert changed["version_id"] != guardrail["version_id"]
        listed = await api.request_ok("GET", f"{path}/versions")
        assert [row["version_id"] for row in listed["data"]] == [changed["version_id"], guardrail["version_id"]]
        assert [row["checks"][0]["is_enabled"] for row in listed["data"]] == [True, False]
        assert await api.request_ok("DELETE", path) == {}
        await api.expect_error(404, guardrail["id"], "GET", path)

    run_scenario(bootstrapped_url, scenario)


def test_mistakes_are_reported_with_their_paths(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        both = {"workspace_id": workspace["id"], "organisation_id": workspace["organisation_id"]}
        inside = {"name": "g", "workspace_id": workspace["id"]}
        for body, word in (
            ({"name": "g", "checks": [WORDS]}, "workspace_id"),
            ({"name": "g", "checks": [WORDS], **both}, "organisation_id"),
            ({**inside, "checks": []}, "checks"),
            ({**inside, "checks": [WORDS] * 51}, "checks"),
            ({**inside, "checks": [WORDS, {"id": "default.unknown"}]}, "checks[1]"),
            ({**inside, "checks": [{**WORDS, "parameters": {"minWords": "x"}}]}, "checks[0].parameters"),
            ({**inside, "checks": [{**WORDS, "parameters": {"other": 1}}]}, "checks[0].parameters"),
            ({**inside, "checks": [WORDS], "actions": {"on_fail": "deny"}}, "actions.on_fail"),
            ({**inside, "checks": [WORDS], "actions": {"on_fail": {"feedback": {"metadata": "x"}}}}, "metadata"),
            ({**inside, "checks": [WORDS], "actions": {"on_fail": {"feedback": {"value": 10.5}}}}, "value"),
            ({**inside, "checks": [webhook(headers={"authorization": mask_secret(TOKEN)})]}, "is masked"),
        ):
            status, response, _ = await api("POST", "guardrails", body)
            assert (status, word in str(response["data"])) == (400, True), (body, response)
            # Clients of these routes read the error in another envelope, too.
            assert set(response["error"]) == {"message", "type", "param", "code"}
        assert (await api.request_ok("GET", f"guardrails?workspace_id={workspace['id']}"))["total"] == 0

    run_scenario(bootstrapped_url, scenario)


def test_actions_alone_are_validated_with_the_stored_checks(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        guardrail = await create_guardrail(api, workspace_id=workspace["id"])
        path = f"guardrails/{guardrail['slug']}"
        for actions in ({"stream": "window"}, {"stream": "window", "async": True}):
            await api.expect_error(400, "actions.stream", "PUT", path, {"actions": actions})
        assert (await api.request_ok("GET", path))["actions"] == FULL_ACTIONS
        assert (await api.request_ok("PUT", path, {"actions": {"deny": True}}))["version_id"] != guardrail["version_id"]
        # A check that cannot run any more does not prevent that its guardrail is changed.
        async with api.database.write_transaction() as connection:
            gone = [{**WORDS, "id": "plugin.gone", "is_enabled": True}]
            await connection.execute(update(guardrails).where(guardrails.c.id == guardrail["id"]).values(checks=gone))
        await api.request_ok("PUT", path, {"actions": {"deny": False}})
        assert (await api.request_ok("GET", path))["actions"] == FULL_ACTIONS

    run_scenario(bootstrapped_url, scenario)


def test_guardrail_that_will_not_work_is_saved_with_warnings(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.request_ok("POST", "workspaces", {"name": "warned"})
        judge = {"id": "gateway.promptInjection", "parameters": {"model": "@nobody/gpt-4o-mini"}}
        body = {"name": "G", "workspace_id": workspace["id"], "checks": [WORDS, judge], "actions": {}}
        created = await api.request_ok("POST", "guardrails", {**body, "actions": {"deny": True, "async": True}})
        assert [warning["path"] for warning in created["warnings"]] == ["actions.async", "checks[1].parameters.model"]
        assert "never denies" in created["warnings"][0]["message"]
        assert "'@nobody', which does not exist in this workspace" in created["warnings"][1]["message"]
        path = f"guardrails/{created['slug']}"
        updated = await api.request_ok("PUT", path, {"actions": {"async": True}})
        assert [warning["path"] for warning in updated["warnings"]] == ["checks[1].parameters.model"]
        fixed = await api.request_ok("PUT", path, {"checks": [WORDS, {**judge, "is_enabled": False}]})
        assert "warnings" not in fixed

    run_scenario(bootstrapped_url, scenario)


def test_credentials_are_masked_kept_and_bound_to_their_destination(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        guardrail = await create_guardrail(api, workspace_id=workspace, checks=[WORDS, webhook()])
        path, masked = f"guardrails/{guardrail['id']}", mask_secret(TOKEN)
        fetched = await api.request_ok("GET", path)
        assert fetched["checks"][1]["parameters"]["headers"] == {"authorization": masked}
        versions = await api.request_ok("GET", f"{path}/versions")
        audit = await api.request_ok(
            "GET", f"audit-logs?start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z&workspace_id={workspace}"
        )
        assert TOKEN not in str([versions, audit])
        async with api.database.read_connection() as connection:
            for table in ("guardrails", "versions", "requests", "audit"):
                rows = (await connection.exec_driver_sql(f"SELECT * FROM {table}")).all()  # noqa: S608 - names above
                assert rows, table
                assert TOKEN not in str(rows), table
        # A mask that is sent back keeps the stored credential, even if the check moves or its timeout changes.
        sent = webhook(headers={"authorization": masked}, timeout=500)
        await api.request_ok("PUT", path, {"checks": [sent, WORDS]})
        (row,) = (await published_guardrails(api)).values()
        assert row["checks"][0]["parameters"]["headers"] == {"authorization": TOKEN}
        # The stored credential is not sent to an address that its owner did not choose.
        moved = webhook(headers={"authorization": masked}, webhookURL="https://other.example/")
        await api.expect_error(400, "checks[0].parameters.headers.authorization", "PUT", path, {"checks": [moved]})
        # A mask also restores a credential of an older version.
        await api.request_ok("PUT", path, {"checks": [WORDS]})
        await api.request_ok("PUT", path, {"checks": [webhook(headers={"authorization": masked})]})
        (row,) = (await published_guardrails(api)).values()
        assert row["checks"][0]["parameters"]["headers"] == {"authorization": TOKEN}

    run_scenario(bootstrapped_url, scenario)


def test_credentials_of_partners_are_bound_to_their_host(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]

        def partner(key: str, **parameters: object) -> dict[str, object]:
            return {"id": "lakera.guard", "parameters": {"credentials": {"apiKey": key}, **parameters}}

        guardrail = await api.request_ok(
            "POST", "guardrails", {"name": "g", "checks": [partner(TOKEN)], "workspace_id": workspace}
        )
        path, masked = f"guardrails/{guardrail['id']}", mask_secret(TOKEN)
        fetched = await api.request_ok("GET", path)
        assert fetched["checks"][0]["parameters"]["credentials"] == {"apiKey": masked}
        # Another timeout keeps the credential, another host does not.
        await api.request_ok("PUT", path, {"checks": [partner(masked, timeout=500)]})
        assert (await published_guardrails(api))[guardrail["slug"]]["checks"][0]["parameters"] == partner(
            TOKEN, timeout=500
        )["parameters"]
        moved = partner(masked, baseURL="https://other.example")
        await api.expect_error(400, "must be sent again", "PUT", path, {"checks": [moved]})
        missing = {"id": "lakera.guard", "parameters": {"credentials": {}}}
        await api.expect_error(400, "checks[0].parameters.credentials.apiKey", "PUT", path, {"checks": [missing]})

    run_scenario(bootstrapped_url, scenario)


def test_masks_of_equal_looking_credentials_keep_their_check(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        texts = ["ab-first-secret-xyz", "ab-other-secret-xyz"]
        checks = [webhook(headers={"authorization": text}) for text in texts]
        guardrail = await create_guardrail(api, workspace_id=workspace, checks=checks)
        path = f"guardrails/{guardrail['id']}"
        masked = [webhook(headers={"authorization": mask_secret(text)}, timeout=9) for text in texts]
        await api.request_ok("PUT", path, {"checks": masked})
        (row,) = (await published_guardrails(api)).values()
        assert [check["parameters"]["headers"]["authorization"] for check in row["checks"]] == texts
        await api.expect_error(400, "several checks", "PUT", path, {"checks": [WORDS, WORDS, masked[0]]})

    run_scenario(bootstrapped_url, scenario)


def test_owner_decides_scopes_and_visibility(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [await api.create_workspace(name) for name in ("here", "there")]
        organisation = first_workspace["organisation_id"]
        _, inside = await api.create_key("workspace/service", workspace_id=first_workspace["id"], scopes=SCOPES)
        own = await create_guardrail(inside)
        theirs = await create_guardrail(api, workspace_id=second_workspace["id"])
        shared = await create_guardrail(api, organisation_id=organisation)
        lists = {
            "": {own["id"], theirs["id"], shared["id"]},
            f"?workspace_id={first_workspace['slug']}": {own["id"]},
            f"?organisation_id={organisation}": {shared["id"]},
            f"?ids={own['id']},{shared['id']}": {own["id"], shared["id"]},
        }
        for query, expected in lists.items():
            listed = await api.request_ok("GET", f"guardrails{query}")
            assert ({row["id"] for row in listed["data"]}, listed["total"]) == (expected, len(expected)), query
        paged = await api.request_ok("GET", "guardrails?page_size=1&current_page=2")
        assert ([row["id"] for row in paged["data"]], paged["total"]) == ([own["id"]], 3)
        assert "checks" not in paged["data"][0]
        assert [row["id"] for row in (await inside.request_ok("GET", "guardrails"))["data"]] == [own["id"]]
        for other in (theirs, shared):
            await inside.expect_error(404, other["slug"], "GET", f"guardrails/{other['slug']}")
            await inside.expect_error(404, other["slug"], "DELETE", f"guardrails/{other['slug']}")
        await inside.expect_error(403, "organisation", "GET", f"guardrails?organisation_id={organisation}")
        body = {"name": "g", "checks": [WORDS], "organisation_id": organisation}
        await inside.expect_error(403, "organisation", "POST", "guardrails", body)
        # Workspace scopes allow nothing for guardrails of the organisation, and organisation scopes nothing for those
        # of workspaces.
        _, of_workspaces = await api.create_key("organisation/service", scopes=SCOPES)
        of_organisation = (
            await api.create_key("organisation/service", scopes=[f"organisation_{scope}" for scope in SCOPES])
        )[1]
        for client, allowed, refused in ((of_workspaces, own, shared), (of_organisation, shared, own)):
            await client.request_ok("PUT", f"guardrails/{allowed['id']}", {"name": "renamed"})
            await client.expect_error(403, "guardrails.update", "PUT", f"guardrails/{refused['id']}", {"name": "n"})
            listed = (await client.request_ok("GET", "guardrails"))["data"]
            assert refused["id"] not in {row["id"] for row in listed}
        await of_workspaces.expect_error(403, "organisation_guardrails.create", "POST", "guardrails", body)

    run_scenario(bootstrapped_url, scenario)


def test_members_read_and_managers_change(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        guardrail = await create_guardrail(api, workspace_id=workspace)
        path = f"guardrails/{guardrail['id']}"
        statuses: dict[str, list[int]] = {}
        for role in ("member", "manager"):
            user = await api.create_user(f"{role}@x.test", workspaces=[{"id": workspace, "role": role}])
            _, key = await api.create_key("workspace/user", workspace_id=workspace, user_id=user, scopes=SCOPES)
            request = (("GET", "guardrails", None), ("GET", path, None), ("PUT", path, {"name": role}))
            statuses[role] = [(await key(*item))[0] for item in request]
        assert statuses == {"member": [200, 200, 403], "manager": [200, 200, 200]}

    run_scenario(bootstrapped_url, scenario)


def test_defaults_are_resolved_and_reach_the_data_plane(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [await api.create_workspace(name) for name in ("here", "there")]
        own = await create_guardrail(api, workspace_id=first_workspace["id"])
        shared = await create_guardrail(api, organisation_id=first_workspace["organisation_id"])
        defaults, workspace = "admin/organisation/defaults", f"workspaces/{first_workspace['id']}"
        await api.request_ok("PUT", defaults, {"input_guardrails": [shared["slug"]]})
        read = await api.request_ok("GET", defaults)
        assert (read["input_guardrails"], read["output_guardrails"]) == (
            [{"id": shared["id"], "slug": shared["slug"]}],
            [],
        )
        await api.request_ok("PUT", defaults, read)
        both = {"input_guardrails": [own["id"], shared["id"], own["slug"]], "output_guardrails": [own["slug"]]}
        fetched = await api.request_ok("PUT", workspace, {"defaults": both})
        assert fetched["defaults"]["input_guardrails"] == [own["slug"], shared["slug"]]
        assert await workspace_defaults(api, first_workspace["id"]) == {
            "input_guardrails": [shared["id"], own["id"]],
            "output_guardrails": [own["id"]],
        }
        assert await workspace_defaults(api, second_workspace["id"]) == {"input_guardrails": [shared["id"]]}
        # Unknown and archived guardrails, and those of another owner, are rejected with the field and the value.
        await api.request_ok("PUT", workspace, {"defaults": {}})
        await api.request_ok("PUT", f"guardrails/{own['id']}", {"status": "archived"})
        unknown = [own["slug"], "pg-unknown-0123ab"]
        for path, body, word in (
            (defaults, {"output_guardrails": unknown}, "output_guardrails[1] 'pg-unknown-0123ab' is no guardrail"),
            (workspace, {"defaults": {"input_guardrails": unknown}}, "defaults.input_guardrails[0]"),
            (
                f"workspaces/{second_workspace['id']}",
                {"defaults": {"input_guardrails": [own["id"]]}},
                "that is not archived",
            ),
        ):
            await api.expect_error(404, word, "PUT", path, body)

    run_scenario(bootstrapped_url, scenario)


def test_guardrails_of_a_key_are_resolved_kept_and_inherited(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [await api.create_workspace(name) for name in ("here", "there")]
        own = await create_guardrail(api, workspace_id=first_workspace["id"])
        shared = await create_guardrail(api, organisation_id=first_workspace["organisation_id"])
        defaults = {"input_guardrails": [own["slug"], shared["id"]], "output_guardrails": [shared["slug"]]}
        scopes = ["workspace_service_api_keys.create", "completions.write"]
        key_id, key = await api.create_key(
            "workspace/service", workspace_id=first_workspace["id"], scopes=scopes, defaults=defaults
        )
        path, ids = (
            f"api-keys/{key_id}",
            {"input_guardrails": [own["id"], shared["id"]], "output_guardrails": [shared["id"]]},
        )
        assert ids.items() <= (await api.request_ok("GET", path))["defaults"].items()
        # A guardrail that a key names is neither deleted nor archived, and its references list the key.
        guardrail = f"guardrails/{own['slug']}"
        await api.expect_error(409, "as a default guardrail", "DELETE", guardrail)
        await api.expect_error(409, "as a default guardrail", "PUT", guardrail, {"status": "archived"})
        references = await api.request_ok("GET", f"{guardrail}/references")
        assert [(row["kind"], row["id"], row["fields"]) for row in references["data"]] == [
            ("api_key", key_id, ["defaults.input_guardrails"])
        ]
        # A key with guardrails makes no key without them.
        child = {"name": "child", "scopes": ["completions.write"]}
        await key.expect_error(403, "defaults.input_guardrails", "POST", "api-keys/workspace/service", child)
        await key.request_ok("POST", "api-keys/workspace/service", {**child, "defaults": ids})
        for workspace in (first_workspace, second_workspace):
            listed = await api.request_ok("GET", f"api-keys?workspace_id={workspace['id']}")
            assert listed["total"] == (2 if workspace is first_workspace else 0)
        # Guardrails of other workspaces are unknown, and keys of the organisation have none.
        _, other = await api.create_key("workspace/service", workspace_id=second_workspace["id"], scopes=scopes)
        body = {**child, "defaults": {"input_guardrails": [own["id"]]}}
        await other.expect_error(404, "defaults.input_guardrails[0]", "POST", "api-keys/workspace/service", body)
        body = {"name": "o", "scopes": ["configs.list"], "defaults": {"output_guardrails": [shared["id"]]}}
        await api.expect_error(400, "only for keys of a workspace", "POST", "api-keys/organisation/service", body)
        await api.request_ok("PUT", path, {"defaults": {"input_guardrails": []}})
        assert (await api.request_ok("GET", path))["defaults"]["input_guardrails"] is None

    run_scenario(bootstrapped_url, scenario)


def test_exclusions_are_merged_or_replaced(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, second_workspace = [await api.create_workspace(name) for name in ("here", "there")]
        shared = (await create_guardrail(api, organisation_id=first_workspace["organisation_id"]))["id"]
        defaults = {"input_guardrails": [shared], "output_guardrails": [shared]}
        await api.request_ok("PUT", "admin/organisation/defaults", defaults)
        path = "workspace-exclusions/input-guardrails"

        async def exclude(*listed: tuple[Any, bool], override: bool = False) -> set[str]:
            rows = [{"workspace_id": workspace["slug"], "excluded": is_excluded} for workspace, is_excluded in listed]
            body = {"workspaces": rows, "override_existing": override}
            assert await api.request_ok("PUT", path, body) == {}
            fetched = await api.request_ok("GET", f"{path}?organisation_id={first_workspace['organisation_id']}")
            return {row["workspace_id"] for row in fetched["workspaces"] if row["excluded"]}

        assert await exclude((first_workspace, True)) == {first_workspace["id"]}
        assert await last_change(api) == {"rest"}
        assert await workspace_defaults(api, first_workspace["id"]) == {"output_guardrails": [shared]}
        assert await workspace_defaults(api, second_workspace["id"]) == {name: [shared] for name in defaults}
        assert await exclude((second_workspace, True)) == {first_workspace["id"], second_workspace["id"]}
        assert await exclude((first_workspace, False)) == {second_workspace["id"]}
        assert await exclude((first_workspace, True), override=True) == {first_workspace["id"]}
        # Settings of the organisation do not end exclusions, and outputs have their own.
        await api.request_ok("PUT", "admin/organisation/settings", {"user_api_key_ttl": 3600})
        assert await exclude() == {first_workspace["id"]}
        assert (await api.request_ok("GET", "workspace-exclusions/output-guardrails"))["workspaces"] == []
        unknown = {"workspaces": [{"workspace_id": "ws-unknown", "excluded": True}]}
        await api.expect_error(404, "workspaces[0].workspace_id 'ws-unknown'", "PUT", path, unknown)

    run_scenario(bootstrapped_url, scenario)


def test_guardrail_in_use_is_neither_archived_nor_deleted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace("team")
        own = await create_guardrail(api, workspace_id=workspace["id"])
        shared = await create_guardrail(api, organisation_id=workspace["organisation_id"])
        defaults = {"output_guardrails": [shared["id"]]}
        await api.request_ok("PUT", "admin/organisation/defaults", defaults)
        await api.request_ok("PUT", f"workspaces/{workspace['id']}", {"defaults": {"input_guardrails": [own["id"]]}})
        for created, word in ((own, "of the workspace 'team'"), (shared, "of the organisation")):
            path = f"guardrails/{created['slug']}"
            await api.expect_error(409, word, "DELETE", path)
            await api.expect_error(409, word, "PUT", path, {"status": "archived"})
            await api.request_ok("PUT", path, {"name": "renamed", "status": "active"})
        await api.request_ok("PUT", f"workspaces/{workspace['id']}", {"defaults": {}})
        config = {"provider": "openai", "targets": [{"output_guardrails": [own["slug"]]}]}
        config["strategy"] = {"mode": "single"}
        body = {"name": "c", "slug": "my-config", "config": config, "workspace_id": workspace["id"]}
        await api.request_ok("POST", "configs", body)
        await api.expect_error(409, "the config 'my-config'", "DELETE", f"guardrails/{own['slug']}")
        await api.request_ok("DELETE", "configs/my-config")
        await api.request_ok("DELETE", f"guardrails/{own['slug']}")

    run_scenario(bootstrapped_url, scenario)


def test_published_rows_follow_changes(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace("gone")
        guardrail = await create_guardrail(api, workspace_id=workspace["id"])
        shared = await create_guardrail(api, organisation_id=workspace["organisation_id"])
        rows = await published_guardrails(api)
        assert rows[guardrail["slug"]] == {
            "id": guardrail["id"],
            "slug": guardrail["slug"],
            "workspace": workspace["id"],
            "organisation": workspace["organisation_id"],
            "version": guardrail["version_id"],
            "checks": [{**WORDS, "is_enabled": True}],
            "actions": FULL_ACTIONS,
        }
        assert rows[shared["slug"]]["workspace"] is None
        path = f"guardrails/{guardrail['id']}"
        changed = await api.request_ok("PUT", path, {"actions": {"deny": True}})
        assert await last_change(api) == {f"guardrails/{guardrail['id'][-2:]}"}
        row = (await published_guardrails(api))[guardrail["slug"]]
        assert (row["version"], row["actions"]["deny"]) == (changed["version_id"], True)
        await api.request_ok("PUT", path, {"status": "archived"})
        assert set(await published_guardrails(api)) == {shared["slug"]}
        await api.expect_error(409, "1 guardrails", "DELETE", f"workspaces/{workspace['id']}")
        await api.request_ok("DELETE", f"workspaces/{workspace['id']}", {"name": "gone", "force_delete": True})
        assert set(await published_guardrails(api)) == {shared["slug"]}
        listed = await api.request_ok("GET", "guardrails")
        assert [row["id"] for row in listed["data"]] == [shared["id"]]

    run_scenario(bootstrapped_url, scenario)


def test_repeated_and_outdated_requests_change_nothing(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "g", "checks": [WORDS], "workspace_id": workspace}
        created, again = [await api.request_ok("POST", "guardrails", body, idempotency_key="k") for _ in range(2)]
        assert created == again
        path = f"guardrails/{created['id']}"
        _, _, headers = await api("GET", path)
        assert (await api("PUT", path, {"name": "first"}, if_match=headers["etag"]))[0] == 200
        status, response, _ = await api("PUT", path, {"name": "lost"}, if_match=headers["etag"])
        assert (status, response["error"]["param"]) == (412, "If-Match")
        assert (await api.request_ok("GET", path))["name"] == "first"

    run_scenario(bootstrapped_url, scenario)


def test_catalogue_has_the_checks_of_the_engine(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        _, reader = await api.create_key("workspace/service", workspace_id=workspace, scopes=["guardrails.list"])
        actual = await reader.request_ok("GET", "guardrails/checks")
        assert actual["data"] == list(engine.guardrail_checks())
        assert actual["total"] == len(actual["data"]) > 0
        _, other = await api.create_key("workspace/service", workspace_id=workspace, scopes=["configs.list"])
        await other.expect_error(403, "guardrails.list", "GET", "guardrails/checks")

    run_scenario(bootstrapped_url, scenario)


def test_requests_of_the_page_work(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace, research = [await api.create_workspace(name) for name in ("team", "research")]
        _, team = await api.create_key(
            "workspace/service", workspace_id=workspace["id"], scopes=[*SCOPES, "workspaces.update"]
        )
        requests = [*read_requests("docs/guardrails.md"), *read_requests("docs/guardrail-results.md")]
        assert len(requests) >= 6
        body = requests[0][2]
        own = await team.request_ok("POST", "guardrails", body)
        shared = await api.request_ok("POST", "guardrails", {**body, "organisation_id": workspace["organisation_id"]})
        for method, path, sent in requests:
            is_organisations = path.startswith(("admin/", "partner-credentials", "workspace-exclusions/"))
            text = msgspec.json.encode(sent).decode().replace("ws-research-1f2e3d", research["slug"])
            text = text.replace("pg-short-1f2e3d", (shared if is_organisations else own)["slug"])
            target = path.replace("$GUARDRAIL", own["id"]).replace("$WORKSPACE", workspace["id"])
            await (api if is_organisations else team).request_ok(method, target, msgspec.json.decode(text))

    run_scenario(bootstrapped_url, scenario)
