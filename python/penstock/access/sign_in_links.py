"""Links that sign a user in to the console once, without a password. `penstock serve` prints one for a new store, and
`penstock users sign-in-link` makes one for a person who cannot sign in otherwise.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select

from penstock.access.audit import RequestInfo, write_audit_rows
from penstock.authorization import Caller
from penstock.errors import SettingsError, UnauthorisedError
from penstock.ids import new_id, sha256_hex
from penstock.schemas import now
from penstock.store.tables import organisations, sign_in_links, users
from penstock.store.tenant import TenantStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.store.database import Database

LINK_TTL_MS = 3600 * 1000
INVALID_LINK_MESSAGE = (
    "this sign-in link is not valid: it was used or has expired; hint: `penstock users sign-in-link` makes a new one"
)


async def create_sign_in_link(database: Database, email: str | None = None) -> str:
    """Creates a link for a user; without an address, a link for the owner. Returns its secret, which is not stored.

    Raises `SettingsError` if there is no such user. Earlier links of the user stop working.
    """
    async with database.write_transaction() as connection:
        user = await _find_user(connection, email)
        text, moment = secrets.token_urlsafe(32), now()
        row: dict[str, Any] = {
            "id": new_id(),
            "organisation_id": user["organisation_id"],
            "user_id": user["id"],
            "created_at": moment,
        }
        row |= {"sha256": sha256_hex(text), "expires_at": moment + LINK_TTL_MS}
        is_over = (sign_in_links.c.user_id == user["id"]) | (sign_in_links.c.expires_at <= moment)
        await connection.execute(delete(sign_in_links).where(is_over))
        await connection.execute(insert(sign_in_links).values(row))
        tenant = TenantStore(connection, user["organisation_id"], None)
        caller = Caller(id=row["id"], type="operator", organisation_id=user["organisation_id"])
        request_info = RequestInfo("POST", "penstock users sign-in-link", "", new_id(), "")
        public_fields = {name: value for name, value in row.items() if name != "sha256"}
        await write_audit_rows(tenant, caller, request_info, "sign_in_links.create", [(None, public_fields)])
    return text


async def find_user_of_link(connection: AsyncConnection, text: str) -> Caller:
    """Returns the user of a link that is still valid; raises `UnauthorisedError` if there is none."""
    query = select(sign_in_links.c.user_id, sign_in_links.c.organisation_id).where(*_valid_link_conditions(text))
    row = (await connection.execute(query)).first()
    if row is None:
        raise UnauthorisedError(INVALID_LINK_MESSAGE)
    return Caller(id=row.user_id, type="person", organisation_id=row.organisation_id, user_id=row.user_id, by="session")


async def use_link(connection: AsyncConnection, text: str) -> None:
    """Deletes a link, so that it works only once. Raises `UnauthorisedError` if another request used it first."""
    done = await connection.execute(delete(sign_in_links).where(*_valid_link_conditions(text)))
    if not done.rowcount:
        raise UnauthorisedError(INVALID_LINK_MESSAGE)


async def delete_sign_in_links(connection: AsyncConnection, user_id: str) -> None:
    """Deletes the unused links of a user. Called when the user changes the password, because a stranger may know a
    link.
    """
    await connection.execute(delete(sign_in_links).where(sign_in_links.c.user_id == user_id))


def _valid_link_conditions(text: str) -> tuple[Any, Any]:
    return sign_in_links.c.sha256 == sha256_hex(text), sign_in_links.c.expires_at > now()


async def _find_user(connection: AsyncConnection, email: str | None) -> Any:  # noqa: ANN401 - a row mapping
    organisation_id = await connection.scalar(select(organisations.c.id).order_by(organisations.c.id).limit(1))
    if organisation_id is None:
        message = "the store has no organisation yet; hint: penstock init"
        raise SettingsError(message)
    is_wanted = users.c.role == "owner" if email is None else users.c.email == email.strip().lower()
    query = select(users).where(users.c.organisation_id == organisation_id, is_wanted).order_by(users.c.id).limit(1)
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        name = "an owner" if email is None else f"a user with the e-mail address {email!r}"
        message = f"the store does not have {name}; hint: the console lists the users, or invite the person there"
        raise SettingsError(message)
    return row
