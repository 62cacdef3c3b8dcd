"""Settings and defaults of the organisation, which apply to all its workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.access import roles
from penstock.access.authentication import session_ttl_seconds
from penstock.access.tenant_rules import (
    DATA_PLANE,
    MAX_SESSION_SECONDS,
    MIN_SESSION_SECONDS,
    OVERRIDES,
    SharedTenantRules,
    merge_rules,
)
from penstock.authorization import require_scopes
from penstock.guardrails.defaults import find_slugs, resolve_guardrails
from penstock.guardrails.documents import DEFAULT_FIELDS
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import GuardrailReference, Id, ObjectType, Slug
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.log_api.exports import ExportField
from penstock.resources.workspaces import WORKSPACES
from penstock.schemas import EmptyResponse, sent_fields
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

ORGANISATION = Resource("organisation_settings", organisations, publishes=True)
TAGS = ["Organisation"]

SessionTtlField = Annotated[
    int,
    Meta(
        ge=MIN_SESSION_SECONDS,
        le=MAX_SESSION_SECONDS,
        description="seconds after which a signed-in user must sign in again",
    ),
]


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long users stay signed in."""

    max_session_ttl: SessionTtlField


class ExportSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Fields that log exports leave out."""

    denied_fields: Annotated[
        Annotated[list[ExportField], Meta(max_length=64)],
        Meta(description="fields that no log export may contain"),
    ]


class DataVisibility(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Visibility of logs in workspaces. Flags of the same names in a workspace's `security_settings` take precedence."""

    managers_view_all_data: Annotated[bool, Meta(description="false: managers see only the logs of their own keys")] = (
        True
    )
    members_view_all_data: Annotated[bool, Meta(description="false: members see only the logs of their own keys")] = (
        True
    )


AUTO_CREATE_DESCRIPTION = "true if users who join {} get an API key there"
DefaultWorkspaceAutoCreateField = Annotated[
    bool | UnsetType | None,
    Meta(
        description=AUTO_CREATE_DESCRIPTION.format("the default workspace")
        + "; user_api_key_auto_create applies to other workspaces without a setting of their own"
    ),
]
OverridableSection = Literal[
    "logs",
    "api_keys",
    "configs",
    "prompts",
    "analytics",
    "guardrails",
    "virtual_keys",
    "workspaces",
    "integrations",
    "mcp",
    "data_plane_security_settings",
]
SecurityFlagsField = Annotated[
    dict[str, bool | None] | UnsetType | None,
    Meta(
        description="flags for what members and managers may see and write in all workspaces that may not choose, or did not choose, their own; omitted flags are unchanged, null restores the default"
    ),
]
SecurityOverridesField = Annotated[
    dict[OverridableSection, bool | None] | UnsetType | None,
    Meta(
        description="sections of `security_settings` that workspaces may choose for themselves; `data_plane_security_settings` stands for block_inline_config; true: they may, and use the organisation's values until they do; false: the organisation's values apply to all; null, or never set: they may choose flags, and block_inline_config if the organisation does not set it"
    ),
]
DisableAutoProvisionField = Annotated[
    bool | UnsetType | None,
    Meta(
        description="true if signing in at the identity provider must not create a user; stored only, because it creates none today in either case"
    ),
]


class UpdateOrganisationSettings(SharedTenantRules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings to update; omitted fields keep their values, null removes a rule."""

    READ_ONLY: ClassVar = ("object",)
    session_settings: Annotated[SessionSettings | UnsetType | None, Meta(description="rules for sessions")] = UNSET
    security_settings: SecurityFlagsField = UNSET
    security_settings_overrides: SecurityOverridesField = UNSET
    default_workspace_user_api_key_auto_create: DefaultWorkspaceAutoCreateField = UNSET
    export_settings: Annotated[ExportSettings | UnsetType | None, Meta(description="rules for log exports")] = UNSET
    data_visibility: Annotated[
        DataVisibility | UnsetType | None,
        Meta(description="visibility of logs and analytics"),
    ] = UNSET
    disable_auto_provision_user: DisableAutoProvisionField = UNSET


class ExportSettingsDetail(ExportSettings, frozen=True):
    """Fields that log exports leave out, as returned in responses."""


class DataVisibilityDetail(DataVisibility, frozen=True):
    """Visibility of logs in workspaces, as returned in responses."""


class SessionSettingsDetail(msgspec.Struct, frozen=True):
    """How long users stay signed in, as returned in responses."""

    max_session_ttl: SessionTtlField


class OrganisationSettingsDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the organisation."""

    user_api_key_rotation_period: Annotated[
        int | None, Meta(description="days after which keys of users are rotated; null: no rule")
    ]
    block_inline_config: Annotated[
        bool, Meta(description="true if requests that choose a provider, endpoint or config inline are rejected")
    ]
    user_api_key_ttl: Annotated[
        int | None,
        Meta(description="seconds after which a user's key expires that was created without an expiry; null: no rule"),
    ]
    session_settings: Annotated[SessionSettingsDetail, Meta(description="rules for sessions")]
    security_settings: Annotated[
        dict[str, bool],
        Meta(description="flags for what members and managers may see and write, unless a workspace chooses its own"),
    ]
    security_settings_overrides: Annotated[
        dict[str, bool],
        Meta(description="sections that workspaces may or may not choose for themselves; only those that were set"),
    ]
    user_api_key_auto_create: Annotated[
        bool, Meta(description=AUTO_CREATE_DESCRIPTION.format("a workspace without a setting of its own"))
    ]
    default_workspace_user_api_key_auto_create: Annotated[
        bool, Meta(description=AUTO_CREATE_DESCRIPTION.format("the default workspace"))
    ]
    export_settings: Annotated[ExportSettingsDetail, Meta(description="rules for log exports")]
    data_visibility: Annotated[DataVisibilityDetail, Meta(description="visibility of logs and analytics")]
    disable_auto_provision_user: Annotated[
        bool, Meta(description="true if signing in at the identity provider must not create a user")
    ]
    object: ObjectType = "organisation-settings"


class NamedGuardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A guardrail as responses name it."""

    id: Annotated[GuardrailReference, Meta(description="its id")]
    slug: Annotated[str | None, Meta(description="its slug")] = None


_NamedGuardrails = Annotated[list[GuardrailReference | NamedGuardrail], Meta(max_length=100)]
DefaultGuardrails = Annotated[
    _NamedGuardrails | UnsetType | None,
    Meta(description="ids or slugs of guardrails of the organisation, or objects as responses have them"),
]


class UpdateOrganisationDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Guardrails for all workspaces, besides their own. Omitted fields keep their values, null clears them."""

    READ_ONLY: ClassVar = ("object",)
    input_guardrails: DefaultGuardrails = UNSET
    output_guardrails: DefaultGuardrails = UNSET


class DefaultGuardrail(msgspec.Struct, frozen=True):
    """A default guardrail."""

    id: Id
    slug: Slug


class OrganisationDefaultsDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of the organisation."""

    input_guardrails: Annotated[list[DefaultGuardrail], Meta(description="guardrails that check each request")]
    output_guardrails: Annotated[list[DefaultGuardrail], Meta(description="guardrails that check each response")]
    object: ObjectType = "organisation-defaults"


@get("/settings", guards=[require_scopes("organisation_settings.read")], summary="Get organisation settings", tags=TAGS)
async def get_settings(context: NamedDependency[RequestContext]) -> OrganisationSettingsDetail:
    """Returns the settings that apply to the whole organisation."""
    async with context.read_session() as session:
        return _to_settings_detail((await _load_row(session))["settings"])


@put(
    "/settings",
    guards=[require_scopes("organisation_settings.update")],
    summary="Update organisation settings",
    tags=TAGS,
)
async def update_settings(
    data: JSONBody[UpdateOrganisationSettings], context: NamedDependency[RequestContext]
) -> OrganisationSettingsDetail:
    """Updates settings. The data plane applies them within a second."""
    async with context.write_session() as session:
        row = await _load_row(session)
        before: dict[str, Any] = row["settings"]
        rules = merge_rules(data, before)
        if data.security_settings is not UNSET:
            rules[roles.SETTINGS_FIELD] = roles.merge_flags(data.security_settings, before)
        if data.security_settings_overrides is not UNSET:
            rules[OVERRIDES] = _merge_overrides(data.security_settings_overrides, before)
        await _copy_to_workspaces(session, before, rules)
        await ORGANISATION.update(session, row, {"settings": rules})
        return _to_settings_detail(rules)


@get("/defaults", guards=[require_scopes("organisation_settings.read")], summary="Get organisation defaults", tags=TAGS)
async def get_defaults(context: NamedDependency[RequestContext]) -> OrganisationDefaultsDetail:
    """Returns the guardrails that apply to all workspaces which are not excluded from them."""
    async with context.read_session() as session:
        defaults = (await _load_row(session))["settings"].get("defaults", {})
        ids: dict[str, list[str]] = {name: defaults.get(name, []) for name in DEFAULT_FIELDS}
        slugs = await find_slugs(session, (own_id for own_ids in ids.values() for own_id in own_ids))
        inputs, outputs = ([DefaultGuardrail(own_id, slugs[own_id]) for own_id in ids[name]] for name in DEFAULT_FIELDS)
        return OrganisationDefaultsDetail(input_guardrails=inputs, output_guardrails=outputs)


@put(
    "/defaults",
    guards=[require_scopes("organisation_settings.update")],
    summary="Update organisation defaults",
    tags=TAGS,
)
async def update_defaults(
    data: JSONBody[UpdateOrganisationDefaults], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Updates defaults; omitted fields keep their values. Only guardrails of the organisation can be defaults."""
    async with context.write_session() as session:
        row = await _load_row(session)
        rules = row["settings"]
        values: dict[str, list[str]] = {}
        sent: dict[str, list[str | NamedGuardrail] | None] = sent_fields(data)
        for name, value in sent.items():
            keys = [item if isinstance(item, str) else item.id for item in value or []]
            values[name] = await resolve_guardrails(session, name, keys, None)
        changed = {**rules, "defaults": {**rules.get("defaults", {}), **values}}
        await ORGANISATION.update(session, row, {"settings": changed})
        return EmptyResponse()


def _merge_overrides(
    fields: Mapping[OverridableSection, bool | None] | None, before: Mapping[str, Any]
) -> dict[str, bool]:
    """Merges the given overrides into the previous ones. Omitted sections keep their values; null removes the section's
    override.
    """
    overrides: dict[str, bool | None] = {} if fields is None else {**before.get(OVERRIDES, {}), **fields}
    return {name: is_allowed for name, is_allowed in overrides.items() if is_allowed is not None}


async def _copy_to_workspaces(session: TenantSession, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """If workspaces may set a section themselves from now on, copies the organisation's values of this section to them.
    Rejects changes that grant scopes which the caller may not grant.
    """
    if all(before.get(name) == after.get(name) for name in (roles.SETTINGS_FIELD, OVERRIDES)):
        return
    old_overrides, new_overrides = before.get(OVERRIDES, {}), after.get(OVERRIDES, {})
    opened = {name for name, is_allowed in new_overrides.items() if is_allowed and not old_overrides.get(name)}
    gained = roles.gained_scopes(roles.non_default_flags({}, before), roles.non_default_flags({}, after))
    for row in await session.fetch_rows(select(workspaces), workspaces):
        settings = roles.copy_flags_to_workspace(opened, row["settings"], after)
        if DATA_PLANE in opened:
            settings["block_inline_config"] = bool(after.get("block_inline_config"))
        gained |= roles.gained_scopes(
            roles.non_default_flags(row["settings"], before), roles.non_default_flags(settings, after)
        )
        if settings != row["settings"]:
            await WORKSPACES.update(session, row, {"settings": settings})
    session.check_grantable_scopes(gained, None)


async def _load_row(session: TenantSession) -> Row:
    return await ORGANISATION.get(session, session.organisation_id)


def _to_settings_detail(rules: Mapping[str, Any]) -> OrganisationSettingsDetail:
    return OrganisationSettingsDetail(
        user_api_key_rotation_period=rules.get("user_api_key_rotation_period"),
        block_inline_config=rules.get("block_inline_config", False),
        user_api_key_ttl=rules.get("user_api_key_ttl"),
        session_settings=SessionSettingsDetail(session_ttl_seconds(rules)),
        # The response omits `data_visibility`: a client that sends back the response would otherwise store these flags
        # twice.
        security_settings=roles.effective_flags(rules),
        security_settings_overrides=rules.get(OVERRIDES, {}),
        user_api_key_auto_create=rules.get("user_api_key_auto_create", False),
        default_workspace_user_api_key_auto_create=rules.get("default_workspace_user_api_key_auto_create", False),
        export_settings=ExportSettingsDetail(rules.get("export_settings", {}).get("deniedFields", [])),
        data_visibility=msgspec.convert(rules.get("data_visibility", {}), DataVisibilityDetail),
        disable_auto_provision_user=rules.get("disable_auto_provision_user", False),
    )


routes = [get_settings, update_settings, get_defaults, update_defaults]
