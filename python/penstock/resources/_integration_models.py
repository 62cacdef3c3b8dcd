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
from penstock.kit.shared_fields import UNSET, IdOrSlug, ObjectType, OptionalTimestamp, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.pricing import engine_export
from penstock.pricing.price_book import PriceBook
from penstock.pricing.wire_format import PricingConfig
from penstock.schemas import EmptyResponse, field_error, row_to_struct, unknown_reference_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.store.tenant import Row

TAGS = ["Integrations > Models"]
MAX_MODELS = 1000
# Where the engine sees the one model that it is asked about.
ENGINE_PATH_PREFIX = "$.models[0].models[0]."

ModelSlug = Annotated[str, Meta(min_length=1, max_length=255, description="name of the model as requests have it")]
IsCustom = Annotated[bool | None, Meta(description="one that the provider's list does not have")]
IsFinetune = Annotated[bool | None, Meta(description="a fine-tuned one")]
BaseModelSlug = Annotated[str | None, Meta(description="the model that it was made of")]


class UpsertIntegrationModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class UpdateIntegrationModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be said of models."""

    models: Annotated[
        list[UpsertIntegrationModel], Meta(max_length=MAX_MODELS, description="they are added, or changed")
    ]
    allow_all_models: Annotated[
        bool | UnsetType, Meta(description="whether models may be used of which nothing is said")
    ] = UNSET
    key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=65536)] | UnsetType,
        Meta(
            description="the integration's key, sent anew where a model's `custom_host` is a new place for it to go to"
        ),
    ] = UNSET


class DeleteIntegrationModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models by name."""

    models: Annotated[list[str], Meta(max_length=MAX_MODELS, description="names of models")]


class IntegrationModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    slug: ModelSlug
    name: Annotated[str | None, Meta(description="what people call it")]
    enabled: Annotated[bool, Meta(description="whether it may be used")]
    is_custom: IsCustom = False
    is_finetune: IsFinetune = False
    base_model_slug: BaseModelSlug = None
    configurations: Annotated[dict[str, Any], Meta(description="its own host and header fields")] = {}
    pricing_config: Annotated[PricingConfig | None, Meta(description="what it costs")] = None
    created_at: OptionalTimestamp = None
    last_updated_at: OptionalTimestamp = None


class IntegrationModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models of an integration."""

    total: Annotated[int, Meta(description="how many there are")]
    models: Annotated[
        list[IntegrationModel], Meta(description="those of which something is said, then the provider's others")
    ]
    allow_all_models: Annotated[bool, Meta(description="whether models may be used of which nothing is said")]
    object: ObjectType = "list"


SlugsParam = Annotated[str | None, QueryParameter(description="names of custom models, with commas")]


@get(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[kit.require_either_scope("read")],
    summary="List models of an integration",
    tags=TAGS,
)
async def list_models(
    key: IdOrSlug, work: NamedDependency[RequestContext], prices: NamedDependency[PriceBook]
) -> IntegrationModelList:
    """List the models of which something is said, and those that the provider is known to have."""
    async with work.read_session() as desk:
        row = await kit.get_integration(desk, key, "read")
        said = await kit.list_models(desk, row)
    known = await prices.list_models(row["ai_provider_id"])
    listed = [_to_integration_model(one, known.get(one["slug"])) for one in said]
    others = sorted(set(known) - {one["slug"] for one in said})
    listed += [
        IntegrationModel(
            slug=slug,
            name=known[slug].name,
            enabled=row["allow_all_models"],
            pricing_config=msgspec.to_builtins(known[slug].pricing_config),
        )
        for slug in others
    ]
    return IntegrationModelList(total=len(listed), models=listed, allow_all_models=row["allow_all_models"])


@put(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[kit.require_either_scope("update")],
    summary="Update models of an integration",
    tags=TAGS,
)
async def update_models(
    key: IdOrSlug, data: JSONBody[UpdateIntegrationModels], work: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Add models, or change what is said of them: whether they may be used, where they are, what they cost."""
    _reject_duplicate_slugs(one.slug for one in data.models)
    async with work.write_session() as desk:
        row = await kit.get_integration(desk, key, "update")
        await kit.mark_changed(desk, row)
        before = {one["slug"]: one for one in await kit.list_models(desk, row)}
        bound = [one["configurations"].get("custom_host") for one in before.values()]
        for index, model in enumerate(data.models):
            await _save_model(desk, row, f"models[{index}]", model, before.get(model.slug))
            path, host = f"models[{index}].configurations.custom_host", (model.configurations or {}).get("custom_host")
            kit.reject_foreign_host(desk, row, path, host, bound, data.key)
        change = {} if data.key is UNSET else await kit.seal_key(desk, row["id"], data.key, row)
        if data.allow_all_models is not UNSET and data.allow_all_models != row["allow_all_models"]:
            change["allow_all_models"] = data.allow_all_models
        if change:
            await kit.INTEGRATIONS.update(desk.organisation(), row, change)
        return EmptyResponse()


@delete(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    status_code=200,
    guards=[kit.require_either_scope("update")],
    summary="Delete custom models of an integration",
    tags=TAGS,
)
async def delete_models(
    key: IdOrSlug,
    work: NamedDependency[RequestContext],
    slugs: SlugsParam = None,
    data: JSONBody[DeleteIntegrationModels | None] = None,
) -> EmptyResponse:
    """Delete custom models; what is said of others is changed, not deleted."""
    wanted = [slug.strip() for slug in (slugs or "").split(",") if slug.strip()] or (data.models if data else [])
    if not wanted:
        raise field_error("slugs", "is needed: names of custom models, with commas")
    async with work.write_session() as desk:
        row = await kit.get_integration(desk, key, "update")
        await kit.mark_changed(desk, row)
        before = {one["slug"]: one for one in await kit.list_models(desk, row)}
        for slug in dict.fromkeys(wanted):
            if slug not in before:
                raise unknown_reference_error("slugs", f"{slug!r} is no model of this integration")
            if not before[slug]["is_custom"]:
                raise field_error("slugs", f"{slug!r} is no custom model: it can be disabled, not deleted")
            await kit.MODELS.delete(kit.model_session(desk, row), before[slug])
        return EmptyResponse()


async def _save_model(
    desk: TenantSession, integration: Row, path: str, model: UpsertIntegrationModel, before: Row | None
) -> None:
    row_id = before["id"] if before else new_id()
    values: dict[str, Any] = {"enabled": model.enabled}
    for name in ("name", "is_custom", "is_finetune", "base_model_slug"):
        if (sent := getattr(model, name)) is not UNSET:
            values[name] = bool(sent) if name.startswith("is_") else sent
    if model.configurations is not UNSET:
        sent = model.configurations
        if sent is not None:
            if not sent:
                raise field_error(f"{path}.configurations", "must not be empty")
            forms.convert_options(f"{path}.configurations", forms.ProviderOptions, sent)
        values |= await kit.seal_model_options(desk, row_id, f"{path}.configurations", sent or {}, before)
    if model.pricing_config is not UNSET:
        values["pricing_config"] = msgspec.to_builtins(model.pricing_config)
    _validate_with_engine(path, integration, model)
    whole = kit.model_session(desk, integration)
    if before:
        await kit.MODELS.update(whole, before, values)
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
    await kit.MODELS.create(whole, {**fresh, **values})


def _validate_with_engine(path: str, integration: Row, model: UpsertIntegrationModel) -> None:
    """Refuse what the engine would not take: the whole integration would be left out for it."""
    prices = engine_export.export_operator_prices(model.pricing_config) if model.pricing_config else None
    one = forms.model_row(model.slug, model.enabled, model.configurations or {}, prices)
    told = {"provider": integration["ai_provider_id"]}
    problems = [
        Problem(f"{path}.{_to_request_path(place)}", why)
        for place, why in forms.unsupported_fields(told, [{"id": "-", "allow_all": True, "models": [one]}])
    ]
    if problems:
        raise InvalidError(f"{problems[0].path} {problems[0].message}", problems)


def _to_request_path(place: str) -> str:
    """Name what stands at a place of the engine's as it was sent."""
    kind, _, name = place.removeprefix(ENGINE_PATH_PREFIX).partition(".")
    return {
        "custom_host": "configurations.custom_host",
        "headers": f"configurations.custom_headers.{name}",
        "slug": "slug",
    }.get(kind, "pricing_config")


def _reject_duplicate_slugs(slugs: Iterable[str]) -> None:
    seen: set[str] = set()
    for index, slug in enumerate(slugs):
        if slug in seen:
            raise field_error(f"models[{index}].slug", f"{slug!r} is there twice")
        seen.add(slug)


def _to_integration_model(row: Row, known: Any) -> IntegrationModel:  # noqa: ANN401 - JSON
    usual = msgspec.to_builtins(known.pricing_config) if known else None
    name = row["name"] or (known.name if known else None)
    return row_to_struct(IntegrationModel, row, name=name, pricing_config=row["pricing_config"] or usual)


routes = [list_models, update_models, delete_models]
