"""Accepting an invitation: the page behind its link, and what that page asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock.authorization import anyone
from penstock.kit.invites import KeyOfPerson, accept, guest, named_by, open_with
from penstock.kit.passwords import Password, Passwords
from penstock.kit.preconditions import claim
from penstock.kit.shared_fields import Email, Id, Object
from penstock.kit.tenant_session import Office, asked

TAGS = ["Auth"]
# The page is one file with its script inside; it loads nothing.
POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

Given = Annotated[str, Meta(min_length=1, max_length=255, description="name of the person")]


class Acceptance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who accepts."""

    token: Annotated[str, Meta(max_length=128, description="what the link holds after `token=`")]
    first_name: Given
    last_name: Given
    password: Password


class KeyGiven(msgspec.Struct, frozen=True):
    """A key that came along."""

    workspace_id: Annotated[str, Meta(description="id of the workspace it is for")]
    id: Id
    key: Annotated[str, Meta(description="its text, which is not shown again")]


class Accepted(msgspec.Struct, frozen=True):
    """The person, who can sign in from now on."""

    id: Id
    email: Email
    api_keys: Annotated[list[KeyGiven], Meta(description="keys that came along")]
    object: Object = "user"


@get("/", guards=[anyone], summary="Open invite", tags=TAGS, include_in_schema=False, media_type="text/html")
async def show() -> Response[bytes]:
    """Give the page that an invitation's link opens."""
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    page = Path(__file__).with_name("invite.html").read_bytes()
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@post("/", status_code=200, guards=[anyone], summary="Accept invite", tags=TAGS, opt={"is_once": True})
async def create(
    data: JSONBody[Acceptance],
    office: NamedDependency[Office],
    passwords: NamedDependency[Passwords],
    request: Request[Any, Any, Any],
) -> Accepted:
    """Accept an invitation: the person is made, with a password, in the workspaces that were promised."""
    is_once = "idempotency-key" in request.headers
    async with office.database.reading() as connection:
        # What was accepted before is answered as it was then, if that is asked for.
        invite = await (named_by if is_once else open_with)(connection, data.token)
    hashed = await passwords.hash(data.password)
    async with office.writing_as(guest(invite), await asked(request)) as desk:
        await claim(desk, request)
        # Looked at again where nobody else writes: a link is used once.
        invite = await open_with(desk.connection, data.token)
        person = {"first_name": data.first_name, "last_name": data.last_name, "password": hashed}
        user, keys = await accept(desk, invite, person)
        return Accepted(user["id"], user["email"], [_given(key) for key in keys])


def _given(key: KeyOfPerson) -> KeyGiven:
    return KeyGiven(key.workspace_id, key.id, key.key)


routes = [show, create]
