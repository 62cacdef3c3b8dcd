"""What is changed by several at once, on both databases: each change sees those before it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select, update

from penstock.store.tables import api_keys, key_digests, members, organisations, sessions, users
from penstock.store.tenant import TenantStore
from tests.unit.resources.managed import PASSWORD, Plane, played

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sqlalchemy import Delete, Update

    from penstock.settings.secret import Secret

ROUNDS = 6
CALLS = ["completions.write"]
CONFIG = {"name": "c", "config": {"provider": "openai"}}


async def together(*asked: Awaitable[tuple[int, Any, dict[str, str]]]) -> list[int]:
    """Ask at once; give the statuses."""
    return [status for status, _, _ in await asyncio.gather(*asked)]


def test_of_a_key_that_is_rotated_at_once_two_texts_are_good(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for _ in range(ROUNDS):
            made = await api.good("POST", "api-keys/organisation/service", {"name": "r", "scopes": ["workspaces.list"]})
            asked = [api("POST", f"api-keys/{made['id']}/rotate", {}) for _ in range(4)]
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200, 409, 409, 409]
            texts = [made["key"], *(answer["key"] for status, answer, _ in answers if status == 200)]
            good = [(await api.holding(text)("GET", "workspaces"))[0] for text in texts]
            assert good == [200, 200]

    played(founded_url, scene)


def test_rules_that_are_set_at_once_are_all_kept(founded_url: Secret):
    path, defaults = "admin/organisation/settings", "admin/organisation/defaults"

    async def scene(api: Plane) -> None:
        for number in range(ROUNDS):
            await api.good("PUT", path, {"block_inline_config": False, "user_api_key_rotation_period": None})
            statuses = await together(
                api("PUT", path, {"block_inline_config": True}),
                api("PUT", path, {"user_api_key_rotation_period": 30}),
                api("PUT", defaults, {"input_guardrails": [f"in-{number}"]}),
                api("PUT", defaults, {"output_guardrails": [f"out-{number}"]}),
            )
            shown = await api.good("GET", path)
            kept = await api.good("GET", defaults)
            assert statuses == [200] * 4
            assert (shown["block_inline_config"], shown["user_api_key_rotation_period"]) == (True, 30)
            assert (kept["input_guardrails"], kept["output_guardrails"]) == ([f"in-{number}"], [f"out-{number}"])

    played(founded_url, scene)


def test_no_key_is_left_to_who_is_taken_out_meanwhile(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        for number in range(ROUNDS):
            user = await api.person(f"m{number}@x.test", workspaces=[{"id": place, "role": "member"}])
            wanted = {"name": "k", "workspace_id": place, "user_id": user, "scopes": CALLS}
            gone, made = await asyncio.gather(
                api("DELETE", f"workspaces/{place}/users/{user}"), api("POST", "api-keys/workspace/user", wanted)
            )
            assert (gone[0], made[0] in {200, 400}) == (200, True)
            if made[0] == 200:
                assert (await api("GET", f"api-keys/{made[1]['id']}"))[0] == 404

    played(founded_url, scene)


def test_no_key_is_left_in_a_workspace_that_goes_meanwhile(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for _ in range(ROUNDS):
            place = (await api.workspace())["id"]
            scopes = ["workspace_service_api_keys.create", "completions.write", "configs.list"]
            _, inside = await api.key_of("workspace/service", workspace_id=place, scopes=scopes)
            # Its own key is known, and asks in the same moment.
            assert (await inside("GET", "configs"))[0] == 200
            body = {"name": "k", "scopes": CALLS}
            answers = await asyncio.gather(
                api("DELETE", f"workspaces/{place}", {"name": "w", "force_delete": True}),
                api("POST", "api-keys/workspace/service", {**body, "workspace_id": place}),
                inside("POST", "api-keys/workspace/service", body),
            )
            assert answers[0][0] == 200
            for status, answer, _ in answers[1:]:
                assert status in {200, 401, 403}
                if status == 200:
                    assert (await api("GET", f"api-keys/{answer['id']}"))[0] == 404

    played(founded_url, scene)


def test_a_config_that_a_key_names_is_not_deleted_meanwhile(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        for _ in range(ROUNDS):
            config = await api.good("POST", "configs", {**CONFIG, "workspace_id": place})
            wanted = {"name": "k", "workspace_id": place, "scopes": CALLS, "defaults": {"config_id": config["id"]}}
            statuses = await together(
                api("DELETE", f"configs/{config['slug']}"), api("POST", "api-keys/workspace/service", wanted)
            )
            assert statuses in ([200, 404], [409, 200])

    played(founded_url, scene)


def test_a_workspace_has_one_default_and_a_row_is_deleted_once(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for _ in range(ROUNDS):
            place = (await api.workspace())["id"]
            wanted = {**CONFIG, "workspace_id": place, "isDefault": 1}
            assert await together(*(api("POST", "configs", wanted) for _ in range(3))) == [200] * 3
            rows = (await api.good("GET", f"configs?workspace_id={place}"))["data"]
            assert sum(row["is_default"] for row in rows) == 1
            asked = [api("DELETE", f"configs/{rows[0]['id']}") for _ in range(3)]
            assert sorted(await together(*asked)) == [200, 404, 404]

    played(founded_url, scene)


def test_nothing_comes_of_what_is_changed_rotated_and_deleted_at_once(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for _ in range(ROUNDS):
            key, _ = await api.key_of("organisation/service", scopes=["workspaces.list"])
            changed, gone, rotated = await asyncio.gather(
                api("PUT", f"api-keys/{key}", {"name": "new"}),
                api("DELETE", f"api-keys/{key}"),
                api("POST", f"api-keys/{key}/rotate", {}),
            )
            assert (gone[0], {changed[0], rotated[0]} <= {200, 404}) == (200, True)
            if rotated[0] == 200:
                assert (await api.holding(rotated[1]["key"])("GET", "workspaces"))[0] == 401

    played(founded_url, scene)


async def meanwhile(api: Plane, asked: Awaitable[tuple[int, Any, dict[str, str]]], *done: Delete | Update) -> int:
    """Ask while somebody else changes the organisation, who does this before the turn goes on; give the status."""
    async with api.database.write_transaction() as connection:
        organisation = await connection.scalar(select(organisations.c.id))
        await TenantStore(connection, str(organisation), None).lock_organisation(20_000)
        waiting = asyncio.ensure_future(asked)
        # Long enough to be known, and to compare a password; whoever is slower is refused at once.
        await asyncio.sleep(0.5)
        for statement in done:
            await connection.execute(statement)
    status, _, _ = await waiting
    return status


GONE = {
    "deleted": (401, lambda key: [delete(key_digests), delete(api_keys).where(api_keys.c.id == key)]),
    "rotated": (401, lambda key: [update(key_digests).where(key_digests.c.api_key_id == key).values(expires_at=1)]),
    "expired": (401, lambda key: [update(api_keys).where(api_keys.c.id == key).values(expires_at=1)]),
    "narrowed": (403, lambda key: [update(api_keys).where(api_keys.c.id == key).values(scopes=["workspaces.list"])]),
    "left alone": (200, lambda _: []),
}


@pytest.mark.parametrize("fate", list(GONE))
def test_a_key_that_waits_for_its_turn_does_what_it_may_when_that_comes(founded_url: Secret, fate: str):
    expected, done = GONE[fate]

    async def scene(api: Plane) -> None:
        key, own = await api.key_of("organisation/service", scopes=["workspaces.create", "workspaces.list"])
        assert await meanwhile(api, own("POST", "workspaces", {"name": "w"}), *done(key)) == expected
        if expected != 401:
            assert (await own("GET", "workspaces"))[1]["total"] == 1 + (expected == 200)

    played(founded_url, scene)


def test_a_person_who_waits_for_a_turn_does_what_they_may_when_that_comes(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = (await api.workspace())["id"]
        user = await api.person("m@x.test", workspaces=[{"id": place, "role": "manager"}])
        cookies = [await signed_in(api, "m@x.test") for _ in range(2)]
        config = {**CONFIG, "workspace_id": place}
        asked = api.holding("")("POST", "configs", config, **cookies[0])
        assert await meanwhile(api, asked, delete(sessions)) == 401
        asked = api.holding("")("POST", "configs", config, **await signed_in(api, "m@x.test"))
        left = delete(members).where(members.c.user_id == user)
        assert await meanwhile(api, asked, left) == 403
        assert (await api.good("GET", f"configs?workspace_id={place}"))["total"] == 0

    played(founded_url, scene)


async def signed_in(api: Plane, email: str) -> dict[str, str]:
    """What a browser sends along after signing in."""
    _, answer, headers = await api.holding("")("POST", "auth/sessions", {"email": email, "password": PASSWORD})
    return {"cookie": headers["set-cookie"].partition(";")[0], "x_csrf_token": answer["csrf_token"]}


def test_no_session_begins_with_a_password_or_a_key_that_is_not_good_any_more(founded_url: Secret):
    async def scene(api: Plane) -> None:
        user = await api.person("m@x.test")
        nobody = api.holding("")
        cookie = await signed_in(api, "m@x.test")
        changed = update(users).where(users.c.id == user).values(password="another hash")
        old = {"email": "m@x.test", "password": PASSWORD}
        async with api.database.read_connection() as connection:
            known = await connection.scalar(select(users.c.password).where(users.c.id == user))
        back = update(users).where(users.c.id == user).values(password=known)
        assert await meanwhile(api, nobody("POST", "auth/sessions", old), changed) == 401
        assert await meanwhile(api, nobody("POST", "auth/sessions", {"api_key": api.key}), back) == 200
        wanted = {"current_password": PASSWORD, "new_password": "yet another password"}
        assert await meanwhile(api, nobody("PUT", "auth/password", wanted, **cookie), changed) == 401
        async with api.database.read_connection() as connection:
            kept = await connection.scalar(select(users.c.password).where(users.c.id == user))
        assert kept == "another hash"
        gone = [delete(key_digests), delete(api_keys)]
        assert await meanwhile(api, nobody("POST", "auth/sessions", {"api_key": api.key}), *gone) == 401

    played(founded_url, scene)
