"""Fields of an integration whose values are kept by a secret manager: which field, which secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.ids import END_OF_TEXT
from penstock.schemas import field_error, unknown_reference_error
from penstock.store.tables import integrations, secret_references

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

OPTION_PREFIX = "configurations."
# Whoever holds it says where a secret is kept, and so where it may go.
REFERENCE_SCOPE = "secret_references.update"


class SecretMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One field, and the secret that is its value."""

    target_field: Annotated[
        str, Meta(pattern=rf"^(key|configurations\.[a-z0-9_]+){END_OF_TEXT}", description="`key` or `configurations.…`")
    ]
    secret_reference_id: Annotated[str, Meta(description="id or slug of the secret reference")]
    secret_key: Annotated[
        Annotated[str, Meta(max_length=255)] | None,
        Meta(description="which part of a secret that is a JSON object; default: what the reference says"),
    ] = None
    value_format: Annotated[
        Literal["json", "string"] | None, Meta(description="`json` where the value is an object; default: `string`")
    ] = None


async def check_mappings(
    desk: TenantSession,
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
            raise field_error(f"{path}.target_field", f"{mapping.target_field!r} is there twice")
        if mapping.target_field != "key" and mapping.target_field.removeprefix(OPTION_PREFIX) not in allowed:
            names = ", ".join(["key", *(f"{OPTION_PREFIX}{name}" for name in allowed)])
            raise field_error(f"{path}.target_field", f"{mapping.target_field!r} is not known here; allowed: {names}")
        where, key, words = (
            f"{path}.secret_reference_id",
            mapping.secret_reference_id,
            "secret reference that is open here",
        )
        row = await desk.organisation().resolve_reference(where, secret_references, key, words)
        if not _is_accessible(row, workspace_id):
            raise unknown_reference_error(where, f"{key!r} is no {words}")
        written = {**msgspec.to_builtins(mapping), "secret_reference_id": row["id"]}
        part = row["secret_key"]
        if part and written not in before and (mapping.secret_key or part) != part:
            require_reference_scope(
                desk, f"{path}.secret_key", f"is not the part of the secret that {row['slug']!r} gives"
            )
        listed.append(written)
    return listed


def require_reference_scope(desk: TenantSession, path: str, why: str) -> None:
    """Refuse with a reason what only those may do who say where secrets are kept."""
    if REFERENCE_SCOPE not in desk.caller.granted_scopes(None):
        words = f"{why}; hint: have it done by who holds {REFERENCE_SCOPE}"
        raise ForbiddenError(f"{path} {words}", [Problem(path, words)])


def mapped_options(listed: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Name the configurations that come from elsewhere."""
    found = (mapping["target_field"] for mapping in listed)
    return frozenset(name.removeprefix(OPTION_PREFIX) for name in found if name.startswith(OPTION_PREFIX))


async def reject_reference_in_use(desk: TenantSession, reference: Row) -> None:
    """Refuse to let go of a reference that an integration needs."""
    query = select(integrations.c.slug, integrations.c.secret_mappings)
    for row in await desk.organisation().fetch_rows(query, integrations):
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"]):
            raise ConflictError(f"the integration {row['slug']!r} needs this secret")


async def reject_lost_access(desk: TenantSession, reference: Row) -> None:
    """Refuse to take a reference away from integrations that need it."""
    query = select(integrations.c.slug, integrations.c.workspace_id, integrations.c.secret_mappings)
    needing = [
        row["slug"]
        for row in await desk.organisation().fetch_rows(query.order_by(integrations.c.slug), integrations)
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"])
        and not _is_accessible(reference, row["workspace_id"])
    ]
    if needing:
        named = ", ".join(map(repr, needing))
        raise ConflictError(f"integrations need this secret that could not use it any more: {named}")


def _is_accessible(row: Row, workspace_id: str | None) -> bool:
    # What is for some workspaces alone is not for an integration that any may be given.
    return row["allow_all_workspaces"] or workspace_id in row["allowed_workspaces"]
