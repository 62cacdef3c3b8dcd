"""Fields of an integration whose values are kept by a secret manager: which field, which secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.ids import END
from penstock.schemas import refuse, unknown
from penstock.store.tables import integrations, secret_references

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

BELOW = "configurations."
# Whoever holds it says where a secret is kept, and so where it may go.
RIGHT = "secret_references.update"


class SecretMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One field, and the secret that is its value."""

    target_field: Annotated[
        str, Meta(pattern=rf"^(key|configurations\.[a-z0-9_]+){END}", description="`key` or `configurations.…`")
    ]
    secret_reference_id: Annotated[str, Meta(description="id or slug of the secret reference")]
    secret_key: Annotated[
        Annotated[str, Meta(max_length=255)] | None,
        Meta(description="which part of a secret that is a JSON object; default: what the reference says"),
    ] = None
    value_format: Annotated[
        Literal["json", "string"] | None, Meta(description="`json` where the value is an object; default: `string`")
    ] = None


async def checked(
    desk: Desk,
    given: Sequence[SecretMapping],
    workspace_id: str | None,
    allowed: Sequence[str],
    before: Collection[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Check that each field is given once, by a secret that may be used there, and write it down; what was `before` stays."""
    listed: list[dict[str, Any]] = []
    for index, mapping in enumerate(given):
        path = f"secret_mappings[{index}]"
        if any(mapping.target_field == other["target_field"] for other in listed):
            raise refuse(f"{path}.target_field", f"{mapping.target_field!r} is there twice")
        if mapping.target_field != "key" and mapping.target_field.removeprefix(BELOW) not in allowed:
            names = ", ".join(["key", *(f"{BELOW}{name}" for name in allowed)])
            raise refuse(f"{path}.target_field", f"{mapping.target_field!r} is not known here; allowed: {names}")
        where, key, words = (
            f"{path}.secret_reference_id",
            mapping.secret_reference_id,
            "secret reference that is open here",
        )
        row = await desk.organisation().refer(where, secret_references, key, words)
        if not _open(row, workspace_id):
            raise unknown(where, f"{key!r} is no {words}")
        written = {**msgspec.to_builtins(mapping), "secret_reference_id": row["id"]}
        part = row["secret_key"]
        if part and written not in before and (mapping.secret_key or part) != part:
            require(desk, f"{path}.secret_key", f"is not the part of the secret that {row['slug']!r} gives")
        listed.append(written)
    return listed


def require(desk: Desk, path: str, why: str) -> None:
    """Refuse with a reason what only those may do who say where secrets are kept."""
    if RIGHT not in desk.caller.grants(None):
        words = f"{why}; hint: have it done by who holds {RIGHT}"
        raise ForbiddenError(f"{path} {words}", [Problem(path, words)])


def fields(listed: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Name the configurations that come from elsewhere."""
    found = (mapping["target_field"] for mapping in listed)
    return frozenset(name.removeprefix(BELOW) for name in found if name.startswith(BELOW))


async def refuse_needed(desk: Desk, reference: Row) -> None:
    """Refuse to let go of a reference that an integration needs."""
    query = select(integrations.c.slug, integrations.c.secret_mappings)
    for row in await desk.organisation().rows(query, integrations):
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"]):
            raise ConflictError(f"the integration {row['slug']!r} needs this secret")


async def refuse_shut_out(desk: Desk, reference: Row) -> None:
    """Refuse to take a reference away from integrations that need it."""
    query = select(integrations.c.slug, integrations.c.workspace_id, integrations.c.secret_mappings)
    needing = [
        row["slug"]
        for row in await desk.organisation().rows(query.order_by(integrations.c.slug), integrations)
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"])
        and not _open(reference, row["workspace_id"])
    ]
    if needing:
        named = ", ".join(map(repr, needing))
        raise ConflictError(f"integrations need this secret that could not use it any more: {named}")


def _open(row: Row, workspace_id: str | None) -> bool:
    # What is for some workspaces alone is not for an integration that any may be given.
    return row["allow_all_workspaces"] or workspace_id in row["allowed_workspaces"]
