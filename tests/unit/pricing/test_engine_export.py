"""Price export for the engine: integer pico-dollars, from the public list and from the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock import engine
from penstock.pricing import engine_export
from penstock.pricing.engine_export import export_operator_prices
from penstock.pricing.wire_format import PricingConfig
from penstock.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR_PRICES = """
[[prices]]
provider = "openai"
model = "gpt-4o"
valid_from = 2026-02-01
[prices.pay_as_you_go]
request_token = { price = 0.0002 }
additional_units = { cache_write_1h = { price = 0.0004 } }

[[prices]]
provider = "openai"
model = "gpt-4o"
[prices.fixed_cost]
price = 1.5

[[prices]]
provider = "openai"
model = "whisper"
[prices.finetune_config.pay_per_hour]
price = 1
"""


@pytest.fixture(scope="module")
def public_list() -> dict[str, Any]:
    return msgspec.json.decode(engine_export.export_public_list())


def prices_by_name(public_list: dict[str, Any], provider: str, name: str) -> list[dict[str, Any]]:
    """Returns the prices of the model whose name clause matches exactly this name."""

    def matches_name(clause: dict[str, Any]) -> bool:
        return clause.get("is") == name or any(matches_name(item) for item in clause.get("any", []))

    return next(model["prices"] for model in public_list["lists"][provider] if matches_name(model["names"]))


def test_list_is_exported_in_pico_dollars_per_token(public_list: dict[str, Any]):
    rates = prices_by_name(public_list, "openai", "gpt-4o")[-1]["rates"]
    assert rates.pop("web_search") == [[0, 10_000_000_000]]
    assert rates.pop("file_search") == [[0, 2_500_000_000]]
    assert rates == {"input": [[0, 2_500_000]], "output": [[0, 10_000_000]], "cache_read": [[0, 1_250_000]]}
    long = [
        price
        for model in public_list["lists"]["google"]
        for price in model["prices"]
        if len(price["rates"]["input"]) > 1
    ]
    assert all(tiers[0][0] == 0 for price in long for tiers in price["rates"].values())
    assert long


def test_batch_prices_are_exported_from_their_start_date(public_list: dict[str, Any]):
    before, after = prices_by_name(public_list, "anthropic", "claude-fable-5")
    assert "batch" not in before
    assert after["rates"] == before["rates"]
    assert (after["from"], before.get("from")) == (1_791_936_000, None)
    assert after["batch"]["input"] == [[0, 5_000_000]]
    batches = [
        price["batch"]
        for models in public_list["lists"].values()
        for model in models
        for price in model["prices"]
        if "batch" in price
    ]
    assert len(batches) > 50
    assert all(len(tiers) == 1 for batch in batches for tiers in batch.values())


def test_service_tier_prices_are_exported_beside_the_rates(public_list: dict[str, Any]):
    now = prices_by_name(public_list, "openai", "gpt-5")[-1]
    assert set(now["services"]) == {"flex", "priority", "fast"}
    assert now["services"]["flex"]["input"][0][1] < now["rates"]["input"][0][1] < now["services"]["fast"]["input"][0][1]
    assert now["services"]["fast"] == now["services"]["priority"]
    claude = [price for model in public_list["lists"]["anthropic"] for price in model["prices"] if "services" in price]
    assert claude
    assert all(price["services"]["fast"]["output"] > price["rates"]["output"] for price in claude)


def test_resellers_refer_to_the_lists_of_their_models(public_list: dict[str, Any]):
    assert public_list["sellers"]["azure-openai"][:2] == ["azure", "openai"]
    assert public_list["sellers"]["bedrock"] == ["aws"]
    used = {name for names in public_list["sellers"].values() for name in names}
    assert set(public_list["lists"]) <= used


def test_patterns_use_no_lookahead(public_list: dict[str, Any]):
    assert b"(?!" not in engine_export.export_public_list()
    assert any("not" in str(model["names"]) for model in public_list["lists"]["google"])


def test_operator_prices_are_ordered_by_start_date(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text(OPERATOR_PRICES)
    mine = engine_export.export_prices(Settings(file=str(file)))["overrides"]
    first, second = mine[0]["prices"]
    assert (first["request"], first["rates"], "from" in first) == (15_000_000_000, {}, False)
    assert second["rates"] == {"input": [(0, 2_000_000)], "cache_write_1h": [(0, 4_000_000)]}
    assert second["from"] == 1_769_904_000
    assert mine[1] == {"provider": "openai", "model": "whisper", "prices": []}


def test_changed_price_changes_its_version(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    versions: set[str] = set()
    for price in ("0.0002", "0.0002", "0.0003"):
        file.write_text(OPERATOR_PRICES.replace("0.0002", price))
        versions.add(engine_export.export_prices(Settings(file=str(file)))["overrides"][0]["prices"][1]["version"])
    assert len(versions) == 2


def test_web_searches_are_priced_per_search(public_list: dict[str, Any]):
    price = prices_by_name(public_list, "anthropic", "claude-sonnet-4")[-1]
    assert price["rates"]["web_search"] == [[0, 10_000_000_000]]
    units = {"web_search": {"price": 2.5}, "maps": {"price": 1}}
    content = {"additional_units": units, "request_token": {"price": 0.002}}
    (mine,) = export_operator_prices(msgspec.convert({"pay_as_you_go": content}, PricingConfig))
    assert mine["rates"] == {
        "input": [(0, 20_000_000)],
        "web_search": [(0, 25_000_000_000)],
        "maps": [(0, 10_000_000_000)],
    }
    # Units alone are not a price: tokens would cost nothing.
    assert export_operator_prices(msgspec.convert({"pay_as_you_go": {"additional_units": units}}, PricingConfig)) == []
    reported = (
        engine_export.export_adjustments({"multiplier": {"default": 0.5, "additional_units": {"web_search": 2.0}}})
        or {}
    )
    assert (reported["factors"]["web_search"], reported["factors"]["input"]) == (2_000_000, 500_000)


def export_token_prices(content: dict[str, Any]) -> list[dict[str, Any]]:
    return export_operator_prices(msgspec.convert({"pay_as_you_go": content}, PricingConfig))


def test_operator_units_use_the_engines_names():
    units = {"search": {"price": 0.2}, "thinking_token": {"price": 0.0003}, "image_token": {"price": 0.004}}
    (mine,) = export_token_prices({"additional_units": units})
    assert mine["rates"] == {
        "search": [(0, 2_000_000_000)],
        "reasoning": [(0, 3_000_000)],
        "image_out": [(0, 40_000_000)],
    }
    both = {"reasoning_token": {"price": 0.0001}, "additional_units": units}
    assert export_token_prices(both)[0]["rates"]["reasoning"] == [(0, 1_000_000)]


def test_text_price_applies_to_text_only():
    (mine,) = export_token_prices({"request_token": {"price": 0.0002}, "request_text_token": {"price": 0.0001}})
    assert mine["rates"] == {
        "input": [(0, 1_000_000)],
        "audio_in": [(0, 2_000_000)],
        "image_in": [(0, 2_000_000)],
    }
    assert export_token_prices({"response_text_token": {"price": 0.0001}})[0]["rates"] == {"output": [(0, 1_000_000)]}


def test_images_are_priced_by_quality_and_size():
    sizes = {"1024x1024": {"price": 4.0}, "default": {"price": 8}}
    (mine,) = export_token_prices({"image": {"standard": sizes}})
    assert mine["images"] == {"standard": {"1024x1024": 40_000_000_000, "default": 80_000_000_000}}
    (other,) = export_token_prices({"image": {"standard": {"1024x1024": {"price": 4.5}}}})
    assert mine["version"] != other["version"]
    reported = engine_export.export_adjustments({"multiplier": {"default": 0.5, "image": {"default": 0.25}}}) or {}
    assert (reported["request"], reported["image"]) == (500_000, 250_000)
    assert "image" not in (engine_export.export_adjustments({"multiplier": {"default": 0.5}}) or {})
    prices_json = {"provider": "openai", "model": "m", "prices": [mine]}
    row = {"id": "i", "allow_all": True, "models": [], "adjustment": reported}
    engine.check(
        "snapshot", msgspec.json.encode({"epoch": "1", "prices": {"overrides": [prices_json]}, "models": [row]})
    )


def test_batch_prices_are_exported_and_change_the_version():
    tokens = {"pay_as_you_go": {"request_token": {"price": 0.002}}}
    (plain,) = export_operator_prices(msgspec.convert(tokens, PricingConfig))
    (both,) = export_operator_prices(
        msgspec.convert({**tokens, "batch_config": {"request_token": {"price": 0.0005}}}, PricingConfig)
    )
    assert (both["rates"], both["batch"]) == (plain["rates"], {"input": [(0, 5_000_000)]})
    assert both["version"] != plain["version"]
    assert "batch" not in plain


def test_multipliers_are_exported_per_kind_with_a_default():
    content = {
        "multiplier": {"default": 0.9, "request_token": 0.5, "response_token": 0, "additional_units": {"x": 3.0}}
    }
    reported = engine_export.export_adjustments(content)
    assert reported
    assert (reported["request"], reported["factors"]["input"], reported["factors"]["output"]) == (900_000, 500_000, 0)
    others = {name: factor for name, factor in reported["factors"].items() if name not in {"input", "output"}}
    assert set(others.values()) == {900_000}
    assert len(reported["factors"]) == 19
    hours = {"multiplier": {"cache_write_input_token": 2.0, "additional_units": {"cache_write_1h": 1.5}}}
    factors = (engine_export.export_adjustments(hours) or {})["factors"]
    assert (factors["cache_write"], factors["cache_write_1h"], factors["input"]) == (2_000_000, 1_500_000, 1_000_000)
    assert engine_export.export_adjustments(None) is None
    assert reported["version"] != (engine_export.export_adjustments(hours) or {})["version"]
    huge = engine_export.export_adjustments({"multiplier": {"default": 1e300}})
    row = {"id": "i", "allow_all": True, "models": [], "adjustment": huge}
    engine.check("snapshot", msgspec.json.encode({"epoch": "1", "models": [row]}))


def test_engine_accepts_the_exported_list():
    content = {"epoch": "1", "prices": engine_export.export_prices(Settings())}
    engine.check("snapshot", msgspec.json.encode(content))
