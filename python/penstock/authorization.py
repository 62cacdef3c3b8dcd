"""Authorization of management routes by scopes, key types and guards. A route without a guard prevents the start."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from penstock.errors import (
    MAX_PROBLEMS,
    STORE_UNAVAILABLE_MESSAGE,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    Problem,
    UnauthorisedError,
    UnavailableError,
    join_problems,
    shorten,
)
from penstock.fair_slots import current_tenant
from penstock.similar_names import NameSuggester

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
# Scopes that a key of each type may have.
SCOPES_BY_KEY_TYPE: dict[str, frozenset[str]] = {
    "organisation-service": WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES | ORGANISATION_SCOPES,
    "organisation-user": WORKSPACE_SCOPES,
    "workspace-service": CALL_SCOPES | WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES,
    "workspace-user": CALL_SCOPES | WORKSPACE_SCOPES,
}
ALL_SCOPES = frozenset[str]().union(*SCOPES_BY_KEY_TYPE.values())
# Verbs of the scopes of workspace members who are neither admins nor managers.
MEMBER_VERBS = frozenset({"read", "list", "view", "render", "invoke", "write"})
ORGANISATION_ADMIN_ROLES = frozenset({"owner", "admin"})
# Headers in which clients of other vendors' APIs send their only key.
VENDOR_KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
# Bearer token that one of these clients sends if it has no key. It counts as no credential.
PLACEHOLDER_KEY = "OPENAI_API_KEY"
SESSION_COOKIE, CSRF_HEADER = "penstock_session", "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Workspace roles by increasing power. Some powers of a role are no scopes, such as the choice of security settings.
WORKSPACE_ROLES = ("member", "manager", "admin")
# Admins of the organisation outrank the admins of its workspaces.
ORGANISATION_ADMIN_RANK = len(WORKSPACE_ROLES) + 1


def role_rank(role: str | None) -> int:
    """Returns the rank of a workspace role, from 1; 0 for no role."""
    return WORKSPACE_ROLES.index(role) + 1 if role in WORKSPACE_ROLES else 0


def user_scopes(org_role: str | None) -> frozenset[str]:
    """Returns the scopes of a signed-in user. In a workspace, the user's role there narrows them; see `narrow_scopes`."""
    scopes_in_any_workspace = CALL_SCOPES | WORKSPACE_SCOPES | WORKSPACE_KEY_SCOPES
    return (
        scopes_in_any_workspace | ORGANISATION_SCOPES
        if org_role in ORGANISATION_ADMIN_ROLES
        else scopes_in_any_workspace
    )


def reject_unusable_scopes(path: str, key_type: str, scopes: Iterable[str]) -> None:
    """Raises InvalidError if keys of this type cannot have one of the scopes. The error lists at most `MAX_PROBLEMS` of
    them, with similar names.
    """
    allowed = SCOPES_BY_KEY_TYPE[key_type]
    problems: list[Problem] = []
    suggester, candidates = NameSuggester(), sorted(allowed)
    for index, scope in enumerate(scopes):
        if scope in allowed:
            continue
        if len(problems) == MAX_PROBLEMS:
            break
        if scope in ALL_SCOPES:
            reason = f"is not for keys of the type {key_type}"
        else:
            similar = suggester.find(scope, candidates)
            reason = f"is not known; {f'did you mean {similar!r}?' if similar else 'GET /v1/scopes lists all'}"
        problems.append(Problem(f"{path}[{index}]", f"{shorten(scope)!r} {reason}"))
    if problems:
        raise InvalidError(join_problems(problems), problems)


class RoleOverrides(NamedTuple):
    """Changes that a workspace makes to the default scopes of a role."""

    granted: frozenset[str]
    revoked: frozenset[str]


def member_scopes(role: str, overrides: RoleOverrides | None = None) -> frozenset[str]:
    """Returns the scopes of a user with this role in a workspace."""
    return narrow_scopes(user_scopes("member"), role, overrides)


def narrow_scopes(scopes: frozenset[str], role: str | None, overrides: RoleOverrides | None = None) -> frozenset[str]:
    """Returns the subset of `scopes` that a workspace role allows."""
    if role is None:
        return frozenset()
    granted, revoked = overrides or (frozenset[str](), frozenset[str]())
    has_all_verbs = role in {"admin", "manager"}
    return frozenset(
        scope
        for scope in scopes
        if scope not in revoked and (has_all_verbs or scope in granted or scope.rpartition(".")[2] in MEMBER_VERBS)
    )


class PresentedCredential(msgspec.Struct, frozen=True):
    """Credential that a request presents: an API key or token, or a session cookie."""

    kind: Literal["key", "session"]
    text: str

    def __repr__(self) -> str:
        """Omits the text, because it is a credential."""
        return f"PresentedCredential({self.kind})"


class UserRights(msgspec.Struct, frozen=True, kw_only=True):
    """Roles of one user: in the organisation, and in each workspace by id."""

    org_role: str | None = None
    roles: dict[str, str] = {}
    # Role overrides by workspace id, for workspaces that have any.
    overrides_by_workspace: dict[str, RoleOverrides] = {}

    @property
    def is_organisation_admin(self) -> bool:
        """True if the user is an owner or admin of the organisation."""
        return self.org_role in ORGANISATION_ADMIN_ROLES

    def restrict_scopes(self, scopes: frozenset[str], workspace_id: str | None) -> frozenset[str]:
        """Returns the subset of `scopes` that the user has in a workspace, or in the organisation if `workspace_id` is
        `None`.
        """
        if self.is_organisation_admin:
            return scopes
        workspace_key = workspace_id or ""
        return narrow_scopes(scopes, self.roles.get(workspace_key), self.overrides_by_workspace.get(workspace_key))

    def rank(self, workspace_id: str | None) -> int:
        """Returns the rank of the user's role in a workspace; 0 without a role."""
        return ORGANISATION_ADMIN_RANK if self.is_organisation_admin else role_rank(self.roles.get(workspace_id or ""))

    def has_access(self, workspace_id: str | None) -> bool:
        """Returns true if the user is a member of the workspace, or an admin of the organisation."""
        return self.rank(workspace_id) > 0


class Caller(UserRights, frozen=True, kw_only=True):
    """Authenticated caller and what its credential may do. The roles are those of the user to whom the key belongs."""

    id: str
    type: str
    organisation_id: str
    workspace_id: str | None = None
    user_id: str | None = None
    scopes: frozenset[str] = frozenset()
    # How the caller was authenticated.
    by: Literal["key", "session", "token"] = "key"
    # True for a token with limits or with a config that its requests must use.
    is_bound: bool = False
    # Config that a token binds its requests to. The config of an API key is in the key's row instead.
    config_id: str | None = None
    # False if requests with the token must use `config_id`.
    may_leave_config: bool = True
    # Metadata that a token adds to its requests. The metadata of an API key is in the key's row instead.
    metadata: dict[str, Any] = {}
    # True for a token with usage limits.
    has_budget: bool = False
    # True if the caller was authenticated from a snapshot because the database is unavailable. The snapshot contains
    # only some of its scopes.
    is_last_known: bool = False
    # Expiry of a token whose user is not in the store, as Unix time in milliseconds. Nothing else ends that user's
    # rights.
    ends_at: int | None = None
    session_id: str | None = None
    # Rights of the users who created or rotated the key, except its own user. The key may never do more than any of
    # them.
    makers: tuple[UserRights, ...] = ()
    # Users on whose authority the caller acts: the makers of its key and its own user.
    authorities: frozenset[str] = frozenset()
    # Id of the request's API key.
    key_id: str | None = None
    key_name: str | None = None
    # Id of the user or key that the API key was issued to.
    key_made_by: str | None = None

    @property
    def is_organisation_admin(self) -> bool:
        """True if the caller has access to every workspace of the organisation."""
        is_admin = self.type == "organisation-service" or self.org_role in ORGANISATION_ADMIN_ROLES
        return is_admin and all(maker.is_organisation_admin for maker in self.makers)

    @property
    def actor_id(self) -> str:
        """Id of the user on whose behalf the request acts, or of the key if it belongs to a service."""
        return self.user_id or self.id

    def check_organisation(self, organisation_id: str | None) -> None:
        """Raises `ForbiddenError` if the request names another organisation than the caller's."""
        if organisation_id not in {None, self.organisation_id}:
            raise ForbiddenError(f"organisation {organisation_id!r} is not accessible with this key")

    def granted_scopes(self, workspace_id: str | None) -> frozenset[str]:
        """Returns the caller's scopes in a workspace, or in the organisation if `workspace_id` is `None`."""
        scopes = self.scopes
        for rights in (*([self._user_rights] if self.user_id else []), *self.makers):
            scopes = rights.restrict_scopes(scopes, workspace_id)
        return scopes

    def rank(self, workspace_id: str | None) -> int:
        """Returns the rank of the caller in a workspace: the lowest rank among its user and the makers of its key.

        The key of a workspace ranks as a manager at most: an admin's powers are no scopes, so a key cannot have them.
        """
        ranks = [rights.rank(workspace_id) for rights in self.makers]
        if self.user_id:
            ranks.append(self._user_rights.rank(workspace_id))
        elif self.type == "organisation-service":
            ranks.append(ORGANISATION_ADMIN_RANK)
        is_workspaces = self.by == "key" and self.workspace_id is not None
        if is_workspaces or not ranks:
            ranks.append(role_rank("manager"))
        return min(ranks)

    @property
    def _user_rights(self) -> UserRights:
        return UserRights(org_role=self.org_role, roles=self.roles, overrides_by_workspace=self.overrides_by_workspace)

    def grantable_scopes(self, workspace_id: str | None) -> frozenset[str]:
        """Returns the scopes that the caller may grant to others; it cannot grant more than it has."""
        granted = self.granted_scopes(workspace_id)
        # Only workspace keys may have these scopes, so an organisation key can grant them without having them.
        return granted | CALL_SCOPES if self.type == "organisation-service" and self.is_organisation_admin else granted


class RequireScopes:
    """Guard that requires the caller's key to have at least one of these scopes."""

    def __init__(self, scopes: Iterable[str]) -> None:
        """Raises `ValueError` if a scope does not exist."""
        self.scopes = frozenset(scopes)
        if unknown := self.scopes - ALL_SCOPES:
            message = f"there is no scope {', '.join(sorted(unknown))}"
            raise ValueError(message)
        self.__name__ = f"needs({', '.join(sorted(self.scopes))})"

    async def __call__(self, connection: Connection, _route: BaseRouteHandler) -> None:
        """Authenticates the caller and checks its scopes; the caller becomes `request.auth`."""
        caller = await authenticate(connection)
        # A scope in any workspace suffices here: only the route knows the workspace, and checks it.
        if not self.scopes & caller.scopes:
            raise (
                UnavailableError(STORE_UNAVAILABLE_MESSAGE)
                if caller.is_last_known
                else missing_scope_error(self.scopes)
            )
        connection.scope["state"]["needs"] = self.scopes


def require_scopes(*scopes: str) -> RequireScopes:
    """Returns a guard that requires one of these scopes."""
    return RequireScopes(scopes)


def missing_scope_error(scopes: Iterable[str]) -> ForbiddenError:
    """Returns the error for a caller that lacks these scopes."""
    return ForbiddenError(f"this key may not do that: it needs {' or '.join(sorted(scopes))}")


async def authenticate(connection: Connection) -> Caller:
    """Authenticates the caller of a request; the caller becomes `request.auth`."""
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
    current_tenant.set((caller.organisation_id, caller.workspace_id or caller.actor_id))
    return caller


def find_credential(connection: Connection) -> PresentedCredential | None:
    """Returns the credential from the request headers, or else from the session cookie. Returns `None` if there is
    none; raises `UnauthorisedError` if a header was sent twice.
    """
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
    cookie = connection.cookies.get(SESSION_COOKIE)
    return PresentedCredential("session", cookie) if cookie else None


def extract_credential(connection: Connection) -> PresentedCredential:
    """Returns the credential of a request. Raises `UnauthorisedError` if there is none."""
    if credential := find_credential(connection):
        return credential
    message = "no gateway key was sent; hint: header x-gateway-api-key"
    raise UnauthorisedError(message)


def csrf_token(session: str) -> str:
    """Returns the CSRF token of a session. Only the gateway's own pages can send it: pages of other sites can read
    neither the token nor the cookie.
    """
    return hashlib.sha256(f"csrf {session}".encode()).hexdigest()


def _check_csrf_token(connection: Connection, session: str) -> None:
    # A browser adds the cookie to requests from any page, so the cookie alone proves nothing.
    if not hmac.compare_digest(connection.headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode()):
        message = f"requests that change something with a session need the header {CSRF_HEADER}; hint: /v1/auth/self returns its value"
        raise ForbiddenError(message)


async def signed_in_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Guard that allows session and token callers. An API key does not identify the user who sends it."""
    caller = await authenticate(connection)
    if caller.by == "key":
        message = "an API key alone is not enough here: sign in, or send a JWT"
        raise ForbiddenError(message)
    connection.scope["state"]["needs"] = None


async def allow_anyone(_connection: Connection, _route: BaseRouteHandler) -> None:
    """Guard that allows every request, for public information."""


async def own_pages_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Guard for routes that change data without a credential: allows programs and the gateway's own pages.

    A browser sends `Origin` and `Sec-Fetch-Site` with requests of other sites' pages. The JSON content type is required
    because a browser then sends a preflight request first.
    """
    content_type = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        message = f"the content type {content_type!r} is not accepted here; send application/json"
        raise InvalidError(message)
    origin = connection.headers.get("origin")
    if connection.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or (
        origin is not None and not _is_own_origin(connection, origin)
    ):
        message = (
            f"pages of the origin {origin!r} may not send this request; hint: server.public_url names the gateway's own"
        )
        raise ForbiddenError(message)


def _is_own_origin(connection: Connection, origin: str) -> bool:
    public_url: str = connection.app.state.get("public_url", "")
    own = {connection.headers.get("host", ""), urlsplit(public_url).netloc}
    try:
        host = urlsplit(origin).netloc.lower()
    except ValueError:
        # A malformed origin, such as `http://[`, belongs to no page of the gateway.
        return False
    # A proxy in front of the gateway may end TLS, so the scheme is not compared.
    return host in {item.lower() for item in own if item}


async def engine_only(connection: Connection, _route: BaseRouteHandler) -> None:
    """Guard that allows only requests of the engine itself, not requests that it forwards."""
    # The edge never forwards these paths. If it did, its header `x-forwarded-for` would reveal the request.
    if "x-forwarded-for" in connection.headers:
        message = "there is nothing at this path"
        raise NotFoundError(message)


GUARDS = (allow_anyone, engine_only, own_pages_only, signed_in_only)


def is_guard(declared: object) -> bool:
    """Returns true if this object is one of the guards of this module."""
    return declared in GUARDS or isinstance(declared, RequireScopes)
