"""A saved provider of each dialect, all of which are the pretend one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gateway import Mock

# By slug, with what stands before their paths.
DIALECTS = {"openai": "/v1", "anthropic": "/v1", "google": "", "bedrock": "", "cohere": ""}
OPTIONS = {"bedrock": {"aws_region": "eu-west-1"}}


def saved(mock: Mock) -> list[dict[str, Any]]:
    """Give their rows for `penstock.toml`."""
    return [
        {"slug": slug, "provider": slug, "api_key": "sk-stored", "custom_host": f"{mock.url}{prefix}"}
        | ({"options": OPTIONS[slug]} if slug in OPTIONS else {})
        for slug, prefix in DIALECTS.items()
    ]
