"""What a workspace is held to, and by whom; and what those who read it are told of it."""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING, Any

from tests.unit.resources.managed import JWT, PASSWORD, Plane, played, token

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret

USAGE, RATE = {"credit_limit": 5}, {"type": "requests", "unit": "rpm", "value": 5}
HELD: dict[str, Any] = {
    "usage_limits": [USAGE],
    "rate_limits": [RATE],
    "settings": {"block_inline_config": True, "user_api_key_rotation_period": 7},
}
LIFTED: list[dict[str, Any]] = [
    {"usage_limits": None},
    {"usage_limits": [{"credit_limit": 6}]},
    {"rate_limits": None},
    {"rate_limits": [{**RATE, "value": 6}]},
    {"settings": {"block_inline_config": False}},
    {"settings": {"block_inline_config": None}},
    {"settings": {"user_api_key_rotation_period": None}},
    {"settings": {"user_api_key_rotation_period": 8}},
]


def test_a_workspaces_own_key_loosens_nothing_that_holds_the_workspace(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        path = f"workspaces/{place}"
        await api.good("PUT", path, HELD)
        scopes = ["workspaces.read", "workspaces.update"]
        _, inside = await api.key_of("workspace/service", workspace_id=place, scopes=scopes)
        before = await api.good("GET", path)
        for more in LIFTED:
            await inside.refused(403, next(iter(more)), "PUT", path, more)
        assert await api.good("GET", path) == before
        tighter = {
            "usage_limits": [{"credit_limit": 4}],
            "rate_limits": [{**RATE, "value": RATE["value"] - 1}],
            "settings": {"user_api_key_rotation_period": 6},
            "description": "ours",
        }
        await inside.good("PUT", path, tighter)
        shown = await api.good("GET", path)
        # What was left out stays.
        assert shown["settings"] == {"block_inline_config": True, "user_api_key_rotation_period": 6}
        assert shown["description"] == "ours"
        for more in LIFTED:
            await api.good("PUT", path, more)
        await api.good("PUT", path, {"settings": {"block_inline_config": None, "user_api_key_rotation_period": None}})
        assert (await api.good("GET", path))["settings"] == {}

    played(founded_url, scene)


def test_a_workspace_without_a_period_of_its_own_is_held_to_the_organisations(founded_url: Secret):
    async def scene(api: Plane) -> None:
        await api.good("PUT", "admin/organisation/settings", {"user_api_key_rotation_period": "weekly"})
        place = (await api.workspace())["id"]
        path = f"workspaces/{place}"
        scopes = ["workspaces.read", "workspaces.update"]
        _, inside = await api.key_of("workspace/service", workspace_id=place, scopes=scopes)
        await inside.refused(403, "settings", "PUT", path, {"settings": {"user_api_key_rotation_period": 365}})
        await inside.good("PUT", path, {"settings": {"user_api_key_rotation_period": 6}})
        # Without its own it would be the organisation's again, which is longer.
        await inside.refused(403, "settings", "PUT", path, {"settings": {"user_api_key_rotation_period": None}})
        await api.good("PUT", path, {"settings": {"user_api_key_rotation_period": 365}})

    played(founded_url, scene)


def test_neither_do_those_who_are_its_managers_and_admins(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace()
        path = f"workspaces/{place['id']}"
        await api.good("PUT", path, HELD)
        before = await api.good("GET", path)
        inside = [{"id": place["id"], "role": "admin"}]
        manager = await api.person("m@x.test", workspaces=inside)
        leader = await api.person("a@x.test", role="admin")
        (organisation,) = {before["organisation_id"]}
        for user, tightens, loosens in ((manager, 200, 403), (leader, 200, 200)):
            email = (await api.good("GET", f"admin/users/{user}"))["email"]
            for caller, fields in await each_way(api, organisation, place["slug"], user, email):
                lower = {"usage_limits": [{"credit_limit": 4}], "description": "ours"}
                assert (await caller("PUT", path, lower, **fields))[0] == tightens
                await api.good("PUT", path, HELD)
                for more in LIFTED:
                    status, answer, _ = await caller("PUT", path, more, **fields)
                    assert (status, loosens != 403 or "the organisation's keys and admins" in str(answer)) == (
                        loosens,
                        True,
                    )
                    await api.good("PUT", path, HELD)

    played(founded_url, scene, JWT)


async def each_way(
    api: Plane, organisation: str, slug: str, user: str, email: str
) -> list[tuple[Plane, dict[str, str]]]:
    """The same person by a session, by tokens, and by a key of theirs in the organisation."""
    nobody = api.holding("")
    _, answer, headers = await nobody("POST", "auth/sessions", {"email": email, "password": PASSWORD})
    cookie = {"cookie": headers["set-cookie"].partition(";")[0], "x_csrf_token": answer["csrf_token"]}
    said = {"organisation_id": organisation, "sub": user, "exp": time.time() + 600, "scope": "workspaces.update"}
    tokens = [token(**claims) for claims in (said, {**said, "workspace_slug": slug})]
    _, own = await api.key_of("organisation/user", user_id=user, scopes=["workspaces.update"])
    return [(nobody, cookie), (own, {}), *((api.holding(text), {}) for text in tokens)]


def test_what_was_answered_counts_as_known_only_while_all_of_it_is_so(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        user = await api.person("a@x.test")
        path = f"workspaces/{place}"
        _, _, headers = await api("GET", path)
        tag = headers["etag"]
        status, body, again = await api("GET", path, if_none_match=tag)
        assert (status, body, again["etag"]) == (304, None, tag)
        await api.good("POST", f"{path}/users", {"users": [{"id": user, "role": "member"}]})
        status, body, headers = await api("GET", path, if_none_match=tag)
        assert (status, len(body["users"]), headers["etag"] != tag) == (200, 1, True)
        made = {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789", "workspace_id": place}
        integration = await api.good("POST", "integrations", made)
        (provider,) = (await api.good("GET", f"providers?workspace_id={place}"))["data"]
        behind = f"providers/{provider['slug']}?workspace_id={place}"
        _, _, headers = await api("GET", behind)
        told = {"configurations": {"openai_project": "p"}}
        await api.good("PUT", f"integrations/{integration['id']}", told)
        status, body, _ = await api("GET", behind, if_none_match=headers["etag"])
        assert (status, body["model_config"]) == (200, {"openai_project": "p"})

    played(founded_url, scene)


def test_a_change_counts_on_the_row_and_on_nothing_beside_it(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        user = await api.person("a@x.test")
        path = f"workspaces/{place}"
        _, _, headers = await api("GET", path)
        read = headers["etag"]
        await api.good("POST", f"{path}/users", {"users": [{"id": user, "role": "member"}]})
        status, _, headers = await api("PUT", path, {"name": "first"}, if_match=read)
        changed = headers["etag"]
        assert (status, (await api("PUT", path, {"name": "lost"}, if_match=read))[0]) == (200, 412)
        # What a change was answered with is as good as what was read.
        status, _, _ = await api("PUT", path, {"name": "second"}, if_match=changed)
        assert status == 200

    played(founded_url, scene)


def test_names_of_guardrails_are_ids_or_slugs_and_no_more_than_a_hundred(founded_url: Secret):
    async def scene(api: Plane) -> None:
        path = f"workspaces/{(await api.workspace())['id']}"
        for given in (["a b"], [""], ["x" * 256], [*map(str, range(101))], [{"id": "pg-a"}]):
            for target, body in (
                (path, {"defaults": {"input_guardrails": given}}),
                ("admin/organisation/defaults", {"output_guardrails": given}),
            ):
                await api.refused(400, "_guardrails", "PUT", target, body)
        good = {"input_guardrails": ["pg-a-0123ab", "01890a5d-ac96-774b-bcce-b302099a8057"]}
        await api.good("PUT", path, {"defaults": good})
        assert (await api.good("GET", path))["defaults"]["input_guardrails"] == good["input_guardrails"]

    played(founded_url, scene)


def test_things_that_are_named_alike_get_slugs_of_their_own_whatever_chance_says(
    founded_url: Secret, monkeypatch: pytest.MonkeyPatch
):
    async def scene(api: Plane) -> None:
        place = {"workspace_id": (await api.workspace())["id"]}
        vault = {"vault_addr": "https://v.test", "vault_auth_type": "token", "vault_token": "a-token-of-a-vault"}
        secret = {"manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
        for path, body in (
            ("workspaces", {}),
            ("configs", {"config": {"provider": "openai"}, **place}),
            ("integrations", {"ai_provider_id": "openai", **place}),
            ("virtual-keys", {"provider": "openai", "key": "sk-0123456789", **place}),
            ("secret-references", secret),
        ):
            chance = (f"{number // 2:06x}" for number in itertools.count())
            monkeypatch.setattr(secrets, "token_hex", lambda _count, chance=chance: next(chance))
            made = [(await api.good("POST", path, {"name": "alike", **body}))["slug"] for _ in range(3)]
            assert len(set(made)) == 3, (path, made)

    played(founded_url, scene)
