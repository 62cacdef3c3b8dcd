"""Invitations to an organisation: links that work once, for a week."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import select

from penstock.authorization import Caller
from penstock.errors import ConflictError, NotFoundError
from penstock.ids import sha256_hex
from penstock.kit import keys, members
from penstock.kit.resource import Resource
from penstock.schemas import now
from penstock.store.tables import invites, users, workspaces

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

INVITES = Resource("organisation_users", invites)
INVITE_TTL_MS = 7 * 24 * 3600 * 1000


class CreatedUserKey(msgspec.Struct, frozen=True):
    """A key that was created together with a user."""

    workspace_id: str
    id: str
    key: str


def create_link() -> tuple[str, dict[str, Any]]:
    """Generates the secret of a link. Returns it with the columns to store."""
    token = secrets.token_urlsafe(32)
    return token, {"sha256": sha256_hex(token), "expires_at": now() + INVITE_TTL_MS, "status": "pending"}


def invite_status(row: Row) -> str:
    """Returns the status of an invitation; a pending one that is past its end is `expired`."""
    return "expired" if row["status"] == "pending" and row["expires_at"] <= now() else row["status"]


async def find_by_token(connection: AsyncConnection, token: str) -> Row:
    """Returns the invitation of a link, which may no longer be open; raises NotFoundError if there is none."""
    found = await connection.execute(select(invites).where(invites.c.sha256 == sha256_hex(token)))
    row = cast("Row | None", found.mappings().first())
    if row is None:
        raise _not_open_error()
    return row


async def find_open(connection: AsyncConnection, token: str) -> Row:
    """Returns the pending invitation of a link; raises NotFoundError if there is none."""
    row = await find_by_token(connection, token)
    if invite_status(row) != "pending":
        raise _not_open_error()
    return row


def _not_open_error() -> NotFoundError:
    return NotFoundError("this invitation is not open: it was used, cancelled or has expired")


async def reject_existing_user(desk: TenantSession, email: str) -> Row | None:
    """Rejects a user who has a password, because a link must not replace it. Returns the user without a password, or
    `None`.
    """
    user = await desk.fetch_first(select(users).where(users.c.email == email), users)
    if user and user["password"]:
        raise ConflictError(f"{email} is a user of this organisation already")
    return user


def invite_caller(row: Row) -> Caller:
    """Returns the caller that accepts an invitation; it has no scopes."""
    return Caller(id=row["id"], type="invite", organisation_id=row["organisation_id"])


async def accept_invite(desk: TenantSession, invite: Row, person: dict[str, Any]) -> tuple[Row, list[CreatedUserKey]]:
    """Creates the user, adds it to the workspaces, and creates the keys that were promised."""
    there = await reject_existing_user(desk, invite["email"])
    if there:
        user = await members.USER_RESOURCE.update(desk, there, person)
    else:
        user = await members.USER_RESOURCE.create(desk, {"email": invite["email"], "role": invite["role"], **person})
    made = [key for place in invite["workspaces"] for key in await _join_workspace(desk, invite, user, place)]
    await INVITES.update(desk, invite, {"status": "accepted", "accepted_at": now()})
    others = select(invites).where(invites.c.email == invite["email"], invites.c.status == "pending")
    for other in await desk.fetch_rows(others, invites):
        await INVITES.update(desk, other, {"status": "cancelled"})
    return user, made


async def _join_workspace(desk: TenantSession, invite: Row, user: Row, place: dict[str, str]) -> list[CreatedUserKey]:
    workspace = await desk.find(workspaces, place["id"])
    # The workspace may have been archived since the invitation.
    if workspace is None or workspace["status"] != "active":
        return []
    own = {"workspace_id": workspace["id"], "user_id": user["id"]}
    if await members.find_member(desk, workspace["id"], user["id"]) is None:
        await members.add_member(desk, {**own, "role": place["role"]})
    # A user who was a member before may already have keys.
    if not await keys.can_add_key(desk, workspace["id"], user["id"]):
        return []
    if scopes := invite["key_scopes"]:
        made = await keys.create_user_key(desk, workspace, user["id"], scopes, "key of an invitation")
    else:
        made = await keys.create_member_key(desk, workspace, user["id"], place["role"])
    return [CreatedUserKey(workspace["id"], *made)] if made else []
