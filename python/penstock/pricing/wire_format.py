"""What models cost, as the wire says it: US cents for each token or unit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# A million dollars for one: the engine counts whole pico-dollars in 64 bits.
MAX_CENTS = 1e8
AmountCents = Annotated[float, Meta(ge=0, le=MAX_CENTS, description="US cents")]
PriceFactor = Annotated[Annotated[float, Meta(ge=0)] | None, Meta(description="factor; default: that of `default`")]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One price."""

    price: AmountCents


OptionalPrice = Annotated[Price | None, Meta(description="price of one in US cents")]


class TokenPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of one token of each kind."""

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
    """Prices of what is used."""

    additional_units: Annotated[dict[str, Price], Meta(description="by unit, as `web_search`")] = {}
    image: Annotated[dict[str, dict[str, Price]], Meta(description="by quality and size")] = {}


class FineTuningPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of fine-tuning."""

    pay_per_token: OptionalPrice = None
    pay_per_hour: OptionalPrice = None


class PricingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a model costs."""

    type: Annotated[Literal["static"] | None, Meta(description="`static`")] = None
    pay_as_you_go: Annotated[PayAsYouGo | None, Meta(description="prices of what is used")] = None
    batch_config: Annotated[TokenPrices | None, Meta(description="prices of what is asked for in batches")] = None
    calculate: Annotated[
        dict[Literal["request", "response"], dict[str, Any]] | None, Meta(description="formulas of the two sums")
    ] = None
    currency: Annotated[Literal["USD"] | None, Meta(description="`USD`")] = None
    finetune_config: Annotated[FineTuningPrices | None, Meta(description="prices of fine-tuning")] = None
    fixed_cost: OptionalPrice = None


class ImageFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor of the prices of images."""

    default: PriceFactor = None


class PriceMultipliers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Factors of prices; what is left out takes that of `default`."""

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
    image: Annotated[ImageFactor | None, Meta(description="factors of the prices of images")] = None
    additional_units: Annotated[
        dict[str, Annotated[float, Meta(ge=0)] | None], Meta(description="factors by unit, as `web_search`")
    ] = {}


class PriceAdjustments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an organisation's prices differ by from the usual ones."""

    multiplier: Annotated[PriceMultipliers, Meta(description="factors of prices")]
