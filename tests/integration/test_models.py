"""Model catalogue and its prices: visibility by workspace, filters, and requests that list the provider's models
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

TABLES = {
    "prices": [
        {"provider": "mock", "model": "m", "pay_as_you_go": {"request_token": {"price": 1.0}}},
        {
            "provider": "mock",
            "model": "m",
            "valid_from": "2020-01-01",
            "pay_as_you_go": {"request_token": {"price": 2.0}},
        },
        {
            "provider": "mock",
            "model": "m",
            "valid_from": "2999-01-01",
            "pay_as_you_go": {"request_token": {"price": 3.0}},
        },
    ]
}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Models"})


@pytest.fixture(scope="module")
def app(admin: Client, workspace: dict[str, Any]) -> Client:
    body = {"ai_provider_id": "mock", "key": "sk-0123456789", "workspace_id": workspace["id"]}
    for slug, models in (("one", ["b", "a", "off"]), ("two", ["c"])):
        admin.create("/v1/integrations", {**body, "name": slug, "slug": slug})
        rows = [{"slug": name, "enabled": name != "off", "is_custom": True} for name in models]
        expect_ok(admin.put(f"/v1/integrations/{slug}/models", {"models": rows, "allow_all_models": False}))
    admin.create("/v1/integrations", {**body, "name": "o", "slug": "o", "ai_provider_id": "openai"})
    app = admin.with_new_key(workspace_id=workspace["id"], scopes=["completions.write"])
    wait_for("the key", lambda: app.get("/v1/models").status == 200 or None, 3)
    return app


def list_model_ids(client: Client, query: str = "", **headers: str) -> list[str]:
    asker = Client(client.gateway, client.key, headers)
    return [model["id"] for model in asker.read(f"/v1/models{query}")["data"]]


def test_catalogue_lists_the_models_allowed_in_the_workspace(admin: Client, app: Client):
    listed = app.read("/v1/models?ai_service=mock")
    assert [model["id"] for model in listed["data"]] == ["@one/a", "@one/b", "@two/c"]
    assert (listed["object"], listed["total_count"]) == ("list", 3)
    assert {(model["object"], model["owned_by"]) for model in listed["data"]} == {("model", "mock")}
    assert all(isinstance(model["created"], int) for model in listed["data"])
    everything = app.read("/v1/models")
    assert "@o/gpt-4o" in {model["id"] for model in everything["data"]}
    assert everything["total_count"] == len(everything["data"]) > 50
    other_client = admin.with_new_key(
        workspace_id=admin.create("/v1/workspaces", {"name": "s"})["id"], scopes=["completions.write"]
    )
    assert list_model_ids(other_client) == []


def test_catalogue_is_filtered_sorted_and_paginated(app: Client):
    assert list_model_ids(app, "?provider=two") == list_model_ids(app, "?provider=@two") == ["@two/c"]
    assert list_model_ids(app, "?ai_service=mock&sort=provider&order=desc") == ["@two/c", "@one/b", "@one/a"]
    page = app.read("/v1/models?ai_service=mock&limit=1&offset=1")
    assert ([model["id"] for model in page["data"]], page["total_count"]) == (["@one/b"], 3)
    expect_error(app.get("/v1/models?limit=0"), 400, "AB01", "limit")


def test_anthropic_clients_get_their_own_list_format(app: Client):
    client = Client(app.gateway, app.key, {"anthropic-version": "2023-06-01"})
    page = client.read("/v1/models?ai_service=mock&limit=2")
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("@one/a", "@one/b", True)
    assert [(model["type"], model["id"], model["display_name"]) for model in page["data"]] == [
        ("model", "@one/a", "@one/a"),
        ("model", "@one/b", "@one/b"),
    ]
    assert page["data"][0]["created_at"].endswith("Z")
    rest = client.read("/v1/models?ai_service=mock&limit=2&after_id=@one/b")
    assert ([model["id"] for model in rest["data"]], rest["has_more"]) == (["@two/c"], False)
    none = client.read("/v1/models?ai_service=none")
    assert none == {"data": [], "first_id": None, "last_id": None, "has_more": False}
    expect_error(client.get("/v1/models?after_id=@one/x"), 400, "AB01", "after_id")


def test_returns_one_model_by_id(app: Client):
    assert app.read("/v1/models/@one/a")["id"] == "@one/a"
    expect_error(app.get("/v1/models/@one/off"), 404, "AB08")
    expect_error(app.get("/v1/models/@none/a"), 404, "AB08")


def test_provider_header_lists_its_models_unless_overridden(app: Client, provider: Mock):
    names = {"x-gateway-provider": "@one"}
    assert Client(app.gateway, app.key, names).get("/v1/models").status == 200
    assert len(provider.ledger()) == 1
    for flag in ("x-gateway-fetch-integrated-models", "x-gateway-models-endpoint"):
        assert "@one/a" in list_model_ids(app, **names, **{flag: "true"})
    config = '{"provider":"@two","fetch_integrated_models":true}'
    assert list_model_ids(app, **{"x-gateway-config": config}) == ["@two/c"]
    assert len(provider.ledger()) == 1


def test_saved_config_can_select_the_catalogue(admin: Client, app: Client, workspace: dict[str, Any]):
    body = {
        "name": "c",
        "config": {"provider": "@one", "fetch_integrated_models": True},
        "workspace_id": workspace["id"],
    }
    slug = admin.create("/v1/configs", body)["slug"]
    asker = Client(app.gateway, app.key, {"x-gateway-config": slug})
    listed = wait_for(
        "the config", lambda: actual if "total_count" in (actual := asker.get("/v1/models").json()) else None, 3
    )
    assert [model["id"] for model in listed["data"]] == ["@one/a", "@one/b"]


def test_default_config_of_a_key_filters_the_catalogue(admin: Client, app: Client, workspace: dict[str, Any]):
    first_workspace = {"workspace_id": workspace["id"], "scopes": ["completions.write"]}

    def create_key_with_config(config: dict[str, Any], **more: object) -> Client:
        saved = admin.create("/v1/configs", {"name": "d", "config": config, "workspace_id": workspace["id"]})["slug"]
        return admin.with_new_key(**first_workspace, defaults={"config_id": saved, **more})

    narrow = create_key_with_config({"targets": [{"provider": "@two"}], "strategy": {"mode": "fallback"}})
    # With one provider, a request need not name it.
    assert list_model_ids(narrow) == ["c"]
    # A config without a provider does not filter the catalogue.
    assert list_model_ids(create_key_with_config({"retry": {"attempts": 1}})) == list_model_ids(app)
    other = {"x-gateway-config": '{"provider":"@one","fetch_integrated_models":true}'}
    assert list_model_ids(narrow, **other) == ["@one/a", "@one/b"]
    bound = create_key_with_config({"provider": "@two"}, allow_config_override=False)
    assert list_model_ids(bound, **other) == ["c"]


def test_prices_need_no_key(admin: Client):
    url = admin.gateway.base_url
    for prefix in ("", "/v1"):
        actual = send_raw_request(url, f"{prefix}/model-configs/pricing/openai/gpt-4o", headers={}, method="GET").json()
        assert actual["pay_as_you_go"]["request_token"]["price"] == pytest.approx(0.00025)
        assert actual["pay_as_you_go"]["cache_read_input_token"]["price"] == pytest.approx(0.000125)
        assert actual["calculate"]["request"]["operation"] == "sum"
        assert actual["currency"] == "USD"
    complete = send_raw_request(url, "/pricing/openai.json", headers={}, method="GET").json()
    assert complete["gpt-4o"]["pricing_config"] == actual
    assert send_raw_request(url, "/model-configs/pricing/openai/none", headers={}, method="GET").status == 404
    assert send_raw_request(url, "/pricing/none.json", headers={}, method="GET").status == 404


def test_model_parameters_need_no_key(admin: Client):
    for prefix in ("", "/v1"):
        path = f"{prefix}/model-configs/general/openai/gpt-4o"
        actual = send_raw_request(admin.gateway.base_url, path, headers={}, method="GET").json()
        assert (actual["model"], actual["provider"], actual["context_window"]) == ("gpt-4o", "openai", 128_000)
        assert actual["params"] == [{"key": "max_tokens", "minValue": 1, "maxValue": 128_000}]
    for model, kind in (("openai/gpt-3.5-turbo-instruct", "text"), ("bedrock/meta.llama3-1-8b-instruct-v1:0", "chat")):
        path = f"/model-configs/general/{model}"
        assert (
            send_raw_request(admin.gateway.base_url, path, headers={}, method="GET").json()["type"]["primary"] == kind
        )
    assert (
        send_raw_request(admin.gateway.base_url, "/model-configs/general/openai/none", headers={}, method="GET").status
        == 404
    )
    assert (
        send_raw_request(admin.gateway.base_url, "/model-configs/general/none/m", headers={}, method="GET").status
        == 404
    )


def test_operator_price_applies_from_its_start_date(admin: Client):
    actual = send_raw_request(admin.gateway.base_url, "/model-configs/pricing/mock/m", headers={}, method="GET").json()
    assert actual["pay_as_you_go"] == {"request_token": {"price": 2.0}}


@pytest.mark.parametrize(
    "fields",
    [
        {"x-api-key": "KEY"},
        {"api-key": "KEY", "authorization": "Bearer OPENAI_API_KEY"},
        {"x-goog-api-key": "KEY"},
        {"authorization": "Bearer KEY"},
    ],
)
def test_catalogue_accepts_a_key_in_any_client_header(app: Client, fields: dict[str, str]):
    sent = {name: value.replace("KEY", app.key) if "OPENAI" not in value else value for name, value in fields.items()}
    response = send_raw_request(app.gateway.base_url, "/v1/models?ai_service=mock", headers=sent, method="GET")
    assert response.status == 200, response.body
    wrong = dict.fromkeys(fields, "pk-nobody")
    assert (
        send_raw_request(app.gateway.base_url, "/v1/models?ai_service=mock", headers=wrong, method="GET").status == 401
    )
