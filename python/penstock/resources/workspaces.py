"""Routes for workspaces: created and archived by the organisation, each with its own defaults and limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from sqlalchemy import ColumnElement, Table, or_, select

from penstock.access import roles
from penstock.access.default_metadata import check_default_metadata
from penstock.access.tenant_rules import DATA_PLANE, OVERRIDES, WorkspaceRules, merge_rules, organisation_rules
from penstock.authorization import ORGANISATION_ADMIN_RANK, require_scopes
from penstock.batches.batch_object import ACTIVE_STATUSES
from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.guardrails.defaults import find_slugs, resolve_guardrails
from penstock.guardrails.documents import DEFAULT_FIELDS
from penstock.guardrails.saved_guardrails import GUARDRAILS
from penstock.ids import SLUG_PATTERN
from penstock.integrations import saved_integrations as integrations
from penstock.kit import shared_fields
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.resource import Resource
from penstock.kit.route_parameters import IdOrSlug
from penstock.kit.shared_fields import UNSET, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limit_fields import (
    CurrentUsageField,
    RateLimitListField,
    ResetUsage,
    UsageLimitListField,
    WorkspaceLimitFields,
    check_workspace_limits,
    reject_exceeding_limits,
)
from penstock.limits import policies as limit_policies
from penstock.limits.initial_usage import InitialUsageField, check_initial_usage, store_initial_usage
from penstock.limits.status import NO_USAGE, read_current_usage
from penstock.organisation import keys, members
from penstock.organisation.members import Member, NewMember
from penstock.prompts import workspace as prompt_workspace
from penstock.prompts.sharing import reject_shared_prompts
from penstock.resources import _members
from penstock.resources.configs import CONFIGS
from penstock.schemas import EmptyResponse, ListResponse, field_error, now, row_to_struct, sent_fields
from penstock.store.guardrail_tables import guardrails
from penstock.store.job_tables import batches, files
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies
from penstock.store.prompt_tables import prompt_partials, prompts
from penstock.store.tables import api_keys, configs, providers, versions, workspaces
from penstock.store.tables import integrations as integration_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

WORKSPACES = Resource("workspaces", workspaces, publishes=True)
# Emoji at the start of a workspace name. It is shown as the icon, and `name_format=plain` omits it.
LEADING_EMOJI_PATTERN = re.compile(r"^[\u200d\ufe0f\u2190-\u2bff\u3030-\u303d\u3297\u3299\U0001f000-\U0001faff]+\s*")
WORKSPACE_STATUSES = ("active", "archived")

Icon = Annotated[str, Meta(max_length=32)]
IconField = Annotated[Icon | None, Meta(description="emoji before the name")]
WorkspaceMetadata = Annotated[
    dict[str, str] | None, Meta(description="metadata that is added to every request in the workspace")
]


class WorkspaceDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values for requests and API keys of the workspace that do not set their own."""

    metadata: WorkspaceMetadata = None
    input_guardrails: shared_fields.Guardrails = None
    output_guardrails: shared_fields.Guardrails = None
    user_api_key_config: Annotated[
        str | None, Meta(description="id or slug of the config for new API keys of users")
    ] = None
    READ_ONLY: ClassVar = ("is_default", "object")


class WorkspaceDefaultsResponse(WorkspaceDefaults, frozen=True, kw_only=True):
    """Workspace defaults in a response."""

    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    object: shared_fields.ObjectType = "workspace"


class WorkspaceRulesResponse(WorkspaceRules, frozen=True, kw_only=True):
    """Workspace rules in a response; only rules that are set are included."""


DefaultsField = Annotated[
    WorkspaceDefaults | UnsetType | None, Meta(description="defaults; they replace the current ones")
]
RulesField = Annotated[
    WorkspaceRules | UnsetType, Meta(description="rules; omitted rules stay as they are, and null removes a rule")
]
SecuritySettingsField = Annotated[
    dict[str, bool | None] | UnsetType | None,
    Meta(
        description="what members and managers may read and write, by flag: `membersViewConfigs`, `managersWriteConfigs` …; omitted flags stay as they are, and null resets a flag to the organisation's value; flags of sections that the organisation does not leave to workspaces (`security_settings_overrides`) are rejected"
    ),
]


class NewWorkspace(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workspace to create."""

    name: shared_fields.Name
    slug: shared_fields.ChosenSlug = None
    icon: IconField = None
    description: shared_fields.Note = None
    defaults: DefaultsField = UNSET
    settings: RulesField = UNSET
    security_settings: SecuritySettingsField = UNSET
    users: Annotated[list[NewMember | str], Meta(description="initial members: ids of users, or ids with roles")] = (
        msgspec.field(default_factory=list[NewMember | str])
    )
    initial_usage: InitialUsageField = None


class WorkspaceUpdate(WorkspaceLimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a workspace to change; omitted fields stay as they are."""

    name: shared_fields.OptionalName = UNSET
    slug: Annotated[
        Annotated[str, Meta(pattern=SLUG_PATTERN)] | UnsetType,
        Meta(description="new slug; only keys and admins of the organisation can change it"),
    ] = UNSET
    icon: Annotated[Icon | UnsetType | None, Meta(description="emoji before the name; null or empty removes it")] = (
        UNSET
    )
    description: shared_fields.OptionalNote = UNSET
    defaults: DefaultsField = UNSET
    settings: RulesField = UNSET
    security_settings: SecuritySettingsField = UNSET
    reset_usage: ResetUsage = False


class ArchiveWorkspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Confirms by name which workspace to archive. Without a name only an empty workspace is archived."""

    name: Annotated[str | None, Meta(description="name of the workspace; required with force_delete")] = None
    force_delete: Annotated[bool, Meta(description="also delete the contents of the workspace")] = False


class WorkspaceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One workspace."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    icon: Annotated[str | None, Meta(description="emoji at the start of its displayed name")]
    description: shared_fields.Note
    organisation_id: shared_fields.OrganisationId
    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    status: shared_fields.ArchiveStatus
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    created_by: shared_fields.CreatedBy
    creation_source: Annotated[str, Meta(description="how it was created: `ui`, `api`, `init` or `demo`")]
    defaults: Annotated[
        WorkspaceDefaultsResponse, Meta(description="values for its requests and API keys that do not set their own")
    ]
    settings: Annotated[WorkspaceRulesResponse, Meta(description="rules that are set for the workspace")]
    usage_limits: UsageLimitListField
    rate_limits: RateLimitListField
    current_usage: CurrentUsageField = None
    last_reset_at: shared_fields.OptionalTimestamp
    security_settings: Annotated[
        dict[str, bool],
        Meta(description="what members and managers may read and write here; the flags for MCP have no effect yet"),
    ]
    organisation_sections: Annotated[
        list[str],
        Meta(
            description="sections of `security_settings` that the organisation decides, so that the workspace cannot change them; `data_plane_security_settings` stands for block_inline_config"
        ),
    ]
    scim_source_id: Annotated[str | None, Meta(description="always null: workspaces are not created through SCIM")] = (
        None
    )
    object: shared_fields.ObjectType = "workspace"


class WorkspaceWithUsers(WorkspaceDetails, frozen=True, kw_only=True):
    """One workspace with its members."""

    users: Annotated[list[Member], Meta(description="its members")]


class FirstMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a new workspace. All values are strings, which some clients require."""

    id: shared_fields.Id
    email: shared_fields.Email
    first_name: shared_fields.FirstName
    last_name: shared_fields.LastName
    org_role: Annotated[str, Meta(description="`owner`, `admin` or `member` of the organisation")]
    role: Annotated[str, Meta(description="`admin`, `manager` or `member` of the workspace")]
    status: Annotated[str, Meta(description="`active`")]
    workspace_id: shared_fields.WorkspaceId
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "workspace-user"


class CreatedWorkspace(WorkspaceDetails, frozen=True, kw_only=True):
    """A new workspace with its first members."""

    users: Annotated[list[FirstMember], Meta(description="its members")]


NameFormat = Annotated[
    Literal["display", "plain"], QueryParameter(description="`plain` omits the emoji at the start of the name")
]
StatusFilter = Annotated[
    str | None, QueryParameter(description="`active`, `archived` or both, separated by a comma; default: active")
]
NameFilter = Annotated[str | None, QueryParameter(description="part of the name, ignoring the case of ASCII letters")]
ExactNameFilter = Annotated[str | None, QueryParameter(description="full name")]


@post(
    "/", status_code=200, guards=[require_scopes("workspaces.create")], summary="Create workspace", tags=["Workspaces"]
)
async def create_workspace(data: JSONBody[NewWorkspace], context: NamedDependency[RequestContext]) -> CreatedWorkspace:
    """Creates a workspace with its first members."""
    async with context.write_session() as session:
        values: dict[str, Any] = {
            "slug": data.slug or await session.generate_unused_slug(workspaces, "ws", data.name, 20),
            **_name_columns(data.name, data.icon),
            "description": data.description,
            "is_default": False,
            "status": "active",
            "created_by": context.caller.actor_id,
            "creation_source": "ui" if context.caller.by == "session" else "api",
            "defaults": {},
            "settings": {},
            "usage_limits": None,
            "rate_limits": None,
            "last_reset_at": None,
            **await _column_values(session, data, None),
        }
        if values["defaults"].get("user_api_key_config"):
            raise field_error("defaults.user_api_key_config", "names a config, and a new workspace has none yet")
        check_initial_usage(data.initial_usage, values["usage_limits"])
        row = await WORKSPACES.create(session, values)
        await store_initial_usage(session, "workspace", row, data.initial_usage)
        await members.add_members(session, row["id"], [_to_new_member(member) for member in data.users])
        await integrations.create_default_providers(session, row["id"])
        await prompt_workspace.create_initial_rows(session, row["id"])
        workspace_details = await _to_workspace_details(session, row, "display", await organisation_rules(session))
        first = [
            FirstMember(**{name: getattr(member, name) for name in FirstMember.__struct_fields__})
            for member in await members.list_members(session, row["id"])
        ]
        return CreatedWorkspace(**_struct_values(workspace_details), users=first)


@get("/", guards=[require_scopes("workspaces.list")], summary="List workspaces", tags=["Workspaces"])
async def list_workspaces(
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    name: NameFilter = None,
    exact_name: ExactNameFilter = None,
    status: StatusFilter = None,
) -> ListResponse[WorkspaceDetails]:
    """Lists the workspaces that the caller can access. Archived workspaces are listed only on request, and only for
    admins.
    """
    requested = [part.strip() for part in (status or "active").split(",")]
    if unknown := [value for value in requested if value not in WORKSPACE_STATUSES]:
        raise field_error("status", f"{unknown[0]!r} is not allowed: use active, archived or both")
    if "archived" in requested and not context.caller.is_organisation_admin:
        raise ForbiddenError("only admins of the organisation can list archived workspaces")
    conditions: list[ColumnElement[bool]] = [workspaces.c.status.in_(requested)]
    if name:
        conditions.append(workspaces.c.name.icontains(name, autoescape=True))
    if exact_name:
        displayed = workspaces.c.icon + " " + workspaces.c.name
        conditions.append(or_(workspaces.c.name == exact_name, displayed == exact_name))
    if context.caller.user_id and not context.caller.is_organisation_admin:
        conditions.append(workspaces.c.id.in_(list(context.caller.roles)))
    async with context.unchecked_read_session() as session:
        total, rows = await WORKSPACES.list_page(session, page, conditions)
        above = await organisation_rules(session)
        return ListResponse(total, [await _to_workspace_details(session, row, "display", above) for row in rows])


@get("/{workspace:str}", guards=[require_scopes("workspaces.read")], summary="Get workspace", tags=["Workspaces"])
async def get_workspace(
    workspace: IdOrSlug, context: NamedDependency[RequestContext], name_format: NameFormat = "display"
) -> WorkspaceWithUsers:
    """Returns a workspace with its members."""
    async with context.read_session(workspace) as session:
        return await _to_workspace_with_users(session, await WORKSPACES.get(session, workspace), name_format)


@put(
    "/{workspace:str}",
    guards=[require_scopes("workspaces.update")],
    summary="Update workspace",
    tags=["Workspaces"],
    opt={SHOWN_OPTION: WorkspaceWithUsers},
)
async def update_workspace(
    workspace: IdOrSlug, data: JSONBody[WorkspaceUpdate], context: NamedDependency[RequestContext]
) -> WorkspaceDetails:
    """Changes a workspace. Omitted fields and omitted rules stay as they are; defaults are replaced. Only keys and
    admins of the organisation can loosen limits and rules, or reset the usage.

    Only admins of the workspace or the organisation can change what members and managers may do.
    """
    async with context.write_session(workspace) as session:
        row = await WORKSPACES.get(session, workspace)
        if context.sends_read_fields:
            await context.check_unchanged(session, await _to_workspace_with_users(session, row, "display"))
        values = {name: value for name, value in sent_fields(data).items() if name == "description"}
        values |= _changed_name_columns(row, data)
        if data.slug is not UNSET and data.slug != row["slug"]:
            if session.caller.rank(row["id"]) < ORGANISATION_ADMIN_RANK:
                raise ForbiddenError("only keys and admins of the organisation can change the slug of a workspace")
            values["slug"] = data.slug
        values |= await _column_values(session, data, row)
        if session.caller.rank(row["id"]) < ORGANISATION_ADMIN_RANK:
            _reject_reset(row, data)
            await _reject_loosened_rules(session, row, values)
        if data.reset_usage:
            values["last_reset_at"] = now()
        row = await WORKSPACES.update(session, row, values)
        session.note_changed_budget(f"workspace:{row['id']}")
        return await _to_workspace_details(session, row, "display", await organisation_rules(session))


@delete(
    "/{workspace:str}",
    status_code=200,
    guards=[require_scopes("workspaces.delete")],
    summary="Delete workspace",
    tags=["Workspaces"],
)
async def archive_workspace(
    workspace: IdOrSlug, context: NamedDependency[RequestContext], data: JSONBody[ArchiveWorkspace | None] = None
) -> EmptyResponse:
    """Archives a workspace. With `force_delete` its contents are deleted, and its name must confirm that; without it
    the workspace must be empty.
    """
    name, is_forced = (data.name, data.force_delete) if data else (None, False)
    async with context.write_session(workspace) as session:
        row = await WORKSPACES.get(session, workspace)
        if is_forced and name is None:
            raise field_error("name", "is needed with force_delete: the name of the workspace")
        if name is not None and name not in {row["name"], _display_name(row)}:
            raise field_error("name", f"{name!r} is not the name of this workspace")
        if row["is_default"]:
            raise ConflictError("the default workspace of the organisation cannot be archived")
        await reject_shared_prompts(session, row["id"])
        if not is_forced:
            await _reject_if_not_empty(session)
        await _delete_contents(session)
        await WORKSPACES.update(session, row, {"status": "archived"}, "delete")
        return EmptyResponse()


async def _reject_if_not_empty(session: TenantSession) -> None:
    left_out: dict[Table, list[ColumnElement[bool]]] = {
        integration_rows: [~integration_rows.c.brought_along],
        files: [files.c.expires_at > now()],
        batches: [batches.c.status.in_(ACTIVE_STATUSES)],
        **{table: [table.c.status == limit_policies.ACTIVE] for table in (usage_limits_policies, rate_limits_policies)},
    }
    tables = (
        api_keys,
        providers,
        configs,
        integration_rows,
        files,
        batches,
        usage_limits_policies,
        rate_limits_policies,
        prompts,
        prompt_partials,
        guardrails,
    )
    inside = {table.name: await session.count(table, left_out.get(table, ())) for table in tables}
    if any(inside.values()):
        remaining = ", ".join(f"{count} {name}" for name, count in inside.items() if count)
        raise ConflictError(f"the workspace is not empty: {remaining}; hint: force_delete")


async def _delete_contents(session: TenantSession) -> None:
    """Deletes the contents of a workspace, including credentials and versions of configs, prompts and guardrails."""
    workspace_id = session.required_workspace_id
    await keys.remove_matching(session)
    await integrations.PROVIDERS.delete_all(session)
    await integrations.remove_owned(session)
    for resource in (CONFIGS, GUARDRAILS, members.MEMBER_RESOURCE):
        await resource.delete_all(session)
    await limit_policies.delete_policies(session)
    await prompt_workspace.delete_contents(session)
    await session.delete(versions, versions.c.workspace_id == workspace_id)
    file_rows = await session.fetch_rows(select(files).where(files.c.expires_at > now()), files)
    await session.record_deletions("files.delete", file_rows)
    # The files expire now. The batch runner deletes expired files and their contents.
    await session.update_all(files, {"expires_at": now()})


def _reject_reset(row: Row, data: WorkspaceUpdate) -> None:
    """Rejects a reset of the usage by members of a workspace. It lets them spend more than the organisation allows."""
    if data.reset_usage and row["usage_limits"]:
        reason = "can be set only by keys and admins of the organisation"
        raise ForbiddenError(f"reset_usage {reason}", [Problem("reset_usage", reason)])


async def _reject_loosened_rules(session: TenantSession, row: Row, values: Mapping[str, Any]) -> None:
    """Rejects a change by members of a workspace that loosens limits or rules. Only the organisation may loosen them."""
    name = "user_api_key_rotation_period"
    reason = "would loosen a limit or rule of this workspace: only keys and admins of the organisation may do that"
    reject_exceeding_limits(row, values, reason)
    before, after = row["settings"], values.get("settings", row["settings"])
    above = await organisation_rules(session)
    of_all = above.get(name)
    both = (before, after)
    bounds = [
        [rules.get(name) or of_all for rules in both],
        [rules.get("user_api_key_max_ttl") for rules in both],
        # -1 also means no limit.
        [None if (maximum := rules.get("user_api_key_count", -1)) == -1 else maximum for rules in both],
    ]
    looser = any(bound is not None and (other is None or other > bound) for bound, other in bounds)
    # If the organisation lets workspaces decide about inline configs, the workspace may lift its own block too.
    is_workspace_choice = above.get(OVERRIDES, {}).get(DATA_PLANE) is True
    lifts = before.get("block_inline_config") and not after.get("block_inline_config") and not is_workspace_choice
    if looser or lifts:
        raise ForbiddenError(f"settings {reason}", [Problem("settings", reason)])


async def _column_values(
    session: TenantSession, data: NewWorkspace | WorkspaceUpdate, row: Row | None
) -> dict[str, Any]:
    """Validates the defaults, rules and limits of the request and returns the column values to store."""
    values = check_workspace_limits(data, rates_at_most=1, before=row)
    if data.defaults is not UNSET:
        defaults = {
            name: value for name, value in msgspec.to_builtins(data.defaults or WorkspaceDefaults()).items() if value
        }
        check_default_metadata("defaults.metadata", defaults.get("metadata"))
        if config := defaults.get("user_api_key_config"):
            kept_before = row["defaults"].get("user_api_key_config") if row else None
            config_row = await session.resolve_config("defaults.user_api_key_config", config, kept_before)
            defaults["user_api_key_config"] = config_row["id"]
        for name in (name for name in DEFAULT_FIELDS if name in defaults):
            # A new workspace has no guardrails yet, so its defaults can only be guardrails of the organisation.
            owner = row["id"] if row else ""
            defaults[name] = await resolve_guardrails(session, f"defaults.{name}", defaults[name], owner)
        values["defaults"] = defaults
    before: dict[str, Any] = row["settings"] if row else {}
    above = await organisation_rules(session)
    if data.settings is not UNSET:
        values["settings"] = merge_rules(data.settings, before)
        _reject_reserved_rules(values["settings"], before, above)
    if data.security_settings is not UNSET:
        roles.check_can_set_flags(session.caller, row["id"] if row else None)
        flags = roles.merge_flags(data.security_settings, before, above)
        values["settings"] = {**values.get("settings", before), roles.SETTINGS_FIELD: flags}
        # Callers can grant only rights that they have themselves.
        both = (roles.non_default_flags(rules, above) for rules in (before, values["settings"]))
        session.check_grantable_scopes(roles.gained_scopes(*both), row["id"] if row else None)
    return values


def _reject_reserved_rules(after: Mapping[str, Any], before: Mapping[str, Any], above: Mapping[str, Any]) -> None:
    """Rejects a workspace rule that the organisation reserves for itself."""
    name = "block_inline_config"
    is_reserved = above.get(OVERRIDES, {}).get(DATA_PLANE) is False
    if is_reserved and after.get(name) not in {None, before.get(name), above.get(name, False)}:
        raise roles.organisation_controlled_error(f"settings.{name}", DATA_PLANE)


def _name_columns(name: str, icon: str | None) -> dict[str, str | None]:
    """Returns the columns for a name and an icon, with the icon removed from the name. Responses contain both as the
    name, so clients send them together.
    """
    if not icon:
        return {"name": name, "icon": None}
    return {"name": name.removeprefix(icon).strip() or name, "icon": icon}


def _changed_name_columns(row: Row, data: WorkspaceUpdate) -> dict[str, str | None]:
    if data.name is UNSET and data.icon is UNSET:
        return {}
    icon = row["icon"] if data.icon is UNSET else data.icon
    if data.icon is UNSET or data.name is not UNSET:
        return _name_columns(row["name"] if data.name is UNSET else data.name, icon)
    # A leading emoji of the name was shown as the icon, so a new icon replaces it.
    return _name_columns(_plain_name(row), icon)


def _plain_name(row: Row) -> str:
    return LEADING_EMOJI_PATTERN.sub("", row["name"]) or row["name"]


def _display_name(row: Row) -> str:
    return f"{row['icon']} {row['name']}" if row["icon"] else row["name"]


def _struct_values(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _to_new_member(member: NewMember | str) -> NewMember:
    return NewMember(member, "member") if isinstance(member, str) else member


async def _to_workspace_with_users(session: TenantSession, row: Row, name_format: str) -> WorkspaceWithUsers:
    workspace_details = await _to_workspace_details(session, row, name_format, await organisation_rules(session))
    return WorkspaceWithUsers(**_struct_values(workspace_details), users=await members.list_members(session, row["id"]))


async def _to_workspace_details(
    session: TenantSession, row: Row, name_format: str, above: Mapping[str, Any]
) -> WorkspaceDetails:
    defaults = dict(row["defaults"])
    if config := defaults.get("user_api_key_config"):
        query = select(configs.c.slug).where(or_(configs.c.id == config, configs.c.slug == config))
        config = await session.fetch_first(query, configs)
        defaults["user_api_key_config"] = config["slug"] if config else None
    if names := [name for name in DEFAULT_FIELDS if defaults.get(name)]:
        slugs = await find_slugs(session, (own_id for name in names for own_id in defaults[name]))
        # Guardrails of an archived workspace were deleted with its contents.
        defaults |= {name: [slugs[own_id] for own_id in defaults[name] if own_id in slugs] for name in names}
    emoji = LEADING_EMOJI_PATTERN.match(row["name"])
    used = await read_current_usage(session, "workspace", [row])
    return row_to_struct(
        WorkspaceDetails,
        row,
        name=_plain_name(row) if name_format == "plain" else _display_name(row),
        current_usage=used.get(row["id"], NO_USAGE).amount,
        icon=row["icon"] or (emoji[0].strip() if emoji else None),
        is_default=int(row["is_default"]),
        settings={name: value for name, value in row["settings"].items() if name != roles.SETTINGS_FIELD},
        security_settings=roles.effective_flags(row["settings"], above),
        organisation_sections=sorted(name for name, is_free in above.get(OVERRIDES, {}).items() if is_free is False),
        defaults=WorkspaceDefaultsResponse(**defaults, is_default=int(row["is_default"])),
    )


routes = [create_workspace, list_workspaces, get_workspace, update_workspace, archive_workspace, *_members.routes]
