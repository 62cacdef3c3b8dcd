"""Storage of the contents of files, of outputs of batches and of log exports: a local folder or an S3 bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.blobs.folder import BlobFolder
from penstock.settings.buckets import FOLDER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.blobs.s3 import S3Bucket
    from penstock.settings import Settings
    from penstock.settings.secret import Secret

# Timeout of a storage call. It is shorter than the 30 seconds that the edge waits for a response of the management API.
MAX_CALL_SECONDS = 15.0
# Attempts of a storage call: a batch or an export should not fail because a bucket is busy for a moment.
CALL_ATTEMPTS = 3


# The web framework checks at runtime that a route's dependency has this type.
@runtime_checkable
class BlobStore(Protocol):
    """Storage of blobs by name. Blobs are read and written in chunks, so that large ones need little memory. All
    methods raise `UnavailableError` if the storage fails.
    """

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores a blob, replacing one of the same name, and returns its size in bytes. The blob can be read once it is
        complete. A failed upload stores nothing.
        """
        ...

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Yields the content of a blob in chunks. Raises `NotFoundError` if no blob has this name."""
        ...

    async def delete(self, *names: str) -> None:
        """Deletes the blobs; ignores names without a blob."""
        ...

    async def sign_url(self, name: str, filename: str, media_type: str, seconds: int) -> str | None:
        """Returns a URL at which anyone can download a blob for `seconds`, under the name `filename`. Returns `None` if
        the storage has no such URLs.
        """
        ...

    async def close(self) -> None:
        """Closes the connections, if there are any."""
        ...


def open_blob_store(settings: Settings) -> BlobStore:
    """Returns the storage that `files.store` chooses. It connects with the first call."""
    files, log_store = settings.files, settings.log_store
    if files.store == FOLDER:
        return BlobFolder(settings.files_folder)
    access = {
        "endpoint_url": files.s3_endpoint_url or log_store.s3_endpoint_url,
        "region": files.s3_region or log_store.s3_region,
        **_credentials(log_store.s3_access_key_id, log_store.s3_secret_access_key),
    }
    if files.s3_access_key_id:
        access |= _credentials(files.s3_access_key_id, files.s3_secret_access_key)
    seconds = min(log_store.connection_timeout_ms / 1000, MAX_CALL_SECONDS)
    return _open_bucket(
        settings, files.store, access, timeout_seconds=seconds, attempts=CALL_ATTEMPTS, setting="files.store"
    )


def open_body_bucket(settings: Settings) -> S3Bucket | None:
    """Returns the bucket for bodies of logs; `None` if they are stored in a folder."""
    log_store = settings.log_store
    if log_store.bodies == FOLDER:
        return None
    access = {
        "endpoint_url": log_store.s3_endpoint_url,
        "region": log_store.s3_region,
        **_credentials(log_store.s3_access_key_id, log_store.s3_secret_access_key),
    }
    seconds = log_store.connection_timeout_ms / 1000
    # No retries here: the log worker's circuit breaker must count each failure, and decides when to try again.
    return _open_bucket(
        settings, log_store.bodies, access, timeout_seconds=seconds, attempts=1, setting="log_store.bodies"
    )


def _credentials(key_id: str, secret: Secret | None) -> dict[str, str]:
    return {"access_key_id": key_id, "secret_access_key": secret.reveal() if secret else ""}


def _open_bucket(settings: Settings, url: str, access: dict[str, str], **more: Any) -> S3Bucket:  # noqa: ANN401 - options
    # The client of buckets takes half a second to import, and most gateways need none.
    from penstock.blobs.s3 import S3Bucket, S3Options, parse_s3_url  # noqa: PLC0415 - see the comment above

    return S3Bucket(S3Options(*parse_s3_url(url), **access, ca_file=settings.upstream.tls_ca, **more))
