"""Configs: saved under a slug, checked by the engine's own parser, every version kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from sqlalchemy import select

from penstock import engine
from penstock.authorization import needs
from penstock.errors import ConflictError, InvalidError, Problem
from penstock.ids import new_id
from penstock.kit import shared_fields, versions
from penstock.kit.crud_routes import Verbs
from penstock.kit.listing import Page
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import UNSET, IdOrSlug, UnsetType, WorkspaceAsked
from penstock.kit.tenant_session import Desk, Work
from penstock.schemas import Listed, given, refuse, write_out
from penstock.secrets import config_credentials, masks
from penstock.secrets.config_credentials import Divided
from penstock.store.tables import api_keys, configs, workspaces

if TYPE_CHECKING:
    from penstock.kit.crud_routes import Showing
    from penstock.settings.routing import TargetLimits
    from penstock.store.tenant import Row

CONFIGS = Resource("configs", configs, publishes=True, unlisted=frozenset({"config", "sealed"}))
TAGS = ["Configs"]
# So many versions are looked through for what a mask stands for.
VERSIONS = 50
# What there was before a config was saved.
NOTHING = Divided({}, {})

Config = Annotated[dict[str, Any] | str, Meta(description="the config, as an object or as JSON in a text")]
VersionId = Annotated[str, Meta(description="id of the version")]
# Whether credentials are the same nobody else can tell: they are shown masked.
DryRun = Annotated[
    bool, QueryParameter(description="change nothing; `version_id` is empty if it would become another version")
]


# Requests that name no config have none, whatever is said here.
DEFAULT = "1: what consoles and clients begin with in the workspace, in the place of the one that was; requests go by what they name"


class NewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A config to be saved."""

    name: shared_fields.Name
    config: Config
    is_default: Annotated[int, Meta(ge=0, le=1, description=DEFAULT)] = msgspec.field(name="isDefault", default=0)
    workspace_id: shared_fields.Workspace = None


class ConfigChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    config: Annotated[
        dict[str, Any] | str | UnsetType,
        Meta(description="the config; it becomes a new version, and credentials that come back masked stay"),
    ] = UNSET
    status: Annotated[Literal["active", "archived"] | UnsetType, Meta(description="an archived config is not used")] = (
        UNSET
    )
    is_default: Annotated[Annotated[int, Meta(ge=0, le=1)] | UnsetType, Meta(description=DEFAULT)] = msgspec.field(
        name="isDefault", default=UNSET
    )


class ConfigMade(msgspec.Struct, frozen=True):
    """A new config."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: VersionId
    object: shared_fields.Object = "config"


class ConfigChanged(msgspec.Struct, frozen=True):
    """A changed config."""

    version_id: VersionId
    object: shared_fields.Object = "config"


class ConfigRow(msgspec.Struct, frozen=True, kw_only=True):
    """One config of a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    organisation_id: shared_fields.Organisation
    workspace_id: shared_fields.Home
    is_default: Annotated[int, Meta(description="1 for what consoles and clients begin with in the workspace")]
    status: shared_fields.Kept
    owner_id: shared_fields.Maker
    updated_by: Annotated[str | None, Meta(description="id of the user or key that changed it last")]
    created_at: shared_fields.Moment
    last_updated_at: shared_fields.Changed
    object: shared_fields.Object = "config"


class ConfigShown(ConfigRow, frozen=True, kw_only=True):
    """One config."""

    config: Annotated[str, Meta(description="the config as JSON in a text, its credentials masked")]
    version_id: VersionId
    format: Annotated[str, Meta(description="`json`")] = "json"
    type: Annotated[str, Meta(description="`ORG_CONFIG`")] = "ORG_CONFIG"


@post("/", status_code=200, guards=[needs("configs.create")], summary="Create config", tags=TAGS)
async def create(data: JSONBody[NewConfig], work: NamedDependency[Work]) -> ConfigMade:
    """Save a config of a workspace; it is used from then on under its slug."""
    document = masks.restored("config", _read(data.config), NOTHING)
    _check(document, work.limits)
    divided = config_credentials.divide(document)
    async with work.writing(data.workspace_id) as desk:
        if data.is_default:
            await _no_default(desk, desk.workspace)
        row_id = new_id()
        row = await CONFIGS.add(
            desk,
            {
                "id": row_id,
                "workspace_id": desk.workspace,
                "slug": await desk.new_slug(configs, "pc", data.name, 6),
                "name": data.name,
                **await _sealed(desk, row_id, divided),
                "version_id": "",
                "is_default": bool(data.is_default),
                "status": "active",
                "owner_id": work.caller.actor,
                "updated_by": work.caller.actor,
            },
        )
        version_id = await _keep(desk, row, divided)
        return ConfigMade(row["id"], row["slug"], version_id)


@get("/{key:str}/versions", guards=[needs("configs.read")], summary="List versions of a config", tags=TAGS)
async def history(
    key: IdOrSlug, work: NamedDependency[Work], page: NamedDependency[Page], workspace_id: WorkspaceAsked = None
) -> Listed[ConfigShown]:
    """Give the versions of a config, newest first."""
    async with work.reading(workspace_id) as desk:
        row = await CONFIGS.get(desk, key)
        total, kept = await versions.page(desk, row["id"], page)
        return Listed(total, [_version(row, version) for version in kept])


@put("/{key:str}", guards=[needs("configs.update")], summary="Update config", tags=TAGS)
async def update(
    key: IdOrSlug,
    data: JSONBody[ConfigChange],
    work: NamedDependency[Work],
    workspace_id: WorkspaceAsked = None,
    *,
    dry_run: DryRun = False,
) -> ConfigChanged:
    """Change a config; another content becomes its next version, and credentials that come back masked stay."""
    values = {name: value for name, value in given(data).items() if name != "config"}
    sent = UNSET if data.config is UNSET else _read(data.config)
    async with work.writing(workspace_id) as desk:
        before = await CONFIGS.get(desk, key)
        # Whether or not anything is changed then.
        await desk.agree(configs, before)
        if values.get("status") == "archived" and before["status"] != "archived":
            await _refuse_needed(desk, before)
        old = await _opened(desk, before["config"], before)
        document = config_credentials.joined(old)
        if sent is not UNSET:
            document = await _restored(desk, before, sent, old)
            _check(document, work.limits)
        divided = config_credentials.divide(document)
        changed = not config_credentials.is_same(divided, old) or values.get("name", before["name"]) != before["name"]
        if dry_run:
            return ConfigChanged("" if changed else before["version_id"])
        if changed:
            values |= await _sealed(desk, before["id"], divided)
        if data.is_default is not UNSET:
            values["is_default"] = bool(data.is_default)
        if data.is_default == 1 and not before["is_default"]:
            await _no_default(desk, before["workspace_id"])
        row = await CONFIGS.change(desk, before, {**values, "updated_by": work.caller.actor})
        return ConfigChanged(await _keep(desk, row, divided) if changed else row["version_id"])


async def leave(desk: Desk, row: Row) -> None:
    """Delete a config with its versions; one that keys have as their default stays."""
    await _refuse_needed(desk, row)
    await versions.drop(desk, row["id"])
    await CONFIGS.remove(desk, row)


def _read(config: dict[str, Any] | str) -> dict[str, Any]:
    document = _decoded(config) if isinstance(config, str) else config
    count = len(config_credentials.divide(document).hidden)
    if count > config_credentials.MOST:
        raise refuse("config", f"must hold at most {config_credentials.MOST} credentials, not {count}")
    return document


def _decoded(config: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(config, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise refuse("config", f"is no JSON object: {error}") from None


def _check(document: dict[str, Any], limits: TargetLimits) -> None:
    """Have the engine's own parser agree."""
    try:
        engine.check("config", msgspec.json.encode(document), limits)
    except engine.EngineError as error:
        problems = [Problem(f"config{found['path'].removeprefix('$')}", found["message"]) for found in error.problems]
        raise InvalidError("the config cannot be used", problems or [Problem("config", str(error))]) from None


async def _restored(desk: Desk, row: Row, sent: dict[str, Any], old: Divided) -> Any:  # noqa: ANN401 - JSON
    """Put credentials in the place of their masks, which may be those of an older version."""
    older: list[Divided] = []
    if masks.has_strangers(sent, old):
        _, kept = await versions.page(desk, row["id"], Page(size=VERSIONS))
        older = [await _opened(desk, one["content"]["config"], one) for one in kept]
    return masks.restored("config", sent, old, older)


async def _opened(desk: Desk, config: str, holder: Row) -> Divided:
    """Open what is secret of a config, or of a version of it."""
    hidden = config_credentials.read(await desk.open(holder["sealed"], holder["id"])) if holder["sealed"] else {}
    return Divided(msgspec.json.decode(config), hidden)


async def _sealed(desk: Desk, owner: str, divided: Divided) -> dict[str, Any]:
    """Write a config down as it is kept."""
    hidden = config_credentials.write(divided.hidden)
    return {
        "config": msgspec.json.encode(divided.shown).decode(),
        "sealed": await desk.seal(hidden, owner) if divided.hidden else None,
    }


async def _keep(desk: Desk, row: Row, divided: Divided) -> str:
    content = {name: row[name] for name in ("name", "config", "status", "last_updated_at")}
    hidden = config_credentials.write(divided.hidden) if divided.hidden else None
    version_id = await versions.keep(desk, "configs", row["id"], content, hidden)
    await desk.update(configs, row["id"], {"version_id": version_id})
    return version_id


async def _no_default(desk: Desk, workspace_id: str) -> None:
    """Make room for another default: a workspace has one."""
    query = select(configs).where(configs.c.is_default, configs.c.workspace_id == workspace_id)
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
