"""Fields that many bodies and answers have, with what the description says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.ids import CHOSEN_SLUG, EMAIL, END, LONGEST_EMAIL
from penstock.schemas import refuse

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

__all__ = [
    "UNSET",
    "Changed",
    "Email",
    "EmailAsked",
    "FirstName",
    "Guardrails",
    "Home",
    "Id",
    "IdOrSlug",
    "Kept",
    "LastName",
    "Life",
    "Maker",
    "MaybeGuardrails",
    "MaybeName",
    "MaybeNote",
    "MaybeTags",
    "Moment",
    "MomentOrNone",
    "Name",
    "Note",
    "Object",
    "Organisation",
    "OwnOrganisation",
    "OwnSlug",
    "Reset",
    "ResetShown",
    "Slug",
    "Tags",
    "TagsAsked",
    "UnsetType",
    "Workspace",
    "WorkspaceAsked",
    "tagged",
]

_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Note = Annotated[str, Meta(max_length=2000)]

Id = Annotated[str, Meta(description="its id")]
Slug = Annotated[str, Meta(description="its slug")]
Object = Annotated[str, Meta(description="what it is")]
Name = Annotated[str, Meta(min_length=1, max_length=255, description="what people call it")]
MaybeName = Annotated[_Name | UnsetType, Meta(description="what people call it")]
Note = Annotated[_Note | None, Meta(description="what it is for")]
MaybeNote = Annotated[_Note | UnsetType | None, Meta(description="what it is for; null takes it away")]
OwnSlug = Annotated[
    Annotated[str, Meta(pattern=CHOSEN_SLUG)] | None,
    Meta(description="its slug, which is no UUID; default: made of its name"),
]
Moment = Annotated[str, Meta(description="when it was made, ISO 8601")]
Changed = Annotated[str, Meta(description="when it was changed last, ISO 8601")]
MomentOrNone = Annotated[str | None, Meta(description="a moment in ISO 8601")]
Workspace = Annotated[str | None, Meta(description="id or slug of the workspace; needed with an organisation's key")]
Organisation = Annotated[str, Meta(description="id of its organisation")]
OwnOrganisation = Annotated[str | None, Meta(description="id of the organisation, which is the caller's own")]
Home = Annotated[str, Meta(description="id of its workspace")]
Maker = Annotated[str | None, Meta(description="id of the user or key that made it")]
Life = Annotated[str, Meta(description="`active`, `exhausted` or `expired`")]
Kept = Annotated[str, Meta(description="`active` or `archived`")]
Reset = Annotated[bool, Meta(description="begin counting anew now")]
ResetShown = Annotated[int | None, Meta(description="always null; to reset is a write")]
FirstName = Annotated[str, Meta(description="first name")]
LastName = Annotated[str, Meta(description="last name")]
EmailAsked = Annotated[str | None, QueryParameter(description="only the one with this e-mail address")]
Email = Annotated[str, Meta(pattern=EMAIL, max_length=LONGEST_EMAIL, description="e-mail address")]
IdOrSlug = Annotated[str, PathParameter(description="id or slug")]
WorkspaceAsked = Annotated[str | None, QueryParameter(description="id or slug of the workspace")]
_Guardrails = Annotated[list[Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,255}" + END)]], Meta(max_length=100)]
Guardrails = Annotated[_Guardrails | None, Meta(description="ids or slugs of guardrails")]
MaybeGuardrails = Annotated[_Guardrails | UnsetType | None, Meta(description="ids or slugs of guardrails")]
_Tag = Annotated[str, Meta(max_length=255)]
_Tags = Annotated[dict[_Tag, _Tag], Meta(max_length=64)]
Tags = Annotated[_Tags, Meta(description="keys with values")]
MaybeTags = Annotated[_Tags | UnsetType, Meta(description="keys with values; they replace those of before")]
TagsAsked = Annotated[str | None, QueryParameter(description="only those with these tags: `key:value`, with commas")]


def tagged(table: Table, asked: str | None) -> list[ColumnElement[bool]]:
    """Say which rows have all the tags that were asked for."""
    conditions: list[ColumnElement[bool]] = []
    for part in (asked or "").split(",") if asked else []:
        key, colon, value = part.strip().partition(":")
        if not key or not colon:
            raise refuse("tags", f"{part!r} is not allowed: expected key:value")
        conditions.append(table.c.tags[key].as_string() == value)
    return conditions
