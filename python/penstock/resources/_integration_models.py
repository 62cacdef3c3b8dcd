"""Routes for the models of an integration: the paths below `/integrations/{key}/models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from penstock.errors import InvalidError, Problem
from penstock.ids import new_id
from penstock.integrations import provider_options as forms
from penstock.integrations import saved_integrations
from penstock.kit.route_parameters import IdOrSlug
from penstock.kit.shared_fields import UNSET, ObjectType, OptionalTimestamp, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.pricing import engine_export
from penstock.pricing.price_book import PriceBook
from penstock.pricing.wire_format import PricingConfig
from penstock.schemas import EmptyResponse, convert_value, field_error, row_to_struct, unknown_reference_error
from penstock.secrets import mappings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.store.tenant import Row

TAGS = ["Integrations > Models"]
MAX_MODELS = 1000
# Beginning of the JSON paths in the engine's validation errors. There is one model at most, because models are
# validated one by one.
ENGINE_PATH_PREFIX = "$.models[0].models[0]."

ModelSlug = Annotated[str, Meta(min_length=1, max_length=255, description="model name as requests send it")]
IsCustom = Annotated[bool | None, Meta(description="true if the provider's list does not contain the model")]
IsFinetune = Annotated[bool | None, Meta(description="true for a fine-tuned model")]
BaseModelSlug = Annotated[str | None, Meta(description="slug of the model that this one is based on")]


class UpsertIntegrationModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model to add or update. When updating, omitted fields keep their values."""

    slug: ModelSlug
    enabled: Annotated[bool, Meta(description="true if requests may use the model")]
    name: Annotated[Annotated[str, Meta(max_length=255)] | UnsetType | None, Meta(description="display name")] = UNSET
    model_name: Annotated[
        Annotated[str, Meta(max_length=255)] | UnsetType | None, Meta(description="another name of the field `name`")
    ] = UNSET
    is_custom: Annotated[
        bool | UnsetType | None, Meta(description="true if the provider's list does not contain the model")
    ] = UNSET
    is_finetune: Annotated[bool | UnsetType | None, Meta(description="true for a fine-tuned model")] = UNSET
    base_model_slug: Annotated[
        Annotated[str, Meta(max_length=255)] | UnsetType | None,
        Meta(description="slug of the model that this one is based on"),
    ] = UNSET
    configurations: Annotated[
        dict[str, Any] | UnsetType | None, Meta(description="`custom_host` and `custom_headers` for this model only")
    ] = UNSET
    pricing_config: Annotated[PricingConfig | UnsetType | None, Meta(description="price of the model")] = UNSET
    READ_ONLY: ClassVar = ("created_at", "last_updated_at")


class UpdateIntegrationModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models of an integration to add or update."""

    READ_ONLY: ClassVar = ("total", "object")
    models: Annotated[list[UpsertIntegrationModel], Meta(max_length=MAX_MODELS, description="models to add or update")]
    allow_all_models: Annotated[
        bool | UnsetType, Meta(description="true if models without an entry of their own may be used")
    ] = UNSET
    key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=65536)] | UnsetType,
        Meta(
            description="the integration's key; must be sent again if a model's `custom_host` is a new destination for it"
        ),
    ] = UNSET
    configurations: Annotated[
        dict[str, Any],
        Meta(
            description="secret options of the integration, such as `custom_headers`; must be sent again if a model's `custom_host` is a new destination for them"
        ),
    ] = {}


class DeleteIntegrationModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Slugs of the custom models to delete."""

    models: Annotated[list[str], Meta(max_length=MAX_MODELS, description="slugs of custom models")]


class IntegrationModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of an integration."""

    slug: ModelSlug
    name: Annotated[str | None, Meta(description="display name")]
    enabled: Annotated[bool, Meta(description="true if requests may use the model")]
    is_custom: IsCustom = False
    is_finetune: IsFinetune = False
    base_model_slug: BaseModelSlug = None
    configurations: Annotated[dict[str, Any], Meta(description="host and header fields of this model")] = {}
    pricing_config: Annotated[
        PricingConfig | None,
        Meta(description="price that was set for the model here; null: the public one of `/model-configs/pricing`"),
    ] = None
    created_at: OptionalTimestamp = None
    last_updated_at: OptionalTimestamp = None


class IntegrationModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models of an integration."""

    total: Annotated[int, Meta(description="number of models")]
    models: Annotated[
        list[IntegrationModel],
        Meta(description="models with an entry of their own, followed by the provider's other models"),
    ]
    allow_all_models: Annotated[bool, Meta(description="true if models without an entry of their own may be used")]
    object: ObjectType = "list"


SlugsParam = Annotated[str | None, QueryParameter(description="slugs of custom models, separated by commas")]


@get(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[saved_integrations.require_either_scope("read")],
    summary="List models of an integration",
    tags=TAGS,
)
async def list_models(
    key: IdOrSlug, context: NamedDependency[RequestContext], prices: NamedDependency[PriceBook]
) -> IntegrationModelList:
    """Lists the models that have an entry in the integration, followed by the provider's other known models."""
    async with context.read_session() as session:
        row = await saved_integrations.get_integration(session, key, "read")
        model_rows = await saved_integrations.list_models(session, row)
    known_models = await prices.list_models(row["ai_provider_id"])
    listed = [_to_integration_model(model_row, known_models.get(model_row["slug"])) for model_row in model_rows]
    callable_models = await prices.list_callable_models(row["ai_provider_id"])
    others = sorted(set(callable_models) - {model_row["slug"] for model_row in model_rows})
    listed += [
        IntegrationModel(
            slug=slug,
            name=known_models[slug].name,
            enabled=row["allow_all_models"],
        )
        for slug in others
    ]
    return IntegrationModelList(total=len(listed), models=listed, allow_all_models=row["allow_all_models"])


@put(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    guards=[saved_integrations.require_either_scope("update")],
    summary="Update models of an integration",
    tags=TAGS,
)
async def update_models(
    key: IdOrSlug, data: JSONBody[UpdateIntegrationModels], context: NamedDependency[RequestContext]
) -> EmptyResponse:
    """Adds or updates models of an integration: availability, host, header fields and price. Models that the request does
    not name keep their entries; with `allow_all_models` false, those without an entry cannot be used, deployments
    included.
    """
    _reject_duplicate_slugs(model.slug for model in data.models)
    async with context.write_session() as session:
        row = await saved_integrations.get_integration(session, key, "update")
        await saved_integrations.mark_changed(session, row)
        before = {model["slug"]: model for model in await saved_integrations.list_models(session, row)}
        bound = [item["configurations"].get("custom_host") for item in before.values()]
        sent = saved_integrations.SentCredentials(data.key, data.configurations)
        for index, model in enumerate(data.models):
            await _save_model(session, row, f"models[{index}]", model, before.get(model.slug))
            path, host = f"models[{index}].configurations.custom_host", (model.configurations or {}).get("custom_host")
            await saved_integrations.reject_foreign_host(session, row, path, host, bound, sent)
        change = {} if data.key is UNSET else await saved_integrations.seal_key(session, row["id"], data.key, row)
        if data.configurations:
            change |= await _seal_secret_options(session, row, data.configurations)
        if data.allow_all_models is not UNSET and data.allow_all_models != row["allow_all_models"]:
            change["allow_all_models"] = data.allow_all_models
        if change:
            await saved_integrations.INTEGRATIONS.update(session.organisation(), row, change)
        return EmptyResponse()


@delete(
    ["/{key:str}/models", "/{key:str}/integration-models"],
    status_code=200,
    guards=[saved_integrations.require_either_scope("update")],
    summary="Delete custom models of an integration",
    tags=TAGS,
)
async def delete_models(
    key: IdOrSlug,
    context: NamedDependency[RequestContext],
    slugs: SlugsParam = None,
    data: JSONBody[DeleteIntegrationModels | None] = None,
) -> EmptyResponse:
    """Deletes custom models. Models of the provider's own list can only be updated, for example disabled."""
    requested = [slug.strip() for slug in (slugs or "").split(",") if slug.strip()] or (data.models if data else [])
    if not requested:
        raise field_error("slugs", "is required: slugs of custom models, separated by commas")
    async with context.write_session() as session:
        row = await saved_integrations.get_integration(session, key, "update")
        await saved_integrations.mark_changed(session, row)
        before = {model["slug"]: model for model in await saved_integrations.list_models(session, row)}
        for slug in dict.fromkeys(requested):
            if slug not in before:
                raise unknown_reference_error("slugs", f"{slug!r} is not a model of this integration")
            if not before[slug]["is_custom"]:
                raise field_error("slugs", f"{slug!r} is not a custom model; it can be disabled, not deleted")
            await saved_integrations.MODELS.delete(saved_integrations.model_session(session, row), before[slug])
        return EmptyResponse()


async def _seal_secret_options(session: TenantSession, row: Row, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Encrypts the secret options in a request. Rejects other options, which belong to the integration."""
    if others := sorted(set(fields) - set(forms.SECRET_FIELDS)):
        raise field_error(
            f"configurations.{others[0]}", "is no secret option; hint: PUT /v1/integrations/… changes the other options"
        )
    options = {**row["configurations"], **fields}
    forms.check_options(
        "configurations", row["ai_provider_id"], options, mappings.mapped_options(row["secret_mappings"])
    )
    return await saved_integrations.seal_options(session, row["id"], "configurations", options, row)


async def _save_model(
    session: TenantSession, integration: Row, path: str, model: UpsertIntegrationModel, before: Row | None
) -> None:
    row_id = before["id"] if before else new_id()
    values: dict[str, Any] = {"enabled": model.enabled}
    for name in ("name", "is_custom", "is_finetune", "base_model_slug"):
        if (sent := getattr(model, name)) is not UNSET:
            values[name] = bool(sent) if name.startswith("is_") else sent
    if model.model_name is not UNSET:
        values.setdefault("name", model.model_name)
    if model.configurations is not UNSET:
        sent = model.configurations
        if sent is not None:
            # An empty object is accepted for a model without options, because responses contain it and clients send it
            # back.
            if not sent and before and before["configurations"]:
                raise field_error(f"{path}.configurations", "must not be empty")
            convert_value(f"{path}.configurations", forms.ProviderOptions, sent)
        values |= await saved_integrations.seal_options(session, row_id, f"{path}.configurations", sent or {}, before)
    if model.pricing_config is not UNSET:
        values["pricing_config"] = msgspec.to_builtins(model.pricing_config)
    _validate_with_engine(path, integration, model)
    integration_session = saved_integrations.model_session(session, integration)
    if before:
        await saved_integrations.MODELS.update(integration_session, before, values)
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
    await saved_integrations.MODELS.create(integration_session, {**fresh, **values})


def _validate_with_engine(path: str, integration: Row, model: UpsertIntegrationModel) -> None:
    """Rejects a model that the engine would not accept. One invalid model would make the engine drop the whole
    integration.
    """
    prices = engine_export.export_operator_prices(model.pricing_config) if model.pricing_config else None
    item = forms.model_row(model.slug, model.enabled, model.configurations or {}, prices)
    provider_row = {"provider": integration["ai_provider_id"]}
    problems = [
        Problem(f"{path}.{_to_request_path(engine_path)}", reason)
        for engine_path, reason in forms.unsupported_fields(
            provider_row, [{"id": "-", "allow_all": True, "models": [item]}]
        )
    ]
    if problems:
        raise InvalidError(f"{problems[0].path} {problems[0].message}", problems)


def _to_request_path(engine_path: str) -> str:
    """Converts a JSON path of the engine's validation to the path of the field in the client's request."""
    kind, _, name = engine_path.removeprefix(ENGINE_PATH_PREFIX).partition(".")
    return {
        "custom_host": "configurations.custom_host",
        "headers": f"configurations.custom_headers.{name}",
        "slug": "slug",
    }.get(kind, "pricing_config")


def _reject_duplicate_slugs(slugs: Iterable[str]) -> None:
    seen_keys: set[str] = set()
    for index, slug in enumerate(slugs):
        if slug in seen_keys:
            raise field_error(f"models[{index}].slug", f"{slug!r} occurs twice")
        seen_keys.add(slug)


def _to_integration_model(row: Row, known_model: Any) -> IntegrationModel:  # noqa: ANN401 - JSON
    name = row["name"] or (known_model.name if known_model else None)
    return row_to_struct(IntegrationModel, row, name=name)


routes = [list_models, update_models, delete_models]
