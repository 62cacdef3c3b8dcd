"""Shared field types of request and response bodies, with their OpenAPI descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from penstock.ids import EMAIL_PATTERN, ID_PATTERN, MAX_EMAIL_LENGTH, SLUG_PATTERN
from penstock.schemas import field_error

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

__all__ = [
    "UNSET",
    "ArchiveStatus",
    "ChosenSlug",
    "CreatedAt",
    "CreatedBy",
    "Email",
    "ExpiryStatus",
    "FirstName",
    "GuardrailReference",
    "Guardrails",
    "Id",
    "LastName",
    "Name",
    "NewStatus",
    "Note",
    "ObjectType",
    "OptionalName",
    "OptionalNote",
    "OptionalTags",
    "OptionalTimestamp",
    "OrganisationId",
    "OwnOrganisationId",
    "ResetUsageShown",
    "Slug",
    "Tags",
    "UnsetType",
    "UpdatedAt",
    "WorkspaceId",
    "WorkspaceIdOrSlug",
    "tag_conditions",
]

_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Note = Annotated[str, Meta(max_length=2000)]

Id = Annotated[str, Meta(description="its id")]
Slug = Annotated[str, Meta(description="its slug")]
ObjectType = Annotated[str, Meta(description="type of the object")]
Name = Annotated[str, Meta(min_length=1, max_length=255, description="display name")]
OptionalName = Annotated[_Name | UnsetType, Meta(description="display name")]
Note = Annotated[_Note | None, Meta(description="description")]
OptionalNote = Annotated[_Note | UnsetType | None, Meta(description="description; null removes it")]
ChosenSlug = Annotated[
    Annotated[str, Meta(pattern=SLUG_PATTERN)] | None,
    Meta(description="its slug, which must not be a UUID; default: derived from its name"),
]
CreatedAt = Annotated[str, Meta(description="creation time, ISO 8601")]
UpdatedAt = Annotated[str, Meta(description="time of the last change, ISO 8601")]
OptionalTimestamp = Annotated[str | None, Meta(description="a moment in ISO 8601")]
WorkspaceIdOrSlug = Annotated[
    str | None, Meta(description="id or slug of the workspace; required with a key of the organisation")
]
OrganisationId = Annotated[str, Meta(description="id of its organisation")]
OwnOrganisationId = Annotated[str | None, Meta(description="id of the organisation, which must be the caller's own")]
WorkspaceId = Annotated[str, Meta(description="id of its workspace")]
CreatedBy = Annotated[str | None, Meta(description="id of the user or key that created it")]
ExpiryStatus = Annotated[str, Meta(description="`active`, `exhausted` or `expired`")]
ArchiveStatus = Annotated[str, Meta(description="`active` or `archived`")]
NewStatus = Annotated[
    Literal["active", "archived"], Meta(description="`archived`: it cannot be used until it is active")
]
ResetUsageShown = Annotated[int | None, Meta(description="always null; resetting is a write")]
FirstName = Annotated[str, Meta(description="first name")]
LastName = Annotated[str, Meta(description="last name")]
Email = Annotated[str, Meta(pattern=EMAIL_PATTERN, max_length=MAX_EMAIL_LENGTH, description="e-mail address")]
GuardrailReference = Annotated[str, Meta(pattern=ID_PATTERN)]
_Guardrails = Annotated[list[GuardrailReference], Meta(max_length=100)]
Guardrails = Annotated[
    _Guardrails | None, Meta(description="ids or slugs of guardrails of the workspace or its organisation")
]
_Tag = Annotated[str, Meta(max_length=255)]
_Tags = Annotated[dict[_Tag, _Tag], Meta(max_length=64)]
Tags = Annotated[_Tags, Meta(description="pairs of key and value")]
OptionalTags = Annotated[_Tags | UnsetType, Meta(description="pairs of key and value; they replace the stored ones")]


def tag_conditions(table: Table, requested_tags: str | None) -> list[ColumnElement[bool]]:
    """Returns SQL conditions for rows that have all requested tags; raises InvalidError if a tag is malformed."""
    conditions: list[ColumnElement[bool]] = []
    for part in (requested_tags or "").split(",") if requested_tags else []:
        key, colon, value = part.strip().partition(":")
        if not key or not colon:
            raise field_error("tags", f"{part!r} is not allowed: expected key:value")
        conditions.append(table.c.tags[key].as_string() == value)
    return conditions
