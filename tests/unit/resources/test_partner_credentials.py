"""Credentials of guardrail partners: fields, masks, access of workspaces, and what the data plane gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from penstock.ids import mask_secret
from penstock.store.guardrail_tables import partner_credentials as table
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.test_guardrails import SCOPES, published
from tests.unit.snapshot.test_limit_sections import last_change

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True

PATH = "partner-credentials"
KEY, OTHER_KEY = "a-key-of-a-partner", "another-key-of-a-partner"
LAKERA: dict[str, Any] = {"partner": "lakera", "credentials": {"apiKey": KEY}}
CHECK: dict[str, Any] = {"id": "lakera.guard", "parameters": {"failOnError": True}}


async def published_parameters(api: ManagementClient, slug: str) -> dict[str, Any]:
    return (await published(api))[slug]["checks"][0]["parameters"]


def test_credentials_are_masked_and_stored_encrypted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        created = await api.request_ok("POST", PATH, {**LAKERA, "base_url": "https://lakera.example"})
        assert (created["slug"], created["object"]) == ("lakera", "partner-credentials")
        fetched = await api.request_ok("GET", f"{PATH}/lakera")
        expected = {
            "id": created["id"],
            "partner": "lakera",
            "credentials": {"apiKey": mask_secret(KEY)},
            "base_url": "https://lakera.example",
            "checks": ["lakera.guard"],
            "allow_all_workspaces": True,
        }
        assert {name: fetched[name] for name in expected} == expected
        assert "allowed_workspaces" not in fetched
        assert (await api.request_ok("GET", PATH))["data"] == [fetched]
        async with api.database.read_connection() as connection:
            (row,) = (await connection.execute(select(table))).mappings()
        assert KEY not in str(dict(row))
        audited = await api.request_ok("GET", "audit-logs")
        assert ("partner_credentials" in str(audited), KEY in str(audited)) == (True, False)
        # A client may send back what it read. A changed host needs the credentials themselves.
        await api.request_ok("PUT", f"{PATH}/lakera", fetched)
        await api.expect_error(
            400, "credentials.apiKey must be sent anew", "PUT", f"{PATH}/lakera", {"base_url": "https://b.example"}
        )
        await api.expect_error(409, "update them instead", "POST", PATH, LAKERA)
        assert await api.request_ok("DELETE", f"{PATH}/lakera") == {}
        await api.expect_error(404, "lakera", "GET", f"{PATH}/lakera")

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"partner": "lacera", "credentials": {}}, "partner"),
        ({"partner": "default", "credentials": {}}, "partner"),
        ({"partner": "lakera", "credentials": {}}, "credentials"),
        ({"partner": "lakera", "credentials": {"apiKey": ""}}, "credentials.apiKey"),
        ({"partner": "lakera", "credentials": {"apiKey": KEY, "other": "x"}}, "credentials.other"),
        ({"partner": "lakera", "credentials": {"apiKey": mask_secret(KEY)}}, "credentials.apiKey"),
        ({**LAKERA, "base_url": "ftp://lakera.example"}, "base_url"),
        ({**LAKERA, "allowed_workspaces": ["nobody"]}, "allowed_workspaces[0]"),
        ({"partner": "azure", "credentials": {"pii": {"resourceName": "r"}}}, "credentials.pii.apiKey"),
    ],
)
def test_mistakes_are_reported_with_their_paths(bootstrapped_url: Secret, body: dict[str, Any], path: str):
    async def scenario(api: ManagementClient) -> None:
        status, response, _ = await api("POST", PATH, body)
        # 404: the body names a workspace that does not exist.
        expected = 404 if "allowed_workspaces" in body else 400
        assert (status, response["data"]["errors"][0]["path"]) == (expected, path), response
        assert KEY not in str(response)

    run_scenario(bootstrapped_url, scenario)


def test_guardrails_use_them_without_naming_them(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        body = {"name": "g", "checks": [CHECK], "workspace_id": workspace["id"]}
        path = "checks[0].parameters.credentials"
        await api.expect_error(
            400, f"{path} is required: the organisation has no credentials", "POST", "guardrails", body
        )
        await api.request_ok("POST", PATH, {**LAKERA, "base_url": "https://lakera.example"})
        _, team = await api.create_key("workspace/service", workspace_id=workspace["id"], scopes=SCOPES)
        guardrail = await team.request_ok("POST", "guardrails", {"name": "g", "checks": [CHECK]})
        saved = await team.request_ok("GET", f"guardrails/{guardrail['id']}")
        assert saved["checks"][0]["parameters"] == CHECK["parameters"]
        assert await published_parameters(api, guardrail["slug"]) == {
            **CHECK["parameters"],
            "credentials": {"apiKey": KEY},
            "baseURL": "https://lakera.example",
        }
        # The author of a check could read the credentials at a host of its own.
        moved = {"id": "lakera.guard", "parameters": {"baseURL": "https://thief.example"}}
        await team.expect_error(400, "are not sent to another", "POST", "guardrails", {"name": "g", "checks": [moved]})
        # New credentials are published with the guardrails that use them, and only those.
        await api.request_ok("PUT", f"{PATH}/lakera", {"credentials": {"apiKey": OTHER_KEY}})
        assert await last_change(api) == {f"guardrails/{guardrail['id'][-2:]}"}
        assert (await published_parameters(api, guardrail["slug"]))["credentials"] == {"apiKey": OTHER_KEY}
        own = {"id": "lakera.guard", "parameters": {"credentials": {"apiKey": "a-key-of-the-team"}}}
        await api.expect_error(409, guardrail["slug"], "DELETE", f"{PATH}/lakera")
        await team.request_ok("PUT", f"guardrails/{guardrail['id']}", {"checks": [own]})
        assert (await published_parameters(api, guardrail["slug"]))["credentials"] == {"apiKey": "a-key-of-the-team"}
        await api.request_ok("DELETE", f"{PATH}/lakera")

    run_scenario(bootstrapped_url, scenario)


def test_checks_get_only_the_credentials_that_they_know(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        pii = {"resourceName": "languages", "apiKey": KEY}
        await api.request_ok("POST", PATH, {"partner": "azure", "credentials": {"pii": pii}})
        inside = {"name": "g", "workspace_id": workspace["id"]}
        guardrail = await api.request_ok("POST", "guardrails", {**inside, "checks": [{"id": "azure.pii"}]})
        assert (await published_parameters(api, guardrail["slug"]))["credentials"] == {"pii": pii}
        shield = {**inside, "checks": [{"id": "azure.shieldPrompt"}]}
        await api.expect_error(400, "checks[0].parameters.credentials.contentSafety", "POST", "guardrails", shield)
        both = {"pii": pii, "contentSafety": {"resourceName": "safety", "apiKey": OTHER_KEY}}
        await api.request_ok("PUT", f"{PATH}/azure", {"credentials": both})
        guardrail = await api.request_ok("POST", "guardrails", shield)
        assert set((await published_parameters(api, guardrail["slug"]))["credentials"]) == {"contentSafety"}
        # The other guardrail needs what is left out here.
        await api.expect_error(
            400, "do not suit the guardrail", "PUT", f"{PATH}/azure", {"credentials": {"contentSafety": both["pii"]}}
        )

    run_scenario(bootstrapped_url, scenario)


def test_access_follows_the_list_of_workspaces(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        ours, others = [await api.create_workspace(name) for name in ("ours", "others")]
        await api.request_ok("POST", PATH, {**LAKERA, "allowed_workspaces": [ours["slug"]]})
        guardrail = await api.request_ok(
            "POST", "guardrails", {"name": "g", "checks": [CHECK], "workspace_id": ours["id"]}
        )
        for owner in ({"workspace_id": others["id"]}, {"organisation_id": ours["organisation_id"]}):
            body = {"name": "g", "checks": [CHECK], **owner}
            await api.expect_error(400, "no credentials of 'lakera'", "POST", "guardrails", body)
            trial = {"checks": [CHECK], "text": "x"}
            query = f"?workspace_id={owner.get('workspace_id')}" if "workspace_id" in owner else ""
            await api.expect_error(400, "no credentials of 'lakera'", "POST", f"guardrails/test{query}", trial)
        moved = {"allowed_workspaces": [others["id"]]}
        await api.expect_error(409, guardrail["slug"], "PUT", f"{PATH}/lakera", moved)
        await api.request_ok("PUT", f"{PATH}/lakera", {"allow_all_workspaces": True})
        await api.request_ok(
            "POST", "guardrails", {"name": "g", "checks": [CHECK], "organisation_id": ours["organisation_id"]}
        )

    run_scenario(bootstrapped_url, scenario)


def test_keys_of_workspaces_neither_read_nor_change_them(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        await api.request_ok("POST", PATH, LAKERA)
        _, team = await api.create_key("workspace/service", workspace_id=workspace["id"], scopes=SCOPES)
        for method, path, body in (
            ("GET", PATH, None),
            ("GET", f"{PATH}/lakera", None),
            ("POST", PATH, {"partner": "mistral", "credentials": {"apiKey": KEY}}),
            ("PUT", f"{PATH}/lakera", {"credentials": {"apiKey": OTHER_KEY}}),
            ("DELETE", f"{PATH}/lakera", None),
        ):
            await team.expect_error(403, "organisation_guardrails", method, path, body)

    run_scenario(bootstrapped_url, scenario)
