"""Price book: model prices of the public list, and prices of the operator, which replace them from a certain date."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, date, datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from msgspec import Meta

from penstock import engine
from penstock.errors import PenstockError, Problem, SettingsError
from penstock.pricing.wire_format import PayAsYouGo, Price, PricingConfig, TokenPrices
from penstock.settings import PRICES_TABLE, read_toml_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from genai_prices.types import ModelInfo, ModelPrice, Provider

    from penstock.settings import Settings

log = logging.getLogger("penstock")

# Beginnings of names in the price list that are no models: patterns for fine-tuned models and groups of regional names.
PATTERN_PREFIXES = ("ft:", "regional.")
# Endings of names in the price list that are no models: patterns, and variants of OpenRouter.
PATTERN_SUFFIXES = (".ft-", "-", ":free", ":extended")
# Field of the wire format for each price field of the list.
TOKEN_RATES = {
    "input_mtok": "request_token",
    "output_mtok": "response_token",
    "cache_read_mtok": "cache_read_input_token",
    "cache_write_mtok": "cache_write_input_token",
    "input_audio_mtok": "request_audio_token",
    "output_audio_mtok": "response_audio_token",
    "cache_audio_read_mtok": "cache_read_audio_input_token",
    "input_image_mtok": "request_image_token",
    "output_image_mtok": "response_image_token",
    "cache_image_read_mtok": "cache_read_image_input_token",
    "output_reasoning_mtok": "reasoning_token",
}
UNIT_NAMES = {
    "cache_write_1h_mtok": "cache_write_1h",
    "storage_searches_kcount": "file_search",
    "web_searches_kcount": "web_search",
}
# Factor that converts dollars of the price list to cents per unit, by the suffix of the price's name.
CENTS_PER_LIST_DOLLAR = {"_mtok": 1e-4, "_mchars": 1e-4, "_kcount": 0.1, "_kpages": 0.1, "_hours": 100.0}
# Token counts and their rates whose products are summed for the request and for the response. The names are those of
# the wire format.
SUM_TERMS = {
    "request": {
        "input_tokens": "request_token",
        "cache_write_tokens": "cache_write_input_token",
        "cache_read_tokens": "cache_read_input_token",
        "audio_input_tokens": "request_audio_token",
        "cache_read_audio_tokens": "cache_read_audio_input_token",
    },
    "response": {"output_tokens": "response_token", "audio_output_tokens": "response_audio_token"},
}


class ListedProvider(msgspec.Struct, frozen=True):
    """How the public price list names a provider and its models. The data are in the provider's row of the engine."""

    name: str
    foreign_prefixes: tuple[str, ...] = ()
    foreign_suffixes: tuple[str, ...] = ()
    has_variants: bool = False

    def has_model(self, model: str) -> bool:
        """Returns false for models that are listed under the provider's name, but belong to another provider of the
        same company.
        """
        return not model.startswith(self.foreign_prefixes) and not model.endswith(self.foreign_suffixes)

    def is_price_pattern(self, name: str) -> bool:
        """Returns true if a name of the price list stands for a group of models."""
        is_variant = name.endswith(PATTERN_SUFFIXES) and not self.has_variants
        return name.startswith(PATTERN_PREFIXES) or is_variant


@cache
def listed_providers() -> dict[str, ListedProvider]:
    """Returns how the public price list names each provider, by slug."""
    return {row["slug"]: msgspec.convert(row["price_list"], ListedProvider) for row in engine.catalogue()}


def find_listed_provider(provider: str) -> ListedProvider:
    """Returns how the public price list names a provider; the same name if the engine does not know the provider."""
    return listed_providers().get(provider) or ListedProvider(provider)


class PriceRow(PricingConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[prices]]` table of the settings file."""

    provider: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1)]
    valid_from: date | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """A model with its price."""

    slug: str
    name: str | None
    provider: str
    pricing_config: PricingConfig


class PriceBook:
    """Finds the current price of a model. The public list is large, so it is loaded only when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        """Stores the path of the settings file. Loads nothing yet."""
        self._file = settings.file
        self._list: dict[str, Provider] | None = None
        self._turn = asyncio.Lock()
        self._seen: tuple[int, int] | None = None
        self._overrides: list[PriceRow] = []

    async def list_models(self, provider: str) -> dict[str, ListedModel]:
        """Returns the models of a provider that have a price, by their names."""
        listed = await self._listed_provider(provider)
        listed_model = {model.id: _to_listed_model(provider, model) for model in (listed.models if listed else [])}
        # The newest price of a model is applied last, so it replaces older ones.
        for row in reversed(self._valid_rows()):
            if row.provider == provider:
                name = listed_model[row.model].name if row.model in listed_model else None
                listed_model[row.model] = ListedModel(row.model, name, provider, _row_pricing(row))
        return listed_model

    async def list_callable_models(self, provider: str) -> dict[str, ListedModel]:
        """Returns the models of a provider that requests can name, by their names. Each price of the operator counts as
        a model.
        """
        models = await self.list_models(provider)
        priced = {row.model for row in self._valid_rows() if row.provider == provider}
        listed = find_listed_provider(provider)
        return {
            name: model
            for name, model in models.items()
            if name in priced or (listed.has_model(name) and not listed.is_price_pattern(name))
        }

    async def is_callable_model(self, provider: str, model: str) -> bool:
        """Returns true if the provider has this model, listed or as a version of a listed one."""
        return find_listed_provider(provider).has_model(model) and await self.find_price(provider, model) is not None

    async def find_price(self, provider: str, model: str) -> PricingConfig | None:
        """Returns the price of a model, or `None` if it is unknown."""
        for row in self._valid_rows():
            if (row.provider, row.model) == (provider, model):
                return _row_pricing(row)
        listed_model = await self.find_listed_model(provider, model)
        return _to_listed_model(provider, listed_model).pricing_config if listed_model else None

    async def find_listed_model(self, provider: str, model: str) -> ModelInfo | None:
        """Returns the entry of a model in the price list, or `None`."""
        listed = await self._listed_provider(provider)
        # For a provider that resells models, the list may have only the prices of their original providers.
        providers = list((self._list or {}).values())
        return listed.find_model(model, all_providers=providers) if listed else None

    async def _listed_provider(self, name: str) -> Provider | None:
        async with self._turn:
            if self._list is None:
                self._list = await asyncio.to_thread(_load_price_list)
        return self._list.get(find_listed_provider(name).name)

    def _valid_rows(self) -> list[PriceRow]:
        """Returns the operator's prices that are valid today, the newest first."""
        if self._file and (version := file_version(self._file)) != self._seen:
            self._seen = version
            try:
                self._overrides = read_price_rows(self._file)
            except PenstockError as error:
                log.error("the old prices stay in use: %s", error)  # noqa: TRY400 - a traceback would add nothing to the problems
        today = datetime.now(UTC).date()
        valid = [row for row in self._overrides if start_date_of(row) <= today]
        return sorted(valid, key=start_date_of, reverse=True)


def read_price_rows(file: str) -> list[PriceRow]:
    """Reads the prices of a settings file; raises SettingsError with all problems at once."""
    document: Any = read_toml_file(file).get(PRICES_TABLE, [])
    problems: list[Problem] = []
    rows = list(_parse_rows(cast("list[object]", document if isinstance(document, list) else [document]), problems))
    if problems:
        raise SettingsError(f"the prices of {file!r} cannot be used:", problems)
    return rows


def _parse_rows(tables: list[object], problems: list[Problem]) -> Iterator[PriceRow]:
    for index, table in enumerate(tables):
        try:
            yield msgspec.convert(table, PriceRow)
        except msgspec.ValidationError as error:
            message, _, location = str(error).partition(" - at `$")
            problems.append(
                Problem(f"{PRICES_TABLE}[{index}]{location.rstrip('`')}", message[:1].lower() + message[1:])
            )


def _load_price_list() -> dict[str, Provider]:
    from genai_prices import data  # noqa: PLC0415 - 30 MB that are needed only to look up prices

    return {provider.id: provider for provider in data.providers}


def file_version(file: str) -> tuple[int, int] | None:
    """Returns a value that changes whenever the file is written or replaced. Returns `None` if the file does
    not exist.
    """
    try:
        file_status = os.stat(file)  # noqa: PTH116 - called often, and pathlib is slower
    except OSError:
        return None
    return file_status.st_mtime_ns, file_status.st_ino


def start_date_of(row: PriceRow) -> date:
    """Returns the date, in UTC, from which a price is valid."""
    return row.valid_from or date.min


def _row_pricing(row: PriceRow) -> PricingConfig:
    fields = {name: getattr(row, name) for name in PricingConfig.__struct_fields__}
    return _with_formulas(PricingConfig(**fields))


def _to_listed_model(provider: str, model: ModelInfo) -> ListedModel:
    prices = model.get_prices(datetime.now(UTC))
    batch = [item.prices for item in model.price_variants or () if dict(item.when) == {"processing": "batch"}]
    config = PricingConfig(
        pay_as_you_go=PayAsYouGo(**_token_rates(prices), additional_units=_unit_rates(prices)),
        batch_config=TokenPrices(**_token_rates(batch[0])) if batch else None,
    )
    return ListedModel(model.id, model.name, provider, _with_formulas(config))


def _with_formulas(config: PricingConfig) -> PricingConfig:
    """Adds the formulas by which clients compute a cost, if the config has none."""
    rates = config.pay_as_you_go
    formulas = {side: _sum_formula(side, rates) for side in ("request", "response")} if rates else None
    return msgspec.structs.replace(
        config, type="static", currency="USD", calculate=config.calculate or cast("Any", formulas)
    )


def _sum_formula(side: str, rates: PayAsYouGo) -> dict[str, Any]:
    parts = [(count, rate) for count, rate in SUM_TERMS[side].items() if getattr(rates, rate) is not None]
    products = [
        {"operation": "multiply", "operands": [{"value": count}, {"value": f"rates.{rate}"}]} for count, rate in parts
    ]
    return {"operation": "sum", "operands": products}


def _token_rates(prices: ModelPrice) -> dict[str, Any]:
    return {rate: price for name, rate in TOKEN_RATES.items() if (price := _price_in_cents(prices, name))}


def _unit_rates(prices: ModelPrice) -> dict[str, Price]:
    others = [name for name in vars(prices) if name not in TOKEN_RATES and name.endswith(tuple(CENTS_PER_LIST_DOLLAR))]
    rates: dict[str, Price] = {}
    for name in others:
        if price := _price_in_cents(prices, name):
            rates[UNIT_NAMES.get(name, name.rpartition("_")[0])] = price
    return rates


def _price_in_cents(prices: ModelPrice, name: str) -> Price | None:
    """Returns a price in cents. If the price depends on the length of the prompt, returns that of the first tier."""
    listed = cast("Any", getattr(prices, name, None))
    if listed is None:
        return None
    factor = next(cents for suffix, cents in CENTS_PER_LIST_DOLLAR.items() if name.endswith(suffix))
    # Rounded to 12 digits, to drop the error of multiplying binary fractions.
    return Price(float(f"{float(getattr(listed, 'base', listed)) * factor:.12g}"))


def _free_pricing() -> PricingConfig:
    zero_rates = {rate: Price(0.0) for rates in SUM_TERMS.values() for rate in rates.values()}
    return _with_formulas(PricingConfig(pay_as_you_go=msgspec.convert(msgspec.to_builtins(zero_rates), PayAsYouGo)))


# Pricing of an unknown model: all prices are 0, with the formulas by which clients compute a cost.
FREE_PRICING = _free_pricing()
