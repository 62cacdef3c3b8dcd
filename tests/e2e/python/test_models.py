"""Model lists and single models through official SDKs, with a key whose config names one provider: nothing but the
gateway's address and the key is given to the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anthropic
import openai
import pytest

from tests.bootstrapped_store import ADMIN_KEY
from tests.e2e.python.packages import run_sdk_script
from tests.gateway import Gateway, Mock
from tests.integration.management_client import Client, expect_ok
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bootstrapped_store import DatabaseTemplates

MODELS = ["claude-sonnet-4-5", "gpt-4o-mini"]
WRONG_KEY = "pk-unknown-0123456789"


class ServedKey(NamedTuple):
    """A gateway with a store, and a key of a workspace."""

    gateway: Gateway
    key: str


@pytest.fixture(scope="module")
def served_key(tmp_path_factory: pytest.TempPathFactory, store_templates: DatabaseTemplates) -> Iterator[ServedKey]:
    folder = tmp_path_factory.mktemp("models")
    mock = Mock(folder)
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": store_templates.copy("sqlite", folder)}
    running = Gateway(folder, {"mock": {"host": mock.url}}, env)
    admin = Client(running)
    workspace = admin.create("/v1/workspaces", {"name": "w"})["id"]
    body = {"name": "p", "slug": "p", "ai_provider_id": "mock", "key": "sk-01234567", "workspace_id": workspace}
    admin.create("/v1/integrations", body)
    models = [{"slug": name, "enabled": True, "is_custom": True} for name in MODELS]
    expect_ok(admin.put("/v1/integrations/p/models", {"models": models, "allow_all_models": False}))
    config = admin.create("/v1/configs", {"name": "c", "config": {"provider": "@p"}, "workspace_id": workspace})["slug"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"], defaults={"config_id": config}).key
    wait_for("the key", lambda: Client(running, key).get("/v1/models").status == 200 or None, 3)
    yield ServedKey(running, key)
    running.stop()
    mock.stop()


def test_openai_sdk_lists_and_finds_models(served_key: ServedKey):
    with openai.OpenAI(base_url=f"{served_key.gateway.base_url}/v1", api_key=served_key.key, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == MODELS
        assert client.models.retrieve("gpt-4o-mini").id == "gpt-4o-mini"
        with pytest.raises(openai.NotFoundError, match="there is no model 'none'"):
            client.models.retrieve("none")
        with pytest.raises(openai.AuthenticationError, match="401 - this gateway key is not known"):
            client.with_options(api_key=WRONG_KEY).models.list()


def error_type(error: anthropic.APIStatusError) -> str:
    """Returns the type of an error in Anthropic's format."""
    return cast("Any", error.body)["error"]["type"]


def test_anthropic_sdk_lists_and_finds_models(served_key: ServedKey):
    with anthropic.Anthropic(base_url=served_key.gateway.base_url, api_key=served_key.key, max_retries=0) as client:
        pages = client.models.list(limit=1)
        assert [(model.id, model.display_name) for model in pages] == [(name, name) for name in MODELS]
        backwards = client.models.list(limit=1, before_id=MODELS[1])
        assert [model.id for model in backwards] == MODELS[:1]
        actual = client.models.retrieve("claude-sonnet-4-5")
        assert (actual.id, actual.type, actual.created_at.year > 2024) == ("claude-sonnet-4-5", "model", True)
        with pytest.raises(anthropic.NotFoundError) as failed:
            client.models.retrieve("none")
        assert error_type(failed.value) == "not_found_error"
        with pytest.raises(anthropic.AuthenticationError) as failed:
            client.with_options(api_key=WRONG_KEY).models.list()
        assert error_type(failed.value) == "authentication_error"


def test_other_sdks_list_and_find_models(served_key: ServedKey):
    received = run_sdk_script("model_lists.py", served_key.gateway, ["gpt-4o-mini"], key=served_key.key)
    not_found = "there is no model 'none'"
    expected = {
        ("google", "catalogue"): [[f"models/{name}" for name in MODELS], "models/gpt-4o-mini", "gpt-4o-mini"],
        ("cohere", "catalogue"): [MODELS, "gpt-4o-mini"],
        ("mistral", "catalogue"): [MODELS, "gpt-4o-mini"],
    }
    assert {name: received[name] for name in expected} == expected
    listed = {name: received[name, "provider"] for name in ("google", "cohere", "mistral")}
    assert listed["google"] == [f"models/{name}" for name in listed["mistral"]]
    assert listed["cohere"] == listed["mistral"] != []
    code, status, message = received["google", "not_found"]
    assert (code, status, not_found in message) == (404, "NOT_FOUND", True)
    assert received["google", "unauthorised"][:2] == [401, "UNAUTHENTICATED"]
    code, message = received["cohere", "not_found"]
    assert (code, not_found in message) == (404, True)
    assert received["cohere", "unauthorised"][0] == 401
    assert (received["mistral", "not_found"], received["mistral", "unauthorised"]) == ([404], [401])
