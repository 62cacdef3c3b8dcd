"""Exclusions: workspaces that the default guardrails of the organisation do not apply to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.errors import Problem, UnknownReferenceError, join_problems, shorten
from penstock.guardrails.documents import EXCLUSIONS
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import ObjectType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.schemas import EmptyResponse
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.store.tenant import Row

EXCLUDED_WORKSPACES = Resource("organisation_exclusions", organisations, publishes=True)
TAGS = ["Guardrails"]
INPUT, OUTPUT = "input_guardrails", "output_guardrails"
MAX_WORKSPACES = 1000

OrganisationFilter = Annotated[
    str | None, QueryParameter(description="id of the organisation, which must be the caller's own")
]


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workspace, and if it is excluded."""

    workspace_id: Annotated[str, Meta(description="id or slug of the workspace")]
    excluded: Annotated[
        bool, Meta(description="true: the organisation's default guardrails do not apply to the workspace")
    ]


class UpdateExclusions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Exclusions to set; workspaces that are not listed stay as they are, unless the list replaces all."""

    workspaces: Annotated[
        list[Exclusion], Meta(max_length=MAX_WORKSPACES, description=f"workspaces, at most {MAX_WORKSPACES}")
    ]
    override_existing: Annotated[
        bool, Meta(description="true: workspaces that are not listed are not excluded any more")
    ] = False


class ExclusionsDetail(msgspec.Struct, frozen=True):
    """The workspaces that are excluded."""

    workspaces: Annotated[list[Exclusion], Meta(description="the excluded workspaces, each with its id")]
    object: ObjectType = "workspace-exclusions"


@get(
    "/input-guardrails",
    guards=[require_scopes("organisation_exclusions.list")],
    summary="List exclusions from input guardrails",
    tags=TAGS,
)
async def list_input_exclusions(
    context: NamedDependency[RequestContext], organisation_id: OrganisationFilter = None
) -> ExclusionsDetail:
    """Lists the workspaces that the organisation's default input guardrails do not apply to."""
    return await _list_exclusions(context, INPUT, organisation_id)


@put(
    "/input-guardrails",
    guards=[require_scopes("organisation_exclusions.update")],
    summary="Update exclusions from input guardrails",
    tags=TAGS,
)
async def update_input_exclusions(
    data: JSONBody[UpdateExclusions], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Excludes workspaces from the organisation's default input guardrails, or ends their exclusion."""
    return await _update_exclusions(context, INPUT, data)


@get(
    "/output-guardrails",
    guards=[require_scopes("organisation_exclusions.list")],
    summary="List exclusions from output guardrails",
    tags=TAGS,
)
async def list_output_exclusions(
    context: NamedDependency[RequestContext], organisation_id: OrganisationFilter = None
) -> ExclusionsDetail:
    """Lists the workspaces that the organisation's default output guardrails do not apply to."""
    return await _list_exclusions(context, OUTPUT, organisation_id)


@put(
    "/output-guardrails",
    guards=[require_scopes("organisation_exclusions.update")],
    summary="Update exclusions from output guardrails",
    tags=TAGS,
)
async def update_output_exclusions(
    data: JSONBody[UpdateExclusions], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Excludes workspaces from the organisation's default output guardrails, or ends their exclusion."""
    return await _update_exclusions(context, OUTPUT, data)


async def _list_exclusions(context: RequestContext, kind: str, organisation_id: str | None) -> ExclusionsDetail:
    context.caller.check_organisation(organisation_id)
    async with context.read_session() as session:
        excluded = (await _load_row(session))["settings"].get(EXCLUSIONS, {}).get(kind, [])
        query = select(workspaces.c.id).where(workspaces.c.id.in_(excluded), workspaces.c.status == "active")
        rows = await session.organisation().fetch_rows(query.order_by(workspaces.c.id), workspaces)
        return ExclusionsDetail([Exclusion(row["id"], excluded=True) for row in rows])


async def _update_exclusions(context: RequestContext, kind: str, data: UpdateExclusions) -> EmptyResponse:
    async with context.write_session() as session:
        row = await _load_row(session)
        settings = row["settings"]
        ids = await _resolve_workspaces(session, [workspace.workspace_id for workspace in data.workspaces])
        before = set[str]() if data.override_existing else set[str](settings.get(EXCLUSIONS, {}).get(kind, []))
        added = {workspace for workspace, item in zip(ids, data.workspaces, strict=True) if item.excluded}
        # A workspace that is listed twice is excluded if one entry excludes it.
        ended = set(ids) - added
        exclusions = {**settings.get(EXCLUSIONS, {}), kind: sorted(before - ended | added)}
        await EXCLUDED_WORKSPACES.update(session, row, {"settings": {**settings, EXCLUSIONS: exclusions}})
        return EmptyResponse()


async def _resolve_workspaces(session: TenantSession, keys: Sequence[str]) -> list[str]:
    """Returns the ids of the workspaces that the body names by id or slug."""
    is_named = or_(workspaces.c.id.in_(keys), workspaces.c.slug.in_(keys))
    query = select(workspaces.c.id, workspaces.c.slug).where(is_named, workspaces.c.status == "active")
    rows = await session.organisation().fetch_rows(query, workspaces)
    ids: dict[str, str] = {row[name]: row["id"] for name in ("slug", "id") for row in rows}
    problems = [
        Problem(
            f"workspaces[{index}].workspace_id",
            f"{shorten(key)!r} is no workspace of this organisation that is not archived",
        )
        for index, key in enumerate(keys)
        if key not in ids
    ]
    if problems:
        raise UnknownReferenceError(join_problems(problems), problems)
    return [ids[key] for key in keys]


async def _load_row(session: TenantSession) -> Row:
    return await EXCLUDED_WORKSPACES.get(session, session.organisation_id)


routes = [list_input_exclusions, update_input_exclusions, list_output_exclusions, update_output_exclusions]
