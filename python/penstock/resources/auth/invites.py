"""Acceptance of an invitation: the page that the invitation link opens, and the route that this page calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock.access.passwords import Password, PasswordService
from penstock.authorization import allow_anyone, own_pages_only
from penstock.errors import Problem
from penstock.kit.preconditions import claim_idempotency_key
from penstock.kit.shared_fields import Email, Id, ObjectType
from penstock.kit.tenant_session import Services, read_request_metadata
from penstock.organisation.invites import CreatedUserKey, accept_invite, find_by_token, find_open, invite_caller
from penstock.schemas import invalid_error

TAGS = ["Auth"]
# The page is one file with an inline script; it loads no other resources.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

PersonName = Annotated[
    Annotated[str, Meta(min_length=1, max_length=255)] | None,
    Meta(description="name of the person; required unless the invitation contains it"),
]


class AcceptInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The invitation token, with the name and password of the person who accepts it."""

    token: Annotated[str, Meta(max_length=128, description="value of `token` in the invitation link")]
    first_name: PersonName = None
    last_name: PersonName = None
    password: Password


class InviteApiKey(msgspec.Struct, frozen=True):
    """An API key that was created with the invitation."""

    workspace_id: Annotated[str, Meta(description="id of the workspace that the key is for")]
    id: Id
    key: Annotated[str, Meta(description="the secret, which is not shown again")]


class AcceptedInvite(msgspec.Struct, frozen=True):
    """The new user, who can sign in now."""

    id: Id
    email: Email
    api_keys: Annotated[list[InviteApiKey], Meta(description="API keys that were created with the invitation")]
    object: ObjectType = "user"


@get("/", guards=[allow_anyone], summary="Open invite", tags=TAGS, include_in_schema=False, media_type="text/html")
async def get_invite_page() -> Response[bytes]:
    """Returns the page that an invitation link opens."""
    headers = {
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    page = Path(__file__).with_name("invite.html").read_bytes()
    return Response(page, media_type="text/html", headers=headers)


@post("/", status_code=200, guards=[own_pages_only], summary="Accept invite", tags=TAGS, opt={"is_once": True})
async def accept_invitation(
    data: JSONBody[AcceptInvite],
    services: NamedDependency[Services],
    passwords: NamedDependency[PasswordService],
    request: Request[Any, Any, Any],
) -> AcceptedInvite:
    """Accepts an invitation: creates the user with a password, as a member of the workspaces that the invitation names."""
    is_once = "idempotency-key" in request.headers
    async with services.database.read_connection() as connection:
        # With an idempotency key, an accepted invitation is found too, so that the first response can be repeated.
        invite = await (find_by_token if is_once else find_open)(connection, data.token)
    hashed = await passwords.hash_password(data.password)
    async with services.write_session_as(invite_caller(invite), await read_request_metadata(request)) as session:
        await claim_idempotency_key(session, request)
        # Read again inside the write transaction, where no other request can write: a link can be used only once.
        invite = await find_open(session.connection, data.token)
        names = {name: getattr(data, name) or invite[name] for name in ("first_name", "last_name")}
        if missing := [Problem(name, "is needed") for name, value in names.items() if not value]:
            raise invalid_error(missing)
        person = {**names, "password": hashed}
        user, keys = await accept_invite(session, invite, person)
        return AcceptedInvite(user["id"], user["email"], [_to_invite_key(key) for key in keys])


def _to_invite_key(key: CreatedUserKey) -> InviteApiKey:
    return InviteApiKey(key.workspace_id, key.id, key.key)


routes = [get_invite_page, accept_invitation]
