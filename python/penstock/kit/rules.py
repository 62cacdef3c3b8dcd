"""Rules that an organisation and its workspaces set for everything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.schemas import field_error
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import TenantStore

PERIOD_DAYS = {"weekly": 7, "monthly": 30}
MIN_SESSION_SECONDS = 900
# Whoever signed in longer ago must do so again, whatever an organisation says.
MAX_SESSION_SECONDS = 366 * 24 * 3600
# Of an organisation that says nothing.
DEFAULT_SESSION_SECONDS = 12 * 3600

RotationPeriod = Annotated[
    Annotated[int, Meta(ge=1, le=365)] | Literal["weekly", "monthly"] | UnsetType | None,
    Meta(description="days after which the keys of people are rotated; `weekly` is 7, `monthly` 30, null: never"),
]
BlockInlineConfig = Annotated[
    bool | UnsetType | None,
    Meta(
        description="refuse requests that choose a provider, endpoint or config inline; what is saved stays allowed; null: no rule"
    ),
]
# Ten years: a key that is to last longer needs no end.
MAX_KEY_SECONDS = 10 * 366 * 24 * 3600
KeyLifetimeSeconds = Annotated[int, Meta(ge=1, le=MAX_KEY_SECONDS)]
DefaultKeyTtl = Annotated[
    KeyLifetimeSeconds | UnsetType | None,
    Meta(description="seconds after which a key of a person ends that is made without expires_at; null: no rule"),
]
MaxKeyTtl = Annotated[
    KeyLifetimeSeconds | UnsetType | None,
    Meta(description="seconds for which a key of a person may be good at most, from when it was made; null: no rule"),
]
MaxKeyCount = Annotated[
    Annotated[int, Meta(ge=-1, le=1_000_000)] | UnsetType | None,
    Meta(description="keys that each person may have here at a time; -1: as many as they like"),
]
UserKeyMetadata = Annotated[
    dict[str, str] | UnsetType | None, Meta(description="metadata of every key of a person that is made or changed")
]
BinaryFlag = Annotated[int, Meta(ge=0, le=1)]
AutoCreateKeys = Annotated[
    bool | UnsetType | None,
    Meta(
        description="whether people who come into a workspace are given a key there; who accepts an invitation is shown it, that of others waits for who rotates it; null: no rule"
    ),
]
# Which sections of its security settings an organisation leaves to workspaces, and the section of `block_inline_config`.
OVERRIDES, DATA_PLANE = "security_settings_overrides", "data_plane_security_settings"
# Rules that a workspace has of its organisation where it says nothing itself.
INHERITED_RULES = ("user_api_key_rotation_period", "user_api_key_ttl")


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules as an organisation and a workspace set them."""

    user_api_key_rotation_period: RotationPeriod = UNSET
    block_inline_config: BlockInlineConfig = UNSET
    user_api_key_ttl: DefaultKeyTtl = UNSET
    user_api_key_auto_create: AutoCreateKeys = UNSET


class WorkspaceRules(Rules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules as a workspace sets them."""

    user_api_key_max_ttl: MaxKeyTtl = UNSET
    user_api_key_count: MaxKeyCount = UNSET
    user_key_metadata: UserKeyMetadata = UNSET
    user_key_metadata_override: Annotated[
        BinaryFlag | UnsetType | None,
        Meta(description="1: a key's own metadata goes before user_key_metadata; 0: after it; default: 1"),
    ] = UNSET
    debug_log: Annotated[
        BinaryFlag | UnsetType | None,
        Meta(
            description="0: records of requests made here keep figures alone, whatever these say; 1, or null: unless they say x-gateway-debug: false"
        ),
    ] = UNSET


def merge_rules(rules: Rules, before: Mapping[str, Any]) -> dict[str, Any]:
    """Write rules over those of before; what was left out stays, and null takes a rule away."""
    values = dict(before)
    for name in rules.__struct_fields__:
        given = getattr(rules, name)
        if given is not UNSET:
            plain = msgspec.to_builtins(given)
            values[name] = PERIOD_DAYS.get(plain, plain) if isinstance(plain, str) else plain
    kept = {name: value for name, value in values.items() if value is not None}
    usual, longest = kept.get("user_api_key_ttl"), kept.get("user_api_key_max_ttl")
    if usual and longest and usual > longest:
        raise field_error(
            "settings.user_api_key_ttl", f"is {usual}: more than user_api_key_max_ttl, which is {longest}"
        )
    return kept


def blocks_inline_config(own: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Whether what is chosen inline is refused in a workspace, by its rules and those of its organisation."""
    name = "block_inline_config"
    theirs = bool(above.get(name))
    is_left = above.get(OVERRIDES, {}).get(DATA_PLANE)
    if is_left is None:
        # Either may forbid; neither may allow what the other forbids.
        return theirs or bool(own.get(name))
    return bool(own.get(name, theirs)) if is_left else theirs


async def auto_creates_keys(tenant: TenantStore, workspace: Mapping[str, Any]) -> bool:
    """Whether people who come into a workspace are given a key there."""
    name = "user_api_key_auto_create"
    above = await organisation_rules(tenant)
    usual = above.get(f"default_workspace_{name}" if workspace["is_default"] else name, False)
    return workspace["settings"].get(name, usual)


async def effective_rules(tenant: TenantStore, workspace_id: str | None) -> dict[str, Any]:
    """Give the rules of a workspace, and those of the organisation where it says nothing itself."""
    above = await organisation_rules(tenant)
    row = await tenant.find(workspaces, workspace_id) if workspace_id else None
    return {**{name: above[name] for name in INHERITED_RULES if name in above}, **(row["settings"] if row else {})}


async def organisation_rules(tenant: TenantStore) -> dict[str, Any]:
    """Give the rules of the organisation."""
    query = select(organisations.c.settings).where(organisations.c.id == tenant.organisation_id)
    return await tenant.connection.scalar(query) or {}
