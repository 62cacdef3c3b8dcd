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

from penstock.authorization import Caller, needs
from penstock.batches.model import ACTIVE
from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.kit import integrations, keys, members, roles, shared_fields
from penstock.kit.limits import ManyUsageShown, RatesShown, Shared, refuse_beyond, sent_of
from penstock.kit.listing import Page
from penstock.kit.members import Member, NewMember
from penstock.kit.resource import Resource
from penstock.kit.rules import DATA_PLANE, OVERRIDES, WorkspaceRules, of_organisation, written
from penstock.kit.shared_fields import UNSET, IdOrSlug, UnsetType
from penstock.kit.tenant_session import Desk, Work
from penstock.resources import _members
from penstock.resources.configs import CONFIGS
from penstock.schemas import Done, Listed, given, now, refuse, write_out
from penstock.store.tables import api_keys, batches, configs, files, providers, versions, workspaces
from penstock.store.tables import integrations as integration_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

WORKSPACES = Resource("workspaces", workspaces, publishes=True)
# What a name may begin with and `name_format=plain` leaves out.
EMOJI = re.compile(r"^[\u200d\ufe0f\u2190-\u2bff\u3030-\u303d\u3297\u3299\U0001f000-\U0001faff]+\s*")
STATUSES = ("active", "archived")

Metadata = Annotated[dict[str, str] | None, Meta(description="metadata of every request made in the workspace")]


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What requests and keys of the workspace have unless they say otherwise."""

    metadata: Metadata = None
    input_guardrails: shared_fields.Guardrails = None
    output_guardrails: shared_fields.Guardrails = None
    user_api_key_config: Annotated[str | None, Meta(description="config of new keys of people: id or slug")] = None


class DefaultsShown(Defaults, frozen=True, kw_only=True):
    """Defaults as they are answered."""

    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    object: shared_fields.Object = "workspace"


class RulesShown(WorkspaceRules, frozen=True, kw_only=True):
    """Rules as they are answered: those that there are."""


DefaultsGiven = Annotated[Defaults | UnsetType | None, Meta(description="defaults; they replace those of before")]
SettingsGiven = Annotated[
    WorkspaceRules | UnsetType, Meta(description="rules; what is left out stays, null takes one away")
]
SecurityGiven = Annotated[
    dict[str, bool | None] | UnsetType | None,
    Meta(
        description="what members and managers may see and write, by flag: `membersViewConfigs`, `managersWriteConfigs` …; what is left out stays, null is what the organisation says; sections that it leaves to no workspace (`security_settings_overrides`) are refused"
    ),
]


class NewWorkspace(Shared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workspace to be made."""

    name: shared_fields.Name
    description: shared_fields.Note = None
    defaults: DefaultsGiven = UNSET
    settings: SettingsGiven = UNSET
    security_settings: SecurityGiven = UNSET
    users: Annotated[list[NewMember | str], Meta(description="its members: ids of users, or ids with roles")] = (
        msgspec.field(default_factory=list[NewMember | str])
    )


class WorkspaceChange(Shared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    description: shared_fields.MaybeNote = UNSET
    defaults: DefaultsGiven = UNSET
    settings: SettingsGiven = UNSET
    security_settings: SecurityGiven = UNSET


class Farewell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that this workspace and no other is meant."""

    name: shared_fields.Name
    force_delete: Annotated[bool, Meta(description="remove what is in it too")] = False


class WorkspaceShown(msgspec.Struct, frozen=True, kw_only=True):
    """One workspace."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    icon: Annotated[str | None, Meta(description="the emoji that its name begins with")]
    description: shared_fields.Note
    organisation_id: shared_fields.Organisation
    is_default: Annotated[int, Meta(description="1 for the organisation's default workspace")]
    status: shared_fields.Kept
    created_at: shared_fields.Moment
    last_updated_at: shared_fields.Changed
    created_by: shared_fields.Maker
    creation_source: Annotated[str, Meta(description="how it was made")]
    defaults: Annotated[DefaultsShown, Meta(description="what its requests and keys have unless they say otherwise")]
    settings: Annotated[RulesShown, Meta(description="its rules, as far as it has some")]
    usage_limits: ManyUsageShown
    rate_limits: RatesShown
    last_reset_at: shared_fields.MomentOrNone
    security_settings: Annotated[
        dict[str, bool],
        Meta(
            description="what members and managers may see and write here; those of logs, prompts, guardrails, analytics and MCP concern what is to come"
        ),
    ]
    scim_source_id: Annotated[str | None, Meta(description="always null: no workspace comes by SCIM")] = None
    object: shared_fields.Object = "workspace"


class WorkspaceWithUsers(WorkspaceShown, frozen=True, kw_only=True):
    """One workspace with its members."""

    users: Annotated[list[Member], Meta(description="its members")]


NameFormat = Annotated[
    Literal["display", "plain"], QueryParameter(description="`plain` leaves out the emoji that the name begins with")
]
Status = Annotated[str | None, QueryParameter(description="`active`, `archived` or both with a comma; default: active")]
NameAsked = Annotated[str | None, QueryParameter(description="part of the name")]
ExactName = Annotated[str | None, QueryParameter(description="the whole name")]


@post("/", status_code=200, guards=[needs("workspaces.create")], summary="Create workspace", tags=["Workspaces"])
async def create(data: JSONBody[NewWorkspace], work: NamedDependency[Work]) -> WorkspaceWithUsers:
    """Make a workspace, with its first members."""
    async with work.writing() as desk:
        values: dict[str, Any] = {
            "slug": await desk.new_slug(workspaces, "ws", data.name, 20),
            "name": data.name,
            "description": data.description,
            "is_default": False,
            "status": "active",
            "created_by": work.caller.actor,
            "creation_source": "ui" if work.caller.by == "session" else "api",
            "defaults": {},
            "settings": {},
            "usage_limits": None,
            "rate_limits": None,
            "last_reset_at": None,
            **await _values(desk, data, None),
        }
        if values["defaults"].get("user_api_key_config"):
            raise refuse("defaults.user_api_key_config", "names a config, and a new workspace has none yet")
        row = await WORKSPACES.add(desk, values)
        await members.add(desk, row["id"], [_member(given) for given in data.users])
        await integrations.welcome(desk, row["id"])
        return await _with_users(desk, row, "display")


@get("/", guards=[needs("workspaces.list")], summary="List workspaces", tags=["Workspaces"])
async def index(
    work: NamedDependency[Work],
    page: NamedDependency[Page],
    name: NameAsked = None,
    exact_name: ExactName = None,
    status: Status = None,
) -> Listed[WorkspaceShown]:
    """List the workspaces that are open to the key; archived ones only for admins, and only when asked for."""
    wanted = [part.strip() for part in (status or "active").split(",")]
    if unknown := [word for word in wanted if word not in STATUSES]:
        raise refuse("status", f"{unknown[0]!r} is not allowed: use active, archived or both")
    if "archived" in wanted and not work.caller.leads:
        raise ForbiddenError("archived workspaces are listed for admins of the organisation")
    conditions: list[ColumnElement[bool]] = [workspaces.c.status.in_(wanted)]
    if name:
        conditions.append(workspaces.c.name.icontains(name, autoescape=True))
    if exact_name:
        conditions.append(workspaces.c.name == exact_name)
    if work.caller.user_id and not work.caller.leads:
        conditions.append(workspaces.c.id.in_(list(work.caller.roles)))
    async with work.anywhere() as desk:
        total, rows = await WORKSPACES.page(desk, page, conditions)
        above = await of_organisation(desk)
        return Listed(total, [await _shown(desk, row, "display", above) for row in rows])


@get("/{workspace:str}", guards=[needs("workspaces.read")], summary="Get workspace", tags=["Workspaces"])
async def show(
    workspace: IdOrSlug, work: NamedDependency[Work], name_format: NameFormat = "display"
) -> WorkspaceWithUsers:
    """Give a workspace with its members."""
    async with work.reading(workspace) as desk:
        return await _with_users(desk, await WORKSPACES.get(desk, workspace), name_format)


@put("/{workspace:str}", guards=[needs("workspaces.update")], summary="Update workspace", tags=["Workspaces"])
async def update(workspace: IdOrSlug, data: JSONBody[WorkspaceChange], work: NamedDependency[Work]) -> WorkspaceShown:
    """Change a workspace; what is left out stays, of its rules too, defaults are replaced. Only the organisation loosens anything.

    What members and managers may is for admins of the workspace and the organisation to choose.
    """
    async with work.writing(workspace) as desk:
        row = await WORKSPACES.get(desk, workspace)
        values = {name: value for name, value in given(data).items() if name in {"name", "description"}}
        values |= await _values(desk, data, row)
        if not _leads(work.caller):
            await _refuse_lifted(desk, row, values)
        row = await WORKSPACES.change(desk, row, values)
        return await _shown(desk, row, "display", await of_organisation(desk))


@delete(
    "/{workspace:str}",
    status_code=200,
    guards=[needs("workspaces.delete")],
    summary="Delete workspace",
    tags=["Workspaces"],
)
async def remove(workspace: IdOrSlug, data: JSONBody[Farewell], work: NamedDependency[Work]) -> Done:
    """Archive a workspace; with `force_delete` what is in it goes, without it there must be nothing left."""
    async with work.writing(workspace) as desk:
        row = await WORKSPACES.get(desk, workspace)
        if data.name != row["name"]:
            raise refuse("name", f"{data.name!r} is not the name of this workspace")
        if row["is_default"]:
            raise ConflictError("the default workspace of the organisation stays")
        if not data.force_delete:
            await _refuse_full(desk)
        await _empty(desk)
        await WORKSPACES.change(desk, row, {"status": "archived"}, "delete")
        return Done()


async def _refuse_full(desk: Desk) -> None:
    left_out: dict[Table, list[ColumnElement[bool]]] = {
        integration_rows: [~integration_rows.c.brought_along],
        files: [files.c.expires_at > now()],
        batches: [batches.c.status.in_(ACTIVE)],
    }
    tables = (api_keys, providers, configs, integration_rows, files, batches)
    inside = {table.name: await desk.count(table, left_out.get(table, ())) for table in tables}
    if any(inside.values()):
        left = ", ".join(f"{count} {name}" for name, count in inside.items() if count)
        raise ConflictError(f"there is something left in it: {left}; hint: force_delete")


async def _empty(desk: Desk) -> None:
    """Remove what is in a workspace, credentials and old versions too."""
    here = desk.workspace
    await keys.remove_all(desk)
    await integrations.PROVIDERS.remove_all(desk)
    await integrations.remove_own(desk)
    for resource in (CONFIGS, members.MEMBERS):
        await resource.remove_all(desk)
    await desk.delete(versions, versions.c.workspace_id == here)
    kept = await desk.rows(select(files).where(files.c.expires_at > now()), files)
    await desk.note_gone("files.delete", kept)
    # Whoever looks after old files takes their contents away.
    await desk.change_all(files, {"expires_at": now()})


def _leads(caller: Caller) -> bool:
    """Whether somebody acts for the organisation: as its key, or as its admin, but not by a key of the workspace."""
    is_workspaces = caller.by == "key" and caller.workspace_id is not None
    return caller.leads and not is_workspaces


async def _refuse_lifted(desk: Desk, row: Row, values: Mapping[str, Any]) -> None:
    """Refuse to have those who are inside a workspace lift what the organisation holds the workspace to."""
    name = "user_api_key_rotation_period"
    why = "would loosen what this workspace is held to: that is for the organisation's keys and admins"
    refuse_beyond(row, values, why)
    before, after = row["settings"], values.get("settings", row["settings"])
    above = await of_organisation(desk)
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


async def _values(desk: Desk, data: NewWorkspace | WorkspaceChange, row: Row | None) -> dict[str, Any]:
    """Check what was sent of defaults, rules and limits, and write it down."""
    values = sent_of(data, rates_at_most=1, before=row)
    if data.defaults is not UNSET:
        kept = {name: value for name, value in msgspec.to_builtins(data.defaults or Defaults()).items() if value}
        if config := kept.get("user_api_key_config"):
            kept_before = row["defaults"].get("user_api_key_config") if row else None
            named = await desk.refer_to_config("defaults.user_api_key_config", config, kept_before)
            kept["user_api_key_config"] = named["id"]
        values["defaults"] = kept
    before: dict[str, Any] = row["settings"] if row else {}
    above = await of_organisation(desk)
    if data.settings is not UNSET:
        values["settings"] = written(data.settings, before)
        _refuse_kept(values["settings"], before, above)
    if data.security_settings is not UNSET:
        roles.refuse_choosing(desk.caller, row["id"] if row else None)
        flags = roles.chosen(data.security_settings, before, above)
        values["settings"] = {**values.get("settings", before), roles.FIELD: flags}
        # Nobody gives what is more than their own.
        both = (roles.in_force(rules, above) for rules in (before, values["settings"]))
        desk.may_give(roles.gained(*both), row["id"] if row else None)
    return values


def _refuse_kept(after: Mapping[str, Any], before: Mapping[str, Any], above: Mapping[str, Any]) -> None:
    """Refuse to have a workspace choose what its organisation keeps for itself."""
    name = "block_inline_config"
    is_kept = above.get(OVERRIDES, {}).get(DATA_PLANE) is False
    if is_kept and after.get(name) not in {None, before.get(name), above.get(name, False)}:
        raise roles.forbidden(f"settings.{name}", DATA_PLANE)


def _member(given: NewMember | str) -> NewMember:
    return NewMember(given, "member") if isinstance(given, str) else given


async def _with_users(desk: Desk, row: Row, name_format: str) -> WorkspaceWithUsers:
    shown = await _shown(desk, row, name_format, await of_organisation(desk))
    same = {name: getattr(shown, name) for name in shown.__struct_fields__}
    return WorkspaceWithUsers(**same, users=await members.of(desk, row["id"]))


async def _shown(desk: Desk, row: Row, name_format: str, above: Mapping[str, Any]) -> WorkspaceShown:
    defaults = dict(row["defaults"])
    if config := defaults.get("user_api_key_config"):
        query = select(configs.c.slug).where(or_(configs.c.id == config, configs.c.slug == config))
        found = await desk.first(query, configs)
        defaults["user_api_key_config"] = found["slug"] if found else None
    emoji = EMOJI.match(row["name"])
    return write_out(
        WorkspaceShown,
        row,
        name=EMOJI.sub("", row["name"]) or row["name"] if name_format == "plain" else row["name"],
        icon=emoji[0].strip() if emoji else None,
        is_default=int(row["is_default"]),
        settings={name: value for name, value in row["settings"].items() if name != roles.FIELD},
        security_settings=roles.shown(row["settings"], above),
        defaults=DefaultsShown(**defaults, is_default=int(row["is_default"])),
    )


routes = [create, index, show, update, remove, *_members.routes]
