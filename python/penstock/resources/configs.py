"""Saved configs. The engine's own parser validates them, and every version is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.ids import new_id
from penstock.integrations.missing_providers import WarningsField, find_missing_providers
from penstock.kit import references, shared_fields, versions
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.crud_routes import CrudRoutes, ListQuery
from penstock.kit.engine_validation import validate_document
from penstock.kit.numbered_pages import PageRequest, search_conditions
from penstock.kit.resource import Resource
from penstock.kit.route_parameters import IdOrSlug, SearchFilter, WorkspaceFilter
from penstock.kit.shared_fields import UNSET, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.schemas import ListResponse, field_error, row_to_struct, sent_fields
from penstock.secrets import config_credentials, masks
from penstock.secrets.config_credentials import SplitDocument
from penstock.store.tables import api_keys, configs, workspaces

if TYPE_CHECKING:
    from penstock.kit.crud_routes import RowRenderer
    from penstock.store.tenant import Row

CONFIGS = Resource("configs", configs, publishes=True, unlisted=frozenset({"config", "sealed"}))
TAGS = ["Configs"]
# Maximum number of recent versions that are searched for the credential behind a mask.
MAX_SEARCHED_VERSIONS = 50
# A new config has no previous content, so masks in it have no credentials.
EMPTY_CONFIG = SplitDocument({}, {})

ConfigDocument = Annotated[dict[str, Any] | str, Meta(description="the config, as an object or as a JSON string")]
VersionId = Annotated[str, Meta(description="id of the version")]
# Responses mask credentials, so clients cannot compare them. A dry run reports whether the content would change.
DryRunParam = Annotated[
    bool, QueryParameter(description="change nothing; `version_id` is empty if the change would create a new version")
]


# The flag is only for user interfaces: requests that name no config use none.
IS_DEFAULT_DESCRIPTION = "1: the config that consoles and clients preselect in the workspace, instead of the previous one; requests use the config that they name"

STATUS_DESCRIPTION = "an archived config is not used; `inactive` is another word for `archived`"

ConfigStatus = Literal["active", "archived", "inactive"]


class CreateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A config to save."""

    name: shared_fields.Name
    config: ConfigDocument
    is_default: Annotated[int, Meta(ge=0, le=1, description=IS_DEFAULT_DESCRIPTION)] = msgspec.field(
        name="isDefault", default=0
    )
    slug: shared_fields.ChosenSlug = None
    status: Annotated[ConfigStatus, Meta(description=STATUS_DESCRIPTION)] = "active"
    workspace_id: shared_fields.WorkspaceIdOrSlug = None


class UpdateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a config to update; omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    config: Annotated[
        dict[str, Any] | str | UnsetType,
        Meta(
            description="the config; it becomes a new version, and credentials that are sent back masked are unchanged"
        ),
    ] = UNSET
    status: Annotated[ConfigStatus | UnsetType, Meta(description=STATUS_DESCRIPTION)] = UNSET
    is_default: Annotated[Annotated[int, Meta(ge=0, le=1)] | UnsetType, Meta(description=IS_DEFAULT_DESCRIPTION)] = (
        msgspec.field(name="isDefault", default=UNSET)
    )


class ConfigIds(msgspec.Struct, frozen=True):
    """The ids of a config and of its current version."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: VersionId


class SavedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a config that was created or updated."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    version_id: VersionId
    data: Annotated[ConfigIds, Meta(description="the same, for clients that read it there")]
    warnings: WarningsField = UNSET
    success: Annotated[bool, Meta(description="always true")] = True
    object: shared_fields.ObjectType = "config"


class ConfigSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One config in a list."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    name: shared_fields.Name
    organisation_id: shared_fields.OrganisationId
    workspace_id: shared_fields.WorkspaceId
    is_default: Annotated[
        int, Meta(description="1 for the config that consoles and clients preselect in the workspace")
    ]
    status: shared_fields.ArchiveStatus
    owner_id: shared_fields.CreatedBy
    updated_by: Annotated[str | None, Meta(description="id of the user or key that changed it last")]
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "config"


class ConfigDetail(ConfigSummary, frozen=True, kw_only=True):
    """One config with its content."""

    config: Annotated[str, Meta(description="the config as a JSON string, with its credentials masked")]
    version_id: VersionId
    format: Annotated[str, Meta(description="`json`")] = "json"
    type: Annotated[str, Meta(description="`ORG_CONFIG`")] = "ORG_CONFIG"


Summary = TypeVar("Summary", bound=ConfigSummary)


def build_list_query(workspace_id: WorkspaceFilter = None, search: SearchFilter = None) -> ListQuery:
    """Lists the configs of a workspace, newest first."""
    return ListQuery(workspace_id, search_conditions(search, configs.c.name, configs.c.slug))


@post("/", status_code=200, guards=[require_scopes("configs.create")], summary="Create config", tags=TAGS)
async def create_config(data: JSONBody[CreateConfig], context: NamedDependency[RequestContext]) -> SavedConfig:
    """Saves a config in a workspace. Requests can use it by its slug from then on. Warns about saved providers that it
    names and that do not exist in the workspace.
    """
    document = masks.restore_masks("config", _parse_config(data.config), EMPTY_CONFIG)
    await validate_document("config", document, "config", context.limits)
    divided = config_credentials.split_credentials(document)
    async with context.write_session(data.workspace_id) as session:
        if data.is_default:
            await _clear_default(session, session.required_workspace_id)
        row_id, version_id = new_id(), new_id()
        row = await CONFIGS.create(
            session,
            {
                "id": row_id,
                "workspace_id": session.required_workspace_id,
                "slug": data.slug or await session.generate_unused_slug(configs, "pc", data.name, 6),
                "name": data.name,
                **await _encrypt_config(session, row_id, divided),
                "version_id": version_id,
                "is_default": bool(data.is_default),
                "status": _to_stored_status(data.status),
                "owner_id": context.caller.actor_id,
                "updated_by": context.caller.actor_id,
            },
        )
        await _save_version(session, row, divided)
        return await _to_saved_config(session, row, version_id, document)


@get("/{key:str}/versions", guards=[require_scopes("configs.read")], summary="List versions of a config", tags=TAGS)
async def list_versions(
    key: IdOrSlug,
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    workspace_id: WorkspaceFilter = None,
) -> ListResponse[ConfigDetail]:
    """Lists the versions of a config, newest first."""
    async with context.read_session(workspace_id) as session:
        row = await CONFIGS.get(session, key)
        total, rows = await versions.list_versions(session, row["id"], page)
        return ListResponse(total, [_to_version_detail(row, version) for version in rows])


@get("/{key:str}/references", guards=[require_scopes("configs.read")], summary="List what uses a config", tags=TAGS)
async def list_references(
    key: IdOrSlug, context: NamedDependency[RequestContext], workspace_id: WorkspaceFilter = None
) -> references.ReferenceList:
    """Lists the API keys and workspaces that have a config as their default. Counts those that the caller may not see."""
    async with context.read_session(workspace_id) as session:
        row = await CONFIGS.get(session, key)
        return references.list_visible(session, await _find_users(session, row))


@put(
    "/{key:str}",
    guards=[require_scopes("configs.update")],
    summary="Update config",
    tags=TAGS,
    opt={SHOWN_OPTION: ConfigDetail},
)
async def update_config(
    key: IdOrSlug,
    data: JSONBody[UpdateConfig],
    context: NamedDependency[RequestContext],
    workspace_id: WorkspaceFilter = None,
    *,
    dry_run: DryRunParam = False,
) -> SavedConfig:
    """Updates a config. Changed content becomes a new version, a new name does not; credentials that are sent back
    masked are unchanged.
    """
    values = {name: value for name, value in sent_fields(data).items() if name != "config"}
    if "status" in values:
        values["status"] = _to_stored_status(values["status"])
    sent = UNSET if data.config is UNSET else _parse_config(data.config)
    valid = None if sent is UNSET else await _validate_update(context, workspace_id, key, sent)
    async with context.write_session(workspace_id) as session:
        before = await CONFIGS.get(session, key)
        # The precondition applies even if the request changes nothing.
        await session.check_precondition(configs, before)
        await context.check_unchanged(session, _to_config(ConfigDetail, before))
        if values.get("status") == "archived" and before["status"] != "archived":
            references.reject_if_used("config", before["slug"], await _find_users(session, before))
        old = await _decrypt_config(session, before["config"], before)
        document = config_credentials.join_credentials(old)
        if sent is not UNSET:
            document = await _restore_credentials(session, before, sent, old)
            if document != valid:
                # Another request has changed the stored credentials since the validation, so the document is validated
                # again.
                await validate_document("config", document, "config", context.limits)
        divided = config_credentials.split_credentials(document)
        is_changed = not config_credentials.is_same_document(divided, old)
        if dry_run:
            return await _to_saved_config(session, before, "" if is_changed else before["version_id"], document)
        if is_changed:
            values |= {**await _encrypt_config(session, before["id"], divided), "version_id": new_id()}
        if data.is_default is not UNSET:
            values["is_default"] = bool(data.is_default)
        if data.is_default == 1 and not before["is_default"]:
            await _clear_default(session, before["workspace_id"])
        row = await CONFIGS.update(session, before, {**values, "updated_by": context.caller.actor_id})
        if is_changed:
            await _save_version(session, row, divided)
        return await _to_saved_config(session, row, row["version_id"], {} if sent is UNSET else document)


async def _validate_update(context: RequestContext, workspace_id: str | None, key: str, sent: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Validates new content of a config before the write transaction, because other changes wait while that is open.
    Returns the content with its credentials.
    """
    async with context.read_session(workspace_id) as session:
        row = await CONFIGS.get(session, key)
        old = await _decrypt_config(session, row["config"], row)
        document = await _restore_credentials(session, row, sent, old)
    await validate_document("config", document, "config", context.limits)
    return document


async def delete_config(session: TenantSession, row: Row) -> None:
    """Deletes a config with its versions. Rejects a config that is the default of a key or of the workspace."""
    references.reject_if_used("config", row["slug"], await _find_users(session, row))
    await versions.delete_versions(session, row["id"])
    await CONFIGS.delete(session, row)


def _to_stored_status(status: ConfigStatus) -> str:
    return "archived" if status == "inactive" else status


def _parse_config(config: dict[str, Any] | str) -> dict[str, Any]:
    document = _decode_json(config) if isinstance(config, str) else config
    count = len(config_credentials.split_credentials(document).secrets)
    if count > config_credentials.MAX_CREDENTIALS:
        raise field_error("config", f"must hold at most {config_credentials.MAX_CREDENTIALS} credentials, not {count}")
    return document


def _decode_json(config: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(config, type=dict[str, Any])
    except RecursionError:
        raise field_error("config", "is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise field_error("config", f"is not a JSON object: {error}") from None


async def _restore_credentials(session: TenantSession, row: Row, sent: dict[str, Any], old: SplitDocument) -> Any:  # noqa: ANN401 - JSON
    """Replaces masks with their credentials, which may come from an older version of the config."""
    older: list[SplitDocument] = []
    if masks.has_unknown_masks(sent, old):
        _, rows = await versions.list_versions(session, row["id"], PageRequest(size=MAX_SEARCHED_VERSIONS))
        older = [await _decrypt_config(session, row["content"]["config"], row) for row in rows]
    return masks.restore_masks("config", sent, old, older)


async def _decrypt_config(session: TenantSession, config: str, holder: Row) -> SplitDocument:
    """Decrypts the credentials of a config or of one of its versions."""
    hidden = (
        config_credentials.decode_secrets(await session.open(holder["sealed"], holder["id"]))
        if holder["sealed"]
        else {}
    )
    return SplitDocument(msgspec.json.decode(config), hidden)


async def _encrypt_config(session: TenantSession, owner: str, divided: SplitDocument) -> dict[str, Any]:
    """Returns the column values of a config, with its credentials encrypted."""
    hidden = config_credentials.encode_secrets(divided.secrets)
    return {
        "config": msgspec.json.encode(divided.masked).decode(),
        "sealed": await session.seal(hidden, owner) if divided.secrets else None,
    }


async def _save_version(session: TenantSession, row: Row, divided: SplitDocument) -> None:
    """Stores the content of a config as a version with the id and number in the row."""
    content = {name: row[name] for name in ("name", "config", "status", "last_updated_at")}
    hidden = config_credentials.encode_secrets(divided.secrets) if divided.secrets else None
    await versions.create_version(session, "configs", row, content, row["version_id"], hidden)


async def _to_saved_config(session: TenantSession, row: Row, version_id: str, document: dict[str, Any]) -> SavedConfig:
    warnings = await find_missing_providers(session, row["workspace_id"], document, "config")
    ids = ConfigIds(row["id"], row["slug"], version_id)
    return SavedConfig(id=row["id"], slug=row["slug"], version_id=version_id, data=ids, warnings=warnings)


async def _clear_default(session: TenantSession, workspace_id: str) -> None:
    """Clears the default flag of the workspace's current default config. A workspace has at most one."""
    query = select(configs).where(configs.c.is_default, configs.c.workspace_id == workspace_id)
    for row in await session.fetch_rows(query, configs):
        await CONFIGS.update(session, row, {"is_default": False})


async def _find_users(session: TenantSession, row: Row) -> list[tuple[str, references.Reference]]:
    """Returns the API keys and workspaces that have a config as their default. The first part of each pair is a name in
    `VISIBLE_WITH`.
    """
    users: list[tuple[str, references.Reference]] = []
    workspace = await session.organisation().find(workspaces, row["workspace_id"])
    if workspace and workspace["defaults"].get("user_api_key_config") == row["id"]:
        field = "defaults.user_api_key_config"
        users.append(("workspace", references.make_reference("workspace", workspace, workspace["id"], [field])))
    # Keys of the organisation may have a config of any workspace as their default.
    inside = or_(api_keys.c.workspace_id == row["workspace_id"], api_keys.c.workspace_id.is_(None))
    query = select(api_keys).where(inside).order_by(api_keys.c.id)
    for key in await session.organisation().fetch_rows(query, api_keys):
        if key["defaults"].get("config_id") == row["id"]:
            reference = references.make_reference("api_key", key, key["workspace_id"], ["defaults.config_id"])
            users.append((key["type"], reference))
    return users


def _to_version_detail(row: Row, version: Row) -> ConfigDetail:
    fields = {**row, **version["content"], "updated_by": version["created_by"], "created_at": version["created_at"]}
    return row_to_struct(
        ConfigDetail, fields, version_id=version["id"], is_default=int(row["is_default"]), status=row["status"]
    )


def _to_config(response_type: type[Summary], row: Row) -> Summary:
    return row_to_struct(response_type, row, is_default=int(row["is_default"]))


def _make_serializer(response_type: type[ConfigSummary]) -> RowRenderer:
    async def serialize_rows(_session: TenantSession, rows: list[Row]) -> list[ConfigSummary]:
        return [_to_config(response_type, row) for row in rows]

    return serialize_rows


CRUD_ROUTES = CrudRoutes(CONFIGS, "config", TAGS)
routes = [
    create_config,
    CRUD_ROUTES.list_route(ConfigSummary, _make_serializer(ConfigSummary), build_list_query),
    CRUD_ROUTES.get_route(ConfigDetail, _make_serializer(ConfigDetail)),
    list_versions,
    list_references,
    update_config,
    CRUD_ROUTES.delete_route(delete_config),
]
