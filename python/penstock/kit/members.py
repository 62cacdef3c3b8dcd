"""Who is in a workspace, and as what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.errors import ConflictError, MissingError
from penstock.ids import new_id
from penstock.kit import keys
from penstock.kit.resource import Resource
from penstock.kit.roles import in_force, of_role
from penstock.kit.rules import of_organisation
from penstock.kit.shared_fields import Changed, Email, FirstName, Id, LastName, Moment, Object
from penstock.schemas import now, write_out
from penstock.store.tables import departed, members, users, workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

# Tokens of who is not there any more are refused on the data plane too.
MEMBERS = Resource("workspace_users", members, publishes=True)
USERS = Resource("organisation_users", users, publishes=True)

Role = Annotated[Literal["admin", "manager", "member"], Meta(description="what the person may do in the workspace")]


class NewMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person who is to be in a workspace."""

    id: Annotated[str, Meta(description="id of the user")]
    role: Role = "member"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person in a workspace."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    org_role: Annotated[str, Meta(description="`owner`, `admin` or `member` of the organisation")]
    role: Annotated[str, Meta(description="`admin`, `manager` or `member` of the workspace")]
    status: Annotated[str, Meta(description="`active`")] = "active"
    workspace_id: Annotated[str, Meta(description="id of the workspace")]
    scopes: Annotated[list[str], Meta(description="scopes beyond those of the role")]
    settings: Annotated[dict[str, Any], Meta(description="settings of the person in the workspace")] = {}
    created_at: Moment
    last_updated_at: Changed
    object: Object = "workspace-user"


QUERY = select(members, users.c.email, users.c.first_name, users.c.last_name, users.c.role.label("org_role")).join(
    users, users.c.id == members.c.user_id
)


async def may_give_role(desk: Desk, role: str, workspace_id: str) -> Row | None:
    """Refuse to give others a role that lets them do more in a workspace than the caller may; give the workspace."""
    row = await desk.organisation().find(workspaces, workspace_id)
    flags = in_force(row["settings"] if row else {}, await of_organisation(desk))
    desk.may_give(of_role(role, flags), workspace_id)
    return row


async def add(desk: Desk, workspace_id: str, wanted: Sequence[NewMember]) -> None:
    """Take people in; those who are in already are a conflict."""
    for index, person in enumerate(wanted):
        workspace = await may_give_role(desk, person.role, workspace_id)
        user = await desk.refer(f"users[{index}].id", users, person.id, "user of this organisation")
        if await find(desk, workspace_id, person.id):
            message = f"{user['email']} is in this workspace already"
            raise ConflictError(message)
        await enter(desk, {"workspace_id": workspace_id, "user_id": person.id, "role": person.role})
        if workspace:
            await keys.welcome(desk, workspace, person.id, person.role, waits=True)


async def enter(desk: Desk, member: dict[str, str]) -> None:
    """Take one person in: the workspace, the user and the role. Tokens that name both are good again."""
    await MEMBERS.add(desk, {"scopes": [], **member})
    email = select(users.c.email).where(users.c.id == member["user_id"]).scalar_subquery()
    named = or_(departed.c.user_id == member["user_id"], departed.c.email == email)
    await desk.delete(departed, departed.c.workspace_id == member["workspace_id"], named)


async def leave(desk: Desk, member: Row) -> None:
    """Take one person out, and note it: a token may still name them."""
    await MEMBERS.remove(desk, member)
    await depart(desk, member["user_id"], member["email"])


async def depart(desk: Desk, user_id: str, email: str) -> None:
    """Note who was taken out of a workspace; where none is chosen, out of the organisation."""
    await desk.insert(departed, {"id": new_id(), "user_id": user_id, "email": email, "created_at": now()})


async def find(desk: Desk, workspace_id: str, user_id: str) -> Row | None:
    """Find one person of a workspace."""
    here = QUERY.where(members.c.workspace_id == workspace_id, members.c.user_id == user_id)
    return await desk.first(here, members)


async def need(desk: Desk, workspace_id: str, user_id: str) -> Row:
    """Find one person of a workspace, who must be there."""
    row = await find(desk, workspace_id, user_id)
    if row is None:
        message = f"the user {user_id!r} is not in this workspace"
        raise MissingError(message)
    desk.address(members, row)
    return row


async def with_names(desk: Desk, rows: Sequence[Row]) -> list[Member]:
    """Write people down in this order, of whom their places in a workspace are known."""
    query = QUERY.where(members.c.id.in_([row["id"] for row in rows]))
    known = {row["id"]: row for row in await desk.rows(query, members)}
    return [shown(known[row["id"]]) for row in rows if row["id"] in known]


async def of(desk: Desk, workspace_id: str, conditions: Sequence[ColumnElement[bool]] = ()) -> list[Member]:
    """List the people of a workspace."""
    query = QUERY.where(members.c.workspace_id == workspace_id, *conditions).order_by(members.c.id)
    return [shown(row) for row in await desk.rows(query, members)]


def shown(row: Row) -> Member:
    """Write a person down."""
    return write_out(Member, row, id=row["user_id"])
