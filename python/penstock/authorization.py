"""Who may call a management route: scopes, key types, and guards. A route that declares none does not start."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from penstock.errors import (
    STORE_UNAVAILABLE_MESSAGE,
    ForbiddenError,
    NotFoundError,
    UnauthorisedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from litestar.connection import ASGIConnection
    from litestar.handlers.base import BaseRouteHandler

    Connection = ASGIConnection[Any, Any, Any, Any]
    Authenticator = Callable[["PresentedCredential"], Awaitable["Caller"]]

CRUD_VERBS = "create read update delete list"


def _scope_names(names: str, verbs: str = CRUD_VERBS) -> list[str]:
    return [f"{name}.{verb}" for name in names.split() for verb in verbs.split()]


CALL_SCOPES = frozenset(
    ["completions.write", "prompts.render", "logs.write", "mcp.invoke", "agents.invoke", "guardrails.invoke"]
)
WORKSPACE_SCOPES = frozenset(
    [
        *_scope_names("prompts", f"{CRUD_VERBS} publish"),
        *_scope_names("configs guardrails providers policies mcp_servers agent_servers workspace_users"),
        *_scope_names("workspace_integrations workspace_mcp_integrations workspace_agent_integrations"),
        *_scope_names("virtual_keys", f"{CRUD_VERBS} duplicate copy"),
        *_scope_names("workspaces", "read update list"),
        *_scope_names(
            "organisation_integrations organisation_mcp_integrations organisation_agent_integrations", "list"
        ),
        *_scope_names("logs", "export list view read"),
        "analytics.view",
        "models.list",
    ]
)
WORKSPACE_KEY_SCOPES = frozenset(
    _scope_names("workspace_service_api_keys workspace_user_api_keys", f"{CRUD_VERBS} rotate")
)
ORGANISATION_SCOPES = frozenset(
    [
        *_scope_names("workspaces", "create delete"),
        *_scope_names("organisation_service_api_keys", f"{CRUD_VERBS} rotate"),
        *_scope_names("organisation_users organisation_guardrails deployments secret_references"),
        *_scope_names("organisation_settings", "read update"),
        *_scope_names("organisation_exclusions", "update list"),
        *_scope_names("organisation_integrations organisation_mcp_integrations organisation_agent_integrations"),
        *_scope_names("plugins", "create update list"),
        "audit_logs.list",
    ]
)
# What a key of each type may hold.
SCOPES_BY_KEY_TYPE: dict[str, frozenset[str]] = {
    "organisation-service": WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES | ORGANISATION_SCOPES,
    "organisation-user": WORKSPACE_SCOPES,
    "workspace-service": CALL_SCOPES | WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES,
    "workspace-user": CALL_SCOPES | WORKSPACE_SCOPES,
}
ALL_SCOPES = frozenset[str]().union(*SCOPES_BY_KEY_TYPE.values())
# What a member of a workspace who is neither its admin nor a manager may do with its resources.
MEMBER_VERBS = frozenset({"read", "list", "view", "render", "invoke", "write"})
ORGANISATION_ADMIN_ROLES = frozenset({"owner", "admin"})
# Where clients of other vendors' APIs put the only key they have, and what one of them sends when it has none.
VENDOR_KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
PLACEHOLDER_KEY = "OPENAI_API_KEY"
SESSION_COOKIE, CSRF_HEADER = "penstock_session", "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def user_scopes(org_role: str | None) -> frozenset[str]:
    """Give what a person may do who signed in, before the roles in workspaces narrow it."""
    everywhere = CALL_SCOPES | WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES
    return everywhere | ORGANISATION_SCOPES if org_role in ORGANISATION_ADMIN_ROLES else everywhere


class RoleOverrides(NamedTuple):
    """What a workspace gives to a role beyond the usual, and what it takes from it."""

    granted: frozenset[str]
    revoked: frozenset[str]


def member_scopes(role: str, apart: RoleOverrides | None = None) -> frozenset[str]:
    """Give what a role in a workspace lets a person do there."""
    return narrow_scopes(user_scopes("member"), role, apart)


def narrow_scopes(scopes: frozenset[str], role: str | None, apart: RoleOverrides | None = None) -> frozenset[str]:
    """Leave of some scopes what a role in a workspace allows."""
    if role is None:
        return frozenset()
    given, taken = apart or (frozenset[str](), frozenset[str]())
    usual = role in {"admin", "manager"}
    return frozenset(
        scope
        for scope in scopes
        if scope not in taken and (usual or scope in given or scope.rpartition(".")[2] in MEMBER_VERBS)
    )


class PresentedCredential(msgspec.Struct, frozen=True):
    """What a caller shows: a key or a token, or the cookie of a session."""

    kind: Literal["key", "session"]
    text: str

    def __repr__(self) -> str:
        """Leave the text out: it is a credential."""
        return f"Sent({self.kind})"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A caller who was recognised, and what the key may do."""

    id: str
    type: str
    organisation_id: str
    workspace_id: str | None = None
    user_id: str | None = None
    scopes: frozenset[str] = frozenset()
    # By what the caller was recognised.
    by: Literal["key", "session", "token"] = "key"
    # A token that has limits, or a config that it may not leave.
    is_bound: bool = False
    # The config that a token's requests have, and whether one may bring another; a key's row says it of a key.
    config_id: str | None = None
    may_leave_config: bool = True
    # By a snapshot alone, while the database is away: what else the key may do nobody can say.
    is_last_known: bool = False
    # In milliseconds, of a token of somebody who is not known here: nothing else says when their rights end.
    ends_at: int | None = None
    session_id: str | None = None
    # Of the person whose key it is: in the organisation, and in each workspace by id.
    org_role: str | None = None
    roles: dict[str, str] = {}
    # What those workspaces give to the role or take from it, where they say so.
    apart: dict[str, RoleOverrides] = {}

    @property
    def is_organisation_admin(self) -> bool:
        """Whether every workspace of the organisation is open to the caller."""
        return self.type == "organisation-service" or self.org_role in ORGANISATION_ADMIN_ROLES

    @property
    def actor_id(self) -> str:
        """Who did it: the person, or the key that stands for a service."""
        return self.user_id or self.id

    def check_organisation(self, organisation_id: str | None) -> None:
        """Refuse to go to another organisation; a request may name the caller's own."""
        if organisation_id not in {None, self.organisation_id}:
            raise ForbiddenError(f"the organisation {organisation_id!r} is not open to this key")

    def granted_scopes(self, workspace_id: str | None) -> frozenset[str]:
        """Give what the key may do in a workspace; in the organisation as a whole where none is named."""
        if self.user_id is None or self.is_organisation_admin:
            return self.scopes
        place = workspace_id or ""
        return narrow_scopes(self.scopes, self.roles.get(place), self.apart.get(place))

    def grantable_scopes(self, workspace_id: str | None) -> frozenset[str]:
        """Give what the caller may let others do: nothing beyond what it may do itself."""
        granted = self.granted_scopes(workspace_id)
        # What only keys of a workspace may hold, none of the organisation holds itself.
        return granted | CALL_SCOPES if self.type == "organisation-service" else granted


class RequireScopes:
    """A guard: the caller's key must hold one of these scopes."""

    def __init__(self, scopes: Iterable[str]) -> None:
        """Refuse a scope that does not exist."""
        self.scopes = frozenset(scopes)
        if unknown := self.scopes - ALL_SCOPES:
            message = f"there is no scope {', '.join(sorted(unknown))}"
            raise ValueError(message)
        self.__name__ = f"needs({', '.join(sorted(self.scopes))})"

    async def __call__(self, connection: Connection, _route: BaseRouteHandler) -> None:
        """Recognise the caller, who is `request.auth` from here on."""
        caller = await authenticate(connection)
        # A person's rights differ by workspace; which one it is, the route knows.
        if not self.scopes & caller.scopes:
            raise (
                UnavailableError(STORE_UNAVAILABLE_MESSAGE)
                if caller.is_last_known
                else missing_scope_error(self.scopes)
            )
        connection.scope["state"]["needs"] = self.scopes


def require_scopes(*scopes: str) -> RequireScopes:
    """Declare what a route asks for."""
    return RequireScopes(scopes)


def missing_scope_error(scopes: Iterable[str]) -> ForbiddenError:
    """Say which scope is missing."""
    return ForbiddenError(f"this key may not do that: it needs {' or '.join(sorted(scopes))}")


async def authenticate(connection: Connection) -> Caller:
    """Say who is calling, who is `request.auth` from here on."""
    identify: Authenticator | None = connection.app.state.get("identify")
    if identify is None:
        message = "no store is configured; hint: penstock init, or PENSTOCK_STORE_URL"
        raise UnavailableError(message)
    sent = extract_credential(connection)
    method = cast("dict[str, object]", connection.scope).get("method")
    if sent.kind == "session" and method not in SAFE_METHODS:
        _check_csrf_token(connection, sent.text)
    caller = await identify(sent)
    connection.scope["auth"] = caller
    return caller


def extract_credential(connection: Connection) -> PresentedCredential:
    """Find the credential where the caller put it; the cookie is looked at last."""
    for name in connection.app.state.get("key_headers", ("x-gateway-api-key",)):
        if sent := connection.headers.getall(name, ()):
            if len(sent) > 1:
                message = f"the header {name} was sent more than once"
                raise UnauthorisedError(message)
            return PresentedCredential("key", sent[0].strip())
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip() not in {"", PLACEHOLDER_KEY}:
        return PresentedCredential("key", token.strip())
    for name in VENDOR_KEY_HEADERS:
        if sent := connection.headers.get(name, "").strip():
            return PresentedCredential("key", sent)
    if cookie := connection.cookies.get(SESSION_COOKIE):
        return PresentedCredential("session", cookie)
    message = "no gateway key was sent; hint: header x-gateway-api-key"
    raise UnauthorisedError(message)


def csrf_token(session: str) -> str:
    """Give what a page of ours sends along to show that it is one: other sites know neither this nor the cookie."""
    return hashlib.sha256(f"csrf {session}".encode()).hexdigest()


def _check_csrf_token(connection: Connection, session: str) -> None:
    # A browser adds the cookie to whatever any page asks for.
    if not hmac.compare_digest(connection.headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode()):
        message = f"with a session every change needs the header {CSRF_HEADER}; hint: /v1/auth/self says which"
        raise ForbiddenError(message)


async def signed_in_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Let in who signed in or sent a token: an API key says nothing of who holds it."""
    caller = await authenticate(connection)
    if caller.by == "key":
        message = "an API key alone is not enough here: sign in, or send a JWT"
        raise ForbiddenError(message)
    connection.scope["state"]["needs"] = None


async def allow_anyone(_connection: Connection, _route: BaseRouteHandler) -> None:
    """Let everyone in: for what is no secret."""


async def engine_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Let only the engine itself in, not those it forwards for."""
    # The edge never forwards these paths; should it ever, its proxy header gives the request away.
    if "x-forwarded-for" in connection.headers:
        message = "there is nothing at this path"
        raise NotFoundError(message)


GUARDS = (allow_anyone, engine_only, signed_in_only)


def is_guard(declared: object) -> bool:
    """Whether something that a route declares decides who may call it."""
    return declared in GUARDS or isinstance(declared, RequireScopes)
