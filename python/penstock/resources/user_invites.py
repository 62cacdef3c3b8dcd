"""Routes for inviting people into the organisation and its workspaces."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import or_

from penstock.access.default_metadata import check_default_metadata
from penstock.authorization import reject_unusable_scopes, require_scopes, user_scopes
from penstock.errors import ConflictError
from penstock.kit.client_ip import public_base_url
from penstock.kit.crud_routes import CrudRoutes, ListQuery
from penstock.kit.numbered_pages import equality_conditions
from penstock.kit.route_parameters import EmailFilter
from penstock.kit.shared_fields import CreatedAt, Email, Id, ObjectType, OptionalTimestamp
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.organisation import invites, keys, members
from penstock.organisation.invites import INVITES
from penstock.organisation.members import Role
from penstock.schemas import EmptyResponse, field_error, now, row_to_struct, to_milliseconds
from penstock.settings import Settings
from penstock.store.tables import invites as rows
from penstock.store.tables import workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

TAGS = ["User invites"]
MAX_WORKSPACES = 100
INVITE_PAGE_PATH = "/v1/auth/invites"

OrganisationRole = Annotated[Literal["admin", "member"], Meta(description="role of the person in the organisation")]


ProposedName = Annotated[
    Annotated[str, Meta(max_length=255)] | None,
    Meta(description="name of the person, used unless they give another one"),
]


class InviteWorkspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workspace that the person joins, and the role in it."""

    id: Annotated[str, Meta(description="id or slug of the workspace")]
    role: Role


class InviteKeyDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The API key that the person gets in each of the workspaces."""

    scopes: Annotated[list[str], Meta(min_length=1, description="scopes of the keys")]
    name: Annotated[Annotated[str, Meta(min_length=1, max_length=255)] | None, Meta(description="name of the keys")] = (
        None
    )
    expiry: Annotated[datetime | None, Meta(description="time at which the keys expire, ISO 8601")] = None
    metadata: Annotated[dict[str, str] | None, Meta(description="metadata of every request with the keys")] = None


class NewInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An invitation to create: the person's email address, role, workspaces and API keys."""

    email: Email
    role: OrganisationRole
    first_name: ProposedName = None
    last_name: ProposedName = None
    workspaces: Annotated[
        list[InviteWorkspace],
        Meta(max_length=MAX_WORKSPACES, description="workspaces to join, with the role in each; default: none"),
    ] = []
    workspace_api_key_details: Annotated[
        InviteKeyDetails | None, Meta(description="API keys that the person gets in these workspaces")
    ] = None


class CreatedInvite(msgspec.Struct, frozen=True):
    """Id of the new invitation, and the link that the person opens to accept it."""

    id: Id
    invite_link: Annotated[
        str, Meta(description="link that accepts the invitation; anyone who has it can use it, once")
    ]
    object: ObjectType = "invite"


class ResentInvite(msgspec.Struct, frozen=True, rename="camel"):
    """New link of an invitation; it replaces the previous one."""

    invite_link: Annotated[
        str, Meta(description="new link that accepts the invitation; the previous link no longer works")
    ]


class Invite(msgspec.Struct, frozen=True, kw_only=True):
    """One invitation."""

    id: Id
    email: Email
    role: Annotated[str, Meta(description="`admin` or `member`")]
    first_name: ProposedName
    last_name: ProposedName
    created_at: CreatedAt
    expires_at: Annotated[str, Meta(description="time until which the link can be used")]
    accepted_at: OptionalTimestamp
    status: Annotated[str, Meta(description="`pending`, `accepted`, `cancelled` or `expired`")]
    invited_by: Annotated[str | None, Meta(description="id of the user or API key that sent the invitation")]
    workspaces: Annotated[list[InviteWorkspace], Meta(description="workspaces that the person joins, by id")]
    workspace_api_key_details: Annotated[
        InviteKeyDetails | None, Meta(description="API keys that the person gets in these workspaces")
    ]
    object: ObjectType = "invite"


InviteId = Annotated[str, PathParameter(description="id of the invitation")]
RoleFilter = Annotated[
    Literal["admin", "member"] | None, QueryParameter(description="return only invitations with this role")
]
StatusFilter = Annotated[
    Literal["pending", "cancelled", "accepted", "expired"] | None,
    QueryParameter(description="return only invitations with this status"),
]


@post("/", status_code=200, guards=[require_scopes("organisation_users.create")], summary="Invite user", tags=TAGS)
async def create_invite(
    data: JSONBody[NewInvite],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    request: Request[Any, Any, Any],
) -> CreatedInvite:
    """Invites a person and returns the link to send to them. The link is not shown again."""
    email = data.email.lower()
    async with context.write_session() as session:
        await _reject_existing_user_or_invite(session, email)
        session.check_grantable_scopes(user_scopes(data.role), None)
        token, link_columns = invites.create_link()
        joined = [await _resolve_workspace(session, index, item) for index, item in enumerate(data.workspaces)]
        values = {
            **link_columns,
            "email": email,
            "role": data.role,
            "first_name": data.first_name,
            "last_name": data.last_name,
            "workspaces": joined,
            "key_scopes": await _validate_key_details(
                session, data.workspace_api_key_details, [item["id"] for item in joined]
            ),
            "accepted_at": None,
            "invited_by": context.caller.actor_id,
            "holders": sorted(context.caller.authorities) or None,
        }
        row = await INVITES.create(session, values)
        return CreatedInvite(row["id"], f"{public_base_url(settings, request)}{INVITE_PAGE_PATH}?token={token}")


def list_query(role: RoleFilter = None, email: EmailFilter = None, status: StatusFilter = None) -> ListQuery:
    """Lists invitations, including those that are accepted, cancelled or expired."""
    conditions = equality_conditions(rows, role=role, email=email and email.lower())
    if status == "expired":
        conditions += [rows.c.status == "pending", rows.c.expires_at <= now()]
    elif status:
        conditions += [rows.c.status == status, or_(rows.c.status != "pending", rows.c.expires_at > now())]
    return ListQuery(None, conditions)


async def to_invites(_session: TenantSession, rows: list[Row]) -> list[Invite]:
    """Converts invitation rows to the response format."""
    return [_to_invite(row) for row in rows]


@get("/{invite_id:str}", guards=[require_scopes("organisation_users.read")], summary="Get invite", tags=TAGS)
async def get_invite(invite_id: InviteId, context: NamedDependency[RequestContext]) -> Invite:
    """Returns one invitation."""
    async with context.read_session() as session:
        return _to_invite(await INVITES.get(session, invite_id))


@delete(
    "/{invite_id:str}",
    status_code=200,
    guards=[require_scopes("organisation_users.delete")],
    summary="Delete invite",
    tags=TAGS,
)
async def cancel_invite(invite_id: InviteId, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Cancels an invitation; its link no longer works. Returns a conflict if it was already accepted."""
    async with context.write_session() as session:
        row = await INVITES.get(session, invite_id)
        if row["status"] == "accepted":
            raise ConflictError("this invitation was accepted; hint: delete the user")
        await INVITES.update(session, row, {"status": "cancelled"}, "delete")
        return EmptyResponse()


@post(
    "/{invite_id:str}/resend",
    status_code=200,
    guards=[require_scopes("organisation_users.create")],
    summary="Resend invite",
    tags=TAGS,
)
async def resend_invite(
    invite_id: InviteId,
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    request: Request[Any, Any, Any],
) -> ResentInvite:
    """Creates a new link for a pending invitation. The link is valid for a week, and the previous one no longer works."""
    async with context.write_session() as session:
        row = await INVITES.get(session, invite_id)
        if row["status"] != "pending":
            raise ConflictError(f"this invitation is {row['status']}")
        # Anyone with the link can become the invited user, so the caller must hold every right that it grants.
        await _reject_existing_user_or_invite(session, row["email"], row["id"])
        session.check_grantable_scopes(user_scopes(row["role"]), None)
        details = invites.key_details(row)
        session.check_grantable_scopes(details["scopes"], None)
        if details["scopes"]:
            await keys.reject_escalation(session, keys.UNLIMITED_COLUMNS)
        for workspace in row["workspaces"]:
            await members.check_grantable_role(session, workspace["role"], workspace["id"])
        token, link_columns = invites.create_link()
        # `holders` are users who know a link. The caller knows the new one. Users of an earlier link remain, because it
        # may still have been used.
        holders = sorted({*(row["holders"] or []), *context.caller.authorities}) or None
        await INVITES.update(session, row, {**link_columns, "holders": holders})
        return ResentInvite(f"{public_base_url(settings, request)}{INVITE_PAGE_PATH}?token={token}")


async def _reject_existing_user_or_invite(session: TenantSession, email: str, invite_id: str = "") -> None:
    if user := await invites.reject_existing_user(session, email):
        # The user exists but cannot sign in yet. The invitation lets them sign in with their current role, so the
        # caller must hold its rights.
        session.check_grantable_scopes(user_scopes(user["role"]), None)
    waiting = [rows.c.email == email, rows.c.status == "pending", rows.c.expires_at > now(), rows.c.id != invite_id]
    if await session.count(rows, waiting):
        raise ConflictError(f"{email} is invited already; hint: resend")


async def _resolve_workspace(session: TenantSession, index: int, workspace: InviteWorkspace) -> dict[str, str]:
    description, alive = "workspace of this organisation", workspaces.c.status == "active"
    row = await session.resolve_reference(f"workspaces[{index}].id", workspaces, workspace.id, description, alive)
    await members.check_grantable_role(session, workspace.role, row["id"])
    return {"id": row["id"], "role": workspace.role}


async def _validate_key_details(
    session: TenantSession, details: InviteKeyDetails | None, workspace_ids: list[str]
) -> dict[str, Any] | None:
    if details is None:
        return None
    reject_unusable_scopes("workspace_api_key_details.scopes", "workspace-user", details.scopes)
    session.check_grantable_scopes(details.scopes, None)
    await keys.reject_escalation(session, keys.UNLIMITED_COLUMNS)
    end = to_milliseconds(details.expiry)
    if end is not None and end <= now():
        raise field_error("workspace_api_key_details.expiry", "is in the past")
    check_default_metadata("workspace_api_key_details.metadata", details.metadata)
    for workspace_id in workspace_ids:
        await keys.check_promised_key(session, workspace_id, "workspace_api_key_details", end, details.metadata)
    return {**msgspec.to_builtins(details), "scopes": sorted(set(details.scopes))}


def _to_invite(row: Row) -> Invite:
    return row_to_struct(
        Invite,
        row,
        status=invites.invite_status(row),
        workspaces=[InviteWorkspace(**workspace) for workspace in row["workspaces"]],
        workspace_api_key_details=(
            msgspec.convert(invites.key_details(row), InviteKeyDetails) if row["key_scopes"] else None
        ),
    )


routes = [
    create_invite,
    CrudRoutes(INVITES, "invite", TAGS).list_route(Invite, to_invites, list_query),
    get_invite,
    cancel_invite,
    resend_invite,
]
