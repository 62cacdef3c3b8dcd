"""People of the organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import select

from penstock.authorization import LEADING, needs, of_person
from penstock.errors import ConflictError
from penstock.kit import keys
from penstock.kit.crud_routes import Verbs, Wanted
from penstock.kit.listing import equal
from penstock.kit.members import MEMBERS, USERS, depart
from penstock.kit.session_revocation import end
from penstock.kit.shared_fields import Changed, Email, EmailAsked, FirstName, Id, LastName, Moment, Object
from penstock.kit.tenant_session import Desk, Work
from penstock.schemas import Done, write_out
from penstock.store.tables import api_keys, members, sessions, users

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Users"]

UserId = Annotated[str, PathParameter(description="id of the user")]
RoleAsked = Annotated[
    Literal["owner", "admin", "member"] | None, QueryParameter(description="only those with this role")
]


class UserChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another role."""

    role: Annotated[Literal["admin", "member"], Meta(description="what the person may do in the organisation")]


class User(msgspec.Struct, frozen=True, kw_only=True):
    """One person."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    role: Annotated[str, Meta(description="`owner`, `admin` or `member`")]
    workspace_ids: Annotated[list[str], Meta(description="ids of the workspaces that the person is in")]
    created_at: Moment
    last_updated_at: Changed
    object: Object = "user"


def asked(role: RoleAsked = None, email: EmailAsked = None) -> Wanted:
    """List the people of the organisation."""
    return Wanted(None, equal(users, role=role, email=email and email.lower()))


@get("/{user_id:str}", guards=[needs("organisation_users.read")], summary="Get user", tags=TAGS)
async def show(user_id: UserId, work: NamedDependency[Work]) -> User:
    """Give one person."""
    async with work.reading() as desk:
        return (await _shown(desk, [await USERS.get(desk, user_id)]))[0]


@put("/{user_id:str}", guards=[needs("organisation_users.update")], summary="Update user", tags=TAGS)
async def update(user_id: UserId, data: JSONBody[UserChange], work: NamedDependency[Work]) -> Done:
    """Give a person another role; the owner stays the owner.

    Who is an admin no more keeps keys in those workspaces alone that the person is a member of.
    """
    async with work.writing() as desk:
        desk.may_give(of_person(data.role), None)
        row = await _no_owner(desk, user_id)
        await USERS.change(desk, row, {"role": data.role})
        if data.role not in LEADING:
            inside = select(members.c.workspace_id).where(members.c.user_id == row["id"])
            await keys.remove_all(desk, api_keys.c.user_id == row["id"], api_keys.c.workspace_id.not_in(inside))
        return Done()


@delete(
    "/{user_id:str}", status_code=200, guards=[needs("organisation_users.delete")], summary="Delete user", tags=TAGS
)
async def remove(user_id: UserId, work: NamedDependency[Work]) -> Done:
    """Take a person out of the organisation; the person's keys and sessions end with it, and tokens that name the person."""
    async with work.writing() as desk:
        row = await _no_owner(desk, user_id)
        await keys.remove_all(desk, api_keys.c.user_id == row["id"])
        await MEMBERS.remove_all(desk, members.c.user_id == row["id"])
        await end(desk, sessions.c.user_id == row["id"])
        await USERS.remove(desk, row)
        await depart(desk, row["id"], row["email"])
        return Done()


async def _no_owner(desk: Desk, user_id: str) -> Row:
    row = await USERS.get(desk, user_id)
    if row["role"] == "owner":
        raise ConflictError("the owner of the organisation stays its owner")
    return row


async def _shown(desk: Desk, rows: list[Row]) -> list[User]:
    query = select(members.c.user_id, members.c.workspace_id).where(members.c.user_id.in_([row["id"] for row in rows]))
    inside: dict[str, list[str]] = {}
    for member in await desk.rows(query.order_by(members.c.id), members):
        inside.setdefault(member["user_id"], []).append(member["workspace_id"])
    return [write_out(User, row, workspace_ids=inside.get(row["id"], [])) for row in rows]


routes = [Verbs(USERS, "user", TAGS).index(User, _shown, asked), show, update, remove]
