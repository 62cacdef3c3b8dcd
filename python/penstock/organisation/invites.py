"""Invitations to an organisation: links that work once, for a week."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import or_, select

from penstock.authorization import Caller
from penstock.errors import ConflictError, NotFoundError
from penstock.ids import sha256_hex
from penstock.kit.resource import Resource
from penstock.organisation import keys, members
from penstock.schemas import now, to_milliseconds
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
    """Returns the status of an invitation. A pending invitation whose expiry has passed is `expired`."""
    return "expired" if row["status"] == "pending" and row["expires_at"] <= now() else row["status"]


async def find_by_token(connection: AsyncConnection, token: str) -> Row:
    """Returns the invitation of a link, in any status; raises NotFoundError if there is none."""
    rows = await connection.execute(select(invites).where(invites.c.sha256 == sha256_hex(token)))
    row = cast("Row | None", rows.mappings().first())
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


async def reject_existing_user(session: TenantSession, email: str) -> Row | None:
    """Raises ConflictError if the user with this address has a password, because an invitation must not replace it.
    Returns a user without a password, or `None` if there is no user.
    """
    user = await session.fetch_first(select(users).where(users.c.email == email), users)
    if user and user["password"]:
        raise ConflictError(f"{email} is a user of this organisation already")
    return user


async def cancel_invites_of(session: TenantSession, user_id: str) -> None:
    """Cancels the open invitations that a user sent, directly or with an API key. Called when the user loses rights,
    because the links would still grant them.
    """
    org_session = session.organisation()
    is_senders = or_(invites.c.invited_by == user_id, keys.has_holder(invites.c.holders, user_id))
    is_open = invites.c.status == "pending"
    for row in await org_session.fetch_rows(select(invites).where(is_senders, is_open), invites):
        await INVITES.update(org_session, row, {"status": "cancelled"}, "delete")


def invite_caller(row: Row) -> Caller:
    """Returns the caller as which an invitation is accepted. It has no scopes."""
    return Caller(id=row["id"], type="invite", organisation_id=row["organisation_id"])


async def accept_invite(
    session: TenantSession, invite: Row, person: dict[str, Any]
) -> tuple[Row, list[CreatedUserKey]]:
    """Creates the user, adds them to the workspaces, and creates the API keys that the invitation promises."""
    existing = await reject_existing_user(session, invite["email"])
    if existing:
        user = await members.USER_RESOURCE.update(session, existing, person)
    else:
        user = await members.USER_RESOURCE.create(session, {"email": invite["email"], "role": invite["role"], **person})
    created_keys = [
        key for membership in invite["workspaces"] for key in await _join_workspace(session, invite, user, membership)
    ]
    await INVITES.update(session, invite, {"status": "accepted", "accepted_at": now()})
    others = select(invites).where(invites.c.email == invite["email"], invites.c.status == "pending")
    for other in await session.fetch_rows(others, invites):
        await INVITES.update(session, other, {"status": "cancelled"})
    return user, created_keys


async def _join_workspace(
    session: TenantSession, invite: Row, user: Row, membership: dict[str, str]
) -> list[CreatedUserKey]:
    workspace = await session.find(workspaces, membership["id"])
    # The workspace may have been archived since the invitation.
    if workspace is None or workspace["status"] != "active":
        return []
    member_fields = {"workspace_id": workspace["id"], "user_id": user["id"]}
    if await members.find_member(session, workspace["id"], user["id"]) is None:
        await members.add_member(session, {**member_fields, "role": membership["role"]})
    # A user who was a member before may already have the maximum number of keys.
    if not await keys.can_add_key(session, workspace["id"], user["id"]):
        return []
    if (details := key_details(invite))["scopes"]:
        name = details.get("name") or "key of an invitation"
        settings = _key_settings(details)
        if "expires_at" in settings:
            # If the rule became stricter since the invitation, the key expires earlier, instead of an error that locks
            # the user out.
            settings["expires_at"] = await keys.cap_expiry(session, workspace["id"], settings["expires_at"])
        created = await keys.create_user_key(session, workspace, user["id"], details["scopes"], name, settings)
    else:
        created = await keys.create_member_key(session, workspace, user["id"], membership["role"])
    return [CreatedUserKey(workspace["id"], *created)] if created else []


def key_details(invite: Row) -> dict[str, Any]:
    """Returns the scopes of the API keys that an invitation promises, and their name, expiry and metadata if set."""
    stored = cast("dict[str, Any] | list[str] | None", invite["key_scopes"]) or []
    return {"scopes": stored} if isinstance(stored, list) else stored


def _key_settings(details: dict[str, Any]) -> dict[str, Any]:
    """Returns the expiry and metadata of a promised key as column values."""
    expiry, metadata = details.get("expiry"), details.get("metadata")
    end = {"expires_at": to_milliseconds(datetime.fromisoformat(expiry))} if expiry else {}
    return {**end, **({"defaults": {"metadata": metadata}} if metadata else {})}
