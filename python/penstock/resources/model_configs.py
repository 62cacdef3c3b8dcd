"""Prices and limits of models, from the public price list with the operator's overrides. No key is required."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter
from msgspec import Meta

from penstock.authorization import allow_anyone
from penstock.errors import NotFoundError
from penstock.pricing.price_book import PriceBook
from penstock.pricing.wire_format import PayAsYouGo, PricingConfig

ProviderParam = Annotated[str, PathParameter(description="name of the provider")]
ModelParam = Annotated[str, PathParameter(description="name of the model")]


# Purpose of a model by a part of its name. The first match applies.
PURPOSE_BY_NAME_PART = {
    "embed": "embedding",
    "rerank": "rerank",
    "moderation": "moderation",
    "ocr": "ocr",
    "whisper": "audio",
    "transcribe": "audio",
    "tts": "audio",
    "dall-e": "image",
    "imagen": "image",
    "gpt-image": "image",
    # Only these instruct models are text models; others are chat models.
    "gpt-3.5-turbo-instruct": "text",
    "gpt-35-turbo-instruct": "text",
    "davinci": "text",
    "babbage": "text",
}
TEXT_PURPOSES = ("chat", "text")
FEATURE_BY_PRICE_FIELD = {
    "request_image_token": "image",
    "request_audio_token": "audio",
    "cache_write_input_token": "cache_control",
}


class ParameterLimit(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Allowed range of a parameter."""

    key: Annotated[str, Meta(description="name of the parameter")]
    min_value: Annotated[int, Meta(description="smallest value")]
    max_value: Annotated[int, Meta(description="largest value")]


class ModelKind(msgspec.Struct, frozen=True):
    """Purpose and features of a model."""

    primary: Annotated[
        str, Meta(description="`chat`, `text`, `embedding`, `image`, `audio`, `moderation`, `rerank` or `ocr`")
    ]
    supported: Annotated[
        list[str], Meta(description="features besides text that are known to be supported or to have a price")
    ]
    unsupported: Annotated[list[str], Meta(description="features that are known to be unsupported")] = []


class MessageRoles(msgspec.Struct, frozen=True):
    """Message roles of a model."""

    options: Annotated[list[str], Meta(description="roles that messages to the model may have")]


class ModelDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and features of a model."""

    model: Annotated[str, Meta(description="model name as in the price list")]
    provider: Annotated[str, Meta(description="name of the provider")]
    name: Annotated[str | None, Meta(description="display name")]
    description: Annotated[str | None, Meta(description="description of the model")]
    context_window: Annotated[
        int | None, Meta(description="maximum tokens of a request with its response; null if unknown")
    ]
    deprecated: Annotated[bool, Meta(description="true if its maker has deprecated it")]
    params: Annotated[list[ParameterLimit], Meta(description="parameters with known limits")]
    type: Annotated[ModelKind, Meta(description="purpose and features of the model")]
    messages: Annotated[MessageRoles | None, Meta(description="message roles; null if the model takes no messages")]
    remove_params: Annotated[list[str], Meta(description="parameters that the model is known to reject")] = (
        msgspec.field(name="removeParams", default_factory=list[str])
    )
    disable_playground: Annotated[bool, Meta(description="always false")] = msgspec.field(
        name="disablePlayground", default=False
    )
    is_default: Annotated[bool, Meta(description="always false: the price list names no default models")] = (
        msgspec.field(name="isDefault", default=False)
    )


@get("/pricing/{provider:str}/{model:path}", guards=[allow_anyone], summary="Get model price", tags=["Model Pricing"])
async def get_price(provider: ProviderParam, model: ModelParam, prices: NamedDependency[PriceBook]) -> PricingConfig:
    """Returns the price of a model, in US cents per token or unit."""
    name = model.removeprefix("/")
    price = await prices.find_price(provider, name)
    if price is None:
        raise NotFoundError(f"no price is known for {name!r} of {provider!r}")
    return price


@get("/general/{provider:str}/{model:path}", guards=[allow_anyone], summary="Get model limits", tags=["Model Pricing"])
async def get_model(provider: ProviderParam, model: ModelParam, prices: NamedDependency[PriceBook]) -> ModelDetail:
    """Returns the limits and features of a model."""
    name = model.removeprefix("/")
    listed_model = await prices.find_listed_model(provider, name)
    if listed_model is None:
        raise NotFoundError(f"the model {name!r} of {provider!r} is not known")
    window, priced = listed_model.context_window, await prices.find_price(provider, name)
    primary = _guess_purpose(listed_model.id)
    return ModelDetail(
        model=listed_model.id,
        provider=provider,
        name=listed_model.name,
        description=listed_model.description,
        context_window=window,
        deprecated=bool(listed_model.deprecated),
        params=[ParameterLimit("max_tokens", 1, window)] if window and primary in TEXT_PURPOSES else [],
        type=ModelKind(primary, _list_priced_features(priced.pay_as_you_go if priced else None)),
        messages=MessageRoles(["system", "user", "assistant"]) if primary == "chat" else None,
    )


def _guess_purpose(model: str) -> str:
    """Guesses the purpose of a model from its name, because the price list does not state it."""
    return next((purpose for name_part, purpose in PURPOSE_BY_NAME_PART.items() if name_part in model.lower()), "chat")


def _list_priced_features(rates: PayAsYouGo | None) -> list[str]:
    """Returns the features of a model that have a separate price."""
    return [feature for rate, feature in FEATURE_BY_PRICE_FIELD.items() if rates and getattr(rates, rate) is not None]


routes = [get_price, get_model]
