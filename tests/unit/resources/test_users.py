"""Users of the organisation: what ends when a user is removed or demoted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.authorization import SCOPES_BY_KEY_TYPE
from tests.unit.resources.management_api import JWT_SETTINGS, PASSWORD, ManagementClient, run_scenario, sign_token
from tests.unit.resources.test_sessions import sign_in

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_removed_users_credentials_are_invalid(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        organisation = (await api.request_ok("GET", "workspaces"))["data"][0]["organisation_id"]
        inside = [{"id": workspace["id"], "role": "member"}]
        user = await api.create_user("u@x.test", workspaces=inside)
        _, own = await api.create_key(
            "workspace/user", workspace_id=workspace["id"], user_id=user, scopes=["configs.list"]
        )
        _, _, fields = await api.with_key("")("POST", "auth/sessions", {"email": "u@x.test", "password": PASSWORD})
        cookie = {"cookie": fields["set-cookie"].partition(";")[0]}
        content = {"organisation_id": organisation, "workspace_slug": workspace["slug"], "exp": time.time() + 600}
        texts = [
            sign_token(**content, **claims, scope="configs.list workspace_service_api_keys.create")
            for claims in ({"sub": user}, {"email_id": "U@x.test"}, {"email_id": "other@x.test"})
        ]
        path, key = f"configs?workspace_id={workspace['id']}", {"name": "k", "scopes": ["configs.list"]}

        async def fetch_statuses() -> list[int]:
            requested = [own("GET", path), api.with_key("")("GET", path, **cookie)]
            requested += [api.with_key(text)("GET", path) for text in texts]
            return [(await item)[0] for item in requested]

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

    run_scenario(bootstrapped_url, scenario, JWT_SETTINGS)


def test_org_admin_has_keys_in_every_workspace_until_demoted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspaces = [(await api.create_workspace())["id"] for _ in range(2)]
        inside = [{"id": workspaces[0], "role": "member"}]
        admin = await api.create_user("a@x.test", role="admin", workspaces=inside)
        member = await api.create_user("m@x.test", workspaces=inside)
        key = {
            "name": "k",
            "workspace_id": workspaces[1],
            "user_id": member,
            "scopes": ["configs.create", "configs.list"],
        }
        await api.expect_error(400, "not a member of this workspace", "POST", "api-keys/workspace/user", key)
        created = [
            await api.create_key("workspace/user", **{**key, "workspace_id": location, "user_id": admin})
            for location in workspaces
        ]
        config = {"name": "c", "config": {"provider": "openai"}}
        for _, own in created:
            await own.request_ok("POST", "configs", config)
        await api.request_ok("PUT", f"admin/users/{admin}", {"role": "member"})
        assert [(await own("GET", "configs"))[0] for _, own in created] == [200, 401]
        await created[0][1].expect_error(403, "configs.create", "POST", "configs", config)

    run_scenario(bootstrapped_url, scenario)


def test_manager_of_a_workspace_finds_the_users_who_can_be_added(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace, other = [(await api.create_workspace())["id"] for _ in range(2)]
        await api.create_user("m@x.test", workspaces=[{"id": workspace, "role": "manager"}])
        await api.create_user("reader@x.test", workspaces=[{"id": workspace, "role": "member"}])
        outside = await api.create_user("outside@x.test", workspaces=[{"id": other, "role": "member"}])
        manager, own = await sign_in(api, {"email": "m@x.test", "password": PASSWORD})
        path = f"workspaces/{workspace}/candidates"

        async def find_emails(query: str = "") -> set[str]:
            return {user["email"] for user in (await manager.request_ok("GET", path + query, None, **own))["data"]}

        emails = await find_emails()
        assert "outside@x.test" in emails
        assert emails.isdisjoint({"m@x.test", "reader@x.test"})
        assert await find_emails("?search=OUTSIDE") == {"outside@x.test"}
        assert await find_emails("?search=%25") == set()
        await manager.request_ok("POST", f"workspaces/{workspace}/users", {"users": [{"id": outside}]}, **own)
        assert "outside@x.test" not in await find_emails()
        reader, fields = await sign_in(api, {"email": "reader@x.test", "password": PASSWORD})
        status, response, _ = await reader("GET", path, **fields)
        assert (status, "workspace_users.create" in str(response)) == (403, True)
        assert (await manager("GET", f"workspaces/{other}/candidates", **own))[0] in {403, 404}

    run_scenario(bootstrapped_url, scenario)


def test_service_keys_cannot_outlive_their_user_by_a_request_of_that_user(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        inside = {"id": workspace, "role": "manager"}
        admin = await api.create_user("a@x.test", role="admin")
        manager = await api.create_user("m@x.test", workspaces=[inside])
        paths = {"a@x.test": f"admin/users/{admin}", "m@x.test": f"workspaces/{workspace}/users/{manager}"}
        bodies = {
            "a@x.test": ("organisation", {"scopes": sorted(SCOPES_BY_KEY_TYPE["organisation-service"])}),
            "m@x.test": ("workspace", {"scopes": ["workspace_users.delete"], "workspace_id": workspace}),
        }
        buffered: list[ManagementClient] = []
        for email, path in paths.items():
            browser, own = await sign_in(api, {"email": email, "password": PASSWORD})
            kind, body = bodies[email]
            key = await browser.request_ok("POST", f"api-keys/{kind}/service", {"name": "k", **body}, **own)
            buffered.append(api.with_key(key["key"]))
            await buffered[-1].expect_error(403, "keep_service_keys", "DELETE", f"{path}?keep_service_keys=true")
            status, response, _ = await browser("DELETE", f"{path}?keep_service_keys=true", **own)
            assert (status, "another user" in str(response)) == (403, True), response
        # Another caller may keep the key. The key of `penstock init` has no user, so the remaining key then has none
        # either.
        await api.request_ok("DELETE", f"{paths['a@x.test']}?keep_service_keys=true")
        await buffered[0].request_ok("GET", "workspaces")

    run_scenario(bootstrapped_url, scenario)


def test_invitation_sent_with_a_deleted_key_ends_with_the_user(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for number, change in enumerate((("DELETE", None), ("PUT", {"role": "member"}))):
            email = f"a{number}@x.test"
            user = await api.create_user(email, role="admin")
            browser, own = await sign_in(api, {"email": email, "password": PASSWORD})
            body = {"name": "k", "scopes": sorted(SCOPES_BY_KEY_TYPE["organisation-service"])}
            key = await browser.request_ok("POST", "api-keys/organisation/service", body, **own)
            invite, token = await api.with_key(key["key"]).invite_user(f"late{number}@x.test", "admin")
            _, remaining = await api.invite_user(f"other{number}@x.test")
            await api.request_ok("DELETE", f"api-keys/{key['id']}")
            method, sent = change
            await api.request_ok(method, f"admin/users/{user}", sent)
            assert (await api.request_ok("GET", f"admin/users/invites/{invite}"))["status"] == "cancelled"
            assert (await api.accept_invite(token))[0] == 404
            assert (await api.accept_invite(remaining))[0] == 200

    run_scenario(bootstrapped_url, scenario)
