"""What models cost and take: the public list, and what the operator says instead. Nobody needs a key to ask."""

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


# The first that a name holds.
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
    # Others that were made to take instructions talk.
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
    """What a parameter may be."""

    key: Annotated[str, Meta(description="name of the parameter")]
    min_value: Annotated[int, Meta(description="smallest value")]
    max_value: Annotated[int, Meta(description="largest value")]


class ModelKind(msgspec.Struct, frozen=True):
    """What a model is for."""

    primary: Annotated[
        str, Meta(description="`chat`, `text`, `embedding`, `image`, `audio`, `moderation`, `rerank` or `ocr`")
    ]
    supported: Annotated[list[str], Meta(description="what it is known to take besides text, or to be priced for")]
    unsupported: Annotated[list[str], Meta(description="what it is known not to take")] = []


class MessageRoles(msgspec.Struct, frozen=True):
    """Roles of messages."""

    options: Annotated[list[str], Meta(description="roles that its messages may have")]


class ModelDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes."""

    model: Annotated[str, Meta(description="name of the model, as the list has it")]
    provider: Annotated[str, Meta(description="name of the provider")]
    name: Annotated[str | None, Meta(description="what people call it")]
    description: Annotated[str | None, Meta(description="what it is")]
    context_window: Annotated[int | None, Meta(description="tokens of a request with its answer; null: not known")]
    deprecated: Annotated[bool, Meta(description="whether its maker gives it up")]
    params: Annotated[list[ParameterLimit], Meta(description="parameters whose limits are known")]
    type: Annotated[ModelKind, Meta(description="what it is for")]
    messages: Annotated[MessageRoles | None, Meta(description="roles of messages; null where it takes none")]
    remove_params: Annotated[list[str], Meta(description="parameters that it does not take, where that is known")] = (
        msgspec.field(name="removeParams", default_factory=list[str])
    )
    disable_playground: Annotated[bool, Meta(description="always false")] = msgspec.field(
        name="disablePlayground", default=False
    )
    is_default: Annotated[bool, Meta(description="always false: of others nothing is known")] = msgspec.field(
        name="isDefault", default=False
    )


@get("/pricing/{provider:str}/{model:path}", guards=[allow_anyone], summary="Get model price", tags=["Model Pricing"])
async def get_price(provider: ProviderParam, model: ModelParam, prices: NamedDependency[PriceBook]) -> PricingConfig:
    """Say what a model costs, in US cents for each token or unit."""
    name = model.removeprefix("/")
    found = await prices.find_price(provider, name)
    if found is None:
        raise NotFoundError(f"no price is known of {name!r} of {provider!r}")
    return found


@get("/general/{provider:str}/{model:path}", guards=[allow_anyone], summary="Get model limits", tags=["Model Pricing"])
async def get_model(provider: ProviderParam, model: ModelParam, prices: NamedDependency[PriceBook]) -> ModelDetail:
    """Say what a model takes."""
    name = model.removeprefix("/")
    found = await prices.find_listed_model(provider, name)
    if found is None:
        raise NotFoundError(f"nothing is known of {name!r} of {provider!r}")
    window, priced = found.context_window, await prices.find_price(provider, name)
    primary = _guess_purpose(found.id)
    return ModelDetail(
        model=found.id,
        provider=provider,
        name=found.name,
        description=found.description,
        context_window=window,
        deprecated=bool(found.deprecated),
        params=[ParameterLimit("max_tokens", 1, window)] if window and primary in TEXT_PURPOSES else [],
        type=ModelKind(primary, _list_priced_features(priced.pay_as_you_go if priced else None)),
        messages=MessageRoles(["system", "user", "assistant"]) if primary == "chat" else None,
    )


def _guess_purpose(model: str) -> str:
    """Tell what a model is for by its name, as makers give them: the list does not say."""
    return next((purpose for word, purpose in PURPOSE_BY_NAME_PART.items() if word in model.lower()), "chat")


def _list_priced_features(rates: PayAsYouGo | None) -> list[str]:
    """Tell what a model takes by what has a price of its own."""
    return [what for rate, what in FEATURE_BY_PRICE_FIELD.items() if rates and getattr(rates, rate) is not None]


routes = [get_price, get_model]
