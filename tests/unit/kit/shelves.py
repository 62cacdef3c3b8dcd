"""Shelves: a whole resource with its table, as short as one can be."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from sqlalchemy import BigInteger, Column, MetaData, String, Table

from penstock.kit import fields
from penstock.kit.resource import Resource
from penstock.kit.verbs import five

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
    """A shelf to be made."""

    name: fields.Name
    workspace_id: fields.Workspace = None
    note: fields.Note = None


class ShelfChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; what is left out stays."""

    name: fields.MaybeName = UNSET
    note: fields.MaybeNote = UNSET


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """One shelf."""

    id: fields.Id
    name: fields.Name
    note: fields.Note
    created_at: fields.Moment
    last_updated_at: fields.Changed
    object: fields.Object = "shelf"


routes = five(Resource("configs", SHELVES, publishes=True), "shelf", NewShelf, ShelfChange, Shelf)
