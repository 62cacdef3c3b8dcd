"""Costs of stored requests at the prices of today. The engine computes them as for new requests, from a response that
contains the stored usage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock import engine
from penstock.errors import PenstockError
from penstock.pricing import engine_export
from penstock.pricing.price_book import file_version
from penstock.pricing.saved_prices import SavedPrices
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.settings import Settings

log = logging.getLogger("penstock")

# Interval after which the settings file is checked for changes.
CHECK_INTERVAL_MS = 1000
# Placeholders for the id and the path, which the engine requires. With this path it adds no tool uses, which the stored
# usage already includes.
NO_ID, PATH = "00000000-0000-0000-0000-000000000000", "/v1/embeddings"
# Provider name that replaces one that the gateway does not know. Such a provider has only prices of the operator.
KNOWN_PROVIDER = "openai"
# Field of a response for each tool use in a stored usage.
TOOL_USES = {
    "web_searches": "web_search_requests",
    "file_searches": "file_search_calls",
    "x_searches": "x_search_calls",
    "code_executions": "code_interpreter_calls",
    "attachment_searches": "document_search_calls",
}
# Fields of a stored usage that a response cannot contain: images that are billed one by one, sessions with several
# models, and maps.
NOT_COMPUTABLE = frozenset({"images", "models", "maps"})
Prices = list[dict[str, Any]]


class Cost(NamedTuple):
    """Cost in nano-dollars, and the version of the price that was applied."""

    nanodollars: int
    price_version: str | None


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a record on which its cost depends."""

    provider: str
    model: str
    created_at_ms: int
    req_units: int | None = None
    res_units: int | None = None
    usage: Mapping[str, Any] | None = None
    is_batch: bool = False
    saved: SavedPrices | None = None

    @property
    def is_computable(self) -> bool:
        """False if the cost also depends on values that the record does not contain."""
        return not NOT_COMPUTABLE.intersection(self.usage or ())


class LoadedPrices(NamedTuple):
    """All prices loaded into the engine, and the operator's prices by provider and model."""

    recorder: engine.BatchRecorder
    operator_prices: Mapping[tuple[str, str], Prices]


class CostCalculator:
    """Computes costs with the public price list, the operator's prices, and prices that are saved with integrations.
    Several threads may use it. The methods block while prices are loaded.
    """

    def __init__(self, settings: Settings) -> None:
        """Stores the settings with the operator's prices. Loads nothing before the first request."""
        self._settings = settings
        self._turn = threading.Lock()
        self._loaded: LoadedPrices | None = None
        self._version: tuple[int, int] | None = None
        self._checked_at = 0
        self._providers = frozenset[str]()

    def compute_costs(self, requests: Sequence[StoredRequest]) -> list[Cost | None]:
        """Returns the cost of each request. It is `None` if no price is known, or if the cost cannot be computed from
        the record.
        """
        loaded = self._load()
        return [self._compute_cost(loaded, request) for request in requests]

    def _compute_cost(self, loaded: LoadedPrices, request: StoredRequest) -> Cost | None:
        usage = request.usage or {}
        if not request.is_computable:
            return None
        provider, prices = request.provider, self._find_saved_prices(request, usage)
        if provider not in self._providers:
            provider = KNOWN_PROVIDER
            prices = prices or loaded.operator_prices.get((request.provider, request.model), [])
            if not prices:
                return None
        entry = {
            "id": NO_ID,
            "created_at": request.created_at_ms,
            "trace_id": "",
            "path": PATH,
            "provider": provider,
            # If the model is an alias, the list price of the model behind it applies.
            "model": usage.get("listed_model", request.model),
            "status": 200,
            "api_key_id": None,
            "metadata": None,
            "is_batch": request.is_batch,
            "prices": prices,
            "adjustment": request.saved.adjustment if request.saved else None,
        }
        response = _make_response(request, usage)
        record = msgspec.json.decode(
            loaded.recorder.record(msgspec.json.encode(entry), msgspec.json.encode(response)), type=PricedRecord
        )
        return None if record.cost_nanodollars is None else Cost(record.cost_nanodollars, record.price_version)

    @staticmethod
    def _find_saved_prices(request: StoredRequest, usage: Mapping[str, Any]) -> Prices:
        if request.saved is None:
            return []
        by_model = request.saved.prices_by_model
        return by_model.get(usage.get("saved_model", ""), []) or by_model.get(request.model, [])

    def _load(self) -> LoadedPrices:
        with self._turn:
            moment, file = now(), self._settings.file
            if self._loaded and moment - self._checked_at < CHECK_INTERVAL_MS:
                return self._loaded
            self._checked_at = moment
            version = file_version(file) if file else None
            if self._loaded and version == self._version:
                return self._loaded
            try:
                prices = engine_export.export_prices(self._settings)
                operator_prices = {(row["provider"], row["model"]): row["prices"] for row in prices["overrides"]}
                self._providers = frozenset(str(row["slug"]) for row in engine.catalogue())
                self._loaded = LoadedPrices(engine.BatchRecorder(msgspec.json.encode(prices)), operator_prices)
            except (PenstockError, engine.EngineError) as error:
                if self._loaded is None:
                    raise
                log.error("the old prices stay in use: %s", error)  # noqa: TRY400 - a traceback would add nothing to the problems
            self._version = version
            return self._loaded


class PricedRecord(msgspec.Struct):
    """Fields with the cost in a record that the engine builds."""

    cost_nanodollars: int | None = None
    price_version: str | None = None


def _make_response(request: StoredRequest, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a response in OpenAI's format whose usage has the stored buckets."""
    audio_read, image_read = usage.get("cache_read_audio", 0), usage.get("cache_read_image", 0)
    request_tokens, response_tokens = request.req_units or 0, request.res_units or 0
    details = {
        "cached_tokens": usage.get("cache_read", 0) + audio_read + image_read,
        "cached_tokens_details": {"audio_tokens": audio_read, "image_tokens": image_read},
        "ephemeral_5m_input_tokens": usage.get("cache_write_5m", 0),
        "ephemeral_1h_input_tokens": usage.get("cache_write_1h", 0),
        "audio_tokens": usage.get("audio_in", 0) + audio_read,
        "image_tokens": usage.get("image_in", 0) + image_read,
    }
    stated: dict[str, Any] = {
        "prompt_tokens": request_tokens,
        "completion_tokens": response_tokens,
        "total_tokens": request_tokens + response_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": usage.get("reasoning", 0),
            "audio_tokens": usage.get("audio_out", 0),
            "image_tokens": usage.get("image_out", 0),
        },
        "server_tool_use": {provider_name: usage.get(own_name, 0) for own_name, provider_name in TOOL_USES.items()},
        "search_units": usage.get("rankings", 0),
    }
    return {"usage": stated, **({"service_tier": usage["service_tier"]} if "service_tier" in usage else {})}
