"""What models cost and take: the public list, and what the operator says instead. Nobody needs a key to ask."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter
from msgspec import Meta

from penstock.caller import anyone
from penstock.errors import MissingError
from penstock.kit.prices import PriceBook
from penstock.kit.pricing import PricingConfig

Provider = Annotated[str, PathParameter(description="name of the provider")]
Model = Annotated[str, PathParameter(description="name of the model")]


class Limit(msgspec.Struct, frozen=True, rename="camel"):
    """What a parameter may be."""

    key: Annotated[str, Meta(description="name of the parameter")]
    min_value: Annotated[int, Meta(description="smallest value")]
    max_value: Annotated[int, Meta(description="largest value")]


class General(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes."""

    model: Annotated[str, Meta(description="name of the model, as the list has it")]
    provider: Annotated[str, Meta(description="name of the provider")]
    name: Annotated[str | None, Meta(description="what people call it")]
    description: Annotated[str | None, Meta(description="what it is")]
    context_window: Annotated[int | None, Meta(description="tokens of a request with its answer; null: not known")]
    deprecated: Annotated[bool, Meta(description="whether its maker gives it up")]
    params: Annotated[list[Limit], Meta(description="parameters whose limits are known")]


@get("/pricing/{provider:str}/{model:path}", guards=[anyone], summary="Get model price", tags=["Model Pricing"])
async def price(provider: Provider, model: Model, prices: NamedDependency[PriceBook]) -> PricingConfig:
    """Say what a model costs, in US cents for each token or unit."""
    name = model.removeprefix("/")
    found = await prices.price(provider, name)
    if found is None:
        raise MissingError(f"no price is known of {name!r} of {provider!r}")
    return found


@get("/general/{provider:str}/{model:path}", guards=[anyone], summary="Get model limits", tags=["Model Pricing"])
async def general(provider: Provider, model: Model, prices: NamedDependency[PriceBook]) -> General:
    """Say what a model takes."""
    name = model.removeprefix("/")
    found = await prices.model(provider, name)
    if found is None:
        raise MissingError(f"nothing is known of {name!r} of {provider!r}")
    window = found.context_window
    return General(
        model=found.id,
        provider=provider,
        name=found.name,
        description=found.description,
        context_window=window,
        deprecated=bool(found.deprecated),
        params=[Limit("max_tokens", 1, window)] if window else [],
    )


routes = [price, general]
