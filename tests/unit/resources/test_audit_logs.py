"""What is kept of a request that changed something: its header fields and body, and no credential."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from penstock.batches.files import new_file_row
from penstock.schemas import now
from penstock.store.tables import files
from tests.unit.resources.managed import PASSWORD, Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

CANARY = "canary-of-the-audit-log-0123456789"


async def noted(api: Plane, **wanted: str) -> list[dict[str, Any]]:
    """What the log says, the oldest first."""
    here = datetime.now(UTC)
    span = {"start_time": here - timedelta(hours=1), "end_time": here + timedelta(hours=1)}
    query = "&".join(f"{name}={moment.isoformat().replace('+', '%2B')}" for name, moment in span.items())
    query += "".join(f"&{name}={value}" for name, value in wanted.items())
    organisation = (await api.good("GET", "workspaces"))["data"][0]["organisation_id"]
    return (await api.good("GET", f"audit-logs?{query}&organisation_id={organisation}"))["records"][::-1]


def test_header_fields_and_the_body_are_kept_as_they_were_sent_without_credentials(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        headers = {"x-team": CANARY}
        configurations = {"custom_headers": headers, "openai_project": "p"}
        body = {"name": "v", "provider": "openai", "key": CANARY, "workspace_id": place, "model_config": configurations}
        sent = {"user_agent": "tests", "authorization": CANARY, "x_unheard_of": CANARY, "x_request_id": "r-1"}
        status, made, _ = await api("POST", "virtual-keys", body, **sent)
        assert status == 200
        rows = await noted(api, request_id="r-1")
        assert [row["resource_type"] for row in rows] == ["integrations", "virtual_keys"]
        for row in rows:
            said, kept = json.loads(row["request_body"]), json.loads(row["request_headers"])
            assert said == {
                **body,
                "key": "*****",
                "model_config": {**configurations, "custom_headers": {"x-team": "*****"}},
            }
            assert (kept["user-agent"], kept["content-type"]) == ("tests", "application/json")
            assert [kept[name] for name in ("authorization", "x-unheard-of", "x-gateway-api-key")] == ["*****"] * 3
            assert row["response_status_code"] == 200
        config = {"provider": "openai", "api_key": CANARY, "override_params": {"temperature": 1}}
        for form in (config, json.dumps(config)):
            await api("POST", "configs", {"name": "c", "config": form, "workspace_id": place}, x_request_id="r-2")
        first, second = [json.loads(row["request_body"])["config"] for row in await noted(api, request_id="r-2")]
        assert first == {**config, "api_key": "*****"}
        assert second == "*****"
        await api("DELETE", f"virtual-keys/{made['slug']}?workspace_id={place}", x_request_id="r-3")
        assert {row["request_body"] for row in await noted(api, request_id="r-3")} == {""}
        assert CANARY not in str(await noted(api))

    played(founded_url, scene)


def test_sessions_that_end_with_their_person_or_key_are_noted(founded_url: Secret):
    async def scene(api: Plane) -> None:
        user = await api.person("a@x.test")
        key = await api.good("POST", "api-keys/organisation/service", {"name": "o", "scopes": ["workspaces.list"]})
        for body in ({"email": "a@x.test", "password": PASSWORD}, {"api_key": key["key"]}):
            await api.holding("").good("POST", "auth/sessions", body)
        begun = await noted(api, resource_type="sessions", action="create")
        assert not [row for row in begun if PASSWORD in str(row) or key["key"] in str(row)]
        await api.good("DELETE", f"admin/users/{user}")
        await api.good("DELETE", f"api-keys/{key['id']}")
        ended = await noted(api, resource_type="sessions", action="delete")
        assert [row["resource_id"] for row in ended] == [row["resource_id"] for row in begun]
        assert [row["uri"].rpartition("/")[2] for row in ended] == [user, key["id"]]

    played(founded_url, scene)


def test_files_that_go_with_their_workspace_are_noted(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace("going")
        organisation = (await api.good("GET", "workspaces"))["data"][0]["organisation_id"]
        home = {"organisation_id": organisation, "workspace_id": place["id"]}
        kept, old = [
            {**new_file_row("batch", name, seconds, created_by=None), **home}
            for name, seconds in (("a.jsonl", 60), ("old.jsonl", -60))
        ]
        async with api.database.write_transaction() as connection:
            await connection.execute(insert(files), [kept, old])
        await api.good("DELETE", f"workspaces/{place['id']}", {"name": "going", "force_delete": True})
        rows = await noted(api, resource_type="files", action="delete")
        assert [(row["resource_id"], row["workspace_id"]) for row in rows] == [(kept["id"], place["id"])]
        async with api.database.read_connection() as connection:
            ends = (await connection.execute(select(files.c.expires_at))).scalars().all()
        assert max(ends) <= now()

    played(founded_url, scene)


def test_what_is_a_workspaces_own_is_found_by_it(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        models = {"models": [{"slug": "m", "enabled": True, "is_custom": True}]}
        for where, found in (({"workspace_id": place}, 4), ({}, 0)):
            made = {"name": "i", "ai_provider_id": "openai", "create_default_provider": False, **where}
            path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
            await api.good("PUT", f"{path}/models", models)
            await api.good("DELETE", f"{path}/models?slugs=m")
            await api.good("PUT", f"{path}/models", models)
            await api.good("DELETE", path)
            rows = await noted(api, workspace_id=place, resource_type="integration_models")
            assert len([row for row in rows if row["uri"].startswith(f"/v1/{path}")]) == found
        (row,) = await noted(api, workspace_id=place, resource_type="workspaces")
        assert (row["action"], row["resource_id"]) == ("create", place)

    played(founded_url, scene)
