"""Console sessions: sign-in with a password, an organisation's key or a link that works once, and sign-out."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import insert, select

from penstock.access.authentication import CallerAuthenticator, session_ttl_seconds
from penstock.access.passwords import PasswordService
from penstock.access.sign_in_links import find_user_of_link, use_link
from penstock.access.tenant_rules import organisation_rules
from penstock.authorization import (
    SESSION_COOKIE,
    Caller,
    PresentedCredential,
    csrf_token,
    own_pages_only,
    signed_in_only,
)
from penstock.errors import ForbiddenError, UnauthorisedError
from penstock.ids import new_id, sha256_hex
from penstock.kit.client_ip import is_behind_tls
from penstock.kit.shared_fields import ObjectType
from penstock.kit.tenant_session import RequestContext, Services, TenantSession, read_request_metadata
from penstock.schemas import EmptyResponse, field_error, format_required_timestamp, now
from penstock.settings import Settings
from penstock.store.tables import sessions, users

TAGS = ["Auth"]


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sign-in credentials: an e-mail address and password, an API key of the organisation, or a sign-in link."""

    email: Annotated[Annotated[str, Meta(max_length=320)] | None, Meta(description="e-mail address")] = None
    password: Annotated[Annotated[str, Meta(max_length=256)] | None, Meta(description="password")] = None
    api_key: Annotated[
        Annotated[str, Meta(max_length=512)] | None, Meta(description="an API key of the organisation")
    ] = None
    sign_in_token: Annotated[
        Annotated[str, Meta(max_length=128)] | None, Meta(description="the secret of a sign-in link, which works once")
    ] = None


ERROR_DESCRIPTIONS = {
    401: "The password or the key is wrong, no user has this e-mail address, or the link was used or has expired.",
    403: "Keys of workspaces cannot sign in.",
}


class CreatedSession(msgspec.Struct, frozen=True):
    """A new session. The response header sets its cookie."""

    csrf_token: Annotated[str, Meta(description="token that every change must send as x-csrf-token")]
    expires_at: Annotated[str, Meta(description="when the session ends")]
    object: ObjectType = "session"


@post("/", status_code=200, guards=[own_pages_only], summary="Sign in", tags=TAGS, opt={"refuses": ERROR_DESCRIPTIONS})
async def sign_in(
    data: JSONBody[SignIn],
    services: NamedDependency[Services],
    passwords: NamedDependency[PasswordService],
    identities: NamedDependency[CallerAuthenticator],
    settings: NamedDependency[Settings],
    request: Request[Any, Any, Any],
) -> Response[CreatedSession]:
    """Signs in. After several wrong passwords, further attempts for that e-mail address or from that client address
    wait up to ten seconds, or get 429. The body must be JSON; pages of other origins are rejected.
    """
    about = await read_request_metadata(request)
    caller, password_hash = await _authenticate(data, about.client, services, passwords, identities)
    text = secrets.token_urlsafe(32)
    async with services.write_session_as(caller, about) as session:
        if data.api_key is not None:
            await identities.authenticate_uncached(session.connection, PresentedCredential("key", data.api_key.strip()))
        elif data.sign_in_token is not None:
            await use_link(session.connection, data.sign_in_token)
        else:
            await passwords.reject_changed_password(session.connection, caller.id, password_hash)
        seconds = session_ttl_seconds(await organisation_rules(session))
        created_at = await _create_session(session, caller, text, data.api_key)
    secure = is_behind_tls(settings, request)
    cookie = Cookie(
        SESSION_COOKIE, value=text, path="/", max_age=seconds, httponly=True, secure=secure, samesite="strict"
    )
    return Response(
        CreatedSession(csrf_token(text), format_required_timestamp(created_at + seconds * 1000)), cookies=[cookie]
    )


@delete("/", status_code=200, guards=[signed_in_only], summary="Sign out", tags=TAGS)
async def sign_out(
    context: NamedDependency[RequestContext], services: NamedDependency[Services]
) -> Response[EmptyResponse]:
    """Signs out and ends the session."""
    if context.caller.session_id is None:
        raise ForbiddenError("a token is not a session; it expires by itself")
    async with context.unchecked_write_session() as session:
        await session.delete(sessions, sessions.c.id == context.caller.session_id)
        await session.record_change("sessions.delete", before={"id": context.caller.session_id})
    services.clear_caller_cache()
    return Response(EmptyResponse(), cookies=[Cookie(SESSION_COOKIE, value="", path="/", max_age=0, samesite="strict")])


async def _authenticate(
    data: SignIn, address: str, services: Services, passwords: PasswordService, identities: CallerAuthenticator
) -> tuple[Caller, str]:
    """Returns the caller who signs in, and the hash of the password that was checked. The hash is empty for a key or a
    link.
    """
    credentials = {name for name in SignIn.__struct_fields__ if getattr(data, name) is not None}
    if data.sign_in_token is not None and credentials == {"sign_in_token"}:
        await passwords.throttle.wait_until_allowed(None, address)
        try:
            async with services.database.read_connection() as connection:
                return await find_user_of_link(connection, data.sign_in_token), ""
        except UnauthorisedError:
            passwords.throttle.record_failure(None, address)
            raise
    if data.api_key is not None and credentials == {"api_key"}:
        await passwords.throttle.wait_until_allowed(None, address)
        try:
            caller = await identities.authenticate(PresentedCredential("key", data.api_key.strip()))
        except UnauthorisedError:
            passwords.throttle.record_failure(None, address)
            raise
        if caller.type != "organisation-service" or caller.by != "key":
            raise ForbiddenError("only a key of the organisation can sign in; keys of workspaces are for requests")
        return caller, ""
    if data.email is None or data.password is None or credentials != {"email", "password"}:
        raise field_error("", "needs either email and password, or api_key, or sign_in_token")
    email = data.email.lower()
    async with services.database.read_connection() as connection:
        row = (await connection.execute(select(users).where(users.c.email == email))).mappings().first()
    await passwords.check_password(email, address, row["password"] if row else None, data.password)
    # If there is no such user, `check_password` has already raised an error.
    user = dict(row or {})
    caller = Caller(
        id=user["id"], type="person", organisation_id=user["organisation_id"], user_id=user["id"], by="session"
    )
    return caller, user["password"]


async def _create_session(session: TenantSession, caller: Caller, text: str, key: str | None) -> int:
    moment = now()
    row: dict[str, Any] = {
        "id": new_id(),
        "organisation_id": caller.organisation_id,
        "user_id": caller.user_id,
        "api_key_id": caller.id if key else None,
        "key_sha256": sha256_hex(key.strip()) if key else None,
        "sha256": sha256_hex(text),
        "created_at": moment,
    }
    await session.connection.execute(insert(sessions).values(row))
    await session.record_change("sessions.create", after=row)
    return moment


routes = [sign_in, sign_out]
