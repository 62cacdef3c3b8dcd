"""Who may do what, for every route of the description: by role, by kind of key, by workspace, and with tricks in the path."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from penstock import authorization as rights
from penstock import resources
from penstock.app import create_documented_app, openapi_json
from tests.integration.managed import ADMIN_KEY, Client, good
from tests.integration.needed import NEEDED
from tests.integration.wire import ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.wire import Answer

HEALTH = {"/health", "/v1/health", "/admin/health", "/v1/admin/health"}
OPEN = {*HEALTH, "/v1/version", "/metrics", "/dataservice/metrics", "/v1/auth/invites", "/v1/auth/sessions"} | {
    prefix + path
    for prefix in ("", "/v1")
    for path in (
        "/pricing/{file}",
        "/model-configs/pricing/{provider}/{model}",
        "/model-configs/general/{provider}/{model}",
    )
}
SPAN = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
NUMBERS = itertools.count(1)
VERBS = ("get", "post", "put", "delete")
PASSWORD = "a password of twelve"
# A scope for each kind of key that no route here asks for, or hardly one.
USELESS = {"organisation-service": "plugins.list", "organisation-user": "analytics.view"}
NEW_KEY = {"name": "k", "scopes": ["completions.write"]}
CONFIG = {"name": "c", "config": {"provider": "mock"}}
VIRTUAL_KEY = {"name": "p", "provider": "openai", "key": "sk-0123456789"}
INTEGRATION = {"name": "i", "ai_provider_id": "mock", "key": "sk-0123456789"}
CUSTOM_MODEL = {"slug": "mine", "enabled": True, "is_custom": True}
VAULT = {"vault_addr": "https://vault.example.test", "vault_auth_type": "token", "vault_token": "t-0123456789"}
SECRET = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": VAULT, "secret_path": "a/b"}


# Their roles in `here` and in the organisation.
OWNER = "the owner"
PEOPLE: dict[str, tuple[str | None, str]] = {
    "a member": ("member", "member"),
    "a manager": ("manager", "member"),
    "an admin of the workspace": ("admin", "member"),
    "an admin of the organisation": ("member", "admin"),
    OWNER: (None, "owner"),
}
SIGNER = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"})
TABLES = {
    "jwt": {
        "enabled": True,
        "algorithms": ["ES256"],
        "jwks": json.dumps({"keys": [SIGNER.as_dict(private=False)]}),
    }
}


class Route(NamedTuple):
    method: str
    path: str
    needs: frozenset[str] | None

    @property
    def id(self) -> str:
        return f"{self.method} {self.path}"


def required() -> dict[tuple[str, str], frozenset[str] | None]:
    """The scopes of every route, as the running application has them; none where a person must be signed in."""
    found: dict[tuple[str, str], frozenset[str] | None] = {}
    for route in create_documented_app().routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            scopes = next((guard.scopes for guard in guards if isinstance(guard, rights.RequireScopes)), None)
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            found |= {(method.lower(), path): scopes for method in handler.http_methods}
    return found


def routes() -> list[Route]:
    """Every route of the description that is not open to everyone."""
    described = json.loads(openapi_json())["paths"]
    return [
        Route(verb.upper(), path, NEEDED.get(f"{verb.upper()} {bare(path)}") or None)
        for path, item in sorted(described.items())
        for verb in VERBS
        # Files and batches are asked with keys that call models; test_batches.py asks them.
        if verb in item and path not in OPEN and not resources.uses_openai_errors(path)
    ]


def bare(path: str) -> str:
    """A path without the prefixes under which the same route is too."""
    return re.sub(r"^(/v1)?(/v2)?(/admin)?/", "/", path).replace("integration-models", "models")


ROUTES = routes()
# Each under the first of its names.
EACH = list({(route.method, bare(route.path)): route for route in reversed(ROUTES)}.values())[::-1]
OTHERWISE = [route for route in ROUTES if route not in EACH]


class Scene:
    """Two workspaces with something of each kind, and callers of each kind."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self.owner = admin.shown("/v1/admin/users?role=owner")["data"][0]["id"]
        self.organisation = admin.shown("/v1/workspaces")["data"][0]["organisation_id"]
        self.here, self.there = (admin.made("/v1/workspaces", {"name": name}) for name in ("here", "there"))
        self.people = {name: self._person(name, *roles) for name, roles in PEOPLE.items() if name != OWNER}
        # Who was there from the beginning is invited to sign in with a password, and stays what they are.
        self.people[OWNER] = self._person(OWNER, None, "admin", admin.shown(f"/v1/admin/users/{self.owner}")["email"])
        assert self.people[OWNER] == self.owner
        self.callers = self._callers() | self._tokens()

    def _person(self, name: str, role: str | None, org_role: str, email: str = "") -> str:
        invited = {
            "email": email or f"{name.replace(' ', '.')}@example.test",
            "role": org_role,
            "workspaces": [{"id": self.here["id"], "role": role}] if role else [],
        }
        token = self.admin.made("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
        given = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
        return good(Client(self.admin.gateway, "").post("/v1/auth/invites", given))["id"]

    def _callers(self) -> dict[str, tuple[Mapping[str, str], rights.Caller | None]]:
        """How each shows itself, and what it may do in `here`; nobody may do nothing."""
        found: dict[str, tuple[Mapping[str, str], rights.Caller | None]] = {
            "nobody": ({}, None),
            "an unknown key": ({"x-gateway-api-key": "x" * 48}, None),
            "a cookie that is none": (
                {"cookie": f"{rights.SESSION_COOKIE}=abc", rights.CSRF_HEADER: rights.csrf_token("abc")},
                None,
            ),
        }
        for kind, scopes in rights.SCOPES_BY_KEY_TYPE.items():
            is_organisations = kind.startswith("organisation")
            useless = {USELESS.get(kind, "completions.write")}
            for place in (None,) if is_organisations else (self.here, self.there):
                for some in (scopes, useless):
                    body: dict[str, Any] = {"name": "k", "scopes": sorted(some)}
                    fields: dict[str, Any] = {
                        "id": "k",
                        "type": kind,
                        "organisation_id": "o",
                        "scopes": frozenset(some),
                    }
                    if place:
                        body["workspace_id"] = fields["workspace_id"] = place["id"]
                    user = self.people["a manager"] if kind.endswith("user") else None
                    if user and place is self.there:
                        members = f"/v1/workspaces/{place['id']}/users"
                        self.admin.post(members, {"users": [{"id": user, "role": "member"}]})
                    if user:
                        body["user_id"] = fields["user_id"] = user
                        fields |= {
                            "org_role": "member",
                            "roles": {self.here["id"]: "manager", self.there["id"]: "member"},
                        }
                    made = self.admin.made(f"/v1/api-keys/{kind.replace('-', '/')}", body)
                    where = f" of {place['name']}" if place else ""
                    what = "all scopes" if some is scopes else "a scope of no use"
                    found[f"{kind}{where} with {what}"] = (
                        {"x-gateway-api-key": made["key"]},
                        rights.Caller(**fields),
                    )
        for name, user in self.people.items():
            found[name] = (self._signed_in(user), self._as_person(name, user))
        return found

    def _tokens(self) -> dict[str, tuple[Mapping[str, str], rights.Caller | None]]:
        """Tokens of an identity provider: of people who are known here, and of machines that are not."""
        found: dict[str, tuple[Mapping[str, str], rights.Caller | None]] = {}
        everything = " ".join(sorted(rights.ALL_SCOPES))
        for place in (self.here, self.there):
            said = {"sub": "machine-7", "workspace_slug": place["slug"], "scope": everything}
            scopes = rights.ALL_SCOPES & rights.user_scopes(None)
            known = rights.Caller(
                id="t", type="token", organisation_id="o", workspace_id=place["id"], scopes=scopes, by="token"
            )
            found[f"a token of {place['name']}"] = (self._token(said), known)
        for name, scope in (("a member", everything), (OWNER, "logs.list")):
            person = self._as_person(name, self.people[name])
            narrow = msgspec.structs.replace(
                person, scopes=person.scopes & set(scope.split()), type="token", by="token"
            )
            found[f"a token of {name}"] = (self._token({"sub": self.people[name], "scope": scope}), narrow)
        expired = {"sub": self.owner, "scope": everything, "exp": 1}
        return {**found, "an old token of the owner": (self._token(expired), None)}

    def _token(self, said: Mapping[str, object]) -> Mapping[str, str]:
        claims = {"organisation_id": self.organisation, "exp": int(time.time()) + 3600, **said}
        head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
        text = jws.serialize_compact(head, json.dumps(claims), SIGNER, algorithms=["ES256"])
        return {"authorization": f"Bearer {text}"}

    def _signed_in(self, user: str) -> Mapping[str, str]:
        email = self.admin.shown(f"/v1/admin/users/{user}")["email"]
        answer = Client(self.admin.gateway, "").post("/v1/auth/sessions", {"email": email, "password": PASSWORD})
        cookie = (answer.get("set-cookie") or "").split(";")[0]
        return {"cookie": cookie, "x-csrf-token": good(answer)["csrf_token"]}

    def _as_person(self, name: str, user: str) -> rights.Caller:
        role, org_role = PEOPLE[name]
        return rights.Caller(
            id=user,
            type="person",
            organisation_id="o",
            user_id=user,
            by="session",
            scopes=rights.user_scopes(org_role),
            org_role=org_role,
            roles={self.here["id"]: role} if role else {},
        )

    def fill(self, route: Route) -> tuple[str, object]:
        """A path to something in `here` that is there, and a body that is good."""
        path, method = bare(route.path), route.method
        values = {"kind": "workspace", "sub_kind": "service", "workspace": self.here["id"]}
        bodies = self._bodies()
        self._make_person(path, method, values, bodies)
        self._make_thing(path, method, values, bodies)
        return route.path.format(**values) + self._query(path, method), bodies.get(f"{method} {path}")

    @property
    def place(self) -> dict[str, str]:
        return {"workspace_id": self.here["id"]}

    def _query(self, path: str, method: str) -> str:
        if path == "/audit-logs":
            return f"?{SPAN}&organisation_id={self.organisation}"
        is_list = path in {"/configs", "/virtual-keys", "/providers", "/api-keys", "/integrations"} and method == "GET"
        return (
            f"?workspace_id={self.here['id']}" if is_list or path.startswith(("/providers/", "/virtual-keys/")) else ""
        )

    def _bodies(self) -> dict[str, object]:
        limits = {"name": "renamed"}
        return {
            "POST /api-keys/{kind}/{sub_kind}": {**NEW_KEY, **self.place},
            "PUT /api-keys/{key_id}": limits,
            "POST /api-keys/{key_id}/rotate": {},
            "POST /configs": {**CONFIG, **self.place},
            "PUT /configs/{key}": limits,
            "POST /virtual-keys": {**VIRTUAL_KEY, **self.place},
            "PUT /virtual-keys/{key}": limits,
            "PUT /providers/{key}": limits,
            "PUT /organisation/settings": {"user_api_key_rotation_period": None},
            "PUT /organisation/defaults": {"input_guardrails": []},
            "POST /users/invites": self._invitation(),
            "PUT /users/{user_id}": {"role": "member"},
            "POST /workspaces": {"name": "made"},
            "PUT /workspaces/{workspace}": {"description": "changed"},
            "DELETE /workspaces/{workspace}": {"name": self.here["name"], "force_delete": True},
            "PUT /workspaces/{workspace}/users/{user_id}": {"role": "manager"},
            "POST /integrations": {**INTEGRATION, **self.place},
            "PUT /integrations/{key}": limits,
            "PUT /integrations/{key}/models": {"models": [CUSTOM_MODEL]},
            "DELETE /integrations/{key}/models": {"models": ["mine"]},
            "PUT /integrations/{key}/workspaces": {"workspaces": [{"id": self.here["id"], "enabled": True}]},
            "POST /secret-references": SECRET,
            "PUT /secret-references/{key}": limits,
            "PUT /auth/password": {"current_password": PASSWORD, "new_password": PASSWORD},
        }

    def _invitation(self) -> dict[str, object]:
        return {"email": f"guest{next(NUMBERS)}@example.test", "role": "member", "workspaces": []}

    def _make_person(self, path: str, method: str, values: dict[str, str], bodies: dict[str, object]) -> None:
        if "{user_id}" in path:
            values["user_id"] = self._person(f"victim {next(NUMBERS)}", "member", "member")
        if path == "/workspaces/{workspace}/users" and method == "POST":
            outside = self._person(f"victim {next(NUMBERS)}", None, "member")
            bodies["POST /workspaces/{workspace}/users"] = {"users": [{"id": outside, "role": "member"}]}
        if "{invite_id}" in path:
            values["invite_id"] = self.admin.made("/v1/admin/users/invites", self._invitation())["id"]

    def _make_thing(self, path: str, method: str, values: dict[str, str], bodies: dict[str, object]) -> None:
        made, place = self.admin.made, self.place
        match path.split("/")[1:]:
            case ["providers"] if method == "POST":
                owned = made("/v1/integrations", {**INTEGRATION, **place})["slug"]
                bodies["POST /providers"] = {"name": "p", "integration_id": owned, **place}
            case ["api-keys", "{key_id}", *_]:
                values["key_id"] = made("/v1/api-keys/workspace/service", {**NEW_KEY, **place})["id"]
            case ["configs", _, *_]:
                values["key"] = made("/v1/configs", {**CONFIG, **place})["slug"]
            case ["virtual-keys" | "providers", _, *_]:
                values["key"] = made("/v1/virtual-keys", {**VIRTUAL_KEY, **place})["slug"]
            case ["workspaces", "{workspace}"] if method == "DELETE":
                values["workspace"] = made("/v1/workspaces", {"name": "inner"})["id"]
                bodies["DELETE /workspaces/{workspace}"] = {"name": "inner", "force_delete": True}
            case ["integrations", _, *below]:
                # Only those of the organisation are given to workspaces.
                whose = {} if (method, below) == ("PUT", ["workspaces"]) else place
                values["key"] = made("/v1/integrations", {**INTEGRATION, **whose})["slug"]
                if below == ["models"]:
                    good(self.admin.put(f"/v1/integrations/{values['key']}/models", {"models": [CUSTOM_MODEL]}))
            case ["secret-references", _]:
                values["key"] = made("/v1/secret-references", SECRET)["slug"]
            case ["models", _]:
                values["model"] = f"@{made('/v1/virtual-keys', {**VIRTUAL_KEY, **place})['slug']}/gpt-4o"
            case _:
                pass

    def ask(self, name: str, route: Route, path: str, body: object) -> Answer:
        shown, _ = self.callers[name]
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {"content-type": "application/json", **shown}
        return ask(self.admin.gateway.base_url, path, sent, fields, method=route.method)

    def may(self, name: str, route: Route) -> bool:
        """What the rules say, told from the rights alone."""
        _, known = self.callers[name]
        if known is None or route.needs is None:
            return known is not None and known.by != "key"
        # A list of workspaces is narrowed to those that are open to the caller.
        if route.path.endswith("/integrations/{key}/workspaces") and route.method == "PUT":
            return "organisation_integrations.update" in known.granted_scopes(known.workspace_id)
        if route.path.endswith(("/workspaces", "/v1/models")) and "{key}" not in route.path and route.method == "GET":
            return bool(route.needs & known.scopes)
        is_organisations = not any(
            part in route.path
            for part in ("{workspace}", "api-keys", "configs", "keys", "providers", "integrations", "/models/")
        )
        if is_organisations:
            return bool(route.needs & known.granted_scopes(known.workspace_id))
        if known.workspace_id not in {None, self.here["id"]}:
            return False
        return bool(route.needs & known.granted_scopes(self.here["id"]))


@pytest.fixture(scope="module")
def scene(admin: Client) -> Scene:
    return Scene(admin)


def changes(scene: Scene) -> int:
    return scene.admin.shown(f"/v1/audit-logs?{SPAN}&organisation_id={scene.organisation}&page_size=1")["total"]


def test_each_route_asks_for_the_scope_that_is_written_down():
    assert {f"{route.method} {bare(route.path)}" for route in ROUTES} == set(NEEDED)
    asked = required()
    assert {route: asked[route.method.lower(), route.path] for route in ROUTES} == {
        route: route.needs for route in ROUTES
    }


@pytest.mark.parametrize("route", EACH, ids=[route.id for route in EACH])
def test_nobody_succeeds_who_may_not_and_whoever_may_is_noted(scene: Scene, route: Route):
    tried_by_all(scene, route)


@pytest.mark.parametrize("new_store", ["sqlite"], indirect=True, scope="module")
@pytest.mark.parametrize("route", OTHERWISE, ids=[route.id for route in OTHERWISE])
@pytest.mark.usefixtures("new_store")
def test_so_it_is_under_other_names_of_a_route(scene: Scene, route: Route):
    tried_by_all(scene, route)


def tried_by_all(scene: Scene, route: Route) -> None:
    path, body = scene.fill(route)
    before = changes(scene)
    for name in scene.callers:
        if not scene.may(name, route):
            answer = scene.ask(name, route, path, body)
            assert answer.status in {401, 403, 404}, (name, path, answer.status, answer.body)
            assert answer.status == 401 or scene.callers[name][1], (name, answer.status)
    # Who was refused changed nothing.
    assert changes(scene) == before
    allowed = "an admin of the organisation" if route.needs is None else "organisation-service with all scopes"
    answer = scene.ask(allowed, route, path, body)
    assert answer.status == 200, (allowed, path, answer.status, answer.body)
    if route.method != "GET":
        assert changes(scene) > before
    if route.path == "/v1/auth/sessions":
        return
    for name in scene.callers:
        if scene.may(name, route) and route.method == "GET":
            assert scene.ask(name, route, path, body).status == 200, (name, path)


def test_who_is_in_one_workspace_sees_nothing_of_another(scene: Scene):
    theirs = scene.admin.made("/v1/integrations", {**INTEGRATION, "workspace_id": scene.there["id"]})["slug"]
    ours = scene.admin.made("/v1/integrations", {**INTEGRATION, **scene.place})["slug"]
    shown, _ = scene.callers["a member"]

    def look(path: str) -> Answer:
        return ask(scene.admin.gateway.base_url, path, b"", shown, method="GET")

    slugs = {row["slug"] for row in json.loads(look("/v1/integrations?page_size=100").body)["data"]}
    assert ours in slugs
    assert theirs not in slugs
    assert (look(f"/v1/integrations/{ours}").status, look(f"/v1/integrations/{theirs}").status) == (200, 404)


TRICKS = (
    "{path}/",
    "/{path}",
    "{path}//",
    "{path}/.",
    "{path}/..%2f",
    "{path}%2f",
    "{path};a=b",
    "{path}%00",
    "{path}%20",
    "{path}.json",
    "{path}?x-gateway-api-key=" + ADMIN_KEY,
    "{path}?api_key=" + ADMIN_KEY,
    "{upper}",
    "{first}/./{rest}",
    "{first}/x/../{rest}",
    "{first}%2f{rest}",
    "{first}/%2e/{rest}",
    "{first}//{rest}",
    "/v1/health/..{path}",
    "/v1/health/%2e%2e{path}",
    "/schema/..{path}",
    "/v1/health?/..{path}",
    "{path}.",
    "{path}..",
    "{path}..;/",
    "{path}%2e%2e%3b",
    "{path};/",
    "{path}\\",
    "{path}#x",
    "{path}%23x",
    "{path}%3Fx=y",
    "{swapped}",
    "/v1/..{path}",
    "/v1/..;{path}",
    "/v1/../v1{path}",
    "/v1//..{path}",
    "/v1/%2e%2e{path}",
    "/v1%2f..{path}",
    "/v1/health/..;{path}",
    "/v1/health/..;/..;{path}",
    "/v1/models/..{path}",
    "/v1/proxy{path}",
    "/v1/proxy/..{path}",
    "/./{rest}",
    "/v2{path}",
)
FORGED = (
    {"x-forwarded-user": "owner@localhost"},
    {"x-original-url": "/v1/health"},
    {"x-forwarded-for": "127.0.0.1"},
    {"authorization": "Basic YWRtaW46YWRtaW4="},
    {"authorization": "Bearer null"},
    {"x-gateway-api-key": ""},
    {"x-gateway-api-key": "' OR '1'='1"},
    {"x-gateway-api-key": "%"},
    {"x-http-method-override": "GET"},
)


def tricks(path: str) -> Iterator[str]:
    first, _, rest = path[1:].partition("/")
    for trick in TRICKS:
        yield trick.format(path=path, upper=path.upper(), swapped=path.swapcase(), first=f"/{first}", rest=rest)


def test_tricks_with_the_path_and_with_headers_open_nothing(scene: Scene):
    tried = 0
    secret = scene.admin.shown("/v1/admin/users")["data"][0]["id"]
    # What changes something is tried under the first of its names.
    for route in (route for route in ROUTES if route.method == "GET" or route in EACH):
        path, body = scene.fill(route)
        path = path.split("?")[0]
        sent = None if body is None else json.dumps(body).encode()
        base, plain = scene.admin.gateway.base_url, {"content-type": "application/json"} if sent else {}
        before = changes(scene)
        for asked in tricks(path):
            answer = ask(base, asked, sent, plain, method=route.method)
            assert answer.status >= 300 or asked.startswith("/v1/health?"), (route.method, asked, answer.status)
            assert secret.encode() not in answer.body
            tried += 1
        for fields in FORGED:
            answer = ask(base, path, sent, {**plain, **fields}, method=route.method)
            assert answer.status in {400, 401}, (route.method, path, fields, answer.status)
            tried += 1
        assert route.method == "GET" or changes(scene) == before, (route.method, path)
    assert tried > 2000


# Keys that are good, and good for nothing of what is tried: of another workspace, and of this one without the scopes.
WEAK = ("workspace-service of there with a scope of no use", "workspace-user of here with a scope of no use")


@pytest.mark.parametrize("name", WEAK)
def test_tricks_with_the_path_open_nothing_to_a_key_that_may_something_else(scene: Scene, name: str):
    tried = 0
    secret = scene.admin.shown("/v1/admin/users")["data"][0]["id"]
    base, fields = scene.admin.gateway.base_url, {"content-type": "application/json", **scene.callers[name][0]}
    for route in EACH:
        if route.needs is None or scene.may(name, route) or "completions.write" in route.needs:
            continue
        path, body = scene.fill(route)
        path = path.split("?")[0]
        sent = None if body is None else json.dumps(body).encode()
        before = changes(scene)
        for asked in (path, *tricks(path)):
            answer = ask(base, asked, sent, fields, method=route.method)
            assert answer.status >= 300 or asked.startswith("/v1/health?"), (route.method, asked, answer.status)
            assert secret.encode() not in answer.body, (route.method, asked)
            tried += 1
        assert changes(scene) == before, (route.method, path)
    assert tried > 1000


def test_what_is_in_another_workspace_is_as_good_as_not_there(scene: Scene):
    """By id and by slug, below its own name and below the other's, and with the other named in the query."""
    theirs = {"x-gateway-api-key": scene.callers["workspace-service of there with all scopes"][0]["x-gateway-api-key"]}
    place = {"workspace_id": scene.here["id"]}
    config = scene.admin.made("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **place})
    body = {"name": "p", "provider": "openai", "key": "sk-0123456789", **place}
    slug = scene.admin.made("/v1/virtual-keys", body)["slug"]
    key = scene.admin.made("/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], **place})
    for path in (
        f"/v1/configs/{config['id']}",
        f"/v1/configs/{config['slug']}",
        f"/v1/configs/{config['slug']}/versions",
        f"/v1/virtual-keys/{slug}",
        f"/v1/providers/{slug}",
        f"/v1/api-keys/{key['id']}",
        f"/v1/workspaces/{scene.here['slug']}",
        f"/v1/workspaces/{scene.here['id']}/users",
    ):
        for query in ("", f"?workspace_id={scene.here['id']}", f"?workspace_id={scene.there['id']}"):
            for method, sent in (("GET", None), ("PUT", b'{"name":"stolen"}'), ("DELETE", b'{"name":"here"}')):
                fields = {"content-type": "application/json", **theirs}
                answer = ask(scene.admin.gateway.base_url, path + query, sent, fields, method=method)
                assert answer.status in {400, 403, 404, 405}, (method, path, query, answer.status, answer.body)
    listed = ask(scene.admin.gateway.base_url, f"/v1/api-keys?ids={key['id']}", None, theirs, method="GET")
    assert listed.json()["total"] == 0
