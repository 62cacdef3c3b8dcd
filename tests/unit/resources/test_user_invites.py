"""Who an invitation may make of whom: nobody's password becomes another through a link."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy import update

from penstock.authorization import SCOPES_BY_KEY_TYPE, user_scopes
from penstock.schemas import now
from penstock.store.tables import invites
from tests.unit.resources.managed import PASSWORD, Plane, played

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

INVITES = "admin/users/invites"
OTHER = "another password of twelve"


async def expire(api: Plane, invite_id: str) -> None:
    async with api.database.write_transaction() as connection:
        await connection.execute(update(invites).where(invites.c.id == invite_id).values(expires_at=1))


def test_an_expired_invitation_is_no_way_into_an_account_that_exists_meanwhile(founded_url: Secret):
    async def scene(api: Plane) -> None:
        old, old_token = await api.invited("ada@x.test")
        await expire(api, old)
        _, token = await api.invited("ada@x.test", "admin")
        assert (await api.accepted(token))[0] == 200
        # The older one is no longer open, and no longer to be sent again.
        await api.refused(409, "is cancelled", "POST", f"{INVITES}/{old}/resend")
        # As it was before accepting closed it.
        async with api.database.write_transaction() as connection:
            values = {"status": "pending", "expires_at": now() + 3_600_000}
            await connection.execute(update(invites).where(invites.c.id == old).values(values))
        await api.refused(409, "user of this organisation already", "POST", f"{INVITES}/{old}/resend")
        status, answer, _ = await api.accepted(old_token, OTHER)
        assert (status, "already" in str(answer)) == (409, True)
        for password, expected in ((PASSWORD, 200), (OTHER, 401)):
            body = {"email": "ada@x.test", "password": password}
            assert (await api.holding("")("POST", "auth/sessions", body))[0] == expected

    played(founded_url, scene)


def test_who_sends_again_must_be_able_to_give_what_is_promised(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace()
        scopes = sorted(
            (user_scopes("member") & SCOPES_BY_KEY_TYPE["organisation-service"]) | {"organisation_users.create"}
        )
        _, desk = await api.key_of("organisation/service", scopes=scopes)
        plain, _ = await api.invited("b@x.test")
        assert (await desk("POST", f"{INVITES}/{plain}/resend"))[0] == 200
        _, small = await api.key_of("organisation/service", scopes=["organisation_users.create"])
        inside, _ = await api.invited("c@x.test", workspaces=[{"id": place["id"], "role": "admin"}])
        await small.refused(403, "may not give", "POST", f"{INVITES}/{inside}/resend")
        # Another invitation of the same address is pending: there is one link at a time.
        first, _ = await api.invited("d@x.test")
        await expire(api, first)
        await api.invited("d@x.test")
        await api.refused(409, "invited already", "POST", f"{INVITES}/{first}/resend")

    played(founded_url, scene)


def test_one_of_two_invitations_at_once_is_made(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for number in range(8):
            bodies = [{"email": f"e{number}@x.test", "role": role, "workspaces": []} for role in ("member", "admin")]
            answers = await asyncio.gather(*(api("POST", INVITES, body) for body in bodies))
            assert sorted(status for status, _, _ in answers) == [200, 409]

    played(founded_url, scene)


def test_accepting_again_under_one_idempotency_key_is_answered_as_the_first_time(founded_url: Secret):
    async def scene(api: Plane) -> None:
        place = await api.workspace()
        promised = [{"id": place["id"], "role": "member"}]
        along = {"scopes": ["completions.write"]}
        _, token = await api.invited("f@x.test", workspaces=promised, workspace_api_key_details=along)
        first = await api.accepted(token, idempotency_key="once")
        assert (first[0], len(first[1]["api_keys"])) == (200, 1)
        again = await api.accepted(token, idempotency_key="once")
        assert (again[:2], again[2].get("idempotency-replayed")) == (first[:2], "true")
        assert (await api.accepted(token, OTHER, idempotency_key="once"))[0] == 409
        assert (await api.accepted(token, idempotency_key="twice"))[0] == 404
        assert (await api.accepted(token))[0] == 404

    played(founded_url, scene)


def test_a_link_is_as_callers_see_the_gateway(founded_url: Secret):
    async def scene(api: Plane) -> None:
        for number, (fields, scheme) in enumerate(
            (({}, "http"), ({"x_forwarded_proto": "https"}, "https"), ({"x_forwarded_proto": "gopher"}, "http"))
        ):
            body = {"email": f"u{number}@x.test", "role": "member", "workspaces": []}
            _, made, _ = await api("POST", "admin/users/invites", body, host="gateway.example", **fields)
            _, again, _ = await api(
                "POST", f"admin/users/invites/{made['id']}/resend", host="gateway.example", **fields
            )
            for link in (made["invite_link"], again["inviteLink"]):
                assert link.startswith(f"{scheme}://gateway.example/")

    played(founded_url, scene)
