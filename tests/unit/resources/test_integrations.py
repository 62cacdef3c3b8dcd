"""Credentials of integrations. A credential stays bound to its address, and no integration is mistaken for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from penstock.store.tables import integrations
from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

KEY = "sk-0123456789abcdef"
HOST, OTHER = {"custom_host": "https://a.example"}, {"custom_host": "https://b.example"}
ID_LIKE_SLUG = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_rejects_slugs_that_have_the_form_of_an_id(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        fields = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        vault = {"vault_addr": "https://v.example", "vault_auth_type": "token", "vault_token": "t"}
        secret = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        await api.request_ok("POST", "integrations", {**fields, "slug": "shared"})
        for slug in (ID_LIKE_SLUG, ID_LIKE_SLUG.upper()):
            for path, body in (
                ("integrations", {**fields, "slug": slug}),
                ("integrations", {**fields, "default_provider_slug": slug}),
                ("providers", {"name": "p", "integration_id": "shared", "workspace_id": workspace, "slug": slug}),
                (
                    "virtual-keys",
                    {"name": "v", "provider": "openai", "key": KEY, "workspace_id": workspace, "slug": slug},
                ),
                ("secret-references", {**secret, "slug": slug}),
            ):
                await api.expect_error(400, "slug", "POST", path, body)
            access = {"id": workspace, "enabled": True, "default_provider_slug": slug}
            await api.expect_error(400, "slug", "PUT", "integrations/shared/workspaces", {"workspaces": [access]})
            # A slug derived from a name does not have the form of an ID either.
            expected = {"name": slug, "provider": "openai", "key": KEY, "workspace_id": workspace}
            created = await api.request_ok("POST", "virtual-keys", expected)
            assert created["slug"].startswith("key-")

    run_scenario(bootstrapped_url, scenario)


def test_id_takes_precedence_over_an_equal_slug(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        fields = {"ai_provider_id": "openai", "key": KEY}
        ours, theirs = [
            await api.request_ok("POST", "integrations", {**fields, "name": name}) for name in ("ours", "theirs")
        ]
        # An earlier release allowed such a slug.
        async with api.database.write_transaction() as connection:
            used = update(integrations).where(integrations.c.id == theirs["id"]).values(slug=ours["id"])
            await connection.execute(used)
            # Changes the order of the rows on the disk.
            await connection.execute(
                update(integrations).where(integrations.c.id == ours["id"]).values(description="x")
            )
        assert (await api.request_ok("GET", f"integrations/{ours['id']}"))["name"] == "ours"
        workspace = (await api.create_workspace())["id"]
        every = {"workspaces": [{"id": workspace, "enabled": True, "create_default_provider": False}]}
        for row in (ours, theirs):
            await api.request_ok("PUT", f"integrations/{row['id']}/workspaces", every)
        body = {"name": "p", "integration_id": ours["id"], "workspace_id": workspace}
        provider = await api.request_ok("POST", "providers", body)
        fetched = await api.request_ok("GET", f"providers/{provider['slug']}?workspace_id={workspace}")
        assert fetched["integration_id"] == ours["slug"]

    run_scenario(bootstrapped_url, scenario)


AZURE_OPTIONS = {"azure_auth_mode": "default", "azure_foundry_url": "https://a.example"}
AZURE_RESOURCE_OPTIONS = {
    "azure_auth_mode": "default",
    "azure_resource_name": "one",
    "azure_deployment_config": [
        {"azure_deployment_name": "d", "azure_api_version": "v1", "azure_model_slug": "gpt-4o", "is_default": True}
    ],
}
AWS_OPTIONS = {"aws_auth_type": "assumedRole", "aws_region": "eu-west-1", "aws_role_arn": "arn:aws:iam::1:role/a"}
VERTEX_OPTIONS = {"vertex_auth_type": "basic", "vertex_region": "us-east1", "vertex_project_id": "one"}
ADDRESS_CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "from the provider's own": ("openai", {}, HOST),
    "to another host": ("openai", HOST, OTHER),
    "back to the provider's own": ("openai", HOST, {}),
    "to another foundry": ("azure-ai", AZURE_OPTIONS, {**AZURE_OPTIONS, "azure_foundry_url": "https://b.example"}),
    "to one that was deployed alone": ("azure-ai", AZURE_OPTIONS, {**AZURE_OPTIONS, "azure_deployment_name": "two"}),
    "to another resource": (
        "azure-openai",
        AZURE_RESOURCE_OPTIONS,
        {**AZURE_RESOURCE_OPTIONS, "azure_resource_name": "two"},
    ),
    "to another tenant": (
        "azure-openai",
        AZURE_RESOURCE_OPTIONS,
        {**AZURE_RESOURCE_OPTIONS, "azure_entra_tenant_id": "two"},
    ),
    "to another tenant of a workload": (
        "azure-openai",
        AZURE_RESOURCE_OPTIONS,
        {**AZURE_RESOURCE_OPTIONS, "azure_workload_tenant_id": "two"},
    ),
    "to another region of AWS": ("bedrock", AWS_OPTIONS, {**AWS_OPTIONS, "aws_region": "us-east-1"}),
    "to another region of SageMaker": ("sagemaker", AWS_OPTIONS, {**AWS_OPTIONS, "aws_region": "us-east-1"}),
    "to another region of Google": ("vertex-ai", VERTEX_OPTIONS, {**VERTEX_OPTIONS, "vertex_region": "us-east5"}),
    "to another endpoint": ("huggingface", {}, {"huggingface_base_url": "https://b.example"}),
    "to another account": ("cortex", {"snowflake_account": "one"}, {"snowflake_account": "two"}),
}
# None of these options decides where the key is sent.
NON_ADDRESS_CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "an organisation": ("openai", {}, {"openai_organization": "org-1"}),
    "a project": ("openai", {"openai_project": "one"}, {"openai_project": "two"}),
    "a version of Azure's": ("azure-ai", AZURE_OPTIONS, {**AZURE_OPTIONS, "azure_api_version": "2024-06-01"}),
    "a way to sign in": (
        "azure-ai",
        AZURE_OPTIONS,
        {**AZURE_OPTIONS, "azure_auth_mode": "managed", "azure_managed_client_id": "m", "azure_entra_client_id": "c"},
    ),
    "a deployment": (
        "azure-openai",
        AZURE_RESOURCE_OPTIONS,
        {
            **AZURE_RESOURCE_OPTIONS,
            "azure_workload_client_id": "w",
            "azure_deployment_config": [
                {**AZURE_RESOURCE_OPTIONS["azure_deployment_config"][0], "azure_api_version": "v2"}
            ],
        },
    ),
    "a role": (
        "bedrock",
        AWS_OPTIONS,
        {**AWS_OPTIONS, "aws_role_arn": "arn:aws:iam::1:role/b", "aws_external_id": "x"},
    ),
    "another way of AWS": (
        "sagemaker",
        AWS_OPTIONS,
        {"aws_auth_type": "apiKey", "aws_region": "eu-west-1", "amzn_sagemaker_target_model": "m"},
    ),
    "a project of Google's": ("vertex-ai", VERTEX_OPTIONS, {**VERTEX_OPTIONS, "vertex_project_id": "two"}),
    "an account at the same host": ("workers-ai", {"workers_ai_account_id": "1"}, {"workers_ai_account_id": "2"}),
    "how streams are read": ("anthropic", {}, {"anthropic_inspect_stream_for_overloaded_error": True}),
}


@pytest.mark.parametrize("change", list(NON_ADDRESS_CHANGES))
def test_key_stays_if_its_address_stays(bootstrapped_url: Secret, change: str):
    provider, before, after = NON_ADDRESS_CHANGES[change]

    async def scenario(api: ManagementClient) -> None:
        body = {"name": "i", "ai_provider_id": provider, "key": KEY, "configurations": before}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        masked = (await api.request_ok("GET", path))["masked_key"]
        await api.request_ok("PUT", path, {"configurations": after})
        fetched = await api.request_ok("GET", path)
        assert (fetched["configurations"], fetched["masked_key"]) == (after, masked)

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("move", list(ADDRESS_CHANGES))
def test_new_address_requires_the_key_again(bootstrapped_url: Secret, move: str):
    provider, before, after = ADDRESS_CHANGES[move]

    async def scenario(api: ManagementClient) -> None:
        body = {"name": "i", "ai_provider_id": provider, "key": KEY, "configurations": before}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        masked = (await api.request_ok("GET", path))["masked_key"]
        for options in ({}, {"key": masked}):
            await api.expect_error(400, "'path': 'key'", "PUT", path, {"configurations": after, **options})
        assert (await api.request_ok("GET", path))["configurations"] == before
        # The key stays if the address is unchanged.
        await api.request_ok("PUT", path, {"configurations": before, "key": masked, "name": "renamed"})
        await api.request_ok("PUT", path, {"configurations": after, "key": KEY})
        assert (await api.request_ok("GET", path))["configurations"] == after

    run_scenario(bootstrapped_url, scenario)


def test_new_host_requires_header_secrets_again(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        headers = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
        body = {"name": "i", "ai_provider_id": "openai", "configurations": {**HOST, **headers}}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        fetched = (await api.request_ok("GET", path))["configurations"]
        location = "configurations.custom_headers"
        await api.expect_error(400, location, "PUT", path, {"configurations": {**fetched, **OTHER}})
        await api.request_ok("PUT", path, {"configurations": {**OTHER, **headers}})
        model = {"slug": "m", "enabled": True, "is_custom": True, "configurations": {**HOST, **headers}}
        # The headers of the integration go to the model's host too.
        await api.expect_error(400, f"'path': '{location}'", "PUT", f"{path}/models", {"models": [model]})
        await api.request_ok("PUT", f"{path}/models", {"models": [model], "configurations": headers})
        moved = {**model, "configurations": {**fetched, **OTHER}}
        await api.expect_error(400, f"models[0].{location}", "PUT", f"{path}/models", {"models": [moved]})
        await api.request_ok("PUT", f"{path}/models", {"models": [{**model, "configurations": {**OTHER, **headers}}]})

    run_scenario(bootstrapped_url, scenario)


def test_model_headers_do_not_follow_the_integrations_new_host(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        body = {"name": "i", "ai_provider_id": "openai", "key": KEY, "configurations": HOST}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        model = {"slug": "m", "enabled": True, "is_custom": True}
        secret = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
        moved = {"configurations": OTHER, "key": KEY}
        await api.request_ok("PUT", f"{path}/models", {"models": [{**model, "configurations": secret}]})
        await api.expect_error(400, "custom_headers of 'm'", "PUT", path, moved)
        assert (await api.request_ok("GET", path))["configurations"] == HOST
        # If the model has a host of its own, its headers stay with it.
        await api.request_ok("PUT", f"{path}/models", {"models": [{**model, "configurations": {**HOST, **secret}}]})
        await api.request_ok("PUT", path, moved)
        await api.request_ok("PUT", f"{path}/models", {"models": [{**model, "configurations": None}]})
        await api.request_ok("PUT", path, {"configurations": HOST, "key": KEY})

    run_scenario(bootstrapped_url, scenario)


def test_new_model_host_requires_the_key_again(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        body = {"name": "i", "ai_provider_id": "openai", "key": KEY, "configurations": HOST}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"

        def make_models_body(slug: str, host: str, **more: object) -> dict[str, Any]:
            item = {"slug": slug, "enabled": True, "is_custom": True, "configurations": {"custom_host": host}}
            return {"models": [item], **more}

        masked = (await api.request_ok("GET", path))["masked_key"]
        away = "https://b.example/v1"
        # Not even the caller that supplied the key may send it elsewhere without sending it again.
        for more in ({}, {"key": masked}):
            await api.expect_error(400, "'path': 'key'", "PUT", f"{path}/models", make_models_body("m", away, **more))
        listed = (await api.request_ok("GET", f"{path}/models"))["models"]
        assert not [row for row in listed if row["is_custom"]]
        # Allowed: the address that already receives the key, and a new one if the request contains the key.
        await api.request_ok("PUT", f"{path}/models", make_models_body("near", f"{HOST['custom_host']}/"))
        await api.request_ok("PUT", f"{path}/models", make_models_body("m", away, key="sk-another-key"))
        await api.request_ok("PUT", f"{path}/models", make_models_body("n", "https://B.example/v1"))
        # The path may select the tenant of a shared host.
        for host in ("https://b.example/v2", "http://b.example/v1", "https://b.example:8443/v1"):
            await api.expect_error(400, "'path': 'key'", "PUT", f"{path}/models", make_models_body("o", host))

    run_scenario(bootstrapped_url, scenario)


def test_new_model_host_requires_header_secrets_again(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        headers = {"x-team": "a-secret-of-the-team", "x-other": "another-of-the-team"}
        options = {"custom_headers": headers, "openai_project": "p"}
        body = {"name": "i", "ai_provider_id": "openai", "configurations": options}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        fetched = (await api.request_ok("GET", path))["configurations"]["custom_headers"]
        host = {"custom_host": "https://far.example"}
        models = {"models": [{"slug": "m", "enabled": True, "is_custom": True, "configurations": host}]}
        location = "configurations.custom_headers"
        partly = {**fetched, "x-other": "another-of-the-team"}
        for sent in ({}, {"custom_headers": fetched}, {"custom_headers": partly}, {"custom_headers": None}):
            await api.expect_error(400, location, "PUT", f"{path}/models", {**models, "configurations": sent})
        others = {"custom_headers": headers, "openai_project": "q"}
        await api.expect_error(400, "openai_project", "PUT", f"{path}/models", {**models, "configurations": others})
        await api.request_ok("PUT", f"{path}/models", {**models, "configurations": {"custom_headers": headers}})
        assert (await api.request_ok("GET", path))["configurations"] == {**options, "custom_headers": fetched}

    run_scenario(bootstrapped_url, scenario)


def test_virtual_keys_and_secret_references_bind_credentials_too(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        body = {"name": "v", "provider": "openai", "key": KEY, "workspace_id": workspace, "model_config": HOST}
        path = f"virtual-keys/{(await api.request_ok('POST', 'virtual-keys', body))['slug']}?workspace_id={workspace}"
        masked = (await api.request_ok("GET", path))["masked_api_key"]
        for content in ({}, {"key": masked}, {"key": ""}):
            await api.expect_error(400, "'path': 'key'", "PUT", path, {"model_config": OTHER, **content})
        await api.request_ok("PUT", path, {"model_config": HOST, "name": "renamed"})
        await api.request_ok("PUT", path, {"model_config": OTHER, "key": KEY})
        vault = {"vault_addr": "https://v.example", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        fields = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        path = f"secret-references/{(await api.request_ok('POST', 'secret-references', fields))['id']}"
        fetched = (await api.request_ok("GET", path))["auth_config"]
        moved = {"vault_addr": "https://w.example"}
        for content in (moved, {**fetched, **moved}):
            await api.expect_error(400, "auth_config.vault_token", "PUT", path, {"auth_config": content})
        await api.request_ok("PUT", path, {"auth_config": fetched})
        await api.request_ok("PUT", path, {"auth_config": {**vault, **moved}})

    run_scenario(bootstrapped_url, scenario)


def test_integration_of_a_virtual_key_is_not_accessible_directly(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        virtual_key = await api.request_ok(
            "POST", "virtual-keys", {"name": "v", "provider": "openai", "key": KEY, "workspace_id": workspace}
        )
        slug = (await api.request_ok("GET", f"virtual-keys/{virtual_key['slug']}?workspace_id={workspace}"))[
            "integration_id"
        ]
        verbs = [f"workspace_integrations.{verb}" for verb in ("read", "update", "delete")]
        _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=verbs)
        model = {"slug": "m", "enabled": False}
        for who in (api, inside):
            for method, rest, body in (
                ("GET", "", None),
                ("PUT", "", {"name": "mine", "key": "sk-another-key"}),
                ("GET", "/models", None),
                ("PUT", "/models", {"models": [model]}),
                ("PUT", "/workspaces", {"workspaces": []}),
                ("DELETE", "", None),
            ):
                await who.expect_error(404, slug, method, f"integrations/{slug}{rest}", body)
        await api.request_ok(
            "PUT", f"virtual-keys/{virtual_key['slug']}?workspace_id={workspace}", {"key": "sk-another-key"}
        )

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize("kind", ["integrations", "virtual-keys"])
def test_secret_manager_cannot_choose_the_host_of_a_stored_key(bootstrapped_url: Secret, kind: str):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        vault = {"vault_addr": "https://v.example", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        fields = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        secret = (await api.request_ok("POST", "secret-references", fields))["id"]
        provider = "ai_provider_id" if kind == "integrations" else "provider"
        body = {"name": "v", provider: "openai", "key": KEY, "workspace_id": workspace}
        path = f"{kind}/{(await api.request_ok('POST', kind, body))['slug']}?workspace_id={workspace}"
        mapped = {"secret_mappings": [{"target_field": "configurations.custom_host", "secret_reference_id": secret}]}
        workspace = "'path': 'secret_mappings[0].target_field'"
        for more in ({}, {"key": KEY}):
            await api.expect_error(400, workspace, "PUT", path, {**mapped, **more})
        await api.expect_error(400, workspace, "POST", kind, {**body, **mapped})
        assert (await api.request_ok("GET", path))["secret_mappings"] == []
        # Another project is not another address.
        project = {"target_field": "configurations.openai_project", "secret_reference_id": secret}
        await api.request_ok("PUT", path, {"secret_mappings": [project]})

    run_scenario(bootstrapped_url, scenario)


def test_workspace_given_by_slug_gets_no_unwanted_provider(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        await api.request_ok("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": KEY})
        workspaces = [await api.create_workspace() for _ in range(2)]
        names = [workspaces[0]["id"], workspaces[1]["slug"]]
        accesses = [{"id": name, "enabled": True, "create_default_provider": False} for name in names]
        body = {"workspaces": accesses, "global_workspace_access": {"enabled": True}}
        await api.request_ok("PUT", "integrations/i/workspaces", body)
        created = [
            (await api.request_ok("GET", f"providers?workspace_id={workspace['id']}"))["total"]
            for workspace in workspaces
        ]
        assert created == [0, 0]

    run_scenario(bootstrapped_url, scenario)


def test_rejects_models_that_the_engine_would_reject(bootstrapped_url: Secret):
    """Such a model was once stored, and then excluded the whole integration from the snapshot."""

    async def scenario(api: ManagementClient) -> None:
        body = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}/models"
        sold = {"slug": "m", "enabled": True, "is_custom": True}
        price = {"pay_as_you_go": {"request_token": {"price": 2e9}}}
        for field, value, location in (
            (
                "configurations",
                {"custom_headers": {"Host": "b.example"}},
                "models[1].configurations.custom_headers.host",
            ),
            ("configurations", {"custom_headers": {"x-a": "a\nb"}}, "models[1].configurations.custom_headers.x-a"),
            ("configurations", {"custom_host": "https://x:99999"}, "models[1].configurations.custom_host"),
            ("pricing_config", price, "models[1].pricing_config"),
        ):
            models = [{**sold, "slug": "good"}, {**sold, field: value}]
            await api.expect_error(400, location, "PUT", path, {"models": models, "key": KEY})
        listed = (await api.request_ok("GET", path))["models"]
        assert not [row for row in listed if row["is_custom"]]

    run_scenario(bootstrapped_url, scenario)


def test_last_usage_reset_is_shown_to_permitted_callers_only(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspaces = [(await api.create_workspace())["id"] for _ in range(2)]
        body = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}"
        scopes = ["workspace_integrations.list", "workspace_integrations.read"]
        clients = [api] + [
            (await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes))[1]
            for workspace in workspaces
        ]
        shares = [{"id": workspace, "enabled": True} for workspace in workspaces]
        await api.request_ok("PUT", f"{path}/workspaces", {"workspaces": shares})

        async def fetch_reset_flags() -> list[bool]:
            fetched = [(await item.request_ok("GET", path))["last_reset_at"] for item in clients]
            listed = [(await item.request_ok("GET", "integrations"))["data"][0]["last_reset_at"] for item in clients]
            assert listed == fetched
            return [item is not None for item in fetched]

        assert await fetch_reset_flags() == [False, False, False]
        await api.request_ok("PUT", f"{path}/workspaces", {"workspaces": [{**shares[1], "reset_usage": True}]})
        assert await fetch_reset_flags() == [True, False, True]

    run_scenario(bootstrapped_url, scenario)


def test_warns_of_a_missing_key_and_of_a_host_that_will_be_refused(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        async def create_warnings(**fields: Any) -> dict[str, str]:
            created = await api.request_ok("POST", "integrations", {"name": "i", "ai_provider_id": "openai", **fields})
            return {warning["path"]: warning["message"] for warning in created.get("warnings", [])}

        assert list(await create_warnings()) == ["key"]
        assert await create_warnings(key=KEY) == {}
        for keyless in ("ollama", "bedrock", "mock"):
            assert await create_warnings(ai_provider_id=keyless) == {}
        assert await create_warnings(configurations={"custom_headers": {"authorization": KEY}}) == {}
        for host in ("http://10.9.9.9:8000/v1", "http://[::1]:8000", "https://vllm.internal", "http://localhost:1"):
            warnings = await create_warnings(configurations={"custom_host": host})
            assert list(warnings) == ["configurations.custom_host"], host
            assert "TRUSTED_CUSTOM_HOSTS" in warnings["configurations.custom_host"]
        assert await create_warnings(configurations=HOST) == {}
        created = await api.request_ok("POST", "integrations", {"name": "i", "ai_provider_id": "openai", "key": KEY})
        changed = await api.request_ok("PUT", f"integrations/{created['slug']}", {"key": ""})
        assert [warning["path"] for warning in changed["warnings"]] == ["key"]
        assert await api.request_ok("PUT", f"integrations/{created['slug']}", {"key": KEY}) == {}

    run_scenario(bootstrapped_url, scenario)
