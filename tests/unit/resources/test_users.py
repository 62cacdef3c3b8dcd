"""Users of the organisation: what ends when a user is removed or demoted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.unit.resources.managed import JWT_SETTINGS, PASSWORD, ManagementClient, run_scenario, sign_token

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_removed_users_credentials_are_invalid(founded_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        place = await api.create_workspace()
        organisation = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
        inside = [{"id": place["id"], "role": "member"}]
        user = await api.create_user("u@x.test", workspaces=inside)
        _, own = await api.create_key("workspace/user", workspace_id=place["id"], user_id=user, scopes=["configs.list"])
        _, _, fields = await api.with_key("")("POST", "auth/sessions", {"email": "u@x.test", "password": PASSWORD})
        cookie = {"cookie": fields["set-cookie"].partition(";")[0]}
        said = {"organisation_id": organisation, "workspace_slug": place["slug"], "exp": time.time() + 600}
        texts = [
            sign_token(**said, **claims, scope="configs.list workspace_service_api_keys.create")
            for claims in ({"sub": user}, {"email_id": "U@x.test"}, {"email_id": "other@x.test"})
        ]
        path, key = f"configs?workspace_id={place['id']}", {"name": "k", "scopes": ["configs.list"]}

        async def fetch_statuses() -> list[int]:
            asked = [own("GET", path), api.with_key("")("GET", path, **cookie)]
            asked += [api.with_key(text)("GET", path) for text in texts]
            return [(await one)[0] for one in asked]

        assert await fetch_statuses() == [200] * 5
        # Removing the user must not grant a right that the role lacks.
        for text, status in ((texts[0], 403), (texts[1], 403)):
            assert (await api.with_key(text)("POST", "api-keys/workspace/service", key))[0] == status
        await api.request_ok("DELETE", f"admin/users/{user}")
        assert await fetch_statuses() == [401] * 4 + [200]
        for text in texts[:2]:
            assert (await api.with_key(text)("POST", "api-keys/workspace/service", key))[0] == 401
        # A user who is added again has access again.
        await api.create_user("u@x.test", workspaces=inside)
        assert await fetch_statuses() == [401] * 3 + [200] * 2

    run_scenario(founded_url, scenario, JWT_SETTINGS)


def test_org_admin_has_keys_in_every_workspace_until_demoted(founded_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        places = [(await api.create_workspace())["id"] for _ in range(2)]
        inside = [{"id": places[0], "role": "member"}]
        admin = await api.create_user("a@x.test", role="admin", workspaces=inside)
        member = await api.create_user("m@x.test", workspaces=inside)
        key = {"name": "k", "workspace_id": places[1], "user_id": member, "scopes": ["configs.create", "configs.list"]}
        await api.expect_error(400, "not a member of this workspace", "POST", "api-keys/workspace/user", key)
        made = [
            await api.create_key("workspace/user", **{**key, "workspace_id": place, "user_id": admin})
            for place in places
        ]
        config = {"name": "c", "config": {"provider": "openai"}}
        for _, own in made:
            await own.request_ok("POST", "configs", config)
        await api.request_ok("PUT", f"admin/users/{admin}", {"role": "member"})
        assert [(await own("GET", "configs"))[0] for _, own in made] == [200, 401]
        await made[0][1].expect_error(403, "configs.create", "POST", "configs", config)

    run_scenario(founded_url, scenario)
