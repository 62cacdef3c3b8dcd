"""End of sessions. They end with the key secret that opened them, and with a password change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from penstock.store.tables import audit_log, key_digests, organisations, sessions
from tests.unit.resources.management_api import PASSWORD, ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


async def sign_in(api: ManagementClient, body: dict[str, Any]) -> tuple[ManagementClient, dict[str, str]]:
    anonymous = api.with_key("")
    status, response, headers = await anonymous("POST", "auth/sessions", body)
    assert status == 200, response
    return anonymous, {"cookie": headers["set-cookie"].split(";")[0], "x_csrf_token": response["csrf_token"]}


def test_session_ends_with_the_key_text_that_opened_it(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        key = await api.request_ok(
            "POST", "api-keys/organisation/service", {"name": "o", "scopes": ["workspaces.list"]}
        )
        anonymous, old = await sign_in(api, {"api_key": key["key"]})
        text = (await api.request_ok("POST", f"api-keys/{key['id']}/rotate", {}))["key"]
        _, new = await sign_in(api, {"api_key": text})
        # During the transition both secrets of the key are valid.
        assert [(await anonymous("GET", "workspaces", **fields))[0] for fields in (old, new)] == [200, 200]
        async with api.database.write_transaction() as connection:
            ended = key_digests.c.expires_at.is_not(None)
            await connection.execute(update(key_digests).where(ended).values(expires_at=1))
        api.clear_caller_cache()
        assert [(await anonymous("GET", "workspaces", **fields))[0] for fields in (old, new)] == [401, 200]
        await api.request_ok("DELETE", f"api-keys/{key['id']}")
        assert (await anonymous("GET", "workspaces", **new))[0] == 401

    run_scenario(bootstrapped_url, scenario)


def test_password_change_records_the_sessions_it_ends(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        await api.create_user("a@x.test")
        body = {"email": "a@x.test", "password": PASSWORD}
        anonymous, own = await sign_in(api, body)
        others = [await sign_in(api, body) for _ in range(2)]
        async with api.database.read_connection() as connection:
            begun = (await connection.execute(select(sessions.c.id).order_by(sessions.c.id))).scalars().all()
        change = {"current_password": PASSWORD, "new_password": "another password of twelve"}
        await anonymous.request_ok("PUT", "auth/password", change, **own)
        for _, fields in others:
            assert (await anonymous("GET", "auth/self", **fields))[0] == 401
        query = select(audit_log.c.resource_id).where(
            audit_log.c.resource_type == "sessions", audit_log.c.action == "delete"
        )
        async with api.database.read_connection() as connection:
            noted = (await connection.execute(query)).scalars().all()
        assert sorted(noted) == sorted(begun[1:])

    run_scenario(bootstrapped_url, scenario)


def test_session_lifetime_is_at_most_one_year(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        await api.create_user("a@x.test")
        longest = 366 * 24 * 3600
        for seconds in (longest + 1, 10**15):
            rules = {"session_settings": {"max_session_ttl": seconds}}
            await api.expect_error(400, "max_session_ttl", "PUT", "admin/organisation/settings", rules)
        # An earlier release may have stored such a value.
        async with api.database.write_transaction() as connection:
            await connection.execute(update(organisations).values(settings=rules))
        fetched = await api.request_ok("GET", "admin/organisation/settings")
        assert fetched["session_settings"]["max_session_ttl"] == longest
        anonymous, fields = await sign_in(api, {"email": "a@x.test", "password": PASSWORD})
        await anonymous.request_ok("GET", "auth/self", **fields)

    run_scenario(bootstrapped_url, scenario)
