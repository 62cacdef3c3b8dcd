"""Providers that run batches themselves, each by its own way; to add one takes its file and its line in this list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine import catalogue
from penstock.jobs.batch_providers.anthropic import Anthropic
from penstock.jobs.batch_providers.bedrock import Bedrock
from penstock.jobs.batch_providers.cohere import Cohere
from penstock.jobs.batch_providers.fireworks import Fireworks
from penstock.jobs.batch_providers.openai import OpenAi
from penstock.jobs.batch_providers.vertex_ai import VertexAi

if TYPE_CHECKING:
    from penstock.jobs.batch_providers.way import Way

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
