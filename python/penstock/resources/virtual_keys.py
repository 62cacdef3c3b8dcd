"""Virtual keys: a name that stands for a provider and its credential, which nobody is shown again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ForbiddenError
from penstock.ids import new_id
from penstock.kit import integrations
from penstock.kit import provider_options as forms
from penstock.kit import providers as kit
from penstock.kit.integrations import INTEGRATIONS
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import Id, Object, Slug
from penstock.schemas import Created
from penstock.secrets import mappings
from penstock.secrets.mappings import SecretMapping
from penstock.store.tables import providers

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Desk
    from penstock.store.tenant import Row

SIDE = kit.Side(Resource("virtual_keys", providers, publishes=True), "virtual key", ["Virtual keys"])
OF_AZURE = ("apiVersion", "resourceName", "deploymentName", "deploymentConfig")

Text = Annotated[str, Meta(max_length=4096)]


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One deployment of an Azure resource."""

    api_version: Annotated[str, Meta(description="version of its API")] = msgspec.field(name="apiVersion")
    deployment_name: Annotated[str, Meta(description="its name")] = msgspec.field(name="deploymentName")
    alias: Annotated[str | None, Meta(description="the model that it is asked for by")] = None
    is_default: Annotated[bool, Meta(description="used for models that no deployment has as its alias")] = False


Credential = Annotated[Text, Meta(description="the provider's key")]
Deployments = Annotated[list[Deployment] | UnsetType | None, Meta(description="deployments of an Azure resource")]


class NewVirtualKey(kit.New, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A virtual key to be made."""

    provider: Annotated[str, Meta(description="name of the provider")]
    key: Credential = ""
    api_version: Annotated[Text | UnsetType | None, Meta(description="version of Azure's API")] = msgspec.field(
        name="apiVersion", default=UNSET
    )
    resource_name: Annotated[Text | UnsetType | None, Meta(description="the Azure resource")] = msgspec.field(
        name="resourceName", default=UNSET
    )
    deployment_name: Annotated[Text | UnsetType | None, Meta(description="the Azure deployment")] = msgspec.field(
        name="deploymentName", default=UNSET
    )
    deployment_config: Deployments = msgspec.field(name="deploymentConfig", default=UNSET)
    model_config: Annotated[dict[str, Any], Meta(description="more about the provider, as `custom_host`")] = (
        msgspec.field(default_factory=dict[str, Any])
    )
    secret_mappings: Annotated[list[SecretMapping], Meta(description="fields whose values are kept elsewhere")] = (
        msgspec.field(default_factory=list[SecretMapping])
    )


class VirtualKeyChange(kit.Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    key: Annotated[Text | UnsetType, Meta(description="another key; the masked form means the same one")] = UNSET
    deployment_config: Deployments = msgspec.field(name="deploymentConfig", default=UNSET)
    model_config: Annotated[
        dict[str, Any] | UnsetType, Meta(description="more about the provider; it replaces that of before")
    ] = UNSET
    secret_mappings: Annotated[list[SecretMapping] | UnsetType, Meta(description="they replace those of before")] = (
        UNSET
    )


class MadeData(msgspec.Struct, frozen=True):
    """What was made, as older clients look for it."""

    slug: Slug


class VirtualKeyMade(msgspec.Struct, frozen=True):
    """A new virtual key."""

    id: Id
    slug: Slug
    data: Annotated[MadeData, Meta(description="the same for older clients")]
    success: Annotated[bool, Meta(description="always true")] = True
    object: Object = "virtual-key"


class VirtualKey(kit.Shown, frozen=True, kw_only=True):
    """One virtual key."""

    key: Annotated[str, Meta(description="always empty: the credential is not shown")] = ""
    masked_api_key: Annotated[str | None, Meta(description="both ends of the credential")]
    provider: Annotated[str, Meta(description="name of the provider")]
    workspace_name: Annotated[str, Meta(description="name of its workspace")]
    secret_mappings: Annotated[list[SecretMapping], Meta(description="fields whose values are kept elsewhere")]
    object: Object = "virtual-key"


async def create(desk: Desk, data: NewVirtualKey) -> VirtualKeyMade:
    """Keep a provider's credential under a name."""
    own_id = new_id()
    provider = integrations.provider_named("provider", data.provider)
    values = {
        "workspace_id": desk.workspace,
        "slug": await desk.new_slug(INTEGRATIONS.table, "", data.name, 40),
        "name": data.name,
        "ai_provider_id": provider,
        "brought_along": True,
        "secret_mappings": await mappings.checked(desk, data.secret_mappings, desk.workspace, _known(provider)),
        **await integrations.sealed_key(desk, own_id, data.key),
        **await integrations.sealed_configurations(desk, own_id, "model_config", _configurations(provider, data)),
    }
    await integrations.refuse_given_away(desk, values)
    await integrations.add(desk, own_id, values)
    row = await SIDE.add(desk, data, own_id, {})
    return VirtualKeyMade(row["id"], row["slug"], MadeData(row["slug"]))


async def update(desk: Desk, row: Row, data: VirtualKeyChange) -> Created:
    """Change a virtual key; what is left out stays, and so does a credential that comes back masked."""
    own = await INTEGRATIONS.get(desk.organisation(), row["integration_id"])
    # It is shown as an empty one: that sent back means that it stays.
    change = await integrations.sealed_key(desk, own["id"], data.key, own) if data.key else {}
    about = _configurations(own["ai_provider_id"], data)
    if data.model_config is not UNSET or data.deployment_config is not UNSET:
        said = about if data.model_config is not UNSET else {**own["configurations"], **about}
        if data.deployment_config is None:
            said.pop("deploymentConfig", None)
        change |= await integrations.sealed_configurations(desk, own["id"], "model_config", said, own)
    if data.secret_mappings is not UNSET:
        known = _known(own["ai_provider_id"])
        before = own["secret_mappings"]
        change["secret_mappings"] = await mappings.checked(
            desk, data.secret_mappings, own["workspace_id"], known, before
        )
    await integrations.refuse_moved(desk, own, change, "model_config")
    if change and not own["brought_along"]:
        raise ForbiddenError(f"its credential is that of the integration {own['slug']!r}: change it there")
    if change:
        await INTEGRATIONS.change(desk, own, change)
    return await SIDE.change(desk, row, data)


def _known(provider: str) -> tuple[str, ...]:
    return (*forms.names(provider), *OF_AZURE)


def _configurations(provider: str, data: NewVirtualKey | VirtualKeyChange) -> dict[str, Any]:
    """Put what was sent about the provider into one table, under the names it was sent under."""
    sent: dict[str, Any] = msgspec.to_builtins(data)
    about: dict[str, Any] = sent.get("model_config") or {}
    forms.check_some("model_config", provider, about, allowed=OF_AZURE)
    return {**about, **{name: sent[name] for name in OF_AZURE if sent.get(name) is not None}}


routes = [
    SIDE.create(NewVirtualKey, VirtualKeyMade, create),
    *SIDE.reads(VirtualKey),
    SIDE.update(VirtualKeyChange, Created, update),
    SIDE.remove(SIDE.leave),
]
