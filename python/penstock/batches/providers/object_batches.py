"""Batches that read and write objects in a bucket: one with all lines goes there, the answers come from there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.batches.providers.client import BatchClient, Upload
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.providers.batch_provider import ProviderSettings

# The folder of the bucket in which the engine keeps them.
OBJECT_FOLDER = "penstock"
JOBS_PATH = "/v1/batch_jobs"
CONTENT_TYPE = "application/jsonl"


def require_option(stated: ProviderSettings, key: str, what: str) -> str:
    """Give what a batch cannot do without."""
    if found := stated.find_option(key):
        return found
    message = f"need {what}: where the provider is saved as {key!r}, or x-gateway-{key.replace('_', '-')}"
    raise field_error("gateway_options", message)


def object_path(name: str) -> str:
    """Say where the edge has an object."""
    return f"/v1/batch_objects/{quote(name, safe='')}"


async def put_object(talk: BatchClient, name: str, pieces: AsyncIterator[bytes]) -> None:
    """Write an object."""
    await talk.send_upload(Upload("PUT", object_path(name), CONTENT_TYPE, pieces))
