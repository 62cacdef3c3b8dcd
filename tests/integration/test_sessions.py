"""Sessions and tokens in the place of keys, over HTTP, on both databases."""

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

from tests.integration.managed import ADMIN_KEY, Client, expect_error, expect_ok
from tests.integration.serving import run_gateway
from tests.integration.wire import CHAT, JSON, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory
    from tests.integration.wire import Answer

PASSWORD = "a password of twelve"
SESSIONS, SELF = "/v1/auth/sessions", "/v1/auth/self"


@dataclass
class Browser:
    """Calls with a cookie, as a page of the console does."""

    gateway: Gateway
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object = None, **changes: str) -> Answer:
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {**JSON, **self.headers, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return ask(
            self.gateway.base_url, path, sent, {name: text for name, text in fields.items() if text}, method=method
        )

    def sign_in(self, **given: str) -> Answer:
        answer = self.ask("POST", SESSIONS, given)
        if answer.status == 200:
            cookie = answer.get("set-cookie") or ""
            self.headers = {"cookie": cookie.split(";")[0], "x-csrf-token": answer.json()["csrf_token"]}
        return answer


@dataclass(frozen=True)
class Person:
    id: str
    email: str
    workspace: dict[str, Any]


def person(admin: Client, name: str, role: str = "member", org_role: str = "member") -> Person:
    workspace = admin.create("/v1/workspaces", {"name": name})
    email = f"{name}@example.test"
    invited = {"email": email, "role": org_role, "workspaces": [{"id": workspace["id"], "role": role}]}
    token = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    given = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
    return Person(expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", given))["id"], email, workspace)


def test_an_admin_key_signs_in_and_the_session_may_what_the_key_may(admin: Client):
    browser = Browser(admin.gateway)
    answer = browser.sign_in(api_key=ADMIN_KEY)
    cookie = (answer.get("set-cookie") or "").lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert "secure" not in cookie
    me = expect_ok(browser.ask("GET", SELF))
    assert (me["by"], me["user"], me["csrf_token"]) == ("session", None, browser.headers["x-csrf-token"])
    assert "workspaces.create" in me["scopes"]
    assert expect_ok(browser.ask("POST", "/v1/workspaces", {"name": "by session"}))["name"] == "by session"
    assert ADMIN_KEY not in str(answer)
    behind_tls = Browser(admin.gateway).ask("POST", SESSIONS, {"api_key": ADMIN_KEY}, x_forwarded_proto="https")
    assert "secure" in (behind_tls.get("set-cookie") or "").lower()


def test_a_change_without_the_csrf_token_is_refused_and_a_read_is_not(admin: Client):
    browser = Browser(admin.gateway)
    browser.sign_in(api_key=ADMIN_KEY)
    for wrong in ("", "0" * 64):
        expect_error(
            browser.ask("POST", "/v1/workspaces", {"name": "forged"}, x_csrf_token=wrong), 403, "AB03", "x-csrf-token"
        )
        expect_error(browser.ask("DELETE", SESSIONS, x_csrf_token=wrong), 403, "AB03", "x-csrf-token")
    assert browser.ask("GET", "/v1/workspaces", x_csrf_token="").status == 200


def test_who_signs_out_is_out_and_a_key_that_goes_takes_its_sessions_along(admin: Client):
    made = admin.create("/v1/api-keys/organisation/service", {"name": "console", "scopes": ["workspaces.list"]})
    one, other = Browser(admin.gateway), Browser(admin.gateway)
    for browser in (one, other):
        browser.sign_in(api_key=made["key"])
        assert browser.ask("GET", "/v1/workspaces").status == 200
        expect_error(browser.ask("GET", "/v1/admin/users"), 403, "AB03")
    assert expect_ok(one.ask("DELETE", SESSIONS)) == {}
    expect_error(one.ask("GET", "/v1/workspaces"), 401, "AB05", "sign in again")
    assert other.ask("GET", "/v1/workspaces").status == 200
    expect_ok(admin.delete(f"/v1/api-keys/{made['id']}"))
    expect_error(other.ask("GET", "/v1/workspaces"), 401, "AB05")


def test_a_person_signs_in_with_a_password_and_may_what_the_roles_allow(admin: Client):
    member = person(admin, "anna")
    browser = Browser(admin.gateway)
    expect_ok(browser.sign_in(email=member.email.upper(), password=PASSWORD))
    me = expect_ok(browser.ask("GET", SELF))
    assert (me["user"]["id"], me["user"]["email"], me["user"]["role"]) == (member.id, member.email, "member")
    (mine,) = me["workspaces"]
    assert (mine["id"], mine["role"]) == (member.workspace["id"], "member")
    place = f"/v1/configs?workspace_id={member.workspace['id']}"
    assert browser.ask("GET", place).status == 200
    body = {"name": "c", "config": {"provider": "mock"}, "workspace_id": member.workspace["id"]}
    expect_error(browser.ask("POST", "/v1/configs", body), 403, "AB03", "configs.create")
    expect_error(browser.ask("GET", "/v1/admin/users"), 403, "AB03")
    elsewhere = admin.create("/v1/workspaces", {"name": "not hers"})["id"]
    expect_error(browser.ask("GET", f"/v1/configs?workspace_id={elsewhere}"), 403, "AB03")
    expect_ok(admin.put(f"/v1/workspaces/{member.workspace['id']}/users/{member.id}", {"role": "manager"}))
    assert expect_ok(browser.ask("POST", "/v1/configs", body))["slug"]
    expect_error(browser.ask("PUT", f"/v1/admin/users/{member.id}", {"role": "admin"}), 403, "AB03")
    expect_ok(admin.put(f"/v1/admin/users/{member.id}", {"role": "admin"}))
    assert browser.ask("GET", "/v1/admin/users").status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{member.id}"))
    expect_error(browser.ask("GET", SELF), 401, "AB05")


def test_a_wrong_password_is_told_like_a_wrong_address_and_guessing_ends(admin: Client):
    member = person(admin, "berta")
    browser = Browser(admin.gateway)
    answers = [browser.sign_in(email=email, password="wrong" * 3) for email in (member.email, "nobody@example.test")]
    for answer in answers:
        expect_error(answer, 401, "AB05")
    assert answers[0].json() == answers[1].json()
    for _ in range(9):
        expect_error(browser.sign_in(email=member.email, password="wrong" * 3), 401, "AB05")
    blocked = browser.sign_in(email=member.email, password=PASSWORD)
    expect_error(blocked, 429, "AB06")
    assert blocked.get("retry-after") == "60"


@pytest.mark.parametrize(
    "given", [{}, {"email": "a@b.test"}, {"api_key": "x", "email": "a@b.test"}, {"password": "x"}, {"name": "x"}]
)
def test_who_signs_in_says_one_thing_or_the_other(admin: Client, given: dict[str, str]):
    expect_error(Browser(admin.gateway).sign_in(**given), 400, "AB01")


def test_a_key_of_a_workspace_does_not_sign_in(admin: Client):
    place = admin.read("/v1/workspaces")["data"][0]["id"]
    key = admin.with_new_key(workspace_id=place, scopes=["configs.list"]).key
    expect_error(Browser(admin.gateway).sign_in(api_key=key), 403, "AB03")
    expect_error(Browser(admin.gateway).sign_in(api_key="nobody"), 401, "AB05")


def test_another_password_ends_all_other_sessions(admin: Client):
    member = person(admin, "carla")
    one, other = Browser(admin.gateway), Browser(admin.gateway)
    for browser in (one, other):
        expect_ok(browser.sign_in(email=member.email, password=PASSWORD))
    change = {"current_password": "wrong" * 3, "new_password": PASSWORD + "!"}
    expect_error(one.ask("PUT", "/v1/auth/password", change), 401, "AB05")
    expect_ok(one.ask("PUT", "/v1/auth/password", {**change, "current_password": PASSWORD}))
    assert one.ask("GET", SELF).status == 200
    expect_error(other.ask("GET", SELF), 401, "AB05")
    expect_error(other.sign_in(email=member.email, password=PASSWORD), 401, "AB05")
    expect_ok(other.sign_in(email=member.email, password=PASSWORD + "!"))


def test_an_api_key_alone_is_nobody(admin: Client):
    for method, path in (("GET", SELF), ("DELETE", SESSIONS), ("PUT", "/v1/auth/password")):
        body = {"current_password": "x", "new_password": PASSWORD} if method == "PUT" else None
        expect_error(admin.send(method, path, body), 403, "AB03", "API key alone")
    expect_error(Client(admin.gateway, "").get(SELF), 401, "AB05")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Issuer:
    """An identity provider that publishes its keys."""

    url: str
    keys: dict[str, RSAKey] = field(default_factory=dict)
    asked: int = 0

    def new_key(self, kid: str) -> None:
        self.keys[kid] = RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})

    def published(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()


@contextlib.contextmanager
def publishing() -> Iterator[Issuer]:
    issuer = Issuer("")

    class Keys(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            content = issuer.published()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Keys) as server:
        issuer.url = f"http://127.0.0.1:{server.server_address[1]}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()


@dataclass
class Tokened:
    """A gateway that takes the tokens of an issuer."""

    admin: Client
    issuer: Issuer
    workspace: dict[str, Any]

    def token(self, kid: str = "one", header: Mapping[str, Any] | None = None, **changes: object) -> str:
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

    def manages(self, path: str = "/v1/configs", **changes: Any) -> Answer:
        return Client(self.admin.gateway, self.token(**changes)).get(path)

    def calls(self, token: str) -> Answer:
        fields = {**JSON, "x-gateway-provider": "mock", "authorization": f"Bearer {token}"}
        return ask(self.admin.gateway.base_url, CHAT, asked(), fields)


# An identity provider whose keys are in the settings; it has one by the same name as the other.
SECOND = Issuer("")
SECOND.new_key("one")


@pytest.fixture(scope="module")
def tokened(provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokened]:
    folder = tmp_path_factory.mktemp("tokens")
    with publishing() as issuer:
        issuer.new_key("one")
        rules = {"enabled": True, "jwks_url": issuer.url, "leeway_seconds": 5, "refresh_seconds": 1}
        other = {"issuer": "other", "audience": "us", "jwks": SECOND.published().decode()}
        tables = {"mock": {"host": provider.url}, "jwt": rules, "issuers": [other]}
        with run_gateway(folder, tables, env=new_store(folder)) as gateway:
            admin = Client(gateway)
            made = Tokened(admin, issuer, admin.create("/v1/workspaces", {"name": "tokens"}))
            wait("the keys", lambda: made.calls(made.token()).status == 200 or None, 5)
            yield made


def test_a_token_calls_models_and_manages_what_its_scopes_say(tokened: Tokened, provider: Mock):
    token = tokened.token()
    assert tokened.calls(token).status == 200
    assert token not in json.dumps(provider.ledger())
    assert Client(tokened.admin.gateway, token).get("/v1/configs").status == 200
    expect_error(Client(tokened.admin.gateway, token).get("/v1/virtual-keys"), 403, "AB03", "virtual_keys.list")
    me = expect_ok(Client(tokened.admin.gateway, token).get(SELF))
    assert (me["by"], me["user"], me["csrf_token"]) == ("token", None, None)
    body = {"name": "by token", "config": {"provider": "mock"}}
    assert expect_ok(Client(tokened.admin.gateway, token).post("/v1/configs", body))["slug"]
    for scopes in ("portkey.completions.write", ["completions.write"]):
        assert tokened.calls(tokened.token(scope=None, scopes=scopes)).status == 200


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
def test_a_token_that_is_not_good_is_refused_alike_by_both_planes(
    tokened: Tokened, changes: dict[str, Any], status: int
):
    assert tokened.manages(**changes).status == status
    assert tokened.calls(tokened.token(**changes)).status == status


def test_a_token_of_who_was_taken_out_is_refused_by_both_planes_until_they_are_invited_again(tokened: Tokened):
    admin = tokened.admin
    gone = person(admin, "departing")
    by_email, by_id = {"email_id": gone.email.title()}, {"sub": gone.id}
    assert [tokened.calls(tokened.token(**said)).status for said in (by_email, by_id)] == [200, 200]
    known = tokened.token(**by_email)
    assert tokened.calls(known).status == 200
    expect_ok(admin.delete(f"/v1/admin/users/{gone.id}"))
    # Read-your-write: the answer to the change is held until the workers go by it.
    assert [tokened.calls(token).status for token in (known, tokened.token(**by_id))] == [401, 401]
    assert [tokened.manages(**said).status for said in (by_email, by_id)] == [401, 401]
    assert tokened.calls(tokened.token()).status == 200
    person(admin, "departing")
    wait("whoever is back", lambda: tokened.calls(tokened.token(**by_email)).status == 200 or None, 5)
    assert tokened.calls(tokened.token(**by_id)).status == 401


def test_a_token_of_who_was_taken_out_of_its_workspace_calls_no_models_there_until_they_are_in_again(tokened: Tokened):
    admin = tokened.admin
    elsewhere = admin.create("/v1/workspaces", {"name": "elsewhere"})
    left = person(admin, "leaving")
    path = f"/v1/admin/workspaces/{tokened.workspace['id']}/users"

    def called() -> list[int]:
        ways = (
            {"email_id": left.email.title()},
            {"sub": left.id},
            {"sub": left.id, "workspace_slug": elsewhere["slug"]},
        )
        return [tokened.calls(tokened.token(**said)).status for said in ways]

    for _ in range(2):
        expect_ok(admin.post(path, {"users": [{"id": left.id, "role": "member"}]}))
        assert called() == [200, 200, 200]
        expect_ok(admin.delete(f"{path}/{left.id}"))
        # Read-your-write, as above.
        assert called() == [403, 403, 200]
    # Whoever leads the organisation is in every workspace.
    expect_ok(admin.put(f"/v1/admin/users/{left.id}", {"role": "admin"}))
    assert called() == [200, 200, 200]


def test_a_token_with_limits_is_refused_where_they_would_count(tokened: Tokened):
    limits = [{"type": "requests", "unit": "rpm", "value": 5}]
    expect_error(tokened.calls(tokened.token(rate_limits=limits)), 403, "AB03", "rate_limits")
    assert tokened.manages(rate_limits=limits).status == 200
    assert tokened.manages(rate_limits=[{**limits[0], "unit": "rpy"}]).status == 401
    assert tokened.calls(tokened.token(rate_limits=[])).status == 200


@pytest.mark.parametrize(
    "bounds",
    [
        {"usage_limits": [{"credit_limit": 5}]},
        {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 3}]},
        {"defaults": {"config_id": "pc-x", "allow_config_override": False}},
    ],
)
def test_a_token_that_is_bound_makes_no_key_that_is_not(tokened: Tokened, bounds: dict[str, object]):
    body = {"name": "free", "scopes": ["completions.write"]}
    scope = "completions.write workspace_service_api_keys.create"
    path = "/v1/api-keys/workspace/service"
    token = tokened.token(scope=scope, **bounds)
    expect_error(Client(tokened.admin.gateway, token).post(path, body), 403, "AB03", "makes and changes no keys")
    made = expect_ok(Client(tokened.admin.gateway, tokened.token(scope=scope)).post(path, body))["id"]
    # Nobody knows who that was, but that it is good for five minutes.
    assert tokened.admin.read(f"/v1/api-keys/{made}")["expiry_enforced"] == 1


def test_a_second_issuer_speaks_for_itself(tokened: Tokened):
    second = Tokened(tokened.admin, SECOND, tokened.workspace)
    for says, status in (({"iss": "other", "aud": ["us"]}, 200), ({"iss": "other"}, 401), ({}, 401)):
        assert second.manages(**says).status == status
        assert second.calls(second.token(**says)).status == status
    # The first says nothing of itself, and so may speak as anybody.
    assert tokened.calls(tokened.token(iss="other", aud="us")).status == 200


def test_what_a_token_has_by_default_its_requests_have(tokened: Tokened, provider: Mock):
    place = {"workspace_id": tokened.workspace["id"]}
    config = {"provider": "mock", "api_key": "sk-of-the-config"}
    made = tokened.admin.create("/v1/configs", {"name": "of tokens", "config": config, **place})
    defaults = {"config_id": made["slug"], "allow_config_override": False}
    url = tokened.admin.gateway.base_url

    def call(said: object, **more: str) -> Answer:
        return ask(url, CHAT, asked(), {**JSON, "x-gateway-api-key": tokened.token(defaults=said), **more})

    wait("the config", lambda: call(defaults).status == 200 or None, 3)
    assert provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-of-the-config"
    assert call({**defaults, "config_id": made["id"]}).status == 200
    own = {"x-gateway-config": '{"provider": "mock"}'}
    assert (call(defaults, **own).status, call({"config_id": made["slug"]}, **own).status) == (400, 200)
    for wrong in ("pc-1", [], {"config_id": 5}):
        assert call(wrong).status == 401
        assert tokened.manages(defaults=wrong).status == 401


def test_the_config_of_a_token_says_whose_models_are_listed(tokened: Tokened):
    admin, place = tokened.admin, {"workspace_id": tokened.workspace["id"]}
    for slug in ("listed", "unlisted"):
        admin.create("/v1/integrations", {"name": slug, "slug": slug, "ai_provider_id": "mock", "key": "sk-1", **place})
        rows = [{"slug": "m", "enabled": True, "is_custom": True}]
        expect_ok(admin.put(f"/v1/integrations/{slug}/models", {"models": rows, "allow_all_models": False}))
    config = {"name": "narrow", "config": {"provider": "@listed"}, **place}
    slug = admin.create("/v1/configs", config)["slug"]
    other = {"x-gateway-config": '{"provider":"@unlisted","fetch_integrated_models":true}'}

    def listed(said: dict[str, Any] | None, headers: dict[str, str] | None = None) -> set[str]:
        client = Client(admin.gateway, tokened.token(defaults=said), headers or {})
        return {model["id"] for model in client.read("/v1/models")["data"]} & {"@listed/m", "@unlisted/m"}

    assert listed(None) == {"@listed/m", "@unlisted/m"}
    assert listed({"config_id": slug}) == {"@listed/m"}
    assert listed({"config_id": slug}, other) == {"@unlisted/m"}
    assert listed({"config_id": slug, "allow_config_override": False}, other) == {"@listed/m"}


def test_leeway_is_given_to_clocks_that_differ(tokened: Tokened):
    late = tokened.token(exp=int(time.time()) - 2)
    assert tokened.calls(late).status == 200
    assert Client(tokened.admin.gateway, late).get("/v1/configs").status == 200


def test_a_token_that_anybody_could_have_signed_is_refused(tokened: Tokened):
    _, claims, signature = tokened.token().split(".")
    head = "eyJhbGciOiJub25lIiwia2lkIjoib25lIiwidHlwIjoiSldUIn0"
    said = jws.extract_compact(tokened.token().encode()).payload
    # Signed with what everybody can read as if it were a shared secret.
    public = tokened.issuer.keys["one"].as_dict(private=False)["n"]
    key = OctKey.import_key(public)
    shared = jws.serialize_compact({"alg": "HS256", "kid": "one", "typ": "JWT"}, said, key)
    for forged in (f"{head}.{claims}.", f"{head}.{claims}.{signature}", shared):
        assert tokened.calls(forged).status == 401
        expect_error(Client(tokened.admin.gateway, forged).get("/v1/configs"), 401, "AB05")


def test_a_person_with_a_token_may_no_more_than_the_role_allows(tokened: Tokened):
    member = person(tokened.admin, "dora")
    for claim in ("email_id", "uid"):
        who = {"sub": None, claim: member.email if claim == "email_id" else member.id}
        token = tokened.token(workspace_slug=member.workspace["slug"], **who)
        body = {"name": "c", "config": {"provider": "mock"}}
        expect_error(Client(tokened.admin.gateway, token).post("/v1/configs", body), 403, "AB03")
        assert Client(tokened.admin.gateway, token).get("/v1/configs").status == 200
        assert expect_ok(Client(tokened.admin.gateway, token).get(SELF))["user"]["id"] == member.id
        expect_error(Client(tokened.admin.gateway, tokened.token(**who)).get("/v1/configs"), 403, "AB03")
    outside = tokened.token(workspace_slug=None, sub=member.email, scope="organisation_users.list configs.list")
    expect_error(Client(tokened.admin.gateway, outside).get("/v1/admin/users"), 403, "AB03")
    assert expect_ok(Client(tokened.admin.gateway, outside).get(SELF))["scopes"] == []
    expect_error(tokened.manages(workspace_slug=None), 403, "AB03", "no workspace")


def test_keys_that_are_new_are_learned_and_those_that_are_gone_forgotten(tokened: Tokened):
    tokened.issuer.new_key("next")
    wait("the new key", lambda: tokened.calls(tokened.token("next")).status == 200 or None, 5)
    assert tokened.manages(kid="next").status == 200
    old = tokened.token("one")
    published = tokened.issuer.keys.pop("one")
    wait("the old key's end", lambda: tokened.calls(old).status == 401 or None, 5)
    wait("its end there too", lambda: Client(tokened.admin.gateway, old).get("/v1/configs").status == 401 or None, 5)
    tokened.issuer.keys["one"] = published
    wait("the old key", lambda: tokened.calls(old).status == 200 or None, 5)


def test_a_key_that_is_too_short_is_none(tokened: Tokened):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        tokened.issuer.keys["weak"] = RSAKey.generate_key(1024, {"kid": "weak"})
    seen = tokened.issuer.asked
    wait("another look", lambda: tokened.issuer.asked > seen + 1 or None, 5)
    assert tokened.calls(tokened.token("weak")).status == 401
    assert tokened.manages(kid="weak").status == 401
    del tokened.issuer.keys["weak"]


def test_a_token_of_a_provider_beside_a_gateway_key_goes_to_the_provider(tokened: Tokened, provider: Mock):
    key = tokened.admin.with_new_key(workspace_id=tokened.workspace["id"], scopes=["completions.write"]).key
    tokened.issuer.keys["theirs"] = RSAKey.generate_key(2048, {"kid": "theirs"})
    theirs = tokened.token("theirs")
    del tokened.issuer.keys["theirs"]
    fields = {**JSON, "x-gateway-provider": "mock", "authorization": f"Bearer {theirs}", "x-gateway-api-key": key}

    def look() -> bool | None:
        return ask(tokened.admin.gateway.base_url, CHAT, asked(), fields).status == 200 or None

    wait("the key", look, 3)
    assert any(theirs in json.dumps(entry) for entry in provider.ledger())


def test_while_an_identity_provider_was_never_reached_no_token_is_said_to_be_wrong(
    provider: Mock, new_store: StoreFactory, tmp_path: Path
):
    tables = {"mock": {"host": provider.url}, "jwt": {"enabled": True, "jwks_url": "http://127.0.0.1:1/keys"}}
    with run_gateway(tmp_path, tables, env=new_store(tmp_path)) as gateway:
        admin = Client(gateway)
        made = Tokened(admin, SECOND, admin.read("/v1/workspaces")["data"][0])
        for answer in (made.calls(made.token()), made.manages()):
            assert (answer.status, answer.get("retry-after")) == (503, "1")
        # It may be a provider's too, where a key stands beside it.
        key = admin.with_new_key(workspace_id=made.workspace["id"], scopes=["completions.write"]).key
        bearer = {**JSON, "x-gateway-provider": "mock", "authorization": f"Bearer {made.token()}"}
        for field in ("x-gateway-api-key", "x-api-key"):
            assert ask(gateway.base_url, CHAT, asked(), {**bearer, field: key}).status == 200


def test_keys_that_were_known_are_good_after_a_restart_while_nobody_publishes_them(
    provider: Mock, new_store: StoreFactory, tmp_path: Path
):
    env = new_store(tmp_path)
    with publishing() as issuer:
        issuer.new_key("one")
        tables = {"mock": {"host": provider.url}, "jwt": {"enabled": True, "jwks_url": issuer.url}}
        with run_gateway(tmp_path, tables, env=env) as gateway:
            admin = Client(gateway)
            made = Tokened(admin, issuer, admin.read("/v1/workspaces")["data"][0])
            wait("the keys", lambda: made.calls(made.token()).status == 200 or None, 5)
            time.sleep(0.3)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        again = Tokened(Client(gateway), issuer, made.workspace)
        assert again.calls(again.token()).status == 200
        assert again.manages().status == 200
