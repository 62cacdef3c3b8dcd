"""Guardrails: checks of requests and responses that workspaces and organisations save. Every version is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from litestar import Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import or_

from penstock import engine
from penstock.authorization import require_scopes
from penstock.guardrails import saved_credentials, saved_guardrails
from penstock.guardrails.defaults import find_users
from penstock.guardrails.documents import ACTIVE, ARCHIVED
from penstock.guardrails.saved_guardrails import GUARDRAILS, Actions, Check
from penstock.guardrails.trial import (
    EditedTrialRequest,
    TrialRequest,
    TrialResult,
    UnsavedTrialRequest,
    build_subject,
    run_trial,
)
from penstock.guardrails.trial_plans import plan_trials
from penstock.guardrails.warnings import find_warnings
from penstock.ids import new_id
from penstock.integrations.missing_providers import WarningsField
from penstock.kit import references, shared_fields, versions
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest, search_conditions
from penstock.kit.route_parameters import IdOrSlug, SearchFilter, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.schemas import EmptyResponse, ListResponse, field_error, row_to_struct, sent_fields
from penstock.secrets import config_credentials, guardrail_credentials, partner_credentials
from penstock.settings import Settings
from penstock.store.guardrail_tables import guardrails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from penstock.store.tenant import Row

TAGS = ["Guardrails"]
# Maximum number of ids in one request.
MAX_IDS = 1000

VersionId = Annotated[str, Meta(description="id of the version")]
IdsFilter = Annotated[str | None, QueryParameter(description="only the guardrails with these ids, separated by commas")]
OrganisationFilter = Annotated[
    str | None, QueryParameter(description="id of the organisation: only the guardrails that no workspace owns")
]


class CreateGuardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A guardrail to save, for a workspace or for the organisation."""

    name: shared_fields.Name
    checks: saved_guardrails.ChecksField
    actions: saved_guardrails.ActionsField = msgspec.field(default_factory=Actions)
    status: shared_fields.NewStatus = ACTIVE
    workspace_id: Annotated[
        str | None, Meta(description="id or slug of the workspace that owns it; default: the workspace of the key")
    ] = None
    organisation_id: Annotated[
        str | None, Meta(description="id of the organisation, if it owns the guardrail and no workspace does")
    ] = None


class UpdateGuardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a guardrail to update; omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    checks: saved_guardrails.OptionalChecks = UNSET
    actions: saved_guardrails.OptionalActions = UNSET
    status: Annotated[
        Literal["active", "archived"] | UnsetType, Meta(description="an archived guardrail cannot be used")
    ] = UNSET


class SavedGuardrail(msgspec.Struct, frozen=True):
    """The ids of a guardrail that was created or updated."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: VersionId
    object: shared_fields.ObjectType = "guardrail"
    warnings: WarningsField = UNSET


class GuardrailSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One guardrail in a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    organisation_id: shared_fields.OrganisationId
    workspace_id: Annotated[
        str | None, Meta(description="id of the workspace that owns it; null if the organisation does")
    ]
    status: shared_fields.ArchiveStatus
    owner_id: shared_fields.CreatedBy
    updated_by: Annotated[str | None, Meta(description="id of the user or key that changed it last")]
    version_id: VersionId
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "guardrail"


class GuardrailDetail(GuardrailSummary, frozen=True, kw_only=True):
    """One guardrail with its checks."""

    checks: Annotated[list[Check], Meta(description="its checks, with their credentials masked")]
    actions: saved_guardrails.ActionsField


class CheckDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A check that guardrails may have."""

    id: shared_fields.Id
    aliases: Annotated[list[str], Meta(description="other ids of the same check")]
    name: shared_fields.Name
    description: Annotated[str, Meta(description="what it checks")]
    hooks: Annotated[list[str], Meta(description="`input`: it checks requests; `output`: it checks responses")]
    parameters: Annotated[dict[str, Any], Meta(description="JSON Schema of its parameters")]
    secrets: Annotated[list[str], Meta(description="names of the parameters that hold credentials")]


@get(
    "/checks",
    guards=[
        require_scopes(
            *(f"{kind}.{verb}" for kind in ("guardrails", "organisation_guardrails") for verb in ("list", "read"))
        )
    ],
    summary="List checks",
    tags=TAGS,
)
async def list_checks() -> ListResponse[CheckDescription]:
    """Lists the checks that guardrails may have, with the JSON Schema of their parameters."""
    checks = msgspec.convert(engine.guardrail_checks(), list[CheckDescription])
    return ListResponse(len(checks), checks)


@post(
    "/",
    status_code=200,
    guards=[saved_guardrails.require_either_scope("create")],
    summary="Create guardrail",
    tags=TAGS,
)
async def create_guardrail(data: JSONBody[CreateGuardrail], context: NamedDependency[RequestContext]) -> SavedGuardrail:
    """Saves a guardrail of a workspace, or of the organisation. Exactly one of `workspace_id` and `organisation_id`
    decides which; a key of a workspace may leave out both.
    """
    if data.workspace_id is not None and data.organisation_id is not None:
        raise field_error("organisation_id", "is not allowed together with workspace_id; send one of them")
    checks, shared = await _load_shared(context, data.workspace_id, data.checks)
    content = await saved_guardrails.make_content(
        checks, saved_guardrails.actions_to_builtins(data.actions), shared=shared
    )
    async with context.write_session(data.workspace_id) as session:
        workspace_id = saved_guardrails.choose_owner(session, data.organisation_id)
        session.require_any_scope(saved_guardrails.scope_for_verb(workspace_id, "create"))
        # The credentials of partners may have been deleted since the checks were validated.
        await saved_credentials.reject_missing(session, workspace_id, checks)
        row_id = new_id()
        row = await GUARDRAILS.create(
            session,
            {
                "id": row_id,
                "workspace_id": workspace_id,
                "slug": await session.generate_unused_slug(guardrails, "pg", data.name, 6),
                "name": data.name,
                **await saved_guardrails.seal_content(session, row_id, content),
                "status": data.status,
                "owner_id": session.caller.actor_id,
                "updated_by": session.caller.actor_id,
            },
        )
        await saved_guardrails.save_version(session, row, content)
        return await _to_saved(session, row, content)


@get("/", guards=[saved_guardrails.require_either_scope("list")], summary="List guardrails", tags=TAGS)
async def list_guardrails(
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    workspace_id: WorkspaceFilter = None,
    organisation_id: OrganisationFilter = None,
    ids: IdsFilter = None,
    search: SearchFilter = None,
) -> ListResponse[GuardrailSummary]:
    """Lists guardrails, newest first: those of a workspace or of the organisation, or all that the key may see."""
    if workspace_id is not None and organisation_id is not None:
        raise field_error("organisation_id", "is not allowed together with workspace_id; send one of them")
    conditions = search_conditions(search, guardrails.c.name, guardrails.c.slug)
    if ids is not None:
        guardrail_ids = [part for text in ids.split(",") if (part := text.strip())]
        if len(guardrail_ids) > MAX_IDS:
            raise field_error("ids", f"has {len(guardrail_ids)} ids: at most {MAX_IDS} are allowed")
        conditions.append(guardrails.c.id.in_(guardrail_ids))
    async with context.read_session(workspace_id) as session:
        if organisation_id is not None:
            saved_guardrails.choose_owner(session, organisation_id)
            session.require_any_scope(saved_guardrails.scope_for_verb(None, "list"))
            conditions.append(guardrails.c.workspace_id.is_(None))
        else:
            conditions.append(_listed_condition(session))
        total, rows = await GUARDRAILS.list_page(session, page, conditions)
        return ListResponse(total, [row_to_struct(GuardrailSummary, row) for row in rows])


def _listed_condition(session: TenantSession) -> ColumnElement[bool]:
    """Returns the SQL condition for the guardrails that the scopes of the caller allow it to list."""
    is_organisations = guardrails.c.workspace_id.is_(None)
    conditions = {
        saved_guardrails.scope_for_verb("some", "list"): ~is_organisations,
        saved_guardrails.scope_for_verb(None, "list"): is_organisations,
    }
    return or_(*(condition for scope, condition in conditions.items() if scope in session.granted_scopes))


@get("/{key:str}", guards=[saved_guardrails.require_either_scope("read")], summary="Get guardrail", tags=TAGS)
async def get_guardrail(
    key: IdOrSlug, context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> GuardrailDetail:
    """Returns a guardrail with its credentials masked."""
    async with context.read_session(workspace_id) as session:
        return row_to_struct(GuardrailDetail, await saved_guardrails.get_guardrail(session, key, "read"))


@get(
    "/{key:str}/versions",
    guards=[saved_guardrails.require_either_scope("read")],
    summary="List versions of a guardrail",
    tags=TAGS,
)
async def list_versions(
    key: IdOrSlug,
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    workspace_id: WorkspaceFilter = None,
) -> ListResponse[GuardrailDetail]:
    """Lists the versions of a guardrail, newest first."""
    async with context.read_session(workspace_id) as session:
        row = await saved_guardrails.get_guardrail(session, key, "read")
        total, rows = await versions.list_versions(session, row["id"], page)
        return ListResponse(total, [_to_version_detail(row, version) for version in rows])


@get(
    "/{key:str}/references",
    guards=[saved_guardrails.require_either_scope("read")],
    summary="List what uses a guardrail",
    tags=TAGS,
)
async def list_references(
    key: IdOrSlug, context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> references.ReferenceList:
    """Lists the configs and the defaults that name a guardrail, with the fields that name it. Counts those that the
    caller may not see.
    """
    async with context.read_session(workspace_id) as session:
        row = await saved_guardrails.get_guardrail(session, key, "read")
        return references.list_visible(session, await find_users(session, row))


@put(
    "/{key:str}",
    guards=[saved_guardrails.require_either_scope("update")],
    summary="Update guardrail",
    tags=TAGS,
    opt={SHOWN_OPTION: GuardrailDetail},
)
async def update_guardrail(
    key: IdOrSlug,
    data: JSONBody[UpdateGuardrail],
    context: NamedDependency[RequestContext],
    workspace_id: WorkspaceFilter = None,
) -> SavedGuardrail:
    """Updates a guardrail. Changed checks or actions become a new version, a new name does not; credentials that are
    sent back masked are unchanged. Requests use the new version at once.
    """
    values: dict[str, Any] = {name: value for name, value in sent_fields(data).items() if name in {"name", "status"}}
    valid = await _validate_update(context, workspace_id, key, data)
    async with context.write_session(workspace_id) as session:
        before = await saved_guardrails.get_guardrail(session, key, "update")
        # The precondition applies even if the request changes nothing.
        await session.check_precondition(guardrails, before)
        await context.check_unchanged(session, row_to_struct(GuardrailDetail, before))
        if values.get("status") == ARCHIVED and before["status"] != ARCHIVED:
            references.reject_if_used("guardrail", before["slug"], await find_users(session, before))
        old = await saved_guardrails.open_content(session, before, before)
        content = await _changed_content(session, before, data, old, valid)
        is_changed = not content.is_same(old)
        if is_changed:
            values |= await saved_guardrails.seal_content(session, before["id"], content)
        row = await GUARDRAILS.update(session, before, {**values, "updated_by": session.caller.actor_id})
        if is_changed:
            await saved_guardrails.save_version(session, row, content)
        return await _to_saved(session, row, content)


@delete(
    "/{key:str}",
    status_code=200,
    guards=[saved_guardrails.require_either_scope("delete")],
    summary="Delete guardrail",
    tags=TAGS,
)
async def delete_guardrail(
    key: IdOrSlug, context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> EmptyResponse:
    """Deletes a guardrail with its versions. Rejects one that is a default or that a config names."""
    async with context.write_session(workspace_id) as session:
        row = await saved_guardrails.get_guardrail(session, key, "delete")
        references.reject_if_used("guardrail", row["slug"], await find_users(session, row))
        await versions.delete_versions(session, row["id"])
        await GUARDRAILS.delete(session, row)
        return EmptyResponse()


@post(
    "/test",
    status_code=200,
    guards=[saved_guardrails.require_either_scope("create")],
    summary="Test checks",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def try_checks(
    data: JSONBody[UnsavedTrialRequest],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    workspace_id: WorkspaceFilter = None,
) -> TrialResult:
    """Runs checks that are not saved on a text, a request or a response. Checks that ask a model need a workspace,
    whose saved providers they name: that of the key, or `workspace_id`.
    """
    checks, shared = await _load_shared(context, workspace_id, data.checks)
    content = await saved_guardrails.make_content(
        checks, saved_guardrails.actions_to_builtins(data.actions), shared=shared
    )
    content = saved_guardrails.complete_content(content, shared)
    if saved_guardrails.asks_models(content):
        async with context.read_session(workspace_id) as session:
            return _plan_trial(session, session.workspace_id, content, data)
    return await run_trial(settings, content, data)


async def _load_shared(
    context: RequestContext, workspace_id: str | None, sent: Sequence[Check]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns checks as JSON objects, and the credentials of the organisation that they need."""
    checks = saved_guardrails.checks_to_builtins(sent)
    if not partner_credentials.find_partners(checks):
        return checks, {}
    async with context.read_session(workspace_id) as session:
        return checks, await saved_credentials.load_shared(session, session.workspace_id, checks)


def _plan_trial(
    session: TenantSession,
    workspace_id: str | None,
    content: saved_guardrails.Content,
    trial: TrialRequest,
    slug: str = "",
) -> TrialResult:
    """Plans a trial whose checks send requests to models. The edge runs the plan and replaces this response."""
    workspace_id = workspace_id or session.workspace_id
    if workspace_id is None:
        raise field_error("workspace_id", "is required, because a check asks a model of a saved provider")
    session.require_any_scope(*(saved_guardrails.scope_for_verb(owner, "update") for owner in (None, workspace_id)))
    planned: Response[bytes] = plan_trials(session, workspace_id, "trial", content, [build_subject(trial, slug)])
    return cast("TrialResult", planned)


@post(
    "/{key:str}/test",
    status_code=200,
    guards=[saved_guardrails.require_either_scope("read")],
    summary="Test guardrail",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def try_guardrail(
    key: IdOrSlug,
    data: JSONBody[EditedTrialRequest],
    context: NamedDependency[RequestContext],
    settings: NamedDependency[Settings],
    workspace_id: WorkspaceFilter = None,
) -> TrialResult:
    """Runs a saved guardrail on a text, a request or a response. Its checks may call the hosts that they name. Sent
    checks and actions replace the saved ones for this trial; masks in them stand for the stored credentials, as in an
    update, which needs the scope `guardrails.update`. So does a check that asks a model, which costs tokens.
    """
    async with context.read_session(workspace_id) as session:
        row = await saved_guardrails.get_guardrail(session, key, "read")
        if data.checks is not UNSET or data.actions is not UNSET:
            session.require_any_scope(saved_guardrails.scope_for_verb(row["workspace_id"], "update"))
        content = await _changed_content(session, row, data, await saved_guardrails.open_content(session, row, row))
        shared = await saved_credentials.load_shared(session, row["workspace_id"], content.checks.masked)
        content = saved_guardrails.complete_content(content, shared)
        if saved_guardrails.asks_models(content):
            return _plan_trial(session, row["workspace_id"], content, data, row["slug"])
    return await run_trial(settings, content, data, row["slug"])


async def _validate_update(
    context: RequestContext, workspace_id: str | None, key: str, data: UpdateGuardrail
) -> dict[str, Any] | None:
    """Validates new checks before the write transaction, because other changes of the organisation wait while that is
    open. Returns the document that is valid; `None` if the request has neither checks nor actions.
    """
    if data.checks is UNSET and data.actions is UNSET:
        return None
    async with context.read_session(workspace_id) as session:
        row = await saved_guardrails.get_guardrail(session, key, "update")
        old = await saved_guardrails.open_content(session, row, row)
        if data.checks is UNSET:
            draft = await _draft_actions(session, row, data.actions, old)
        else:
            draft = await _draft_change(session, row, data.checks, data.actions, old)
    await _validate_draft(draft, data)
    return draft.to_document()


async def _validate_draft(draft: saved_guardrails.Draft, data: UpdateGuardrail | EditedTrialRequest) -> None:
    await (draft.validate_actions() if data.checks is UNSET else draft.validate())


async def _changed_content(
    session: TenantSession,
    row: Row,
    data: UpdateGuardrail | EditedTrialRequest,
    old: saved_guardrails.Content,
    valid: dict[str, Any] | None = None,
) -> saved_guardrails.Content:
    """Returns the content of a guardrail, in which the checks and actions of a request replace the stored ones. `valid`
    is a document that needs no further validation.
    """
    if data.checks is not UNSET:
        draft = await _draft_change(session, row, data.checks, data.actions, old)
    elif data.actions is not UNSET:
        draft = await _draft_actions(session, row, data.actions, old)
    else:
        return old
    if draft.to_document() != valid:
        # Another request has changed the stored checks or credentials since the validation.
        await _validate_draft(draft, data)
    return saved_guardrails.Content(old.checks, draft.actions) if data.checks is UNSET else draft.to_content()


async def _draft_actions(
    session: TenantSession, row: Row, actions: Actions | UnsetType, old: saved_guardrails.Content
) -> saved_guardrails.Draft:
    """Returns the stored checks with the actions of a request."""
    checks = config_credentials.join_credentials(old.checks)
    shared = await saved_credentials.load_shared(session, row["workspace_id"], checks)
    return saved_guardrails.Draft(
        checks, old.actions if actions is UNSET else saved_guardrails.actions_to_builtins(actions), shared
    )


async def _draft_change(
    session: TenantSession, row: Row, sent: Sequence[Check], actions: Actions | UnsetType, old: saved_guardrails.Content
) -> saved_guardrails.Draft:
    """Returns the checks and actions of a request, with the stored credentials in place of masks."""
    checks = saved_guardrails.checks_to_builtins(sent)
    older = (
        await saved_guardrails.load_older_checks(session, row)
        if guardrail_credentials.has_unknown_masks(checks, old.checks)
        else []
    )
    restored = guardrail_credentials.restore_masks(checks, old.checks, older)
    shared = await saved_credentials.load_shared(session, row["workspace_id"], checks)
    return saved_guardrails.Draft(
        restored, old.actions if actions is UNSET else saved_guardrails.actions_to_builtins(actions), shared
    )


async def _to_saved(session: TenantSession, row: Row, content: saved_guardrails.Content) -> SavedGuardrail:
    warnings = await find_warnings(session, row["workspace_id"], content)
    return SavedGuardrail(row["id"], row["slug"], row["version_id"], warnings=warnings)


def _to_version_detail(row: Row, version: Row) -> GuardrailDetail:
    fields = {**row, **version["content"], "updated_by": version["created_by"], "created_at": version["created_at"]}
    return row_to_struct(GuardrailDetail, fields, version_id=version["id"])


routes = [
    list_checks,
    create_guardrail,
    list_guardrails,
    get_guardrail,
    list_versions,
    list_references,
    update_guardrail,
    delete_guardrail,
    try_checks,
    try_guardrail,
]
