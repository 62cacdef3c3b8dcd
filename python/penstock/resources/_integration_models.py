"""Models of an integration: the part of its paths that begins at `/models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from penstock.errors import InvalidError, Problem
from penstock.ids import new_id
from penstock.kit import integrations as kit
from penstock.kit import provider_options as forms
from penstock.kit.shared_fields import UNSET, IdOrSlug, MomentOrNone, Object, UnsetType
from penstock.kit.tenant_session import Desk, Work
from penstock.pricing import engine_export
from penstock.pricing.price_book import PriceBook
from penstock.pricing.wire_format import PricingConfig
from penstock.schemas import Done, refuse, unknown, write_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.store.tenant import Row

TAGS = ["Integrations > Models"]
MOST = 1000
# Where the engine sees the one model that it is asked about.
OF_ENGINE = "$.models[0].models[0]."

ModelSlug = Annotated[str, Meta(min_length=1, max_length=255, description="name of the model as requests have it")]
IsCustom = Annotated[bool | None, Meta(description="one that the provider's list does not have")]
IsFinetune = Annotated[bool | None, Meta(description="a fine-tuned one")]
BaseModel = Annotated[str | None, Meta(description="the model that it was made of")]


class ModelGiven(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model; what is left out of one that is there already stays."""

    slug: ModelSlug
    enabled: Annotated[bool, Meta(description="whether it may be used")]
    name: Annotated[
        Annotated[str, Meta(max_length=255)] | UnsetType | None, Meta(description="what people call it")
    ] = UNSET
    is_custom: Annotated[bool | UnsetType | None, Meta(description="one that the provider's list does not have")] = (
        UNSET
    )
    is_finetune: Annotated[bool | UnsetType | None, Meta(description="a fine-tuned one")] = UNSET
    base_model_slug: Annotated[
        Annotated[str, Meta(max_length=255)] | UnsetType | None, Meta(description="the model that it was made of")
    ] = UNSET
    configurations: Annotated[
        dict[str, Any] | UnsetType | None, Meta(description="`custom_host` and `custom_headers` of this model alone")
    ] = UNSET
    pricing_config: Annotated[PricingConfig | UnsetType | None, Meta(description="what it costs")] = UNSET


class Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be said of models."""

    models: Annotated[list[ModelGiven], Meta(max_length=MOST, description="they are added, or changed")]
    allow_all_models: Annotated[
        bool | UnsetType, Meta(description="whether models may be used of which nothing is said")
    ] = UNSET
    key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=65536)] | UnsetType,
        Meta(
            description="the integration's key, sent anew where a model's `custom_host` is a new place for it to go to"
        ),
    ] = UNSET


class Slugs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models by name."""

    models: Annotated[list[str], Meta(max_length=MOST, description="names of models")]


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    slug: ModelSlug
    name: Annotated[str | None, Meta(description="what people call it")]
    enabled: Annotated[bool, Meta(description="whether it may be used")]
    is_custom: IsCustom = False
    is_finetune: IsFinetune = False
    base_model_slug: BaseModel = None
    configurations: Annotated[dict[str, Any], Meta(description="its own host and header fields")] = {}
    pricing_config: Annotated[PricingConfig | None, Meta(description="what it costs")] = None
    created_at: MomentOrNone = None
    last_updated_at: MomentOrNone = None


class ModelsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The models of an integration."""

    total: Annotated[int, Meta(description="how many there are")]
    models: Annotated[
        list[ModelShown], Meta(description="those of which something is said, then the provider's others")
    ]
    allow_all_models: Annotated[bool, Meta(description="whether models may be used of which nothing is said")]
    object: Object = "list"


SlugsAsked = Annotated[str | None, QueryParameter(description="names of custom models, with commas")]


@get(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[kit.either("read")],
    summary="List models of an integration",
    tags=TAGS,
)
async def index(key: IdOrSlug, work: NamedDependency[Work], prices: NamedDependency[PriceBook]) -> ModelsShown:
    """List the models of which something is said, and those that the provider is known to have."""
    async with work.reading() as desk:
        row = await kit.get(desk, key, "read")
        said = await kit.models_of(desk, row)
    known = await prices.models(row["ai_provider_id"])
    listed = [_shown(one, known.get(one["slug"])) for one in said]
    others = sorted(set(known) - {one["slug"] for one in said})
    listed += [
        ModelShown(
            slug=slug,
            name=known[slug].name,
            enabled=row["allow_all_models"],
            pricing_config=msgspec.to_builtins(known[slug].pricing_config),
        )
        for slug in others
    ]
    return ModelsShown(total=len(listed), models=listed, allow_all_models=row["allow_all_models"])


@put(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[kit.either("update")],
    summary="Update models of an integration",
    tags=TAGS,
)
async def update(key: IdOrSlug, data: JSONBody[Models], work: NamedDependency[Work]) -> Done:
    """Add models, or change what is said of them: whether they may be used, where they are, what they cost."""
    _refuse_twice(one.slug for one in data.models)
    async with work.writing() as desk:
        row = await kit.get(desk, key, "update")
        await kit.touch(desk, row)
        before = {one["slug"]: one for one in await kit.models_of(desk, row)}
        bound = [one["configurations"].get("custom_host") for one in before.values()]
        for index, model in enumerate(data.models):
            await _put(desk, row, f"models[{index}]", model, before.get(model.slug))
            path, host = f"models[{index}].configurations.custom_host", (model.configurations or {}).get("custom_host")
            kit.refuse_bound_elsewhere(desk, row, path, host, bound, data.key)
        change = {} if data.key is UNSET else await kit.sealed_key(desk, row["id"], data.key, row)
        if data.allow_all_models is not UNSET and data.allow_all_models != row["allow_all_models"]:
            change["allow_all_models"] = data.allow_all_models
        if change:
            await kit.INTEGRATIONS.change(desk.organisation(), row, change)
        return Done()


@delete(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    status_code=200,
    guards=[kit.either("update")],
    summary="Delete custom models of an integration",
    tags=TAGS,
)
async def remove(
    key: IdOrSlug, work: NamedDependency[Work], slugs: SlugsAsked = None, data: JSONBody[Slugs | None] = None
) -> Done:
    """Delete custom models; what is said of others is changed, not deleted."""
    wanted = [slug.strip() for slug in (slugs or "").split(",") if slug.strip()] or (data.models if data else [])
    if not wanted:
        raise refuse("slugs", "is needed: names of custom models, with commas")
    async with work.writing() as desk:
        row = await kit.get(desk, key, "update")
        await kit.touch(desk, row)
        before = {one["slug"]: one for one in await kit.models_of(desk, row)}
        for slug in dict.fromkeys(wanted):
            if slug not in before:
                raise unknown("slugs", f"{slug!r} is no model of this integration")
            if not before[slug]["is_custom"]:
                raise refuse("slugs", f"{slug!r} is no custom model: it can be disabled, not deleted")
            await kit.MODELS.remove(kit.desk_of_models(desk, row), before[slug])
        return Done()


async def _put(desk: Desk, integration: Row, path: str, model: ModelGiven, before: Row | None) -> None:
    row_id = before["id"] if before else new_id()
    values: dict[str, Any] = {"enabled": model.enabled}
    for name in ("name", "is_custom", "is_finetune", "base_model_slug"):
        if (sent := getattr(model, name)) is not UNSET:
            values[name] = bool(sent) if name.startswith("is_") else sent
    if model.configurations is not UNSET:
        sent = model.configurations
        if sent is not None:
            if not sent:
                raise refuse(f"{path}.configurations", "must not be empty")
            forms.convert(f"{path}.configurations", forms.Place, sent)
        values |= await kit.sealed_place(desk, row_id, f"{path}.configurations", sent or {}, before)
    if model.pricing_config is not UNSET:
        values["pricing_config"] = msgspec.to_builtins(model.pricing_config)
    _refuse_unserved(path, integration, model)
    whole = kit.desk_of_models(desk, integration)
    if before:
        await kit.MODELS.change(whole, before, values)
        return
    fresh: dict[str, Any] = {
        "id": row_id,
        "integration_id": integration["id"],
        "slug": model.slug,
        "name": None,
        "is_custom": False,
        "is_finetune": False,
        "base_model_slug": None,
        "configurations": {},
        "sealed_configurations": None,
        "pricing_config": None,
    }
    await kit.MODELS.add(whole, {**fresh, **values})


def _refuse_unserved(path: str, integration: Row, model: ModelGiven) -> None:
    """Refuse what the engine would not take: the whole integration would be left out for it."""
    prices = engine_export.stated(model.pricing_config) if model.pricing_config else None
    one = forms.of_model(model.slug, model.enabled, model.configurations or {}, prices)
    told = {"provider": integration["ai_provider_id"]}
    problems = [
        Problem(f"{path}.{_named(place)}", why)
        for place, why in forms.unserved(told, [{"id": "-", "allow_all": True, "models": [one]}])
    ]
    if problems:
        raise InvalidError(f"{problems[0].path} {problems[0].message}", problems)


def _named(place: str) -> str:
    """Name what stands at a place of the engine's as it was sent."""
    kind, _, name = place.removeprefix(OF_ENGINE).partition(".")
    return {
        "custom_host": "configurations.custom_host",
        "headers": f"configurations.custom_headers.{name}",
        "slug": "slug",
    }.get(kind, "pricing_config")


def _refuse_twice(slugs: Iterable[str]) -> None:
    seen: set[str] = set()
    for index, slug in enumerate(slugs):
        if slug in seen:
            raise refuse(f"models[{index}].slug", f"{slug!r} is there twice")
        seen.add(slug)


def _shown(row: Row, known: Any) -> ModelShown:  # noqa: ANN401 - JSON
    usual = msgspec.to_builtins(known.pricing_config) if known else None
    name = row["name"] or (known.name if known else None)
    return write_out(ModelShown, row, name=name, pricing_config=row["pricing_config"] or usual)


routes = [index, update, remove]
