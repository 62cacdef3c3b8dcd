"""What a workspace is held to, and by whom; and what those who read it are told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.resources.managed import Plane, played

if TYPE_CHECKING:
    from penstock.secret import Secret

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


def test_a_workspaces_own_key_loosens_nothing_that_holds_the_workspace(store_url: Secret):
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
            "rate_limits": [RATE, {**RATE, "unit": "rph"}],
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

    played(store_url, scene)


def test_what_was_answered_counts_as_known_only_while_all_of_it_is_so(store_url: Secret):
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

    played(store_url, scene)


def test_a_change_counts_on_the_row_and_on_nothing_beside_it(store_url: Secret):
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

    played(store_url, scene)
