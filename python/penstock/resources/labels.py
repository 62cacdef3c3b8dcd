"""Labels of prompt versions. Three are built in; a protected label may only be moved by callers who may publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar.params import QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ConflictError, Problem
from penstock.ids import LABEL_NAME_PATTERN
from penstock.kit.collected_problems import CollectedProblems
from penstock.kit.crud_routes import CrudRoutes, ListQuery, plain_renderer
from penstock.kit.route_parameters import WorkspaceFilter
from penstock.kit.shared_fields import (
    ArchiveStatus,
    CreatedAt,
    CreatedBy,
    Id,
    ObjectType,
    OrganisationId,
    OwnOrganisationId,
    UpdatedAt,
    WorkspaceId,
    WorkspaceIdOrSlug,
)
from penstock.prompts import labels as saved_labels
from penstock.prompts.labels import LABELS
from penstock.schemas import EmptyResponse, sent_fields
from penstock.store.prompt_tables import labels

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

KIND, TAGS = "label", ["Labels"]

_LabelName = Annotated[str, Meta(pattern=LABEL_NAME_PATTERN, max_length=255)]
_Description = Annotated[str, Meta(max_length=2000)]
_Color = Annotated[str, Meta(max_length=32)]

PROTECTED_DESCRIPTION = "true: only callers with the scope `prompts.publish` move the label"
LabelName = Annotated[_LabelName, Meta(description="its name, by which requests select a version")]
Description = Annotated[_Description | None, Meta(description="what the label means")]
ColorCode = Annotated[_Color | None, Meta(description="colour in which consoles show it")]
Protected = Annotated[bool, Meta(description=PROTECTED_DESCRIPTION)]
SearchFilter = Annotated[str | None, QueryParameter(description="part of the name, ignoring the case of ASCII letters")]


class CreateLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A label to create."""

    name: LabelName
    description: Description = None
    color_code: ColorCode = None
    protected: Protected = False
    workspace_id: WorkspaceIdOrSlug = None
    organisation_id: OwnOrganisationId = None
    organization_id: Annotated[str | None, Meta(description="other spelling of `organisation_id`")] = None


class UpdateLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a label to change; omitted fields stay as they are."""

    name: Annotated[_LabelName | UnsetType, Meta(description="new name; built-in labels keep theirs")] = UNSET
    description: Annotated[
        _Description | UnsetType | None, Meta(description="what the label means; null removes it")
    ] = UNSET
    color_code: Annotated[
        _Color | UnsetType | None, Meta(description="colour in which consoles show it; null removes it")
    ] = UNSET
    protected: Annotated[bool | UnsetType, Meta(description=PROTECTED_DESCRIPTION)] = UNSET


class CreatedLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label that was created."""

    id: Id
    object: ObjectType = KIND


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """One label."""

    id: Id
    name: LabelName
    description: Description
    color_code: ColorCode
    organisation_id: OrganisationId
    workspace_id: WorkspaceId
    is_universal: Annotated[bool, Meta(description="true for labels that every workspace has")]
    protected: Protected
    status: ArchiveStatus
    created_by: CreatedBy
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ObjectType = KIND


def build_list_query(workspace_id: WorkspaceFilter = None, search: SearchFilter = None) -> ListQuery:
    """Lists the labels of a workspace, newest first."""
    return ListQuery(workspace_id, [labels.c.name.icontains(search, autoescape=True)] if search else [])


async def create_label(session: TenantSession, data: CreateLabel) -> CreatedLabel:
    """Creates a label in a workspace, which has at most 100. A protected label requires the scope `prompts.publish`."""
    for organisation_id in (data.organisation_id, data.organization_id):
        session.caller.check_organisation(organisation_id)
    workspace_id = session.required_workspace_id
    if data.protected:
        session.require_any_scope(saved_labels.PUBLISH_SCOPE)
    problems = CollectedProblems()
    with problems.check():
        await saved_labels.reject_taken_name(session, data.name, workspace_id)
    with problems.check():
        await saved_labels.reject_too_many(session, workspace_id)
    problems.raise_all()
    values = {name: getattr(data, name) for name in ("name", "description", "color_code", "protected")}
    owner = {"workspace_id": workspace_id, "created_by": session.caller.actor_id}
    row = await LABELS.create(session, {**values, **owner, "is_universal": False, "status": "active"})
    return CreatedLabel(id=row["id"])


async def update_label(session: TenantSession, row: Row, data: UpdateLabel) -> EmptyResponse:
    """Changes a label. Requests that select a version by the old name fail after a change of the name.

    A change of a protected label, or of whether it is protected, requires the scope `prompts.publish`.
    """
    values: dict[str, Any] = sent_fields(data)
    if row["protected"] or values.get("protected", row["protected"]):
        session.require_any_scope(saved_labels.PUBLISH_SCOPE)
    is_renamed = data.name not in {UNSET, row["name"]}
    if is_renamed:
        if row["is_universal"]:
            reason = f"cannot be changed: the label {row['name']!r} is built in"
            raise ConflictError(f"name {reason}", [Problem("name", reason)])
        await saved_labels.reject_taken_name(session, values["name"], row["workspace_id"])
    await LABELS.update(session, row, values)
    if is_renamed:
        await saved_labels.mark_prompts_changed(session, row)
    return EmptyResponse()


async def delete_label(session: TenantSession, row: Row) -> None:
    """Deletes a label that is on no version. Built-in labels cannot be deleted."""
    if row["protected"]:
        session.require_any_scope(saved_labels.PUBLISH_SCOPE)
    await saved_labels.reject_if_in_use(session, row)
    await LABELS.delete(session, row)


SHOW_DETAIL = plain_renderer(Label)
CRUD_ROUTES = CrudRoutes(LABELS, KIND, TAGS, scopes="prompts")
routes = [
    CRUD_ROUTES.create_route(CreateLabel, CreatedLabel, create_label),
    CRUD_ROUTES.list_route(Label, SHOW_DETAIL, build_list_query),
    CRUD_ROUTES.get_route(Label, SHOW_DETAIL),
    CRUD_ROUTES.update_route(UpdateLabel, EmptyResponse, update_label, Label, SHOW_DETAIL),
    CRUD_ROUTES.delete_route(delete_label),
]
