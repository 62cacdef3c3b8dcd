"""What models cost, as the wire says it: US cents for each token or unit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# A million dollars for one: the engine counts whole pico-dollars in 64 bits.
MOST_CENTS = 1e8
Amount = Annotated[float, Meta(ge=0, le=MOST_CENTS, description="US cents")]
Factor = Annotated[Annotated[float, Meta(ge=0)] | None, Meta(description="factor; default: that of `default`")]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One price."""

    price: Amount


MaybePrice = Annotated[Price | None, Meta(description="price of one in US cents")]


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of one token of each kind."""

    request_token: MaybePrice = None
    response_token: MaybePrice = None
    cache_write_input_token: MaybePrice = None
    cache_read_input_token: MaybePrice = None
    request_audio_token: MaybePrice = None
    response_audio_token: MaybePrice = None
    cache_read_audio_input_token: MaybePrice = None
    cache_write_audio_input_token: MaybePrice = None
    reasoning_token: MaybePrice = None
    request_text_token: MaybePrice = None
    response_text_token: MaybePrice = None
    request_image_token: MaybePrice = None
    response_image_token: MaybePrice = None
    cache_read_image_input_token: MaybePrice = None
    cache_read_text_input_token: MaybePrice = None
    cache_write_image_input_token: MaybePrice = None
    cache_write_text_input_token: MaybePrice = None


class PayAsYouGo(Tokens, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of what is used."""

    additional_units: Annotated[dict[str, Price], Meta(description="by unit, as `web_search`")] = {}
    image: Annotated[dict[str, dict[str, Price]], Meta(description="by quality and size")] = {}


class Finetuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Prices of fine-tuning."""

    pay_per_token: MaybePrice = None
    pay_per_hour: MaybePrice = None


class PricingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a model costs."""

    type: Annotated[Literal["static"] | None, Meta(description="`static`")] = None
    pay_as_you_go: Annotated[PayAsYouGo | None, Meta(description="prices of what is used")] = None
    batch_config: Annotated[Tokens | None, Meta(description="prices of what is asked for in batches")] = None
    calculate: Annotated[
        dict[Literal["request", "response"], dict[str, Any]] | None, Meta(description="formulas of the two sums")
    ] = None
    currency: Annotated[Literal["USD"] | None, Meta(description="`USD`")] = None
    finetune_config: Annotated[Finetuning | None, Meta(description="prices of fine-tuning")] = None
    fixed_cost: MaybePrice = None


class ImageFactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor of the prices of images."""

    default: Factor = None


class Multiplier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Factors of prices; what is left out takes that of `default`."""

    default: Factor = None
    request_token: Factor = None
    response_token: Factor = None
    cache_read_input_token: Factor = None
    cache_write_input_token: Factor = None
    cache_read_audio_input_token: Factor = None
    request_audio_token: Factor = None
    response_audio_token: Factor = None
    reasoning_token: Factor = None
    prediction_accepted_token: Factor = None
    prediction_rejected_token: Factor = None
    request_image_token: Factor = None
    response_image_token: Factor = None
    request_text_token: Factor = None
    response_text_token: Factor = None
    cache_read_image_input_token: Factor = None
    cache_read_text_input_token: Factor = None
    cache_write_text_input_token: Factor = None
    cache_write_image_input_token: Factor = None
    image: Annotated[ImageFactor | None, Meta(description="factors of the prices of images")] = None
    additional_units: Annotated[
        dict[str, Annotated[float, Meta(ge=0)] | None], Meta(description="factors by unit, as `web_search`")
    ] = {}


class Adjustments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an organisation's prices differ by from the usual ones."""

    multiplier: Annotated[Multiplier, Meta(description="factors of prices")]
