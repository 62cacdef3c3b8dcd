"""Members of workspaces and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.access.roles import non_default_flags, role_scopes
from penstock.access.tenant_rules import organisation_rules
from penstock.authorization import ORGANISATION_ADMIN_RANK, ORGANISATION_ADMIN_ROLES, role_rank
from penstock.errors import ConflictError, ForbiddenError, NotFoundError
from penstock.ids import new_id
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import CreatedAt, Email, FirstName, Id, LastName, ObjectType, UpdatedAt
from penstock.organisation import keys
from penstock.schemas import now, row_to_struct
from penstock.store.tables import api_keys, members, removed_members, users, workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

# Changes are published, because the data plane also rejects tokens of removed members.
MEMBER_RESOURCE = Resource("workspace_users", members, publishes=True)
USER_RESOURCE = Resource("organisation_users", users, publishes=True)

Role = Annotated[Literal["admin", "manager", "member"], Meta(description="role of the user in the workspace")]
KeepServiceKeys = Annotated[
    bool,
    QueryParameter(
        description="true keeps the service keys that the user made, on the authority of the caller, who must have their scopes"
    ),
]


class NewMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user to add to a workspace."""

    id: Annotated[str, Meta(description="id of the user")]
    role: Role = "member"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a workspace."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    org_role: Annotated[str, Meta(description="`owner`, `admin` or `member` of the organisation")]
    role: Annotated[str, Meta(description="`admin`, `manager` or `member` of the workspace")]
    status: Annotated[str, Meta(description="`active`")] = "active"
    workspace_id: Annotated[str, Meta(description="id of the workspace")]
    scopes: Annotated[list[str], Meta(description="scopes beyond those of the role")]
    settings: Annotated[dict[str, Any], Meta(description="settings of the user in the workspace")] = {}
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ObjectType = "workspace-user"


MEMBER_QUERY = select(
    members, users.c.email, users.c.first_name, users.c.last_name, users.c.role.label("org_role")
).join(users, users.c.id == members.c.user_id)


async def check_grantable_role(session: TenantSession, role: str, workspace_id: str) -> Row | None:
    """Rejects a role that allows more in a workspace than the caller may do, by its rank or by its scopes. Returns the
    row of the workspace.
    """
    if role_rank(role) > session.caller.rank(workspace_id):
        raise ForbiddenError(f"this caller may not give the role {role!r}: it has less power in this workspace itself")
    row = await session.organisation().find(workspaces, workspace_id)
    flags = non_default_flags(row["settings"] if row else {}, await organisation_rules(session))
    session.check_grantable_scopes(role_scopes(role, flags), workspace_id)
    return row


def reject_outranking_member(session: TenantSession, member: Row) -> None:
    """Rejects taking a role from a member with more power in the workspace than the caller has."""
    if member_rank(member) > session.caller.rank(member["workspace_id"]):
        role = f"{member['org_role']} of the organisation" if is_organisation_admin(member) else member["role"]
        raise ForbiddenError(
            f"this caller may not change or remove a member with the role {role!r}, who has more power"
        )


def member_rank(member: Row) -> int:
    """Returns the rank of a member. The row contains the role in the workspace and the role in the organisation."""
    return ORGANISATION_ADMIN_RANK if is_organisation_admin(member) else role_rank(member["role"])


def is_organisation_admin(member: Row) -> bool:
    """Returns true if a member is an owner or admin of the organisation, and so of each of its workspaces."""
    return member["org_role"] in ORGANISATION_ADMIN_ROLES


async def add_members(session: TenantSession, workspace_id: str, requested: Sequence[NewMember]) -> None:
    """Adds users to a workspace; raises ConflictError if one is already a member."""
    for index, person in enumerate(requested):
        workspace = await check_grantable_role(session, person.role, workspace_id)
        user = await session.resolve_reference(f"users[{index}].id", users, person.id, "user of this organisation")
        if await find_member(session, workspace_id, person.id):
            message = f"{user['email']} is in this workspace already"
            raise ConflictError(message)
        await add_member(session, {"workspace_id": workspace_id, "user_id": person.id, "role": person.role})
        if workspace:
            await keys.create_member_key(session, workspace, person.id, person.role, waits=True)


async def add_member(session: TenantSession, member: dict[str, str]) -> None:
    """Adds one user to a workspace; `member` contains `workspace_id`, `user_id` and `role`. If the user was removed
    from the workspace before, tokens for this user and workspace become valid again.
    """
    await MEMBER_RESOURCE.create(session, {"scopes": [], **member})
    email = select(users.c.email).where(users.c.id == member["user_id"]).scalar_subquery()
    matches_user = or_(removed_members.c.user_id == member["user_id"], removed_members.c.email == email)
    await session.delete(removed_members, removed_members.c.workspace_id == member["workspace_id"], matches_user)


async def remove_member(session: TenantSession, member: Row, *, keeps_service_keys: bool) -> None:
    """Removes a member, the user's own keys, and the secrets issued on the user's authority. Records the removal,
    because tokens may still name the user.
    """
    reject_outranking_member(session, member)
    await MEMBER_RESOURCE.delete(session, member)
    await record_removal(session, member["user_id"], member["email"])
    await keys.remove_matching(session, api_keys.c.user_id == member["user_id"])
    # Keys on the authority of an admin of the organisation stay valid, because an admin has access without being a
    # member.
    if not is_organisation_admin(member):
        in_workspace = api_keys.c.workspace_id == member["workspace_id"]
        await keys.end_authority(session, member["user_id"], in_workspace, keeps_service_keys=keeps_service_keys)


async def record_removal(session: TenantSession, user_id: str, email: str) -> None:
    """Records that a user was removed from the workspace, or from the organisation if the session has no workspace."""
    await session.insert(removed_members, {"id": new_id(), "user_id": user_id, "email": email, "created_at": now()})


async def find_member(session: TenantSession, workspace_id: str, user_id: str) -> Row | None:
    """Returns a member of a workspace, or `None`."""
    query = MEMBER_QUERY.where(members.c.workspace_id == workspace_id, members.c.user_id == user_id)
    return await session.fetch_first(query, members)


async def get_member(session: TenantSession, workspace_id: str, user_id: str) -> Row:
    """Returns a member of a workspace; raises NotFoundError if there is none."""
    row = await find_member(session, workspace_id, user_id)
    if row is None:
        message = f"the user {user_id!r} is not in this workspace"
        raise NotFoundError(message)
    session.set_requested_row(members, row)
    return row


async def load_members(session: TenantSession, rows: Sequence[Row]) -> list[Member]:
    """Converts rows of members to the response, in the same order, with the names of the users."""
    query = MEMBER_QUERY.where(members.c.id.in_([row["id"] for row in rows]))
    rows_by_id = {row["id"]: row for row in await session.fetch_rows(query, members)}
    return [member_response(rows_by_id[row["id"]]) for row in rows if row["id"] in rows_by_id]


async def list_members(
    session: TenantSession, workspace_id: str, conditions: Sequence[ColumnElement[bool]] = ()
) -> list[Member]:
    """Lists the members of a workspace."""
    query = MEMBER_QUERY.where(members.c.workspace_id == workspace_id, *conditions).order_by(members.c.id)
    return [member_response(row) for row in await session.fetch_rows(query, members)]


def member_response(row: Row) -> Member:
    """Converts a row to the response."""
    return row_to_struct(Member, row, id=row["user_id"])
