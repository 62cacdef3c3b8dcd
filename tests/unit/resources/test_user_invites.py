"""User invitations. No invitation link can change the password of an existing account."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import update

from penstock.authorization import SCOPES_BY_KEY_TYPE, user_scopes
from penstock.schemas import now
from penstock.store.tables import invites
from tests.unit.resources.management_api import PASSWORD, ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

INVITES_PATH = "admin/users/invites"
OTHER_PASSWORD = "another password of twelve"


async def expire_invite(api: ManagementClient, invite_id: str) -> None:
    async with api.database.write_transaction() as connection:
        await connection.execute(update(invites).where(invites.c.id == invite_id).values(expires_at=1))


def test_expired_invite_cannot_open_an_existing_account(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        old, old_token = await api.invite_user("ada@x.test")
        await expire_invite(api, old)
        _, token = await api.invite_user("ada@x.test", "admin")
        assert (await api.accept_invite(token))[0] == 200
        # The older invitation is closed, and can no longer be sent again.
        await api.expect_error(409, "is cancelled", "POST", f"{INVITES_PATH}/{old}/resend")
        # Restores the state from before acceptance closed it.
        async with api.database.write_transaction() as connection:
            values = {"status": "pending", "expires_at": now() + 3_600_000}
            await connection.execute(update(invites).where(invites.c.id == old).values(values))
        await api.expect_error(409, "user of this organisation already", "POST", f"{INVITES_PATH}/{old}/resend")
        status, response, _ = await api.accept_invite(old_token, OTHER_PASSWORD)
        assert (status, "already" in str(response)) == (409, True)
        for password, expected in ((PASSWORD, 200), (OTHER_PASSWORD, 401)):
            body = {"email": "ada@x.test", "password": password}
            assert (await api.with_key("")("POST", "auth/sessions", body))[0] == expected

    run_scenario(bootstrapped_url, scenario)


def test_resending_requires_the_right_to_grant_the_roles(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        scopes = sorted(
            (user_scopes("member") & SCOPES_BY_KEY_TYPE["organisation-service"]) | {"organisation_users.create"}
        )
        _, session = await api.create_key("organisation/service", scopes=scopes)
        plain, _ = await api.invite_user("b@x.test")
        assert (await session("POST", f"{INVITES_PATH}/{plain}/resend"))[0] == 200
        _, small = await api.create_key("organisation/service", scopes=["organisation_users.create"])
        inside, _ = await api.invite_user("c@x.test", workspaces=[{"id": workspace["id"], "role": "admin"}])
        await small.expect_error(403, "may not give", "POST", f"{INVITES_PATH}/{inside}/resend")
        # Another invitation to the same address is pending, and only one link may exist at a time.
        first, _ = await api.invite_user("d@x.test")
        await expire_invite(api, first)
        await api.invite_user("d@x.test")
        await api.expect_error(409, "invited already", "POST", f"{INVITES_PATH}/{first}/resend")

    run_scenario(bootstrapped_url, scenario)


def test_one_of_two_concurrent_invites_is_created(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for number in range(8):
            bodies = [{"email": f"e{number}@x.test", "role": role, "workspaces": []} for role in ("member", "admin")]
            responses = await asyncio.gather(*(api("POST", INVITES_PATH, body) for body in bodies))
            assert sorted(status for status, _, _ in responses) == [200, 409]

    run_scenario(bootstrapped_url, scenario)


def test_accepting_again_with_an_idempotency_key_is_replayed(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        promised = [{"id": workspace["id"], "role": "member"}]
        along = {"scopes": ["completions.write"]}
        _, token = await api.invite_user("f@x.test", workspaces=promised, workspace_api_key_details=along)
        first = await api.accept_invite(token, idempotency_key="once")
        assert (first[0], len(first[1]["api_keys"])) == (200, 1)
        again = await api.accept_invite(token, idempotency_key="once")
        assert (again[:2], again[2].get("idempotency-replayed")) == (first[:2], "true")
        assert (await api.accept_invite(token, OTHER_PASSWORD, idempotency_key="once"))[0] == 409
        assert (await api.accept_invite(token, idempotency_key="twice"))[0] == 404
        assert (await api.accept_invite(token))[0] == 404

    run_scenario(bootstrapped_url, scenario)


def test_invite_link_uses_the_public_url_of_the_gateway(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for number, (fields, scheme) in enumerate(
            (({}, "http"), ({"x_forwarded_proto": "https"}, "https"), ({"x_forwarded_proto": "gopher"}, "http"))
        ):
            body = {"email": f"u{number}@x.test", "role": "member", "workspaces": []}
            _, invite, _ = await api("POST", "admin/users/invites", body, host="gateway.example", **fields)
            _, again, _ = await api(
                "POST", f"admin/users/invites/{invite['id']}/resend", host="gateway.example", **fields
            )
            for link in (invite["invite_link"], again["inviteLink"]):
                assert link.startswith(f"{scheme}://gateway.example/")

    run_scenario(bootstrapped_url, scenario)


def test_key_details_obey_the_rules_of_their_workspaces(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        rule = {"settings": {"user_api_key_max_ttl": 3600, "user_key_metadata": {f"r{n}": "" for n in range(60)}}}
        await api.request_ok("PUT", f"workspaces/{workspace}", rule)
        moment = datetime.now(UTC)
        ok = {"scopes": ["completions.write"], "expiry": (moment + timedelta(minutes=50)).isoformat()}
        invite = {"email": "a@x.test", "role": "member", "workspaces": [{"id": workspace, "role": "member"}]}
        for details, word in (
            ({"expiry": (moment + timedelta(hours=2)).isoformat()}, "workspace_api_key_details.expiry"),
            ({"metadata": {"a": "x" * 513}}, "workspace_api_key_details.metadata.a"),
            ({"metadata": {f"k{n}": "" for n in range(65)}}, "at most 64 keys, not 65"),
            ({"metadata": {f"k{n}": "" for n in range(5)}}, "at most 64 keys, not 65"),
        ):
            body = {**invite, "workspace_api_key_details": {**ok, **details}}
            await api.expect_error(400, word, "POST", INVITES_PATH, body)
        created = await api.request_ok("POST", INVITES_PATH, {**invite, "workspace_api_key_details": ok})
        # A stricter rule shortens the key, and does not keep the person out.
        await api.request_ok("PUT", f"workspaces/{workspace}", {"settings": {"user_api_key_max_ttl": 60}})
        status, response, _ = await api.accept_invite(created["invite_link"].partition("token=")[2])
        assert status == 200, response
        key = await api.request_ok("GET", f"api-keys/{response['api_keys'][0]['id']}")
        assert datetime.fromisoformat(key["expires_at"]) <= datetime.now(UTC) + timedelta(seconds=60)

    run_scenario(bootstrapped_url, scenario)


def test_metadata_of_rules_and_keys_is_limited_together(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        user = await api.create_user("a@x.test", workspaces=[{"id": workspace, "role": "member"}])
        long = {"settings": {"user_key_metadata": {"a": "x" * 513}}}
        await api.expect_error(400, "settings.user_key_metadata.a", "PUT", f"workspaces/{workspace}", long)
        rule = {"settings": {"user_key_metadata": {f"r{n}": "" for n in range(60)}}}
        await api.request_ok("PUT", f"workspaces/{workspace}", rule)
        key = {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace, "user_id": user}
        path = "api-keys/workspace/user"
        body = {**key, "defaults": {"metadata": {f"k{n}": "" for n in range(5)}}}
        await api.expect_error(400, "at most 64 keys, not 65", "POST", path, body)
        await api.request_ok("POST", path, {**key, "defaults": {"metadata": {f"r{n}": "own" for n in range(64)}}})

    run_scenario(bootstrapped_url, scenario)
