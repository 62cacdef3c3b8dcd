"""Wire format of model prices. All amounts are US cents per token or unit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# Maximum price: one million dollars per unit. The engine counts whole pico-dollars in 64-bit integers.
MAX_CENTS = 1e8
# A union, so that an integer in JSON remains an integer.
AmountCents = Annotated[
    Annotated[int, Meta(ge=0, le=int(MAX_CENTS))] | Annotated[float, Meta(ge=0, le=MAX_CENTS)],
    Meta(description="US cents"),
]
Factor = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
PriceFactor = Annotated[Factor | None, Meta(description="factor; defaults to the value of `default`")]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Price of one token or unit."""

    price: AmountCents


OptionalPrice = Annotated[Price | None, Meta(description="price per unit in US cents")]


class TokenPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices per token, by token type."""

    request_token: OptionalPrice = None
    response_token: OptionalPrice = None
    cache_write_input_token: OptionalPrice = None
    cache_read_input_token: OptionalPrice = None
    request_audio_token: OptionalPrice = None
    response_audio_token: OptionalPrice = None
    cache_read_audio_input_token: OptionalPrice = None
    cache_write_audio_input_token: OptionalPrice = None
    reasoning_token: OptionalPrice = None
    request_text_token: OptionalPrice = None
    response_text_token: OptionalPrice = None
    request_image_token: OptionalPrice = None
    response_image_token: OptionalPrice = None
    cache_read_image_input_token: OptionalPrice = None
    cache_read_text_input_token: OptionalPrice = None
    cache_write_image_input_token: OptionalPrice = None
    cache_write_text_input_token: OptionalPrice = None


class PayAsYouGo(TokenPrices, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Pay-as-you-go prices: tokens, additional units and images."""

    additional_units: Annotated[dict[str, Price], Meta(description="prices by unit, such as `web_search`")] = {}
    image: Annotated[dict[str, dict[str, Price]], Meta(description="prices of one image by quality and size")] = {}


class FineTuningPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of fine-tuning."""

    pay_per_token: OptionalPrice = None
    pay_per_hour: OptionalPrice = None


class PricingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """All prices of one model."""

    type: Annotated[Literal["static"] | None, Meta(description="`static`")] = None
    pay_as_you_go: Annotated[PayAsYouGo | None, Meta(description="pay-as-you-go prices")] = None
    batch_config: Annotated[TokenPrices | None, Meta(description="prices of requests in batches")] = None
    calculate: Annotated[
        dict[Literal["request", "response"], dict[str, Any]] | None,
        Meta(description="formulas that compute the cost of the request and of the response"),
    ] = None
    currency: Annotated[Literal["USD"] | None, Meta(description="`USD`")] = None
    finetune_config: Annotated[FineTuningPrices | None, Meta(description="prices of fine-tuning")] = None
    fixed_cost: OptionalPrice = None


class ImageFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor that is applied to image prices."""

    default: PriceFactor = None


class PriceMultipliers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Factors that are applied to prices. An omitted factor has the value of `default`."""

    default: PriceFactor = None
    request_token: PriceFactor = None
    response_token: PriceFactor = None
    cache_read_input_token: PriceFactor = None
    cache_write_input_token: PriceFactor = None
    cache_read_audio_input_token: PriceFactor = None
    request_audio_token: PriceFactor = None
    response_audio_token: PriceFactor = None
    reasoning_token: PriceFactor = None
    prediction_accepted_token: PriceFactor = None
    prediction_rejected_token: PriceFactor = None
    request_image_token: PriceFactor = None
    response_image_token: PriceFactor = None
    request_text_token: PriceFactor = None
    response_text_token: PriceFactor = None
    cache_read_image_input_token: PriceFactor = None
    cache_read_text_input_token: PriceFactor = None
    cache_write_text_input_token: PriceFactor = None
    cache_write_image_input_token: PriceFactor = None
    image: Annotated[ImageFactor | None, Meta(description="factors of image prices")] = None
    additional_units: Annotated[
        dict[str, Factor | None], Meta(description="factors by unit, such as `web_search`")
    ] = {}


class PriceAdjustments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adjustments of an organisation's prices relative to the standard prices."""

    multiplier: Annotated[PriceMultipliers, Meta(description="factors of prices")]
