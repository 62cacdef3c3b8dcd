"""Workspaces: made and archived by the organisation, each with its defaults and limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from sqlalchemy import ColumnElement, Table, or_, select

from penstock.authorization import Caller, require_scopes
from penstock.batches.model import ACTIVE_STATUSES
from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.kit import integrations, keys, members, roles, shared_fields
from penstock.kit.limits import (
    RateLimitListField,
    UsageLimitListField,
    WorkspaceLimitFields,
    check_workspace_limits,
    reject_exceeding_limits,
)
from penstock.kit.listing import PageRequest
from penstock.kit.members import Member, NewMember
from penstock.kit.resource import Resource
from penstock.kit.rules import DATA_PLANE, OVERRIDES, WorkspaceRules, merge_rules, organisation_rules
from penstock.kit.shared_fields import UNSET, IdOrSlug, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.resources import _members
from penstock.resources.configs import CONFIGS
from penstock.schemas import EmptyResponse, ListResponse, field_error, now, row_to_struct, sent_fields
from penstock.store.tables import api_keys, batches, configs, files, providers, versions, workspaces
from penstock.store.tables import integrations as integration_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

WORKSPACES = Resource("workspaces", workspaces, publishes=True)
# What a name may begin with and `name_format=plain` leaves out.
LEADING_EMOJI_PATTERN = re.compile(r"^[\u200d\ufe0f\u2190-\u2bff\u3030-\u303d\u3297\u3299\U0001f000-\U0001faff]+\s*")
WORKSPACE_STATUSES = ("active", "archived")

WorkspaceMetadata = Annotated[
    dict[str, str] | None, Meta(description="metadata of every request made in the workspace")
]


class WorkspaceDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What requests and keys of the workspace have unless they say otherwise."""

    metadata: WorkspaceMetadata = None
    input_guardrails: shared_fields.Guardrails = None
    output_guardrails: shared_fields.Guardrails = None
    user_api_key_config: Annotated[str | None, Meta(description="config of new keys of people: id or slug")] = None


class WorkspaceDefaultsResponse(WorkspaceDefaults, frozen=True, kw_only=True):
    """Defaults as they are answered."""

    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    object: shared_fields.ObjectType = "workspace"


class WorkspaceRulesResponse(WorkspaceRules, frozen=True, kw_only=True):
    """Rules as they are answered: those that there are."""


DefaultsField = Annotated[
    WorkspaceDefaults | UnsetType | None, Meta(description="defaults; they replace those of before")
]
RulesField = Annotated[
    WorkspaceRules | UnsetType, Meta(description="rules; what is left out stays, null takes one away")
]
SecuritySettingsField = Annotated[
    dict[str, bool | None] | UnsetType | None,
    Meta(
        description="what members and managers may see and write, by flag: `membersViewConfigs`, `managersWriteConfigs` …; what is left out stays, null is what the organisation says; sections that it leaves to no workspace (`security_settings_overrides`) are refused"
    ),
]


class NewWorkspace(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workspace to be made."""

    name: shared_fields.Name
    description: shared_fields.Note = None
    defaults: DefaultsField = UNSET
    settings: RulesField = UNSET
    security_settings: SecuritySettingsField = UNSET
    users: Annotated[list[NewMember | str], Meta(description="its members: ids of users, or ids with roles")] = (
        msgspec.field(default_factory=list[NewMember | str])
    )


class WorkspaceUpdate(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.OptionalName = UNSET
    description: shared_fields.OptionalNote = UNSET
    defaults: DefaultsField = UNSET
    settings: RulesField = UNSET
    security_settings: SecuritySettingsField = UNSET


class ArchiveWorkspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that this workspace and no other is meant."""

    name: shared_fields.Name
    force_delete: Annotated[bool, Meta(description="remove what is in it too")] = False


class WorkspaceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One workspace."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    icon: Annotated[str | None, Meta(description="the emoji that its name begins with")]
    description: shared_fields.Note
    organisation_id: shared_fields.OrganisationId
    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    status: shared_fields.ArchiveStatus
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    created_by: shared_fields.CreatedBy
    creation_source: Annotated[str, Meta(description="how it was made")]
    defaults: Annotated[
        WorkspaceDefaultsResponse, Meta(description="what its requests and keys have unless they say otherwise")
    ]
    settings: Annotated[WorkspaceRulesResponse, Meta(description="its rules, as far as it has some")]
    usage_limits: UsageLimitListField
    rate_limits: RateLimitListField
    last_reset_at: shared_fields.OptionalTimestamp
    security_settings: Annotated[
        dict[str, bool],
        Meta(
            description="what members and managers may see and write here; those of logs, prompts, guardrails, analytics and MCP concern what is to come"
        ),
    ]
    scim_source_id: Annotated[str | None, Meta(description="always null: no workspace comes by SCIM")] = None
    object: shared_fields.ObjectType = "workspace"


class WorkspaceWithUsers(WorkspaceDetails, frozen=True, kw_only=True):
    """One workspace with its members."""

    users: Annotated[list[Member], Meta(description="its members")]


NameFormat = Annotated[
    Literal["display", "plain"], QueryParameter(description="`plain` leaves out the emoji that the name begins with")
]
StatusFilter = Annotated[
    str | None, QueryParameter(description="`active`, `archived` or both with a comma; default: active")
]
NameFilter = Annotated[str | None, QueryParameter(description="part of the name")]
ExactNameFilter = Annotated[str | None, QueryParameter(description="the whole name")]


@post(
    "/", status_code=200, guards=[require_scopes("workspaces.create")], summary="Create workspace", tags=["Workspaces"]
)
async def create_workspace(data: JSONBody[NewWorkspace], work: NamedDependency[RequestContext]) -> WorkspaceWithUsers:
    """Make a workspace, with its first members."""
    async with work.write_session() as desk:
        values: dict[str, Any] = {
            "slug": await desk.generate_unused_slug(workspaces, "ws", data.name, 20),
            "name": data.name,
            "description": data.description,
            "is_default": False,
            "status": "active",
            "created_by": work.caller.actor_id,
            "creation_source": "ui" if work.caller.by == "session" else "api",
            "defaults": {},
            "settings": {},
            "usage_limits": None,
            "rate_limits": None,
            "last_reset_at": None,
            **await _column_values(desk, data, None),
        }
        if values["defaults"].get("user_api_key_config"):
            raise field_error("defaults.user_api_key_config", "names a config, and a new workspace has none yet")
        row = await WORKSPACES.create(desk, values)
        await members.add_members(desk, row["id"], [_to_new_member(given) for given in data.users])
        await integrations.create_default_providers(desk, row["id"])
        return await _to_workspace_with_users(desk, row, "display")


@get("/", guards=[require_scopes("workspaces.list")], summary="List workspaces", tags=["Workspaces"])
async def list_workspaces(
    work: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    name: NameFilter = None,
    exact_name: ExactNameFilter = None,
    status: StatusFilter = None,
) -> ListResponse[WorkspaceDetails]:
    """List the workspaces that are open to the key; archived ones only for admins, and only when asked for."""
    wanted = [part.strip() for part in (status or "active").split(",")]
    if unknown := [word for word in wanted if word not in WORKSPACE_STATUSES]:
        raise field_error("status", f"{unknown[0]!r} is not allowed: use active, archived or both")
    if "archived" in wanted and not work.caller.is_organisation_admin:
        raise ForbiddenError("archived workspaces are listed for admins of the organisation")
    conditions: list[ColumnElement[bool]] = [workspaces.c.status.in_(wanted)]
    if name:
        conditions.append(workspaces.c.name.icontains(name, autoescape=True))
    if exact_name:
        conditions.append(workspaces.c.name == exact_name)
    if work.caller.user_id and not work.caller.is_organisation_admin:
        conditions.append(workspaces.c.id.in_(list(work.caller.roles)))
    async with work.unchecked_read_session() as desk:
        total, rows = await WORKSPACES.list_page(desk, page, conditions)
        above = await organisation_rules(desk)
        return ListResponse(total, [await _to_workspace_details(desk, row, "display", above) for row in rows])


@get("/{workspace:str}", guards=[require_scopes("workspaces.read")], summary="Get workspace", tags=["Workspaces"])
async def get_workspace(
    workspace: IdOrSlug, work: NamedDependency[RequestContext], name_format: NameFormat = "display"
) -> WorkspaceWithUsers:
    """Give a workspace with its members."""
    async with work.read_session(workspace) as desk:
        return await _to_workspace_with_users(desk, await WORKSPACES.get(desk, workspace), name_format)


@put("/{workspace:str}", guards=[require_scopes("workspaces.update")], summary="Update workspace", tags=["Workspaces"])
async def update_workspace(
    workspace: IdOrSlug, data: JSONBody[WorkspaceUpdate], work: NamedDependency[RequestContext]
) -> WorkspaceDetails:
    """Change a workspace; what is left out stays, of its rules too, defaults are replaced. Only the organisation loosens anything.

    What members and managers may is for admins of the workspace and the organisation to choose.
    """
    async with work.write_session(workspace) as desk:
        row = await WORKSPACES.get(desk, workspace)
        values = {name: value for name, value in sent_fields(data).items() if name in {"name", "description"}}
        values |= await _column_values(desk, data, row)
        if not _is_organisation_admin(work.caller):
            await _reject_loosened_rules(desk, row, values)
        row = await WORKSPACES.update(desk, row, values)
        return await _to_workspace_details(desk, row, "display", await organisation_rules(desk))


@delete(
    "/{workspace:str}",
    status_code=200,
    guards=[require_scopes("workspaces.delete")],
    summary="Delete workspace",
    tags=["Workspaces"],
)
async def archive_workspace(
    workspace: IdOrSlug, data: JSONBody[ArchiveWorkspace], work: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Archive a workspace; with `force_delete` what is in it goes, without it there must be nothing left."""
    async with work.write_session(workspace) as desk:
        row = await WORKSPACES.get(desk, workspace)
        if data.name != row["name"]:
            raise field_error("name", f"{data.name!r} is not the name of this workspace")
        if row["is_default"]:
            raise ConflictError("the default workspace of the organisation stays")
        if not data.force_delete:
            await _reject_if_not_empty(desk)
        await _delete_contents(desk)
        await WORKSPACES.update(desk, row, {"status": "archived"}, "delete")
        return EmptyResponse()


async def _reject_if_not_empty(desk: TenantSession) -> None:
    left_out: dict[Table, list[ColumnElement[bool]]] = {
        integration_rows: [~integration_rows.c.brought_along],
        files: [files.c.expires_at > now()],
        batches: [batches.c.status.in_(ACTIVE_STATUSES)],
    }
    tables = (api_keys, providers, configs, integration_rows, files, batches)
    inside = {table.name: await desk.count(table, left_out.get(table, ())) for table in tables}
    if any(inside.values()):
        left = ", ".join(f"{count} {name}" for name, count in inside.items() if count)
        raise ConflictError(f"there is something left in it: {left}; hint: force_delete")


async def _delete_contents(desk: TenantSession) -> None:
    """Remove what is in a workspace, credentials and old versions too."""
    here = desk.required_workspace_id
    await keys.remove_matching(desk)
    await integrations.PROVIDERS.delete_all(desk)
    await integrations.remove_owned(desk)
    for resource in (CONFIGS, members.MEMBER_RESOURCE):
        await resource.delete_all(desk)
    await desk.delete(versions, versions.c.workspace_id == here)
    kept = await desk.fetch_rows(select(files).where(files.c.expires_at > now()), files)
    await desk.record_deletions("files.delete", kept)
    # Whoever looks after old files takes their contents away.
    await desk.update_all(files, {"expires_at": now()})


def _is_organisation_admin(caller: Caller) -> bool:
    """Whether somebody acts for the organisation: as its key, or as its admin, but not by a key of the workspace."""
    is_workspaces = caller.by == "key" and caller.workspace_id is not None
    return caller.is_organisation_admin and not is_workspaces


async def _reject_loosened_rules(desk: TenantSession, row: Row, values: Mapping[str, Any]) -> None:
    """Refuse to have those who are inside a workspace lift what the organisation holds the workspace to."""
    name = "user_api_key_rotation_period"
    why = "would loosen what this workspace is held to: that is for the organisation's keys and admins"
    reject_exceeding_limits(row, values, why)
    before, after = row["settings"], values.get("settings", row["settings"])
    above = await organisation_rules(desk)
    of_all = above.get(name)
    both = (before, after)
    bounds = [
        [rules.get(name) or of_all for rules in both],
        [rules.get("user_api_key_max_ttl") for rules in both],
        # -1 is no bound either.
        [None if (most := rules.get("user_api_key_count", -1)) == -1 else most for rules in both],
    ]
    looser = any(bound is not None and (other is None or other > bound) for bound, other in bounds)
    # What the organisation leaves to workspaces is theirs to lift too.
    is_left = above.get(OVERRIDES, {}).get(DATA_PLANE) is True
    lifts = before.get("block_inline_config") and not after.get("block_inline_config") and not is_left
    if looser or lifts:
        raise ForbiddenError(f"settings {why}", [Problem("settings", why)])


async def _column_values(desk: TenantSession, data: NewWorkspace | WorkspaceUpdate, row: Row | None) -> dict[str, Any]:
    """Check what was sent of defaults, rules and limits, and write it down."""
    values = check_workspace_limits(data, rates_at_most=1, before=row)
    if data.defaults is not UNSET:
        kept = {
            name: value for name, value in msgspec.to_builtins(data.defaults or WorkspaceDefaults()).items() if value
        }
        if config := kept.get("user_api_key_config"):
            kept_before = row["defaults"].get("user_api_key_config") if row else None
            named = await desk.resolve_config("defaults.user_api_key_config", config, kept_before)
            kept["user_api_key_config"] = named["id"]
        values["defaults"] = kept
    before: dict[str, Any] = row["settings"] if row else {}
    above = await organisation_rules(desk)
    if data.settings is not UNSET:
        values["settings"] = merge_rules(data.settings, before)
        _reject_reserved_rules(values["settings"], before, above)
    if data.security_settings is not UNSET:
        roles.check_can_set_flags(desk.caller, row["id"] if row else None)
        flags = roles.merge_flags(data.security_settings, before, above)
        values["settings"] = {**values.get("settings", before), roles.SETTINGS_FIELD: flags}
        # Nobody gives what is more than their own.
        both = (roles.non_default_flags(rules, above) for rules in (before, values["settings"]))
        desk.check_grantable_scopes(roles.gained_scopes(*both), row["id"] if row else None)
    return values


def _reject_reserved_rules(after: Mapping[str, Any], before: Mapping[str, Any], above: Mapping[str, Any]) -> None:
    """Refuse to have a workspace choose what its organisation keeps for itself."""
    name = "block_inline_config"
    is_kept = above.get(OVERRIDES, {}).get(DATA_PLANE) is False
    if is_kept and after.get(name) not in {None, before.get(name), above.get(name, False)}:
        raise roles.organisation_controlled_error(f"settings.{name}", DATA_PLANE)


def _to_new_member(given: NewMember | str) -> NewMember:
    return NewMember(given, "member") if isinstance(given, str) else given


async def _to_workspace_with_users(desk: TenantSession, row: Row, name_format: str) -> WorkspaceWithUsers:
    shown = await _to_workspace_details(desk, row, name_format, await organisation_rules(desk))
    same = {name: getattr(shown, name) for name in shown.__struct_fields__}
    return WorkspaceWithUsers(**same, users=await members.list_members(desk, row["id"]))


async def _to_workspace_details(
    desk: TenantSession, row: Row, name_format: str, above: Mapping[str, Any]
) -> WorkspaceDetails:
    defaults = dict(row["defaults"])
    if config := defaults.get("user_api_key_config"):
        query = select(configs.c.slug).where(or_(configs.c.id == config, configs.c.slug == config))
        found = await desk.fetch_first(query, configs)
        defaults["user_api_key_config"] = found["slug"] if found else None
    emoji = LEADING_EMOJI_PATTERN.match(row["name"])
    return row_to_struct(
        WorkspaceDetails,
        row,
        name=LEADING_EMOJI_PATTERN.sub("", row["name"]) or row["name"] if name_format == "plain" else row["name"],
        icon=emoji[0].strip() if emoji else None,
        is_default=int(row["is_default"]),
        settings={name: value for name, value in row["settings"].items() if name != roles.SETTINGS_FIELD},
        security_settings=roles.effective_flags(row["settings"], above),
        defaults=WorkspaceDefaultsResponse(**defaults, is_default=int(row["is_default"])),
    )


routes = [create_workspace, list_workspaces, get_workspace, update_workspace, archive_workspace, *_members.routes]
