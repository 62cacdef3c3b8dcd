"""Secrets that others keep: whoever may use a reference sends its value to the provider, and to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

VAULT = {"vault_addr": "https://v.test", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
HOST, OTHER = {"custom_host": "https://a.example"}, {"custom_host": "https://b.example"}
REGION = {"aws_auth_type": "apiKey", "aws_region": "eu-west-1"}
FOUNDRY = {"azure_auth_mode": "default", "azure_foundry_url": "https://a.example"}
RIGHT = "secret_references.update"
VERBS = [
    f"{family}.{verb}" for family in ("workspace_integrations", "virtual_keys") for verb in ("create", "read", "update")
]


class Scene:
    """A workspace with somebody who may do all with its integrations, and a secret that may be used there."""

    def __init__(self, api: Plane, place: str, inside: Plane, secret: str) -> None:
        self.api, self.place, self.inside, self.secret = api, place, inside, secret

    def mapped(self, field: str = "key", **more: object) -> dict[str, Any]:
        return {"target_field": field, "secret_reference_id": self.secret, **more}

    def body(self, kind: str, provider: str, said: dict[str, Any], *mappings: dict[str, Any]) -> dict[str, Any]:
        named = ("ai_provider_id", "configurations") if kind == "integrations" else ("provider", "model_config")
        known = {"name": "i", "workspace_id": self.place, "secret_mappings": list(mappings or [self.mapped()])}
        return {**known, **dict(zip(named, (provider, said), strict=True))}

    async def made(self, kind: str, provider: str, said: dict[str, Any], *mappings: dict[str, Any]) -> str:
        body = self.body(kind, provider, said, *mappings)
        return f"{kind}/{(await self.api.good('POST', kind, body))['slug']}?workspace_id={self.place}"


async def scene_of(api: Plane, **said: object) -> Scene:
    place = (await api.workspace())["id"]
    _, inside = await api.key_of("workspace/service", workspace_id=place, scopes=VERBS)
    made = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": VAULT, "secret_path": "a/b", **said}
    return Scene(api, place, inside, (await api.good("POST", "secret-references", made))["id"])


KINDS = pytest.mark.parametrize("kind", ["integrations", "virtual-keys"])


@KINDS
def test_whoever_may_use_a_secret_sends_it_to_the_provider_alone(founded_url: Secret, kind: str):
    async def scene(api: Plane) -> None:
        at = await scene_of(api)
        for provider, said in (("openai", {}), ("bedrock", REGION)):
            await at.inside.good("POST", kind, at.body(kind, provider, said))
        for provider, said, mappings in (
            ("openai", HOST, []),
            ("azure-ai", FOUNDRY, []),
            ("huggingface", {"huggingface_base_url": "https://a.example"}, []),
            # Of any field the value would be sent along.
            ("openai", HOST, [at.mapped("configurations.openai_project")]),
            ("openai", {}, [at.mapped(), at.mapped("configurations.custom_host")]),
        ):
            body = at.body(kind, provider, said, *mappings)
            await at.inside.refused(403, RIGHT, "POST", kind, body)
            await api.good("POST", kind, body)

    played(founded_url, scene)


@KINDS
def test_it_stays_where_somebody_sent_it_who_may(founded_url: Secret, kind: str):
    async def scene(api: Plane) -> None:
        at = await scene_of(api)
        field = "configurations" if kind == "integrations" else "model_config"
        mapping = {"secret_mappings": [at.mapped()]}
        path = await at.made(kind, "openai", HOST)
        for change in ({field: OTHER}, {field: OTHER, **mapping}, {field: OTHER, "key": "sk-0123456789"}):
            await at.inside.refused(403, RIGHT, "PUT", path, change)
        more = {"secret_mappings": [at.mapped(), at.mapped("configurations.openai_project")]}
        await at.inside.refused(403, "secret_mappings[1]", "PUT", path, more)
        # What is as it was is nobody's change, and what goes nowhere else is no move.
        await at.inside.good("PUT", path, {field: {**HOST, "openai_project": "p"}, **mapping, "name": "n"})
        assert (await api.good("GET", path))[field] == {**HOST, "openai_project": "p"}
        await api.good("PUT", path, {field: OTHER})
        # One that was kept here does not make way for one that others keep.
        body = {**at.body(kind, "openai", OTHER), "secret_mappings": [], "key": "sk-0123456789"}
        path = f"{kind}/{(await at.inside.good('POST', kind, body))['slug']}?workspace_id={at.place}"
        await at.inside.refused(403, "secret_mappings[0]", "PUT", path, mapping)
        # Among the provider's own places it is sent anew, as a key would be.
        path = await at.made(kind, "bedrock", REGION)
        moved = {field: {**REGION, "aws_region": "us-east-1"}}
        await at.inside.refused(403, "secret_mappings", "PUT", path, moved)
        await at.inside.good("PUT", path, {**moved, **mapping})

    played(founded_url, scene)


def test_neither_does_a_model_take_it_elsewhere(founded_url: Secret):
    async def scene(api: Plane) -> None:
        at = await scene_of(api)
        made = await at.inside.good("POST", "integrations", at.body("integrations", "openai", {}))
        path = f"integrations/{made['id']}"

        def model(slug: str, said: dict[str, str], **more: object) -> dict[str, Any]:
            return {"models": [{"slug": slug, "enabled": True, "is_custom": True, "configurations": said}], **more}

        for more in ({}, {"key": "sk-0123456789"}):
            await at.inside.refused(403, RIGHT, "PUT", f"{path}/models", model("m", HOST, **more))
        await api.good("PUT", f"{path}/models", model("m", HOST))
        await at.inside.good("PUT", f"{path}/models", model("n", HOST))
        # Where a model was elsewhere before, no secret follows.
        body = {**at.body("integrations", "openai", {}), "secret_mappings": []}
        path = f"integrations/{(await at.inside.good('POST', 'integrations', body))['id']}"
        await at.inside.good("PUT", f"{path}/models", model("m", HOST))
        await at.inside.refused(403, "models['m']", "PUT", path, {"secret_mappings": [at.mapped()]})

    played(founded_url, scene)


@KINDS
def test_a_mapping_reads_no_other_part_than_its_reference_gives(founded_url: Secret, kind: str):
    async def scene(api: Plane) -> None:
        at = await scene_of(api, secret_key="mine")
        own, other = at.mapped(secret_key="mine"), at.mapped(secret_key="theirs")
        for mapping in (at.mapped(), own, at.mapped(secret_key="")):
            await at.inside.good("POST", kind, at.body(kind, "openai", {}, mapping))
        await at.inside.refused(403, "secret_mappings[0].secret_key", "POST", kind, at.body(kind, "openai", {}, other))
        path = await at.made(kind, "openai", {}, other)
        await at.inside.good("PUT", path, {"secret_mappings": [other], "name": "n"})
        await at.inside.good("PUT", path, {"secret_mappings": [own]})
        await at.inside.refused(403, "secret_mappings[0].secret_key", "PUT", path, {"secret_mappings": [other]})
        # Of one that names none any may be meant.
        whole = await scene_of(api)
        named = whole.mapped(secret_key="theirs")
        await whole.inside.good("POST", kind, whole.body(kind, "openai", {}, named))

    played(founded_url, scene)


def test_what_an_integration_cannot_do_without_stays_kept_elsewhere_or_is_sent(founded_url: Secret):
    async def scene(api: Plane) -> None:
        at = await scene_of(api)
        region = at.mapped("configurations.aws_region")
        path = await at.made("integrations", "bedrock", {"aws_auth_type": "apiKey"}, region)
        await api.refused(400, "aws_region", "PUT", path, {"secret_mappings": []})
        assert (await api.good("GET", path))["secret_mappings"]
        await api.good("PUT", path, {"secret_mappings": [region, at.mapped()]})
        await api.good("PUT", path, {"secret_mappings": [], "configurations": REGION})
        # A credential that has no place in the form needs none of its fields.
        path = await at.made("integrations", "bedrock", {})
        await api.good("PUT", path, {"secret_mappings": [at.mapped("configurations.aws_session_token")]})
        await api.refused(400, "aws_auth_type", "PUT", path, {"secret_mappings": [region]})

    played(founded_url, scene)
