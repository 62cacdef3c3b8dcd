"""The price book: the public list in cents, and what the operator says instead from a day on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.errors import SettingsError
from penstock.pricing.price_book import PriceBook, read_price_rows
from penstock.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.pricing.wire_format import PricingConfig

OWN = """
[[prices]]
provider = "openai"
model = "gpt-4o"
valid_from = {day}
[prices.pay_as_you_go]
request_token = {{ price = 7 }}
"""


def asked(file: Path | None, provider: str, model: str) -> PricingConfig | None:
    return asyncio.run(PriceBook(Settings(file=str(file) if file else None)).find_price(provider, model))


def test_the_list_is_told_in_cents_for_a_token():
    found = asked(None, "openai", "gpt-4o")
    assert found
    assert found.pay_as_you_go
    assert found.pay_as_you_go.request_token
    assert found.pay_as_you_go.request_token.price == 0.00025
    assert found.pay_as_you_go.additional_units["web_search"].price == 1.0
    assert found.calculate
    sums = found.calculate["request"]["operands"]
    assert {"operation": "multiply", "operands": [{"value": "input_tokens"}, {"value": "rates.request_token"}]} in sums


def test_a_dated_name_has_the_price_of_its_model_and_providers_their_own_names():
    assert asked(None, "openai", "gpt-4o-2024-08-06") == asked(None, "openai", "gpt-4o")
    assert asked(None, "azure-openai", "gpt-4o") is not None
    assert asked(None, "openai", "nothing") is None
    assert asked(None, "nobody", "gpt-4o") is None


@pytest.mark.parametrize(("day", "price"), [("2020-01-01", 7), ("2999-01-01", 0.00025)])
def test_what_the_operator_says_counts_from_its_day_on(tmp_path: Path, day: str, price: float):
    file = tmp_path / "penstock.toml"
    file.write_text(OWN.format(day=day))
    found = asked(file, "openai", "gpt-4o")
    assert found
    assert found.pay_as_you_go
    assert found.pay_as_you_go.request_token
    assert found.pay_as_you_go.request_token.price == price


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    book = PriceBook(Settings(file=str(file)))
    prices = []
    for content in ("", OWN.format(day="2020-01-01"), "[[prices]]\nprovider = 1\n"):
        draft = tmp_path / "draft"
        draft.write_text(content)
        draft.replace(file)
        found = asyncio.run(book.find_price("openai", "gpt-4o"))
        assert found
        assert found.pay_as_you_go
        assert found.pay_as_you_go.request_token
        prices.append(found.pay_as_you_go.request_token.price)
    assert prices == [0.00025, 7, 7]


def test_every_problem_is_told_with_its_place(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text('[[prices]]\nprovider = 1\n[[prices]]\nprovider = "a"\nmodel = "b"\ncolour = 1\n')
    with pytest.raises(SettingsError) as caught:
        read_price_rows(str(file))
    assert [problem.path for problem in caught.value.problems] == ["prices[0].provider", "prices[1]"]


def test_of_several_prices_the_list_shows_the_one_that_counts(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text(OWN.format(day="2021-01-01") + OWN.format(day="2020-01-01").replace("7", "3"))

    async def both() -> None:
        book = PriceBook(Settings(file=str(file)))
        listed = (await book.list_models("openai"))["gpt-4o"].pricing_config
        assert listed == await book.find_price("openai", "gpt-4o")
        assert listed.pay_as_you_go
        assert listed.pay_as_you_go.request_token
        assert listed.pay_as_you_go.request_token.price == 7

    asyncio.run(both())
