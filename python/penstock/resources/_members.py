"""Routes for the members of a workspace: the paths below `/workspaces/{workspace}/users`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.authorization import require_scopes, role_rank
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.route_parameters import EmailFilter, IdOrSlug
from penstock.kit.shared_fields import Email, FirstName, Id, LastName, ObjectType
from penstock.kit.tenant_session import RequestContext
from penstock.organisation import members
from penstock.organisation.invites import cancel_invites_of
from penstock.organisation.members import (
    MEMBER_RESOURCE,
    USER_RESOURCE,
    KeepServiceKeys,
    Member,
    NewMember,
    Role,
)
from penstock.schemas import EmptyResponse, ListResponse, row_to_struct
from penstock.store.tables import members as rows
from penstock.store.tables import users

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

TAGS = ["Workspaces > Members"]
UserId = Annotated[str, PathParameter(description="id of the user")]


class AddMembers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users to add to a workspace."""

    users: Annotated[list[NewMember], Meta(min_length=1, description="ids of the users, with their roles")]


class UpdateMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New role of a member."""

    role: Role


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the organisation who is not a member of the workspace."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    object: ObjectType = "user"


RoleParam = Annotated[Role | None, QueryParameter(description="only members with this role")]
CandidateFilter = Annotated[
    str | None,
    QueryParameter(
        max_length=255, description="part of the e-mail address or of a name, ignoring the case of ASCII letters"
    ),
]


@post(
    "/{workspace:str}/users",
    status_code=200,
    guards=[require_scopes("workspace_users.create")],
    summary="Add members",
    tags=TAGS,
)
async def add_members(
    workspace: IdOrSlug, data: JSONBody[AddMembers], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Adds users of the organisation to a workspace."""
    async with context.write_session(workspace) as session:
        await members.add_members(session, session.required_workspace_id, data.users)
        return EmptyResponse()


@get("/{workspace:str}/users", guards=[require_scopes("workspace_users.list")], summary="List members", tags=TAGS)
async def list_members(
    workspace: IdOrSlug,
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    role: RoleParam = None,
    email: EmailFilter = None,
) -> ListResponse[Member]:
    """Lists the members of a workspace."""
    conditions = [rows.c.role == role] if role else []
    if email:
        conditions.append(rows.c.user_id.in_(select(users.c.id).where(users.c.email == email.lower())))
    async with context.read_session(workspace) as session:
        total, result = await MEMBER_RESOURCE.list_page(session, page, conditions)
        return ListResponse(total, await members.load_members(session, result))


@get(
    "/{workspace:str}/candidates",
    guards=[require_scopes("workspace_users.create")],
    summary="List users who can be added",
    tags=TAGS,
)
async def list_candidates(
    workspace: IdOrSlug,
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    search: CandidateFilter = None,
) -> ListResponse[Candidate]:
    """Lists the users of the organisation who are not members of a workspace, so that managers of the workspace can
    add them.
    """
    async with context.read_session(workspace) as session:
        inside = select(rows.c.user_id).where(rows.c.workspace_id == session.required_workspace_id)
        conditions: list[ColumnElement[bool]] = [users.c.id.not_in(inside)]
        if search:
            columns = (users.c.email, users.c.first_name, users.c.last_name)
            conditions.append(or_(*(column.icontains(search, autoescape=True) for column in columns)))
        total, result = await USER_RESOURCE.list_page(session, page, conditions)
        return ListResponse(total, [row_to_struct(Candidate, row) for row in result])


@get(
    "/{workspace:str}/users/{user_id:str}",
    guards=[require_scopes("workspace_users.read")],
    summary="Get member",
    tags=TAGS,
)
async def get_member(workspace: IdOrSlug, user_id: UserId, context: NamedDependency[RequestContext]) -> Member:
    """Returns one member of a workspace."""
    async with context.read_session(workspace) as session:
        return members.member_response(await members.get_member(session, session.required_workspace_id, user_id))


@put(
    "/{workspace:str}/users/{user_id:str}",
    guards=[require_scopes("workspace_users.update")],
    summary="Update member",
    tags=TAGS,
    opt={SHOWN_OPTION: Member},
)
async def update_member(
    workspace: IdOrSlug, user_id: UserId, data: JSONBody[UpdateMember], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Changes the role of a member."""
    async with context.write_session(workspace) as session:
        before = await members.get_member(session, session.required_workspace_id, user_id)
        await context.check_unchanged(session, members.member_response(before))
        members.reject_outranking_member(session, before)
        await members.check_grantable_role(session, data.role, session.required_workspace_id)
        await MEMBER_RESOURCE.update(session, before, {"role": data.role})
        if role_rank(data.role) < role_rank(before["role"]):
            await cancel_invites_of(session, user_id)
        return EmptyResponse()


@delete(
    "/{workspace:str}/users/{user_id:str}",
    status_code=200,
    guards=[require_scopes("workspace_users.delete")],
    summary="Remove member",
    tags=TAGS,
)
async def remove_member(
    workspace: IdOrSlug,
    user_id: UserId,
    context: NamedDependency[RequestContext],
    keep_service_keys: KeepServiceKeys = False,
) -> EmptyResponse:
    """Removes a member from a workspace. Also deletes the user's API keys there, ends keys that the user made, and
    rejects tokens that name both the user and the workspace.
    """
    async with context.write_session(workspace) as session:
        before = await members.get_member(session, session.required_workspace_id, user_id)
        await members.remove_member(session, before, keeps_service_keys=keep_service_keys)
        await cancel_invites_of(session, user_id)
        return EmptyResponse()


routes = [add_members, list_members, list_candidates, get_member, update_member, remove_member]
