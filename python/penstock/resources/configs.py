"""Configs: saved under a slug, checked by the engine's own parser, every version kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import select

from penstock import engine
from penstock.caller import needs
from penstock.errors import ConflictError, InvalidError, Problem
from penstock.kit import fields, versions
from penstock.kit.desk import Desk, Work
from penstock.kit.fields import UNSET, IdOrSlug, UnsetType, WorkspaceAsked
from penstock.kit.ids import slug
from penstock.kit.record import Listed, given, refuse, write_out
from penstock.kit.resource import Resource
from penstock.kit.verbs import Verbs
from penstock.store.tables import api_keys, configs, workspaces

if TYPE_CHECKING:
    from penstock.kit.verbs import Showing
    from penstock.routing import TargetLimits
    from penstock.store.tenant import Row

CONFIGS = Resource("configs", configs, publishes=True)
TAGS = ["Configs"]

Config = Annotated[dict[str, Any] | str, Meta(description="the config, as an object or as JSON in a text")]
VersionId = Annotated[str, Meta(description="id of the version")]


class NewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A config to be saved."""

    name: fields.Name
    config: Config
    is_default: Annotated[int, Meta(ge=0, le=1, description="1: the default of the workspace")] = msgspec.field(
        name="isDefault", default=0
    )
    workspace_id: fields.Workspace = None


class ConfigChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: fields.MaybeName = UNSET
    config: Annotated[dict[str, Any] | str | UnsetType, Meta(description="the config; it becomes a new version")] = (
        UNSET
    )
    status: Annotated[Literal["active", "archived"] | UnsetType, Meta(description="an archived config is not used")] = (
        UNSET
    )


class ConfigMade(msgspec.Struct, frozen=True):
    """A new config."""

    id: fields.Id
    slug: fields.Slug
    version_id: VersionId
    object: fields.Object = "config"


class ConfigChanged(msgspec.Struct, frozen=True):
    """A changed config."""

    version_id: VersionId
    object: fields.Object = "config"


class ConfigRow(msgspec.Struct, frozen=True, kw_only=True):
    """One config of a list."""

    id: fields.Id
    slug: fields.Slug
    name: fields.Name
    organisation_id: fields.Organisation
    workspace_id: fields.Home
    is_default: Annotated[int, Meta(description="1 for the default of the workspace")]
    status: fields.Kept
    owner_id: fields.Maker
    updated_by: Annotated[str | None, Meta(description="id of the user or key that changed it last")]
    created_at: fields.Moment
    last_updated_at: fields.Changed
    object: fields.Object = "config"


class ConfigShown(ConfigRow, frozen=True, kw_only=True):
    """One config."""

    config: Annotated[str, Meta(description="the config as JSON in a text")]
    version_id: VersionId
    format: Annotated[str, Meta(description="`json`")] = "json"
    type: Annotated[str, Meta(description="`ORG_CONFIG`")] = "ORG_CONFIG"


@post("/", status_code=200, guards=[needs("configs.create")], summary="Create config", tags=TAGS)
async def create(data: JSONBody[NewConfig], work: NamedDependency[Work]) -> ConfigMade:
    """Save a config of a workspace; it is used from then on under its slug."""
    written = _checked(data.config, work.limits)
    async with work.writing(data.workspace_id) as desk:
        if data.is_default:
            await _no_default(desk)
        row = await CONFIGS.add(
            desk,
            {
                "workspace_id": desk.workspace,
                "slug": slug("pc", data.name, 6),
                "name": data.name,
                "config": written,
                "version_id": "",
                "is_default": bool(data.is_default),
                "status": "active",
                "owner_id": work.caller.actor,
                "updated_by": work.caller.actor,
            },
        )
        version_id = await _keep(desk, row)
        return ConfigMade(row["id"], row["slug"], version_id)


@get("/{key:str}/versions", guards=[needs("configs.read")], summary="List versions of a config", tags=TAGS)
async def history(
    key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None
) -> Listed[ConfigShown]:
    """Give every version of a config, newest first."""
    async with work.reading(workspace_id) as desk:
        row = await CONFIGS.get(desk, key)
        kept = await versions.all_of(desk, row["id"])
        return Listed(len(kept), [_version(row, version) for version in kept])


@put("/{key:str}", guards=[needs("configs.update")], summary="Update config", tags=TAGS)
async def update(
    key: IdOrSlug, data: JSONBody[ConfigChange], work: NamedDependency[Work], workspace_id: WorkspaceAsked = None
) -> ConfigChanged:
    """Change a config; another content becomes its next version."""
    values = given(data)
    if data.config is not UNSET:
        values["config"] = _checked(data.config, work.limits)
    async with work.writing(workspace_id) as desk:
        before = await CONFIGS.get(desk, key)
        row = await CONFIGS.change(desk, before, {**values, "updated_by": work.caller.actor})
        changed = row["config"] != before["config"] or row["name"] != before["name"]
        return ConfigChanged(await _keep(desk, row) if changed else row["version_id"])


async def leave(desk: Desk, row: Row) -> None:
    """Delete a config with its versions; one that keys have as their default stays."""
    await _refuse_needed(desk, row)
    await versions.drop(desk, row["id"])
    await CONFIGS.remove(desk, row)


def _checked(config: dict[str, Any] | str, limits: TargetLimits) -> str:
    """Have the engine's own parser agree, and write the config down."""
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise refuse("config", f"is no JSON object: {error}") from None
    written = msgspec.json.encode(config)
    try:
        engine.check("config", written, limits)
    except engine.EngineError as error:
        problems = [Problem(f"config{found['path'].removeprefix('$')}", found["message"]) for found in error.problems]
        raise InvalidError("the config cannot be used", problems or [Problem("config", str(error))]) from None
    return written.decode()


async def _keep(desk: Desk, row: Row) -> str:
    content = {name: row[name] for name in ("name", "config", "status", "last_updated_at")}
    version_id = await versions.keep(desk, "configs", row["id"], content, desk.caller.actor)
    await desk.update(configs, row["id"], {"version_id": version_id})
    return version_id


async def _no_default(desk: Desk) -> None:
    """Make room for another default: a workspace has one."""
    query = select(configs).where(configs.c.is_default, configs.c.workspace_id == desk.workspace)
    for row in await desk.rows(query, configs):
        await CONFIGS.change(desk, row, {"is_default": False})


async def _refuse_needed(desk: Desk, row: Row) -> None:
    inside = api_keys.c.workspace_id == row["workspace_id"]
    for key in await desk.rows(select(api_keys.c.name, api_keys.c.defaults).where(inside), api_keys):
        if key["defaults"].get("config_id") == row["id"]:
            raise ConflictError(f"the key {key['name']!r} has this config as its default")
    workspace = await desk.find(workspaces, row["workspace_id"])
    if workspace and workspace["defaults"].get("user_api_key_config") == row["id"]:
        raise ConflictError("the workspace has this config as the default of new keys")


def _version(row: Row, version: Row) -> ConfigShown:
    shown = {**row, **version["content"], "updated_by": version["created_by"], "created_at": version["created_at"]}
    return write_out(
        ConfigShown, shown, version_id=version["id"], is_default=int(row["is_default"]), status=row["status"]
    )


def _as(shown: type[ConfigRow]) -> Showing:
    async def showing(_desk: Desk, rows: list[Row]) -> list[ConfigRow]:
        return [write_out(shown, row, is_default=int(row["is_default"])) for row in rows]

    return showing


VERBS = Verbs(CONFIGS, "config", TAGS)
routes = [
    create,
    VERBS.index(ConfigRow, _as(ConfigRow)),
    VERBS.show(ConfigShown, _as(ConfigShown)),
    history,
    update,
    VERBS.remove(leave),
]
