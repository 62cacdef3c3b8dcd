"""Price lists of providers, as JSON files that clients load once. No key is required."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter
from msgspec import Meta

from penstock.authorization import allow_anyone
from penstock.errors import NotFoundError
from penstock.pricing.price_book import FREE_PRICING, PriceBook
from penstock.pricing.wire_format import PricingConfig

FILE_SUFFIX = ".json"


class ModelPrice(msgspec.Struct, frozen=True):
    """Price of one model."""

    pricing_config: Annotated[PricingConfig, Meta(description="price of the model")]


FileParam = Annotated[str, PathParameter(description="name of the provider with `.json`")]


@get("/{file:str}", guards=[allow_anyone], summary="Get price list", tags=["Model Pricing"])
async def get_price_list(file: FileParam, prices: NamedDependency[PriceBook]) -> dict[str, ModelPrice]:
    """Returns the prices of all models of a provider, in US cents per token or unit."""
    if not file.endswith(FILE_SUFFIX):
        raise NotFoundError(f"there is no price list {file!r}; hint: its name ends with {FILE_SUFFIX}")
    provider = file.removesuffix(FILE_SUFFIX)
    models = await prices.list_models(provider)
    if not models:
        raise NotFoundError(f"no prices are known for {provider!r}")
    # Clients use this entry for models that are not in the list.
    return {
        "default": ModelPrice(FREE_PRICING),
        **{slug: ModelPrice(model.pricing_config) for slug, model in models.items()},
    }


routes = [get_price_list]
