"""Rules for keys, sessions and requests that organisations and workspaces set for everything inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.access.default_metadata import check_default_metadata
from penstock.schemas import field_error
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import TenantStore

PERIOD_DAYS = {"weekly": 7, "monthly": 30}
MIN_SESSION_SECONDS = 900
# Maximum lifetime of a session, regardless of the organisation's settings.
MAX_SESSION_SECONDS = 366 * 24 * 3600
# Session lifetime if the organisation sets none.
DEFAULT_SESSION_SECONDS = 12 * 3600

RotationPeriod = Annotated[
    Annotated[int, Meta(ge=1, le=365)] | Literal["weekly", "monthly"] | UnsetType | None,
    Meta(description="days after which keys of users are rotated; `weekly` is 7, `monthly` 30, null: never"),
]
BlockInlineConfig = Annotated[
    bool | UnsetType | None,
    Meta(
        description="reject requests that choose a provider, endpoint or config inline; saved configs and providers stay allowed; null: no rule"
    ),
]
# Maximum lifetime of a key with an expiry: ten years. A key for a longer time does not need an expiry.
MAX_KEY_SECONDS = 10 * 366 * 24 * 3600
KeyLifetimeSeconds = Annotated[int, Meta(ge=1, le=MAX_KEY_SECONDS)]
DefaultKeyTtl = Annotated[
    KeyLifetimeSeconds | UnsetType | None,
    Meta(description="seconds until a user's key expires if it is created without expires_at; null: no rule"),
]
MaxKeyTtl = Annotated[
    KeyLifetimeSeconds | UnsetType | None,
    Meta(description="maximum lifetime of a user's key in seconds, counted from its creation; null: no rule"),
]
MaxKeyCount = Annotated[
    Annotated[int, Meta(ge=-1, le=1_000_000)] | UnsetType | None,
    Meta(description="maximum number of keys that each user may have in this workspace; -1: unlimited"),
]
UserKeyMetadata = Annotated[
    dict[str, str] | UnsetType | None, Meta(description="metadata that every created or updated key of a user has")
]
BinaryFlag = Annotated[int, Meta(ge=0, le=1)]
AutoCreateKeys = Annotated[
    bool | UnsetType | None,
    Meta(
        description="create a key for each user who joins a workspace; a user who accepts an invitation sees the key, keys of other users must be rotated to be seen; null: no rule"
    ),
]
# Settings field of an organisation: for each security section, true if workspaces may change it.
OVERRIDES = "security_settings_overrides"
# Security section that contains the setting `block_inline_config`.
DATA_PLANE = "data_plane_security_settings"
# Rules that a workspace inherits from its organisation unless it sets them itself.
INHERITED_RULES = ("user_api_key_rotation_period", "user_api_key_ttl")


class SharedTenantRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules that both organisations and workspaces can set."""

    user_api_key_rotation_period: RotationPeriod = UNSET
    block_inline_config: BlockInlineConfig = UNSET
    user_api_key_ttl: DefaultKeyTtl = UNSET
    user_api_key_auto_create: AutoCreateKeys = UNSET


class WorkspaceRules(SharedTenantRules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules that a workspace can set."""

    user_api_key_max_ttl: MaxKeyTtl = UNSET
    user_api_key_count: MaxKeyCount = UNSET
    user_key_metadata: UserKeyMetadata = UNSET
    user_key_metadata_override: Annotated[
        BinaryFlag | UnsetType | None,
        Meta(
            description="1: the metadata of the key takes precedence over user_key_metadata; 0: user_key_metadata takes precedence; default: 1"
        ),
    ] = UNSET
    debug_log: Annotated[
        BinaryFlag | UnsetType | None,
        Meta(
            description="0: request records of this workspace never contain request and response contents; 1 or null: they do, unless a request sends x-gateway-debug: false"
        ),
    ] = UNSET


def merge_rules(rules: SharedTenantRules, before: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the sent rules into the stored ones. Omitted rules stay, and null removes a rule."""
    values = dict(before)
    for name in rules.__struct_fields__:
        value = getattr(rules, name)
        if value is not UNSET:
            plain = msgspec.to_builtins(value)
            values[name] = PERIOD_DAYS.get(plain, plain) if isinstance(plain, str) else plain
    merged = {name: value for name, value in values.items() if value is not None}
    if isinstance(rules, WorkspaceRules) and rules.user_key_metadata:
        check_default_metadata("settings.user_key_metadata", rules.user_key_metadata)
    default_ttl, max_ttl = merged.get("user_api_key_ttl"), merged.get("user_api_key_max_ttl")
    if default_ttl and max_ttl and default_ttl > max_ttl:
        raise field_error(
            "settings.user_api_key_ttl", f"is {default_ttl}: must not exceed user_api_key_max_ttl, which is {max_ttl}"
        )
    return merged


def blocks_inline_config(settings: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Returns true if requests in a workspace may not choose configs, providers or endpoints inline. Combines the rules
    of the workspace and its organisation.
    """
    name = "block_inline_config"
    is_organisation_blocked = bool(above.get(name))
    is_workspace_choice = above.get(OVERRIDES, {}).get(DATA_PLANE)
    if is_workspace_choice is None:
        # If the organisation does not decide who chooses, it and the workspace must both allow inline configs.
        return is_organisation_blocked or bool(settings.get(name))
    return bool(settings.get(name, is_organisation_blocked)) if is_workspace_choice else is_organisation_blocked


async def auto_creates_keys(tenant: TenantStore, workspace: Mapping[str, Any]) -> bool:
    """Returns true if users who join a workspace get a key there."""
    name = "user_api_key_auto_create"
    above = await organisation_rules(tenant)
    default = above.get(f"default_workspace_{name}" if workspace["is_default"] else name, False)
    return workspace["settings"].get(name, default)


async def effective_rules(tenant: TenantStore, workspace_id: str | None) -> dict[str, Any]:
    """Returns the rules of a workspace. Rules that it does not set are inherited from the organisation."""
    above = await organisation_rules(tenant)
    row = await tenant.find(workspaces, workspace_id) if workspace_id else None
    return {**{name: above[name] for name in INHERITED_RULES if name in above}, **(row["settings"] if row else {})}


async def organisation_rules(tenant: TenantStore) -> dict[str, Any]:
    """Returns the rules of the organisation."""
    query = select(organisations.c.settings).where(organisations.c.id == tenant.organisation_id)
    return await tenant.connection.scalar(query) or {}
