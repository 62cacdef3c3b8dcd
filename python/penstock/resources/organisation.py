"""The organisation: rules that hold in all of it, and its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.authorization import needs
from penstock.kit import roles
from penstock.kit.authentication import session_ttl
from penstock.kit.resource import Resource
from penstock.kit.rules import DATA_PLANE, LONGEST_SESSION, OVERRIDES, SHORTEST_SESSION, Rules, written
from penstock.kit.shared_fields import MaybeGuardrails, Object
from penstock.kit.tenant_session import Desk, Work
from penstock.resources.workspaces import WORKSPACES
from penstock.schemas import Done
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

ORGANISATION = Resource("organisation_settings", organisations, publishes=True)
TAGS = ["Organisation"]

Ttl = Annotated[
    int,
    Meta(ge=SHORTEST_SESSION, le=LONGEST_SESSION, description="seconds after which who signed in must do so again"),
]


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long people stay signed in."""

    max_session_ttl: Ttl


# What of a log an export may be asked for.
Exported = Literal[
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
        Annotated[list[Exported], Meta(max_length=64)],
        Meta(description="fields that no export holds; kept until there are exports"),
    ]


class DataVisibility(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Whose logs people see in workspaces; the flags of the same names in `security_settings` of a workspace go first."""

    managers_view_all_data: Annotated[bool, Meta(description="false: managers see those of their own keys alone")] = (
        True
    )
    members_view_all_data: Annotated[bool, Meta(description="false: members see those of their own keys alone")] = True


CREATES = "whether people who come into {} are given a key there"
MakesKeysInDefault = Annotated[
    bool | UnsetType | None,
    Meta(
        description=CREATES.format("the default workspace")
        + "; for all others that say nothing themselves: user_api_key_auto_create"
    ),
]
Overridden = Literal[
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
Flags = Annotated[
    dict[str, bool | None] | UnsetType | None,
    Meta(
        description="what members and managers may see and write in all workspaces, by flag, where the workspace may not choose or did not; what is left out stays, null is the usual"
    ),
]
Overrides = Annotated[
    dict[Overridden, bool | None] | UnsetType | None,
    Meta(
        description="which sections of `security_settings` workspaces may choose for themselves, and `data_plane_security_settings`, which is block_inline_config; true: they may, and have the organisation's values until they do; false: what the organisation says holds in all of them; null, or left out of all that was said: they may choose flags, and block_inline_config where the organisation does not set it"
    ),
]
RefusesStrangers = Annotated[
    bool | UnsetType | None,
    Meta(
        description="whether nobody is made a user by signing in at the identity provider; kept: nobody is today, whatever it says"
    ),
]


class SettingsChange(Rules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays, and null takes a rule away."""

    session_settings: Annotated[SessionSettings | UnsetType | None, Meta(description="rules of sessions")] = UNSET
    security_settings: Flags = UNSET
    security_settings_overrides: Overrides = UNSET
    default_workspace_user_api_key_auto_create: MakesKeysInDefault = UNSET
    export_settings: Annotated[ExportSettings | UnsetType | None, Meta(description="rules of exports of logs")] = UNSET
    data_visibility: Annotated[
        DataVisibility | UnsetType | None, Meta(description="whose logs people see; kept until there are logs")
    ] = UNSET
    disable_auto_provision_user: RefusesStrangers = UNSET


class ExportsShown(ExportSettings, frozen=True):
    """What exports of logs leave out, as it is shown."""


class VisibilityShown(DataVisibility, frozen=True):
    """Whose logs people see in workspaces, as it is shown."""


class SessionsShown(msgspec.Struct, frozen=True):
    """How long people stay signed in, as it is answered."""

    max_session_ttl: Ttl


class SettingsShown(msgspec.Struct, frozen=True, kw_only=True):
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
    session_settings: Annotated[SessionsShown, Meta(description="rules of sessions")]
    security_settings: Annotated[
        dict[str, bool],
        Meta(description="what members and managers may see and write where workspaces choose nothing else"),
    ]
    security_settings_overrides: Annotated[
        dict[str, bool], Meta(description="sections that workspaces may choose for themselves, as far as it was said")
    ]
    user_api_key_auto_create: Annotated[bool, Meta(description=CREATES.format("a workspace that says nothing itself"))]
    default_workspace_user_api_key_auto_create: Annotated[
        bool, Meta(description=CREATES.format("the default workspace"))
    ]
    export_settings: Annotated[ExportsShown, Meta(description="rules of exports of logs")]
    data_visibility: Annotated[VisibilityShown, Meta(description="whose logs people see; kept until there are logs")]
    disable_auto_provision_user: Annotated[
        bool, Meta(description="whether nobody is made a user by signing in at the identity provider")
    ]
    object: Object = "organisation-settings"


class OrganisationDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every workspace has unless it says otherwise; what is left out stays, null empties it."""

    input_guardrails: MaybeGuardrails = UNSET
    output_guardrails: MaybeGuardrails = UNSET


class DefaultsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of the organisation."""

    input_guardrails: Annotated[list[str], Meta(description="guardrails before each request")]
    output_guardrails: Annotated[list[str], Meta(description="guardrails after each answer")]
    object: Object = "organisation-defaults"


@get("/settings", guards=[needs("organisation_settings.read")], summary="Get organisation settings", tags=TAGS)
async def settings(work: NamedDependency[Work]) -> SettingsShown:
    """Give the rules that hold in all of the organisation."""
    async with work.reading() as desk:
        return _settings((await _row(desk))["settings"])


@put("/settings", guards=[needs("organisation_settings.update")], summary="Update organisation settings", tags=TAGS)
async def change_settings(data: JSONBody[SettingsChange], work: NamedDependency[Work]) -> SettingsShown:
    """Change rules; the data plane follows within a second."""
    async with work.writing() as desk:
        row = await _row(desk)
        before: dict[str, Any] = row["settings"]
        rules = written(data, before)
        if data.security_settings is not UNSET:
            rules[roles.FIELD] = roles.chosen(data.security_settings, before)
        if data.security_settings_overrides is not UNSET:
            rules[OVERRIDES] = _overrides(data.security_settings_overrides, before)
        await _pass_down(desk, before, rules)
        await ORGANISATION.change(desk, row, {"settings": rules})
        return _settings(rules)


@get("/defaults", guards=[needs("organisation_settings.read")], summary="Get organisation defaults", tags=TAGS)
async def defaults(work: NamedDependency[Work]) -> DefaultsShown:
    """Give what every workspace has unless it says otherwise."""
    async with work.reading() as desk:
        kept = (await _row(desk))["settings"].get("defaults", {})
        return DefaultsShown(**{name: kept.get(name, []) for name in ("input_guardrails", "output_guardrails")})


@put("/defaults", guards=[needs("organisation_settings.update")], summary="Update organisation defaults", tags=TAGS)
async def change_defaults(data: JSONBody[OrganisationDefaults], work: NamedDependency[Work]) -> Done:
    """Change defaults; what is left out stays."""
    async with work.writing() as desk:
        row = await _row(desk)
        rules = row["settings"]
        given: dict[str, list[str]] = {
            name: value or [] for name, value in msgspec.structs.asdict(data).items() if value is not UNSET
        }
        changed = {**rules, "defaults": {**rules.get("defaults", {}), **given}}
        await ORGANISATION.change(desk, row, {"settings": changed})
        return Done()


def _overrides(given: Mapping[Overridden, bool | None] | None, before: Mapping[str, Any]) -> dict[str, bool]:
    """Write what is left to workspaces over that of before; what was left out stays, null takes away what was said."""
    said: dict[str, bool | None] = {} if given is None else {**before.get(OVERRIDES, {}), **given}
    return {name: may for name, may in said.items() if may is not None}


async def _pass_down(desk: Desk, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Give workspaces what the organisation says in sections that they may choose from now on; nobody gives more than their own."""
    if all(before.get(name) == after.get(name) for name in (roles.FIELD, OVERRIDES)):
        return
    known, said = before.get(OVERRIDES, {}), after.get(OVERRIDES, {})
    opened = {name for name, may in said.items() if may and not known.get(name)}
    gained = roles.gained(roles.in_force({}, before), roles.in_force({}, after))
    for row in await desk.rows(select(workspaces), workspaces):
        settings = roles.passed_down(opened, row["settings"], after)
        if DATA_PLANE in opened:
            settings["block_inline_config"] = bool(after.get("block_inline_config"))
        gained |= roles.gained(roles.in_force(row["settings"], before), roles.in_force(settings, after))
        if settings != row["settings"]:
            await WORKSPACES.change(desk, row, {"settings": settings})
    desk.may_give(gained, None)


async def _row(desk: Desk) -> Row:
    return await ORGANISATION.get(desk, desk.organisation_id)


def _settings(rules: Mapping[str, Any]) -> SettingsShown:
    return SettingsShown(
        user_api_key_rotation_period=rules.get("user_api_key_rotation_period"),
        block_inline_config=rules.get("block_inline_config", False),
        user_api_key_ttl=rules.get("user_api_key_ttl"),
        session_settings=SessionsShown(session_ttl(rules)),
        security_settings=roles.shown({}, rules),
        security_settings_overrides=rules.get(OVERRIDES, {}),
        user_api_key_auto_create=rules.get("user_api_key_auto_create", False),
        default_workspace_user_api_key_auto_create=rules.get("default_workspace_user_api_key_auto_create", False),
        export_settings=ExportsShown(rules.get("export_settings", {}).get("deniedFields", [])),
        data_visibility=msgspec.convert(rules.get("data_visibility", {}), VisibilityShown),
        disable_auto_provision_user=rules.get("disable_auto_provision_user", False),
    )


routes = [settings, change_settings, defaults, change_defaults]
