"""Credentials of guardrail partners: fields, masks, access of workspaces, and what the data plane gets."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from penstock import engine
from penstock.guardrails import saved_credentials
from penstock.ids import mask_secret
from penstock.kit import engine_validation
from penstock.secrets.partner_credentials import checks_by_partner
from penstock.secrets.vault import Vault
from penstock.store.guardrail_tables import partner_credentials as table
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.test_guardrails import SCOPES, published_guardrails
from tests.unit.snapshot.test_limit_sections import last_change

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True

PATH = "partner-credentials"
CHECK_IN_ENGINE = engine_validation.check_in_engine
KEY, OTHER_KEY = "a-key-of-a-partner", "another-key-of-a-partner"
LAKERA: dict[str, Any] = {"partner": "lakera", "credentials": {"apiKey": KEY}}
CHECK: dict[str, Any] = {"id": "lakera.guard", "parameters": {"failOnError": True}}


async def published_parameters(api: ManagementClient, slug: str) -> dict[str, Any]:
    return (await published_guardrails(api))[slug]["checks"][0]["parameters"]


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
            400, "credentials.apiKey must be sent again", "PUT", f"{PATH}/lakera", {"base_url": "https://b.example"}
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
        # The check of this partner needs another parameter, too.
        ({"partner": "mistral", "credentials": {"apiKey": "a\r\nb: c"}}, "credentials.apiKey"),
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


def sample_credentials(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Returns the required fields of credentials, with values that their JSON Schema allows."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        properties = schema["properties"]
        # Azure needs this key unless it uses an application of Entra ID.
        required = schema.get("required", [name for name in properties if name == "apiKey"])
        return {name: sample_credentials(properties[name], root) for name in required}
    return "https://partner.example" if "http" in schema.get("pattern", "") else "1"


def test_hosts_of_every_partner_are_validated(bootstrapped_url: Secret):
    catalogue = {check["id"]: check["parameters"] for check in engine.guardrail_checks()}

    async def scenario(api: ManagementClient) -> None:
        for partner, (check_id, *_) in checks_by_partner().items():
            root = catalogue[check_id]
            body = {"partner": partner, "credentials": sample_credentials(root["properties"]["credentials"], root)}
            for address in ("https://user:a-password@proxy.example", "https://proxy.example/x?code=a-password"):
                status, response, _ = await api("POST", PATH, {**body, "base_url": address})
                assert status == 400, (partner, response)
                assert [problem["path"] for problem in response["data"]["errors"]] == ["base_url"], (partner, response)
                assert "a-password" not in str(response)
            await api.request_ok("POST", PATH, {**body, "base_url": "https://proxy.example"})
        audited = await api.request_ok("GET", "audit-logs")
        assert "a-password" not in str(audited)

    run_scenario(bootstrapped_url, scenario)


def test_equal_checks_are_validated_and_decrypted_once(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    validated: list[Any] = []
    decrypted: list[str] = []
    open_in_vault = Vault.open

    async def check_in_engine(kind: str, document: dict[str, Any]) -> None:
        validated.append(document["checks"])
        await engine_validation.check_in_engine(kind, document)

    async def open_counted(self: Vault, connection: Any, sealed: str, owner: str) -> str:
        decrypted.append(owner)
        return await open_in_vault(self, connection, sealed, owner)

    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        created = await api.request_ok("POST", PATH, LAKERA)
        other = {"id": "lakera.guard", "parameters": {"timeout": 9}}
        for checks in ([CHECK], [CHECK, CHECK], [CHECK, other], [{"id": "default.wordCount"}]):
            body = {"name": "g", "checks": checks, "workspace_id": workspace["id"]}
            await api.request_ok("POST", "guardrails", body)
        monkeypatch.setattr(saved_credentials, "check_in_engine", check_in_engine)
        await api.request_ok("PUT", f"{PATH}/lakera", {"credentials": {"apiKey": OTHER_KEY}})
        # Validates the credentials alone, then the two different checks of the guardrails, in random order.
        assert (len(validated[0]), sum(map(len, validated))) == (1, 3)
        monkeypatch.setattr(Vault, "open", open_counted)
        assert len([row for row in (await published_guardrails(api)).values() if OTHER_KEY in str(row)]) == 3
        assert decrypted == [created["id"]]

    run_scenario(bootstrapped_url, scenario)


def test_slow_validation_is_reported(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def check_in_engine(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(saved_credentials, "check_in_engine", check_in_engine)

    async def scenario(api: ManagementClient) -> None:
        await api.expect_error(400, "credentials take longer than 10 s", "POST", PATH, LAKERA)

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
        # Otherwise the author of a check could send the credentials to a host of its own.
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
        # The first guardrail needs the `pii` credentials, which this change omits.
        await api.expect_error(
            400, "do not suit the guardrail", "PUT", f"{PATH}/azure", {"credentials": {"contentSafety": both["pii"]}}
        )

    run_scenario(bootstrapped_url, scenario)


def test_aliases_of_checks_get_the_credentials(bootstrapped_url: Secret):
    aliases = {alias: check["id"] for check in engine.guardrail_checks() for alias in check["aliases"]}
    assert aliases["acuvity.Acuvity"] == "acuvity.scan"
    # The key of Acuvity is a token that names its host.
    claims = base64.urlsafe_b64encode(b'{"opaque": {"apex-url": "https://acuvity.example"}}').decode().rstrip("=")
    token = f"e30.{claims}.x"
    saved = {"partner": "acuvity", "credentials": {"apiKey": token}}

    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        body = {"name": "g", "checks": [{"id": "acuvity.Acuvity"}], "workspace_id": workspace["id"]}
        await api.expect_error(400, "has no credentials of 'acuvity'", "POST", "guardrails", body)
        await api.request_ok("POST", PATH, saved)
        assert (await api.request_ok("GET", f"{PATH}/acuvity"))["checks"] == ["acuvity.scan"]
        guardrail = await api.request_ok("POST", "guardrails", body)
        assert (await published_parameters(api, guardrail["slug"]))["credentials"] == {"apiKey": token}
        await api.expect_error(409, guardrail["slug"], "DELETE", f"{PATH}/acuvity")
        # Credentials in a check that is named by an alias are masked too.
        own = [{"id": "acuvity.Acuvity", "parameters": {"credentials": {"apiKey": token}}}]
        await api.request_ok("PUT", f"guardrails/{guardrail['id']}", {"checks": own})
        assert token not in str(await api.request_ok("GET", f"guardrails/{guardrail['id']}"))

    run_scenario(bootstrapped_url, scenario)


def test_checks_are_compiled_before_other_changes_wait(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    compiling = {"credentials": asyncio.Event(), "guardrail": asyncio.Event()}
    release = asyncio.Event()

    async def compile_slowly(kind: str, document: dict[str, Any], *limits: Any) -> None:
        if "slow" in str(document):
            compiling["guardrail" if document["actions"] else "credentials"].set()
            await release.wait()
        await CHECK_IN_ENGINE(kind, document, *limits)

    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        await api.request_ok("POST", PATH, LAKERA)
        body = {"name": "g", "checks": [CHECK], "workspace_id": workspace["id"]}
        guardrail = await api.request_ok("POST", "guardrails", body)
        monkeypatch.setattr(saved_credentials, "check_in_engine", compile_slowly)
        monkeypatch.setattr(engine_validation, "check_in_engine", compile_slowly)
        slow = [{"id": "default.contains", "parameters": {"words": ["slow"]}}]
        changes = [
            asyncio.create_task(api.request_ok("PUT", f"{PATH}/lakera", {"credentials": {"apiKey": "a-slow-key"}})),
            asyncio.create_task(api.request_ok("PUT", f"guardrails/{guardrail['id']}", {"checks": slow})),
        ]
        await asyncio.gather(*(event.wait() for event in compiling.values()))
        # Another change of the organisation does not wait for them.
        await api.create_workspace("quick")
        assert not any(change.done() for change in changes)
        release.set()
        await asyncio.gather(*changes)

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
