"""Who may call a management route: scopes, key types, and guards. A route that declares none does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ForbiddenError, MissingError, UnauthorisedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from litestar.connection import ASGIConnection
    from litestar.handlers.base import BaseRouteHandler

    Connection = ASGIConnection[Any, Any, Any, Any]
    Identify = Callable[[str], Awaitable["Caller"]]

VERBS = "create read update delete list"


def _family(names: str, verbs: str = VERBS) -> list[str]:
    return [f"{name}.{verb}" for name in names.split() for verb in verbs.split()]


CALLS = frozenset(
    ["completions.write", "prompts.render", "logs.write", "mcp.invoke", "agents.invoke", "guardrails.invoke"]
)
WORKSPACE = frozenset(
    [
        *_family("prompts", f"{VERBS} publish"),
        *_family("configs guardrails providers policies mcp_servers agent_servers workspace_users"),
        *_family("workspace_integrations workspace_mcp_integrations workspace_agent_integrations"),
        *_family("virtual_keys", f"{VERBS} duplicate copy"),
        *_family("workspaces", "read update list"),
        *_family("organisation_integrations organisation_mcp_integrations organisation_agent_integrations", "list"),
        *_family("logs", "export list view read"),
        "analytics.view",
        "models.list",
    ]
)
WORKSPACE_KEYS = frozenset(_family("workspace_service_api_keys workspace_user_api_keys", f"{VERBS} rotate"))
ORGANISATION = frozenset(
    [
        *_family("workspaces", "create delete"),
        *_family("organisation_service_api_keys", f"{VERBS} rotate"),
        *_family("organisation_users organisation_guardrails deployments secret_references"),
        *_family("organisation_settings", "read update"),
        *_family("organisation_exclusions", "update list"),
        *_family("organisation_integrations organisation_mcp_integrations organisation_agent_integrations"),
        *_family("plugins", "create update list"),
        "audit_logs.list",
    ]
)
# What a key of each type may hold.
SCOPES: dict[str, frozenset[str]] = {
    "organisation-service": WORKSPACE | WORKSPACE_KEYS | ORGANISATION,
    "organisation-user": WORKSPACE,
    "workspace-service": CALLS | WORKSPACE | WORKSPACE_KEYS,
    "workspace-user": CALLS | WORKSPACE,
}
EVERYTHING = frozenset[str]().union(*SCOPES.values())
# What a member of a workspace who is neither its admin nor a manager may do with its resources.
MEMBERS_VERBS = frozenset({"read", "list", "view", "render", "invoke", "write"})
LEADING = frozenset({"owner", "admin"})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A caller who was recognised, and what the key may do."""

    id: str
    type: str
    organisation_id: str
    workspace_id: str | None = None
    user_id: str | None = None
    scopes: frozenset[str] = frozenset()
    # Of the person whose key it is: in the organisation, and in each workspace by id.
    org_role: str | None = None
    roles: dict[str, str] = {}

    @property
    def leads(self) -> bool:
        """Whether every workspace of the organisation is open to the caller."""
        return self.type == "organisation-service" or self.org_role in LEADING

    @property
    def actor(self) -> str:
        """Who did it: the person, or the key that stands for a service."""
        return self.user_id or self.id

    def grants(self, workspace_id: str | None) -> frozenset[str]:
        """Give what the key may do in a workspace; in the organisation as a whole where none is named."""
        if self.user_id is None or self.leads:
            return self.scopes
        role = self.roles.get(workspace_id or "")
        if role is None:
            return frozenset()
        if role in {"admin", "manager"}:
            return self.scopes
        return frozenset(scope for scope in self.scopes if scope.rpartition(".")[2] in MEMBERS_VERBS)


class Needs:
    """A guard: the caller's key must hold one of these scopes."""

    def __init__(self, scopes: Iterable[str]) -> None:
        """Refuse a scope that does not exist."""
        self.scopes = frozenset(scopes)
        if unknown := self.scopes - EVERYTHING:
            message = f"there is no scope {', '.join(sorted(unknown))}"
            raise ValueError(message)
        self.__name__ = f"needs({', '.join(sorted(self.scopes))})"

    async def __call__(self, connection: Connection, _route: BaseRouteHandler) -> None:
        """Recognise the caller, who is `request.auth` from here on."""
        identify: Identify | None = connection.app.state.get("identify")
        if identify is None:
            message = "no store is configured; hint: penstock init, or PENSTOCK_STORE_URL"
            raise UnavailableError(message)
        caller = await identify(sent_key(connection))
        connection.scope["auth"] = caller
        # A person's rights differ by workspace; which one it is, the route knows.
        if not self.scopes & caller.scopes:
            raise lacking(self.scopes)
        connection.scope["state"]["needs"] = self.scopes


def needs(*scopes: str) -> Needs:
    """Declare what a route asks for."""
    return Needs(scopes)


def lacking(scopes: Iterable[str]) -> ForbiddenError:
    """Say which scope is missing."""
    return ForbiddenError(f"this key may not do that: it needs {' or '.join(sorted(scopes))}")


def sent_key(connection: Connection) -> str:
    """Find the gateway key where the caller put it."""
    for name in connection.app.state.get("key_headers", ("x-gateway-api-key",)):
        if sent := connection.headers.getall(name, ()):
            if len(sent) > 1:
                message = f"the header {name} was sent more than once"
                raise UnauthorisedError(message)
            return sent[0].strip()
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    message = "no gateway key was sent; hint: header x-gateway-api-key"
    raise UnauthorisedError(message)


async def anyone(_connection: Connection, _route: BaseRouteHandler) -> None:
    """Let everyone in: for what is no secret."""


async def engine_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Let only the engine itself in, not those it forwards for."""
    # The edge never forwards these paths; should it ever, its proxy header gives the request away.
    if "x-forwarded-for" in connection.headers:
        message = "there is nothing at this path"
        raise MissingError(message)


GUARDS = (anyone, engine_only)


def is_guard(declared: object) -> bool:
    """Whether something that a route declares decides who may call it."""
    return declared in GUARDS or isinstance(declared, Needs)
