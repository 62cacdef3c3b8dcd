"""Credentials of guardrail partners that the organisation holds. Guardrails of the organisation and of the allowed
workspaces use them automatically, by the partner of a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ConflictError
from penstock.guardrails import saved_credentials
from penstock.guardrails.saved_credentials import PARTNER_CREDENTIALS
from penstock.ids import new_id
from penstock.kit import shared_fields
from penstock.kit.crud_routes import CrudRoutes
from penstock.organisation import workspace_access
from penstock.schemas import Created, EmptyResponse, row_to_struct, sent_fields
from penstock.secrets import partner_credentials
from penstock.store.guardrail_tables import partner_credentials as table

if TYPE_CHECKING:
    from penstock.kit.tenant_session import RequestContext, TenantSession
    from penstock.store.tenant import Row

    JsonObject = dict[str, Any]

KIND = "partner-credentials"

_BaseUrl = Annotated[str, Meta(min_length=1, max_length=2048)]
PARTNER_DESCRIPTION = "name of the partner: the part of its checks' ids before the dot, such as `azure` or `lakera`"
Partner = Annotated[str, Meta(min_length=1, max_length=64, description=PARTNER_DESCRIPTION)]
CredentialsField = Annotated[
    dict[str, Any], Meta(max_length=64, description="as in the checks of the partner; stored encrypted, shown masked")
]
BaseUrl = Annotated[_BaseUrl | None, Meta(description="URL in place of the partner's host, such as a private endpoint")]


class CreatePartnerCredentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Credentials of a partner to save."""

    partner: Partner
    credentials: CredentialsField
    base_url: BaseUrl = None
    organisation_id: shared_fields.OwnOrganisationId = None
    allow_all_workspaces: workspace_access.AllWorkspaces = UNSET
    allowed_workspaces: workspace_access.AllowedWorkspaces = UNSET


class UpdatePartnerCredentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields to update; omitted fields keep their values."""

    credentials: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="new credentials, which replace all; masked ones are unchanged, if nothing else changes"),
    ] = UNSET
    base_url: Annotated[
        _BaseUrl | UnsetType | None,
        Meta(description="URL in place of the partner's host; a change needs the credentials, too"),
    ] = UNSET
    allow_all_workspaces: workspace_access.OptionalAllWorkspaces = UNSET
    allowed_workspaces: workspace_access.AllowedWorkspaces = UNSET


class PartnerCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of one partner, masked."""

    id: shared_fields.Id
    slug: shared_fields.Slug
    partner: Partner
    organisation_id: shared_fields.OrganisationId
    credentials: CredentialsField
    base_url: BaseUrl
    checks: Annotated[list[str], Meta(description="ids of the checks that use them, if they have none of their own")]
    allow_all_workspaces: Annotated[bool, Meta(description="true if all workspaces may use them")]
    allowed_workspaces: Annotated[
        list[str] | UnsetType, Meta(description="ids of the workspaces that may use them, if not all may")
    ] = UNSET
    created_by: shared_fields.CreatedBy
    created_at: shared_fields.CreatedAt
    last_updated_at: shared_fields.UpdatedAt
    object: shared_fields.ObjectType = KIND


async def render_rows(_session: TenantSession, rows: list[Row]) -> list[PartnerCredentials]:
    """Converts rows to responses, with masked credentials."""
    checks = partner_credentials.checks_by_partner()
    return [
        row_to_struct(
            PartnerCredentials,
            row,
            partner=row["slug"],
            checks=checks.get(row["slug"], []),
            allowed_workspaces=UNSET if row["allow_all_workspaces"] else row["allowed_workspaces"],
        )
        for row in rows
    ]


async def validate_new(_context: RequestContext, data: CreatePartnerCredentials) -> JsonObject:
    """Validates new credentials. Returns them as parameters of a check."""
    saved_credentials.reject_unknown_partner(data.partner)
    parameters = saved_credentials.restore_masks(data.partner, data.credentials, data.base_url)
    await saved_credentials.reject_unusable(data.partner, parameters, saved_credentials.CheckValidator())
    return parameters


async def create_credentials(session: TenantSession, data: CreatePartnerCredentials, parameters: JsonObject) -> Created:
    """Saves the credentials of a partner, once for an organisation. Guardrails of the allowed workspaces use them in
    checks that have none of their own; a guardrail of the organisation only if all workspaces are allowed.
    """
    session.caller.check_organisation(data.organisation_id)
    if await session.find(table, data.partner) is not None:
        raise ConflictError(f"the organisation has credentials of {data.partner!r}; update them instead")
    row_id = new_id()
    owner = {"id": row_id, "slug": data.partner}
    values = {
        **owner,
        **workspace_access.ALL_WORKSPACES,
        **await workspace_access.resolve_access(session, data, []),
        **await saved_credentials.seal_parameters(session, owner, parameters),
        "created_by": session.caller.actor_id,
    }
    row = await PARTNER_CREDENTIALS.create(session, values)
    return Created(row["id"], row["slug"], KIND)


async def _restore_sent(session: TenantSession, row: Row, data: UpdatePartnerCredentials) -> JsonObject | None:
    """Returns changed credentials as parameters of a check; `None` if the request changes none."""
    sent = sent_fields(data)
    if not {"credentials", "base_url"} & sent.keys():
        return None
    credentials, base_url = (sent.get(name, row[name]) for name in ("credentials", "base_url"))
    return await saved_credentials.restore_credentials(session, row, credentials, base_url)


async def validate_update(
    context: RequestContext, key: str, data: UpdatePartnerCredentials
) -> saved_credentials.CheckValidator:
    """Validates changed credentials, also with the guardrails that use them. Returns what it found valid."""
    validator = saved_credentials.CheckValidator()
    async with context.read_session() as session:
        row = await PARTNER_CREDENTIALS.get(session, key)
        parameters = await _restore_sent(session, row, data)
        users = await saved_credentials.find_users(session, row["slug"]) if parameters else []
    if parameters:
        await saved_credentials.reject_unusable(row["slug"], parameters, validator)
        await saved_credentials.reject_unsuitable(row["slug"], parameters, users, validator)
    return validator


async def update_credentials(
    session: TenantSession, row: Row, data: UpdatePartnerCredentials, validator: saved_credentials.CheckValidator
) -> EmptyResponse:
    """Updates the credentials of a partner; requests use them within a second. Returns 400 or 409 if a guardrail that
    uses them would no longer work.
    """
    values = await workspace_access.resolve_access(session, data, row["allowed_workspaces"])
    parameters = await _restore_sent(session, row, data)
    users = await saved_credentials.find_users(session, row["slug"])
    if parameters:
        await saved_credentials.reject_unusable(row["slug"], parameters, validator)
        await saved_credentials.reject_unsuitable(row["slug"], parameters, users, validator)
        values |= await saved_credentials.seal_parameters(session, row, parameters)
    saved_credentials.reject_removed_access(await PARTNER_CREDENTIALS.update(session, row, values), users)
    await saved_credentials.publish_users(session, users)
    return EmptyResponse()


async def delete_credentials(session: TenantSession, row: Row) -> None:
    """Deletes the credentials of a partner. Rejects those that a guardrail uses."""
    await saved_credentials.reject_if_used(session, row["slug"])
    await PARTNER_CREDENTIALS.delete(session, row)


CRUD_ROUTES = CrudRoutes(
    PARTNER_CREDENTIALS,
    "partner credentials",
    ["Guardrails"],
    plural="partner credentials",
    scopes="organisation_guardrails",
)
routes = [
    CRUD_ROUTES.create_route(CreatePartnerCredentials, Created, create_credentials, validate_new),
    CRUD_ROUTES.list_route(PartnerCredentials, render_rows),
    CRUD_ROUTES.get_route(PartnerCredentials, render_rows),
    CRUD_ROUTES.update_route(
        UpdatePartnerCredentials, EmptyResponse, update_credentials, PartnerCredentials, render_rows, validate_update
    ),
    CRUD_ROUTES.delete_route(delete_credentials),
]
