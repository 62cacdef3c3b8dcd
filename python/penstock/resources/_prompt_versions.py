"""Routes for the versions of prompts: read versions, publish one as the default, and set labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import get, put
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, PathParameter
from msgspec import UNSET, Meta

from penstock.authorization import require_scopes
from penstock.integrations.missing_providers import WarningsField
from penstock.kit import shared_fields
from penstock.kit import versions as saved_versions
from penstock.kit.crud_routes import workspace_request_context
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.route_parameters import IdOrSlug
from penstock.kit.tenant_session import RequestContext
from penstock.prompts import labels, saved_prompts
from penstock.prompts.saved_prompts import PROMPTS, PromptContent
from penstock.prompts.sharing import SharedPrompt, share_values
from penstock.prompts.templates import variable_components
from penstock.schemas import EmptyResponse, ListResponse, format_required_timestamp, row_to_struct
from penstock.store.prompt_tables import prompts

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

TAGS = ["Prompts"]

VersionId = Annotated[str, PathParameter(description="id of the version")]
LabelId = Annotated[str | None, Meta(description="id of the label that was put on the version last")]
VersionStatus = Annotated[str, Meta(description="`active`, or `archived` if the prompt is")]
IN_WORKSPACE = {"context": Provide(workspace_request_context, sync_to_thread=False)}


class CreatedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that was created, and its first version."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: Annotated[str, Meta(description="id of its first version")]
    warnings: WarningsField = UNSET
    object: shared_fields.ObjectType = "prompt"


class VersionLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label on a version."""

    id: shared_fields.Id
    name: Annotated[str, Meta(description="its name")]


class PromptDetail(SharedPrompt, frozen=True, kw_only=True):
    """A prompt with one of its versions."""

    organisation_id: shared_fields.OrganisationId
    string: saved_prompts.TemplateField
    parameters: saved_prompts.ParametersField
    virtual_key: saved_prompts.VirtualKeyField
    model: saved_prompts.ModelField
    functions: Annotated[list[dict[str, Any]], Meta(description="functions that the model may call")]
    tools: Annotated[list[dict[str, Any]], Meta(description="tools that the model may call")]
    tool_choice: Annotated[dict[str, Any] | str | None, Meta(description="tool that the model must call")]
    template_metadata: Annotated[dict[str, Any], Meta(description="notes of clients on the template")]
    is_raw_template: Annotated[bool, Meta(description="true: the template is rendered as text and then parsed as JSON")]
    prompt_version: Annotated[int, Meta(description="number of the version")]
    prompt_version_id: Annotated[str, Meta(description="id of the version")]
    prompt_version_description: Annotated[str | None, Meta(description="what is new in the version")]
    prompt_version_status: VersionStatus
    prompt_version_label_id: LabelId
    prompt_version_label_name: Annotated[str | None, Meta(description="name of that label")]
    prompt_version_labels: Annotated[list[VersionLabel], Meta(description="all labels on the version")]
    created_by: shared_fields.CreatedBy
    variable_components: Annotated[
        dict[str, Any], Meta(description="variables, sections and partials that the template names")
    ]


class VersionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One version in a list."""

    id: Annotated[str, Meta(description="id of the version")]
    prompt_id: Annotated[str, Meta(description="id of the prompt")]
    prompt_template: Annotated[dict[str, Any], Meta(description="template, parameters and model of the version")]
    prompt_version: Annotated[int, Meta(description="number of the version")]
    prompt_description: Annotated[str | None, Meta(description="what is new in the version")]
    label_id: LabelId
    labels: Annotated[list[VersionLabel], Meta(description="all labels on the version")]
    is_default: Annotated[bool, Meta(description="true for the version that requests use by default")]
    created_by: shared_fields.CreatedBy
    created_at: shared_fields.CreatedAt
    status: VersionStatus
    object: shared_fields.ObjectType = "prompt"


class UpdateVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The label to put on a version."""

    label_id: Annotated[
        str | None,
        Meta(description="id or name of a label, which is taken from another version; null removes all labels"),
    ]


class DefaultVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The version that requests use by default from now on."""

    version: saved_prompts.VersionNumber


@get(
    "/{key:str}/versions",
    guards=[require_scopes("prompts.read")],
    summary="List versions of a prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def list_versions(
    key: IdOrSlug, context: NamedDependency[RequestContext], page: NamedDependency[PageRequest]
) -> ListResponse[VersionSummary]:
    """Lists the versions of a prompt, newest first."""
    async with context.read_session(context.query_workspace) as session:
        row = await saved_prompts.get_readable_prompt(session, key)
        total, versions = await saved_versions.list_versions(session.organisation(), row["id"], page)
        prompt_labels = await saved_prompts.labels_by_version(session, [row["id"]])
        return ListResponse(
            total,
            [_to_summary(row, version, prompt_labels.get((row["id"], version["number"]), [])) for version in versions],
        )


@get(
    "/{key:str}/versions/{version_id:str}",
    guards=[require_scopes("prompts.read")],
    summary="Get version of a prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def get_version(key: IdOrSlug, version_id: VersionId, context: NamedDependency[RequestContext]) -> PromptDetail:
    """Returns a prompt with the version of this id."""
    async with context.read_session(context.query_workspace) as session:
        row = await saved_prompts.get_readable_prompt(session, key)
        return await render_prompt(session, row, await saved_prompts.get_version_by_id(session, row, version_id))


@put(
    "/{key:str}/versions/{version_id:str}",
    guards=[require_scopes("prompts.update")],
    summary="Label version of a prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def update_version(
    key: IdOrSlug, version_id: VersionId, data: JSONBody[UpdateVersion], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Puts a label on a version, or removes all labels from it. Protected labels require the scope `prompts.publish`."""
    async with context.write_session(context.query_workspace) as session:
        row = await PROMPTS.get(session, key)
        await session.check_precondition(prompts, row)
        version = await saved_prompts.get_version_by_id(session, row, version_id)
        if data.label_id is None:
            is_changed = await labels.remove_labels(session, row, version["number"])
        else:
            label = await labels.resolve_label(session, "label_id", data.label_id, row["workspace_id"])
            await saved_prompts.check_version_references(session, row, version)
            is_changed = await labels.put_label(session, row, label, version["number"])
        if is_changed:
            await saved_prompts.touch_prompt(session, row)
        return EmptyResponse()


@put(
    "/{key:str}/makeDefault",
    guards=[require_scopes("prompts.publish")],
    summary="Publish version of a prompt",
    tags=TAGS,
    dependencies=IN_WORKSPACE,
)
async def publish_version(
    key: IdOrSlug, data: JSONBody[DefaultVersion], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Makes a version the default version."""
    async with context.write_session(context.query_workspace) as session:
        row = await PROMPTS.get(session, key)
        version = await saved_prompts.find_by_number(session, row, data.version)
        await saved_prompts.check_version_references(session, row, version)
        await PROMPTS.update(session, row, {"default_version": version["number"]}, "publish")
        return EmptyResponse()


async def render_prompt(session: TenantSession, row: Row, version: Row) -> PromptDetail:
    """Converts a prompt and one of its versions to the response."""
    saved = PromptContent.from_version(version)
    prompt_labels = await saved_prompts.labels_by_version(session, [row["id"]])
    labels = _to_labels(prompt_labels.get((row["id"], version["number"]), []))
    # Empty lists are stored as null, so null becomes an empty list.
    lists: dict[str, list[Any]] = {name: saved.content[name] or [] for name in ("functions", "tools")}
    return row_to_struct(
        PromptDetail,
        row,
        **share_values(row),
        **{**saved.content, **lists},
        template_metadata=saved.template_metadata or {},
        prompt_version=version["number"],
        prompt_version_id=version["id"],
        prompt_version_description=saved.description,
        prompt_version_status=row["status"],
        prompt_version_label_id=labels[0].id if labels else None,
        prompt_version_label_name=labels[0].name if labels else None,
        prompt_version_labels=labels,
        variable_components=variable_components(saved.content),
    )


def _to_labels(prompt_labels: list[Row]) -> list[VersionLabel]:
    return [VersionLabel(id=row["label_id"], name=row["name"]) for row in prompt_labels]


def _to_summary(row: Row, version: Row, prompt_labels: list[Row]) -> VersionSummary:
    saved, response = PromptContent.from_version(version), _to_labels(prompt_labels)
    return VersionSummary(
        id=version["id"],
        prompt_id=row["id"],
        prompt_template=saved.content,
        prompt_version=version["number"],
        prompt_description=saved.description,
        label_id=response[0].id if response else None,
        labels=response,
        is_default=version["number"] == row["default_version"],
        created_by=version["created_by"],
        created_at=format_required_timestamp(version["created_at"]),
        status=row["status"],
    )


routes = [list_versions, get_version, update_version, publish_version]
