"""The password of the signed-in user."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock.access.passwords import Password, PasswordService
from penstock.access.sign_in_links import delete_sign_in_links
from penstock.authorization import signed_in_only
from penstock.errors import ForbiddenError
from penstock.kit.tenant_session import RequestContext, Services
from penstock.organisation.members import USER_RESOURCE
from penstock.organisation.session_revocation import end_sessions
from penstock.schemas import EmptyResponse
from penstock.store.tables import sessions


class ChangePassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The current and the new password."""

    current_password: Annotated[str, Meta(max_length=256, description="the current password")]
    new_password: Password


@put("/", guards=[signed_in_only], summary="Change password", tags=["Auth"])
async def change_password(
    data: JSONBody[ChangePassword],
    context: NamedDependency[RequestContext],
    services: NamedDependency[Services],
    passwords: NamedDependency[PasswordService],
) -> EmptyResponse:
    """Changes the password of the signed-in user and ends all their other sessions and unused sign-in links."""
    caller = context.caller
    if caller.user_id is None or caller.session_id is None:
        raise ForbiddenError("only a person who signed in has a password")
    async with context.unchecked_read_session() as session:
        row = await USER_RESOURCE.get(session, caller.user_id)
    # Attempts are counted per session, so that failed sign-ins elsewhere do not delay this request.
    await passwords.check_password(row["email"], f"session {caller.session_id}", row["password"], data.current_password)
    hashed = await passwords.hash_password(data.new_password)
    async with context.unchecked_write_session() as session:
        await passwords.reject_changed_password(session.connection, caller.user_id, row["password"])
        await USER_RESOURCE.update(session, row, {"password": hashed})
        await end_sessions(session, sessions.c.user_id == caller.user_id, sessions.c.id != caller.session_id)
        await delete_sign_in_links(session.connection, caller.user_id)
    services.clear_caller_cache()
    return EmptyResponse()


routes = [change_password]
