"""Batches with objects in a storage bucket. One object contains all input lines, another one the results."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.batches.providers.client import BatchClient, Upload
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.batches.providers.batch_provider import ProviderSettings

# Folder of the bucket in which the engine stores objects.
OBJECT_FOLDER = "penstock"
JOBS_PATH = "/v1/batch_jobs"
CONTENT_TYPE = "application/jsonl"


def require_option(stated: ProviderSettings, key: str, description: str) -> str:
    """Returns an option that the batch needs; rejects the batch if it is not set."""
    if option := stated.find_option(key):
        return option
    message = f"need {description}: set {key!r} on the saved provider, or send x-gateway-{key.replace('_', '-')}"
    raise field_error("gateway_options", message)


def object_path(name: str) -> str:
    """Returns the path of the edge through which an object in the bucket is read and written."""
    return f"/v1/batch_objects/{quote(name, safe='')}"


async def put_object(client: BatchClient, name: str, chunks: AsyncIterator[bytes]) -> None:
    """Uploads an object to the bucket."""
    await client.send_upload(Upload("PUT", object_path(name), CONTENT_TYPE, chunks))
