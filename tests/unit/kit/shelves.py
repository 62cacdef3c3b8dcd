"""Shelves: a minimal example resource with its table, for tests of the CRUD routes."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from sqlalchemy import BigInteger, Column, MetaData, String, Table

from penstock.kit import shared_fields
from penstock.kit.crud_routes import crud_routes
from penstock.kit.resource import Resource

SHELVES = Table(
    "shelves",
    MetaData(),
    Column("id", String(36), primary_key=True),
    Column("organisation_id", String(36), nullable=False),
    Column("workspace_id", String(36), nullable=False),
    Column("name", String(255), nullable=False),
    Column("note", String(2000)),
    Column("created_at", BigInteger, nullable=False),
    Column("last_updated_at", BigInteger, nullable=False),
)


class NewShelf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a new shelf."""

    name: shared_fields.Name
    workspace_id: shared_fields.WorkspaceIdOrSlug = None
    note: shared_fields.Note = None


class ShelfChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields to change; omitted fields stay the same."""

    name: shared_fields.OptionalName = UNSET
    note: shared_fields.OptionalNote = UNSET


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """One shelf."""

    id: shared_fields.Id
    name: shared_fields.Name
    note: shared_fields.Note
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "shelf"


routes = crud_routes(Resource("configs", SHELVES, publishes=True), "shelf", NewShelf, ShelfChange, Shelf)
