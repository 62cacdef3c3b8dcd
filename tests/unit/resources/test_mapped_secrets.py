"""Mapped secrets. A workspace that may use a secret reference can send its value to the provider, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True

VAULT_AUTH_CONFIG = {"vault_addr": "https://v.example", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
HOST, OTHER = {"custom_host": "https://a.example"}, {"custom_host": "https://b.example"}
BEDROCK_OPTIONS = {"aws_auth_type": "apiKey", "aws_region": "eu-west-1"}
FOUNDRY_OPTIONS = {"azure_auth_mode": "default", "azure_foundry_url": "https://a.example"}
REQUIRED_SCOPE = "secret_references.update"
WORKSPACE_SCOPES = [
    f"{family}.{verb}" for family in ("workspace_integrations", "virtual_keys") for verb in ("create", "read", "update")
]


class MappedSecretHarness:
    """A workspace, a key that may manage its integrations, and a secret reference that it may use."""

    def __init__(self, api: ManagementClient, location: str, inside: ManagementClient, secret: str) -> None:
        self.api, self.place, self.inside, self.secret = api, location, inside, secret

    def make_mapping(self, field: str = "key", **more: object) -> dict[str, Any]:
        return {"target_field": field, "secret_reference_id": self.secret, **more}

    def make_body(self, kind: str, provider: str, content: dict[str, Any], *mappings: dict[str, Any]) -> dict[str, Any]:
        names = ("ai_provider_id", "configurations") if kind == "integrations" else ("provider", "model_config")
        known = {"name": "i", "workspace_id": self.place, "secret_mappings": list(mappings or [self.make_mapping()])}
        return {**known, **dict(zip(names, (provider, content), strict=True))}

    async def create_resource(
        self, kind: str, provider: str, content: dict[str, Any], *mappings: dict[str, Any]
    ) -> str:
        body = self.make_body(kind, provider, content, *mappings)
        return f"{kind}/{(await self.api.request_ok('POST', kind, body))['slug']}?workspace_id={self.place}"


async def set_up_harness(api: ManagementClient, **content: object) -> MappedSecretHarness:
    workspace = (await api.create_workspace())["id"]
    _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=WORKSPACE_SCOPES)
    body = {
        "name": "s",
        "manager_type": "hashicorp_vault",
        "auth_config": VAULT_AUTH_CONFIG,
        "secret_path": "a/b",
        **content,
    }
    return MappedSecretHarness(api, workspace, inside, (await api.request_ok("POST", "secret-references", body))["id"])


FOR_EACH_KIND = pytest.mark.parametrize("kind", ["integrations", "virtual-keys"])


@FOR_EACH_KIND
def test_mapped_secret_goes_to_the_providers_own_host_only(bootstrapped_url: Secret, kind: str):
    async def scenario(api: ManagementClient) -> None:
        at = await set_up_harness(api)
        for provider, content in (("openai", {}), ("bedrock", BEDROCK_OPTIONS)):
            await at.inside.request_ok("POST", kind, at.make_body(kind, provider, content))
        for provider, content, mappings in (
            ("openai", HOST, []),
            ("azure-ai", FOUNDRY_OPTIONS, []),
            ("huggingface", {"huggingface_base_url": "https://a.example"}, []),
            # The value of any mapped field would be sent to the host too.
            ("openai", HOST, [at.make_mapping("configurations.openai_project")]),
            ("openai", {}, [at.make_mapping(), at.make_mapping("configurations.custom_host")]),
        ):
            body = at.make_body(kind, provider, content, *mappings)
            await at.inside.expect_error(403, REQUIRED_SCOPE, "POST", kind, body)
            await api.request_ok("POST", kind, body)

    run_scenario(bootstrapped_url, scenario)


@FOR_EACH_KIND
def test_mapped_secret_keeps_the_host_set_by_its_owner(bootstrapped_url: Secret, kind: str):
    async def scenario(api: ManagementClient) -> None:
        at = await set_up_harness(api)
        field = "configurations" if kind == "integrations" else "model_config"
        mapping = {"secret_mappings": [at.make_mapping()]}
        path = await at.create_resource(kind, "openai", HOST)
        for change in ({field: OTHER}, {field: OTHER, **mapping}, {field: OTHER, "key": "sk-0123456789"}):
            await at.inside.expect_error(403, REQUIRED_SCOPE, "PUT", path, change)
        more = {"secret_mappings": [at.make_mapping(), at.make_mapping("configurations.openai_project")]}
        await at.inside.expect_error(403, "secret_mappings[1]", "PUT", path, more)
        # An unchanged field is not a change, and a change that keeps the address is allowed.
        await at.inside.request_ok("PUT", path, {field: {**HOST, "openai_project": "p"}, **mapping, "name": "n"})
        assert (await api.request_ok("GET", path))[field] == {**HOST, "openai_project": "p"}
        await api.request_ok("PUT", path, {field: OTHER})
        # A mapped secret cannot replace a stored key at a custom host.
        body = {**at.make_body(kind, "openai", OTHER), "secret_mappings": [], "key": "sk-0123456789"}
        path = f"{kind}/{(await at.inside.request_ok('POST', kind, body))['slug']}?workspace_id={at.place}"
        await at.inside.expect_error(403, "secret_mappings[0]", "PUT", path, mapping)
        # A change to another of the provider's own hosts requires the mapping again, as it would a key.
        path = await at.create_resource(kind, "bedrock", BEDROCK_OPTIONS)
        moved = {field: {**BEDROCK_OPTIONS, "aws_region": "us-east-1"}}
        await at.inside.expect_error(403, "secret_mappings", "PUT", path, moved)
        await at.inside.request_ok("PUT", path, {**moved, **mapping})

    run_scenario(bootstrapped_url, scenario)


def test_model_host_cannot_redirect_a_mapped_secret(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        at = await set_up_harness(api)
        integration = await at.inside.request_ok("POST", "integrations", at.make_body("integrations", "openai", {}))
        path = f"integrations/{integration['id']}"

        def make_models_body(slug: str, content: dict[str, str], **more: object) -> dict[str, Any]:
            return {"models": [{"slug": slug, "enabled": True, "is_custom": True, "configurations": content}], **more}

        for more in ({}, {"key": "sk-0123456789"}):
            await at.inside.expect_error(
                403, REQUIRED_SCOPE, "PUT", f"{path}/models", make_models_body("m", HOST, **more)
            )
        await api.request_ok("PUT", f"{path}/models", make_models_body("m", HOST))
        await at.inside.request_ok("PUT", f"{path}/models", make_models_body("n", HOST))
        # A secret that is mapped later does not go to the custom host of a model.
        body = {**at.make_body("integrations", "openai", {}), "secret_mappings": []}
        path = f"integrations/{(await at.inside.request_ok('POST', 'integrations', body))['id']}"
        await at.inside.request_ok("PUT", f"{path}/models", make_models_body("m", HOST))
        await at.inside.expect_error(403, "models['m']", "PUT", path, {"secret_mappings": [at.make_mapping()]})

    run_scenario(bootstrapped_url, scenario)


@FOR_EACH_KIND
def test_mapping_reads_only_the_secret_key_of_its_reference(bootstrapped_url: Secret, kind: str):
    async def scenario(api: ManagementClient) -> None:
        at = await set_up_harness(api, secret_key="mine")
        own, other = at.make_mapping(secret_key="mine"), at.make_mapping(secret_key="theirs")
        for mapping in (at.make_mapping(), own, at.make_mapping(secret_key="")):
            await at.inside.request_ok("POST", kind, at.make_body(kind, "openai", {}, mapping))
        await at.inside.expect_error(
            403, "secret_mappings[0].secret_key", "POST", kind, at.make_body(kind, "openai", {}, other)
        )
        path = await at.create_resource(kind, "openai", {}, other)
        await at.inside.request_ok("PUT", path, {"secret_mappings": [other], "name": "n"})
        await at.inside.request_ok("PUT", path, {"secret_mappings": [own]})
        await at.inside.expect_error(403, "secret_mappings[0].secret_key", "PUT", path, {"secret_mappings": [other]})
        # A reference without a secret key allows any of them.
        complete = await set_up_harness(api)
        mapping = complete.make_mapping(secret_key="theirs")
        await complete.inside.request_ok("POST", kind, complete.make_body(kind, "openai", {}, mapping))

    run_scenario(bootstrapped_url, scenario)


def test_required_option_stays_mapped_or_is_sent(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        at = await set_up_harness(api)
        region = at.make_mapping("configurations.aws_region")
        path = await at.create_resource("integrations", "bedrock", {"aws_auth_type": "apiKey"}, region)
        await api.expect_error(400, "aws_region", "PUT", path, {"secret_mappings": []})
        assert (await api.request_ok("GET", path))["secret_mappings"]
        await api.request_ok("PUT", path, {"secret_mappings": [region, at.make_mapping()]})
        await api.request_ok("PUT", path, {"secret_mappings": [], "configurations": BEDROCK_OPTIONS})
        # A mapped credential outside the option form requires none of the form's fields.
        path = await at.create_resource("integrations", "bedrock", {})
        await api.request_ok("PUT", path, {"secret_mappings": [at.make_mapping("configurations.aws_session_token")]})

    run_scenario(bootstrapped_url, scenario)
