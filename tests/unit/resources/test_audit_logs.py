"""Audit log entries of changing requests: their headers and body, without credentials."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from penstock.batches.files import new_file_row
from penstock.schemas import now
from penstock.store.job_tables import files
from tests.unit.resources.management_api import PASSWORD, ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

CANARY = "canary-of-the-audit-log-0123456789"


async def fetch_audit_records(api: ManagementClient, **expected: str) -> list[dict[str, Any]]:
    """Returns the audit records, oldest first."""
    here = datetime.now(UTC)
    span = {"start_time": here - timedelta(hours=1), "end_time": here + timedelta(hours=1)}
    query = "&".join(f"{name}={moment.isoformat().replace('+', '%2B')}" for name, moment in span.items())
    query += "".join(f"&{name}={value}" for name, value in expected.items())
    organisation = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
    return (await api.request_ok("GET", f"audit-logs?{query}&organisation_id={organisation}"))["records"][::-1]


def test_stores_headers_and_body_without_credentials(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        headers = {"x-team": CANARY}
        configurations = {"custom_headers": headers, "openai_project": "p"}
        body = {
            "name": "v",
            "provider": "openai",
            "key": CANARY,
            "workspace_id": workspace,
            "model_config": configurations,
        }
        sent = {"user_agent": "tests", "authorization": CANARY, "x_unheard_of": CANARY, "x_request_id": "r-1"}
        status, virtual_key, _ = await api("POST", "virtual-keys", body, **sent)
        assert status == 200
        rows = await fetch_audit_records(api, request_id="r-1")
        assert [row["resource_type"] for row in rows] == ["integrations", "virtual_keys"]
        for row in rows:
            content, remaining = json.loads(row["request_body"]), json.loads(row["request_headers"])
            assert content == {
                **body,
                "key": "*****",
                "model_config": {**configurations, "custom_headers": {"x-team": "*****"}},
            }
            assert (remaining["user-agent"], remaining["content-type"]) == ("tests", "application/json")
            assert [remaining[name] for name in ("authorization", "x-unheard-of", "x-gateway-api-key")] == ["*****"] * 3
            assert row["response_status_code"] == 200
        config = {"provider": "openai", "api_key": CANARY, "override_params": {"temperature": 1}}
        for form in (config, json.dumps(config)):
            await api("POST", "configs", {"name": "c", "config": form, "workspace_id": workspace}, x_request_id="r-2")
        first, second = [
            json.loads(row["request_body"])["config"] for row in await fetch_audit_records(api, request_id="r-2")
        ]
        assert first == {**config, "api_key": "*****"}
        assert second == "*****"
        await api("DELETE", f"virtual-keys/{virtual_key['slug']}?workspace_id={workspace}", x_request_id="r-3")
        assert {row["request_body"] for row in await fetch_audit_records(api, request_id="r-3")} == {""}
        assert CANARY not in str(await fetch_audit_records(api))

    run_scenario(bootstrapped_url, scenario)


def test_records_sessions_ended_with_their_user_or_key(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        user = await api.create_user("a@x.test")
        key = await api.request_ok(
            "POST", "api-keys/organisation/service", {"name": "o", "scopes": ["workspaces.list"]}
        )
        for body in ({"email": "a@x.test", "password": PASSWORD}, {"api_key": key["key"]}):
            await api.with_key("").request_ok("POST", "auth/sessions", body)
        begun = await fetch_audit_records(api, resource_type="sessions", action="create")
        assert not [row for row in begun if PASSWORD in str(row) or key["key"] in str(row)]
        await api.request_ok("DELETE", f"admin/users/{user}")
        await api.request_ok("DELETE", f"api-keys/{key['id']}")
        ended = await fetch_audit_records(api, resource_type="sessions", action="delete")
        assert [row["resource_id"] for row in ended] == [row["resource_id"] for row in begun]
        assert [row["uri"].rpartition("/")[2] for row in ended] == [user, key["id"]]

    run_scenario(bootstrapped_url, scenario)


def test_records_files_deleted_with_their_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace("going")
        organisation = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
        home = {"organisation_id": organisation, "workspace_id": workspace["id"]}
        remaining, old = [
            {**new_file_row("batch", name, seconds, created_by=None), **home}
            for name, seconds in (("a.jsonl", 60), ("old.jsonl", -60))
        ]
        async with api.database.write_transaction() as connection:
            await connection.execute(insert(files), [remaining, old])
        await api.request_ok("DELETE", f"workspaces/{workspace['id']}", {"name": "going", "force_delete": True})
        rows = await fetch_audit_records(api, resource_type="files", action="delete")
        assert [(row["resource_id"], row["workspace_id"]) for row in rows] == [(remaining["id"], workspace["id"])]
        async with api.database.read_connection() as connection:
            ends = (await connection.execute(select(files.c.expires_at))).scalars().all()
        assert max(ends) <= now()

    run_scenario(bootstrapped_url, scenario)


def test_workspace_filter_finds_the_workspaces_own_records(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        models = {"models": [{"slug": "m", "enabled": True, "is_custom": True}]}
        for where, actual in (({"workspace_id": workspace}, 4), ({}, 0)):
            body = {"name": "i", "ai_provider_id": "openai", "create_default_provider": False, **where}
            path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
            await api.request_ok("PUT", f"{path}/models", models)
            await api.request_ok("DELETE", f"{path}/models?slugs=m")
            await api.request_ok("PUT", f"{path}/models", models)
            await api.request_ok("DELETE", path)
            rows = await fetch_audit_records(api, workspace_id=workspace, resource_type="integration_models")
            assert len([row for row in rows if row["uri"].startswith(f"/v1/{path}")]) == actual
        (row,) = await fetch_audit_records(api, workspace_id=workspace, resource_type="workspaces")
        assert (row["action"], row["resource_id"]) == ("create", workspace)

    run_scenario(bootstrapped_url, scenario)


def test_audit_log_has_the_id_of_the_response_and_the_states_as_the_api_shows_them(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "c", "config": {"provider": "openai"}, "workspace_id": workspace}
        _, config, head = await api("POST", "configs", body)
        _, changed, sent_head = await api(
            "PUT", f"configs/{config['slug']}", {"config": {"provider": "mock"}}, x_request_id="r-9"
        )
        assert sent_head["x-request-id"] == sent_head["request-id"] == "r-9"
        assert head["x-request-id"] == head["request-id"] != ""
        created, updated = await fetch_audit_records(api, resource_type="configs")
        assert [created["request_id"], updated["request_id"]] == [head["x-request-id"], "r-9"]
        assert (created["before"], created["after"]["version_id"]) == (None, config["version_id"])
        assert [updated[name]["version_id"] for name in ("before", "after")] == [
            config["version_id"],
            changed["version_id"],
        ]
        assert [updated[name]["config"] for name in ("before", "after")] == [
            {"provider": "openai"},
            {"provider": "mock"},
        ]
        read = await api.request_ok("GET", f"configs/{config['slug']}")
        same = updated["after"].keys() & read.keys() - {"config"}
        assert {name: updated["after"][name] for name in same} == {name: read[name] for name in same}
        assert updated["after"].keys() - read.keys() == set()
        _, _, refused = await api("PUT", f"configs/{config['slug']}", {"x": 1}, x_request_id="bad id")
        assert refused["x-request-id"] not in {"", "bad id"}

    run_scenario(bootstrapped_url, scenario)
