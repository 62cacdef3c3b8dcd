"""Integrations as rows: which provider, with which credential, at which address, and in which workspaces."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import and_, exists, or_, select

from penstock import engine, ids
from penstock.authorization import require_scopes
from penstock.errors import ConflictError, NotFoundError
from penstock.ids import PROVIDER_ALIASES, SLUG_PATTERN, mask_secret, new_id
from penstock.kit import provider_options as forms
from penstock.kit.resource import Resource
from penstock.schemas import field_error, now
from penstock.secrets import mappings
from penstock.secrets.masks import MOVED_MESSAGE
from penstock.store.tables import integration_models, integration_workspaces, integrations, providers, workspaces
from penstock.store.tenant import select_by_id_or_slug

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement

    from penstock.authorization import RequireScopes
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

INTEGRATIONS = Resource("integrations", integrations, publishes=True)
MODELS = Resource("integration_models", integration_models, publishes=True)
WORKSPACES = Resource("integration_workspaces", integration_workspaces, publishes=True)
PROVIDERS = Resource("providers", providers, publishes=True)
MAX_SLUG_ROOT_LENGTH = 200
HEADERS_FOLLOW_HINT = "would follow; hint: take them away first, or give it a custom_host of its own"
OWNER_ONLY_HINT = "only who gave them names one, or names one of those that it has already"

ProviderSlug = Annotated[
    Annotated[str, Meta(pattern=SLUG_PATTERN)] | None,
    Meta(description="slug of the provider that is made along; default: the integration's"),
]

DEFAULT_VALUES: dict[str, Any] = {
    "description": None,
    "status": "active",
    "brought_along": False,
    "sealed_key": None,
    "masked_key": None,
    "key_given_by": None,
    "sealed_configurations": None,
    "configurations_given_by": None,
    "secret_mappings": [],
    "tags": {},
    "allow_all_models": True,
    "pricing_adjustments": None,
    "global_access": {"enabled": False},
    "default_provider_slug": None,
}


def resolve_provider(path: str, name: str) -> str:
    """Give the provider of this name as the engine calls it; one that the engine does not know is refused."""
    known = sorted(provider["slug"] for provider in engine.catalogue())
    found = PROVIDER_ALIASES.get(name, name)
    if found not in known:
        raise field_error(path, f"{name!r} is not known; allowed: {', '.join(known)}")
    return found


async def create_integration(desk: TenantSession, row_id: str, values: Mapping[str, Any]) -> Row:
    """Make an integration."""
    return await INTEGRATIONS.create(desk, {**DEFAULT_VALUES, "owner_id": desk.caller.actor_id, "id": row_id, **values})


async def mark_changed(desk: TenantSession, row: Row) -> None:
    """Note that something was said of an integration's models or workspaces: who counts on what was there learns of it."""
    whole = desk.organisation()
    await whole.check_precondition(integrations, row)
    # Later in any case, or two changes within a millisecond would look like one.
    await whole.update(integrations, row["id"], {"last_updated_at": max(now(), row["last_updated_at"] + 1)})


async def remove_integration(desk: TenantSession, row: Row) -> None:
    """Remove an integration, and the providers that stand on it."""
    whole = desk.organisation()
    await whole.check_precondition(integrations, row)
    await PROVIDERS.delete_all(whole, providers.c.integration_id == row["id"])
    await _remove_with_details(whole, row)


def model_session(desk: TenantSession, row: Row) -> TenantSession:
    """Step to where an integration's models are changed: that is noted in the workspace whose own it is."""
    whole = desk.organisation()
    whole.noted_in = row["workspace_id"]
    return whole


async def _remove_with_details(whole: TenantSession, row: Row) -> None:
    """Remove an integration with what was said of its models and workspaces."""
    await MODELS.delete_all(model_session(whole, row), integration_models.c.integration_id == row["id"])
    await WORKSPACES.delete_all(whole, integration_workspaces.c.integration_id == row["id"])
    await INTEGRATIONS.delete(whole, row)


async def remove_owned(desk: TenantSession) -> None:
    """Remove the integrations of a workspace; its providers are gone already."""
    for row in await desk.fetch_rows(select(integrations), integrations):
        await _remove_with_details(desk.organisation(), row)


async def remove_if_unused(desk: TenantSession, integration_id: str) -> None:
    """Let go of an integration: one that a virtual key brought along goes when nothing uses it any more."""
    row = await desk.find(integrations, integration_id)
    if row and row["brought_along"] and not await desk.count(providers, [providers.c.integration_id == row["id"]]):
        await _remove_with_details(desk.organisation(), row)


async def seal_key(desk: TenantSession, owner: str, key: str, row: Row | None = None) -> dict[str, Any]:
    """Seal a credential; an empty one is none, and the masked form sent back means that it stays."""
    if row is not None and key == row["masked_key"]:
        return {}
    if not key:
        return {"sealed_key": None, "masked_key": None, "key_given_by": None}
    if not key.isprintable():
        raise field_error("key", "must not hold control characters")
    return {
        "sealed_key": await desk.seal(key, owner),
        "masked_key": mask_secret(key),
        "key_given_by": desk.caller.actor_id,
    }


async def reject_moved_credentials(
    desk: TenantSession, row: Row, change: Mapping[str, Any], configurations: str
) -> None:
    """Refuse to have credentials of an integration sent elsewhere, unless they come along; `configurations` is their field."""
    is_moved = forms.has_new_destination(_options_with_mappings(row), _options_with_mappings({**row, **change}))
    if "secret_mappings" in change or is_moved:
        await reject_exposed_secrets(desk, {**row, **change}, [] if is_moved else row["secret_mappings"], row)
    if not is_moved:
        return
    if row["secret_mappings"] and "secret_mappings" not in change:
        mappings.require_reference_scope(desk, "secret_mappings", MOVED_MESSAGE)
    for path, kept in (("key", "sealed_key"), (configurations, "sealed_configurations")):
        if row[kept] and kept not in change:
            raise field_error(path, MOVED_MESSAGE)
    for model in await list_models(desk, row):
        if model["sealed_configurations"] and not _custom_host(model):
            raise field_error(
                configurations, f"names another place, and custom_headers of {model['slug']!r} {HEADERS_FOLLOW_HINT}"
            )


async def reject_exposed_secrets(
    desk: TenantSession, values: Mapping[str, Any], known: Collection[Mapping[str, Any]] = (), row: Row | None = None
) -> None:
    """Refuse to send secrets that others keep to anybody's host, but for those that were `known` to go there."""
    said = forms.untrusted_host_fields(_options_with_mappings(values))
    said += [
        f"models[{model['slug']!r}]" for model in (await list_models(desk, row) if row else []) if _custom_host(model)
    ]
    for index, mapping in enumerate(values["secret_mappings"]):
        if said and mapping not in known:
            why = f"would send a secret that others keep where {said[0]} says, which may be anybody's"
            mappings.require_reference_scope(desk, f"secret_mappings[{index}]", why)


def reject_foreign_host(
    desk: TenantSession, row: Row, path: str, host: str | None, bound: Iterable[str | None], key: str | UnsetType
) -> None:
    """Refuse a model's own host that credentials of its integration were never meant for; who gave them says where to."""
    if host is None:
        return
    if _origin(host) in {_origin(known) for known in (_custom_host(row), *bound) if known}:
        return
    if row["secret_mappings"]:
        mappings.require_reference_scope(desk, path, "is another place for secrets that others keep")
    if row["sealed_configurations"] and row["configurations_given_by"] != desk.caller.actor_id:
        raise field_error(path, "is another place for this integration's custom_headers: " + OWNER_ONLY_HINT)
    is_sent = key is not UNSET and key != row["masked_key"]
    if row["sealed_key"] and row["key_given_by"] != desk.caller.actor_id and not is_sent:
        raise field_error("key", MOVED_MESSAGE)


def _custom_host(row: Row) -> str | None:
    return row["configurations"].get("custom_host")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


async def list_models(desk: TenantSession, row: Row) -> list[Row]:
    """List what was said of an integration's models."""
    query = select(integration_models).where(integration_models.c.integration_id == row["id"])
    return await desk.organisation().fetch_rows(query.order_by(integration_models.c.slug), integration_models)


def _options_with_mappings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is said of where an integration is, here or by what is kept elsewhere."""
    mapped = {said["target_field"].removeprefix("configurations."): said for said in row["secret_mappings"]}
    return {**row["configurations"], **mapped}


async def seal_options(
    desk: TenantSession, owner: str, path: str, given: Mapping[str, Any], row: Row | None = None
) -> dict[str, Any]:
    """Seal what is secret among configurations of an integration, keep the rest as it is shown, and note who gave it."""
    before: dict[str, Any] = await open_secrets(desk, row) if row else {}
    shown, hidden = forms.split_secrets(path, given, row["configurations"] if row else {}, before)
    return {
        **await _seal_secrets(desk, owner, shown, hidden),
        "configurations_given_by": _secrets_owner(desk, given, hidden, before, row),
    }


def _secrets_owner(
    desk: TenantSession, given: Mapping[str, Any], hidden: Mapping[str, Any], before: Mapping[str, Any], row: Row | None
) -> str | None:
    known = row["configurations_given_by"] if row else None
    if hidden and all(given[name] == value for name, value in hidden.items()):
        return desk.caller.actor_id
    # Of what several gave no single one may say where it goes.
    return known if hidden and (hidden == before or known == desk.caller.actor_id) else None


async def seal_model_options(
    desk: TenantSession, owner: str, path: str, given: Mapping[str, Any], row: Row | None = None
) -> dict[str, Any]:
    """Do the same for what is said of a model: its header fields go nowhere else anyway, unless they are sent anew."""
    before: dict[str, Any] = await open_secrets(desk, row) if row else {}
    return await _seal_secrets(
        desk, owner, *forms.split_secrets(path, given, row["configurations"] if row else {}, before)
    )


async def _seal_secrets(
    desk: TenantSession, owner: str, shown: Mapping[str, Any], hidden: Mapping[str, Any]
) -> dict[str, Any]:
    sealed = await desk.seal(msgspec.json.encode(hidden).decode(), owner) if hidden else None
    return {"configurations": shown, "sealed_configurations": sealed}


async def open_secrets(desk: TenantSession, row: Row) -> dict[str, Any]:
    """Open what is secret among the configurations of an integration or a model."""
    if not row["sealed_configurations"]:
        return {}
    return msgspec.json.decode(await desk.open(row["sealed_configurations"], row["id"]))


async def find_integration(desk: TenantSession, key: str) -> Row | None:
    """Find an integration that is open to the desk: its workspace's own, or one of the organisation that it may use; no virtual key's."""
    query = select_by_id_or_slug(integrations, key).where(
        *visible_conditions(desk.workspace_ids), ~integrations.c.brought_along
    )
    return await desk.organisation().fetch_first(query, integrations)


async def get_integration(desk: TenantSession, key: str, verb: str) -> Row:
    """Find an integration, and see whether the caller may do that to one of its kind."""
    row = await find_integration(desk, key)
    if row is None:
        raise NotFoundError(f"there is nothing under {key!r} here")
    desk.set_requested_row(integrations, row)
    may = [scope_for_verb(row["workspace_id"], verb)]
    if verb == "read":
        # Who may see those of a workspace may see which of the organisation's it can use.
        may.append(f"workspace_integrations.{verb}")
    desk.require_any_scope(*may)
    return row


def require_either_scope(verb: str) -> RequireScopes:
    """Guard a verb: who may do it to integrations of a workspace or of the organisation; which it is, its row says."""
    return require_scopes(scope_for_verb("", verb), scope_for_verb("some", verb))


def scope_for_verb(workspace_id: str | None, verb: str) -> str:
    """Name the scope that a verb needs: an integration is the organisation's, or one workspace's own."""
    return f"{'workspace' if workspace_id else 'organisation'}_integrations.{verb}"


def visible_conditions(places: frozenset[str] | None) -> list[ColumnElement[bool]]:
    """Say which integrations are seen from these workspaces; from the organisation all are."""
    if places is None:
        return []
    return [
        or_(integrations.c.workspace_id.in_(sorted(places)), *(usable_condition(place) for place in sorted(places)))
    ]


def usable_condition(workspace_id: str | ColumnElement[str]) -> ColumnElement[bool]:
    """Say which integrations a workspace may use: its own, those it was given, and those that all have."""
    said = (
        select(integration_workspaces.c.enabled)
        .where(
            integration_workspaces.c.integration_id == integrations.c.id,
            integration_workspaces.c.workspace_id == workspace_id,
        )
        .correlate(integrations, providers, workspaces)
    )
    nothing_said = and_(integrations.c.global_access["enabled"].as_boolean(), ~exists(said))
    given = exists(said.where(integration_workspaces.c.enabled))
    shared = and_(integrations.c.workspace_id.is_(None), or_(given, nothing_said))
    return or_(integrations.c.workspace_id == workspace_id, shared)


async def find_free_slug(desk: TenantSession, wanted: str, workspace_id: str | None = None) -> str:
    """Give a provider this slug, or one like it where the workspace has that already."""
    free = wanted
    while await _is_slug_used(desk, free, workspace_id or desk.required_workspace_id):
        free = f"{wanted[:MAX_SLUG_ROOT_LENGTH]}-{secrets.token_hex(3)}"
    return free


def slug_from_name(name: str) -> str:
    """Make a slug of a provider's name."""
    return ids.slug_root(name, MAX_SLUG_ROOT_LENGTH, "key")


async def create_missing_providers(
    desk: TenantSession, row: Row, workspace_ids: Sequence[str], wanted: str | None
) -> None:
    """Make an integration usable in workspaces where it is not yet: under this name, or else one like its own."""
    whole = desk.organisation()
    there = select(providers.c.workspace_id).where(providers.c.integration_id == row["id"])
    has = {found["workspace_id"] for found in await whole.fetch_rows(there, providers)}
    for workspace_id in (one for one in workspace_ids if one not in has):
        values: dict[str, Any] = {
            "workspace_id": workspace_id,
            "integration_id": row["id"],
            "slug": await _choose_slug(desk, row, workspace_id, wanted),
            "name": row["name"],
            "note": None,
            "status": "active",
            "tags": {},
            **dict.fromkeys(("expires_at", "usage_limits", "rate_limits", "last_reset_at")),
        }
        await PROVIDERS.create(whole, values)


async def _choose_slug(desk: TenantSession, row: Row, workspace_id: str, wanted: str | None) -> str:
    if wanted is None:
        return await find_free_slug(desk, row["default_provider_slug"] or row["slug"], workspace_id)
    if await _is_slug_used(desk, wanted, workspace_id):
        message = f"the workspace {workspace_id} has a provider {wanted!r} already; hint: another default_provider_slug"
        raise ConflictError(message)
    return wanted


async def _is_slug_used(desk: TenantSession, slug: str, workspace_id: str) -> bool:
    here = [providers.c.workspace_id == workspace_id, providers.c.slug == slug]
    return await desk.organisation().count(providers, here) > 0


async def set_workspace_access(desk: TenantSession, row: Row, workspace_id: str, values: Mapping[str, Any]) -> None:
    """Say that a workspace may use an integration, or may not, and how much."""
    whole = desk.organisation()
    here = [
        integration_workspaces.c.integration_id == row["id"],
        integration_workspaces.c.workspace_id == workspace_id,
    ]
    before = await whole.fetch_first(select(integration_workspaces).where(*here), integration_workspaces)
    if before:
        await WORKSPACES.update(whole, before, values)
        return
    fresh = {"id": new_id(), "integration_id": row["id"], "workspace_id": workspace_id}
    nothing = dict.fromkeys(("usage_limits", "rate_limits", "last_reset_at"))
    await WORKSPACES.create(whole, {**fresh, **nothing, **values})


async def last_reset_times(desk: TenantSession, rows: Iterable[Row]) -> dict[str, int]:
    """Say when what is used of integrations was last counted anew, by their ids: in one of the workspaces that are open here."""
    shares = integration_workspaces.c
    here = [shares.integration_id.in_([row["id"] for row in rows]), shares.last_reset_at.is_not(None)]
    if desk.workspace_ids is not None:
        here.append(shares.workspace_id.in_(sorted(desk.workspace_ids)))
    query = select(shares.integration_id, shares.last_reset_at).where(*here).order_by(shares.last_reset_at)
    found = await desk.organisation().fetch_rows(query, integration_workspaces)
    return {share["integration_id"]: share["last_reset_at"] for share in found}


async def create_default_providers(desk: TenantSession, workspace_id: str) -> None:
    """Give a new workspace what all workspaces have."""
    shared = [integrations.c.workspace_id.is_(None), integrations.c.global_access["enabled"].as_boolean()]
    query = select(integrations).where(*shared, integrations.c.status == "active")
    for row in await desk.organisation().fetch_rows(query, integrations):
        if row["global_access"].get("create_default_provider"):
            await create_missing_providers(desk, row, [workspace_id], None)


async def usable_workspace_ids(desk: TenantSession, row: Row) -> list[str]:
    """List the workspaces that may use an integration."""
    query = select(workspaces.c.id).select_from(workspaces).join(integrations, usable_condition(workspaces.c.id))
    query = query.where(integrations.c.id == row["id"], workspaces.c.status == "active")
    return [found["id"] for found in await desk.organisation().fetch_rows(query, workspaces, integrations)]
