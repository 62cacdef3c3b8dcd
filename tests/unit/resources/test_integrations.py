"""Whose credential goes where: an integration keeps its own at its address, and is not mistaken for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from penstock.store.tables import integrations
from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

KEY = "sk-0123456789abcdef"
HOST, OTHER = {"custom_host": "https://a.example"}, {"custom_host": "https://b.example"}
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_a_slug_that_looks_like_an_id_is_refused_wherever_one_is_given(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        made = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        vault = {"vault_addr": "https://v.test", "vault_auth_type": "token", "vault_token": "t"}
        secret = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        await api.good("POST", "integrations", {**made, "slug": "shared"})
        for slug in (ID, ID.upper()):
            for path, body in (
                ("integrations", {**made, "slug": slug}),
                ("integrations", {**made, "default_provider_slug": slug}),
                ("providers", {"name": "p", "integration_id": "shared", "workspace_id": place, "slug": slug}),
                ("virtual-keys", {"name": "v", "provider": "openai", "key": KEY, "workspace_id": place, "slug": slug}),
                ("secret-references", {**secret, "slug": slug}),
            ):
                await api.refused(400, "slug", "POST", path, body)
            access = {"id": place, "enabled": True, "default_provider_slug": slug}
            await api.refused(400, "slug", "PUT", "integrations/shared/workspaces", {"workspaces": [access]})
            # Neither is one made of a name.
            wanted = {"name": slug, "provider": "openai", "key": KEY, "workspace_id": place}
            named = await api.good("POST", "virtual-keys", wanted)
            assert named["slug"].startswith("key-")

    played(founded_url, scene)


def test_an_id_means_what_has_it_and_not_what_has_it_as_its_slug(founded_url: Secret):
    async def scene(api: Plane) -> None:
        made = {"ai_provider_id": "openai", "key": KEY}
        ours, theirs = [await api.good("POST", "integrations", {**made, "name": name}) for name in ("ours", "theirs")]
        # As it could be written before.
        async with api.database.write_transaction() as connection:
            taken = update(integrations).where(integrations.c.id == theirs["id"]).values(slug=ours["id"])
            await connection.execute(taken)
            # Another order of the rows on the disk.
            await connection.execute(
                update(integrations).where(integrations.c.id == ours["id"]).values(description="x")
            )
        assert (await api.good("GET", f"integrations/{ours['id']}"))["name"] == "ours"
        place = (await api.workspace())["id"]
        every = {"workspaces": [{"id": place, "enabled": True, "create_default_provider": False}]}
        for row in (ours, theirs):
            await api.good("PUT", f"integrations/{row['id']}/workspaces", every)
        body = {"name": "p", "integration_id": ours["id"], "workspace_id": place}
        provider = await api.good("POST", "providers", body)
        shown = await api.good("GET", f"providers/{provider['slug']}?workspace_id={place}")
        assert shown["integration_id"] == ours["slug"]

    played(founded_url, scene)


AZURE = {"azure_auth_mode": "default", "azure_foundry_url": "https://a.example"}
RESOURCE = {
    "azure_auth_mode": "default",
    "azure_resource_name": "one",
    "azure_deployment_config": [
        {"azure_deployment_name": "d", "azure_api_version": "v1", "azure_model_slug": "gpt-4o", "is_default": True}
    ],
}
AWS = {"aws_auth_type": "assumedRole", "aws_region": "eu-west-1", "aws_role_arn": "arn:aws:iam::1:role/a"}
VERTEX = {"vertex_auth_type": "basic", "vertex_region": "us-east1", "vertex_project_id": "one"}
MOVES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "from the provider's own": ("openai", {}, HOST),
    "to another host": ("openai", HOST, OTHER),
    "back to the provider's own": ("openai", HOST, {}),
    "to another foundry": ("azure-ai", AZURE, {**AZURE, "azure_foundry_url": "https://b.example"}),
    "to one that was deployed alone": ("azure-ai", AZURE, {**AZURE, "azure_deployment_name": "two"}),
    "to another resource": ("azure-openai", RESOURCE, {**RESOURCE, "azure_resource_name": "two"}),
    "to another tenant": ("azure-openai", RESOURCE, {**RESOURCE, "azure_entra_tenant_id": "two"}),
    "to another tenant of a workload": ("azure-openai", RESOURCE, {**RESOURCE, "azure_workload_tenant_id": "two"}),
    "to another region of AWS": ("bedrock", AWS, {**AWS, "aws_region": "us-east-1"}),
    "to another region of SageMaker": ("sagemaker", AWS, {**AWS, "aws_region": "us-east-1"}),
    "to another region of Google": ("vertex-ai", VERTEX, {**VERTEX, "vertex_region": "us-east5"}),
    "to another endpoint": ("huggingface", {}, {"huggingface_base_url": "https://b.example"}),
    "to another account": ("cortex", {"snowflake_account": "one"}, {"snowflake_account": "two"}),
}
# Nothing of these says where the key goes.
STAYS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "an organisation": ("openai", {}, {"openai_organization": "org-1"}),
    "a project": ("openai", {"openai_project": "one"}, {"openai_project": "two"}),
    "a version of Azure's": ("azure-ai", AZURE, {**AZURE, "azure_api_version": "2024-06-01"}),
    "a way to sign in": (
        "azure-ai",
        AZURE,
        {**AZURE, "azure_auth_mode": "managed", "azure_managed_client_id": "m", "azure_entra_client_id": "c"},
    ),
    "a deployment": (
        "azure-openai",
        RESOURCE,
        {
            **RESOURCE,
            "azure_workload_client_id": "w",
            "azure_deployment_config": [{**RESOURCE["azure_deployment_config"][0], "azure_api_version": "v2"}],
        },
    ),
    "a role": ("bedrock", AWS, {**AWS, "aws_role_arn": "arn:aws:iam::1:role/b", "aws_external_id": "x"}),
    "another way of AWS": (
        "sagemaker",
        AWS,
        {"aws_auth_type": "apiKey", "aws_region": "eu-west-1", "amzn_sagemaker_target_model": "m"},
    ),
    "a project of Google's": ("vertex-ai", VERTEX, {**VERTEX, "vertex_project_id": "two"}),
    "an account at the same host": ("workers-ai", {"workers_ai_account_id": "1"}, {"workers_ai_account_id": "2"}),
    "how streams are read": ("anthropic", {}, {"anthropic_inspect_stream_for_overloaded_error": True}),
}


@pytest.mark.parametrize("change", list(STAYS))
def test_a_key_stays_where_something_else_is_said_of_the_same_address(founded_url: Secret, change: str):
    provider, before, after = STAYS[change]

    async def scene(api: Plane) -> None:
        body = {"name": "i", "ai_provider_id": provider, "key": KEY, "configurations": before}
        path = f"integrations/{(await api.good('POST', 'integrations', body))['id']}"
        masked = (await api.good("GET", path))["masked_key"]
        await api.good("PUT", path, {"configurations": after})
        shown = await api.good("GET", path)
        assert (shown["configurations"], shown["masked_key"]) == (after, masked)

    played(founded_url, scene)


@pytest.mark.parametrize("move", list(MOVES))
def test_a_key_is_sent_anew_where_it_is_to_go_elsewhere(founded_url: Secret, move: str):
    provider, before, after = MOVES[move]

    async def scene(api: Plane) -> None:
        body = {"name": "i", "ai_provider_id": provider, "key": KEY, "configurations": before}
        path = f"integrations/{(await api.good('POST', 'integrations', body))['id']}"
        masked = (await api.good("GET", path))["masked_key"]
        for said in ({}, {"key": masked}):
            await api.refused(400, "'path': 'key'", "PUT", path, {"configurations": after, **said})
        assert (await api.good("GET", path))["configurations"] == before
        # At its own address it stays.
        await api.good("PUT", path, {"configurations": before, "key": masked, "name": "renamed"})
        await api.good("PUT", path, {"configurations": after, "key": KEY})
        assert (await api.good("GET", path))["configurations"] == after

    played(founded_url, scene)


def test_secrets_among_configurations_are_sent_anew_too(founded_url: Secret):
    async def scene(api: Plane) -> None:
        headers = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
        made = {"name": "i", "ai_provider_id": "openai", "configurations": {**HOST, **headers}}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
        shown = (await api.good("GET", path))["configurations"]
        place = "configurations.custom_headers"
        await api.refused(400, place, "PUT", path, {"configurations": {**shown, **OTHER}})
        await api.good("PUT", path, {"configurations": {**OTHER, **headers}})
        model = {"slug": "m", "enabled": True, "is_custom": True, "configurations": {**HOST, **headers}}
        await api.good("PUT", f"{path}/models", {"models": [model]})
        moved = {**model, "configurations": {**shown, **OTHER}}
        await api.refused(400, f"models[0].{place}", "PUT", f"{path}/models", {"models": [moved]})
        await api.good("PUT", f"{path}/models", {"models": [{**model, "configurations": {**OTHER, **headers}}]})

    played(founded_url, scene)


def test_header_fields_of_a_model_go_nowhere_with_the_integration(founded_url: Secret):
    async def scene(api: Plane) -> None:
        made = {"name": "i", "ai_provider_id": "openai", "key": KEY, "configurations": HOST}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
        model = {"slug": "m", "enabled": True, "is_custom": True}
        secret = {"custom_headers": {"x-team": "a-secret-of-the-team"}}
        moved = {"configurations": OTHER, "key": KEY}
        await api.good("PUT", f"{path}/models", {"models": [{**model, "configurations": secret}]})
        await api.refused(400, "custom_headers of 'm'", "PUT", path, moved)
        assert (await api.good("GET", path))["configurations"] == HOST
        # Where the model is elsewhere by itself they stay with it.
        await api.good("PUT", f"{path}/models", {"models": [{**model, "configurations": {**HOST, **secret}}]})
        await api.good("PUT", path, moved)
        await api.good("PUT", f"{path}/models", {"models": [{**model, "configurations": None}]})
        await api.good("PUT", path, {"configurations": HOST, "key": KEY})

    played(founded_url, scene)


def test_a_model_takes_no_key_where_nobody_who_knows_it_sends_it(founded_url: Secret):
    async def scene(api: Plane) -> None:
        made = {"name": "i", "ai_provider_id": "openai", "key": KEY, "configurations": HOST}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
        scopes = ["organisation_integrations.update", "organisation_integrations.read"]
        _, other = await api.key_of("organisation/service", scopes=scopes)

        def model(slug: str, host: str, **more: object) -> dict[str, Any]:
            one = {"slug": slug, "enabled": True, "is_custom": True, "configurations": {"custom_host": host}}
            return {"models": [one], **more}

        masked = (await api.good("GET", path))["masked_key"]
        away = "https://b.example/v1"
        for more in ({}, {"key": masked}):
            await other.refused(400, "'path': 'key'", "PUT", f"{path}/models", model("m", away, **more))
        listed = (await api.good("GET", f"{path}/models"))["models"]
        assert not [row for row in listed if row["is_custom"]]
        # Where it goes already, and where it is sent along.
        await other.good("PUT", f"{path}/models", model("near", "https://A.example/v2"))
        await other.good("PUT", f"{path}/models", model("m", away, key="sk-another-key"))
        assert (await api.good("GET", path))["masked_key"] != masked
        await other.good("PUT", f"{path}/models", model("n", "https://b.example/v2"))
        # Who gave the key says where to, and no longer who made the integration.
        await other.good("PUT", f"{path}/models", model("o", "https://c.example"))
        await api.refused(400, "'path': 'key'", "PUT", f"{path}/models", model("q", "https://e.example"))
        await api.good("PUT", f"{path}/models", model("r", "https://c.example"))
        # Its header fields go along, and cannot be sent anew here.
        headers = {**HOST, "custom_headers": {"x-team": "a-secret-of-the-team"}}
        await api.good("PUT", path, {"configurations": headers})
        far = model("p", "https://d.example", key=KEY)
        await other.refused(400, "models[0].configurations.custom_host", "PUT", f"{path}/models", far)

    played(founded_url, scene)


def test_header_fields_go_where_who_gave_all_of_them_says(founded_url: Secret):
    async def scene(api: Plane) -> None:
        headers = {"x-team": "a-secret-of-the-team", "x-other": "another-of-the-team"}
        made = {"name": "i", "ai_provider_id": "openai", "configurations": {"custom_headers": headers}}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
        scopes = ["organisation_integrations.update", "organisation_integrations.read"]
        _, other = await api.key_of("organisation/service", scopes=scopes)
        hosts = iter(range(9))

        async def moved(who: Plane, status: int) -> None:
            said = {"custom_host": f"https://{next(hosts)}.example"}
            one = {"slug": "m", "enabled": True, "is_custom": True, "configurations": said}
            found, answer, _ = await who("PUT", f"{path}/models", {"models": [one]})
            assert found == status, answer

        await moved(api, 200)
        await moved(other, 400)
        shown = (await api.good("GET", path))["configurations"]["custom_headers"]
        await other.good("PUT", path, {"configurations": {"custom_headers": shown, "openai_project": "p"}})
        await moved(api, 200)
        # Of each one is somebody else's.
        await other.good("PUT", path, {"configurations": {"custom_headers": {**shown, "x-other": "a-secret-of-other"}}})
        await moved(api, 400)
        await moved(other, 400)
        await other.good("PUT", path, {"configurations": {"custom_headers": {"x-mine": "a-secret-of-other"}}})
        await moved(api, 400)
        await moved(other, 200)
        await other.good("PUT", path, {"configurations": {}})
        await moved(api, 200)

    played(founded_url, scene)


def test_so_it_is_with_virtual_keys_and_with_where_secrets_are_kept(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        body = {"name": "v", "provider": "openai", "key": KEY, "workspace_id": place, "model_config": HOST}
        path = f"virtual-keys/{(await api.good('POST', 'virtual-keys', body))['slug']}?workspace_id={place}"
        masked = (await api.good("GET", path))["masked_api_key"]
        for said in ({}, {"key": masked}, {"key": ""}):
            await api.refused(400, "'path': 'key'", "PUT", path, {"model_config": OTHER, **said})
        await api.good("PUT", path, {"model_config": HOST, "name": "renamed"})
        await api.good("PUT", path, {"model_config": OTHER, "key": KEY})
        vault = {"vault_addr": "https://v.test", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        made = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        path = f"secret-references/{(await api.good('POST', 'secret-references', made))['id']}"
        shown = (await api.good("GET", path))["auth_config"]
        moved = {"vault_addr": "https://w.test"}
        for said in (moved, {**shown, **moved}):
            await api.refused(400, "auth_config.vault_token", "PUT", path, {"auth_config": said})
        await api.good("PUT", path, {"auth_config": shown})
        await api.good("PUT", path, {"auth_config": {**vault, **moved}})

    played(founded_url, scene)


def test_what_a_virtual_key_brought_along_is_reached_through_that_alone(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        made = await api.good(
            "POST", "virtual-keys", {"name": "v", "provider": "openai", "key": KEY, "workspace_id": place}
        )
        slug = (await api.good("GET", f"virtual-keys/{made['slug']}?workspace_id={place}"))["integration_id"]
        verbs = [f"workspace_integrations.{verb}" for verb in ("read", "update", "delete")]
        _, inside = await api.key_of("workspace/service", workspace_id=place, scopes=verbs)
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
                await who.refused(404, slug, method, f"integrations/{slug}{rest}", body)
        await api.good("PUT", f"virtual-keys/{made['slug']}?workspace_id={place}", {"key": "sk-another-key"})

    played(founded_url, scene)


@pytest.mark.parametrize("kind", ["integrations", "virtual-keys"])
def test_a_secret_that_says_another_address_takes_no_key_there(founded_url: Secret, kind: str):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        vault = {"vault_addr": "https://v.test", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        made = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        secret = (await api.good("POST", "secret-references", made))["id"]
        provider = "ai_provider_id" if kind == "integrations" else "provider"
        body = {"name": "v", provider: "openai", "key": KEY, "workspace_id": place}
        path = f"{kind}/{(await api.good('POST', kind, body))['slug']}?workspace_id={place}"
        mapped = {"secret_mappings": [{"target_field": "configurations.custom_host", "secret_reference_id": secret}]}
        await api.refused(400, "'path': 'key'", "PUT", path, mapped)
        assert (await api.good("GET", path))["secret_mappings"] == []
        await api.good("PUT", path, {**mapped, "key": KEY})
        # Another project is no other address.
        project = {"target_field": "configurations.openai_project", "secret_reference_id": secret}
        await api.good("PUT", path, {"secret_mappings": [*mapped["secret_mappings"], project]})

    played(founded_url, scene)


def test_a_workspace_that_is_named_by_its_slug_gets_no_provider_that_was_not_wanted(founded_url: Secret):
    async def scene(api: Plane) -> None:
        await api.good("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": KEY})
        places = [await api.workspace() for _ in range(2)]
        named = [places[0]["id"], places[1]["slug"]]
        accesses = [{"id": name, "enabled": True, "create_default_provider": False} for name in named]
        body = {"workspaces": accesses, "global_workspace_access": {"enabled": True}}
        await api.good("PUT", "integrations/i/workspaces", body)
        made = [(await api.good("GET", f"providers?workspace_id={place['id']}"))["total"] for place in places]
        assert made == [0, 0]

    played(founded_url, scene)


def test_what_the_engine_would_not_take_of_a_model_is_refused(founded_url: Secret):
    """It was kept, and the whole integration left out for it."""

    async def scene(api: Plane) -> None:
        made = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}/models"
        sold = {"slug": "m", "enabled": True, "is_custom": True}
        price = {"pay_as_you_go": {"request_token": {"price": 2e9}}}
        for field, value, place in (
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
            await api.refused(400, place, "PUT", path, {"models": models, "key": KEY})
        listed = (await api.good("GET", path))["models"]
        assert not [row for row in listed if row["is_custom"]]

    played(founded_url, scene)


def test_when_a_workspaces_use_was_last_counted_anew_is_said_to_who_may_see_it(founded_url: Secret):
    async def scene(api: Plane) -> None:
        places = [(await api.workspace())["id"] for _ in range(2)]
        made = {"name": "i", "ai_provider_id": "openai", "key": KEY}
        path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}"
        scopes = ["workspace_integrations.list", "workspace_integrations.read"]
        asking = [api] + [(await api.key_of("workspace/service", workspace_id=one, scopes=scopes))[1] for one in places]
        shares = [{"id": place, "enabled": True} for place in places]
        await api.good("PUT", f"{path}/workspaces", {"workspaces": shares})

        async def said() -> list[bool]:
            shown = [(await one.good("GET", path))["last_reset_at"] for one in asking]
            listed = [(await one.good("GET", "integrations"))["data"][0]["last_reset_at"] for one in asking]
            assert listed == shown
            return [one is not None for one in shown]

        assert await said() == [False, False, False]
        await api.good("PUT", f"{path}/workspaces", {"workspaces": [{**shares[1], "reset_usage": True}]})
        assert await said() == [True, False, True]

    played(founded_url, scene)
