"""Rules that an organisation and its workspaces set for everything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.schemas import refuse
from penstock.store.tables import organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Tenant

WORDS = {"weekly": 7, "monthly": 30}
SHORTEST_SESSION = 900
# Whoever signed in longer ago must do so again, whatever an organisation says.
LONGEST_SESSION = 366 * 24 * 3600
# Of an organisation that says nothing.
USUAL_SESSION = 12 * 3600

Period = Annotated[
    Annotated[int, Meta(ge=1, le=365)] | Literal["weekly", "monthly"] | UnsetType | None,
    Meta(description="days after which the keys of people are rotated; `weekly` is 7, `monthly` 30, null: never"),
]
BlocksInline = Annotated[
    bool | UnsetType | None,
    Meta(
        description="refuse requests that choose a provider, endpoint or config inline; what is saved stays allowed; null: no rule"
    ),
]
# Ten years: a key that is to last longer needs no end.
LONGEST_KEY = 10 * 366 * 24 * 3600
Seconds = Annotated[int, Meta(ge=1, le=LONGEST_KEY)]
Ttl = Annotated[
    Seconds | UnsetType | None,
    Meta(description="seconds after which a key of a person ends that is made without expires_at; null: no rule"),
]
LongestTtl = Annotated[
    Seconds | UnsetType | None,
    Meta(description="seconds for which a key of a person may be good at most, from when it was made; null: no rule"),
]
Most = Annotated[
    Annotated[int, Meta(ge=-1, le=1_000_000)] | UnsetType | None,
    Meta(description="keys that each person may have here at a time; -1: as many as they like"),
]
UserMetadata = Annotated[
    dict[str, str] | UnsetType | None, Meta(description="metadata of every key of a person that is made or changed")
]
Flag = Annotated[int, Meta(ge=0, le=1)]
MakesKeys = Annotated[
    bool | UnsetType | None,
    Meta(
        description="whether people who come into a workspace are given a key there; who accepts an invitation is shown it, that of others waits for who rotates it; null: no rule"
    ),
]
# Which sections of its security settings an organisation leaves to workspaces, and the section of `block_inline_config`.
OVERRIDES, DATA_PLANE = "security_settings_overrides", "data_plane_security_settings"
# Rules that a workspace has of its organisation where it says nothing itself.
INHERITED = ("user_api_key_rotation_period", "user_api_key_ttl")


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules as an organisation and a workspace set them."""

    user_api_key_rotation_period: Period = UNSET
    block_inline_config: BlocksInline = UNSET
    user_api_key_ttl: Ttl = UNSET
    user_api_key_auto_create: MakesKeys = UNSET


class WorkspaceRules(Rules, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules as a workspace sets them."""

    user_api_key_max_ttl: LongestTtl = UNSET
    user_api_key_count: Most = UNSET
    user_key_metadata: UserMetadata = UNSET
    user_key_metadata_override: Annotated[
        Flag | UnsetType | None,
        Meta(description="1: a key's own metadata goes before user_key_metadata; 0: after it; default: 1"),
    ] = UNSET
    debug_log: Annotated[
        Flag | UnsetType | None,
        Meta(
            description="0: records of requests made here keep figures alone, whatever these say; 1, or null: unless they say x-gateway-debug: false"
        ),
    ] = UNSET


def written(rules: Rules, before: Mapping[str, Any]) -> dict[str, Any]:
    """Write rules over those of before; what was left out stays, and null takes a rule away."""
    values = dict(before)
    for name in rules.__struct_fields__:
        given = getattr(rules, name)
        if given is not UNSET:
            plain = msgspec.to_builtins(given)
            values[name] = WORDS.get(plain, plain) if isinstance(plain, str) else plain
    kept = {name: value for name, value in values.items() if value is not None}
    usual, longest = kept.get("user_api_key_ttl"), kept.get("user_api_key_max_ttl")
    if usual and longest and usual > longest:
        raise refuse("settings.user_api_key_ttl", f"is {usual}: more than user_api_key_max_ttl, which is {longest}")
    return kept


def blocks_inline(own: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Whether what is chosen inline is refused in a workspace, by its rules and those of its organisation."""
    name = "block_inline_config"
    theirs = bool(above.get(name))
    is_left = above.get(OVERRIDES, {}).get(DATA_PLANE)
    if is_left is None:
        # Either may forbid; neither may allow what the other forbids.
        return theirs or bool(own.get(name))
    return bool(own.get(name, theirs)) if is_left else theirs


async def makes_keys(tenant: Tenant, workspace: Mapping[str, Any]) -> bool:
    """Whether people who come into a workspace are given a key there."""
    name = "user_api_key_auto_create"
    above = await of_organisation(tenant)
    usual = above.get(f"default_workspace_{name}" if workspace["is_default"] else name, False)
    return workspace["settings"].get(name, usual)


async def in_force(tenant: Tenant, workspace_id: str | None) -> dict[str, Any]:
    """Give the rules of a workspace, and those of the organisation where it says nothing itself."""
    above = await of_organisation(tenant)
    row = await tenant.find(workspaces, workspace_id) if workspace_id else None
    return {**{name: above[name] for name in INHERITED if name in above}, **(row["settings"] if row else {})}


async def of_organisation(tenant: Tenant) -> dict[str, Any]:
    """Give the rules of the organisation."""
    query = select(organisations.c.settings).where(organisations.c.id == tenant.organisation_id)
    return await tenant.connection.scalar(query) or {}
