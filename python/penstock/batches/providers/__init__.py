"""Providers that run batches themselves, each by its own way; to add one takes its file and its line in this list."""

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
# What those offer who run batches in OpenAI's way.
BATCH_OPERATION = "createBatch"


def batch_providers_by_name() -> dict[str, type[BatchProvider]]:
    """Give all who run batches, by their own names."""
    shared = {provider["slug"]: OpenAi for provider in catalogue() if BATCH_OPERATION in provider["offers"]}
    return {**shared, **PROVIDERS_BY_NAME}


def batch_provider_for(provider: str) -> type[BatchProvider]:
    """Give the way in which a provider runs batches; it was looked at before that it does."""
    return PROVIDERS_BY_NAME.get(provider, OpenAi)
