"""Saved providers, one for each API format, all served by the mock provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gateway import Mock

# Prefix of the provider's API paths, by slug.
PATH_PREFIXES = {"openai": "/v1", "anthropic": "/v1", "google": "", "bedrock": "", "cohere": ""}
PROVIDER_OPTIONS = {"bedrock": {"aws_region": "eu-west-1"}}


def provider_rows(mock: Mock) -> list[dict[str, Any]]:
    """Returns the rows of these providers for `penstock.toml`."""
    return [
        {"slug": slug, "provider": slug, "api_key": "sk-stored", "custom_host": f"{mock.url}{prefix}"}
        | ({"options": PROVIDER_OPTIONS[slug]} if slug in PROVIDER_OPTIONS else {})
        for slug, prefix in PATH_PREFIXES.items()
    ]
