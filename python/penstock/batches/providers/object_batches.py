"""Batches that read and write objects in a bucket: one with all lines goes there, the answers come from there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.batches.providers.client import Talk, Upload
from penstock.schemas import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.providers.batch_provider import Stated

# The folder of the bucket in which the engine keeps them.
FOLDER = "penstock"
JOBS = "/v1/batch_jobs"
KIND = "application/jsonl"


def needed(stated: Stated, key: str, what: str) -> str:
    """Give what a batch cannot do without."""
    if found := stated.find(key):
        return found
    message = f"need {what}: where the provider is saved as {key!r}, or x-gateway-{key.replace('_', '-')}"
    raise refuse("gateway_options", message)


def path(name: str) -> str:
    """Say where the edge has an object."""
    return f"/v1/batch_objects/{quote(name, safe='')}"


async def put(talk: Talk, name: str, pieces: AsyncIterator[bytes]) -> None:
    """Write an object."""
    await talk.send(Upload("PUT", path(name), KIND, pieces))
