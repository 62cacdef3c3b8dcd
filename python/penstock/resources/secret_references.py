"""Secret references: where a secret is kept by AWS, Azure or HashiCorp, for integrations to be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta
from sqlalchemy import or_

from penstock.ids import new_id
from penstock.kit import provider_options, shared_fields
from penstock.kit.crud_routes import Verbs, Wanted, plain
from penstock.kit.listing import Sizes
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import UNSET, TagsAsked, UnsetType, tagged
from penstock.schemas import Created, Done, given, refuse
from penstock.secrets import mappings, references
from penstock.store.tables import secret_references

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

REFERENCES = Resource("secret_references", secret_references, publishes=True)
SIZES = Sizes(usual=20, largest=100)
CHANGED = ("name", "description", "secret_path", "secret_key", "tags")

_Description = Annotated[str, Meta(max_length=1024)]
_Path = Annotated[str, Meta(min_length=1, max_length=1024)]
_Key = Annotated[str, Meta(max_length=255)]
_Allowed = Annotated[list[str], Meta(min_length=1)]
Place = Literal["aws_sm", "azure_kv", "hashicorp_vault"]
Auth = Annotated[dict[str, Any], Meta(description=f"how to sign in there; {references.described()}")]
Description = Annotated[_Description | None, Meta(description="what it is for")]
Path = Annotated[_Path, Meta(description="name, ARN or path of the secret")]
Key = Annotated[_Key | None, Meta(description="which part of a secret that is a JSON object")]


class NewReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A reference to be made."""

    name: shared_fields.Name
    manager_type: Annotated[Place, Meta(description="where it is kept")]
    auth_config: Auth
    secret_path: Path
    organisation_id: shared_fields.OwnOrganisation = None
    slug: shared_fields.OwnSlug = None
    description: Description = None
    secret_key: Key = None
    allow_all_workspaces: Annotated[
        bool | UnsetType, Meta(description="whether all workspaces may use it; default: true, unless some are named")
    ] = UNSET
    allowed_workspaces: Annotated[
        _Allowed | UnsetType, Meta(description="ids or slugs of the workspaces that may use it")
    ] = UNSET
    tags: shared_fields.Tags = {}


class ReferenceChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    description: Annotated[_Description | UnsetType | None, Meta(description="what it is for")] = UNSET
    auth_config: Annotated[
        dict[str, Any] | UnsetType, Meta(description="fields of it; others stay, and masked ones mean the same")
    ] = UNSET
    secret_path: Annotated[_Path | UnsetType, Meta(description="name, ARN or path of the secret")] = UNSET
    secret_key: Annotated[_Key | UnsetType | None, Meta(description="which part of a secret")] = UNSET
    allow_all_workspaces: Annotated[bool | UnsetType, Meta(description="whether all workspaces may use it")] = UNSET
    allowed_workspaces: Annotated[
        _Allowed | UnsetType, Meta(description="ids or slugs of the workspaces that may use it")
    ] = UNSET
    tags: shared_fields.MaybeTags = UNSET


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One reference of a list."""

    id: shared_fields.Id
    name: shared_fields.Name
    slug: shared_fields.Slug
    manager_type: Annotated[str, Meta(description="`aws_sm`, `azure_kv` or `hashicorp_vault`")]
    status: Annotated[str, Meta(description="`ACTIVE`")]
    created_at: shared_fields.Moment
    last_updated_at: shared_fields.Changed
    object: shared_fields.Object = "secret-reference"


class Reference(ReferenceRow, frozen=True, kw_only=True):
    """One reference."""

    organisation_id: shared_fields.Organisation
    description: Description
    secret_path: Path
    secret_key: Key
    auth_config: Auth
    allow_all_workspaces: Annotated[bool, Meta(description="whether all workspaces may use it")]
    allowed_workspaces: Annotated[list[str], Meta(description="ids of the workspaces that may, where not all may")]
    tags: shared_fields.Tags
    created_by: shared_fields.Maker


PlaceAsked = Annotated[Place | None, QueryParameter(description="only those that are kept there")]
Search = Annotated[
    str | None, QueryParameter(min_length=1, max_length=255, description="part of the name, slug or description")
]


def asked(manager_type: PlaceAsked = None, tags: TagsAsked = None, search: Search = None) -> Wanted:
    """List secret references; 20 on a page unless another number is asked for, at most 100."""
    conditions: list[ColumnElement[bool]] = tagged(secret_references, tags)
    if manager_type:
        conditions.append(secret_references.c.manager_type == manager_type)
    if search:
        columns = (secret_references.c.name, secret_references.c.slug, secret_references.c.description)
        conditions.append(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    return Wanted(None, conditions, SIZES)


async def create(desk: Desk, data: NewReference) -> Created:
    """Say where a secret is kept. It is fetched when an integration is made of it, and never shown."""
    desk.caller.stay_in(data.organisation_id)
    references.check(data.manager_type, data.auth_config, lends=desk.lends)
    row_id = new_id()
    values: dict[str, Any] = {
        **{name: getattr(data, name) for name in (*CHANGED, "manager_type")},
        "id": row_id,
        "slug": data.slug or await desk.new_slug(secret_references, "", data.name, 40),
        "status": "ACTIVE",
        "created_by": desk.caller.actor,
        "allow_all_workspaces": True,
        "allowed_workspaces": [],
        **await _access(desk, data, []),
        **await _sealed(desk, row_id, data.auth_config, None),
    }
    row = await REFERENCES.add(desk, values)
    return Created(row["id"], row["slug"], "secret-reference")


async def update(desk: Desk, row: Row, data: ReferenceChange) -> Done:
    """Change a secret reference; what is left out stays, also of how to sign in. Where it is kept stays in any case."""
    values = {name: value for name, value in given(data).items() if name in CHANGED}
    if access := await _access(desk, data, row["allowed_workspaces"]):
        await mappings.refuse_shut_out(desk, {**row, **access})
    values |= access
    if data.auth_config is not UNSET:
        values |= await _sealed(desk, row["id"], data.auth_config, row)
    await REFERENCES.change(desk, row, values)
    return Done()


async def leave(desk: Desk, row: Row) -> None:
    """Delete a secret reference; one that an integration needs stays."""
    await mappings.refuse_needed(desk, row)
    await REFERENCES.remove(desk, row)


async def _sealed(desk: Desk, owner: str, sent: Mapping[str, Any], row: Row | None) -> dict[str, Any]:
    """Seal what is secret of how to sign in; what was there before is kept where the way still needs it."""
    before: dict[str, Any] = {}
    if row:
        sealed = row["sealed_auth_config"]
        before = msgspec.json.decode(await desk.open(sealed, owner)) if sealed else {}
        merged = {**row["auth_config"], **sent}
        wanted = references.form(row["manager_type"], merged).__struct_fields__
        sent = {name: value for name, value in merged.items() if name in wanted or name not in row["auth_config"]}
        references.check(row["manager_type"], sent, lends=desk.lends)
    shown, hidden = provider_options.split("auth_config", sent, row["auth_config"] if row else {}, before)
    sealed = await desk.seal(msgspec.json.encode(hidden).decode(), owner) if hidden else None
    return {"auth_config": shown, "sealed_auth_config": sealed}


async def _access(desk: Desk, data: NewReference | ReferenceChange, before: Collection[str]) -> dict[str, Any]:
    """Write down who may use it: all, or those that are named; who was `before` stays when it is archived."""
    if data.allowed_workspaces is not UNSET:
        if data.allow_all_workspaces is True:
            raise refuse("allowed_workspaces", "is not for what all workspaces may use: leave allow_all_workspaces out")
        rows = [
            await desk.refer_to_workspace(f"allowed_workspaces[{index}]", key, before)
            for index, key in enumerate(data.allowed_workspaces)
        ]
        ids = list(dict.fromkeys(row["id"] for row in rows))
        return {"allow_all_workspaces": False, "allowed_workspaces": ids}
    if data.allow_all_workspaces is True:
        return {"allow_all_workspaces": True, "allowed_workspaces": []}
    return {} if data.allow_all_workspaces is UNSET else {"allow_all_workspaces": False}


VERBS = Verbs(REFERENCES, "secret reference", ["Secret References"])
routes = [
    VERBS.create(NewReference, Created, create),
    VERBS.index(ReferenceRow, plain(ReferenceRow), asked),
    VERBS.show(Reference, plain(Reference)),
    VERBS.update(ReferenceChange, Done, update),
    VERBS.remove(leave),
]
