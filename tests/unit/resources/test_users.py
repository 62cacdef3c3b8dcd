"""People of the organisation: what goes with somebody who is taken out of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.unit.resources.managed import JWT, PASSWORD, Plane, played, token

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_nothing_is_good_any_more_that_somebody_had_who_was_taken_out(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace()
        organisation = (await api.good("GET", "workspaces"))["data"][0]["organisation_id"]
        inside = [{"id": place["id"], "role": "member"}]
        user = await api.person("u@x.test", workspaces=inside)
        _, own = await api.key_of("workspace/user", workspace_id=place["id"], user_id=user, scopes=["configs.list"])
        _, _, fields = await api.holding("")("POST", "auth/sessions", {"email": "u@x.test", "password": PASSWORD})
        cookie = {"cookie": fields["set-cookie"].partition(";")[0]}
        said = {"organisation_id": organisation, "workspace_slug": place["slug"], "exp": time.time() + 600}
        texts = [
            token(**said, **claims, scope="configs.list workspace_service_api_keys.create")
            for claims in ({"sub": user}, {"email_id": "U@x.test"}, {"email_id": "other@x.test"})
        ]
        path, key = f"configs?workspace_id={place['id']}", {"name": "k", "scopes": ["configs.list"]}

        async def answered() -> list[int]:
            asked = [own("GET", path), api.holding("")("GET", path, **cookie)]
            asked += [api.holding(text)("GET", path) for text in texts]
            return [(await one)[0] for one in asked]

        assert await answered() == [200] * 5
        # What a role does not allow the end of it must not either.
        for text, status in ((texts[0], 403), (texts[1], 403)):
            assert (await api.holding(text)("POST", "api-keys/workspace/service", key))[0] == status
        await api.good("DELETE", f"admin/users/{user}")
        assert await answered() == [401] * 4 + [200]
        for text in texts[:2]:
            assert (await api.holding(text)("POST", "api-keys/workspace/service", key))[0] == 401
        # Whoever is taken in again is somebody again.
        await api.person("u@x.test", workspaces=inside)
        assert await answered() == [401] * 3 + [200] * 2

    played(founded_url, scene, JWT)


def test_who_leads_the_organisation_has_keys_in_every_workspace_for_as_long(founded_url: Secret):
    async def scene(api: Plane) -> None:
        places = [(await api.workspace())["id"] for _ in range(2)]
        inside = [{"id": places[0], "role": "member"}]
        admin = await api.person("a@x.test", role="admin", workspaces=inside)
        member = await api.person("m@x.test", workspaces=inside)
        key = {"name": "k", "workspace_id": places[1], "user_id": member, "scopes": ["configs.create", "configs.list"]}
        await api.refused(400, "no member of this workspace", "POST", "api-keys/workspace/user", key)
        made = [
            await api.key_of("workspace/user", **{**key, "workspace_id": place, "user_id": admin}) for place in places
        ]
        config = {"name": "c", "config": {"provider": "openai"}}
        for _, own in made:
            await own.good("POST", "configs", config)
        await api.good("PUT", f"admin/users/{admin}", {"role": "member"})
        assert [(await own("GET", "configs"))[0] for _, own in made] == [200, 401]
        await made[0][1].refused(403, "configs.create", "POST", "configs", config)

    played(founded_url, scene)
