"""Authorisation of every documented route: by role, kind of key and workspace, and against path and header tricks."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from joserfc import jws
from joserfc.jwk import ECKey
from sqlalchemy import insert

from penstock import authorization as rights
from penstock import resources
from penstock.app import create_documented_app, openapi_json
from penstock.ids import new_id
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.limit_tables import limit_usage
from tests.integration.management_client import ADMIN_KEY, Client, expect_ok
from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.required_scopes import REQUIRED_SCOPES
from tests.otlp import make_logs, make_span, make_traces
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tests.integration.raw_http import Response

# One test creates the callers for all, and the tests of path tricks send thousands of requests.
pytestmark = pytest.mark.timeout(240)

OPEN_NAMES = ("health", "scopes")
OPEN_PATHS = {
    f"{prefix}/{name}" for prefix in ("", "/v1", "/v2", "/v1/v2", "/admin", "/v1/admin") for name in OPEN_NAMES
}
PUBLIC_PATHS = {
    *OPEN_PATHS,
    "/v1/version",
    "/metrics",
    "/dataservice/metrics",
    "/v1/auth/invites",
    "/v1/auth/sessions",
    # The signature of the link takes the place of a key.
    "/v1/logs/exports/{export_id}/file",
} | {
    prefix + path
    for prefix in ("", "/v1")
    for path in (
        "/pricing/{file}",
        "/model-configs/pricing/{provider}/{model}",
        "/model-configs/general/{provider}/{model}",
    )
}
TIME_RANGE = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
COUNTER = itertools.count(1)
METHODS = ("get", "post", "put", "delete")
PASSWORD = "a password of twelve"
# For each kind of key, a scope that no route (or hardly any) requires.
UNRELATED_SCOPES = {"organisation-service": "plugins.list", "organisation-user": "analytics.view"}
NEW_KEY = {"name": "k", "scopes": ["completions.write"]}
CONFIG = {"name": "c", "config": {"provider": "mock"}}
VIRTUAL_KEY = {"name": "p", "provider": "openai", "key": "sk-0123456789"}
INTEGRATION = {"name": "i", "ai_provider_id": "mock", "key": "sk-0123456789"}
CUSTOM_MODEL = {"slug": "mine", "enabled": True, "is_custom": True}
VAULT_AUTH = {"vault_addr": "https://vault.example", "vault_auth_type": "token", "vault_token": "t-0123456789"}
EXPORT = {"filters": {}, "requested_data": ["id"]}
POLICY = {"conditions": [{"key": "model", "value": "*"}], "group_by": [{"key": "api_key"}], "type": "requests"}
POLICIES: dict[str, dict[str, Any]] = {
    "usage-limits": {**POLICY, "credit_limit": 5},
    "rate-limits": {**POLICY, "unit": "rpm", "value": 5},
}
PROMPT = {"name": "p", "string": "{{a}}", "parameters": {}, "virtual_key": "mock", "model": "m"}
PARTIAL = {"name": "p", "string": "text"}
GUARDRAIL = {"name": "g", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
PARTNER_CREDENTIALS = {"partner": "lakera", "credentials": {"apiKey": "k"}}
SECRET_REFERENCE = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": VAULT_AUTH, "secret_path": "a/b"}
# Routes that append logs and feedback to the log store. They need a caller of one workspace, and no audit log entry
# describes what they write.
INGEST_ROUTES = {
    "POST /feedback",
    "PUT /feedback/{feedback_id}",
    "POST /logs",
    "POST /otel/v1/logs",
    "POST /otel/v1/traces",
}
# Trials of guardrails and limits change nothing, so the audit log has no entry for them.
CLASSIFICATIONS = tuple(f"POST /execute-guardrails/{kind}" for kind in ("gibberish", "language", "pii"))
MODERATIONS = "POST /execute-guardrails/moderations"
TRIAL_ROUTES = {
    "POST /limits/simulate",
    "POST /guardrails/test",
    "POST /guardrails/{key}/test",
    *CLASSIFICATIONS,
    MODERATIONS,
}
# Ingestion takes about a second, and the log worker starts after the gateway.
LOGS_SECONDS = 20
LOG_TRACES = ("trace-of-service", "trace-of-member")
# Lists whose workspace is a parameter.
WORKSPACE_LISTS = {
    *("/configs", "/guardrails", "/virtual-keys", "/providers", "/api-keys", "/integrations"),
    *("/logs/exports", "/logs/exports/field-restrictions"),
    *(f"/policies/{kind}" for kind in POLICIES),
    *("/limits/usage", "/limits/rates", "/limits/refusals", "/limits/unmatched"),
    *("/prompts", "/prompts/partials", "/collections", "/labels"),
}

# Role of each user in the workspace `here` and in the organisation.
OWNER = "the owner"
USER_ROLES: dict[str, tuple[str | None, str]] = {
    "a member": ("member", "member"),
    "a manager": ("manager", "member"),
    "an admin of the workspace": ("admin", "member"),
    "an admin of the organisation": ("member", "admin"),
    OWNER: (None, "owner"),
}
SIGNING_KEY = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"})
# Leaves out the PostgreSQL variants: rights are decided before the store is queried.
ONE_STORE = True
TABLES = {
    "log_store": {"enabled": True},
    # Nothing here depends on the timeouts of the database, and the machine may be busy.
    "store": {"acquire_ms": 10_000, "statement_ms": 20_000},
    "jwt": {
        "enabled": True,
        "algorithms": ["ES256"],
        "jwks": json.dumps({"keys": [SIGNING_KEY.as_dict(private=False)]}),
    },
}


class Route(NamedTuple):
    method: str
    path: str
    # Groups of scopes; the caller needs one of each. `None`: any signed-in user is allowed.
    required_scopes: frozenset[frozenset[str]] | None

    @property
    def id(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def canonical_id(self) -> str:
        return f"{self.method} {canonical_path(self.path)}"

    def accepts(self, scopes: Collection[str]) -> bool:
        """Returns true if these scopes suffice."""
        return all(not group.isdisjoint(scopes) for group in self.required_scopes or ())


def guard_scopes() -> dict[tuple[str, str], frozenset[frozenset[str]] | None]:
    """Returns the groups of scopes that the guards of every route in the running application require; `None` for routes
    that require a signed-in user.
    """
    actual: dict[tuple[str, str], frozenset[frozenset[str]] | None] = {}
    for route in create_documented_app().routes:
        for handler in getattr(route, "route_handlers", ()):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            groups = frozenset(guard.scopes for guard in guards if isinstance(guard, rights.RequireScopes))
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            actual |= {(method.lower(), path): groups or None for method in handler.http_methods}
    return actual


def protected_routes() -> list[Route]:
    """Returns every route of the OpenAPI description that is not public."""
    described = json.loads(openapi_json())["paths"]
    return [
        Route(verb.upper(), path, REQUIRED_SCOPES.get(f"{verb.upper()} {canonical_path(path)}") or None)
        for path, item in sorted(described.items())
        for verb in METHODS
        # Files and batches need keys that call models; test_batches.py covers them.
        if verb in item and path not in PUBLIC_PATHS and not is_of_batches(path)
    ]


def is_of_batches(path: str) -> bool:
    return any(resources.is_path_of(name, path) for name in ("batches", "files"))


def canonical_path(path: str) -> str:
    """Removes the prefixes under which a route has aliases."""
    return re.sub(r"^(/v1)?(/v2)?(/admin)?/", "/", path).replace("integration-models", "models")


ROUTES = protected_routes()
# Each route once, under the first of its paths.
CANONICAL_ROUTES = list({(route.method, canonical_path(route.path)): route for route in reversed(ROUTES)}.values())[
    ::-1
]
ALIAS_ROUTES = [route for route in ROUTES if route not in CANONICAL_ROUTES]
# Graphs differ only in the end of their paths, so path tricks are tried with one of them.
TRICK_ROUTES = [route for route in ROUTES if "/graphs/" not in route.path or route.path.endswith("/graphs/cost")]


class AccessScenario:
    """Two workspaces with objects of each kind, and callers of each kind."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self.owner = admin.read("/v1/admin/users?role=owner")["data"][0]["id"]
        self.organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
        self.here, self.there = (admin.create("/v1/workspaces", {"name": name}) for name in ("here", "there"))
        self.people = {name: self._create_user(name, *roles) for name, roles in USER_ROLES.items() if name != OWNER}
        # The first user is invited too, to set a password, and keeps the role of owner.
        self.people[OWNER] = self._create_user(
            OWNER, None, "admin", admin.read(f"/v1/admin/users/{self.owner}")["email"]
        )
        assert self.people[OWNER] == self.owner
        self.callers = self._key_and_user_callers() | self._token_callers()
        self.token_limit = self._create_token_limit()
        self._create_logs()

    def _create_user(self, name: str, role: str | None, org_role: str, email: str = "") -> str:
        invited = {
            "email": email or f"{name.replace(' ', '.')}@example.test",
            "role": org_role,
            "workspaces": [{"id": self.here["id"], "role": role}] if role else [],
        }
        token = self.admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
        body = {"token": token, "first_name": "A", "last_name": "B", "password": PASSWORD}
        return expect_ok(Client(self.admin.gateway, "").post("/v1/auth/invites", body))["id"]

    def _create_token_limit(self) -> str:
        """Uses a budget that a token carries; returns the id of its limit."""
        content = {"sub": "machine-9", "workspace_slug": self.here["slug"], "scope": "completions.write"}
        budget = {"usage_limits": {"type": "requests", "credit_limit": 5}}
        sent = {**JSON_HEADERS, **self._token_headers({**content, **budget}), "x-gateway-provider": "mock"}
        response = send_raw_request(self.admin.gateway.base_url, CHAT_PATH, chat_body(), sent)
        assert response.status == 200, response.body

        def find_limit() -> str | None:
            rows = self.admin.read("/v1/limits/usage?page_size=1000")["data"]
            return next((row["owner_id"] for row in rows if row["kind"] == "token"), None)

        return wait_for("the budget of the token", find_limit)

    def _create_logs(self) -> None:
        """Creates a log of a service and one of a member in `here`, where members see only their own, and feedback."""
        restricted = {"security_settings": {"membersViewAllData": False}}
        expect_ok(self.admin.put(f"/v1/workspaces/{self.here['id']}", restricted))
        own = {"scopes": ["completions.write", "logs.write"], **self.workspace_field}
        service = self.admin.with_new_key(**own)
        member = self.admin.with_new_key(kind="workspace/user", user_id=self.people["a member"], **own)
        self.log, self.log_of_member = (
            sender.create("/v1/logs", custom_log(trace))["ids"][0]
            for sender, trace in ((service, "trace-of-service"), (member, "trace-of-member"))
        )
        rating = {"trace_id": "trace-of-service", "value": 1}
        self.feedback = service.create("/v1/feedback", rating)["feedback_ids"][0]
        self.export = self._create_export()
        self.finished_export = self._create_export()

        def are_listed() -> bool | None:
            response = self.admin.get(f"/v1/logs?{self.logs_query}")
            return (response.status == 200 and len(response.json()["data"]) == len(LOG_TRACES)) or None

        wait_for("the logs", are_listed, LOGS_SECONDS)
        path = f"/v1/logs/exports/{self.finished_export}"
        self.admin.create(f"{path}/start", {})
        wait_for("the export", lambda: self.admin.read(path)["status"] == "success" or None, LOGS_SECONDS)

    def _create_export(self) -> str:
        def create() -> str | None:
            response = self.admin.post("/v1/logs/exports", {**EXPORT, **self.workspace_field})
            return None if response.status == 503 else expect_ok(response)["id"]

        return wait_for("the log worker", create, LOGS_SECONDS)

    def visible_logs(self, name: str) -> set[str]:
        """Returns the ids of the scenario's logs that a caller may see, if its scopes allow the route."""
        _, known = self.callers[name]
        if known is None or known.workspace_id not in {None, self.here["id"]}:
            return set()
        if known.user_id is None or known.is_organisation_admin or known.roles.get(self.here["id"]) != "member":
            return {self.log, self.log_of_member}
        return {self.log_of_member} if known.user_id == self.people["a member"] else set()

    def sees_export(self, name: str) -> bool:
        """Returns true if a caller may see exports in `here` that another caller created. Users may only if they are
        admins and do not use an API key.
        """
        _, known = self.callers[name]
        if known is None or known.workspace_id not in {None, self.here["id"]}:
            return False
        is_admin = known.is_organisation_admin or known.roles.get(self.here["id"]) == "admin"
        return known.user_id is None or (is_admin and known.by != "key")

    @property
    def logs_query(self) -> str:
        """Query that selects the scenario's own logs, without those that single tests create."""
        return f"workspace_slug={self.here['slug']}&trace_id={','.join(LOG_TRACES)}"

    def _key_and_user_callers(self) -> dict[str, tuple[Mapping[str, str], rights.Caller | None]]:
        """Returns the headers of each caller and its expected rights in `here`; `None` for callers without rights."""
        actual: dict[str, tuple[Mapping[str, str], rights.Caller | None]] = {
            "nobody": ({}, None),
            "an unknown key": ({"x-gateway-api-key": "x" * 48}, None),
            "a cookie that is none": (
                {"cookie": f"{rights.SESSION_COOKIE}=abc", rights.CSRF_HEADER: rights.csrf_token("abc")},
                None,
            ),
        }
        for kind, scopes in rights.SCOPES_BY_KEY_TYPE.items():
            is_organisations = kind.startswith("organisation")
            useless = {UNRELATED_SCOPES.get(kind, "completions.write")}
            for location in (None,) if is_organisations else (self.here, self.there):
                for some in (scopes, useless):
                    body: dict[str, Any] = {"name": "k", "scopes": sorted(some)}
                    fields: dict[str, Any] = {
                        "id": "k",
                        "type": kind,
                        "organisation_id": "o",
                        "scopes": frozenset(some),
                    }
                    if location:
                        body["workspace_id"] = fields["workspace_id"] = location["id"]
                    user = self.people["a manager"] if kind.endswith("user") else None
                    if user and location is self.there:
                        members = f"/v1/workspaces/{location['id']}/users"
                        self.admin.post(members, {"users": [{"id": user, "role": "member"}]})
                    if user:
                        body["user_id"] = fields["user_id"] = user
                        fields |= {
                            "org_role": "member",
                            "roles": {self.here["id"]: "manager", self.there["id"]: "member"},
                        }
                    created = self.admin.create(f"/v1/api-keys/{kind.replace('-', '/')}", body)
                    where = f" of {location['name']}" if location else ""
                    label = "all scopes" if some is scopes else "a scope of no use"
                    actual[f"{kind}{where} with {label}"] = (
                        {"x-gateway-api-key": created["key"]},
                        rights.Caller(**fields),
                    )
        for name, user in self.people.items():
            actual[name] = (self._sign_in(user), self._user_rights(name, user))
        return actual

    def _token_callers(self) -> dict[str, tuple[Mapping[str, str], rights.Caller | None]]:
        """Returns callers with an identity provider's tokens: for users that exist here, and for machines without a
        user.
        """
        actual: dict[str, tuple[Mapping[str, str], rights.Caller | None]] = {}
        everything = " ".join(sorted(rights.ALL_SCOPES))
        for workspace in (self.here, self.there):
            claims = {"sub": "machine-7", "workspace_slug": workspace["slug"], "scope": everything}
            scopes = rights.ALL_SCOPES & rights.user_scopes(None)
            known = rights.Caller(
                id="t", type="token", organisation_id="o", workspace_id=workspace["id"], scopes=scopes, by="token"
            )
            actual[f"a token of {workspace['name']}"] = (self._token_headers(claims), known)
        for name, scope in (("a member", everything), (OWNER, "logs.list")):
            person = self._user_rights(name, self.people[name])
            narrow = msgspec.structs.replace(
                person, scopes=person.scopes & set(scope.split()), type="token", by="token"
            )
            actual[f"a token of {name}"] = (self._token_headers({"sub": self.people[name], "scope": scope}), narrow)
        expired = {"sub": self.owner, "scope": everything, "exp": 1}
        return {**actual, "an old token of the owner": (self._token_headers(expired), None)}

    def _token_headers(self, content: Mapping[str, object]) -> Mapping[str, str]:
        claims = {"organisation_id": self.organisation, "exp": int(time.time()) + 3600, **content}
        head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
        text = jws.serialize_compact(head, json.dumps(claims), SIGNING_KEY, algorithms=["ES256"])
        return {"authorization": f"Bearer {text}"}

    def _sign_in(self, user: str) -> Mapping[str, str]:
        email = self.admin.read(f"/v1/admin/users/{user}")["email"]
        response = Client(self.admin.gateway, "").post("/v1/auth/sessions", {"email": email, "password": PASSWORD})
        cookie = (response.get_header("set-cookie") or "").split(";")[0]
        return {"cookie": cookie, "x-csrf-token": expect_ok(response)["csrf_token"]}

    def _user_rights(self, name: str, user: str) -> rights.Caller:
        role, org_role = USER_ROLES[name]
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

    def prepare_request(self, route: Route) -> tuple[str, object]:
        """Returns a path to an existing object in `here` and a valid body."""
        path, method = canonical_path(route.path), route.method
        values = {"kind": "workspace", "sub_kind": "service", "workspace": self.here["id"]}
        bodies = self._request_bodies()
        self._create_user_for(path, method, values, bodies)
        self._create_object_for(path, method, values, bodies)
        values |= self._log_values(path, method)
        self._create_policy_for(path, values)
        self._create_partner_for(path, values)
        self._create_prompt_for(path, values)
        return route.path.format(**values) + self._query_string(path, method), bodies.get(f"{method} {path}")

    @property
    def workspace_field(self) -> dict[str, str]:
        return {"workspace_id": self.here["id"]}

    def _query_string(self, path: str, method: str) -> str:
        if path == "/audit-logs":
            return f"?{TIME_RANGE}&organisation_id={self.organisation}"
        if is_log_query(f"{method} {path}"):
            return f"?{self.logs_query}"
        is_list = path in WORKSPACE_LISTS and method == "GET"
        return (
            f"?workspace_id={self.here['id']}" if is_list or path.startswith(("/providers/", "/virtual-keys/")) else ""
        )

    def _request_bodies(self) -> dict[str, object]:
        limits = {"name": "renamed"}
        return {
            "POST /api-keys/{kind}/{sub_kind}": {**NEW_KEY, **self.workspace_field},
            "PUT /api-keys/{key_id}": limits,
            "POST /api-keys/{key_id}/rotate": {},
            "POST /configs": {**CONFIG, **self.workspace_field},
            "PUT /configs/{key}": limits,
            "POST /guardrails": {**GUARDRAIL, **self.workspace_field},
            "PUT /guardrails/{key}": limits,
            "POST /guardrails/test": {"checks": GUARDRAIL["checks"], "text": "x"},
            "POST /guardrails/{key}/test": {"text": "x"},
            **{route: {"input": "x"} for route in CLASSIFICATIONS},
            MODERATIONS: {"input": "x", "model": "@none/m"},
            **{f"PUT /workspace-exclusions/{kind}-guardrails": {"workspaces": []} for kind in ("input", "output")},
            "POST /virtual-keys": {**VIRTUAL_KEY, **self.workspace_field},
            "PUT /virtual-keys/{key}": limits,
            "PUT /providers/{key}": limits,
            "PUT /organisation/settings": {"user_api_key_rotation_period": None},
            "PUT /organisation/defaults": {"input_guardrails": []},
            "POST /users/invites": self._invite_body(),
            "PUT /users/{user_id}": {"role": "member"},
            "POST /workspaces": {"name": "made"},
            "PUT /workspaces/{workspace}": {"description": "changed"},
            "DELETE /workspaces/{workspace}": {"name": self.here["name"], "force_delete": True},
            "PUT /workspaces/{workspace}/users/{user_id}": {"role": "manager"},
            "POST /integrations": {**INTEGRATION, **self.workspace_field},
            "PUT /integrations/{key}": limits,
            "PUT /integrations/{key}/models": {"models": [CUSTOM_MODEL]},
            "DELETE /integrations/{key}/models": {"models": ["mine"]},
            "PUT /integrations/{key}/workspaces": {"workspaces": [{"id": self.here["id"], "enabled": True}]},
            **{f"POST /policies/{kind}": {**body, **self.workspace_field} for kind, body in POLICIES.items()},
            **{f"PUT /policies/{kind}/{{key}}": limits for kind in POLICIES},
            "POST /prompts": {**PROMPT, **self.workspace_field},
            "POST /prompts/partials": {**PARTIAL, **self.workspace_field},
            "POST /collections": {"name": "c", **self.workspace_field},
            "POST /labels": {"name": f"label-{next(COUNTER)}", **self.workspace_field},
            "PUT /labels/{key}": {"description": "changed"},
            **{f"PUT /{kind}/{{key}}": limits for kind in ("prompts", "prompts/partials", "collections")},
            "PUT /prompts/{key}/versions/{version_id}": {"label_id": "staging"},
            **{f"PUT /{kind}/{{key}}/makeDefault": {"version": 1} for kind in ("prompts", "prompts/partials")},
            "POST /partner-credentials": PARTNER_CREDENTIALS,
            "PUT /partner-credentials/{key}": {"allow_all_workspaces": True},
            "POST /secret-references": SECRET_REFERENCE,
            "PUT /secret-references/{key}": limits,
            "POST /limits/simulate": {**POLICIES["usage-limits"], **self.workspace_field},
            "POST /logs": custom_log("trace-of-a-test"),
            "POST /logs/rerate": {"time_of_generation_min": "2026-11-01T00:00:00Z"},
            "POST /logs/exports": {**EXPORT, **self.workspace_field},
            "PUT /logs/exports/{export_id}": {"filters": {}},
            "POST /feedback": {"trace_id": "trace-of-a-test", "value": 1},
            "PUT /feedback/{feedback_id}": {"value": 2},
            "POST /otel/v1/logs": make_logs({"body": {"stringValue": "text"}}),
            "POST /otel/v1/traces": make_traces(make_span()),
            "PUT /auth/password": {"current_password": PASSWORD, "new_password": PASSWORD},
        }

    def _invite_body(self) -> dict[str, object]:
        return {"email": f"guest{next(COUNTER)}@example.test", "role": "member", "workspaces": []}

    def _create_partner_for(self, path: str, values: dict[str, str]) -> None:
        if path.startswith("/partner-credentials"):
            # An organisation has at most one set of credentials for each partner.
            self.admin.delete("/v1/partner-credentials/lakera")
            if "{key}" in path:
                values["key"] = self.admin.create("/v1/partner-credentials", PARTNER_CREDENTIALS)["slug"]

    def _create_user_for(self, path: str, method: str, values: dict[str, str], bodies: dict[str, object]) -> None:
        if "{user_id}" in path:
            values["user_id"] = self._create_user(f"victim {next(COUNTER)}", "member", "member")
        if path == "/workspaces/{workspace}/users" and method == "POST":
            outside = self._create_user(f"victim {next(COUNTER)}", None, "member")
            bodies["POST /workspaces/{workspace}/users"] = {"users": [{"id": outside, "role": "member"}]}
        if "{invite_id}" in path:
            values["invite_id"] = self.admin.create("/v1/admin/users/invites", self._invite_body())["id"]

    def _create_policy_for(self, path: str, values: dict[str, str]) -> None:
        for kind, body in POLICIES.items():
            if path.startswith(f"/policies/{kind}/"):
                policy = self.admin.create(f"/v1/policies/{kind}", {**body, **self.workspace_field})
                values["key"] = policy["id"]
        if path.startswith("/limits/tokens/"):
            values["key"] = self.token_limit
        if "{entity_id}" in path:
            values["entity_id"] = add_usage(self.admin, values["key"])

    def _create_prompt_for(self, path: str, values: dict[str, str]) -> None:
        created, workspace = self.admin.create, self.workspace_field
        match path.split("/")[1:]:
            case ["prompts", "partials", _, *_]:
                values["key"] = created("/v1/prompts/partials", {**PARTIAL, **workspace})["id"]
            case ["prompts", "{key}", *_]:
                prompt = created("/v1/prompts", {**PROMPT, **workspace})
                values |= {"key": prompt["slug"], "version_id": prompt["version_id"]}
            case ["collections", _]:
                values["key"] = created("/v1/collections", {"name": "c", **workspace})["slug"]
            case ["labels", _]:
                values["key"] = created("/v1/labels", {"name": f"label-{next(COUNTER)}", **workspace})["id"]
            case _:
                pass

    def _create_object_for(self, path: str, method: str, values: dict[str, str], bodies: dict[str, object]) -> None:
        created, workspace = self.admin.create, self.workspace_field
        match path.split("/")[1:]:
            case ["providers"] if method == "POST":
                owned = created("/v1/integrations", {**INTEGRATION, **workspace})["slug"]
                bodies["POST /providers"] = {"name": "p", "integration_id": owned, **workspace}
            case ["api-keys", "{key_id}", *_]:
                values["key_id"] = created("/v1/api-keys/workspace/service", {**NEW_KEY, **workspace})["id"]
            case ["configs" | "guardrails" as kind, "{key}", *_]:
                body = CONFIG if kind == "configs" else GUARDRAIL
                values["key"] = created(f"/v1/{kind}", {**body, **workspace})["slug"]
            case ["virtual-keys" | "providers", _, *_]:
                values["key"] = created("/v1/virtual-keys", {**VIRTUAL_KEY, **workspace})["slug"]
            case ["workspaces", "{workspace}"] if method == "DELETE":
                values["workspace"] = created("/v1/workspaces", {"name": "inner"})["id"]
                bodies["DELETE /workspaces/{workspace}"] = {"name": "inner", "force_delete": True}
            case ["integrations", _, *below]:
                # Only integrations of the organisation can be shared with workspaces.
                whose = {} if (method, below) == ("PUT", ["workspaces"]) else workspace
                values["key"] = created("/v1/integrations", {**INTEGRATION, **whose})["slug"]
                if below == ["models"]:
                    expect_ok(self.admin.put(f"/v1/integrations/{values['key']}/models", {"models": [CUSTOM_MODEL]}))
            case ["secret-references", _, *_]:
                values["key"] = created("/v1/secret-references", SECRET_REFERENCE)["slug"]
            case ["models", _]:
                values["model"] = f"@{created('/v1/virtual-keys', {**VIRTUAL_KEY, **workspace})['slug']}/gpt-4o"
            case _:
                pass

    def _log_values(self, path: str, method: str) -> dict[str, str]:
        actual = {"log_id": self.log, "trace_id": LOG_TRACES[0], "feedback_id": self.feedback, "metadata_key": "team"}
        if "{group_by}" in path:
            actual["group_by"] = "ai-models"
        if "{export_id}" in path:
            displayed = self.finished_export if path.endswith("/download") else self.export
            actual["export_id"] = displayed if method == "GET" else self._create_export()
        return actual

    def send(self, name: str, route: Route, path: str, body: object) -> Response:
        displayed, _ = self.callers[name]
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {"content-type": "application/json", **displayed}
        if canonical_path(route.path) == "/logs/tail":
            # A stream does not end by itself.
            with RawConnection(self.admin.gateway.base_url) as connection:
                connection.send(encode_request(route.method, path, fields, sent))
                return connection.read_head()
        return send_raw_request(self.admin.gateway.base_url, path, sent, fields, method=route.method)

    def is_allowed(self, name: str, route: Route) -> bool:
        """Returns true if the caller's rights allow the route, computed from the rights alone."""
        _, known = self.callers[name]
        if known is None or route.required_scopes is None:
            return known is not None and known.by != "key"
        if is_log_route(route.canonical_id):
            return self._is_log_route_allowed(name, route, known)
        if route.path.endswith("/integrations/{key}/workspaces") and route.method == "PUT":
            return "organisation_integrations.update" in known.granted_scopes(known.workspace_id)
        # `/workspaces` lists only workspaces that the caller may see, and `/guardrails/checks` is the same for all
        # callers.
        if (
            route.path.endswith(("/workspaces", "/v1/models", "/guardrails/checks"))
            and "{key}" not in route.path
            and route.method == "GET"
        ) or route.canonical_id == "POST /guardrails/test":
            return route.accepts(known.scopes)
        is_organisations = not any(
            part in route.path
            for part in (
                "{workspace}",
                "api-keys",
                "configs",
                "/guardrails",
                "keys",
                "providers",
                "integrations",
                "/limits/",
                "/models/",
                "policies",
                "prompts",
                "collections",
                "labels",
            )
        )
        if is_organisations:
            return route.accepts(known.granted_scopes(known.workspace_id))
        return known.workspace_id in {None, self.here["id"]} and route.accepts(known.granted_scopes(self.here["id"]))

    def _is_log_route_allowed(self, name: str, route: Route, known: rights.Caller) -> bool:
        # A key of another workspace queries its own workspace, whichever workspace the request names.
        is_granted = route.accepts(known.granted_scopes(known.workspace_id or self.here["id"]))
        if is_log_query(route.canonical_id):
            return is_granted
        if route.canonical_id in INGEST_ROUTES:
            # The feedback to update is in `here`.
            allowed = {self.here["id"]} if "{" in route.path else {self.here["id"], self.there["id"]}
            return is_granted and known.workspace_id in allowed
        if "{log_id}" in route.path or "{trace_id}" in route.path:
            return is_granted and self.log in self.visible_logs(name)
        if "{export_id}" in route.path:
            return is_granted and self.sees_export(name)
        return is_granted and known.workspace_id in {None, self.here["id"]}


def is_log_route(canonical_id: str) -> bool:
    """Returns true for the routes of logs that a caller of one workspace may use."""
    groups = ("analytics", "feedback", "logs", "otel", "traces")
    return canonical_id.split("/")[1] in groups and canonical_id != "POST /logs/rerate"


def is_log_query(canonical_id: str) -> bool:
    """Returns true for routes that read many logs of a workspace, limited to those that the caller may see."""
    return canonical_id in {"GET /logs", "GET /logs/tail"} or canonical_id.startswith(
        ("GET /analytics/", "GET /logs/groups/")
    )


def custom_log(trace_id: str) -> dict[str, object]:
    request = {"url": "https://api.openai.com/v1/chat/completions", "body": {"model": "gpt-4o", "messages": []}}
    return {"request": request, "response": {"body": {}}, "metadata": {"trace_id": trace_id, "team": "red"}}


def add_usage(admin: Client, policy: str) -> str:
    """Adds an entry to the usage of a policy, as the data plane does; returns its id."""
    created = datetime.fromisoformat(admin.read(f"/v1/policies/usage-limits/{policy}")["created_at"])
    start = round(created.timestamp() * 1000)
    row = {"id": new_id(), "limit_id": policy, "value_key": "k", "period_start": start, "updated_at": start}
    counts = {"requests": 1, "tokens": 1, "nanodollars": 1, "measure": "requests", "resets": 0, "status": "active"}
    alerts = {"is_threshold_alert_sent": False, "is_exhausted_alert_sent": False}

    async def insert_row() -> None:
        database = Database(Store(), Secret(admin.gateway.env["PENSTOCK_STORE_URL"]))
        async with database.write_transaction() as connection:
            await connection.execute(insert(limit_usage).values({**row, **counts, **alerts}))
        await database.close()

    asyncio.run(insert_row())
    return row["id"]


@pytest.fixture(scope="module")
def scenario(admin: Client) -> AccessScenario:
    return AccessScenario(admin)


def count_changes(scenario: AccessScenario) -> int:
    """Counts the changes in the audit log, without refused requests."""
    query = f"{TIME_RANGE}&organisation_id={scenario.organisation}&response_status_code=200&page_size=1"
    return scenario.admin.read(f"/v1/audit-logs?{query}")["total"]


def test_each_route_requires_the_documented_scope():
    # Includes the routes that are served but not described, such as other spellings for single clients.
    served = [
        route
        for (method, path), scopes in guard_scopes().items()
        if not is_of_batches(path)
        for route in [Route(method.upper(), path, scopes)]
        if scopes or route.canonical_id in REQUIRED_SCOPES
    ]
    assert {route.canonical_id for route in served} == set(REQUIRED_SCOPES)
    assert {route.id: route.required_scopes for route in served} == {
        route.id: REQUIRED_SCOPES[route.canonical_id] or None for route in served
    }
    assert {route.id for route in ROUTES} <= {route.id for route in served}


@pytest.mark.parametrize("route", CANONICAL_ROUTES, ids=[route.id for route in CANONICAL_ROUTES])
def test_rejects_unauthorised_callers_and_logs_allowed_changes(scenario: AccessScenario, route: Route):
    check_callers(scenario, route, list(scenario.callers))


@pytest.mark.parametrize("new_store", ["sqlite"], indirect=True, scope="module")
@pytest.mark.parametrize("route", ALIAS_ROUTES, ids=[route.id for route in ALIAS_ROUTES])
@pytest.mark.usefixtures("new_store")
def test_same_rules_apply_under_route_aliases(scenario: AccessScenario, route: Route):
    # The same handler serves all paths, so every fourth caller is tried, and each of them with every fourth path.
    check_callers(scenario, route, list(scenario.callers)[ALIAS_ROUTES.index(route) % 4 :: 4])


def check_callers(scenario: AccessScenario, route: Route, callers: list[str]) -> None:
    path, body = scenario.prepare_request(route)
    before = count_changes(scenario)
    refused = [name for name in callers if not scenario.is_allowed(name, route)]
    # In parallel, because a search for unknown feedback takes seconds.
    with ThreadPoolExecutor(4) as pool:
        for name, response in zip(
            refused, pool.map(lambda name: scenario.send(name, route, path, body), refused), strict=True
        ):
            assert response.status in {401, 403, 404}, (name, path, response.status, response.body)
            assert response.status == 401 or scenario.callers[name][1], (name, response.status)
    # Rejected requests changed nothing.
    assert count_changes(scenario) == before
    allowed = find_allowed_caller(route)
    response = scenario.send(allowed, route, path, body)
    # The workspace has no model that could moderate.
    status = 400 if route.canonical_id == MODERATIONS else 200
    assert response.status == status, (allowed, path, response.status, response.body)
    if route.method != "GET":
        assert (count_changes(scenario) > before) == (route.canonical_id not in INGEST_ROUTES | TRIAL_ROUTES)
    # All graphs have the same handler, and each read queries the log store. So only one graph is tried with all
    # callers.
    is_one_of_many = "/graphs/" in route.path and not route.path.endswith("/graphs/cost")
    if route.path == "/v1/auth/sessions" or is_one_of_many:
        return
    for name in callers:
        if scenario.is_allowed(name, route) and route.method == "GET":
            response = scenario.send(name, route, path, body)
            assert response.status == 200, (name, path, response.status, response.body)


def find_allowed_caller(route: Route) -> str:
    """Returns the name of a caller that must be allowed."""
    if route.required_scopes is None:
        return "an admin of the organisation"
    if route.canonical_id in {*INGEST_ROUTES, *CLASSIFICATIONS, MODERATIONS}:
        return "workspace-service of here with all scopes"
    return "organisation-service with all scopes"


def test_lists_of_logs_show_only_what_the_caller_may_see(scenario: AccessScenario):
    groups_paths = (f"/v1/{part}/groups/{{group_by}}" for part in ("analytics", "logs"))
    paths = ("/v1/logs", "/v1/analytics/graphs/requests", *groups_paths)
    routes = {route.path: route for route in ROUTES if route.method == "GET"}
    received: set[frozenset[str]] = set()
    for name in scenario.callers:

        def read(path: str, query: str = scenario.logs_query, name: str = name) -> Any:
            route = routes[path]
            sent = f"{path}?{query}".format(group_by="ai-models")
            return scenario.send(name, route, sent, None).json() if scenario.is_allowed(name, route) else None

        listed, graph, *groups = map(read, paths)
        expected = scenario.visible_logs(name)
        if listed:
            assert {log["id"] for log in listed["data"]} == expected, name
            received.add(frozenset(expected))
        if graph:
            assert graph["summary"]["total"] == len(expected), name
        for group in filter(None, groups):
            assert sum(int(row["requests"]) for row in group["data"]) == len(expected), name
        if exports := read("/v1/logs/exports", f"workspace_id={scenario.here['id']}&page_size=100"):
            assert (scenario.export in {row["id"] for row in exports["data"]}) == scenario.sees_export(name), name
    assert received == {
        frozenset(),
        frozenset({scenario.log_of_member}),
        frozenset({scenario.log, scenario.log_of_member}),
    }
    own = f"/v1/logs/{scenario.log_of_member}"
    assert scenario.send("a member", routes["/v1/logs/{log_id}"], own, None).status == 200


def test_workspace_member_cannot_see_another_workspace(scenario: AccessScenario):
    theirs = scenario.admin.create("/v1/integrations", {**INTEGRATION, "workspace_id": scenario.there["id"]})["slug"]
    ours = scenario.admin.create("/v1/integrations", {**INTEGRATION, **scenario.workspace_field})["slug"]
    displayed, _ = scenario.callers["a member"]

    def fetch(path: str) -> Response:
        return send_raw_request(scenario.admin.gateway.base_url, path, b"", displayed, method="GET")

    slugs = {row["slug"] for row in json.loads(fetch("/v1/integrations?page_size=100").body)["data"]}
    assert ours in slugs
    assert theirs not in slugs
    assert (fetch(f"/v1/integrations/{ours}").status, fetch(f"/v1/integrations/{theirs}").status) == (200, 404)


PATH_TRICKS = (
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
FORGED_HEADERS = (
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


# Each route is tried with every sixth trick, and each trick with every sixth route.
TRICK_STEP = 6


def path_tricks(path: str, number: int) -> Iterator[str]:
    """Yields the path of the route with this number under other spellings."""
    first, _, rest = path[1:].partition("/")
    for trick in PATH_TRICKS[number % TRICK_STEP :: TRICK_STEP]:
        yield trick.format(path=path, upper=path.upper(), swapped=path.swapcase(), first=f"/{first}", rest=rest)


@pytest.mark.slow(35)
def test_path_and_header_tricks_bypass_nothing(scenario: AccessScenario):
    tried = 0
    secret = scenario.admin.read("/v1/admin/users")["data"][0]["id"]
    # Routes that change something are tried only under their first path.
    routes = [route for route in TRICK_ROUTES if route.method == "GET" or route in CANONICAL_ROUTES]
    for number, route in enumerate(routes):
        path, body = scenario.prepare_request(route)
        path = path.split("?")[0]
        sent = None if body is None else json.dumps(body).encode()
        base, plain = scenario.admin.gateway.base_url, {"content-type": "application/json"} if sent else {}
        before = count_changes(scenario)
        for request in path_tricks(path, number):
            response = send_raw_request(base, request, sent, plain, method=route.method)
            assert response.status >= 300 or request.startswith("/v1/health?"), (route.method, request, response.status)
            assert secret.encode() not in response.body
            tried += 1
        for fields in FORGED_HEADERS:
            response = send_raw_request(base, path, sent, {**plain, **fields}, method=route.method)
            assert response.status in {400, 401}, (route.method, path, fields, response.status)
            tried += 1
        assert route.method == "GET" or count_changes(scenario) == before, (route.method, path)
    assert tried > 350


# Valid keys without a right to any of the tried routes: one of another workspace, one of this workspace without the
# scopes.
WEAK_CALLERS = ("workspace-service of there with a scope of no use", "workspace-user of here with a scope of no use")


@pytest.mark.slow(35)
@pytest.mark.parametrize("name", WEAK_CALLERS)
def test_path_tricks_do_not_extend_the_rights_of_a_key(scenario: AccessScenario, name: str):
    tried = 0
    secret = scenario.admin.read("/v1/admin/users")["data"][0]["id"]
    base, fields = scenario.admin.gateway.base_url, {"content-type": "application/json", **scenario.callers[name][0]}
    for number, route in enumerate(route for route in TRICK_ROUTES if route in CANONICAL_ROUTES):
        if route.required_scopes is None or scenario.is_allowed(name, route) or route.accepts({"completions.write"}):
            continue
        path, body = scenario.prepare_request(route)
        path = path.split("?")[0]
        sent = None if body is None else json.dumps(body).encode()
        before = count_changes(scenario)
        for request in (path, *path_tricks(path, number)):
            response = send_raw_request(base, request, sent, fields, method=route.method)
            assert response.status >= 300 or request.startswith("/v1/health?"), (route.method, request, response.status)
            assert secret.encode() not in response.body, (route.method, request)
            tried += 1
        assert count_changes(scenario) == before, (route.method, path)
    assert tried > 170


def test_objects_of_another_workspace_are_not_found(scenario: AccessScenario):
    """Tries ids and slugs, without a workspace, with the own one and with the other one in the query."""
    theirs = {
        "x-gateway-api-key": scenario.callers["workspace-service of there with all scopes"][0]["x-gateway-api-key"]
    }
    workspace = {"workspace_id": scenario.here["id"]}
    config = scenario.admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **workspace})
    prompt = scenario.admin.create("/v1/prompts", {**PROMPT, **workspace})
    body = {"name": "p", "provider": "openai", "key": "sk-0123456789", **workspace}
    slug = scenario.admin.create("/v1/virtual-keys", body)["slug"]
    key = scenario.admin.create(
        "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], **workspace}
    )
    for path in (
        f"/v1/configs/{config['id']}",
        f"/v1/configs/{config['slug']}",
        f"/v1/configs/{config['slug']}/versions",
        f"/v1/prompts/{prompt['id']}",
        f"/v1/prompts/{prompt['slug']}/versions/{prompt['version_id']}",
        f"/v1/prompts/{prompt['slug']}/share",
        f"/v1/virtual-keys/{slug}",
        f"/v1/providers/{slug}",
        f"/v1/api-keys/{key['id']}",
        f"/v1/workspaces/{scenario.here['slug']}",
        f"/v1/workspaces/{scenario.here['id']}/users",
    ):
        for query in ("", f"?workspace_id={scenario.here['id']}", f"?workspace_id={scenario.there['id']}"):
            for method, sent in (("GET", None), ("PUT", b'{"name":"stolen"}'), ("DELETE", b'{"name":"here"}')):
                fields = {"content-type": "application/json", **theirs}
                response = send_raw_request(scenario.admin.gateway.base_url, path + query, sent, fields, method=method)
                assert response.status in {400, 403, 404, 405}, (method, path, query, response.status, response.body)
    listed = send_raw_request(
        scenario.admin.gateway.base_url, f"/v1/api-keys?ids={key['id']}", None, theirs, method="GET"
    )
    assert listed.json()["total"] == 0
