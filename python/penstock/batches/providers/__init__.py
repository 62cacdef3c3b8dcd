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
    from penstock.batches.providers.batch_provider import Way

WAYS: dict[str, type[Way]] = {
    "anthropic": Anthropic,
    "bedrock": Bedrock,
    "cohere": Cohere,
    "fireworks-ai": Fireworks,
    "vertex-ai": VertexAi,
}
# What those offer who run batches in OpenAI's way.
OFFER = "createBatch"


def ways() -> dict[str, type[Way]]:
    """Give all who run batches, by their own names."""
    shared = {provider["slug"]: OpenAi for provider in catalogue() if OFFER in provider["offers"]}
    return {**shared, **WAYS}


def way_of(provider: str) -> type[Way]:
    """Give the way in which a provider runs batches; it was looked at before that it does."""
    return WAYS.get(provider, OpenAi)
