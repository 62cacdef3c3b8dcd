"""Fields that many bodies and answers have, with what the description says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.ids import EMAIL_PATTERN, END_OF_TEXT, MAX_EMAIL_LENGTH, SLUG_PATTERN
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
    "EmailFilter",
    "ExpiryStatus",
    "FirstName",
    "Guardrails",
    "Id",
    "IdOrSlug",
    "LastName",
    "Name",
    "Note",
    "ObjectType",
    "OptionalGuardrails",
    "OptionalName",
    "OptionalNote",
    "OptionalTags",
    "OptionalTimestamp",
    "OrganisationId",
    "OwnOrganisationId",
    "ResetUsage",
    "ResetUsageShown",
    "Slug",
    "Tags",
    "TagsFilter",
    "UnsetType",
    "UpdatedAt",
    "WorkspaceFilter",
    "WorkspaceId",
    "WorkspaceIdOrSlug",
    "tag_conditions",
]

_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Note = Annotated[str, Meta(max_length=2000)]

Id = Annotated[str, Meta(description="its id")]
Slug = Annotated[str, Meta(description="its slug")]
ObjectType = Annotated[str, Meta(description="what it is")]
Name = Annotated[str, Meta(min_length=1, max_length=255, description="what people call it")]
OptionalName = Annotated[_Name | UnsetType, Meta(description="what people call it")]
Note = Annotated[_Note | None, Meta(description="what it is for")]
OptionalNote = Annotated[_Note | UnsetType | None, Meta(description="what it is for; null takes it away")]
ChosenSlug = Annotated[
    Annotated[str, Meta(pattern=SLUG_PATTERN)] | None,
    Meta(description="its slug, which is no UUID; default: made of its name"),
]
CreatedAt = Annotated[str, Meta(description="when it was made, ISO 8601")]
UpdatedAt = Annotated[str, Meta(description="when it was changed last, ISO 8601")]
OptionalTimestamp = Annotated[str | None, Meta(description="a moment in ISO 8601")]
WorkspaceIdOrSlug = Annotated[
    str | None, Meta(description="id or slug of the workspace; needed with an organisation's key")
]
OrganisationId = Annotated[str, Meta(description="id of its organisation")]
OwnOrganisationId = Annotated[str | None, Meta(description="id of the organisation, which is the caller's own")]
WorkspaceId = Annotated[str, Meta(description="id of its workspace")]
CreatedBy = Annotated[str | None, Meta(description="id of the user or key that made it")]
ExpiryStatus = Annotated[str, Meta(description="`active`, `exhausted` or `expired`")]
ArchiveStatus = Annotated[str, Meta(description="`active` or `archived`")]
ResetUsage = Annotated[bool, Meta(description="begin counting anew now")]
ResetUsageShown = Annotated[int | None, Meta(description="always null; to reset is a write")]
FirstName = Annotated[str, Meta(description="first name")]
LastName = Annotated[str, Meta(description="last name")]
EmailFilter = Annotated[str | None, QueryParameter(description="only the one with this e-mail address")]
Email = Annotated[str, Meta(pattern=EMAIL_PATTERN, max_length=MAX_EMAIL_LENGTH, description="e-mail address")]
IdOrSlug = Annotated[str, PathParameter(description="id or slug")]
WorkspaceFilter = Annotated[str | None, QueryParameter(description="id or slug of the workspace")]
_Guardrails = Annotated[list[Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,255}" + END_OF_TEXT)]], Meta(max_length=100)]
Guardrails = Annotated[_Guardrails | None, Meta(description="ids or slugs of guardrails")]
OptionalGuardrails = Annotated[_Guardrails | UnsetType | None, Meta(description="ids or slugs of guardrails")]
_Tag = Annotated[str, Meta(max_length=255)]
_Tags = Annotated[dict[_Tag, _Tag], Meta(max_length=64)]
Tags = Annotated[_Tags, Meta(description="keys with values")]
OptionalTags = Annotated[_Tags | UnsetType, Meta(description="keys with values; they replace those of before")]
TagsFilter = Annotated[str | None, QueryParameter(description="only those with these tags: `key:value`, with commas")]


def tag_conditions(table: Table, asked: str | None) -> list[ColumnElement[bool]]:
    """Say which rows have all the tags that were asked for."""
    conditions: list[ColumnElement[bool]] = []
    for part in (asked or "").split(",") if asked else []:
        key, colon, value = part.strip().partition(":")
        if not key or not colon:
            raise field_error("tags", f"{part!r} is not allowed: expected key:value")
        conditions.append(table.c.tags[key].as_string() == value)
    return conditions
