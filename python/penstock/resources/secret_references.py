"""Secret references: where AWS, Azure or HashiCorp stores a secret that integrations use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Meta
from sqlalchemy import or_

from penstock.authorization import require_scopes
from penstock.ids import new_id
from penstock.integrations import provider_options
from penstock.kit import shared_fields
from penstock.kit.crud_routes import CrudRoutes, ListQuery, plain_renderer
from penstock.kit.numbered_pages import PageSizes
from penstock.kit.resource import Resource
from penstock.kit.route_parameters import IdOrSlug, TagsFilter
from penstock.kit.shared_fields import UNSET, UnsetType, tag_conditions
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.organisation import workspace_access
from penstock.schemas import Created, EmptyResponse, sent_fields
from penstock.secrets import mappings, references
from penstock.store.tables import secret_references

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from penstock.store.tenant import Row

REFERENCES = Resource("secret_references", secret_references, publishes=True)
PAGE_SIZES = PageSizes(default=20, maximum=100)
UPDATABLE_FIELDS = ("name", "description", "secret_path", "secret_key", "tags")

_DescriptionText = Annotated[str, Meta(max_length=1024)]
_SecretPath = Annotated[str, Meta(min_length=1, max_length=1024)]
_SecretKey = Annotated[str, Meta(max_length=255)]
SecretManagerType = Literal["aws_sm", "azure_kv", "hashicorp_vault"]
AuthConfigField = Annotated[
    dict[str, Any], Meta(description=f"how to sign in there; {references.describe_auth_configs()}")
]
DescriptionField = Annotated[_DescriptionText | None, Meta(description="purpose of the secret")]
SecretPathField = Annotated[_SecretPath, Meta(description="name, ARN or path of the secret")]
SecretKeyField = Annotated[
    _SecretKey | None, Meta(description="field of the secret to use, if the secret is a JSON object")
]


class CreateSecretReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A secret reference to create."""

    name: shared_fields.Name
    manager_type: Annotated[SecretManagerType, Meta(description="secret manager that stores the secret")]
    auth_config: AuthConfigField
    secret_path: SecretPathField
    organisation_id: shared_fields.OwnOrganisationId = None
    slug: shared_fields.ChosenSlug = None
    description: DescriptionField = None
    secret_key: SecretKeyField = None
    allow_all_workspaces: workspace_access.AllWorkspaces = UNSET
    allowed_workspaces: workspace_access.AllowedWorkspaces = UNSET
    tags: shared_fields.Tags = {}


class UpdateSecretReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a secret reference to update; omitted fields keep their values."""

    name: shared_fields.OptionalName = UNSET
    description: Annotated[_DescriptionText | UnsetType | None, Meta(description="purpose of the secret")] = UNSET
    auth_config: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="fields of the authentication to update; omitted and masked fields are unchanged"),
    ] = UNSET
    secret_path: Annotated[_SecretPath | UnsetType, Meta(description="name, ARN or path of the secret")] = UNSET
    secret_key: Annotated[_SecretKey | UnsetType | None, Meta(description="field of the secret to use")] = UNSET
    allow_all_workspaces: workspace_access.OptionalAllWorkspaces = UNSET
    allowed_workspaces: workspace_access.AllowedWorkspaces = UNSET
    tags: shared_fields.OptionalTags = UNSET


class SecretReferenceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One secret reference in a list."""

    id: shared_fields.Id
    name: shared_fields.Name
    slug: shared_fields.Slug
    manager_type: Annotated[str, Meta(description="`aws_sm`, `azure_kv` or `hashicorp_vault`")]
    status: Annotated[str, Meta(description="`ACTIVE`")]
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = "secret-reference"


class SecretReferenceDetail(SecretReferenceSummary, frozen=True, kw_only=True):
    """One secret reference with all fields; authentication secrets are masked."""

    organisation_id: shared_fields.OrganisationId
    description: DescriptionField
    secret_path: SecretPathField
    secret_key: SecretKeyField
    auth_config: AuthConfigField
    allow_all_workspaces: Annotated[
        bool,
        Meta(
            description="true if all workspaces may use it; else `/secret-references/{id}/workspaces` lists those that may"
        ),
    ]
    tags: shared_fields.Tags
    created_by: shared_fields.CreatedBy


ManagerTypeParam = Annotated[
    SecretManagerType | None, QueryParameter(description="only references to this secret manager")
]
SearchParam = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=255,
        description="part of the name, slug or description, ignoring the case of ASCII letters",
    ),
]


def build_list_query(
    manager_type: ManagerTypeParam = None, tags: TagsFilter = None, search: SearchParam = None
) -> ListQuery:
    """Lists secret references: 20 per page by default, at most 100."""
    conditions: list[ColumnElement[bool]] = tag_conditions(secret_references, tags)
    if manager_type:
        conditions.append(secret_references.c.manager_type == manager_type)
    if search:
        columns = (secret_references.c.name, secret_references.c.slug, secret_references.c.description)
        conditions.append(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    return ListQuery(None, conditions, PAGE_SIZES)


async def create_reference(session: TenantSession, data: CreateSecretReference) -> Created:
    """Saves where a secret is stored. The gateway fetches the secret when an integration uses it, and never shows it."""
    session.caller.check_organisation(data.organisation_id)
    references.check_auth_config(
        data.manager_type, data.auth_config, lends=session.allows_machine_identity, fetcher=session.fetcher
    )
    row_id = new_id()
    values: dict[str, Any] = {
        **{name: getattr(data, name) for name in (*UPDATABLE_FIELDS, "manager_type")},
        "id": row_id,
        "slug": data.slug or await session.generate_unused_slug(secret_references, "", data.name, 40),
        "status": "ACTIVE",
        "created_by": session.caller.actor_id,
        **workspace_access.ALL_WORKSPACES,
        **await workspace_access.resolve_access(session, data, []),
        **await _encrypt_auth_config(session, row_id, data.auth_config, None),
    }
    row = await REFERENCES.create(session, values)
    return Created(row["id"], row["slug"], "secret-reference")


async def update_reference(session: TenantSession, row: Row, data: UpdateSecretReference) -> EmptyResponse:
    """Updates a secret reference; omitted fields keep their values, also inside `auth_config`. The type of the secret
    manager cannot be changed.
    """
    values = {name: value for name, value in sent_fields(data).items() if name in UPDATABLE_FIELDS}
    if access := await workspace_access.resolve_access(session, data, row["allowed_workspaces"]):
        await mappings.reject_removed_access(session, {**row, **access})
    values |= access
    if data.auth_config is not UNSET:
        values |= await _encrypt_auth_config(session, row["id"], data.auth_config, row)
    await REFERENCES.update(session, row, values)
    return EmptyResponse()


async def delete_reference(session: TenantSession, row: Row) -> None:
    """Deletes a secret reference. Rejects one that an integration uses."""
    await mappings.reject_reference_in_use(session, row)
    await REFERENCES.delete(session, row)


async def _encrypt_auth_config(
    session: TenantSession, owner: str, sent: Mapping[str, Any], row: Row | None
) -> dict[str, Any]:
    """Encrypts the secret fields of an authentication config. Previous fields are kept if the authentication method
    still needs them.
    """
    before: dict[str, Any] = {}
    if row:
        sealed = row["sealed_auth_config"]
        before = msgspec.json.decode(await session.open(sealed, owner)) if sealed else {}
        merged = {**row["auth_config"], **sent}
        requested = references.auth_config_type(row["manager_type"], merged).__struct_fields__
        sent = {name: value for name, value in merged.items() if name in requested or name not in row["auth_config"]}
        references.check_auth_config(
            row["manager_type"], sent, lends=session.allows_machine_identity, fetcher=session.fetcher
        )
    secrets, hidden = provider_options.split_secrets("auth_config", sent, row["auth_config"] if row else {}, before)
    sealed = await session.seal(msgspec.json.encode(hidden).decode(), owner) if hidden else None
    return {"auth_config": secrets, "sealed_auth_config": sealed}


class ReferenceWorkspaces(msgspec.Struct, frozen=True, kw_only=True):
    """Workspaces that may use a secret reference."""

    allow_all_workspaces: Annotated[bool, Meta(description="true if all workspaces may use it")]
    allowed_workspaces: Annotated[list[str], Meta(description="ids of the workspaces that may use it, if not all may")]
    object: shared_fields.ObjectType = "secret-reference-workspaces"


@get(
    "/{key:str}/workspaces",
    guards=[require_scopes("secret_references.read")],
    summary="List workspaces of a secret reference",
    tags=["Secret References"],
)
async def list_workspaces(key: IdOrSlug, context: NamedDependency[RequestContext]) -> ReferenceWorkspaces:
    """Returns the workspaces that may use a secret reference."""
    async with context.read_session() as session:
        row = await REFERENCES.get(session, key)
        return ReferenceWorkspaces(
            allow_all_workspaces=row["allow_all_workspaces"], allowed_workspaces=row["allowed_workspaces"]
        )


CRUD_ROUTES = CrudRoutes(REFERENCES, "secret reference", ["Secret References"])
SHOW_DETAIL = plain_renderer(SecretReferenceDetail)
routes = [
    CRUD_ROUTES.create_route(CreateSecretReference, Created, create_reference),
    CRUD_ROUTES.list_route(SecretReferenceSummary, plain_renderer(SecretReferenceSummary), build_list_query),
    CRUD_ROUTES.get_route(SecretReferenceDetail, SHOW_DETAIL),
    list_workspaces,
    CRUD_ROUTES.update_route(
        UpdateSecretReference, EmptyResponse, update_reference, SecretReferenceDetail, SHOW_DETAIL
    ),
    CRUD_ROUTES.delete_route(delete_reference),
]
