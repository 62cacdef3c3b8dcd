"""Authority of keys and roles: nobody gets more power through a key, a role or an invitation than they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body, send_raw_request
from tests.integration.test_sessions import PASSWORD, BrowserClient, CreatedUser, create_user
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: rights are decided before the store, and unit tests cover both databases.
ONE_STORE = True

RESERVED_PATHS = (
    "/v1/mcp-servers",
    "/v1/mcp-integrations/x/capabilities",
    "/v1/scim/workspaces",
    "/v1/agent-integrations/fetch-agent-card",
    "/v1/oauth/register",
    "/v1/admin/unknown",
)


def add_user(admin: Client, workspace: dict[str, Any], name: str, role: str) -> CreatedUser:
    """Creates another user in the workspace, with the role there."""
    email = f"{name}@example.test"
    invited = {"email": email, "role": "member", "workspaces": [{"id": workspace["id"], "role": role}]}
    token = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    body = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
    invite = expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", body))
    return CreatedUser(invite["id"], email, workspace)


def sign_in(admin: Client, user: CreatedUser) -> BrowserClient:
    browser = BrowserClient(admin.gateway)
    expect_ok(browser.sign_in(email=user.email, password=PASSWORD))
    return browser


def create_key_for(browser: BrowserClient, user: CreatedUser, scopes: list[str]) -> dict[str, Any]:
    body = {"name": "k", "user_id": user.id, "workspace_id": user.workspace["id"], "scopes": scopes}
    return expect_ok(browser.send("POST", "/v1/api-keys/workspace/user", body))


def create_service_key(browser: BrowserClient, workspace: dict[str, Any], scopes: list[str]) -> dict[str, Any]:
    body = {"name": "s", "workspace_id": workspace["id"], "scopes": scopes}
    return expect_ok(browser.send("POST", "/v1/api-keys/workspace/service", body))


def chat(admin: Client, key: str) -> Response:
    headers = {**JSON_HEADERS, "x-gateway-api-key": key, "x-gateway-provider": "mock"}
    return send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers)


def audit_rows(admin: Client, **expected: str) -> list[dict[str, Any]]:
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    span = "start_time=2020-01-01T00:00:00Z&end_time=2040-01-01T00:00:00Z"
    filters = "".join(f"&{name}={value}" for name, value in expected.items())
    return admin.read(f"/v1/audit-logs?{span}&organisation_id={organisation}{filters}")["records"]


def test_key_in_another_users_name_obeys_the_rights_of_its_maker(admin: Client):
    organisation_admin = create_user(admin, "boss-rights", "admin")
    maker = add_user(admin, organisation_admin.workspace, "maker-rights", "manager")
    key = create_key_for(
        sign_in(admin, maker), organisation_admin, ["configs.create", "configs.read", "completions.write"]
    )
    buffered = Client(admin.gateway, key["key"])
    expect_ok(buffered.post("/v1/configs", {"name": "a", "config": {"provider": "openai"}}))
    path = f"/v1/workspaces/{organisation_admin.workspace['id']}"
    expect_ok(admin.put(path, {"security_settings": {"managersWriteConfigs": False}}))
    expect_error(buffered.post("/v1/configs", {"name": "b", "config": {"provider": "openai"}}), 403, "AB03")
    expect_ok(admin.put(path, {"security_settings": {"managersWriteConfigs": True}}))
    expect_ok(admin.put(f"{path}/users/{maker.id}", {"role": "member"}))
    expect_error(buffered.post("/v1/configs", {"name": "c", "config": {"provider": "openai"}}), 403, "AB03")
    assert buffered.get("/v1/configs").status == 403  # the key never had configs.list


@pytest.mark.parametrize("kind", ["user", "service", "rotated"])
def test_key_ends_with_the_membership_of_its_maker(admin: Client, kind: str):
    organisation_admin = create_user(admin, f"boss-{kind}", "admin")
    maker = add_user(admin, organisation_admin.workspace, f"maker-{kind}", "manager")
    scopes = ["completions.write", "configs.list"]
    browser = sign_in(admin, maker)
    if kind == "service":
        key = create_service_key(browser, organisation_admin.workspace, scopes)["key"]
    elif kind == "user":
        key = create_key_for(browser, organisation_admin, scopes)["key"]
    else:
        created = create_key_for(sign_in(admin, organisation_admin), organisation_admin, scopes)
        key = expect_ok(browser.send("POST", f"/v1/api-keys/{created['id']}/rotate"))["key"]
        assert Client(admin.gateway, created["key"]).get("/v1/configs").status == 200
    assert Client(admin.gateway, key).get("/v1/configs").status == 200
    assert chat(admin, key).status == 200
    expect_ok(admin.delete(f"/v1/workspaces/{organisation_admin.workspace['id']}/users/{maker.id}"))
    expect_error(Client(admin.gateway, key).get("/v1/configs"), 401, "AB05")
    assert chat(admin, key).status == 401
    if kind == "rotated":
        # The secret from before the rotation, which the key's own user has, stays valid until the transition ends.
        assert Client(admin.gateway, created["key"]).get("/v1/configs").status == 200


def test_service_keys_of_a_leaving_member_stay_on_the_authority_of_the_caller(admin: Client):
    organisation_admin = create_user(admin, "boss-keeps", "admin")
    maker = add_user(admin, organisation_admin.workspace, "maker-keeps", "manager")
    key = create_service_key(
        sign_in(admin, maker), organisation_admin.workspace, ["completions.write", "configs.list"]
    )["key"]
    path = f"/v1/workspaces/{organisation_admin.workspace['id']}/users/{maker.id}?keep_service_keys=true"
    expect_ok(sign_in(admin, organisation_admin).send("DELETE", path))
    assert Client(admin.gateway, key).get("/v1/configs").status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{organisation_admin.id}"))
    expect_error(Client(admin.gateway, key).get("/v1/configs"), 401, "AB05")


def test_keys_that_a_key_makes_end_with_the_person_behind_it(admin: Client):
    organisation_admin = create_user(admin, "boss-chain", "admin")
    maker = add_user(admin, organisation_admin.workspace, "maker-chain", "manager")
    scopes = ["workspace_service_api_keys.create", "configs.list"]
    first = create_service_key(sign_in(admin, maker), organisation_admin.workspace, scopes)
    second = Client(admin.gateway, first["key"]).create(
        "/v1/api-keys/workspace/service", {"name": "second", "scopes": ["configs.list"]}
    )
    expect_ok(admin.delete(f"/v1/api-keys/{first['id']}"))
    assert Client(admin.gateway, second["key"]).get("/v1/configs").status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{maker.id}"))
    expect_error(Client(admin.gateway, second["key"]).get("/v1/configs"), 401, "AB05")


def test_audit_log_names_the_key_and_who_holds_it(admin: Client):
    organisation_admin = create_user(admin, "boss-audit", "admin")
    maker = add_user(admin, organisation_admin.workspace, "maker-audit", "manager")
    key = create_key_for(sign_in(admin, maker), organisation_admin, ["configs.create"])
    expect_ok(Client(admin.gateway, key["key"]).post("/v1/configs", {"name": "a", "config": {"provider": "openai"}}))
    (row,) = audit_rows(admin, resource_type="configs", user_id=organisation_admin.id)
    assert (row["key_id"], row["key_name"], row["key_made_by"]) == (key["id"], "k", maker.id)


def test_manager_cannot_grant_or_take_a_role_with_more_power(admin: Client):
    organisation_admin = create_user(admin, "boss-roles", "admin")
    maker = add_user(admin, organisation_admin.workspace, "maker-roles", "manager")
    other = add_user(admin, organisation_admin.workspace, "other-roles", "manager")
    users = f"/v1/workspaces/{organisation_admin.workspace['id']}/users"
    key = create_service_key(
        sign_in(admin, maker),
        organisation_admin.workspace,
        ["workspace_users.update", "workspace_users.delete", "configs.list"],
    )
    browser = sign_in(admin, maker)
    by_key = Client(admin.gateway, key["key"])
    for user in (maker, other):
        expect_error(browser.send("PUT", f"{users}/{user.id}", {"role": "admin"}), 403, "AB03", "admin")
        expect_error(by_key.put(f"{users}/{user.id}", {"role": "admin"}), 403, "AB03", "admin")
    for role in ("manager", "member"):
        expect_error(browser.send("PUT", f"{users}/{organisation_admin.id}", {"role": role}), 403, "AB03", "more power")
    expect_error(browser.send("DELETE", f"{users}/{organisation_admin.id}"), 403, "AB03", "more power")
    expect_error(by_key.delete(f"{users}/{organisation_admin.id}"), 403, "AB03", "more power")
    outside = create_user(admin, "outside-roles")
    expect_error(browser.send("POST", users, {"users": [{"id": outside.id, "role": "admin"}]}), 403, "AB03", "admin")
    # Equals may change each other, and an admin may do all of this.
    expect_ok(browser.send("PUT", f"{users}/{other.id}", {"role": "member"}))
    expect_ok(sign_in(admin, organisation_admin).send("PUT", f"{users}/{other.id}", {"role": "admin"}))


def test_organisation_key_with_few_scopes_cannot_demote_or_delete_an_admin(admin: Client):
    organisation_admin = create_user(admin, "boss-organisation", "admin", "admin")
    scopes = ["organisation_users.update", "organisation_users.delete"]
    few = Client(
        admin.gateway, admin.create("/v1/api-keys/organisation/service", {"name": "f", "scopes": scopes})["key"]
    )
    expect_error(few.put(f"/v1/admin/users/{organisation_admin.id}", {"role": "member"}), 403, "AB03")
    expect_error(few.delete(f"/v1/admin/users/{organisation_admin.id}"), 403, "AB03")
    expect_ok(admin.delete(f"/v1/admin/users/{organisation_admin.id}"))


def test_open_invitations_end_with_the_power_of_who_sent_them(admin: Client):
    organisation_admin = create_user(admin, "boss-invites", "admin", "admin")
    invited = {"email": "late@example.test", "role": "admin", "workspaces": []}
    link = expect_ok(sign_in(admin, organisation_admin).send("POST", "/v1/admin/users/invites", invited))["invite_link"]
    expect_ok(admin.put(f"/v1/admin/users/{organisation_admin.id}", {"role": "member"}))
    body = {"token": link.rpartition("=")[2], "first_name": "A", "last_name": "B", "password": PASSWORD}
    expect_error(Client(admin.gateway, "").post("/v1/auth/invites", body), 404, "AB08")


def test_refused_requests_leave_bounded_rows_in_the_audit_log(admin: Client):
    no_match = Client(admin.gateway, "no-such-key")
    expect_error(no_match.get("/v1/configs?token=secret-of-a-stranger"), 401, "AB05")
    expect_error(BrowserClient(admin.gateway).sign_in(email="x@example.test", password="wrong" * 3), 401, "AB05")
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    few = admin.with_new_key(workspace_id=workspace, scopes=["configs.list"])
    expect_error(few.post("/v1/configs", {"name": "a", "config": {}}), 403, "AB03")
    expected = {
        ("anonymous", "/v1/configs"),
        ("anonymous", "/v1/auth/sessions"),
        ("api_key", "/v1/configs"),
    }

    def read_rows() -> list[dict[str, Any]] | None:
        rows = audit_rows(admin, action="refuse")
        return rows if {(row["user_type"], row["uri"]) for row in rows} >= expected else None

    rows = wait_for("the rows of the refusals", read_rows, 20)
    assert {row["response_status_code"] for row in rows} == {401, 403}
    assert "secret-of-a-stranger" not in str(rows)


@pytest.mark.parametrize("path", RESERVED_PATHS)
def test_paths_of_missing_features_are_never_forwarded(admin: Client, path: str):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    caller = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        for key in (admin.key, caller.key, ""):
            headers = {**JSON_HEADERS, "x-gateway-provider": "mock", **({"x-gateway-api-key": key} if key else {})}
            response = send_raw_request(admin.gateway.base_url, path, b"{}", headers, method=method)
            assert response.status in {404, 501}, (method, path, response)
            assert response.json()["success"] is False, (method, path, response)
            assert response.get_header("x-should-retry") == "false" or response.status == 404


def test_body_of_a_stranger_is_not_collected(admin: Client):
    body = b'{"name": "' + b"x" * 1_000_000 + b'"}'
    response = send_raw_request(admin.gateway.base_url, "/v1/configs", body, JSON_HEADERS)
    expect_error(response, 401, "AB05")


@pytest.mark.parametrize("path", ["/v1/configs", "/v1/workspaces", "/v1/auth/sessions"])
def test_deep_documents_get_400(admin: Client, path: str):
    # Callers without credentials may send only small bodies.
    depth = 1200 if path == "/v1/auth/sessions" else 50_000
    for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        headers = {**JSON_HEADERS, "x-gateway-api-key": admin.key}
        response = send_raw_request(admin.gateway.base_url, path, b'{"name": ' + deep + b"}", headers)
        expect_error(response, 400, "AB01", "deep")
    text = {"name": "x", "config": '{"a":' * 50_000 + "1" + "}" * 50_000}
    if path == "/v1/configs":
        workspace = admin.read("/v1/workspaces")["data"][0]["id"]
        expect_error(admin.post(path, {**text, "workspace_id": workspace}), 400, "AB01", "deep")
