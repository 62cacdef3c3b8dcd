"""Virtual keys: a name that stands for a provider and its credential, which nobody is shown again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.caller import needs
from penstock.errors import ForbiddenError
from penstock.kit import configurations as forms
from penstock.kit import integrations, mappings
from penstock.kit import providers as kit
from penstock.kit.desk import Desk, Work
from penstock.kit.fields import Id, IdOrSlug, Object, Slug, WorkspaceAsked
from penstock.kit.ids import new_id, slug
from penstock.kit.integrations import INTEGRATIONS
from penstock.kit.listing import Page
from penstock.kit.mappings import SecretMapping
from penstock.kit.record import Done, Listed
from penstock.kit.resource import Resource
from penstock.store.tables import providers, workspaces

if TYPE_CHECKING:
    from penstock.store.tenant import Row

VIRTUAL_KEYS = Resource("virtual_keys", providers, publishes=True)
TAGS = ["Virtual keys"]
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
    model_config: Annotated[dict[str, Any] | UnsetType, Meta(description="more about the provider")] = UNSET
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


class VirtualKeyChanged(msgspec.Struct, frozen=True):
    """A changed virtual key."""

    id: Id
    slug: Slug
    object: Object = "virtual-key"


class VirtualKey(kit.Shown, frozen=True, kw_only=True):
    """One virtual key."""

    key: Annotated[str, Meta(description="always empty: the credential is not shown")] = ""
    masked_api_key: Annotated[str | None, Meta(description="both ends of the credential")]
    provider: Annotated[str, Meta(description="name of the provider")]
    workspace_name: Annotated[str, Meta(description="name of its workspace")]
    secret_mappings: Annotated[list[dict[str, Any]], Meta(description="fields whose values are kept elsewhere")]
    object: Object = "virtual-key"


@post("/", status_code=200, guards=[needs("virtual_keys.create")], summary="Create virtual key", tags=TAGS)
async def create(data: JSONBody[NewVirtualKey], work: NamedDependency[Work]) -> VirtualKeyMade:
    """Keep a provider's credential under a name."""
    provider = integrations.provider_named("provider", data.provider)
    configurations = _configurations(data)
    async with work.writing(data.workspace_id) as desk:
        own = await integrations.add(
            desk,
            own_id := new_id(),
            {
                "workspace_id": desk.workspace,
                "slug": slug("", data.name, 40),
                "name": data.name,
                "ai_provider_id": provider,
                "brought_along": True,
                "secret_mappings": await mappings.checked(desk, data.secret_mappings, desk.workspace),
                **await integrations.sealed_key(desk, own_id, data.key),
                **await integrations.sealed_configurations(desk, own_id, configurations),
            },
        )
        row = await kit.add(desk, VIRTUAL_KEYS, data, own["id"], {})
        return VirtualKeyMade(row["id"], row["slug"], MadeData(row["slug"]))


@get("/", guards=[needs("virtual_keys.list")], summary="List virtual keys", tags=TAGS)
async def index(
    work: NamedDependency[Work], page: NamedDependency[Page], workspace_id: WorkspaceAsked = None
) -> Listed[VirtualKey]:
    """List virtual keys, their credentials masked."""
    async with work.reading(workspace_id) as desk:
        total, rows = await VIRTUAL_KEYS.page(desk, page)
        return Listed(total, await _shown(desk, rows))


@get("/{key:str}", guards=[needs("virtual_keys.read")], summary="Get virtual key", tags=TAGS)
async def show(key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None) -> VirtualKey:
    """Give a virtual key, its credential masked."""
    async with work.reading(workspace_id) as desk:
        return (await _shown(desk, [await VIRTUAL_KEYS.get(desk, key)]))[0]


@put("/{key:str}", guards=[needs("virtual_keys.update")], summary="Update virtual key", tags=TAGS)
async def update(
    key: IdOrSlug, data: JSONBody[VirtualKeyChange], work: NamedDependency[Work], workspace_id: WorkspaceAsked = None
) -> VirtualKeyChanged:
    """Change a virtual key; what is left out stays, and so does a credential that comes back masked."""
    async with work.writing(workspace_id) as desk:
        row = await VIRTUAL_KEYS.get(desk, key)
        own = await INTEGRATIONS.get(desk.organisation(), row["integration_id"])
        change = await integrations.sealed_key(desk, own["id"], data.key, own) if data.key is not UNSET else {}
        if about := _configurations(data):
            change |= await integrations.sealed_configurations(desk, own["id"], {**own["configurations"], **about}, own)
        if data.secret_mappings is not UNSET:
            change["secret_mappings"] = await mappings.checked(desk, data.secret_mappings, own["workspace_id"])
        if change and not own["brought_along"]:
            raise ForbiddenError(f"its credential is that of the integration {own['slug']!r}: change it there")
        if change:
            await INTEGRATIONS.change(desk, own, change)
        row = await kit.change(desk, VIRTUAL_KEYS, row, data)
        return VirtualKeyChanged(row["id"], row["slug"])


@delete("/{key:str}", status_code=200, guards=[needs("virtual_keys.delete")], summary="Delete virtual key", tags=TAGS)
async def remove(key: IdOrSlug, work: NamedDependency[Work], workspace_id: WorkspaceAsked = None) -> Done:
    """Delete a virtual key, and its credential with it."""
    async with work.writing(workspace_id) as desk:
        await kit.remove(desk, VIRTUAL_KEYS, key)
        return Done()


def _configurations(data: NewVirtualKey | VirtualKeyChange) -> dict[str, Any]:
    """Put what was sent about the provider into one table, under the names it was sent under."""
    sent: dict[str, Any] = msgspec.to_builtins(data)
    about: dict[str, Any] = sent.get("model_config") or {}
    places = {name: about[name] for name in forms.Place.__struct_fields__ if name in about}
    forms.convert("model_config", forms.Place, places)
    return {**about, **{name: sent[name] for name in OF_AZURE if sent.get(name) is not None}}


async def _shown(desk: Desk, rows: list[Row]) -> list[VirtualKey]:
    """Show rows with what is said of them elsewhere: their integrations and workspaces."""
    behind = await kit.behind(desk, rows)
    places = select(workspaces.c.id, workspaces.c.name).where(
        workspaces.c.id.in_({row["workspace_id"] for row in rows})
    )
    names = {found["id"]: found["name"] for found in await desk.rows(places, workspaces)}
    return [_one(row, behind[row["integration_id"]], names[row["workspace_id"]]) for row in rows]


def _one(row: Row, own: Row, workspace_name: str) -> VirtualKey:
    return VirtualKey(
        **kit.shown(row, own),
        masked_api_key=own["masked_key"],
        provider=own["ai_provider_id"],
        secret_mappings=own["secret_mappings"],
        workspace_name=workspace_name,
    )


routes = [create, index, show, update, remove]
