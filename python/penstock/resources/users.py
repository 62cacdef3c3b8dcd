"""Routes for the users of the organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import or_, select

from penstock.authorization import ORGANISATION_ADMIN_ROLES, require_scopes, user_scopes
from penstock.errors import ConflictError
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.crud_routes import CrudRoutes, ListQuery
from penstock.kit.numbered_pages import equality_conditions
from penstock.kit.route_parameters import EmailFilter
from penstock.kit.shared_fields import CreatedAt, Email, FirstName, Id, LastName, ObjectType, UpdatedAt
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.organisation import keys
from penstock.organisation.invites import cancel_invites_of
from penstock.organisation.members import MEMBER_RESOURCE, USER_RESOURCE, KeepServiceKeys, record_removal
from penstock.organisation.session_revocation import end_sessions
from penstock.schemas import EmptyResponse, row_to_struct, sent_fields
from penstock.store.tables import api_keys, members, sessions, users

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["Users"]

UserId = Annotated[str, PathParameter(description="id of the user")]
RoleFilter = Annotated[
    Literal["owner", "admin", "member"] | None, QueryParameter(description="return only users with this role")
]


class UserUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a user to update; omitted fields keep their values."""

    role: Annotated[
        Literal["admin", "member"] | UnsetType, Meta(description="role of the user in the organisation")
    ] = UNSET
    first_name: Annotated[Annotated[str, Meta(max_length=255)] | UnsetType, Meta(description="first name")] = UNSET
    last_name: Annotated[Annotated[str, Meta(max_length=255)] | UnsetType, Meta(description="last name")] = UNSET


class User(msgspec.Struct, frozen=True, kw_only=True):
    """One user."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    role: Annotated[str, Meta(description="`owner`, `admin` or `member`")]
    workspace_ids: Annotated[list[str], Meta(description="ids of the workspaces that the user is a member of")]
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ObjectType = "user"


def list_query(role: RoleFilter = None, email: EmailFilter = None) -> ListQuery:
    """Lists the users of the organisation."""
    return ListQuery(None, equality_conditions(users, role=role, email=email and email.lower()))


@get("/{user_id:str}", guards=[require_scopes("organisation_users.read")], summary="Get user", tags=TAGS)
async def get_user(user_id: UserId, context: NamedDependency[RequestContext]) -> User:
    """Returns one user."""
    async with context.read_session() as session:
        return (await _to_users(session, [await USER_RESOURCE.get(session, user_id)]))[0]


@put(
    "/{user_id:str}",
    guards=[require_scopes("organisation_users.update")],
    summary="Update user",
    tags=TAGS,
    opt={SHOWN_OPTION: User},
)
async def update_user(
    user_id: UserId, data: JSONBody[UserUpdate], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Changes the role or the name of a user. The owner cannot be changed.

    A user who is no longer an admin keeps API keys only in workspaces that the user is a member of.
    """
    async with context.write_session() as session:
        if data.role is not UNSET:
            session.check_grantable_scopes(user_scopes(data.role), None)
        row = await _get_changeable_user(session, user_id)
        if context.sends_read_fields:
            await context.check_unchanged(session, (await _to_users(session, [row]))[0])
        await USER_RESOURCE.update(session, row, sent_fields(data))
        if data.role is not UNSET and data.role not in ORGANISATION_ADMIN_ROLES:
            inside = select(members.c.workspace_id).where(members.c.user_id == row["id"])
            outside = or_(api_keys.c.workspace_id.is_(None), api_keys.c.workspace_id.not_in(inside))
            await keys.remove_matching(session, api_keys.c.user_id == row["id"], api_keys.c.workspace_id.not_in(inside))
            await keys.end_authority(session, row["id"], outside)
            await cancel_invites_of(session, row["id"])
        return EmptyResponse()


@delete(
    "/{user_id:str}",
    status_code=200,
    guards=[require_scopes("organisation_users.delete")],
    summary="Delete user",
    tags=TAGS,
)
async def delete_user(
    user_id: UserId, context: NamedDependency[RequestContext], keep_service_keys: KeepServiceKeys = False
) -> EmptyResponse:
    """Removes a user from the organisation. Deletes the user's API keys, ends keys that the user made and the user's
    sessions, and rejects JWTs that name the user.
    """
    async with context.write_session() as session:
        row = await _get_changeable_user(session, user_id)
        await keys.remove_matching(session, api_keys.c.user_id == row["id"])
        await keys.end_authority(session, row["id"], keeps_service_keys=keep_service_keys)
        await cancel_invites_of(session, row["id"])
        await MEMBER_RESOURCE.delete_all(session, members.c.user_id == row["id"])
        await end_sessions(session, sessions.c.user_id == row["id"])
        await USER_RESOURCE.delete(session, row)
        await record_removal(session, row["id"], row["email"])
        return EmptyResponse()


async def _get_changeable_user(session: TenantSession, user_id: str) -> Row:
    """Returns a user. Rejects the owner, and a user with more rights than the caller has."""
    row = await USER_RESOURCE.get(session, user_id)
    if row["role"] == "owner":
        raise ConflictError("the owner of the organisation cannot be changed or deleted")
    session.check_grantable_scopes(user_scopes(row["role"]), None)
    return row


async def _to_users(session: TenantSession, rows: list[Row]) -> list[User]:
    query = select(members.c.user_id, members.c.workspace_id).where(members.c.user_id.in_([row["id"] for row in rows]))
    inside: dict[str, list[str]] = {}
    for member in await session.fetch_rows(query.order_by(members.c.id), members):
        inside.setdefault(member["user_id"], []).append(member["workspace_id"])
    return [row_to_struct(User, row, workspace_ids=inside.get(row["id"], [])) for row in rows]


routes = [
    CrudRoutes(USER_RESOURCE, "user", TAGS).list_route(User, _to_users, list_query),
    get_user,
    update_user,
    delete_user,
]
