"""Costs of stored requests: every bucket of the usage, batches, service tiers, saved prices and contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.errors import SettingsError
from penstock.pricing.cost_calculator import CostCalculator, StoredRequest
from penstock.pricing.engine_export import export_adjustments, export_operator_prices
from penstock.pricing.saved_prices import SavedPrices
from penstock.pricing.wire_format import PricingConfig
from penstock.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

# Cents per token, and per use of a tool. All differ, so a bucket that is taken for another one changes the cost.
TOKEN_PRICES = {
    "request_token": 0.001,
    "response_token": 0.002,
    "cache_read_input_token": 0.003,
    "cache_write_input_token": 0.005,
    "reasoning_token": 0.007,
    "request_audio_token": 0.011,
    "response_audio_token": 0.013,
    "cache_read_audio_input_token": 0.017,
    "request_image_token": 0.019,
    "response_image_token": 0.023,
    "cache_read_image_input_token": 0.029,
}
UNIT_PRICES = {
    "cache_write_1h": 0.031,
    "web_search": 0.037,
    "file_search": 0.041,
    "x_search": 0.043,
    "code_execution": 0.047,
    "attachment_search": 0.053,
    "search": 0.059,
}
BUCKETS = {
    "input": ("request_token", "req"),
    "output": ("response_token", "res"),
    "cache_read": ("cache_read_input_token", "req"),
    "cache_write_5m": ("cache_write_input_token", "req"),
    "cache_write_1h": ("cache_write_1h", "req"),
    "reasoning": ("reasoning_token", "res"),
    "audio_in": ("request_audio_token", "req"),
    "audio_out": ("response_audio_token", "res"),
    "cache_read_audio": ("cache_read_audio_input_token", "req"),
    "cache_read_image": ("cache_read_image_input_token", "req"),
    "image_in": ("request_image_token", "req"),
    "image_out": ("response_image_token", "res"),
    "web_searches": ("web_search", ""),
    "file_searches": ("file_search", ""),
    "x_searches": ("x_search", ""),
    "code_executions": ("code_execution", ""),
    "attachment_searches": ("attachment_search", ""),
    "rankings": ("search", ""),
}
CENT = 10_000_000


def make_config(**more: Any) -> PricingConfig:
    prices = {name: {"price": price} for name, price in TOKEN_PRICES.items()}
    units = {name: {"price": price} for name, price in UNIT_PRICES.items()}
    return msgspec.convert({"pay_as_you_go": {**prices, "additional_units": units}, **more}, PricingConfig)


def make_request(counts: dict[str, int], **more: Any) -> StoredRequest:
    units = {side: sum(count for name, count in counts.items() if BUCKETS[name][1] == side) for side in ("req", "res")}
    saved = SavedPrices({"m": export_operator_prices(make_config())})
    fields = {"provider": "openai", "model": "m", "created_at_ms": 1_760_000_000_000, "saved": saved, "usage": counts}
    return StoredRequest(**{**fields, "req_units": units["req"], "res_units": units["res"], **more})


def expected_cents(counts: dict[str, int]) -> float:
    return sum(count * {**TOKEN_PRICES, **UNIT_PRICES}[BUCKETS[name][0]] for name, count in counts.items())


@pytest.fixture(scope="module")
def calculator() -> CostCalculator:
    return CostCalculator(Settings())


def compute_cents(calculator: CostCalculator, request: StoredRequest) -> float | None:
    (cost,) = calculator.compute_costs([request])
    return None if cost is None else cost.nanodollars / CENT


@pytest.mark.parametrize("bucket", BUCKETS)
def test_each_bucket_has_its_price(calculator: CostCalculator, bucket: str):
    counts = {"input": 3, "output": 5, bucket: 7}
    assert compute_cents(calculator, make_request(counts)) == pytest.approx(expected_cents(counts))


def test_all_buckets_together_have_their_prices(calculator: CostCalculator):
    counts = {bucket: 10 + index for index, bucket in enumerate(BUCKETS)}
    assert compute_cents(calculator, make_request(counts)) == pytest.approx(expected_cents(counts))


def test_units_alone_are_input_and_output(calculator: CostCalculator):
    request = make_request({"input": 10, "output": 5}, usage=None)
    assert compute_cents(calculator, request) == pytest.approx(0.02)


def test_batches_cost_half_and_contracts_scale(calculator: CostCalculator):
    counts = {"input": 10, "output": 5}
    assert compute_cents(calculator, make_request(counts, is_batch=True)) == pytest.approx(0.01)
    adjustment = export_adjustments({"multiplier": {"default": 3}})
    saved = SavedPrices({"m": export_operator_prices(make_config())}, adjustment)
    assert compute_cents(calculator, make_request(counts, saved=saved)) == pytest.approx(0.06)


def test_alias_has_the_saved_price_of_the_requested_model(calculator: CostCalculator):
    request = make_request({"input": 10}, model="deployment", usage={"input": 10, "saved_model": "m"})
    assert compute_cents(calculator, request) == pytest.approx(0.01)
    assert compute_cents(calculator, make_request({"input": 10}, model="made-up")) is None


def test_public_prices_are_those_of_new_requests(calculator: CostCalculator):
    """The same response, priced as a new request and from its record."""
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 300,
        "total_tokens": 1300,
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 100},
    }
    loaded = calculator._load()
    for model, tier in (("gpt-4o", None), ("o3", "flex"), ("gpt-5", "priority")):
        response = {"usage": usage, **({"service_tier": tier} if tier else {})}
        entry = {
            "id": "0199aaaa-0000-7000-8000-000000000001", "created_at": 1_760_000_000_000, "trace_id": "t", "status": 200,
            "path": "/v1/chat/completions", "provider": "openai", "model": model, "is_batch": False,
            "api_key_id": None, "metadata": None,
        }  # fmt: skip
        record = msgspec.json.decode(
            loaded.recorder.record(msgspec.json.encode(entry), msgspec.json.encode(response)), type=dict[str, Any]
        )
        stored = {**record["usage"], **({"service_tier": tier} if tier else {})}
        (cost,) = calculator.compute_costs(
            [
                make_request(
                    {},
                    model=model,
                    saved=None,
                    usage=stored,
                    req_units=record["req_units"],
                    res_units=record["res_units"],
                )
            ]
        )
        assert cost == (record["cost_nanodollars"], record["price_version"])


def test_usage_without_all_its_parts_has_no_cost(calculator: CostCalculator):
    for usage in ({"images": 1}, {"models": []}, {"maps": 1}):
        request = make_request({"input": 1}, usage=usage)
        assert not request.is_computable
        assert calculator.compute_costs([request]) == [None]


def test_prices_that_cannot_be_read_are_an_error(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text("[[prices]]\nprovider = 1\n")
    with pytest.raises(SettingsError, match="prices"):
        CostCalculator(Settings(file=str(file))).compute_costs([])
