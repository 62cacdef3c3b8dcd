"""API keys of organisations, workspaces and users. A secret is shown only once, in the response that creates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from penstock import limit_fields as limits
from penstock.access.default_metadata import check_default_metadata
from penstock.authorization import ORGANISATION_ADMIN_ROLES, reject_unusable_scopes, require_scopes
from penstock.errors import ForbiddenError, Problem
from penstock.guardrails.defaults import resolve_guardrails
from penstock.guardrails.documents import DEFAULT_FIELDS
from penstock.ids import DIGEST_PATTERN, MASK_TEXT, is_uuid, mask_secret
from penstock.kit import shared_fields
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import DEFAULT_SIZE, PageRequest, PageSizes, search_conditions
from penstock.kit.route_parameters import WorkspaceFilter
from penstock.kit.shared_fields import UNSET, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limit_fields import LimitFields, LimitFieldsUpdate
from penstock.limits.initial_usage import InitialUsageField, check_initial_usage, store_initial_usage
from penstock.limits.status import NO_USAGE, CurrentUsage, read_current_usage
from penstock.organisation import keys, members
from penstock.organisation.keys import KEY_RESOURCES
from penstock.organisation.rotation import RotationPolicy, TransitionMs, build_policy
from penstock.organisation.session_revocation import end_sessions
from penstock.schemas import (
    EmptyResponse,
    ListResponse,
    effective_status,
    field_error,
    format_required_timestamp,
    next_reset,
    row_to_struct,
    sent_fields,
)
from penstock.store.tables import api_keys, configs, sessions, users, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.store.tenant import Row

TAGS = ["API keys"]
MAX_IDS = 1000
# Maximum nesting of lists and objects in a metadata value, which is sent as one JSON string.
MAX_METADATA_DEPTH = 8


def _list_scopes(verb: str) -> list[str]:
    return sorted({f"{resource.name}.{verb}" for resource in KEY_RESOURCES.values()})


KeyGuardrails = Annotated[
    Annotated[list[shared_fields.GuardrailReference], Meta(max_length=100)] | None,
    Meta(
        description="guardrails of every request, in addition to those of its config and workspace: ids or slugs, returned as ids; only for keys of a workspace"
    ),
]


class KeyDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Defaults for requests with the key. Values that a request sets itself take precedence."""

    metadata: Annotated[
        dict[str, Any] | None,
        Meta(
            description="metadata of every request: strings; other values are sent as JSON and may nest at most 8 levels"
        ),
    ] = None
    config_id: Annotated[str | None, Meta(description="config of every request: id or slug")] = None
    allow_config_override: Annotated[bool, Meta(description="true if a request may use another config")] = True
    input_guardrails: KeyGuardrails = None
    output_guardrails: KeyGuardrails = None


Scopes = Annotated[list[str], Meta(min_length=1, description="scopes of the key")]
DefaultsField = Annotated[
    KeyDefaults | UnsetType | None, Meta(description="defaults; they replace the previous ones, null removes them")
]
AlertEmailsField = Annotated[
    list[shared_fields.Email] | UnsetType | None, Meta(description="addresses that alerts are sent to")
]
RotationPolicyField = Annotated[RotationPolicy | UnsetType | None, Meta(description="rotation policy; null removes it")]


class CreateApiKey(LimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key to create."""

    name: shared_fields.Name
    scopes: Scopes
    description: shared_fields.Note = None
    organisation_id: shared_fields.OwnOrganisationId = None
    workspace_id: shared_fields.WorkspaceIdOrSlug = None
    user_id: Annotated[str | None, Meta(description="id of the user that the key belongs to")] = None
    defaults: DefaultsField = UNSET
    alert_emails: AlertEmailsField = UNSET
    rotation_policy: RotationPolicyField = UNSET
    key_sha256: Annotated[
        Annotated[str, Meta(pattern=DIGEST_PATTERN)] | None,
        Meta(
            description="SHA-256 digest of an existing secret, in hexadecimal, to keep a key of another gateway valid; only for admins and keys of the organisation"
        ),
    ] = None
    initial_usage: InitialUsageField = None


class UpdateApiKey(LimitFieldsUpdate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a key to update; omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    description: shared_fields.OptionalNote = UNSET
    scopes: Annotated[Annotated[list[str], Meta(min_length=1)] | UnsetType, Meta(description="scopes of the key")] = (
        UNSET
    )
    defaults: DefaultsField = UNSET
    alert_emails: AlertEmailsField = UNSET
    rotation_policy: RotationPolicyField = UNSET


class RotateApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options for rotating a key."""

    key_transition_period_ms: Annotated[
        TransitionMs | None,
        Meta(description="period in milliseconds during which the old and the new secret are both valid"),
    ] = None


class CreatedApiKey(msgspec.Struct, frozen=True):
    """A new key with its secret."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="the secret, which is not shown again; empty if `key_sha256` was given")]
    object: shared_fields.ObjectType = "api-key"


class RotatedApiKey(msgspec.Struct, frozen=True):
    """A rotated key with its new secret."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="the new secret, which is not shown again")]
    key_transition_expires_at: Annotated[str, Meta(description="when the old secret stops being valid")]


class ApiKeyDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without its secret."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="the secret, masked: only its first and last characters")]
    name: shared_fields.Name
    description: shared_fields.Note
    type: Annotated[str, Meta(description="`organisation-service`, `workspace-service`, `workspace-user` …")]
    organisation_id: shared_fields.OrganisationId
    workspace_id: Annotated[str | None, Meta(description="id of the workspace that the key is for")]
    user_id: Annotated[str | None, Meta(description="id of the user that the key belongs to")]
    status: shared_fields.ExpiryStatus
    creation_mode: Annotated[str, Meta(description="`ui`, `api` or `auto`")]
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    rate_limits: limits.RateLimitListField
    usage_limits: limits.UsageLimitsField
    current_usage: limits.CurrentUsageField = None
    reset_usage: shared_fields.ResetUsageShown = None
    last_reset_at: shared_fields.OptionalTimestamp
    next_usage_reset_at: shared_fields.OptionalTimestamp
    scopes: Scopes
    defaults: Annotated[
        KeyDefaults,
        Meta(description="defaults for requests with the key; values that a request sets itself take precedence"),
    ]
    alert_emails: Annotated[list[str] | None, Meta(description="addresses that alerts are sent to")]
    expires_at: shared_fields.OptionalTimestamp
    expiry_enforced: Annotated[int, Meta(description="1 if the key expires by itself, at `expires_at`")]
    allow_config_override: Annotated[
        int | None, Meta(description="1 or 0, as in `defaults`, if the defaults contain a config; null otherwise")
    ]
    api_key_defaults_id: Annotated[
        str | None, Meta(description="always null: the defaults are part of the key and have no id")
    ] = None
    rotation_policy: Annotated[RotationPolicy | None, Meta(description="rotation")]
    last_rotated_at: shared_fields.OptionalTimestamp
    object: shared_fields.ObjectType = "api-key"


KindParam = Annotated[
    Literal["organisation", "workspace"],
    PathParameter(description="whether the key is for the organisation or for one workspace"),
]
SubKindParam = Annotated[
    Literal["service", "user"], PathParameter(description="whether a service or a user holds the key")
]
KeyIdParam = Annotated[str, PathParameter(description="id of the key")]
SearchParam = Annotated[
    str | None,
    QueryParameter(
        max_length=255,
        description="part of the name, of the masked key or of the id, ignoring the case of ASCII letters",
    ),
]
IdsParam = Annotated[str | None, QueryParameter(description="only keys with these ids, separated by commas")]


@post(
    "/{kind:str}/{sub_kind:str}",
    status_code=200,
    guards=[require_scopes(*_list_scopes("create"))],
    summary="Create API key",
    tags=TAGS,
)
async def create_key(
    kind: KindParam, sub_kind: SubKindParam, data: JSONBody[CreateApiKey], context: NamedDependency[RequestContext]
) -> CreatedApiKey:
    """Creates a key, which cannot have scopes that the caller may not grant. A key created by another key keeps that
    key's bound config and expires no later.

    A key with limits cannot create keys: limits are counted per key, so spending by the new key would not count
    against them.
    """
    type_ = f"{kind}-{sub_kind}"
    context.caller.check_organisation(data.organisation_id)
    async with context.write_session(data.workspace_id) as session:
        session.require_any_scope(f"{KEY_RESOURCES[type_].name}.create")
        if kind == "organisation" and session.workspace_id is not None:
            raise ForbiddenError(
                "a key of the organisation must be created without workspace_id, by another key of the organisation"
            )
        workspace_id = session.required_workspace_id if kind == "workspace" else None
        await _check_user(session, data.user_id, workspace_id, is_users=sub_kind == "user")
        if workspace_id and data.user_id and not await keys.can_add_key(session, workspace_id, data.user_id):
            reason = (
                "already has the maximum number of keys in this workspace; the rule user_api_key_count allows no more"
            )
            raise ForbiddenError(f"user_id {reason}", [Problem("user_id", reason)])
        text = "" if data.key_sha256 else session.generate_key()
        values = {
            "type": type_,
            "workspace_id": workspace_id,
            "user_id": data.user_id,
            "name": data.name,
            "description": data.description,
            "status": "active",
            "creation_mode": "ui" if context.caller.by == "session" else "api",
            "masked": mask_secret(text) if text else MASK_TEXT,
            "created_by": context.caller.actor_id,
            "scopes": _validate_scopes(session, type_, data.scopes),
            "defaults": await _load_workspace_defaults(session, type_),
            "rate_limits": None,
            "usage_limits": None,
            "alert_emails": None,
            # If the caller has a token and is not a user in the store, the new key expires with the token.
            "expires_at": session.caller.ends_at,
            "rotation_policy": build_policy(None, await keys.enforced_rotation_days(session, type_, workspace_id)),
            "last_reset_at": None,
            "last_rotated_at": None,
            **await _validate_settings(session, type_, data),
        }
        values |= await keys.apply_workspace_rules(session, values)
        await keys.reject_escalation(session, values)
        check_initial_usage(data.initial_usage, values["usage_limits"])
        if data.key_sha256:
            await keys.reject_digest(session, data.key_sha256)
        row = await KEY_RESOURCES[type_].create(session, values)
        await keys.store_digest(session, row["id"], text, digest=data.key_sha256)
        await store_initial_usage(session, "api_key", row, data.initial_usage)
        return CreatedApiKey(row["id"], text)


@get("/", guards=[require_scopes(*_list_scopes("list"))], summary="List API keys", tags=TAGS)
async def list_keys(
    context: NamedDependency[RequestContext],
    page: NamedDependency[PageRequest],
    workspace_id: WorkspaceFilter = None,
    ids: IdsParam = None,
    search: SearchParam = None,
) -> ListResponse[ApiKeyDetail]:
    """Lists the keys that the caller may see. If `ids` is given without a page size, one page holds all of them."""
    async with context.read_session(workspace_id) as session:
        granted = session.granted_scopes
        conditions = [
            api_keys.c.type.in_(
                [kind for kind, resource in KEY_RESOURCES.items() if f"{resource.name}.list" in granted]
            ),
            *search_conditions(search, api_keys.c.name, api_keys.c.masked, api_keys.c.id),
        ]
        if ids is not None:
            requested = [part.strip() for part in ids.split(",") if part.strip()]
            if bad := [part for part in requested if not is_uuid(part)]:
                raise field_error("ids", f"{bad[0]!r} is not allowed: expected ids with commas")
            if len(requested) > MAX_IDS:
                raise field_error("ids", f"holds {len(requested)} ids: at most {MAX_IDS} are allowed")
            conditions.append(api_keys.c.id.in_(requested))
            # A client that sends ids without a page size expects all of these keys in one page.
            page = page.apply_sizes(PageSizes(max(DEFAULT_SIZE, len(requested))))
        total, rows = await KEY_RESOURCES["workspace-service"].list_page(session, page, conditions)
        used = await read_current_usage(session, "api_key", rows)
        return ListResponse(total, [_to_key_detail(row, used.get(row["id"], NO_USAGE)) for row in rows])


@get("/{key_id:str}", guards=[require_scopes(*_list_scopes("read"))], summary="Get API key", tags=TAGS)
async def get_key(key_id: KeyIdParam, context: NamedDependency[RequestContext]) -> ApiKeyDetail:
    """Returns a key with its secret masked."""
    async with context.read_session() as session:
        row = await _get_permitted_key(session, key_id, "read")
        used = await read_current_usage(session, "api_key", [row])
        return _to_key_detail(row, used.get(row["id"], NO_USAGE))


@put(
    "/{key_id:str}",
    guards=[require_scopes(*_list_scopes("update"))],
    summary="Update API key",
    tags=TAGS,
    opt={SHOWN_OPTION: ApiKeyDetail},
)
async def update_key(
    key_id: KeyIdParam, data: JSONBody[UpdateApiKey], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Updates a key; omitted fields keep their values."""
    async with context.write_session() as session:
        row = await _get_permitted_key(session, key_id, "update")
        await context.check_unchanged(session, _to_key_detail(row))
        values = {name: value for name, value in sent_fields(data).items() if name in {"name", "description"}}
        if data.scopes is not UNSET:
            values["scopes"] = _validate_scopes(session, row["type"], data.scopes)
        values |= await _validate_settings(session, row["type"], data, row)
        values |= await keys.apply_workspace_rules(session, values, row)
        await keys.reject_escalation(session, values, row, resets_usage=bool(data.reset_usage))
        await KEY_RESOURCES[row["type"]].update(session, row, values)
        if "usage_limits" in values:
            session.note_changed_budget(f"api_key:{row['id']}")
        return EmptyResponse()


@delete(
    "/{key_id:str}",
    status_code=200,
    guards=[require_scopes(*_list_scopes("delete"))],
    summary="Delete API key",
    tags=TAGS,
)
async def delete_key(key_id: KeyIdParam, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Deletes a key. Requests with it are rejected from then on."""
    async with context.write_session() as session:
        row = await _get_permitted_key(session, key_id, "delete")
        await end_sessions(session, sessions.c.api_key_id == row["id"])
        await KEY_RESOURCES[row["type"]].delete(session, row)
        return EmptyResponse()


@post(
    "/{key_id:str}/rotate",
    status_code=200,
    guards=[require_scopes(*_list_scopes("rotate"))],
    summary="Rotate API key",
    tags=TAGS,
)
async def rotate_key(
    key_id: KeyIdParam, context: NamedDependency[RequestContext], data: JSONBody[RotateApiKey | None] = None
) -> RotatedApiKey:
    """Creates a new secret for a key. The old secret stays valid until the transition ends; at most two secrets are
    valid at a time.

    If the schedule has rotated the key and nobody has requested the new secret yet, returns that one.
    """
    async with context.write_session() as session:
        row = await _get_permitted_key(session, key_id, "rotate")
        # The caller receives a secret with all scopes of the key, so it must be allowed to grant them.
        _validate_scopes(session, row["type"], row["scopes"])
        if row["id"] != session.caller.id:
            await keys.reject_escalation(session, row)
        text, end = await keys.rotate_key(session, row, data.key_transition_period_ms if data else None)
        return RotatedApiKey(row["id"], text, format_required_timestamp(end))


async def _get_permitted_key(session: TenantSession, key_id: str, verb: str) -> Row:
    """Returns a key if the caller may perform this action on keys of its type in its workspace; raises `ForbiddenError`
    otherwise.
    """
    row = await KEY_RESOURCES["workspace-service"].get(session, key_id)
    scope = f"{KEY_RESOURCES[row['type']].name}.{verb}"
    if scope not in session.caller.granted_scopes(row["workspace_id"]):
        raise ForbiddenError(f"this key may not do that: it needs {scope}")
    session.workspace_id = row["workspace_id"]
    return row


def _validate_scopes(session: TenantSession, type_: str, scopes: Iterable[str]) -> list[str]:
    """Checks that a key of this type may have the scopes and that the caller may grant them. Returns them sorted,
    without duplicates.
    """
    listed = list(scopes)
    reject_unusable_scopes("scopes", type_, listed)
    session.check_grantable_scopes(listed, session.workspace_id)
    return sorted(set(listed))


async def _check_user(session: TenantSession, user_id: str | None, workspace_id: str | None, *, is_users: bool) -> None:
    if not is_users:
        if user_id is not None:
            raise field_error("user_id", "is only for keys of users")
        return
    if user_id is None:
        raise field_error("user_id", "is required for the key of a user")
    user = await session.resolve_reference("user_id", users, user_id, "user of this organisation")
    # Owners and admins of the organisation are admins of all its workspaces.
    is_inside = user["role"] in ORGANISATION_ADMIN_ROLES or workspace_id is None
    if not is_inside and await members.find_member(session, workspace_id or "", user_id) is None:
        raise field_error("user_id", f"{user_id!r} is not a member of this workspace")


async def _validate_settings(
    session: TenantSession, type_: str, data: CreateApiKey | UpdateApiKey, row: Row | None = None
) -> dict[str, Any]:
    """Validates the limits, alert addresses, defaults and rotation policy of a request and returns them as column
    values.
    """
    values = limits.check_limits(data, limits.KEY_RATE_UNITS, row)
    if data.alert_emails is not UNSET:
        values["alert_emails"] = data.alert_emails
    if data.defaults is not UNSET:
        values["defaults"] = {
            **(await _load_workspace_defaults(session, type_) if row is None else {}),
            **await _validate_defaults(session, type_, data.defaults or KeyDefaults(), row),
        }
    if data.rotation_policy is not UNSET:
        before = row["rotation_policy"] if row else None
        cadence = await keys.enforced_rotation_days(session, type_, session.workspace_id)
        values["rotation_policy"] = build_policy(data.rotation_policy, cadence, before)
    return values


async def _validate_defaults(
    session: TenantSession, type_: str, defaults: KeyDefaults, row: Row | None
) -> dict[str, Any]:
    """Validates the defaults of a key and returns them as they are stored, with ids in place of slugs."""
    written = msgspec.to_builtins(defaults)
    for name, value in (defaults.metadata or {}).items():
        if _measure_depth(value) > MAX_METADATA_DEPTH:
            raise field_error(f"defaults.metadata.{name}", f"nests deeper than {MAX_METADATA_DEPTH} levels")
    check_default_metadata("defaults.metadata", defaults.metadata)
    if defaults.config_id:
        had: dict[str, Any] = row["defaults"] if row else {}
        # A key of the organisation may have a config of any workspace as its default.
        conditions = [configs.c.workspace_id == session.workspace_id] if session.workspace_id else []
        config = await session.resolve_config(
            "defaults.config_id", defaults.config_id, had.get("config_id"), *conditions
        )
        written["config_id"] = config["id"]
    for name in DEFAULT_FIELDS:
        if not written[name]:
            written[name] = None
        elif type_.startswith("organisation-"):
            # The guardrails of a request are those that its workspace may use.
            raise field_error(f"defaults.{name}", "is only for keys of a workspace")
        else:
            written[name] = await resolve_guardrails(session, f"defaults.{name}", written[name], session.workspace_id)
    return _drop_nulls(written)


def _measure_depth(value: object, above: int = 0) -> int:
    """Returns the nesting depth of a value. Stops counting above the maximum depth."""
    if not isinstance(value, dict | list) or above > MAX_METADATA_DEPTH:
        return above
    inner = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
    return max((_measure_depth(item, above + 1) for item in inner), default=above + 1)


def _drop_nulls(written: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if value is not None}


async def _load_workspace_defaults(session: TenantSession, type_: str) -> dict[str, Any]:
    """Returns the defaults that the workspace sets for new keys of users; empty for other key types."""
    if type_ != "workspace-user":
        return {}
    row = await session.find(workspaces, session.required_workspace_id)
    config = row["defaults"].get("user_api_key_config") if row else None
    return {"config_id": config} if config else {}


def _to_key_detail(row: Row, used: CurrentUsage = NO_USAGE) -> ApiKeyDetail:
    defaults = KeyDefaults(**row["defaults"])
    return row_to_struct(
        ApiKeyDetail,
        row,
        key=row["masked"],
        status=effective_status(row, is_exhausted=used.is_exhausted),
        current_usage=used.amount,
        next_usage_reset_at=next_reset(row["usage_limits"] or {}),
        defaults=defaults,
        expiry_enforced=int(row["expires_at"] is not None),
        allow_config_override=int(defaults.allow_config_override) if defaults.config_id else None,
    )


routes = [create_key, list_keys, get_key, update_key, delete_key, rotate_key]
