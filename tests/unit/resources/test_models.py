"""Model list of the management API. A requested model is one of the given workspace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.resources.managed import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_config_header_limits_the_list_to_its_providers(founded_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        place = (await api.create_workspace())["id"]
        for slug in ("p", "q"):
            made = {"name": slug, "slug": slug, "ai_provider_id": "openai", "key": "sk-01234567", "workspace_id": place}
            path = f"integrations/{(await api.request_ok('POST', 'integrations', made))['id']}/models"
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
            found = await api.request_ok("GET", f"models?workspace_id={place}", **sent)
            assert [model["id"] for model in found["data"]] == expected, config

    run_scenario(founded_url, scenario)


def test_finds_a_model_in_the_given_workspace(founded_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        places = [await api.create_workspace() for _ in range(2)]
        for place, slug in zip(places, ("one", "two"), strict=True):
            made = {"name": "i", "ai_provider_id": "openai", "key": "sk-01234567", "default_provider_slug": "p"}
            path = f"integrations/{(await api.request_ok('POST', 'integrations', {**made, 'workspace_id': place['id']}))['id']}"
            models = [{"slug": slug, "enabled": True, "is_custom": True}]
            await api.request_ok("PUT", f"{path}/models", {"models": models, "allow_all_models": False})
        assert (await api.request_ok("GET", "models/@p/two"))["id"] == "@p/two"
        assert (await api.request_ok("GET", f"models/@p/two?workspace_id={places[1]['slug']}"))["id"] == "@p/two"
        await api.expect_error(404, "@p/two", "GET", f"models/@p/two?workspace_id={places[0]['id']}")

    run_scenario(founded_url, scenario)
