"""User invitations over HTTP: create, read, resend, cancel, and accept once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

INVITES_PATH = "/v1/admin/users/invites"
EMAIL_NUMBERS = itertools.count(1)
PASSWORD = "a password of twelve"


@pytest.fixture(scope="module")
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", {"name": "Guests", "settings": {"user_api_key_rotation_period": 9}})


@pytest.fixture
def body(workspace: dict[str, Any]) -> dict[str, Any]:
    email = f"Guest{next(EMAIL_NUMBERS)}@example.test"
    return {"email": email, "role": "member", "workspaces": [{"id": workspace["slug"], "role": "manager"}]}


def token_from_link(link: str) -> str:
    return parse_qs(urlsplit(link).query)["token"][0]


def accept_invite(admin: Client, link: str, **more: object) -> Response:
    body = {"first_name": "Ada", "last_name": "Gast", "password": PASSWORD, **more}
    anonymous = Client(admin.gateway, "")
    return anonymous.post("/v1/auth/invites", {"token": token_from_link(link), **body})


def test_creates_and_reads_an_invitation(admin: Client, body: dict[str, Any]):
    created = admin.create(INVITES_PATH, body)
    assert {"id", "invite_link"} <= set(created)
    fetched = admin.read(f"{INVITES_PATH}/{created['id']}")
    assert (fetched["email"], fetched["role"], fetched["status"]) == (body["email"].lower(), "member", "pending")
    assert (fetched["object"], fetched["accepted_at"]) == ("invite", None)
    assert fetched["expires_at"] > fetched["created_at"]
    assert fetched["invited_by"]
    listed = admin.read(f"{INVITES_PATH}?pageSize=10&currentPage=0&role=member&status=pending&email={body['email']}")
    assert (listed["object"], listed["total"], listed["data"]) == ("list", 1, [fetched])
    assert admin.read(f"{INVITES_PATH}?email={body['email']}&status=accepted")["total"] == 0
    assert token_from_link(created["invite_link"]) not in str(
        admin.read("/v1/audit-logs?" + TIME_RANGE_QUERY + organisation_id(admin))
    )


TIME_RANGE_QUERY = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z&organisation_id="


def organisation_id(admin: Client) -> str:
    return admin.read("/v1/workspaces")["data"][0]["organisation_id"]


def test_accepted_invitation_gives_the_promised_roles_and_keys(admin: Client, body: dict[str, Any]):
    created = admin.create(INVITES_PATH, {**body, "workspace_api_key_details": {"scopes": ["completions.write"]}})
    page = send_raw_request(
        admin.gateway.base_url, f"/v1/auth/invites?token={token_from_link(created['invite_link'])}", headers={}
    )
    assert (page.status, page.get_header("referrer-policy")) == (200, "no-referrer")
    assert "default-src 'none'" in (page.get_header("content-security-policy") or "")
    accepted = expect_ok(accept_invite(admin, created["invite_link"]))
    user = admin.read(f"/v1/admin/users/{accepted['id']}")
    assert (user["first_name"], user["last_name"], user["email"]) == ("Ada", "Gast", body["email"].lower())
    (workspace,) = user["workspace_ids"]
    member = admin.read(f"/v1/workspaces/{workspace}/users/{user['id']}")
    assert (member["role"], member["org_role"]) == ("manager", "member")
    (key,) = accepted["api_keys"]
    assert key["workspace_id"] == workspace
    assert admin.read(f"/v1/api-keys/{key['id']}")["rotation_policy"]["rotation_period_days"] == 9
    headers = {**MOCK_HEADERS, "x-gateway-api-key": key["key"]}
    wait_for(
        "the key",
        lambda: send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers).status == 200 or None,
        3,
    )
    fetched = admin.read(f"{INVITES_PATH}/{created['id']}")
    assert fetched["status"] == "accepted"
    assert fetched["accepted_at"]
    expect_error(accept_invite(admin, created["invite_link"]), 404, "AB08")
    expect_error(admin.delete(f"{INVITES_PATH}/{created['id']}"), 409, "AB07")
    expect_error(admin.post(INVITES_PATH, body), 409, "AB07", "already")


def test_resent_or_cancelled_link_is_invalid(admin: Client, body: dict[str, Any]):
    created = admin.create(INVITES_PATH, body)
    expect_error(admin.post(INVITES_PATH, body), 409, "AB07", "resend")
    again = expect_ok(admin.post(f"{INVITES_PATH}/{created['id']}/resend", None))
    assert set(again) == {"inviteLink"}
    expect_error(accept_invite(admin, created["invite_link"]), 404, "AB08")
    assert expect_ok(admin.delete(f"{INVITES_PATH}/{created['id']}")) == {}
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    noted = admin.read(f"/v1/audit-logs?{span}&organisation_id={organisation}&resource_type=organisation_users")
    actions = [row["action"] for row in noted["records"] if row["resource_id"] == created["id"]]
    assert actions == ["delete", "update", "create"]
    expect_error(accept_invite(admin, again["inviteLink"]), 404, "AB08")
    assert admin.read(f"{INVITES_PATH}/{created['id']}")["status"] == "cancelled"
    expect_error(admin.post(f"{INVITES_PATH}/{created['id']}/resend", None), 409, "AB07")
    # A cancelled invitation can be followed by a new one.
    assert admin.create(INVITES_PATH, body)["id"] != created["id"]


@pytest.mark.parametrize(
    ("change", "status", "code", "word"),
    [
        ({"role": "owner"}, 400, "AB01", "role"),
        ({"email": "nobody"}, 400, "AB01", "email"),
        ({"workspaces": [{"id": "ws-nowhere", "role": "member"}]}, 404, "AB02", "workspaces[0].id"),
        ({"workspaces": [{"id": "x", "role": "king"}]}, 400, "AB01", "role"),
        (
            {"workspace_api_key_details": {"scopes": ["workspaces.delete"]}},
            400,
            "AB01",
            "workspace_api_key_details.scopes[0]",
        ),
        ({"workspace_api_key_details": {"scopes": []}}, 400, "AB01", "scopes"),
    ],
)
def test_rejects_an_invalid_invitation_with_its_json_path(
    admin: Client, body: dict[str, Any], change: dict[str, Any], status: int, code: str, word: str
):
    expect_error(admin.post(INVITES_PATH, {**body, **change}), status, code, word)


@pytest.mark.parametrize("change", [{"password": "short"}, {"first_name": ""}, {"password": "x" * 257}])
def test_acceptance_requires_a_name_and_a_valid_password(admin: Client, body: dict[str, Any], change: dict[str, str]):
    link = admin.create(INVITES_PATH, body)["invite_link"]
    expect_error(accept_invite(admin, link, **change), 400, "AB01", *change)
    expect_ok(accept_invite(admin, link))


def test_cannot_grant_more_than_the_inviting_key_has(admin: Client, body: dict[str, Any]):
    inviter = admin.with_new_key(kind="organisation/service", scopes=["organisation_users.create"])
    expect_error(inviter.post(INVITES_PATH, {**body, "role": "admin"}), 403, "AB03", "does not have that scope")
    expect_error(inviter.post(INVITES_PATH, body), 403, "AB03", "does not have that scope")
    user = admin.read("/v1/admin/users")["data"][0]["id"]
    scopes = ["workspace_users.create", "workspace_users.update"]
    adder = admin.with_new_key(workspace_id=body["workspaces"][0]["id"], scopes=scopes)
    workspace = body["workspaces"][0]["id"]
    expect_error(
        adder.post(f"/v1/workspaces/{workspace}/users", {"users": [{"id": user, "role": "admin"}]}),
        403,
        "AB03",
        "less power",
    )


def test_owner_sets_a_password_by_invitation_and_stays_owner(admin: Client):
    (owner,) = admin.read("/v1/admin/users?role=owner")["data"]
    link = admin.create(INVITES_PATH, {"email": owner["email"], "role": "member", "workspaces": []})["invite_link"]
    assert expect_ok(accept_invite(admin, link))["id"] == owner["id"]
    assert admin.read(f"/v1/admin/users/{owner['id']}")["role"] == "owner"
    expect_error(admin.post(INVITES_PATH, {"email": owner["email"], "role": "member", "workspaces": []}), 409, "AB07")
