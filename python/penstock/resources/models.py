"""The model catalogue: models that the workspace's providers offer, each named `@slug/model`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.errors import STORE_UNAVAILABLE_MESSAGE, InvalidError, NotFoundError, UnavailableError
from penstock.kit.integrations import usable_condition
from penstock.kit.shared_fields import ObjectType, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.pricing.price_book import PriceBook
from penstock.resources import _last_known
from penstock.schemas import now
from penstock.snapshot.build import SnapshotChannel, StoreData
from penstock.store.tables import api_keys, configs, integration_models, integrations, providers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.store.tenant import Row

TAGS = ["Models"]
REQUIRED_SCOPES = ("completions.write", "virtual_keys.list", "models.list")
MAX_PAGE_SIZE = 1000


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue."""

    id: Annotated[str, Meta(description="model name for requests: `@slug/model`")]
    created: Annotated[int, Meta(description="when its provider was created here, in Unix seconds")]
    owned_by: Annotated[str, Meta(description="name of the provider in the engine")]
    object: ObjectType = "model"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the models that may be used."""

    data: Annotated[list[CatalogueModel], Meta(description="models of this page")]
    total_count: Annotated[int, Meta(description="number of models on all pages")]
    object: ObjectType = "list"


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the format of Anthropic's API."""

    id: Annotated[str, Meta(description="model name for requests: `@slug/model`")]
    display_name: Annotated[str, Meta(description="the same")]
    created_at: Annotated[datetime, Meta(description="when its provider was created here")]
    type: Annotated[Literal["model"], Meta(description="type of the object")] = "model"


class AnthropicModelList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the models that may be used, in the format of Anthropic's API."""

    data: Annotated[list[AnthropicModel], Meta(description="models of this page")]
    first_id: Annotated[str | None, Meta(description="id of the first model; null for an empty page")]
    last_id: Annotated[str | None, Meta(description="id of the last model; null for an empty page")]
    has_more: Annotated[bool, Meta(description="true if more models follow the last one")]


ServiceParam = Annotated[
    str | None, QueryParameter(name="ai_service", description="only models of this type of provider")
]
ProviderParam = Annotated[str | None, QueryParameter(description="only models of the provider with this slug")]
LimitParam = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="maximum number of models to return; default: all")
]
OffsetParam = Annotated[int, QueryParameter(ge=0, description="number of models to skip")]
AfterParam = Annotated[str | None, QueryParameter(description="only models that follow the model with this id")]
SortParam = Annotated[
    Literal["name", "provider", "ai_service"], QueryParameter(description="field that the list is sorted by")
]
OrderParam = Annotated[Literal["asc", "desc"], QueryParameter(description="direction")]


SORT_KEYS: dict[str, Callable[[CatalogueModel], tuple[str, ...]]] = {
    "name": lambda model: (model.id.partition("/")[2], model.id),
    "provider": lambda model: (model.id,),
    "ai_service": lambda model: (model.owned_by, model.id),
}


@get("/", guards=[require_scopes(*REQUIRED_SCOPES)], summary="List models", tags=TAGS)
async def list_models(  # noqa: PLR0913, PLR0917 - the filters that there are
    request: Request[Any, Any, Any],
    work: NamedDependency[RequestContext],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[SnapshotChannel],
    workspace_id: WorkspaceFilter = None,
    ai_service: ServiceParam = None,
    provider: ProviderParam = None,
    limit: LimitParam = None,
    offset: OffsetParam = 0,
    after_id: AfterParam = None,
    sort: SortParam = "name",
    order: OrderParam = "asc",
) -> ModelList | AnthropicModelList:
    """Lists the models that may be used. If the request, key or token has a config, lists only models of the providers
    that it names.

    Clients that send `anthropic-version` get Anthropic's format. While the database is unavailable, workspace keys
    get the models of the last snapshot.
    """
    try:
        async with work.read_session(workspace_id) as session:
            provider_slugs = await _find_requested_providers(session, request)
            rows, models_by_integration = await _load_providers(session)
    except UnavailableError:
        snapshot = _open_last_snapshot(work, published, workspace_id)
        config_id, may_leave = _last_known.find_default_config(published.stored, work.caller)
        provider_slugs = _find_config_providers(
            _select_config(request, config_id, may_leave=may_leave), snapshot.find_config
        )
        rows, models_by_integration = snapshot.list_providers()
    found = [
        model
        for row in rows
        if (ai_service is None or row["ai_provider_id"] == ai_service)
        and (provider is None or row["slug"] == provider.removeprefix("@"))
        and (provider_slugs is None or row["slug"] in provider_slugs)
        for model in await _list_provider_models(row, models_by_integration, prices)
    ]
    found.sort(key=SORT_KEYS[sort], reverse=order == "desc")
    if after_id is not None:
        position = next((at for at, model in enumerate(found, 1) if model.id == after_id), None)
        if position is None:
            raise InvalidError(f"after_id: there is no model {after_id!r} in this list")
        offset += position
    end = None if limit is None else offset + limit
    page = found[offset:end]
    if request.headers.get("anthropic-version") is not None:
        return _to_anthropic_list(page, has_more=offset + len(page) < len(found))
    return ModelList(data=page, total_count=len(found))


def _to_anthropic_list(page: list[CatalogueModel], *, has_more: bool) -> AnthropicModelList:
    data = [
        AnthropicModel(id=model.id, display_name=model.id, created_at=datetime.fromtimestamp(model.created, UTC))
        for model in page
    ]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModelList(data=data, first_id=first, last_id=last, has_more=has_more)


@get("/{model:path}", guards=[require_scopes(*REQUIRED_SCOPES)], summary="Get model", tags=TAGS)
async def get_model(
    model: Annotated[str, PathParameter(description="id of the model: `@slug/model`")],
    work: NamedDependency[RequestContext],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[SnapshotChannel],
    workspace_id: WorkspaceFilter = None,
) -> CatalogueModel:
    """Returns one model that may be used."""
    wanted = model.removeprefix("/")
    slug = wanted.removeprefix("@").partition("/")[0]
    try:
        async with work.read_session(workspace_id) as session:
            rows, models_by_integration = await _load_providers(session)
    except UnavailableError:
        rows, models_by_integration = _open_last_snapshot(work, published, workspace_id).list_providers()
    for row in (row for row in rows if row["slug"] == slug):
        for found in await _list_provider_models(row, models_by_integration, prices):
            if found.id == wanted:
                return found
    raise NotFoundError(f"there is no model {wanted!r} in the catalogue")


async def _load_providers(session: TenantSession) -> tuple[list[Row], dict[str, list[Row]]]:
    """Returns the usable providers, and the model entries by integration id."""
    columns = (providers.c.slug, providers.c.created_at, providers.c.integration_id)
    integration_columns = (integrations.c.ai_provider_id, integrations.c.allow_all_models)
    query = select(*columns, *integration_columns).join(integrations, integrations.c.id == providers.c.integration_id)
    alive = or_(providers.c.expires_at.is_(None), providers.c.expires_at > now())
    query = query.where(providers.c.status == "active", alive, integrations.c.status == "active")
    rows = await session.fetch_rows(
        query.where(usable_condition(providers.c.workspace_id)).order_by(providers.c.id), providers
    )
    models_by_integration: dict[str, list[Row]] = {}
    wanted = {row["integration_id"] for row in rows}
    models = select(integration_models).where(integration_models.c.integration_id.in_(wanted))
    for model in await session.organisation().fetch_rows(models, integration_models):
        models_by_integration.setdefault(model["integration_id"], []).append(model)
    return rows, models_by_integration


async def _list_provider_models(
    row: Row, models_by_integration: dict[str, list[Row]], prices: PriceBook
) -> list[CatalogueModel]:
    enabled_by_slug = {
        model["slug"]: model["enabled"] for model in models_by_integration.get(row["integration_id"], [])
    }
    slugs = {slug for slug, enabled in enabled_by_slug.items() if enabled}
    if row["allow_all_models"]:
        slugs |= set(await prices.list_models(row["ai_provider_id"])) - set(enabled_by_slug)
    created_seconds = row["created_at"] // 1000
    return [
        CatalogueModel(id=f"@{row['slug']}/{slug}", created=created_seconds, owned_by=row["ai_provider_id"])
        for slug in sorted(slugs)
    ]


class SnapshotWorkspaceView(NamedTuple):
    """A workspace's data in the last snapshot."""

    stored: StoreData
    workspace: str

    def find_config(self, name: str) -> bytes | None:
        """Returns a saved config by id or slug, as JSON; `None` if there is none."""
        return _last_known.find_config(self.stored, self.workspace, name)

    def list_providers(self) -> tuple[list[Row], dict[str, list[Row]]]:
        """Returns the usable providers, and the model entries by integration id."""
        return _last_known.list_providers(self.stored, self.workspace)


def _open_last_snapshot(
    context: RequestContext, published: SnapshotChannel, workspace_id: str | None
) -> SnapshotWorkspaceView:
    """Returns the last snapshot's data for a key of one workspace, for use while the database is unavailable. Raises
    `UnavailableError` for other callers.
    """
    key_workspace_id = context.caller.workspace_id
    if key_workspace_id is None or workspace_id not in {None, key_workspace_id}:
        raise UnavailableError(STORE_UNAVAILABLE_MESSAGE)
    return SnapshotWorkspaceView(published.stored, key_workspace_id)


async def _find_requested_providers(session: TenantSession, request: Request[Any, Any, Any]) -> set[str] | None:
    """Returns the slugs of the providers that the config of the request or its key names; `None` if the config names
    none.
    """
    config_id, may_leave = await _find_default_config(session)
    sent = _select_config(request, config_id, may_leave=may_leave)
    if sent is None or _is_inline_config(sent):
        return _find_config_providers(sent, lambda _: None)
    row = await session.find(configs, sent)
    return _find_config_providers(sent, lambda _: row["config"] if row else None)


def _select_config(request: Request[Any, Any, Any], default_config: str | None, *, may_leave: bool) -> str | None:
    """Returns the config that applies to a request. A key or token that allows no override always uses its own config."""
    prefixes = ("x-gateway-", *request.app.state.get("header_aliases", ()))
    sent = next((found for prefix in prefixes if (found := request.headers.get(f"{prefix}config"))), None)
    return default_config or sent if sent is None or not may_leave else sent


def _is_inline_config(sent: str) -> bool:
    return sent.lstrip().startswith("{")


def _find_config_providers(sent: str | None, saved: Callable[[str], str | bytes | None]) -> set[str] | None:
    """Returns the slugs of the providers that a config names. `saved` looks up a config that is not inline. `None` if
    the config names no providers.
    """
    text = sent if sent is None or _is_inline_config(sent) else saved(sent)
    try:
        config: object = msgspec.json.decode(text or "null")
    except msgspec.DecodeError:
        return None
    targets = list(_iter_targets(config))
    if not targets or any(target.get("passthrough") is True for target in targets):
        return None
    slugs = {name for target in targets for name in _iter_provider_slugs(target)}
    return slugs or None


async def _find_default_config(session: TenantSession) -> tuple[str | None, bool]:
    """Returns the default config id of the key or token, and true if requests may use another config."""
    if session.caller.by != "key":
        return session.caller.config_id, session.caller.may_leave_config
    key = await session.find(api_keys, session.caller.id)
    defaults: dict[str, Any] = key["defaults"] if key else {}
    return defaults.get("config_id"), defaults.get("allow_config_override", True)


def _iter_provider_slugs(target: dict[str, Any]) -> Iterator[str]:
    """Yields the provider slugs that a target names, including that of a model `@slug/model`."""
    overridden: object = target.get("override_params")
    model = cast("dict[str, object]", overridden).get("model") if isinstance(overridden, dict) else None
    if isinstance(model, str) and model.startswith("@"):
        yield model[1:].partition("/")[0]
    elif isinstance(name := target.get("virtual_key") or target.get("provider"), str):
        yield name.removeprefix("@")


def _iter_targets(config: object) -> Iterator[dict[str, Any]]:
    """Yields a config and all its nested targets."""
    if isinstance(config, dict):
        node = cast("dict[str, Any]", config)
        yield node
        inner = node.get("targets")
        for target in cast("list[object]", inner) if isinstance(inner, list) else []:
            yield from _iter_targets(target)


routes = [list_models, get_model]
