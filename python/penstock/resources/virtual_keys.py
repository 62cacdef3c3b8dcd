"""Virtual keys: a slug for a provider and its credential. The credential is never returned in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ForbiddenError
from penstock.ids import new_id
from penstock.integrations import provider_options as forms
from penstock.integrations import saved_integrations as integrations
from penstock.integrations import saved_providers
from penstock.integrations.saved_integrations import INTEGRATIONS
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import Id, ObjectType, Slug
from penstock.schemas import Created
from penstock.secrets import mappings
from penstock.secrets.mappings import SecretMapping
from penstock.store.tables import providers

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

VIRTUAL_KEYS = saved_providers.ProviderRoutes(
    Resource("virtual_keys", providers, publishes=True), "virtual key", ["Virtual keys"]
)
AZURE_FIELDS = ("apiVersion", "resourceName", "deploymentName", "deploymentConfig")

BoundedText = Annotated[str, Meta(max_length=4096)]


class VirtualKeyDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model deployment of an Azure resource."""

    api_version: Annotated[str, Meta(description="Azure API version of the deployment")] = msgspec.field(
        name="apiVersion"
    )
    deployment_name: Annotated[str, Meta(description="its name")] = msgspec.field(name="deploymentName")
    alias: Annotated[str | None, Meta(description="model name that clients use for this deployment")] = None
    is_default: Annotated[bool, Meta(description="if true, this deployment serves models that match no alias")] = False


ProviderCredential = Annotated[BoundedText, Meta(description="API key of the provider")]
AzureDeployments = Annotated[
    list[VirtualKeyDeployment] | UnsetType | None, Meta(description="model deployments of an Azure resource")
]


class NewVirtualKey(saved_providers.CreateFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A virtual key to create."""

    provider: Annotated[str, Meta(description="name of the provider")]
    key: ProviderCredential = ""
    api_version: Annotated[BoundedText | UnsetType | None, Meta(description="Azure API version")] = msgspec.field(
        name="apiVersion", default=UNSET
    )
    resource_name: Annotated[BoundedText | UnsetType | None, Meta(description="name of the Azure resource")] = (
        msgspec.field(name="resourceName", default=UNSET)
    )
    deployment_name: Annotated[BoundedText | UnsetType | None, Meta(description="name of the Azure deployment")] = (
        msgspec.field(name="deploymentName", default=UNSET)
    )
    deployment_config: AzureDeployments = msgspec.field(name="deploymentConfig", default=UNSET)
    model_config: Annotated[
        dict[str, Any], Meta(description="other options of the provider, such as `custom_host`")
    ] = msgspec.field(default_factory=dict[str, Any])
    secret_mappings: Annotated[
        list[SecretMapping], Meta(description="fields whose values are read from a secret manager")
    ] = msgspec.field(default_factory=list[SecretMapping])


class VirtualKeyUpdate(saved_providers.UpdateFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a virtual key to change; omitted fields stay as they are."""

    key: Annotated[BoundedText | UnsetType, Meta(description="new API key; the masked form keeps the current one")] = (
        UNSET
    )
    deployment_config: AzureDeployments = msgspec.field(name="deploymentConfig", default=UNSET)
    model_config: Annotated[
        dict[str, Any] | UnsetType, Meta(description="other options of the provider; they replace the current ones")
    ] = UNSET
    secret_mappings: Annotated[
        list[SecretMapping] | UnsetType, Meta(description="secret mappings; they replace the current ones")
    ] = UNSET


class CreatedVirtualKeyData(msgspec.Struct, frozen=True):
    """The new virtual key in the format that older clients read."""

    slug: Slug


class CreatedVirtualKey(msgspec.Struct, frozen=True):
    """Id and slug of a new virtual key."""

    id: Id
    slug: Slug
    data: Annotated[CreatedVirtualKeyData, Meta(description="the same, for older clients")]
    success: Annotated[bool, Meta(description="always true")] = True
    object: ObjectType = "virtual-key"


class VirtualKey(saved_providers.ResponseFields, frozen=True, kw_only=True):
    """One virtual key."""

    key: Annotated[str, Meta(description="always empty, because the credential is never returned")] = ""
    masked_api_key: Annotated[str | None, Meta(description="first and last characters of the credential")]
    provider: Annotated[str, Meta(description="name of the provider")]
    workspace_name: Annotated[str, Meta(description="name of the workspace")]
    secret_mappings: Annotated[
        list[SecretMapping], Meta(description="fields whose values are read from a secret manager")
    ]
    object: ObjectType = "virtual-key"


async def create_virtual_key(session: TenantSession, data: NewVirtualKey) -> CreatedVirtualKey:
    """Stores a provider's credential as a virtual key."""
    own_id = new_id()
    provider = integrations.resolve_provider("provider", data.provider)
    values = {
        "workspace_id": session.required_workspace_id,
        "slug": await session.generate_unused_slug(INTEGRATIONS.table, "", data.name, 40),
        "name": data.name,
        "ai_provider_id": provider,
        "brought_along": True,
        "secret_mappings": await mappings.check_mappings(
            session, data.secret_mappings, session.required_workspace_id, _option_names(provider)
        ),
        **await integrations.seal_key(session, own_id, data.key),
        **await integrations.seal_options(session, own_id, "model_config", _merge_options(provider, data)),
    }
    await integrations.reject_exposed_secrets(session, values)
    await integrations.create_integration(session, own_id, values)
    row = await VIRTUAL_KEYS.create_row(session, data, own_id, {})
    return CreatedVirtualKey(row["id"], row["slug"], CreatedVirtualKeyData(row["slug"]))


async def update_virtual_key(session: TenantSession, row: Row, data: VirtualKeyUpdate) -> Created:
    """Changes a virtual key. Omitted fields stay as they are, and so does a credential that is sent back masked."""
    integration = await INTEGRATIONS.get(session.organisation(), row["integration_id"])
    # Responses show the key as an empty string, so an empty key in a request means no change.
    change = await integrations.seal_key(session, integration["id"], data.key, integration) if data.key else {}
    about = _merge_options(integration["ai_provider_id"], data)
    options: dict[str, Any] = {}
    if data.model_config is not UNSET or data.deployment_config is not UNSET:
        options = about if data.model_config is not UNSET else {**integration["configurations"], **about}
        if data.deployment_config is None:
            options.pop("deploymentConfig", None)
        change |= await integrations.seal_options(session, integration["id"], "model_config", options, integration)
    if data.secret_mappings is not UNSET:
        allowed_fields = _option_names(integration["ai_provider_id"])
        before = integration["secret_mappings"]
        change["secret_mappings"] = await mappings.check_mappings(
            session, data.secret_mappings, integration["workspace_id"], allowed_fields, before
        )
    await integrations.reject_moved_credentials(session, integration, change, "model_config", options)
    if change and not integration["brought_along"]:
        raise ForbiddenError(f"its credential is that of the integration {integration['slug']!r}: change it there")
    if change:
        await INTEGRATIONS.update(session, integration, change)
    return await VIRTUAL_KEYS.update_row(session, row, data)


def _option_names(provider: str) -> tuple[str, ...]:
    return (*forms.field_names(provider), *AZURE_FIELDS)


def _merge_options(provider: str, data: NewVirtualKey | VirtualKeyUpdate) -> dict[str, Any]:
    """Returns all provider options of the request in one dict, with the names that they have in `model_config`."""
    sent: dict[str, Any] = msgspec.to_builtins(data)
    about: dict[str, Any] = sent.get("model_config") or {}
    forms.check_partial_options("model_config", provider, about, allowed=AZURE_FIELDS)
    return {**about, **{name: sent[name] for name in AZURE_FIELDS if sent.get(name) is not None}}


routes = [
    VIRTUAL_KEYS.create_route(NewVirtualKey, CreatedVirtualKey, create_virtual_key),
    *VIRTUAL_KEYS.build_routes(VirtualKey, VirtualKeyUpdate, Created, update_virtual_key),
    VIRTUAL_KEYS.delete_route(VIRTUAL_KEYS.delete_row),
]
