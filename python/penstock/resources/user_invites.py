"""Invitations of people into the organisation and its workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import or_

from penstock.authorization import SCOPES, needs, of_person
from penstock.errors import ConflictError
from penstock.kit import invites, keys, members
from penstock.kit.client_ip import outside
from penstock.kit.crud_routes import Verbs, Wanted
from penstock.kit.invites import INVITES
from penstock.kit.listing import equal
from penstock.kit.members import Role
from penstock.kit.shared_fields import Email, EmailAsked, Id, Moment, MomentOrNone, Object
from penstock.kit.tenant_session import Desk, Work
from penstock.schemas import Done, now, refuse, write_out
from penstock.settings import Settings
from penstock.store.tables import invites as rows
from penstock.store.tables import workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["User invites"]
MOST_WORKSPACES = 100
PAGE = "/v1/auth/invites"

OrgRole = Annotated[Literal["admin", "member"], Meta(description="what the person will be in the organisation")]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workspace to be taken into."""

    id: Annotated[str, Meta(description="id or slug of the workspace")]
    role: Role


class KeyDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that the person gets in each of the workspaces."""

    scopes: Annotated[list[str], Meta(min_length=1, description="what the keys may do")]


class NewInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who is to be invited, and to what."""

    email: Email
    role: OrgRole
    workspaces: Annotated[list[Place], Meta(max_length=MOST_WORKSPACES, description="with the role in each")]
    workspace_api_key_details: Annotated[KeyDetails | None, Meta(description="keys that go along with it")] = None


class InviteMade(msgspec.Struct, frozen=True):
    """The invitation, and the link that the person opens."""

    id: Id
    invite_link: Annotated[str, Meta(description="opens the invitation; whoever has it may accept it, once")]
    object: Object = "invite"


class InviteSent(msgspec.Struct, frozen=True, rename="camel"):
    """Another link in the place of the old one."""

    invite_link: Annotated[str, Meta(description="opens the invitation; the old link does so no more")]


class Invite(msgspec.Struct, frozen=True, kw_only=True):
    """One invitation."""

    id: Id
    email: Email
    role: Annotated[str, Meta(description="`admin` or `member`")]
    created_at: Moment
    expires_at: Annotated[str, Meta(description="until when its link can be used")]
    accepted_at: MomentOrNone
    status: Annotated[str, Meta(description="`pending`, `accepted`, `cancelled` or `expired`")]
    invited_by: Annotated[str | None, Meta(description="id of the person or key that invited")]
    workspaces: Annotated[list[Place], Meta(description="workspaces that the person will be in, by id")]
    workspace_api_key_details: Annotated[KeyDetails | None, Meta(description="keys that go along with it")]
    object: Object = "invite"


InviteId = Annotated[str, PathParameter(description="id of the invitation")]
RoleAsked = Annotated[Literal["admin", "member"] | None, QueryParameter(description="only those with this role")]
StatusAsked = Annotated[
    Literal["pending", "cancelled", "accepted", "expired"] | None, QueryParameter(description="only those that are so")
]


@post("/", status_code=200, guards=[needs("organisation_users.create")], summary="Invite user", tags=TAGS)
async def create(
    data: JSONBody[NewInvite],
    work: NamedDependency[Work],
    settings: NamedDependency[Settings],
    request: Request[Any, Any, Any],
) -> InviteMade:
    """Invite a person; the link that is answered is theirs, and is not shown again."""
    email = data.email.lower()
    async with work.writing() as desk:
        await _refuse_known(desk, email)
        desk.may_give(of_person(data.role), None)
        token, kept = invites.link()
        values = {
            **kept,
            "email": email,
            "role": data.role,
            "workspaces": [await _place(desk, index, place) for index, place in enumerate(data.workspaces)],
            "key_scopes": await _scopes(desk, data.workspace_api_key_details),
            "accepted_at": None,
            "invited_by": work.caller.actor,
        }
        row = await INVITES.add(desk, values)
        return InviteMade(row["id"], f"{outside(settings, request)}{PAGE}?token={token}")


def asked(role: RoleAsked = None, email: EmailAsked = None, status: StatusAsked = None) -> Wanted:
    """List invitations, those that are over too."""
    conditions = equal(rows, role=role, email=email and email.lower())
    if status == "expired":
        conditions += [rows.c.status == "pending", rows.c.expires_at <= now()]
    elif status:
        conditions += [rows.c.status == status, or_(rows.c.status != "pending", rows.c.expires_at > now())]
    return Wanted(None, conditions)


async def showing(_desk: Desk, found: list[Row]) -> list[Invite]:
    """Write invitations down."""
    return [_shown(row) for row in found]


@get("/{invite_id:str}", guards=[needs("organisation_users.read")], summary="Get invite", tags=TAGS)
async def show(invite_id: InviteId, work: NamedDependency[Work]) -> Invite:
    """Give one invitation."""
    async with work.reading() as desk:
        return _shown(await INVITES.get(desk, invite_id))


@delete(
    "/{invite_id:str}", status_code=200, guards=[needs("organisation_users.delete")], summary="Delete invite", tags=TAGS
)
async def remove(invite_id: InviteId, work: NamedDependency[Work]) -> Done:
    """Take an invitation back: its link opens nothing any more."""
    async with work.writing() as desk:
        row = await INVITES.get(desk, invite_id)
        if row["status"] == "accepted":
            raise ConflictError("this invitation was accepted; hint: delete the user")
        await INVITES.change(desk, row, {"status": "cancelled"}, "delete")
        return Done()


@post(
    "/{invite_id:str}/resend",
    status_code=200,
    guards=[needs("organisation_users.create")],
    summary="Resend invite",
    tags=TAGS,
)
async def resend(
    invite_id: InviteId,
    work: NamedDependency[Work],
    settings: NamedDependency[Settings],
    request: Request[Any, Any, Any],
) -> InviteSent:
    """Make another link for an invitation that was not accepted; it is good for a week again."""
    async with work.writing() as desk:
        row = await INVITES.get(desk, invite_id)
        if row["status"] != "pending":
            raise ConflictError(f"this invitation is {row['status']}")
        # Who learns the link can become whom it is for.
        await _refuse_known(desk, row["email"], row["id"])
        desk.may_give(of_person(row["role"]), None)
        desk.may_give(row["key_scopes"] or [], None)
        if row["key_scopes"]:
            await keys.refuse_beyond(desk, keys.UNLIMITED)
        for place in row["workspaces"]:
            await members.may_give_role(desk, place["role"], place["id"])
        token, kept = invites.link()
        await INVITES.change(desk, row, kept)
        return InviteSent(f"{outside(settings, request)}{PAGE}?token={token}")


async def _refuse_known(desk: Desk, email: str, invite_id: str = "") -> None:
    if user := await invites.refuse_user(desk, email):
        # Who has no way to sign in yet gets one, and stays what they are.
        desk.may_give(of_person(user["role"]), None)
    waiting = [rows.c.email == email, rows.c.status == "pending", rows.c.expires_at > now(), rows.c.id != invite_id]
    if await desk.count(rows, waiting):
        raise ConflictError(f"{email} is invited already; hint: resend")


async def _place(desk: Desk, index: int, place: Place) -> dict[str, str]:
    words, alive = "workspace of this organisation", workspaces.c.status == "active"
    row = await desk.refer(f"workspaces[{index}].id", workspaces, place.id, words, alive)
    await members.may_give_role(desk, place.role, row["id"])
    return {"id": row["id"], "role": place.role}


async def _scopes(desk: Desk, details: KeyDetails | None) -> list[str] | None:
    if details is None:
        return None
    for index, scope in enumerate(details.scopes):
        if scope not in SCOPES["workspace-user"]:
            path = f"workspace_api_key_details.scopes[{index}]"
            raise refuse(path, f"{scope!r} is not for keys of the type workspace-user")
    desk.may_give(details.scopes, None)
    await keys.refuse_beyond(desk, keys.UNLIMITED)
    return sorted(set(details.scopes))


def _shown(row: Row) -> Invite:
    return write_out(
        Invite,
        row,
        status=invites.status(row),
        workspaces=[Place(**place) for place in row["workspaces"]],
        workspace_api_key_details=KeyDetails(row["key_scopes"]) if row["key_scopes"] else None,
    )


routes = [create, Verbs(INVITES, "invite", TAGS).index(Invite, showing, asked), show, remove, resend]
