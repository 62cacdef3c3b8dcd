"""The organisation: rules that hold in all of it, and its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.authorization import require_scopes
from penstock.kit import roles
from penstock.kit.authentication import session_ttl_seconds
from penstock.kit.resource import Resource
from penstock.kit.rules import DATA_PLANE, MAX_SESSION_SECONDS, MIN_SESSION_SECONDS, OVERRIDES, Rules, merge_rules
from penstock.kit.shared_fields import ObjectType, OptionalGuardrails
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.resources.workspaces import WORKSPACES
from penstock.schemas import EmptyResponse
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

ORGANISATION = Resource("organisation_settings", organisations, publishes=True)
TAGS = ["Organisation"]

SessionTtlField = Annotated[
    int,
    Meta(
        ge=MIN_SESSION_SECONDS, le=MAX_SESSION_SECONDS, description="seconds after which who signed in must do so again"
    ),
]


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long people stay signed in."""

    max_session_ttl: SessionTtlField


# What of a log an export may be asked for.
ExportField = Literal[
    "id",
    "trace_id",
    "created_at",
    "request",
    "response",
    "is_success",
    "ai_org",
    "ai_model",
    "req_units",
    "res_units",
    "total_units",
    "request_url",
    "cost",
    "cost_currency",
    "response_time",
    "response_status_code",
    "mode",
    "config",
    "prompt_slug",
    "metadata",
]


class ExportSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What exports of logs leave out."""

    denied_fields: Annotated[
        Annotated[list[ExportField], Meta(max_length=64)],
        Meta(description="fields that no export holds; kept until there are exports"),
    ]


class DataVisibility(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Whose logs people see in workspaces; the flags of the same names in `security_settings` of a workspace go first."""

    managers_view_all_data: Annotated[bool, Meta(description="false: managers see those of their own keys alone")] = (
        True
    )
    members_view_all_data: Annotated[bool, Meta(description="false: members see those of their own keys alone")] = True


AUTO_CREATE_DESCRIPTION = "whether people who come into {} are given a key there"
DefaultWorkspaceAutoCreateField = Annotated[
    bool | UnsetType | None,
    Meta(
        description=AUTO_CREATE_DESCRIPTION.format("the default workspace")
        + "; for all others that say nothing themselves: user_api_key_auto_create"
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
        description="what members and managers may see and write in all workspaces, by flag, where the workspace may not choose or did not; what is left out stays, null is the usual"
    ),
]
SecurityOverridesField = Annotated[
    dict[OverridableSection, bool | None] | UnsetType | None,
    Meta(
        description="which sections of `security_settings` workspaces may choose for themselves, and `data_plane_security_settings`, which is block_inline_config; true: they may, and have the organisation's values until they do; false: what the organisation says holds in all of them; null, or left out of all that was said: they may choose flags, and block_inline_config where the organisation does not set it"
    ),
]
DisableAutoProvisionField = Annotated[
    bool | UnsetType | None,
    Meta(
        description="whether nobody is made a user by signing in at the identity provider; kept: nobody is today, whatever it says"
    ),
]


class UpdateOrganisationSettings(Rules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays, and null takes a rule away."""

    session_settings: Annotated[SessionSettings | UnsetType | None, Meta(description="rules of sessions")] = UNSET
    security_settings: SecurityFlagsField = UNSET
    security_settings_overrides: SecurityOverridesField = UNSET
    default_workspace_user_api_key_auto_create: DefaultWorkspaceAutoCreateField = UNSET
    export_settings: Annotated[ExportSettings | UnsetType | None, Meta(description="rules of exports of logs")] = UNSET
    data_visibility: Annotated[
        DataVisibility | UnsetType | None, Meta(description="whose logs people see; kept until there are logs")
    ] = UNSET
    disable_auto_provision_user: DisableAutoProvisionField = UNSET


class ExportSettingsDetail(ExportSettings, frozen=True):
    """What exports of logs leave out, as it is shown."""


class DataVisibilityDetail(DataVisibility, frozen=True):
    """Whose logs people see in workspaces, as it is shown."""


class SessionSettingsDetail(msgspec.Struct, frozen=True):
    """How long people stay signed in, as it is answered."""

    max_session_ttl: SessionTtlField


class OrganisationSettingsDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the organisation."""

    user_api_key_rotation_period: Annotated[
        int | None, Meta(description="days after which the keys of people are rotated; null: no rule")
    ]
    block_inline_config: Annotated[
        bool, Meta(description="whether requests that choose a provider, endpoint or config inline are refused")
    ]
    user_api_key_ttl: Annotated[
        int | None,
        Meta(description="seconds after which a person's key ends that is made without an end; null: no rule"),
    ]
    session_settings: Annotated[SessionSettingsDetail, Meta(description="rules of sessions")]
    security_settings: Annotated[
        dict[str, bool],
        Meta(description="what members and managers may see and write where workspaces choose nothing else"),
    ]
    security_settings_overrides: Annotated[
        dict[str, bool], Meta(description="sections that workspaces may choose for themselves, as far as it was said")
    ]
    user_api_key_auto_create: Annotated[
        bool, Meta(description=AUTO_CREATE_DESCRIPTION.format("a workspace that says nothing itself"))
    ]
    default_workspace_user_api_key_auto_create: Annotated[
        bool, Meta(description=AUTO_CREATE_DESCRIPTION.format("the default workspace"))
    ]
    export_settings: Annotated[ExportSettingsDetail, Meta(description="rules of exports of logs")]
    data_visibility: Annotated[
        DataVisibilityDetail, Meta(description="whose logs people see; kept until there are logs")
    ]
    disable_auto_provision_user: Annotated[
        bool, Meta(description="whether nobody is made a user by signing in at the identity provider")
    ]
    object: ObjectType = "organisation-settings"


class UpdateOrganisationDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every workspace has unless it says otherwise; what is left out stays, null empties it."""

    input_guardrails: OptionalGuardrails = UNSET
    output_guardrails: OptionalGuardrails = UNSET


class OrganisationDefaultsDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of the organisation."""

    input_guardrails: Annotated[list[str], Meta(description="guardrails before each request")]
    output_guardrails: Annotated[list[str], Meta(description="guardrails after each answer")]
    object: ObjectType = "organisation-defaults"


@get("/settings", guards=[require_scopes("organisation_settings.read")], summary="Get organisation settings", tags=TAGS)
async def get_settings(work: NamedDependency[RequestContext]) -> OrganisationSettingsDetail:
    """Give the rules that hold in all of the organisation."""
    async with work.read_session() as desk:
        return _to_settings_detail((await _load_row(desk))["settings"])


@put(
    "/settings",
    guards=[require_scopes("organisation_settings.update")],
    summary="Update organisation settings",
    tags=TAGS,
)
async def update_settings(
    data: JSONBody[UpdateOrganisationSettings], work: NamedDependency[RequestContext]
) -> OrganisationSettingsDetail:
    """Change rules; the data plane follows within a second."""
    async with work.write_session() as desk:
        row = await _load_row(desk)
        before: dict[str, Any] = row["settings"]
        rules = merge_rules(data, before)
        if data.security_settings is not UNSET:
            rules[roles.SETTINGS_FIELD] = roles.merge_flags(data.security_settings, before)
        if data.security_settings_overrides is not UNSET:
            rules[OVERRIDES] = _merge_overrides(data.security_settings_overrides, before)
        await _copy_to_workspaces(desk, before, rules)
        await ORGANISATION.update(desk, row, {"settings": rules})
        return _to_settings_detail(rules)


@get("/defaults", guards=[require_scopes("organisation_settings.read")], summary="Get organisation defaults", tags=TAGS)
async def get_defaults(work: NamedDependency[RequestContext]) -> OrganisationDefaultsDetail:
    """Give what every workspace has unless it says otherwise."""
    async with work.read_session() as desk:
        kept = (await _load_row(desk))["settings"].get("defaults", {})
        return OrganisationDefaultsDetail(
            **{name: kept.get(name, []) for name in ("input_guardrails", "output_guardrails")}
        )


@put(
    "/defaults",
    guards=[require_scopes("organisation_settings.update")],
    summary="Update organisation defaults",
    tags=TAGS,
)
async def update_defaults(
    data: JSONBody[UpdateOrganisationDefaults], work: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Change defaults; what is left out stays."""
    async with work.write_session() as desk:
        row = await _load_row(desk)
        rules = row["settings"]
        given: dict[str, list[str]] = {
            name: value or [] for name, value in msgspec.structs.asdict(data).items() if value is not UNSET
        }
        changed = {**rules, "defaults": {**rules.get("defaults", {}), **given}}
        await ORGANISATION.update(desk, row, {"settings": changed})
        return EmptyResponse()


def _merge_overrides(
    given: Mapping[OverridableSection, bool | None] | None, before: Mapping[str, Any]
) -> dict[str, bool]:
    """Write what is left to workspaces over that of before; what was left out stays, null takes away what was said."""
    said: dict[str, bool | None] = {} if given is None else {**before.get(OVERRIDES, {}), **given}
    return {name: may for name, may in said.items() if may is not None}


async def _copy_to_workspaces(desk: TenantSession, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Give workspaces what the organisation says in sections that they may choose from now on; nobody gives more than their own."""
    if all(before.get(name) == after.get(name) for name in (roles.SETTINGS_FIELD, OVERRIDES)):
        return
    known, said = before.get(OVERRIDES, {}), after.get(OVERRIDES, {})
    opened = {name for name, may in said.items() if may and not known.get(name)}
    gained = roles.gained_scopes(roles.non_default_flags({}, before), roles.non_default_flags({}, after))
    for row in await desk.fetch_rows(select(workspaces), workspaces):
        settings = roles.copy_flags_to_workspace(opened, row["settings"], after)
        if DATA_PLANE in opened:
            settings["block_inline_config"] = bool(after.get("block_inline_config"))
        gained |= roles.gained_scopes(
            roles.non_default_flags(row["settings"], before), roles.non_default_flags(settings, after)
        )
        if settings != row["settings"]:
            await WORKSPACES.update(desk, row, {"settings": settings})
    desk.check_grantable_scopes(gained, None)


async def _load_row(desk: TenantSession) -> Row:
    return await ORGANISATION.get(desk, desk.organisation_id)


def _to_settings_detail(rules: Mapping[str, Any]) -> OrganisationSettingsDetail:
    return OrganisationSettingsDetail(
        user_api_key_rotation_period=rules.get("user_api_key_rotation_period"),
        block_inline_config=rules.get("block_inline_config", False),
        user_api_key_ttl=rules.get("user_api_key_ttl"),
        session_settings=SessionSettingsDetail(session_ttl_seconds(rules)),
        security_settings=roles.effective_flags({}, rules),
        security_settings_overrides=rules.get(OVERRIDES, {}),
        user_api_key_auto_create=rules.get("user_api_key_auto_create", False),
        default_workspace_user_api_key_auto_create=rules.get("default_workspace_user_api_key_auto_create", False),
        export_settings=ExportSettingsDetail(rules.get("export_settings", {}).get("deniedFields", [])),
        data_visibility=msgspec.convert(rules.get("data_visibility", {}), DataVisibilityDetail),
        disable_auto_provision_user=rules.get("disable_auto_provision_user", False),
    )


routes = [get_settings, update_settings, get_defaults, update_defaults]
