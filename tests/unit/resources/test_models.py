"""Model list of the management API. A requested model is one of the given workspace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True


def test_config_header_limits_the_list_to_its_providers(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for slug in ("p", "q"):
            body = {
                "name": slug,
                "slug": slug,
                "ai_provider_id": "openai",
                "key": "sk-01234567",
                "workspace_id": workspace,
            }
            path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}/models"
            models = [{"slug": "m", "enabled": True, "is_custom": True}]
            await api.request_ok("PUT", path, {"models": models, "allow_all_models": False})
        both = ["@p/m", "@q/m"]
        for config, expected in (
            ({"retry": {"attempts": 2}}, both),
            ({"override_params": {"model": "m"}}, both),
            ({"provider": "@p"}, both[:1]),
            ({"virtual_key": "q"}, both[1:]),
            ({"override_params": {"model": "@q/m"}}, both[1:]),
            ({"provider": "@p", "override_params": {"model": "@q/m"}}, both[1:]),
            (
                {
                    "strategy": {"mode": "fallback"},
                    "targets": [{"provider": "@p"}, {"override_params": {"model": "@q/m"}}],
                },
                both,
            ),
        ):
            sent = {"x_gateway_config": json.dumps(config)}
            actual = await api.request_ok("GET", f"models?workspace_id={workspace}", **sent)
            assert [model["id"] for model in actual["data"]] == expected, config

    run_scenario(bootstrapped_url, scenario)


def test_finds_a_model_in_the_given_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspaces = [await api.create_workspace() for _ in range(2)]
        for location, slug in zip(workspaces, ("one", "two"), strict=True):
            body = {"name": "i", "ai_provider_id": "openai", "key": "sk-01234567", "default_provider_slug": "p"}
            path = f"integrations/{(await api.request_ok('POST', 'integrations', {**body, 'workspace_id': location['id']}))['id']}"
            models = [{"slug": slug, "enabled": True, "is_custom": True}]
            await api.request_ok("PUT", f"{path}/models", {"models": models, "allow_all_models": False})
        assert (await api.request_ok("GET", "models/@p/two"))["id"] == "@p/two"
        assert (await api.request_ok("GET", f"models/@p/two?workspace_id={workspaces[1]['slug']}"))["id"] == "@p/two"
        await api.expect_error(404, "@p/two", "GET", f"models/@p/two?workspace_id={workspaces[0]['id']}")

    run_scenario(bootstrapped_url, scenario)


GOOGLE = {"x_goog_api_client": "google-genai-sdk/3.3.0"}
ANTHROPIC = {"anthropic_version": "2023-06-01"}
COHERE = {"user_agent": "cohere/7.3.1"}


async def create_providers(api: ManagementClient) -> str:
    """Creates the providers `p` (models a, b and one that is disabled) and `q` (model c); returns their workspace."""
    workspace = (await api.create_workspace())["id"]
    for slug, names in (("p", ("a", "b", "off")), ("q", ("c",))):
        body = {"name": slug, "slug": slug, "ai_provider_id": "openai", "key": "sk-01234567", "workspace_id": workspace}
        path = f"integrations/{(await api.request_ok('POST', 'integrations', body))['id']}/models"
        models = [{"slug": name, "enabled": name != "off", "is_custom": True} for name in names]
        await api.request_ok("PUT", path, {"models": models, "allow_all_models": False})
    return workspace


async def create_key(
    api: ManagementClient, location: str, config: dict[str, object], **more: object
) -> ManagementClient:
    """Creates a key of the workspace with a default config; returns a client that uses it."""
    saved = await api.request_ok("POST", "configs", {"name": "c", "config": config, "workspace_id": location})
    fields = {
        "workspace_id": location,
        "scopes": ["completions.write"],
        "defaults": {"config_id": saved["slug"], **more},
    }
    return (await api.create_key("workspace/service", **fields))[1]


def test_key_with_one_provider_uses_plain_names(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        location = await create_providers(api)
        key = await create_key(api, location, {"provider": "@p"})
        listed = await key.request_ok("GET", "models")
        assert [(model["id"], model["type"]) for model in listed["data"]] == [("a", "model"), ("b", "model")]
        assert (await key.request_ok("GET", "models?after_id=a"))["data"][0]["id"] == "b"
        assert (await key.request_ok("GET", "models/a"))["id"] == "a"
        assert (await key.request_ok("GET", "models/@p/a"))["id"] == "@p/a"
        for name in ("c", "off", "@p/off", "@p", "none"):
            await key.expect_error(404, name, "GET", f"models/{name}")
        # If the request itself selects the provider, the listed names have its prefix, so they are valid without its
        # headers.
        config = {"x_gateway_config": '{"provider":"@q"}'}
        assert [model["id"] for model in (await key.request_ok("GET", "models", **config))["data"]] == ["@q/c"]
        assert (await key.request_ok("GET", "models/c", **config))["id"] == "c"
        names = (await key.request_ok("GET", "models", x_gateway_provider="@p"))["data"]
        assert [model["id"] for model in names] == ["@p/a", "@p/b"]
        bound = await create_key(api, location, {"provider": "@p"}, allow_config_override=False)
        assert [model["id"] for model in (await bound.request_ok("GET", "models", **config))["data"]] == ["a", "b"]

    run_scenario(bootstrapped_url, scenario)


def test_key_with_several_providers_uses_names_with_the_provider(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        location = await create_providers(api)
        targets = [{"provider": "@p"}, {"provider": "@q"}]
        both = await create_key(api, location, {"strategy": {"mode": "fallback"}, "targets": targets})
        assert [model["id"] for model in (await both.request_ok("GET", "models"))["data"]] == ["@p/a", "@p/b", "@q/c"]
        assert [(await both.request_ok("GET", f"models/{name}"))["id"] for name in ("a", "c")] == ["a", "c"]
        _, without = await api.create_key("workspace/service", workspace_id=location, scopes=["completions.write"])
        await without.expect_error(404, "@slug/model", "GET", "models/a")

    run_scenario(bootstrapped_url, scenario)


def test_each_sdk_gets_lists_and_models_of_its_own_api(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        key = await create_key(api, await create_providers(api), {"provider": "@p"})
        page = await key.request_ok("GET", "models?limit=1", **ANTHROPIC)
        (model,) = page.pop("data")
        assert page == {"first_id": "a", "last_id": "a", "has_more": True}
        assert (model["type"], model["id"], model["display_name"]) == ("model", "a", "a")
        assert await key.request_ok("GET", "models/a", **ANTHROPIC) == model
        before = await key.request_ok("GET", "models?before_id=b&limit=1", **ANTHROPIC)
        assert (before["last_id"], before["has_more"]) == ("a", False)
        google = {"name": "models/a", "displayName": "a"}
        assert await key.request_ok("GET", "models?pageSize=1", **GOOGLE) == {"models": [google], "nextPageToken": "1"}
        rest = await key.request_ok("GET", "models?pageSize=1&pageToken=1", **GOOGLE)
        assert rest == {"models": [{"name": "models/b", "displayName": "b"}]}
        assert await key.request_ok("GET", "models/a", **GOOGLE) == google
        page = await key.request_ok("GET", "models?page_size=1", **COHERE)
        assert page == {"models": [{"name": "a"}], "next_page_token": "1"}
        rest = await key.request_ok("GET", "models?page_size=5&page_token=1", **COHERE)
        assert rest == {"models": [{"name": "b"}]}
        assert await key.request_ok("GET", "models/b", **COHERE) == {"name": "b"}

    run_scenario(bootstrapped_url, scenario)


def test_errors_have_the_format_of_the_client(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for client, status, code, path in (
            (api, 404, "AB08", "models/none"),
            (api.with_key("pk-unknown"), 401, "AB05", "models"),
        ):
            response, body, _ = await client("GET", path)
            message = body["data"]["message"]
            assert (response, body["success"], body["data"]["errorCode"]) == (status, False, code)
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            assert body["error"] == error
            response, body, headers = await client("GET", path, **ANTHROPIC)
            kind = {401: "authentication_error", 404: "not_found_error"}[status]
            assert body["error"] == {"type": kind, "message": message}
            assert (response, body["type"], body["request_id"]) == (status, "error", headers["request-id"])
            response, body, _ = await client("GET", path, **GOOGLE)
            name = {401: "UNAUTHENTICATED", 404: "NOT_FOUND"}[status]
            assert (response, body["error"]) == (status, {"code": status, "message": message, "status": name})
            response, body, _ = await client("GET", path, **COHERE)
            assert (response, body["message"], body["success"]) == (status, message, False)

    run_scenario(bootstrapped_url, scenario)


def test_catalogue_contains_only_models_that_can_be_called(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for slug in ("google", "vertex-ai", "openai", "bedrock"):
            options = {
                "vertex-ai": {"vertex_project_id": "p", "vertex_region": "r"},
                "bedrock": {
                    "aws_auth_type": "accessKey",
                    "aws_region": "us-east-1",
                    "aws_access_key_id": "AKIA0123456789",
                    "aws_secret_access_key": "0123456789abcdef",
                },
            }.get(slug)
            body = {"name": slug, "slug": slug, "ai_provider_id": slug, "key": "sk-01234567", "workspace_id": workspace}
            await api.request_ok("POST", "integrations", body | ({"configurations": options} if options else {}))
        listed = (await api.request_ok("GET", f"models?workspace_id={workspace}"))["data"]
        ids = {model["id"] for model in listed}
        assert {"@openai/gpt-4o", "@google/gemini-2.5-pro", "@vertex-ai/claude-opus-4-5"} <= ids
        assert not [name for name in ids if name.startswith(("@google/claude", "@openai/ft:", "@bedrock/regional."))]
        assert not [name for name in ids if name.endswith(("-", ":free", ":extended"))]
        key = await create_key(api, workspace, {"provider": "@google"})
        assert (await key.request_ok("GET", "models/gemini-2.5-pro"))["id"] == "gemini-2.5-pro"
        await key.expect_error(404, "claude-opus-4-5", "GET", "models/claude-opus-4-5")
        # Versions that the price list covers by a pattern can be called, though they are not listed.
        other = await create_key(api, workspace, {"provider": "@openai"})
        assert (await other.request_ok("GET", "models/gpt-4o-mini-2024-07-18"))["id"] == "gpt-4o-mini-2024-07-18"

    run_scenario(bootstrapped_url, scenario)
