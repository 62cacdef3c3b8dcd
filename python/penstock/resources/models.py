"""The catalogue of models: those of a workspace's providers that may be used, each named `@slug/model`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import or_, select

from penstock.authorization import needs
from penstock.errors import AWAY, InvalidError, MissingError, UnavailableError
from penstock.kit.integrations import usable
from penstock.kit.shared_fields import Object, WorkspaceAsked
from penstock.kit.tenant_session import Desk, Work
from penstock.pricing.price_book import PriceBook
from penstock.resources import _last_known
from penstock.schemas import now
from penstock.snapshot.build import Published, Stored
from penstock.store.tables import api_keys, configs, integration_models, integrations, providers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.store.tenant import Row

TAGS = ["Models"]
SCOPES = ("completions.write", "virtual_keys.list", "models.list")
MOST = 1000


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    id: Annotated[str, Meta(description="as requests name it: `@slug/model`")]
    created: Annotated[int, Meta(description="when it was made known here, in seconds since 1970")]
    owned_by: Annotated[str, Meta(description="name of the provider as the engine knows it")]
    object: Object = "model"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Models that may be used."""

    data: Annotated[list[Model], Meta(description="those of this page")]
    total_count: Annotated[int, Meta(description="how many there are on all pages")]
    object: Object = "list"


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model, as Anthropic's clients read it."""

    id: Annotated[str, Meta(description="as requests name it: `@slug/model`")]
    display_name: Annotated[str, Meta(description="the same")]
    created_at: Annotated[datetime, Meta(description="when it was made known here")]
    type: Annotated[Literal["model"], Meta(description="what kind of thing this is")] = "model"


class AnthropicList(msgspec.Struct, frozen=True, kw_only=True):
    """Models that may be used, as Anthropic's clients read them."""

    data: Annotated[list[AnthropicModel], Meta(description="those of this page")]
    first_id: Annotated[str | None, Meta(description="id of the first; nothing where there is none")]
    last_id: Annotated[str | None, Meta(description="id of the last")]
    has_more: Annotated[bool, Meta(description="whether there are more behind the last")]


Service = Annotated[str | None, QueryParameter(name="ai_service", description="only those of this kind of provider")]
Provider = Annotated[str | None, QueryParameter(description="only those of the provider with this slug")]
Limit = Annotated[int | None, QueryParameter(ge=1, le=MOST, description="how many at most; default: all")]
Offset = Annotated[int, QueryParameter(ge=0, description="how many to leave out")]
After = Annotated[str | None, QueryParameter(description="only those behind the model with this id")]
Sort = Annotated[Literal["name", "provider", "ai_service"], QueryParameter(description="what the list is ordered by")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="direction")]


KEYS: dict[str, Callable[[Model], tuple[str, ...]]] = {
    "name": lambda model: (model.id.partition("/")[2], model.id),
    "provider": lambda model: (model.id,),
    "ai_service": lambda model: (model.owned_by, model.id),
}


@get("/", guards=[needs(*SCOPES)], summary="List models", tags=TAGS)
async def index(  # noqa: PLR0913, PLR0917 - the filters that there are
    request: Request[Any, Any, Any],
    work: NamedDependency[Work],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[Published],
    workspace_id: WorkspaceAsked = None,
    ai_service: Service = None,
    provider: Provider = None,
    limit: Limit = None,
    offset: Offset = 0,
    after_id: After = None,
    sort: Sort = "name",
    order: Order = "asc",
) -> ModelList | AnthropicList:
    """List the models that may be used; with a config that asks for this list, or one of the key's or token's own, only those that it names.

    Who sends `anthropic-version` is told in Anthropic's shape. While the database is away keys of workspaces are told what the
    last snapshot says.
    """
    try:
        async with work.reading(workspace_id) as desk:
            named = await _named(desk, request)
            rows, said = await _providers(desk)
    except UnavailableError:
        known = _last(work, published, workspace_id)
        own, may_leave = _last_known.own_config(published.stored, work.caller)
        named = _among(_sent(request, own, may_leave=may_leave), known.config)
        rows, said = known.providers()
    found = [
        model
        for row in rows
        if (ai_service is None or row["ai_provider_id"] == ai_service)
        and (provider is None or row["slug"] == provider.removeprefix("@"))
        and (named is None or row["slug"] in named)
        for model in await _models(row, said, prices)
    ]
    found.sort(key=KEYS[sort], reverse=order == "desc")
    if after_id is not None:
        behind = next((at for at, model in enumerate(found, 1) if model.id == after_id), None)
        if behind is None:
            raise InvalidError(f"after_id: there is no model {after_id!r} here")
        offset += behind
    end = None if limit is None else offset + limit
    page = found[offset:end]
    if request.headers.get("anthropic-version") is not None:
        return _to_anthropics(page, has_more=offset + len(page) < len(found))
    return ModelList(data=page, total_count=len(found))


def _to_anthropics(page: list[Model], *, has_more: bool) -> AnthropicList:
    data = [
        AnthropicModel(id=model.id, display_name=model.id, created_at=datetime.fromtimestamp(model.created, UTC))
        for model in page
    ]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicList(data=data, first_id=first, last_id=last, has_more=has_more)


@get("/{model:path}", guards=[needs(*SCOPES)], summary="Get model", tags=TAGS)
async def show(
    model: Annotated[str, PathParameter(description="its id: `@slug/model`")],
    work: NamedDependency[Work],
    prices: NamedDependency[PriceBook],
    published: NamedDependency[Published],
    workspace_id: WorkspaceAsked = None,
) -> Model:
    """Give one model that may be used."""
    wanted = model.removeprefix("/")
    slug = wanted.removeprefix("@").partition("/")[0]
    try:
        async with work.reading(workspace_id) as desk:
            rows, said = await _providers(desk)
    except UnavailableError:
        rows, said = _last(work, published, workspace_id).providers()
    for row in (row for row in rows if row["slug"] == slug):
        for found in await _models(row, said, prices):
            if found.id == wanted:
                return found
    raise MissingError(f"there is no model {wanted!r} here")


async def _providers(desk: Desk) -> tuple[list[Row], dict[str, list[Row]]]:
    """Give the providers that may be used, and what is said of the models behind them."""
    columns = (providers.c.slug, providers.c.created_at, providers.c.integration_id)
    behind = (integrations.c.ai_provider_id, integrations.c.allow_all_models)
    query = select(*columns, *behind).join(integrations, integrations.c.id == providers.c.integration_id)
    alive = or_(providers.c.expires_at.is_(None), providers.c.expires_at > now())
    query = query.where(providers.c.status == "active", alive, integrations.c.status == "active")
    rows = await desk.rows(query.where(usable(providers.c.workspace_id)).order_by(providers.c.id), providers)
    said: dict[str, list[Row]] = {}
    wanted = {row["integration_id"] for row in rows}
    models = select(integration_models).where(integration_models.c.integration_id.in_(wanted))
    for model in await desk.organisation().rows(models, integration_models):
        said.setdefault(model["integration_id"], []).append(model)
    return rows, said


async def _models(row: Row, said: dict[str, list[Row]], prices: PriceBook) -> list[Model]:
    own = {model["slug"]: model["enabled"] for model in said.get(row["integration_id"], [])}
    slugs = {slug for slug, enabled in own.items() if enabled}
    if row["allow_all_models"]:
        slugs |= set(await prices.models(row["ai_provider_id"])) - set(own)
    made = row["created_at"] // 1000
    return [Model(id=f"@{row['slug']}/{slug}", created=made, owned_by=row["ai_provider_id"]) for slug in sorted(slugs)]


class Known(NamedTuple):
    """A workspace as the last snapshot has it."""

    stored: Stored
    workspace: str

    def config(self, name: str) -> bytes | None:
        """Give a saved config."""
        return _last_known.config_of(self.stored, self.workspace, name)

    def providers(self) -> tuple[list[Row], dict[str, list[Row]]]:
        """Give the providers that may be used, and what is said of the models behind them."""
        return _last_known.providers_of(self.stored, self.workspace)


def _last(work: Work, published: Published, workspace_id: str | None) -> Known:
    """Go by the last snapshot, where the database is away and a key of one workspace asks; others are told so."""
    own = work.caller.workspace_id
    if own is None or workspace_id not in {None, own}:
        raise UnavailableError(AWAY)
    return Known(published.stored, own)


async def _named(desk: Desk, request: Request[Any, Any, Any]) -> set[str] | None:
    """Give the slugs of the providers that the request's config names, or its key's; nothing where it leaves it open."""
    own, may_leave = await _own_config(desk)
    sent = _sent(request, own, may_leave=may_leave)
    if sent is None or _is_inline(sent):
        return _among(sent, lambda _: None)
    row = await desk.find(configs, sent)
    return _among(sent, lambda _: row["config"] if row else None)


def _sent(request: Request[Any, Any, Any], own: str | None, *, may_leave: bool) -> str | None:
    """Give the config of a request: with a key or token that may bring no other its own, whatever it says."""
    prefixes = ("x-gateway-", *request.app.state.get("header_aliases", ()))
    sent = next((found for prefix in prefixes if (found := request.headers.get(f"{prefix}config"))), None)
    return own or sent if sent is None or not may_leave else sent


def _is_inline(sent: str) -> bool:
    return sent.lstrip().startswith("{")


def _among(sent: str | None, saved: Callable[[str], str | bytes | None]) -> set[str] | None:
    """Give the slugs of the providers that a config names, inline or `saved`; nothing where it leaves it open."""
    text = sent if sent is None or _is_inline(sent) else saved(sent)
    try:
        config: object = msgspec.json.decode(text or "null")
    except msgspec.DecodeError:
        return None
    targets = list(_targets(config))
    if not targets or any(target.get("passthrough") is True for target in targets):
        return None
    named = {name for target in targets for name in _slugs(target)}
    return named or None


async def _own_config(desk: Desk) -> tuple[str | None, bool]:
    """Give the config of the key or token, and whether requests may bring another."""
    if desk.caller.by != "key":
        return desk.caller.config_id, desk.caller.may_leave_config
    key = await desk.find(api_keys, desk.caller.id)
    own: dict[str, Any] = key["defaults"] if key else {}
    return own.get("config_id"), own.get("allow_config_override", True)


def _slugs(target: dict[str, Any]) -> Iterator[str]:
    """Give the slugs of the providers that a target names, as `@slug/model` too."""
    overridden: object = target.get("override_params")
    model = cast("dict[str, object]", overridden).get("model") if isinstance(overridden, dict) else None
    if isinstance(model, str) and model.startswith("@"):
        yield model[1:].partition("/")[0]
    elif isinstance(name := target.get("virtual_key") or target.get("provider"), str):
        yield name.removeprefix("@")


def _targets(config: object) -> Iterator[dict[str, Any]]:
    """Walk through a config and all its targets."""
    if isinstance(config, dict):
        node = cast("dict[str, Any]", config)
        yield node
        inner = node.get("targets")
        for target in cast("list[object]", inner) if isinstance(inner, list) else []:
            yield from _targets(target)


routes = [index, show]
