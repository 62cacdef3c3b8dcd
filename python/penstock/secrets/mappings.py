"""Mappings from fields of an integration to secrets of a secret manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import msgspec
from msgspec import Meta
from sqlalchemy import select

from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.ids import TARGET_FIELD_PATTERN
from penstock.schemas import field_error, unknown_reference_error
from penstock.similar_names import describe_unknown
from penstock.store.tables import integrations, secret_references

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from penstock.authorization import Caller
    from penstock.store.tenant import Query, Row

OPTION_PREFIX = "configurations."
# Scope that a caller needs to decide where a secret is stored, and thus where it may be sent.
REFERENCE_SCOPE = "secret_references.update"


class CallerSession(Protocol):
    """What this module needs of a `TenantSession`, which is in a higher layer."""

    caller: Caller

    def organisation(self) -> Self:
        """Returns a session for the whole organisation."""
        ...

    async def fetch_rows(self, query: Query, *tables: Table) -> list[Row]:
        """Returns the rows of a query over these tables."""
        ...

    async def resolve_reference(
        self, path: str, table: Table, key: str, description: str, *conditions: ColumnElement[bool]
    ) -> Row:
        """Returns the row that a field of the body names; rejects the field if there is none."""
        ...


class SecretMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Maps one field to the secret that is its value."""

    target_field: Annotated[str, Meta(pattern=TARGET_FIELD_PATTERN, description="`key` or `configurations.…`")]
    secret_reference_id: Annotated[str, Meta(description="id or slug of the secret reference")]
    secret_key: Annotated[
        Annotated[str, Meta(max_length=255)] | None,
        Meta(description="field of a secret that is a JSON object; default: the one of the reference"),
    ] = None
    value_format: Annotated[
        Literal["json", "string"] | None, Meta(description="`json` if the value is an object; default: `string`")
    ] = None


async def check_mappings(
    session: CallerSession,
    fields: Sequence[SecretMapping],
    workspace_id: str | None,
    allowed: Sequence[str],
    before: Collection[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Validates mappings and returns them as stored: one for each field, each to an accessible secret. Mappings in
    `before`, the stored ones, stay allowed.
    """
    listed: list[dict[str, Any]] = []
    for index, mapping in enumerate(fields):
        path = f"secret_mappings[{index}]"
        if any(mapping.target_field == other["target_field"] for other in listed):
            raise field_error(f"{path}.target_field", f"{mapping.target_field!r} is mapped twice")
        if mapping.target_field != "key" and mapping.target_field.removeprefix(OPTION_PREFIX) not in allowed:
            names = ["key", *(f"{OPTION_PREFIX}{name}" for name in allowed)]
            reason = describe_unknown(mapping.target_field, names)
            raise field_error(f"{path}.target_field", f"{mapping.target_field!r} {reason}")
        reference_path, key, description = (
            f"{path}.secret_reference_id",
            mapping.secret_reference_id,
            "secret reference that this integration may use",
        )
        row = await session.organisation().resolve_reference(reference_path, secret_references, key, description)
        if not may_use_secret(row, workspace_id):
            raise unknown_reference_error(reference_path, f"{key!r} is no {description}")
        written = {**msgspec.to_builtins(mapping), "secret_reference_id": row["id"]}
        part = row["secret_key"]
        if part and written not in before and (mapping.secret_key or part) != part:
            require_reference_scope(
                session, f"{path}.secret_key", f"is not the field of the secret that {row['slug']!r} allows"
            )
        listed.append(written)
    return listed


def require_reference_scope(session: CallerSession, path: str, reason: str) -> None:
    """Raises ForbiddenError with this reason unless the caller may manage secret references."""
    if REFERENCE_SCOPE not in session.caller.granted_scopes(None):
        message = f"{reason}; hint: have it done by who holds {REFERENCE_SCOPE}"
        raise ForbiddenError(f"{path} {message}", [Problem(path, message)])


def mapped_options(listed: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the names of the options that secret mappings supply."""
    fields = (mapping["target_field"] for mapping in listed)
    return frozenset(name.removeprefix(OPTION_PREFIX) for name in fields if name.startswith(OPTION_PREFIX))


async def reject_reference_in_use(session: CallerSession, reference: Row) -> None:
    """Raises ConflictError if an integration uses the reference that is to be deleted."""
    query = select(integrations.c.slug, integrations.c.secret_mappings)
    for row in await session.organisation().fetch_rows(query, integrations):
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"]):
            raise ConflictError(f"the integration {row['slug']!r} uses this secret")


async def reject_removed_access(session: CallerSession, reference: Row) -> None:
    """Raises ConflictError if an integration that uses the reference would lose access to it."""
    query = select(integrations.c.slug, integrations.c.workspace_id, integrations.c.secret_mappings)
    needing = [
        row["slug"]
        for row in await session.organisation().fetch_rows(query.order_by(integrations.c.slug), integrations)
        if any(mapping["secret_reference_id"] == reference["id"] for mapping in row["secret_mappings"])
        and not may_use_secret(reference, row["workspace_id"])
    ]
    if needing:
        slugs = ", ".join(map(repr, needing))
        raise ConflictError(f"integrations use this secret and would lose access to it: {slugs}")


def may_use_secret(row: Mapping[str, Any], workspace_id: str | None) -> bool:
    """Returns true if an object of this workspace may use a secret of the organisation. `None` stands for an object of
    the organisation itself.
    """
    # An object of the organisation may not use a secret that is only for some workspaces, because any workspace can get
    # access to the object.
    return row["allow_all_workspaces"] or workspace_id in row["allowed_workspaces"]
