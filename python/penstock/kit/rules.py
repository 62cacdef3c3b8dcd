"""Rules that an organisation and its workspaces set for everything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.store.tables import organisations

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


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules as a workspace sets them."""

    user_api_key_rotation_period: Period = UNSET
    block_inline_config: BlocksInline = UNSET


def written(rules: Rules, before: Mapping[str, Any]) -> dict[str, Any]:
    """Write rules over those of before; what was left out stays, and null takes a rule away."""
    values = dict(before)
    for name in rules.__struct_fields__:
        given = getattr(rules, name)
        if given is not UNSET:
            plain = msgspec.to_builtins(given)
            values[name] = WORDS.get(plain, plain) if isinstance(plain, str) else plain
    return {name: value for name, value in values.items() if value is not None}


async def of_organisation(tenant: Tenant) -> dict[str, Any]:
    """Give the rules of the organisation."""
    query = select(organisations.c.settings).where(organisations.c.id == tenant.organisation_id)
    return await tenant.connection.scalar(query) or {}
