"""Registry of providers that run batches themselves. A new provider needs a module, and an entry in `PROVIDERS_BY_NAME`
unless it has OpenAI's batch API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.batches.providers.anthropic import Anthropic
from penstock.batches.providers.bedrock import Bedrock
from penstock.batches.providers.cohere import Cohere
from penstock.batches.providers.fireworks import Fireworks
from penstock.batches.providers.openai import OpenAi
from penstock.batches.providers.vertex_ai import VertexAi
from penstock.engine import catalogue

if TYPE_CHECKING:
    from penstock.batches.providers.batch_provider import BatchProvider

PROVIDERS_BY_NAME: dict[str, type[BatchProvider]] = {
    "anthropic": Anthropic,
    "bedrock": Bedrock,
    "cohere": Cohere,
    "fireworks-ai": Fireworks,
    "vertex-ai": VertexAi,
}
# Operation by which the engine's catalogue marks providers with OpenAI's batch API.
BATCH_OPERATION = "createBatch"


def batch_providers_by_name() -> dict[str, type[BatchProvider]]:
    """Returns the batch implementation of every provider that runs batches, by provider name."""
    shared = {provider["slug"]: OpenAi for provider in catalogue() if BATCH_OPERATION in provider["offers"]}
    return {**shared, **PROVIDERS_BY_NAME}


def batch_provider_for(provider: str) -> type[BatchProvider]:
    """Returns the batch implementation of a provider that is known to run batches."""
    return PROVIDERS_BY_NAME.get(provider, OpenAi)
