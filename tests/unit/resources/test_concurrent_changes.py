"""Concurrent changes on both databases: each change sees those committed before it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select, update

from penstock.store.tables import api_keys, key_digests, members, organisations, sessions, users
from penstock.store.tenant import TenantStore
from tests.unit.resources.management_api import PASSWORD, ManagementClient, run_scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sqlalchemy import Delete, Update

    from penstock.settings.secret import Secret

ROUNDS = 6
CALL_SCOPES = ["completions.write"]
CONFIG = {"name": "c", "config": {"provider": "openai"}}


async def gather_statuses(*requested: Awaitable[tuple[int, Any, dict[str, str]]]) -> list[int]:
    """Sends all requests at once; returns their statuses."""
    return [status for status, _, _ in await asyncio.gather(*requested)]


def test_concurrent_rotations_leave_two_valid_key_texts(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for _ in range(ROUNDS):
            key = await api.request_ok(
                "POST", "api-keys/organisation/service", {"name": "r", "scopes": ["workspaces.list"]}
            )
            request = [api("POST", f"api-keys/{key['id']}/rotate", {}) for _ in range(4)]
            responses = await asyncio.gather(*request)
            assert sorted(status for status, _, _ in responses) == [200, 409, 409, 409]
            texts = [key["key"], *(response["key"] for status, response, _ in responses if status == 200)]
            good = [(await api.with_key(text)("GET", "workspaces"))[0] for text in texts]
            assert good == [200, 200]

    run_scenario(bootstrapped_url, scenario)


def test_concurrent_setting_changes_are_all_stored(bootstrapped_url: Secret):
    path, defaults = "admin/organisation/settings", "admin/organisation/defaults"

    async def scenario(api: ManagementClient) -> None:
        owner = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
        body = {"name": "g", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
        own = [await api.request_ok("POST", "guardrails", {**body, "organisation_id": owner}) for _ in range(2)]
        ids = [row["id"] for row in own]
        for number in range(ROUNDS):
            before, after = [ids[number % 2]], [ids[(number + 1) % 2]]
            await api.request_ok("PUT", path, {"block_inline_config": False, "user_api_key_rotation_period": None})
            statuses = await gather_statuses(
                api("PUT", path, {"block_inline_config": True}),
                api("PUT", path, {"user_api_key_rotation_period": 30}),
                api("PUT", defaults, {"input_guardrails": before}),
                api("PUT", defaults, {"output_guardrails": after}),
            )
            fetched = await api.request_ok("GET", path)
            remaining = await api.request_ok("GET", defaults)
            assert statuses == [200] * 4
            assert (fetched["block_inline_config"], fetched["user_api_key_rotation_period"]) == (True, 30)
            stored = [[item["id"] for item in remaining[f"{kind}_guardrails"]] for kind in ("input", "output")]
            assert stored == [before, after]

    run_scenario(bootstrapped_url, scenario)


def test_member_removed_meanwhile_keeps_no_key(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for number in range(ROUNDS):
            user = await api.create_user(f"m{number}@x.test", workspaces=[{"id": workspace, "role": "member"}])
            expected = {"name": "k", "workspace_id": workspace, "user_id": user, "scopes": CALL_SCOPES}
            gone, created = await asyncio.gather(
                api("DELETE", f"workspaces/{workspace}/users/{user}"), api("POST", "api-keys/workspace/user", expected)
            )
            assert (gone[0], created[0] in {200, 400}) == (200, True)
            if created[0] == 200:
                assert (await api("GET", f"api-keys/{created[1]['id']}"))[0] == 404

    run_scenario(bootstrapped_url, scenario)


def test_workspace_deleted_meanwhile_keeps_no_key(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for _ in range(ROUNDS):
            workspace = (await api.create_workspace())["id"]
            scopes = ["workspace_service_api_keys.create", "completions.write", "configs.list"]
            _, inside = await api.create_key("workspace/service", workspace_id=workspace, scopes=scopes)
            # The workspace's own key is cached, and sends a request at the same moment.
            assert (await inside("GET", "configs"))[0] == 200
            body = {"name": "k", "scopes": CALL_SCOPES}
            responses = await asyncio.gather(
                api("DELETE", f"workspaces/{workspace}", {"name": "w", "force_delete": True}),
                api("POST", "api-keys/workspace/service", {**body, "workspace_id": workspace}),
                inside("POST", "api-keys/workspace/service", body),
            )
            assert responses[0][0] == 200
            for status, response, _ in responses[1:]:
                assert status in {200, 401, 403}
                if status == 200:
                    assert (await api("GET", f"api-keys/{response['id']}"))[0] == 404

    run_scenario(bootstrapped_url, scenario)


def test_config_of_a_new_key_is_not_deleted_meanwhile(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        for _ in range(ROUNDS):
            config = await api.request_ok("POST", "configs", {**CONFIG, "workspace_id": workspace})
            expected = {
                "name": "k",
                "workspace_id": workspace,
                "scopes": CALL_SCOPES,
                "defaults": {"config_id": config["id"]},
            }
            statuses = await gather_statuses(
                api("DELETE", f"configs/{config['slug']}"), api("POST", "api-keys/workspace/service", expected)
            )
            assert statuses in ([200, 404], [409, 200])

    run_scenario(bootstrapped_url, scenario)


def test_one_default_per_workspace_and_one_delete_per_row(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for _ in range(ROUNDS):
            workspace = (await api.create_workspace())["id"]
            expected = {**CONFIG, "workspace_id": workspace, "isDefault": 1}
            assert await gather_statuses(*(api("POST", "configs", expected) for _ in range(3))) == [200] * 3
            rows = (await api.request_ok("GET", f"configs?workspace_id={workspace}"))["data"]
            assert sum(row["is_default"] for row in rows) == 1
            request = [api("DELETE", f"configs/{rows[0]['id']}") for _ in range(3)]
            assert sorted(await gather_statuses(*request)) == [200, 404, 404]

    run_scenario(bootstrapped_url, scenario)


def test_concurrent_update_rotate_and_delete_leave_no_valid_key(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for _ in range(ROUNDS):
            key, _ = await api.create_key("organisation/service", scopes=["workspaces.list"])
            changed, gone, rotated = await asyncio.gather(
                api("PUT", f"api-keys/{key}", {"name": "new"}),
                api("DELETE", f"api-keys/{key}"),
                api("POST", f"api-keys/{key}/rotate", {}),
            )
            assert (gone[0], {changed[0], rotated[0]} <= {200, 404}) == (200, True)
            if rotated[0] == 200:
                assert (await api.with_key(rotated[1]["key"])("GET", "workspaces"))[0] == 401

    run_scenario(bootstrapped_url, scenario)


async def request_during_change(
    api: ManagementClient, requested: Awaitable[tuple[int, Any, dict[str, str]]], *done: Delete | Update
) -> int:
    """Sends a request while another transaction holds the organisation's lock and executes these statements; returns
    the status.
    """
    async with api.database.write_transaction() as connection:
        organisation = await connection.scalar(select(organisations.c.id))
        await TenantStore(connection, str(organisation), None).lock_organisation(20_000)
        waiting = asyncio.ensure_future(requested)
        # Enough time to authenticate and to verify a password; a slower request is rejected at once.
        await asyncio.sleep(0.5)
        for statement in done:
            await connection.execute(statement)
    status, _, _ = await waiting
    return status


CONCURRENT_KEY_CHANGES = {
    "deleted": (401, lambda key: [delete(key_digests), delete(api_keys).where(api_keys.c.id == key)]),
    "rotated": (401, lambda key: [update(key_digests).where(key_digests.c.api_key_id == key).values(expires_at=1)]),
    "expired": (401, lambda key: [update(api_keys).where(api_keys.c.id == key).values(expires_at=1)]),
    "narrowed": (403, lambda key: [update(api_keys).where(api_keys.c.id == key).values(scopes=["workspaces.list"])]),
    "left alone": (200, lambda _: []),
}


@pytest.mark.parametrize("change_meanwhile", list(CONCURRENT_KEY_CHANGES))
def test_key_waiting_for_the_lock_is_checked_again(bootstrapped_url: Secret, change_meanwhile: str):
    expected, done = CONCURRENT_KEY_CHANGES[change_meanwhile]

    async def scenario(api: ManagementClient) -> None:
        key, own = await api.create_key("organisation/service", scopes=["workspaces.create", "workspaces.list"])
        assert await request_during_change(api, own("POST", "workspaces", {"name": "w"}), *done(key)) == expected
        if expected != 401:
            assert (await own("GET", "workspaces"))[1]["total"] == 1 + (expected == 200)

    run_scenario(bootstrapped_url, scenario)


def test_user_waiting_for_the_lock_is_checked_again(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("m@x.test", workspaces=[{"id": workspace, "role": "manager"}])
        cookies = [await sign_in(api, "m@x.test") for _ in range(2)]
        config = {**CONFIG, "workspace_id": workspace}
        requests = api.with_key("")("POST", "configs", config, **cookies[0])
        assert await request_during_change(api, requests, delete(sessions)) == 401
        requests = api.with_key("")("POST", "configs", config, **await sign_in(api, "m@x.test"))
        remaining = delete(members).where(members.c.user_id == user)
        assert await request_during_change(api, requests, remaining) == 403
        assert (await api.request_ok("GET", f"configs?workspace_id={workspace}"))["total"] == 0

    run_scenario(bootstrapped_url, scenario)


async def sign_in(api: ManagementClient, email: str) -> dict[str, str]:
    """Returns the headers that a browser sends after signing in."""
    _, response, headers = await api.with_key("")("POST", "auth/sessions", {"email": email, "password": PASSWORD})
    return {"cookie": headers["set-cookie"].partition(";")[0], "x_csrf_token": response["csrf_token"]}


def test_no_session_starts_with_a_password_or_key_just_revoked(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        user = await api.create_user("m@x.test")
        no_match = api.with_key("")
        cookie = await sign_in(api, "m@x.test")
        changed = update(users).where(users.c.id == user).values(password="another hash")
        old = {"email": "m@x.test", "password": PASSWORD}
        async with api.database.read_connection() as connection:
            known = await connection.scalar(select(users.c.password).where(users.c.id == user))
        back = update(users).where(users.c.id == user).values(password=known)
        assert await request_during_change(api, no_match("POST", "auth/sessions", old), changed) == 401
        assert await request_during_change(api, no_match("POST", "auth/sessions", {"api_key": api.key}), back) == 200
        expected = {"current_password": PASSWORD, "new_password": "yet another password"}
        assert await request_during_change(api, no_match("PUT", "auth/password", expected, **cookie), changed) == 401
        async with api.database.read_connection() as connection:
            remaining = await connection.scalar(select(users.c.password).where(users.c.id == user))
        assert remaining == "another hash"
        gone = [delete(key_digests), delete(api_keys)]
        assert await request_during_change(api, no_match("POST", "auth/sessions", {"api_key": api.key}), *gone) == 401

    run_scenario(bootstrapped_url, scenario)
