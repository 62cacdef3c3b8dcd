"""Export of prices for the engine. Converts the public price list and the operator's prices to whole pico-dollars per
unit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import process
from penstock.pricing.price_book import PriceRow, listed_providers, read_price_rows, start_date_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, Provider

    from penstock.pricing.wire_format import Price, PricingConfig, TokenPrices
    from penstock.settings import Settings

# Engine bucket of each field of the public list. The list has dollars per million, which equals millions of
# pico-dollars per unit.
PUBLIC_LIST_BUCKETS = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_reasoning_mtok": "reasoning",
    "input_audio_mtok": "audio_in",
    "output_audio_mtok": "audio_out",
    "cache_audio_read_mtok": "cache_read_audio",
    "input_image_mtok": "image_in",
    "output_image_mtok": "image_out",
    "cache_image_read_mtok": "cache_read_image",
    "web_searches_kcount": "web_search",
    "storage_searches_kcount": "file_search",
    "social_searches_kcount": "x_search",
    "rerank_searches_kcount": "search",
}
# Engine bucket of each price field of the operator. The operator's prices are in cents per unit.
OPERATOR_BUCKETS = {
    "request_token": "input",
    "response_token": "output",
    "cache_read_input_token": "cache_read",
    "cache_write_input_token": "cache_write",
    "reasoning_token": "reasoning",
    "request_audio_token": "audio_in",
    "response_audio_token": "audio_out",
    "cache_read_audio_input_token": "cache_read_audio",
    "request_image_token": "image_in",
    "response_image_token": "image_out",
    "cache_read_image_input_token": "cache_read_image",
}
# Engine bucket of each text token price. Such a price replaces the price of its bucket for text only.
TEXT_BUCKETS = {
    "request_text_token": "input",
    "response_text_token": "output",
    "cache_read_text_input_token": "cache_read",
    "cache_write_text_input_token": "cache_write",
}
# Buckets of other modalities. Without their own price they have the price of all tokens, not the price of text tokens.
NON_TEXT_BUCKETS = {
    "input": ("audio_in", "image_in"),
    "output": ("audio_out", "image_out"),
    "cache_read": ("cache_read_audio", "cache_read_image"),
}
# Units for which the operator can set a price multiplier. Each has the engine's bucket of usage that it prices, and the
# bucket whose multiplier applies if the unit has none.
UNIT_BUCKETS = {
    "cache_write_1h": ("cache_write_1h", "cache_write"),
    "thinking_token": ("reasoning", None),
    "image_token": ("image_out", None),
    "web_search": ("web_search", None),
    "file_search": ("file_search", None),
    "x_search": ("x_search", None),
    "code_execution": ("code_execution", None),
    "attachment_search": ("attachment_search", None),
    "maps": ("maps", None),
    "search": ("search", None),
}
# Units that are billed in addition to tokens. If a model has prices only for them, its token price is unknown.
NON_TOKEN_UNITS = {"web_search", "file_search", "x_search", "code_execution", "attachment_search", "maps"}
PICODOLLARS_PER_CENT = Decimal(10) ** 10
# For units other than tokens, the public list has dollars per thousand.
PICODOLLARS_PER_MILLIDOLLAR = Decimal(10) ** 9
PICODOLLARS_PER_MICRODOLLAR = Decimal(10) ** 6
# Names of price variants, by the condition with which the public list marks them.
SERVICE_VARIANTS = {
    ("processing", "batch"): "batch",
    ("service_tier", "flex"): "flex",
    ("service_tier", "priority"): "priority",
    ("service_tier", "fast"): "fast",
    ("speed", "fast"): "fast",
}
Rates = dict[str, list[tuple[int, int]]]
# Price variants, the earliest first. Each has its start date, the batch or service tier, and its rates.
PriceVariants = list[tuple[date, str, Rates]]
# Largest number that the engine can store.
MAX_I64 = 2**63 - 1
NEGATIVE_LOOKAHEAD = "^(?!"


def export_prices(settings: Settings) -> dict[str, Any]:
    """Returns all known prices: the cached public list and the operator's prices from the config file."""
    rows = read_price_rows(settings.file) if settings.file else []
    rows_by_model: dict[tuple[str, str], list[PriceRow]] = {}
    for row in sorted(rows, key=start_date_of):
        rows_by_model.setdefault((row.provider, row.model), []).append(row)
    operator_prices = [
        {
            "provider": provider,
            "model": model,
            "prices": [price for row in rows for price in export_operator_prices(row, row.valid_from)],
        }
        for (provider, model), rows in rows_by_model.items()
    ]
    return {**msgspec.json.decode(export_public_list(), type=dict[str, msgspec.Raw]), "overrides": operator_prices}


@functools.cache
def start_public_list() -> process.ChildTask:
    """Starts a child process that reads the public price list. Its objects need thirty times the memory of the result,
    which is freed afterwards.
    """
    return process.ChildTask(_build_public_list, "reading the price list")


@functools.cache
def export_public_list() -> bytes:
    """Returns the public price list as JSON."""
    return start_public_list().result()


def export_operator_prices(config: PricingConfig, valid_from: Any = None) -> list[dict[str, Any]]:  # noqa: ANN401 - a date, or none
    """Returns an operator's prices in the engine's format. Returns an empty list if they contain no price of tokens,
    images, batches or requests.
    """
    tokens = config.pay_as_you_go
    rates = _operator_rates(tokens)
    units = tokens.additional_units if tokens else {}
    for unit, (bucket, _) in UNIT_BUCKETS.items():
        if price := units.get(unit):
            rates.setdefault(bucket, [(0, _to_picodollars(price.price, PICODOLLARS_PER_CENT))])
    images = _image_prices(tokens.image) if tokens else {}
    request = _to_picodollars(config.fixed_cost.price, PICODOLLARS_PER_CENT) if config.fixed_cost else 0
    batch = _operator_rates(config.batch_config)
    is_price = _has_token_rates(rates) or images or batch or config.fixed_cost
    return [_with_version(rates, request, valid_from, variants={"batch": batch}, images=images)] if is_price else []


def export_adjustments(adjustments: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns an organisation's price adjustments: one factor per engine bucket, in millionths."""
    if not adjustments:
        return None
    multiplier: dict[str, Any] = adjustments["multiplier"]
    default = multiplier.get("default")
    default = 1.0 if default is None else default
    multipliers = {bucket: multiplier.get(name) for name, bucket in OPERATOR_BUCKETS.items()}
    units: dict[str, float | None] = multiplier.get("additional_units") or {}
    for unit, (ours, kind) in UNIT_BUCKETS.items():
        factor = units.get(unit)
        bucket_factor = multipliers.get(ours) if factor is None else factor
        multipliers[ours] = multipliers.get(kind) if bucket_factor is None and kind else bucket_factor
    for name, ours in TEXT_BUCKETS.items():
        if multipliers.get(ours) is None:
            multipliers[ours] = multiplier.get(name)
    factors = {ours: _to_millionths(default if factor is None else factor) for ours, factor in multipliers.items()}
    exported: dict[str, Any] = {"request": _to_millionths(default), "factors": factors}
    images: dict[str, float | None] = multiplier.get("image") or {}
    if (image := images.get("default")) is not None:
        exported["image"] = _to_millionths(image)
    digest = hashlib.sha256(json.dumps(exported, sort_keys=True).encode())
    return {"version": digest.hexdigest()[:8], **exported}


def _to_millionths(factor: float) -> int:
    return min(round(Decimal(str(factor)) * 10**6), MAX_I64)


def _operator_rates(tokens: TokenPrices | None) -> Rates:
    prices = {bucket: getattr(tokens, name) for name, bucket in OPERATOR_BUCKETS.items()} if tokens else {}
    rates: Rates = {
        ours: [(0, _to_picodollars(price.price, PICODOLLARS_PER_CENT))]
        for ours, price in prices.items()
        if price is not None
    }
    for name, ours in TEXT_BUCKETS.items():
        if price := getattr(tokens, name, None):
            of_all = rates.get(ours)
            rates[ours] = [(0, _to_picodollars(price.price, PICODOLLARS_PER_CENT))]
            for other in NON_TEXT_BUCKETS.get(ours, ()) if of_all else ():
                rates.setdefault(other, of_all or [])
    return rates


def _image_prices(prices: Mapping[str, Mapping[str, Price]]) -> dict[str, dict[str, int]]:
    """Returns the price of one image in pico-dollars, by quality and size."""
    return {
        quality: {size: _to_picodollars(price.price, PICODOLLARS_PER_CENT) for size, price in sizes.items()}
        for quality, sizes in prices.items()
    }


def _build_public_list() -> bytes:
    from genai_prices import data  # noqa: PLC0415 - it takes 30 MB

    providers_by_id = {provider.id: provider for provider in data.providers}
    sellers: dict[str, list[str]] = {}
    for slug, listed in listed_providers().items():
        if entry := providers_by_id.get(listed.name):
            sellers[slug] = [entry.id, *(entry.fallback_model_providers or ())]
    needed = {name for names in sellers.values() for name in names}
    lists = {name: list(_export_models(providers_by_id[name])) for name in sorted(needed & providers_by_id.keys())}
    return msgspec.json.encode({"sellers": sellers, "lists": lists})


def _export_models(provider: Provider) -> Iterator[dict[str, Any]]:
    for model in provider.models:
        listed = model.prices if isinstance(model.prices, list) else [model.prices]
        variants = _price_variants(model)
        if prices := [item for price in listed for item in _model_prices(price, variants)]:
            yield {"names": _export_match_clause(model.match), "prices": prices}


def _price_variants(model: ModelInfo) -> PriceVariants:
    """Returns the rates for batches and service tiers.

    The engine has no batch rates by prompt length. Batch rates with tiers are omitted, so the engine charges half of
    the standard rate for these tokens.
    """
    variants: PriceVariants = []
    for variant in model.price_variants or ():
        constraint: Any = variant.constraint
        kinds = [kind for (key, value), kind in SERVICE_VARIANTS.items() if variant.when == {key: value}]
        if not kinds or hasattr(constraint, "end_time"):
            continue
        rates = _public_list_rates(variant.prices)
        if kinds == ["batch"]:
            rates = {bucket: tiers for bucket, tiers in rates.items() if len(tiers) == 1}
        variants.append((getattr(constraint, "start_date", date.min), kinds[0], rates))
    return sorted(variants, key=operator.itemgetter(0))


def _model_prices(price: ConditionalPrice | ModelPrice, variants: PriceVariants) -> Iterator[dict[str, Any]]:
    constraint: Any = getattr(price, "constraint", None)
    prices: Any = getattr(price, "prices", price)
    rates = _public_list_rates(prices)
    request = _to_picodollars(getattr(prices, "requests_kcount", None) or 0, PICODOLLARS_PER_MILLIDOLLAR)
    if not _has_token_rates(rates) and not request:
        return
    daily = (
        (_utc_second_of_day(constraint.start_time), _utc_second_of_day(constraint.end_time))
        if hasattr(constraint, "end_time")
        else None
    )
    start: date | None = getattr(constraint, "start_date", None)
    # A new price starts on each date on which the price of a batch or service tier changes.
    for moment in [start, *sorted({since for since, *_ in variants if since > (start or date.min)})]:
        active_variants = {kind: variant for since, kind, variant in variants if since <= (moment or date.min)}
        yield _with_version(rates, request, moment, daily, active_variants)


def _has_token_rates(rates: Rates) -> bool:
    """Returns true if there are rates for tokens. With rates for additional units alone, tokens would cost nothing."""
    return bool(rates.keys() - NON_TOKEN_UNITS)


def _public_list_rates(prices: Any) -> Rates:  # noqa: ANN401 - an object of the price list
    listed_prices = {name: price for name in PUBLIC_LIST_BUCKETS if (price := getattr(prices, name)) is not None}
    return {
        PUBLIC_LIST_BUCKETS[name]: _price_tiers(
            listed_price, PICODOLLARS_PER_MILLIDOLLAR if name.endswith("_kcount") else PICODOLLARS_PER_MICRODOLLAR
        )
        for name, listed_price in listed_prices.items()
    }


def _with_version(
    rates: dict[str, Any],
    request: int,
    start: Any,  # noqa: ANN401 - a date, or none
    daily: tuple[int, int] | None = None,
    variants: dict[str, Rates] | None = None,
    images: dict[str, dict[str, int]] | None = None,
) -> dict[str, Any]:
    """Builds a price whose version is a hash of its content, so each change gets a new version."""
    price: dict[str, Any] = {"rates": rates}
    services = {kind: variant_rates for kind, variant_rates in (variants or {}).items() if variant_rates}
    if batch := services.pop("batch", None):
        price["batch"] = batch
    if services:
        price["services"] = services
    if request:
        price["request"] = request
    if images:
        price["images"] = images
    if start:
        price["from"] = int(datetime.combine(start, time(), UTC).timestamp())
    if daily:
        price["daily"] = daily
    digest = hashlib.sha256(json.dumps(price, sort_keys=True).encode())
    return {"version": digest.hexdigest()[:12], **price}


def _price_tiers(price: Any, factor: Decimal) -> list[tuple[int, int]]:  # noqa: ANN401 - a number, or an object with one price for each prompt length
    tiers: Iterable[Any] = getattr(price, "tiers", ())
    first = (0, _to_picodollars(getattr(price, "base", price), factor))
    return [first, *((tier.start, _to_picodollars(tier.price, factor)) for tier in tiers)]


def _to_picodollars(price: Any, factor: Decimal) -> int:  # noqa: ANN401 - a decimal, a float, a whole number
    return round(Decimal(str(price)) * factor)


def _utc_second_of_day(moment: time) -> int:
    """Converts a time of day to the second of the day in UTC."""
    shift = moment.utcoffset()
    utc_offset_seconds = int(shift.total_seconds()) if shift else 0
    return (moment.hour * 3600 + moment.minute * 60 + moment.second - utc_offset_seconds) % 86_400


def _export_match_clause(match: Any) -> dict[str, Any]:  # noqa: ANN401 - one of the list's clauses, which have nothing in common
    kind = type(match).__name__.removeprefix("Clause").lower()
    match kind:
        case "or" | "and":
            inner = [_export_match_clause(item) for item in getattr(match, f"{kind}_")]
            return {"any" if kind == "or" else "all": inner}
        case "regex":
            return _export_pattern(match.regex)
        case _:
            key, text = {
                "equals": ("is", "equals"),
                "startswith": ("starts", "starts_with"),
                "endswith": ("ends", "ends_with"),
                "contains": ("has", "contains"),
            }[kind]
            return {key: getattr(match, text).lower()}


def _export_pattern(text: str) -> dict[str, Any]:
    """Rewrites a negative lookahead as a negated pattern, because the engine's regular expressions have no
    lookahead.
    """
    if text.startswith(NEGATIVE_LOOKAHEAD) and text.endswith(")"):
        return {"not": {"like": f"^{text.removeprefix(NEGATIVE_LOOKAHEAD)[:-1]}"}}
    return {"like": text}
