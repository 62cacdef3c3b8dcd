"""Price book: the public price list in cents, and the operator's prices, which replace it from their start date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.errors import SettingsError
from penstock.pricing.price_book import PriceBook, find_listed_provider, read_price_rows
from penstock.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.pricing.wire_format import PricingConfig

OPERATOR_PRICES = """
[[prices]]
provider = "openai"
model = "gpt-4o"
valid_from = {day}
[prices.pay_as_you_go]
request_token = {{ price = 7 }}
"""


def fetch_price(file: Path | None, provider: str, model: str) -> PricingConfig | None:
    return asyncio.run(PriceBook(Settings(file=str(file) if file else None)).find_price(provider, model))


def test_list_prices_are_in_cents_per_token():
    price = fetch_price(None, "openai", "gpt-4o")
    assert price
    assert price.pay_as_you_go
    assert price.pay_as_you_go.request_token
    assert price.pay_as_you_go.request_token.price == 0.00025
    assert price.pay_as_you_go.additional_units["web_search"].price == 1.0
    assert price.calculate
    sums = price.calculate["request"]["operands"]
    assert {"operation": "multiply", "operands": [{"value": "input_tokens"}, {"value": "rates.request_token"}]} in sums


def test_resolves_dated_models_and_provider_names():
    assert fetch_price(None, "openai", "gpt-4o-2024-08-06") == fetch_price(None, "openai", "gpt-4o")
    assert fetch_price(None, "azure-openai", "gpt-4o") is not None
    assert fetch_price(None, "openai", "nothing") is None
    assert fetch_price(None, "nobody", "gpt-4o") is None


@pytest.mark.parametrize(
    ("provider", "model", "is_offered"),
    [
        ("google", "gemini-2.5-pro", True),
        ("google", "claude-opus-4-1", False),
        ("google", "deepseek-v3-maas", False),
        ("vertex-ai", "claude-opus-4-1", True),
        ("nobody", "claude-opus-4-1", True),
    ],
)
def test_models_of_another_provider_of_the_company_are_not_offered(provider: str, model: str, *, is_offered: bool):
    assert find_listed_provider(provider).has_model(model) is is_offered


@pytest.mark.parametrize(
    ("provider", "name", "is_pattern"),
    [("openai", "ft:gpt-4o", True), ("openai", "gpt-4o:free", True), ("openrouter", "gpt-4o:free", False)],
)
def test_names_that_end_like_a_pattern_are_models_of_resellers_of_variants(
    provider: str, name: str, *, is_pattern: bool
):
    assert find_listed_provider(provider).is_price_pattern(name) is is_pattern


@pytest.mark.parametrize(("day", "price"), [("2020-01-01", 7), ("2999-01-01", 0.00025)])
def test_operator_price_applies_from_its_start_date(tmp_path: Path, day: str, price: float):
    file = tmp_path / "penstock.toml"
    file.write_text(OPERATOR_PRICES.format(day=day))
    result = fetch_price(file, "openai", "gpt-4o")
    assert result
    assert result.pay_as_you_go
    assert result.pay_as_you_go.request_token
    assert result.pay_as_you_go.request_token.price == price


def test_reloads_a_changed_file_and_ignores_an_invalid_one(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    book = PriceBook(Settings(file=str(file)))
    prices = []
    for content in ("", OPERATOR_PRICES.format(day="2020-01-01"), "[[prices]]\nprovider = 1\n"):
        draft = tmp_path / "draft"
        draft.write_text(content)
        draft.replace(file)
        price = asyncio.run(book.find_price("openai", "gpt-4o"))
        assert price
        assert price.pay_as_you_go
        assert price.pay_as_you_go.request_token
        prices.append(price.pay_as_you_go.request_token.price)
    assert prices == [0.00025, 7, 7]


def test_every_problem_has_its_path(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text('[[prices]]\nprovider = 1\n[[prices]]\nprovider = "a"\nmodel = "b"\ncolour = 1\n')
    with pytest.raises(SettingsError) as caught:
        read_price_rows(str(file))
    assert [problem.path for problem in caught.value.problems] == ["prices[0].provider", "prices[1]"]


def test_price_list_shows_the_price_in_force(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text(
        OPERATOR_PRICES.format(day="2021-01-01") + OPERATOR_PRICES.format(day="2020-01-01").replace("7", "3")
    )

    async def scenario() -> None:
        book = PriceBook(Settings(file=str(file)))
        listed = (await book.list_models("openai"))["gpt-4o"].pricing_config
        assert listed == await book.find_price("openai", "gpt-4o")
        assert listed.pay_as_you_go
        assert listed.pay_as_you_go.request_token
        assert listed.pay_as_you_go.request_token.price == 7

    asyncio.run(scenario())
