"""Browser sessions and JWTs as an alternative to API keys, over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import OctKey, RSAKey

from tests.integration.management_client import ADMIN_KEY, Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory
    from tests.integration.raw_http import Response

# Leaves out the PostgreSQL variants: rights are decided before the store, and unit tests cover both databases.
ONE_STORE = True

PASSWORD = "a password of twelve"
SESSIONS, SELF = "/v1/auth/sessions", "/v1/auth/self"


@dataclass
class BrowserClient:
    """Client that authenticates with a session cookie, as a page of the console does."""

    gateway: Gateway
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: object = None, **changes: str) -> Response:
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {**JSON_HEADERS, **self.headers, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return send_raw_request(
            self.gateway.base_url, path, sent, {name: text for name, text in fields.items() if text}, method=method
        )

    def sign_in(self, **body: str) -> Response:
        response = self.send("POST", SESSIONS, body)
        if response.status == 200:
            cookie = response.get_header("set-cookie") or ""
            self.headers = {"cookie": cookie.split(";")[0], "x-csrf-token": response.json()["csrf_token"]}
        return response


@dataclass(frozen=True)
class CreatedUser:
    id: str
    email: str
    workspace: dict[str, Any]


def create_user(admin: Client, name: str, role: str = "member", org_role: str = "member") -> CreatedUser:
    workspace = admin.create("/v1/workspaces", {"name": name})
    email = f"{name}@example.test"
    invited = {"email": email, "role": org_role, "workspaces": [{"id": workspace["id"], "role": role}]}
    token = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    body = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
    return CreatedUser(expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", body))["id"], email, workspace)


def test_admin_key_signs_in_and_its_session_has_the_keys_scopes(admin: Client):
    browser = BrowserClient(admin.gateway)
    response = browser.sign_in(api_key=ADMIN_KEY)
    cookie = (response.get_header("set-cookie") or "").lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert "secure" not in cookie
    me = expect_ok(browser.send("GET", SELF))
    assert (me["by"], me["user"], me["csrf_token"]) == ("session", None, browser.headers["x-csrf-token"])
    assert "workspaces.create" in me["scopes"]
    assert expect_ok(browser.send("POST", "/v1/workspaces", {"name": "by session"}))["name"] == "by session"
    assert ADMIN_KEY not in str(response)
    behind_tls = BrowserClient(admin.gateway).send("POST", SESSIONS, {"api_key": ADMIN_KEY}, x_forwarded_proto="https")
    assert "secure" in (behind_tls.get_header("set-cookie") or "").lower()


def test_requires_the_csrf_token_for_changes_but_not_for_reads(admin: Client):
    browser = BrowserClient(admin.gateway)
    browser.sign_in(api_key=ADMIN_KEY)
    for wrong in ("", "0" * 64):
        expect_error(
            browser.send("POST", "/v1/workspaces", {"name": "forged"}, x_csrf_token=wrong), 403, "AB03", "x-csrf-token"
        )
        expect_error(browser.send("DELETE", SESSIONS, x_csrf_token=wrong), 403, "AB03", "x-csrf-token")
    assert browser.send("GET", "/v1/workspaces", x_csrf_token="").status == 200


def test_sign_out_or_key_deletion_ends_the_session(admin: Client):
    key = admin.create("/v1/api-keys/organisation/service", {"name": "console", "scopes": ["workspaces.list"]})
    item, other = BrowserClient(admin.gateway), BrowserClient(admin.gateway)
    for browser in (item, other):
        browser.sign_in(api_key=key["key"])
        assert browser.send("GET", "/v1/workspaces").status == 200
        expect_error(browser.send("GET", "/v1/admin/users"), 403, "AB03")
        assert expect_ok(browser.send("GET", SELF))["api_key_id"] == key["id"]
    assert expect_ok(item.send("DELETE", SESSIONS)) == {}
    expect_error(item.send("GET", "/v1/workspaces"), 401, "AB05", "sign in again")
    assert other.send("GET", "/v1/workspaces").status == 200
    expect_ok(admin.delete(f"/v1/api-keys/{key['id']}"))
    expect_error(other.send("GET", "/v1/workspaces"), 401, "AB05")


def test_user_signs_in_by_password_with_the_permissions_of_the_roles(admin: Client):
    member = create_user(admin, "anna")
    browser = BrowserClient(admin.gateway)
    expect_ok(browser.sign_in(email=member.email.upper(), password=PASSWORD))
    me = expect_ok(browser.send("GET", SELF))
    assert (me["user"]["id"], me["user"]["email"], me["user"]["role"]) == (member.id, member.email, "member")
    assert me["api_key_id"] is None
    (mine,) = me["workspaces"]
    assert (mine["id"], mine["role"]) == (member.workspace["id"], "member")
    workspace = f"/v1/configs?workspace_id={member.workspace['id']}"
    assert browser.send("GET", workspace).status == 200
    body = {"name": "c", "config": {"provider": "mock"}, "workspace_id": member.workspace["id"]}
    expect_error(browser.send("POST", "/v1/configs", body), 403, "AB03", "configs.create")
    expect_error(browser.send("GET", "/v1/admin/users"), 403, "AB03")
    elsewhere = admin.create("/v1/workspaces", {"name": "not hers"})["id"]
    expect_error(browser.send("GET", f"/v1/configs?workspace_id={elsewhere}"), 403, "AB03")
    expect_ok(admin.put(f"/v1/workspaces/{member.workspace['id']}/users/{member.id}", {"role": "manager"}))
    assert expect_ok(browser.send("POST", "/v1/configs", body))["slug"]
    expect_error(browser.send("PUT", f"/v1/admin/users/{member.id}", {"role": "admin"}), 403, "AB03")
    expect_ok(admin.put(f"/v1/admin/users/{member.id}", {"role": "admin"}))
    assert browser.send("GET", "/v1/admin/users").status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{member.id}"))
    expect_error(browser.send("GET", SELF), 401, "AB05")


def test_wrong_password_and_unknown_email_get_the_same_error(admin: Client):
    member = create_user(admin, "berta")
    browser = BrowserClient(admin.gateway)
    responses = [browser.sign_in(email=email, password="wrong" * 3) for email in (member.email, "nobody@example.test")]
    for response in responses:
        expect_error(response, 401, "AB05")
    assert responses[0].json() == responses[1].json()
    for _ in range(9):
        expect_error(browser.sign_in(email=member.email, password="wrong" * 3), 401, "AB05")
    # Failures delay further attempts, but do not lock the person out.
    expect_ok(browser.sign_in(email=member.email, password=PASSWORD))


def test_sign_in_rejects_pages_of_other_origins_and_bodies_that_are_not_json(admin: Client):
    browser = BrowserClient(admin.gateway)
    own = "http://gateway.test"
    for fields in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"{own}:8080"},
        {"origin": own, "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        expect_error(browser.send("POST", SESSIONS, {"api_key": ADMIN_KEY}, **fields), 403, "AB03", "origin")
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = browser.send("POST", SESSIONS, {"api_key": ADMIN_KEY}, content_type=content_type)
        expect_error(response, 400, "AB01", "application/json")
    same = {"origin": own, "sec_fetch_site": "same-origin", "content_type": "application/json; charset=utf-8"}
    assert browser.send("POST", SESSIONS, {"api_key": ADMIN_KEY}, **same).status == 200


@pytest.mark.parametrize(
    "fields", [{}, {"email": "a@b.test"}, {"api_key": "x", "email": "a@b.test"}, {"password": "x"}, {"name": "x"}]
)
def test_rejects_incomplete_or_mixed_sign_in_fields(admin: Client, fields: dict[str, str]):
    expect_error(BrowserClient(admin.gateway).sign_in(**fields), 400, "AB01")


def test_workspace_key_cannot_sign_in(admin: Client):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["configs.list"]).key
    expect_error(BrowserClient(admin.gateway).sign_in(api_key=key), 403, "AB03")
    expect_error(BrowserClient(admin.gateway).sign_in(api_key="nobody"), 401, "AB05")


def test_password_change_ends_all_other_sessions(admin: Client):
    member = create_user(admin, "carla")
    item, other = BrowserClient(admin.gateway), BrowserClient(admin.gateway)
    for browser in (item, other):
        expect_ok(browser.sign_in(email=member.email, password=PASSWORD))
    change = {"current_password": "wrong" * 3, "new_password": PASSWORD + "!"}
    expect_error(item.send("PUT", "/v1/auth/password", change), 401, "AB05")
    expect_ok(item.send("PUT", "/v1/auth/password", {**change, "current_password": PASSWORD}))
    assert item.send("GET", SELF).status == 200
    expect_error(other.send("GET", SELF), 401, "AB05")
    expect_error(other.sign_in(email=member.email, password=PASSWORD), 401, "AB05")
    expect_ok(other.sign_in(email=member.email, password=PASSWORD + "!"))


def test_session_routes_reject_a_bare_api_key(admin: Client):
    for method, path in (("GET", SELF), ("DELETE", SESSIONS), ("PUT", "/v1/auth/password")):
        body = {"current_password": "x", "new_password": PASSWORD} if method == "PUT" else None
        expect_error(admin.send(method, path, body), 403, "AB03", "API key alone")
    expect_error(Client(admin.gateway, "").get(SELF), 401, "AB05")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class MockIdentityProvider:
    """Identity provider that publishes its public keys as a JWK set."""

    url: str
    keys: dict[str, RSAKey] = field(default_factory=dict)
    request_count: int = 0

    def add_key(self, kid: str) -> None:
        self.keys[kid] = RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})

    def encode_jwks(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()


@contextlib.contextmanager
def serve_jwks() -> Iterator[MockIdentityProvider]:
    issuer = MockIdentityProvider("")

    class JwksHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.request_count += 1
            content = issuer.encode_jwks()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), JwksHandler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_address[1]}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()


@dataclass
class TokenGateway:
    """Gateway that accepts tokens of an identity provider."""

    admin: Client
    issuer: MockIdentityProvider
    workspace: dict[str, Any]

    def sign_token(self, kid: str = "one", header: Mapping[str, Any] | None = None, **changes: object) -> str:
        claims: dict[str, Any] = {
            "organisation_id": self.workspace["organisation_id"],
            "workspace_slug": self.workspace["slug"],
            "scope": "completions.write configs.list configs.create",
            "exp": int(time.time()) + 300,
            "sub": "machine-7",
            **changes,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        head = {"alg": "RS256", "kid": kid, "typ": "JWT", **(header or {})}
        head = {name: value for name, value in head.items() if value}
        return jws.serialize_compact(head, json.dumps(claims), self.issuer.keys[kid], algorithms=["RS256"])

    def send_management_request(self, path: str = "/v1/configs", **changes: Any) -> Response:
        return Client(self.admin.gateway, self.sign_token(**changes)).get(path)

    def send_chat(self, token: str) -> Response:
        fields = {**JSON_HEADERS, "x-gateway-provider": "mock", "authorization": f"Bearer {token}"}
        return send_raw_request(self.admin.gateway.base_url, CHAT_PATH, chat_body(), fields)


# Identity provider whose keys are inline in the settings. Its key has the same id as a key of the other provider.
SECOND_ISSUER = MockIdentityProvider("")
SECOND_ISSUER.add_key("one")


@pytest.fixture(scope="module")
def token_gateway(
    provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TokenGateway]:
    folder = tmp_path_factory.mktemp("tokens")
    with serve_jwks() as issuer:
        issuer.add_key("one")
        rules = {"enabled": True, "jwks_url": issuer.url, "leeway_seconds": 5, "refresh_seconds": 1}
        other = {"issuer": "other", "audience": "us", "jwks": SECOND_ISSUER.encode_jwks().decode()}
        tables = {"mock": {"host": provider.url}, "jwt": rules, "issuers": [other]}
        with run_gateway(folder, tables, env=new_store(folder)) as gateway:
            admin = Client(gateway)
            workspace = TokenGateway(admin, issuer, admin.create("/v1/workspaces", {"name": "tokens"}))
            wait_for("the keys", lambda: workspace.send_chat(workspace.sign_token()).status == 200 or None, 5)
            yield workspace


def test_token_grants_model_and_management_access_by_its_scopes(token_gateway: TokenGateway, provider: Mock):
    token = token_gateway.sign_token()
    assert token_gateway.send_chat(token).status == 200
    assert token not in json.dumps(provider.ledger())
    assert Client(token_gateway.admin.gateway, token).get("/v1/configs").status == 200
    expect_error(Client(token_gateway.admin.gateway, token).get("/v1/virtual-keys"), 403, "AB03", "virtual_keys.list")
    me = expect_ok(Client(token_gateway.admin.gateway, token).get(SELF))
    assert (me["by"], me["user"], me["csrf_token"]) == ("token", None, None)
    body = {"name": "by token", "config": {"provider": "mock"}}
    assert expect_ok(Client(token_gateway.admin.gateway, token).post("/v1/configs", body))["slug"]
    for scopes in ("portkey.completions.write", ["completions.write"]):
        assert token_gateway.send_chat(token_gateway.sign_token(scope=None, scopes=scopes)).status == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"exp": 1}, 401),
        ({"exp": None}, 401),
        ({"nbf": 4_000_000_000}, 401),
        ({"organisation_id": "nobody"}, 401),
        ({"organisation_id": None}, 401),
        ({"sub": None}, 401),
        ({"workspace_slug": "ws-nowhere"}, 403),
        ({"scope": "logs.write"}, 403),
        ({"scope": None}, 403),
        ({"scope": None, "scopes": 5}, 403),
        ({"header": {"typ": None}}, 401),
        ({"header": {"kid": "two"}}, 401),
        ({"header": {"kid": None}}, 401),
    ],
)
def test_both_planes_reject_an_invalid_token_with_the_same_status(
    token_gateway: TokenGateway, changes: dict[str, Any], status: int
):
    assert token_gateway.send_management_request(**changes).status == status
    assert token_gateway.send_chat(token_gateway.sign_token(**changes)).status == status


def test_both_planes_reject_tokens_of_a_removed_user_until_reinvited(token_gateway: TokenGateway):
    admin = token_gateway.admin
    gone = create_user(admin, "departing")
    by_email, by_id = {"email_id": gone.email.title()}, {"sub": gone.id}
    assert [token_gateway.send_chat(token_gateway.sign_token(**content)).status for content in (by_email, by_id)] == [
        200,
        200,
    ]
    known = token_gateway.sign_token(**by_email)
    assert token_gateway.send_chat(known).status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{gone.id}"))
    # Read-your-write: the response to the change waits until the workers have applied it.
    assert [token_gateway.send_chat(token).status for token in (known, token_gateway.sign_token(**by_id))] == [401, 401]
    assert [token_gateway.send_management_request(**content).status for content in (by_email, by_id)] == [401, 401]
    assert token_gateway.send_chat(token_gateway.sign_token()).status == 200
    create_user(admin, "departing")
    wait_for(
        "the user that is back",
        lambda: token_gateway.send_chat(token_gateway.sign_token(**by_email)).status == 200 or None,
        5,
    )
    assert token_gateway.send_chat(token_gateway.sign_token(**by_id)).status == 401


def test_rejects_tokens_of_a_removed_member_until_added_again(token_gateway: TokenGateway):
    admin = token_gateway.admin
    elsewhere = admin.create("/v1/workspaces", {"name": "elsewhere"})
    remaining = create_user(admin, "leaving")
    path = f"/v1/admin/workspaces/{token_gateway.workspace['id']}/users"

    def chat_statuses() -> list[int]:
        ways = (
            {"email_id": remaining.email.title()},
            {"sub": remaining.id},
            {"sub": remaining.id, "workspace_slug": elsewhere["slug"]},
        )
        return [token_gateway.send_chat(token_gateway.sign_token(**content)).status for content in ways]

    for _ in range(2):
        expect_ok(admin.post(path, {"users": [{"id": remaining.id, "role": "member"}]}))
        assert chat_statuses() == [200, 200, 200]
        expect_ok(admin.delete(f"{path}/{remaining.id}"))
        # The change applies at once, because its response waits for the workers.
        assert chat_statuses() == [403, 403, 200]
    # An admin of the organisation has access to every workspace.
    expect_ok(admin.put(f"/v1/admin/users/{remaining.id}", {"role": "admin"}))
    assert chat_statuses() == [200, 200, 200]


def test_rate_limits_of_tokens_are_enforced_in_the_data_plane(token_gateway: TokenGateway):
    limits = [{"type": "requests", "unit": "rpm", "value": 2}]
    statuses = [token_gateway.send_chat(token_gateway.sign_token(rate_limits=limits)).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert token_gateway.send_management_request(rate_limits=limits).status == 200
    assert token_gateway.send_management_request(rate_limits=[{**limits[0], "unit": "rpy"}]).status == 401
    assert token_gateway.send_chat(token_gateway.sign_token(rate_limits=[])).status == 200


@pytest.mark.parametrize(
    "bounds",
    [
        {"usage_limits": [{"credit_limit": 5}]},
        {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 3}]},
        {"defaults": {"config_id": "pc-x", "allow_config_override": False}},
    ],
)
def test_restricted_token_cannot_create_unrestricted_keys(token_gateway: TokenGateway, bounds: dict[str, object]):
    body = {"name": "free", "scopes": ["completions.write"]}
    scope = "completions.write workspace_service_api_keys.create"
    path = "/v1/api-keys/workspace/service"
    token = token_gateway.sign_token(scope=scope, **bounds)
    expect_error(Client(token_gateway.admin.gateway, token).post(path, body), 403, "AB03", "makes and changes no keys")
    created = expect_ok(Client(token_gateway.admin.gateway, token_gateway.sign_token(scope=scope)).post(path, body))[
        "id"
    ]
    # The user of the token is unknown, so the key expires with the token, after five minutes.
    assert token_gateway.admin.read(f"/v1/api-keys/{created}")["expiry_enforced"] == 1


def test_each_issuer_is_checked_against_its_own_settings(token_gateway: TokenGateway):
    second = TokenGateway(token_gateway.admin, SECOND_ISSUER, token_gateway.workspace)
    for says, status in (({"iss": "other", "aud": ["us"]}, 200), ({"iss": "other"}, 401), ({}, 401)):
        assert second.send_management_request(**says).status == status
        assert second.send_chat(second.sign_token(**says)).status == status
    # The first issuer has no `issuer` or `audience` setting, so any `iss` and `aud` are accepted.
    assert token_gateway.send_chat(token_gateway.sign_token(iss="other", aud="us")).status == 200


def test_token_defaults_apply_to_its_requests(token_gateway: TokenGateway, provider: Mock):
    workspace = {"workspace_id": token_gateway.workspace["id"]}
    config = {"provider": "mock", "api_key": "sk-of-the-config"}
    created = token_gateway.admin.create("/v1/configs", {"name": "of tokens", "config": config, **workspace})
    defaults = {"config_id": created["slug"], "allow_config_override": False}
    url = token_gateway.admin.gateway.base_url

    def send_with_defaults(content: object, **more: str) -> Response:
        return send_raw_request(
            url,
            CHAT_PATH,
            chat_body(),
            {**JSON_HEADERS, "x-gateway-api-key": token_gateway.sign_token(defaults=content), **more},
        )

    wait_for("the config", lambda: send_with_defaults(defaults).status == 200 or None, 3)
    assert provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-of-the-config"
    assert send_with_defaults({**defaults, "config_id": created["id"]}).status == 200
    own = {"x-gateway-config": '{"provider": "mock"}'}
    assert (
        send_with_defaults(defaults, **own).status,
        send_with_defaults({"config_id": created["slug"]}, **own).status,
    ) == (400, 200)
    for wrong in ("pc-1", [], {"config_id": 5}):
        assert send_with_defaults(wrong).status == 401
        assert token_gateway.send_management_request(defaults=wrong).status == 401


def test_config_of_a_token_limits_the_model_list(token_gateway: TokenGateway):
    admin, workspace = token_gateway.admin, {"workspace_id": token_gateway.workspace["id"]}
    for slug in ("listed", "unlisted"):
        admin.create(
            "/v1/integrations", {"name": slug, "slug": slug, "ai_provider_id": "mock", "key": "sk-1", **workspace}
        )
        rows = [{"slug": f"m-{slug}", "enabled": True, "is_custom": True}]
        expect_ok(admin.put(f"/v1/integrations/{slug}/models", {"models": rows, "allow_all_models": False}))
    config = {"name": "narrow", "config": {"provider": "@listed"}, **workspace}
    slug = admin.create("/v1/configs", config)["slug"]
    other = {"x-gateway-config": '{"provider":"@unlisted","fetch_integrated_models":true}'}

    def list_models(content: dict[str, Any] | None, headers: dict[str, str] | None = None) -> set[str]:
        client = Client(admin.gateway, token_gateway.sign_token(defaults=content), headers or {})
        actual = {model["id"] for model in client.read("/v1/models")["data"]}
        return actual & {"@listed/m-listed", "@unlisted/m-unlisted", "m-listed", "m-unlisted"}

    assert list_models(None) == {"@listed/m-listed", "@unlisted/m-unlisted"}
    # Where the config of the caller names one provider, the names have no prefix.
    assert list_models({"config_id": slug}) == {"m-listed"}
    assert list_models({"config_id": slug}, other) == {"@unlisted/m-unlisted"}
    assert list_models({"config_id": slug, "allow_config_override": False}, other) == {"m-listed"}


def test_accepts_an_expired_token_within_the_leeway(token_gateway: TokenGateway):
    late = token_gateway.sign_token(exp=int(time.time()) - 2)
    assert token_gateway.send_chat(late).status == 200
    assert Client(token_gateway.admin.gateway, late).get("/v1/configs").status == 200


def test_rejects_unsigned_and_public_key_signed_tokens(token_gateway: TokenGateway):
    _, claims, signature = token_gateway.sign_token().split(".")
    head = "eyJhbGciOiJub25lIiwia2lkIjoib25lIiwidHlwIjoiSldUIn0"
    content = jws.extract_compact(token_gateway.sign_token().encode()).payload
    # Signed with the public key as if it were a shared secret.
    public = token_gateway.issuer.keys["one"].as_dict(private=False)["n"]
    key = OctKey.import_key(public)
    shared = jws.serialize_compact({"alg": "HS256", "kid": "one", "typ": "JWT"}, content, key)
    for forged in (f"{head}.{claims}.", f"{head}.{claims}.{signature}", shared):
        assert token_gateway.send_chat(forged).status == 401
        expect_error(Client(token_gateway.admin.gateway, forged).get("/v1/configs"), 401, "AB05")


def test_token_of_a_user_is_limited_by_the_users_role(token_gateway: TokenGateway):
    member = create_user(token_gateway.admin, "dora")
    for claim in ("email_id", "uid"):
        who = {"sub": None, claim: member.email if claim == "email_id" else member.id}
        token = token_gateway.sign_token(workspace_slug=member.workspace["slug"], **who)
        body = {"name": "c", "config": {"provider": "mock"}}
        expect_error(Client(token_gateway.admin.gateway, token).post("/v1/configs", body), 403, "AB03")
        assert Client(token_gateway.admin.gateway, token).get("/v1/configs").status == 200
        assert expect_ok(Client(token_gateway.admin.gateway, token).get(SELF))["user"]["id"] == member.id
        expect_error(
            Client(token_gateway.admin.gateway, token_gateway.sign_token(**who)).get("/v1/configs"), 403, "AB03"
        )
    outside = token_gateway.sign_token(
        workspace_slug=None, sub=member.email, scope="organisation_users.list configs.list"
    )
    expect_error(Client(token_gateway.admin.gateway, outside).get("/v1/admin/users"), 403, "AB03")
    assert expect_ok(Client(token_gateway.admin.gateway, outside).get(SELF))["scopes"] == []
    expect_error(token_gateway.send_management_request(workspace_slug=None), 403, "AB03", "no workspace")


def test_refreshes_added_and_removed_signing_keys(token_gateway: TokenGateway):
    token_gateway.issuer.add_key("next")
    wait_for("the new key", lambda: token_gateway.send_chat(token_gateway.sign_token("next")).status == 200 or None, 5)
    assert token_gateway.send_management_request(kid="next").status == 200
    old = token_gateway.sign_token("one")
    published = token_gateway.issuer.keys.pop("one")
    wait_for("the old key's end", lambda: token_gateway.send_chat(old).status == 401 or None, 5)
    wait_for(
        "its end there too",
        lambda: Client(token_gateway.admin.gateway, old).get("/v1/configs").status == 401 or None,
        5,
    )
    token_gateway.issuer.keys["one"] = published
    wait_for("the old key", lambda: token_gateway.send_chat(old).status == 200 or None, 5)


def test_ignores_a_signing_key_that_is_too_short(token_gateway: TokenGateway):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        token_gateway.issuer.keys["weak"] = RSAKey.generate_key(1024, {"kid": "weak"})
    received = token_gateway.issuer.request_count
    wait_for("another look", lambda: token_gateway.issuer.request_count > received + 1 or None, 5)
    assert token_gateway.send_chat(token_gateway.sign_token("weak")).status == 401
    assert token_gateway.send_management_request(kid="weak").status == 401
    del token_gateway.issuer.keys["weak"]


def test_provider_token_with_a_gateway_key_goes_to_the_provider(token_gateway: TokenGateway, provider: Mock):
    key = token_gateway.admin.with_new_key(workspace_id=token_gateway.workspace["id"], scopes=["completions.write"]).key
    token_gateway.issuer.keys["theirs"] = RSAKey.generate_key(2048, {"kid": "theirs"})
    theirs = token_gateway.sign_token("theirs")
    del token_gateway.issuer.keys["theirs"]
    fields = {
        **JSON_HEADERS,
        "x-gateway-provider": "mock",
        "authorization": f"Bearer {theirs}",
        "x-gateway-api-key": key,
    }

    def is_accepted() -> bool | None:
        return (
            send_raw_request(token_gateway.admin.gateway.base_url, CHAT_PATH, chat_body(), fields).status == 200 or None
        )

    wait_for("the key", is_accepted, 3)
    assert any(theirs in json.dumps(entry) for entry in provider.ledger())


def test_returns_503_for_tokens_until_signing_keys_are_fetched(provider: Mock, new_store: StoreFactory, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "jwt": {"enabled": True, "jwks_url": "http://127.0.0.1:1/keys"}}
    with run_gateway(tmp_path, tables, env=new_store(tmp_path)) as gateway:
        admin = Client(gateway)
        created = TokenGateway(admin, SECOND_ISSUER, admin.read("/v1/workspaces")["data"][0])
        for response in (created.send_chat(created.sign_token()), created.send_management_request()):
            assert (response.status, response.get_header("retry-after")) == (503, "1")
        # With a gateway key in the request, the token may be a provider's own token.
        key = admin.with_new_key(workspace_id=created.workspace["id"], scopes=["completions.write"]).key
        bearer = {**JSON_HEADERS, "x-gateway-provider": "mock", "authorization": f"Bearer {created.sign_token()}"}
        for field in ("x-gateway-api-key", "x-api-key"):
            assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**bearer, field: key}).status == 200


def test_restart_reuses_stored_signing_keys_if_the_issuer_is_down(
    provider: Mock, new_store: StoreFactory, tmp_path: Path
):
    env = new_store(tmp_path)
    with serve_jwks() as issuer:
        issuer.add_key("one")
        tables = {"mock": {"host": provider.url}, "jwt": {"enabled": True, "jwks_url": issuer.url}}
        with run_gateway(tmp_path, tables, env=env) as gateway:
            admin = Client(gateway)
            created = TokenGateway(admin, issuer, admin.read("/v1/workspaces")["data"][0])
            wait_for("the keys", lambda: created.send_chat(created.sign_token()).status == 200 or None, 5)
            time.sleep(0.3)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        again = TokenGateway(Client(gateway), issuer, created.workspace)
        assert again.send_chat(again.sign_token()).status == 200
        assert again.send_management_request().status == 200
