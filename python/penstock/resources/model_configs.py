"""What models cost: the public price list, and what the operator says instead. Nobody needs a key to ask."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from penstock.caller import anyone
from penstock.errors import MissingError
from penstock.kit.prices import PriceBook
from penstock.kit.pricing import PricingConfig

Provider = Annotated[str, PathParameter(description="name of the provider")]
Model = Annotated[str, PathParameter(description="name of the model")]


@get("/pricing/{provider:str}/{model:path}", guards=[anyone], summary="Get model price", tags=["Model Pricing"])
async def price(provider: Provider, model: Model, prices: NamedDependency[PriceBook]) -> PricingConfig:
    """Say what a model costs, in US cents for each token or unit."""
    name = model.removeprefix("/")
    found = await prices.price(provider, name)
    if found is None:
        raise MissingError(f"no price is known of {name!r} of {provider!r}")
    return found


routes = [price]
