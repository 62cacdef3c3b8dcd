"""Invitations: a link that lets one person in, once, for a week."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import select

from penstock.authorization import Caller
from penstock.errors import ConflictError, MissingError
from penstock.ids import digest
from penstock.kit import keys, members
from penstock.kit.resource import Resource
from penstock.schemas import now
from penstock.store.tables import invites, users, workspaces

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

INVITES = Resource("organisation_users", invites)
WEEK = 7 * 24 * 3600 * 1000


class KeyOfPerson(msgspec.Struct, frozen=True):
    """A key that was made along with a person."""

    workspace_id: str
    id: str
    key: str


def link() -> tuple[str, dict[str, Any]]:
    """Make the secret of a link, and what is kept of it."""
    token = secrets.token_urlsafe(32)
    return token, {"sha256": digest(token), "expires_at": now() + WEEK, "status": "pending"}


def status(row: Row) -> str:
    """Say how far an invitation is."""
    return "expired" if row["status"] == "pending" and row["expires_at"] <= now() else row["status"]


async def named_by(connection: AsyncConnection, token: str) -> Row:
    """Find the invitation that a link is of, which may be over."""
    found = await connection.execute(select(invites).where(invites.c.sha256 == digest(token)))
    row = cast("Row | None", found.mappings().first())
    if row is None:
        raise _shut()
    return row


async def open_with(connection: AsyncConnection, token: str) -> Row:
    """Find the invitation that a link opens."""
    row = await named_by(connection, token)
    if status(row) != "pending":
        raise _shut()
    return row


def _shut() -> MissingError:
    return MissingError("this invitation is not open: it was used, taken back or is over")


async def refuse_user(desk: Desk, email: str) -> Row | None:
    """Refuse who can sign in already: a link makes nobody's password another. Who cannot yet is given as they are."""
    user = await desk.first(select(users).where(users.c.email == email), users)
    if user and user["password"]:
        raise ConflictError(f"{email} is a user of this organisation already")
    return user


def guest(row: Row) -> Caller:
    """Give who acts when an invitation is accepted: nobody who could do anything else."""
    return Caller(id=row["id"], type="invite", organisation_id=row["organisation_id"])


async def accept(desk: Desk, invite: Row, person: dict[str, Any]) -> tuple[Row, list[KeyOfPerson]]:
    """Make the person, take them into the workspaces, and give them the keys that were promised."""
    there = await refuse_user(desk, invite["email"])
    if there:
        user = await members.USERS.change(desk, there, person)
    else:
        user = await members.USERS.add(desk, {"email": invite["email"], "role": invite["role"], **person})
    made = [key for place in invite["workspaces"] for key in await _enter(desk, invite, user, place)]
    await INVITES.change(desk, invite, {"status": "accepted", "accepted_at": now()})
    others = select(invites).where(invites.c.email == invite["email"], invites.c.status == "pending")
    for other in await desk.rows(others, invites):
        await INVITES.change(desk, other, {"status": "cancelled"})
    return user, made


async def _enter(desk: Desk, invite: Row, user: Row, place: dict[str, str]) -> list[KeyOfPerson]:
    workspace = await desk.find(workspaces, place["id"])
    # It may have been archived since.
    if workspace is None or workspace["status"] != "active":
        return []
    own = {"workspace_id": workspace["id"], "user_id": user["id"]}
    if await members.find(desk, workspace["id"], user["id"]) is None:
        await members.enter(desk, {**own, "role": place["role"]})
    # Who was here before may have keys already.
    if not await keys.has_room(desk, workspace["id"], user["id"]):
        return []
    if scopes := invite["key_scopes"]:
        made = await keys.give(desk, workspace, user["id"], scopes, "key of an invitation")
    else:
        made = await keys.welcome(desk, workspace, user["id"], place["role"])
    return [KeyOfPerson(workspace["id"], *made)] if made else []
