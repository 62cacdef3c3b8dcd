"""The password of whoever is signed in."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock.authorization import signed_in
from penstock.errors import ForbiddenError
from penstock.kit.members import USERS
from penstock.kit.passwords import Password, Passwords
from penstock.kit.session_revocation import end
from penstock.kit.tenant_session import Office, Work
from penstock.schemas import Done
from penstock.store.tables import sessions


class PasswordChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The old password and the new."""

    current_password: Annotated[str, Meta(max_length=256, description="the password of before")]
    new_password: Password


@put("/", guards=[signed_in], summary="Change password", tags=["Auth"])
async def update(
    data: JSONBody[PasswordChange],
    work: NamedDependency[Work],
    office: NamedDependency[Office],
    passwords: NamedDependency[Passwords],
) -> Done:
    """Change the password of the person who is signed in; all other sessions of theirs end."""
    caller = work.caller
    if caller.user_id is None or caller.session_id is None:
        raise ForbiddenError("only a person who signed in has a password")
    async with work.anywhere() as desk:
        row = await USERS.get(desk, caller.user_id)
    await passwords.check(row["email"], row["password"], data.current_password)
    hashed = await passwords.hash(data.new_password)
    async with work.at_home() as desk:
        await passwords.refuse_changed(desk.connection, caller.user_id, row["password"])
        await USERS.change(desk, row, {"password": hashed})
        await end(desk, sessions.c.user_id == caller.user_id, sessions.c.id != caller.session_id)
    office.forget()
    return Done()


routes = [update]
