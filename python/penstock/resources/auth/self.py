"""The caller's own identity and access. For sessions and tokens; an API key alone is rejected."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency
from msgspec import Meta
from sqlalchemy import select

from penstock.authorization import Caller, csrf_token, extract_credential, signed_in_only
from penstock.kit.shared_fields import Email, FirstName, Id, LastName, ObjectType, OrganisationId, Slug
from penstock.kit.tenant_session import RequestContext
from penstock.store.tables import organisations, users, workspaces


class SelfUser(msgspec.Struct, frozen=True, kw_only=True):
    """The signed-in user."""

    id: Id
    email: Email
    first_name: FirstName
    last_name: LastName
    role: Annotated[str, Meta(description="`owner`, `admin` or `member`")]


class SelfWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace that the caller can access."""

    id: Id
    slug: Slug
    name: Annotated[str, Meta(description="display name")]
    role: Annotated[
        str | None,
        Meta(description="`admin`, `manager` or `member`; null if access comes from the caller's other rights"),
    ]
    scopes: Annotated[list[str], Meta(description="scopes of the caller in this workspace")]


class SelfDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's identity, scopes and workspaces."""

    by: Annotated[str, Meta(description="`session` or `token`")]
    organisation_id: OrganisationId
    organisation_name: Annotated[str, Meta(description="name of the organisation")]
    user: Annotated[SelfUser | None, Meta(description="the user; null for a session of an organisation's key")]
    api_key_id: Annotated[
        str | None, Meta(description="id of the organisation's key that signed in; null for a session of a user")
    ]
    scopes: Annotated[list[str], Meta(description="scopes of the caller in the organisation")]
    workspaces: Annotated[list[SelfWorkspace], Meta(description="workspaces that the caller can access")]
    csrf_token: Annotated[
        str | None, Meta(description="token that changes must send as x-csrf-token; null without a session")
    ]
    object: ObjectType = "self"


@get("/", guards=[signed_in_only], summary="Get self", tags=["Auth"])
async def get_self(context: NamedDependency[RequestContext], request: Request[Any, Caller, Any]) -> SelfDetail:
    """Returns the caller's identity and access. Rejects an API key alone with 403."""
    caller = context.caller
    async with context.unchecked_read_session() as session:
        organisation = await session.find(organisations, caller.organisation_id) or {}
        user = await session.find(users, caller.user_id) if caller.user_id else None
        query = select(workspaces).where(workspaces.c.status == "active").order_by(workspaces.c.id)
        if caller.user_id and not caller.is_organisation_admin:
            query = query.where(workspaces.c.id.in_(list(caller.roles)))
        rows = await session.fetch_rows(query, workspaces)
    sent = extract_credential(request)
    return SelfDetail(
        by=caller.by,
        organisation_id=caller.organisation_id,
        organisation_name=organisation.get("name", ""),
        user=SelfUser(**{name: user[name] for name in SelfUser.__struct_fields__}) if user else None,
        api_key_id=caller.key_id,
        scopes=sorted(caller.granted_scopes(None)),
        workspaces=[
            SelfWorkspace(
                **{name: row[name] for name in ("id", "slug", "name")},
                role=caller.roles.get(row["id"]),
                scopes=sorted(caller.granted_scopes(row["id"])),
            )
            for row in rows
        ],
        csrf_token=csrf_token(sent.text) if sent.kind == "session" else None,
    )


routes = [get_self]
