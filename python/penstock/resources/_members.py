"""Members of a workspace: the part of its paths that begins at `/users`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import select

from penstock.authorization import needs
from penstock.kit import keys, members
from penstock.kit.listing import Page
from penstock.kit.members import MEMBERS, Member, NewMember, Role
from penstock.kit.shared_fields import EmailAsked, IdOrSlug
from penstock.kit.tenant_session import Work
from penstock.schemas import Done, Listed
from penstock.store.tables import api_keys, users
from penstock.store.tables import members as rows

TAGS = ["Workspaces > Members"]
UserId = Annotated[str, PathParameter(description="id of the user")]


class NewMembers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """People to be taken in."""

    users: Annotated[list[NewMember], Meta(min_length=1, description="ids with roles")]


class RoleChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another role."""

    role: Role


RoleAsked = Annotated[Role | None, QueryParameter(description="only those with this role")]


@post(
    "/{workspace:str}/users",
    status_code=200,
    guards=[needs("workspace_users.create")],
    summary="Add members",
    tags=TAGS,
)
async def add(workspace: IdOrSlug, data: JSONBody[NewMembers], work: NamedDependency[Work]) -> Done:
    """Take people of the organisation into a workspace."""
    async with work.writing(workspace) as desk:
        await members.add(desk, desk.workspace, data.users)
        return Done()


@get("/{workspace:str}/users", guards=[needs("workspace_users.list")], summary="List members", tags=TAGS)
async def index(
    workspace: IdOrSlug,
    work: NamedDependency[Work],
    page: NamedDependency[Page],
    role: RoleAsked = None,
    email: EmailAsked = None,
) -> Listed[Member]:
    """List the members of a workspace."""
    conditions = [rows.c.role == role] if role else []
    if email:
        conditions.append(rows.c.user_id.in_(select(users.c.id).where(users.c.email == email.lower())))
    async with work.reading(workspace) as desk:
        total, found = await MEMBERS.page(desk, page, conditions)
        return Listed(total, await members.with_names(desk, found))


@get("/{workspace:str}/users/{user_id:str}", guards=[needs("workspace_users.read")], summary="Get member", tags=TAGS)
async def show(workspace: IdOrSlug, user_id: UserId, work: NamedDependency[Work]) -> Member:
    """Give one member of a workspace."""
    async with work.reading(workspace) as desk:
        return members.shown(await members.need(desk, desk.workspace, user_id))


@put(
    "/{workspace:str}/users/{user_id:str}", guards=[needs("workspace_users.update")], summary="Update member", tags=TAGS
)
async def update(workspace: IdOrSlug, user_id: UserId, data: JSONBody[RoleChange], work: NamedDependency[Work]) -> Done:
    """Give a member another role."""
    async with work.writing(workspace) as desk:
        before = await members.need(desk, desk.workspace, user_id)
        await members.may_give_role(desk, data.role, desk.workspace)
        await MEMBERS.change(desk, before, {"role": data.role})
        return Done()


@delete(
    "/{workspace:str}/users/{user_id:str}",
    status_code=200,
    guards=[needs("workspace_users.delete")],
    summary="Remove member",
    tags=TAGS,
)
async def remove(workspace: IdOrSlug, user_id: UserId, work: NamedDependency[Work]) -> Done:
    """Take a member out of a workspace; the keys that the person has there end with it, and tokens that name both."""
    async with work.writing(workspace) as desk:
        before = await members.need(desk, desk.workspace, user_id)
        await members.leave(desk, before)
        await keys.remove_all(desk, api_keys.c.user_id == user_id)
        return Done()


routes = [add, index, show, update, remove]
