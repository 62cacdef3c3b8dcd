"""The model catalogue: models that the workspace's providers offer, each named `@slug/model`, or by its plain name if
the key has only one provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter
from sqlalchemy import or_, select

from penstock.authorization import require_scopes
from penstock.errors import STORE_UNAVAILABLE_MESSAGE, InvalidError, NotFoundError, UnavailableError
from penstock.integrations.saved_integrations import usable_condition
from penstock.kit.client_format import detect_client_format
from penstock.kit.route_parameters import WorkspaceFilter
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.pricing.price_book import PriceBook
from penstock.resources import _last_known
from penstock.resources._model_formats import (
    AnyModel,
    AnyModelList,
    CatalogueModel,
    PageBounds,
    to_client_list,
    to_client_model,
)
from penstock.schemas import now
from penstock.snapshot.build import SnapshotChannel, StoreData
from penstock.store.tables import api_keys, configs, integration_models, integrations, providers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.store.tenant import Row

TAGS = ["Models"]
REQUIRED_SCOPES = ("completions.write", "virtual_keys.list", "models.list")
MAX_PAGE_SIZE = 1000


ServiceParam = Annotated[
    str | None, QueryParameter(name="ai_service", description="only models of this type of provider")
]
ProviderParam = Annotated[str | None, QueryParameter(description="only models of the provider with this slug")]
LimitParam = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="maximum number of models to return; default: all")
]
OffsetParam = Annotated[int, QueryParameter(ge=0, description="number of models to skip")]
AfterParam = Annotated[str | None, QueryParameter(description="only models that follow the model with this id")]
BeforeParam = Annotated[str | None, QueryParameter(description="only models that precede the model with this id")]
PageSizeParam = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="the same as `limit`, for Cohere's SDK")
]
CamelPageSizeParam = Annotated[
    int | None,
    QueryParameter(name="pageSize", ge=1, le=MAX_PAGE_SIZE, description="the same as `limit`, for Google's SDK"),
]
TokenParam = Annotated[
    int | None, QueryParameter(ge=0, description="`next_page_token` of the page before, for Cohere's SDK")
]
CamelTokenParam = Annotated[
    int | None,
    QueryParameter(name="pageToken", ge=0, description="`nextPageToken` of the page before, for Google's SDK"),
]
SortParam = Annotated[
    Literal["name", "provider", "ai_service"], QueryParameter(description="field that the list is sorted by")
]
OrderParam = Annotated[Literal["asc", "desc"], QueryParameter(description="direction")]


class CallableModel(NamedTuple):
    """A model that a saved provider offers."""

    name: str
    provider_slug: str
    service: str
    created_seconds: int

    @property
    def id(self) -> str:
        """Model name for requests, including the provider: `@slug/model`."""
        return f"@{self.provider_slug}/{self.name}"

    def to_catalogue(self, *, is_plain: bool) -> CatalogueModel:
        """Returns the entry of the catalogue. `is_plain` selects the plain name, and otherwise the one with the
        provider.
        """
        return CatalogueModel(
            id=self.name if is_plain else self.id, created=self.created_seconds, owned_by=self.service
        )


class ProviderChoice(NamedTuple):
    """Slugs of the providers that the config of a request names; `None` if it names none.

    `has_plain_names` is true if requests with the key reach only one provider. Models then have plain names.
    """

    slugs: set[str] | None
    has_plain_names: bool


class ListWindow(msgspec.Struct, frozen=True):
    """The part of the model list that is requested."""

    limit: int | None
    offset: int
    after_id: str | None
    before_id: str | None

    def find_bounds(self, models: list[CatalogueModel]) -> PageBounds:
        """Returns the positions of the requested models in the whole list."""
        start, end = self.offset, len(models)
        if self.after_id is not None:
            start += _find_position("after_id", self.after_id, models) + 1
        if self.before_id is not None:
            end = _find_position("before_id", self.before_id, models)
            if self.limit is not None and self.after_id is None:
                start = max(start, end - self.limit)
        end = end if self.limit is None else min(end, start + self.limit)
        return PageBounds(start, max(start, end), goes_back=self.before_id is not None)


SORT_KEYS: dict[str, Callable[[CallableModel], tuple[str, ...]]] = {
    "name": lambda model: (model.name, model.id),
    "provider": lambda model: (model.id,),
    "ai_service": lambda model: (model.service, model.id),
}


def read_list_window(  # noqa: PLR0913, PLR0917 - one parameter for each name that an SDK uses
    limit: LimitParam = None,
    offset: OffsetParam = 0,
    after_id: AfterParam = None,
    before_id: BeforeParam = None,
    page_size: PageSizeParam = None,
    camel_page_size: CamelPageSizeParam = None,
    page_token: TokenParam = None,
    camel_page_token: CamelTokenParam = None,
) -> ListWindow:
    """Reads the query parameters for pages. The APIs of OpenAI, Anthropic, Google and Cohere have different names for
    them.
    """
    sizes = (size for size in (limit, page_size, camel_page_size) if size is not None)
    return ListWindow(next(sizes, None), offset or page_token or camel_page_token or 0, after_id, before_id)


@get(
    "/",
    guards=[require_scopes(*REQUIRED_SCOPES)],
    dependencies={"window": Provide(read_list_window, sync_to_thread=False)},
    summary="List models",
    tags=TAGS,
)
async def list_models(  # noqa: PLR0913, PLR0917 - one parameter for each filter
    request: Request[Any, Any, Any],
    context: NamedDependency[RequestContext],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[SnapshotChannel],
    window: NamedDependency[ListWindow],
    workspace_id: WorkspaceFilter = None,
    ai_service: ServiceParam = None,
    provider: ProviderParam = None,
    sort: SortParam = "name",
    order: OrderParam = "asc",
) -> AnyModelList:
    """Lists the models that may be used. If the request, key or token has a config, lists only models of the providers
    that it names. If the config of the key names one provider, its models have their plain names.

    Clients of Anthropic (`anthropic-version`), Google (`x-goog-api-key`, `x-goog-api-client`) and Cohere (`user-agent`)
    get the format of their API. While the database is unavailable, workspace keys get the models of the last snapshot.
    """
    choice, rows, models_by_integration = await _load_catalogue(request, context, published, workspace_id)
    result = [
        model
        for row in rows
        if (ai_service is None or row["ai_provider_id"] == ai_service)
        and (provider is None or row["slug"] == provider.removeprefix("@"))
        and (choice.slugs is None or row["slug"] in choice.slugs)
        for model in await _list_provider_models(row, models_by_integration, prices)
    ]
    result.sort(key=SORT_KEYS[sort], reverse=order == "desc")
    listed = [model.to_catalogue(is_plain=choice.has_plain_names) for model in result]
    return to_client_list(detect_client_format(request.scope["headers"]), listed, window.find_bounds(listed))


@get("/{model:path}", guards=[require_scopes(*REQUIRED_SCOPES)], summary="Get model", tags=TAGS)
async def get_model(
    request: Request[Any, Any, Any],
    model: Annotated[str, PathParameter(description="id of the model: `@slug/model`, or `model` alone")],
    context: NamedDependency[RequestContext],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[SnapshotChannel],
    workspace_id: WorkspaceFilter = None,
) -> AnyModel:
    """Returns one model that may be used. A name without a provider is that of a model of the providers that the config
    of the request, key or token names.
    """
    requested = model.removeprefix("/")
    choice, rows, models_by_integration = await _load_catalogue(request, context, published, workspace_id)
    slug, separator, name = requested.removeprefix("@").partition("/")
    names = [(row, name) for row in rows if requested.startswith("@") and separator and row["slug"] == slug]
    # Some providers have models whose own names begin with `@`.
    chosen = [(row, requested) for row in rows if choice.slugs is not None and row["slug"] in choice.slugs]
    for row, wanted_name in [*names, *chosen]:
        provider_model = await _find_provider_model(row, wanted_name, models_by_integration, prices)
        if provider_model:
            listed = provider_model.to_catalogue(is_plain=wanted_name == requested)
            return to_client_model(detect_client_format(request.scope["headers"]), listed)
    raise NotFoundError(
        f"there is no model {requested!r} in the catalogue; hint: `@slug/model` names the provider too, and GET /v1/models lists the names"
    )


def _find_position(field: str, requested: str, models: list[CatalogueModel]) -> int:
    position = next((at for at, model in enumerate(models) if model.id == requested), None)
    if position is None:
        raise InvalidError(f"{field}: there is no model {requested!r} in this list")
    return position


async def _load_catalogue(
    request: Request[Any, Any, Any], context: RequestContext, published: SnapshotChannel, workspace_id: str | None
) -> tuple[ProviderChoice, list[Row], dict[str, list[Row]]]:
    """Returns the providers that the config of the request names, all usable providers, and the model entries by
    integration id. Reads the last snapshot if the database is unavailable.
    """
    try:
        async with context.read_session(workspace_id) as session:
            choice = await _find_requested_providers(session, request)
            return choice, *await _load_providers(session)
    except UnavailableError:
        snapshot = _open_last_snapshot(context, published, workspace_id)
        config_id, may_leave = _last_known.find_default_config(published.stored, context.caller)
        sent, is_default = _select_config(request, config_id, may_leave=may_leave)
        slugs = _find_config_providers(sent, snapshot.find_config)
        return _choose_providers(request, slugs, is_default=is_default), *snapshot.list_providers()


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
    requested = {row["integration_id"] for row in rows}
    models = select(integration_models).where(integration_models.c.integration_id.in_(requested))
    for model in await session.organisation().fetch_rows(models, integration_models):
        models_by_integration.setdefault(model["integration_id"], []).append(model)
    return rows, models_by_integration


async def _list_provider_models(
    row: Row, models_by_integration: dict[str, list[Row]], prices: PriceBook
) -> list[CallableModel]:
    enabled_by_slug = _enabled_by_slug(row, models_by_integration)
    names = {name for name, enabled in enabled_by_slug.items() if enabled}
    if row["allow_all_models"]:
        names |= set(await prices.list_callable_models(row["ai_provider_id"])) - set(enabled_by_slug)
    return [_to_callable_model(row, name) for name in sorted(names)]


async def _find_provider_model(
    row: Row, name: str, models_by_integration: dict[str, list[Row]], prices: PriceBook
) -> CallableModel | None:
    """Returns a model that the provider offers. It may be an unlisted version or variant of a listed model, if its
    price is known.
    """
    is_enabled = _enabled_by_slug(row, models_by_integration).get(name)
    if is_enabled is None:
        is_enabled = row["allow_all_models"] and await prices.is_callable_model(row["ai_provider_id"], name)
    return _to_callable_model(row, name) if is_enabled else None


def _enabled_by_slug(row: Row, models_by_integration: dict[str, list[Row]]) -> dict[str, bool]:
    return {model["slug"]: model["enabled"] for model in models_by_integration.get(row["integration_id"], [])}


def _to_callable_model(row: Row, name: str) -> CallableModel:
    return CallableModel(name, row["slug"], row["ai_provider_id"], row["created_at"] // 1000)


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


async def _find_requested_providers(session: TenantSession, request: Request[Any, Any, Any]) -> ProviderChoice:
    """Returns the providers that the config of the request or its key names."""
    config_id, may_leave = await _find_default_config(session)
    sent, is_default = _select_config(request, config_id, may_leave=may_leave)
    if sent is None or _is_inline_config(sent):
        slugs = _find_config_providers(sent, lambda _: None)
    else:
        row = await session.find(configs, sent)
        slugs = _find_config_providers(sent, lambda _: row["config"] if row else None)
    return _choose_providers(request, slugs, is_default=is_default)


def _choose_providers(request: Request[Any, Any, Any], slugs: set[str] | None, *, is_default: bool) -> ProviderChoice:
    """Returns the providers of a config, and whether the request reaches its models by their plain names."""
    names_provider = any(_control_header(request, name) for name in ("provider", "virtual-key"))
    return ProviderChoice(slugs, is_default and not names_provider and slugs is not None and len(slugs) == 1)


def _control_header(request: Request[Any, Any, Any], name: str) -> str | None:
    prefixes = ("x-gateway-", *request.app.state.get("header_aliases", ()))
    return next((value for prefix in prefixes if (value := request.headers.get(f"{prefix}{name}"))), None)


def _select_config(
    request: Request[Any, Any, Any], default_config: str | None, *, may_leave: bool
) -> tuple[str | None, bool]:
    """Returns the config that applies to a request, and true if it is the default of the key or token. If `may_leave`
    is false, this default always applies.
    """
    sent = _control_header(request, "config")
    if default_config and (sent is None or not may_leave):
        return default_config, True
    return sent, False


def _is_inline_config(sent: str) -> bool:
    return sent.lstrip().startswith("{")


def _find_config_providers(sent: str | None, saved: Callable[[str], str | bytes | None]) -> set[str] | None:
    """Returns the slugs of the providers that a config names. `saved` returns a saved config by its name. Returns
    `None` if the config names no providers.
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
