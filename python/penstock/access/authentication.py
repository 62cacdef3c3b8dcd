"""Authentication of management API callers: by the digest of a key, by a token, or by a session cookie."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from sqlalchemy import or_, select

from penstock.access import roles
from penstock.access.tenant_rules import DEFAULT_SESSION_SECONDS, MAX_SESSION_SECONDS
from penstock.authorization import Caller, PresentedCredential, UserRights, user_scopes
from penstock.errors import ForbiddenError, UnauthorisedError, UnavailableError
from penstock.ids import sha256_hex
from penstock.schemas import now
from penstock.store.tables import (
    api_keys,
    key_digests,
    members,
    organisations,
    removed_members,
    sessions,
    users,
    workspaces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.access.token_verification import Claims, TokenVerifier
    from penstock.authorization import RoleOverrides
    from penstock.store.database import Database

# Time for which this node caches a caller. A key that another node revokes may stay valid here for this time.
CACHE_SECONDS = 1.0
MAX_CACHED_CALLERS = 10_000

KEY_QUERY = select(
    api_keys, key_digests.c.expires_at.label("digest_expires_at"), key_digests.c.holders, key_digests.c.issued_to
).join(key_digests, key_digests.c.api_key_id == api_keys.c.id)
SESSION_QUERY = select(sessions, organisations.c.settings).join(
    organisations, organisations.c.id == sessions.c.organisation_id
)

MEMBERSHIP_QUERY = (
    select(
        members.c.user_id,
        members.c.workspace_id,
        members.c.role,
        workspaces.c.settings,
        organisations.c.settings.label("above"),
    )
    .join(workspaces, workspaces.c.id == members.c.workspace_id)
    .join(organisations, organisations.c.id == workspaces.c.organisation_id)
)


class CallerAuthenticator:
    """Authenticates callers and caches them for `CACHE_SECONDS`."""

    def __init__(
        self,
        database: Database,
        tokens: TokenVerifier | None,
        last_known: Callable[[str], Caller | None] = lambda _: None,
    ) -> None:
        """Starts with an empty cache. `last_known` maps the digest of a key to its last known caller, for use while the
        database is unavailable.
        """
        self._database = database
        self._last_known = last_known
        self._tokens = tokens
        self._known: dict[str, tuple[float, Caller]] = {}

    async def authenticate(self, sent: PresentedCredential) -> Caller:
        """Returns the caller that a credential belongs to; raises UnauthorisedError if it is not valid."""
        text = sha256_hex(sent.text)
        requested = f"{sent.kind} {text}"
        cached = self._known.get(requested)
        if cached and cached[0] > time.monotonic():
            return cached[1]
        caller = await self._load_caller(sent, text)
        if len(self._known) >= MAX_CACHED_CALLERS:
            self._known.clear()
        self._known[requested] = (time.monotonic() + CACHE_SECONDS, caller)
        return caller

    def clear_cache(self) -> None:
        """Clears the cache, because something was changed on this node."""
        self._known.clear()

    async def authenticate_uncached(self, connection: AsyncConnection, sent: PresentedCredential) -> Caller:
        """Returns the caller by the current state of the database, without the cache. A cached caller may have lost
        access while the request waited for a lock.
        """
        return await self._find_caller(connection, sent, sha256_hex(sent.text), await self._read_claims(sent))

    async def _load_caller(self, sent: PresentedCredential, text: str) -> Caller:
        # Reads the claims before it takes a connection from the pool, because verifying a token may fetch the keys of
        # its issuer.
        claims = await self._read_claims(sent)
        try:
            async with self._database.read_connection() as connection:
                return await self._find_caller(connection, sent, text, claims)
        except UnavailableError:
            caller = self._last_known(text) if sent.kind == "key" and claims is None else None
            if caller is None:
                raise
            return caller

    async def _read_claims(self, sent: PresentedCredential) -> Claims | None:
        is_token = sent.kind == "key" and self._tokens and self._tokens.is_jwt(sent.text)
        return await self._tokens.verify(sent.text) if self._tokens and is_token else None

    async def _find_caller(
        self, connection: AsyncConnection, sent: PresentedCredential, text: str, claims: Claims | None
    ) -> Caller:
        if claims:
            return await _caller_by_token(connection, claims)
        return await (_caller_by_session if sent.kind == "session" else _caller_by_key)(connection, text)


async def _caller_by_key(connection: AsyncConnection, text: str) -> Caller:
    row = (await connection.execute(KEY_QUERY.where(key_digests.c.sha256 == text))).mappings().first()
    if row is None:
        message = "this gateway key is not known"
        raise UnauthorisedError(message)
    return await _caller_from_key_row(connection, row, row["digest_expires_at"])


async def _caller_from_key_row(connection: AsyncConnection, row: Mapping[Any, Any], text_ends: int | None) -> Caller:
    ends = [end for end in (row["expires_at"], text_ends) if end is not None]
    if row["status"] == "expired" or any(end <= now() for end in ends):
        message = "this gateway key has expired"
        raise UnauthorisedError(message)
    listed: list[str] = row["holders"] or []
    holders = frozenset(listed)
    people = [*listed, row["user_id"]] if row["user_id"] else listed
    rights = await _load_rights(connection, people)
    makers = tuple(rights[user_id] for user_id in sorted(holders - {row["user_id"]}))
    if not all(maker.has_access(row["workspace_id"]) for maker in makers):
        message = (
            "this gateway key has ended: a user who made it is no longer a member; hint: rotate it with another key"
        )
        raise UnauthorisedError(message)
    scopes = frozenset[str](row["scopes"])
    for maker in makers:
        scopes &= user_scopes(maker.org_role)
    return Caller(
        id=row["id"],
        type=row["type"],
        organisation_id=row["organisation_id"],
        workspace_id=row["workspace_id"],
        user_id=row["user_id"],
        scopes=scopes,
        makers=makers,
        authorities=frozenset(rights),
        key_id=row["id"],
        key_name=row["name"],
        key_made_by=row["issued_to"],
        **_role_fields(rights.get(row["user_id"])),
    )


async def _caller_by_session(connection: AsyncConnection, text: str) -> Caller:
    row = (await connection.execute(SESSION_QUERY.where(sessions.c.sha256 == text))).mappings().first()
    if row is None or row["created_at"] + session_ttl_seconds(row["settings"]) * 1000 <= now():
        message = "this session is over; sign in again"
        raise UnauthorisedError(message)
    if row["api_key_id"]:
        # The session has the scopes of the key. It ends when the secret of the key that was used for sign-in expires.
        caller = await _caller_by_key(connection, row["key_sha256"] or "")
    else:
        person = (await _load_rights(connection, [row["user_id"]]))[row["user_id"]]
        caller = Caller(
            id=row["id"],
            type="person",
            organisation_id=row["organisation_id"],
            user_id=row["user_id"],
            scopes=user_scopes(person.org_role),
            authorities=frozenset([row["user_id"]]),
            **_role_fields(person),
        )
    return msgspec.structs.replace(caller, by="session", session_id=row["id"])


def session_ttl_seconds(settings: Mapping[str, Any]) -> int:
    """Returns how long a session stays valid after sign-in, in seconds."""
    rules: dict[str, Any] = settings.get("session_settings") or {}
    # A release without the maximum may have stored a larger value.
    return min(int(rules.get("max_session_ttl", DEFAULT_SESSION_SECONDS)), MAX_SESSION_SECONDS)


async def _caller_by_token(connection: AsyncConnection, claims: Claims) -> Caller:
    organisation_query = select(organisations.c.id).where(organisations.c.id == claims.organisation_id)
    if await connection.scalar(organisation_query) is None:
        message = "the organisation of this token is not known"
        raise UnauthorisedError(message)
    workspace_id = await _token_workspace_id(connection, claims)
    conditions = [users.c.organisation_id == claims.organisation_id]
    matches_subject = or_(users.c.id == claims.user, users.c.email == claims.user.lower())
    user_id = await connection.scalar(select(users.c.id).where(matches_subject, *conditions))
    person = (await _load_rights(connection, [user_id]))[user_id] if user_id else UserRights()
    if user_id is None and await _was_removed(connection, claims):
        message = "the subject of this token was removed from the organisation"
        raise UnauthorisedError(message)
    if user_id is None and workspace_id is None:
        message = "this token names no workspace, and its subject is not a user of the organisation"
        raise ForbiddenError(message)
    return Caller(
        # A subject without a user account also gets an id for the audit log. It is the same each time.
        id=str(uuid5(NAMESPACE_URL, f"{claims.organisation_id}/{claims.user}")),
        type="token",
        organisation_id=claims.organisation_id,
        workspace_id=workspace_id,
        user_id=user_id,
        scopes=claims.scopes & user_scopes(person.org_role),
        authorities=frozenset([user_id] if user_id else ()),
        by="token",
        is_bound=claims.is_bound,
        config_id=claims.config_id,
        may_leave_config=claims.may_leave_config,
        metadata=claims.metadata,
        has_budget=claims.has_budget,
        ends_at=None if user_id else claims.expires_at,
        **_role_fields(person),
    )


async def _was_removed(connection: AsyncConnection, claims: Claims) -> bool:
    """Returns true if the subject of a token was removed from the organisation. A removed user has no role, so nothing
    else would restrict their tokens.
    """
    matches_subject = or_(removed_members.c.user_id == claims.user, removed_members.c.email == claims.user.lower())
    from_all = [removed_members.c.organisation_id == claims.organisation_id, removed_members.c.workspace_id.is_(None)]
    query = select(removed_members.c.id).where(*from_all, matches_subject).limit(1)
    return await connection.scalar(query) is not None


async def _token_workspace_id(connection: AsyncConnection, claims: Claims) -> str | None:
    if claims.workspace_slug is None:
        return None
    query = select(workspaces.c.id).where(
        workspaces.c.organisation_id == claims.organisation_id,
        workspaces.c.slug == claims.workspace_slug,
        workspaces.c.status == "active",
    )
    row: str | None = await connection.scalar(query)
    if row is None:
        message = f"the workspace {claims.workspace_slug!r} of this token is not known"
        raise ForbiddenError(message)
    return row


async def _load_rights(connection: AsyncConnection, user_ids: Collection[str]) -> dict[str, UserRights]:
    """Returns the rights of users by id. Users who no longer exist have no rights."""
    if not user_ids:
        return {}
    rows = (await connection.execute(select(users.c.id, users.c.role).where(users.c.id.in_(user_ids)))).all()
    org_roles = {row.id: row.role for row in rows}
    workspace_roles: dict[str, dict[str, str]] = {}
    overrides: dict[str, dict[str, RoleOverrides]] = {}
    for row in (await connection.execute(MEMBERSHIP_QUERY.where(members.c.user_id.in_(user_ids)))).all():
        workspace_roles.setdefault(row.user_id, {})[row.workspace_id] = row.role
        if override := roles.role_overrides(row.role, roles.non_default_flags(row.settings, row.above)):
            overrides.setdefault(row.user_id, {})[row.workspace_id] = override
    return {
        user_id: UserRights(
            org_role=org_roles.get(user_id),
            roles=workspace_roles.get(user_id, {}),
            overrides_by_workspace=overrides.get(user_id, {}),
        )
        for user_id in user_ids
    }


def _role_fields(rights: UserRights | None) -> dict[str, Any]:
    return {name: getattr(rights, name) for name in UserRights.__struct_fields__} if rights else {}
