"""Whole price lists of providers, as files that clients load once. Nobody needs a key to ask."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter
from msgspec import Meta

from penstock.authorization import anyone
from penstock.errors import MissingError
from penstock.pricing.price_book import FREE, PriceBook
from penstock.pricing.wire_format import PricingConfig

SUFFIX = ".json"


class Priced(msgspec.Struct, frozen=True):
    """One model."""

    pricing_config: Annotated[PricingConfig, Meta(description="what it costs")]


File = Annotated[str, PathParameter(description="name of the provider with `.json`")]


@get("/{file:str}", guards=[anyone], summary="Get price list", tags=["Model Pricing"])
async def index(file: File, prices: NamedDependency[PriceBook]) -> dict[str, Priced]:
    """Give what all models of a provider cost, in US cents for each token or unit."""
    if not file.endswith(SUFFIX):
        raise MissingError(f"there is no price list {file!r}; hint: its name ends with {SUFFIX}")
    provider = file.removesuffix(SUFFIX)
    found = await prices.models(provider)
    if not found:
        raise MissingError(f"no price is known of {provider!r}")
    # What clients go by for models that are not in it.
    return {"default": Priced(FREE), **{slug: Priced(known.pricing_config) for slug, known in found.items()}}


routes = [index]
