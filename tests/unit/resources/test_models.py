"""Models that may be used: one that is asked for is one of the workspace that is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_a_config_narrows_the_list_to_the_providers_that_it_names(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        for slug in ("p", "q"):
            made = {"name": slug, "slug": slug, "ai_provider_id": "openai", "key": "sk-01234567", "workspace_id": place}
            path = f"integrations/{(await api.good('POST', 'integrations', made))['id']}/models"
            models = [{"slug": "m", "enabled": True, "is_custom": True}]
            await api.good("PUT", path, {"models": models, "allow_all_models": False})
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
            found = await api.good("GET", f"models?workspace_id={place}", **sent)
            assert [model["id"] for model in found["data"]] == expected, config

    played(founded_url, scene)


def test_a_model_is_looked_for_in_the_workspace_that_is_named(founded_url: Secret):
    async def scene(api: Plane) -> None:
        places = [await api.workspace() for _ in range(2)]
        for place, slug in zip(places, ("one", "two"), strict=True):
            made = {"name": "i", "ai_provider_id": "openai", "key": "sk-01234567", "default_provider_slug": "p"}
            path = (
                f"integrations/{(await api.good('POST', 'integrations', {**made, 'workspace_id': place['id']}))['id']}"
            )
            models = [{"slug": slug, "enabled": True, "is_custom": True}]
            await api.good("PUT", f"{path}/models", {"models": models, "allow_all_models": False})
        assert (await api.good("GET", "models/@p/two"))["id"] == "@p/two"
        assert (await api.good("GET", f"models/@p/two?workspace_id={places[1]['slug']}"))["id"] == "@p/two"
        await api.refused(404, "@p/two", "GET", f"models/@p/two?workspace_id={places[0]['id']}")

    played(founded_url, scene)
