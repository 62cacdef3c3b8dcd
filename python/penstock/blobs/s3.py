"""Blob storage in a bucket of Amazon S3 or of a compatible service, such as MinIO."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from aiohttp import ClientError as HttpClientError
from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

from penstock.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK_BYTES = 256 * 1024
# Objects of at least this size are uploaded in parts; a part must have at least 5 MiB.
PART_BYTES = 8 * 1024 * 1024
MISSING_CODES = frozenset({"NoSuchKey", "404", "NotFound"})
PROBE_NAME = ".penstock-probe"
# Maximum number of simultaneous connections. Further calls wait for one, which counts towards their timeout.
MAX_CONNECTIONS = 50
# Maximum number of objects that one request deletes or lists. The API allows no more.
DELETE_BATCH = 1000
# Maximum time to remove the parts of a failed upload. The error of the upload is raised after that.
CLEANUP_SECONDS = 5.0
# Error code for a request of a byte range in an empty object.
EMPTY_CODE = "InvalidRange"
BUSY_CODES = frozenset({"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout"})
SERVER_ERROR = 500


class S3Options(NamedTuple):
    """Bucket, prefix of all names in it, and access to the service. For an empty value, the AWS client reads its own
    environment variables and files.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    timeout_seconds: float = 15.0
    ca_file: str = ""
    # Maximum number of attempts of a call. All of them together must end within the timeout.
    attempts: int = 1
    # Name of the setting with the URL of the bucket, for error messages.
    setting: str = "log_store.bodies"


def parse_s3_url(url: str) -> tuple[str, str]:
    """Returns bucket and prefix of `s3://bucket/prefix`. Raises `ValueError` if the URL has another form."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        message = f"{url!r} is not allowed: expected `s3://bucket` or `s3://bucket/prefix`"
        raise ValueError(message)
    return parts.netloc, parts.path.strip("/")


class S3Bucket:
    """Stores blobs as objects. Each call ends within the timeout."""

    def __init__(self, options: S3Options) -> None:
        """Stores the options. The client is created with the first call."""
        self.options = options
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._turn = asyncio.Lock()
        self._cleanups: set[asyncio.Task[None]] = set()

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores a blob, replacing one of the same name, and returns its size in bytes. Nothing is stored on failure.
        Needs memory for two parts.
        """
        buffered, total, parts = bytearray(), 0, list[dict[str, Any]]()
        upload: str | None = None
        is_visible = False
        try:
            async for chunk in chunks:
                buffered += chunk
                total += len(chunk)
                while len(buffered) >= PART_BYTES:
                    upload = upload or await self._begin_upload(name)
                    parts.append(await self._put_part(name, upload, len(parts) + 1, _take_part(buffered)))
            if upload and buffered:
                parts.append(await self._put_part(name, upload, len(parts) + 1, bytes(buffered)))
            # From here on the service may have stored the object although its response was lost.
            is_visible = True
            if upload is None:
                await self.put_bytes(name, bytes(buffered))
            else:
                await self._call("complete_multipart_upload", name, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            if upload or is_visible:
                task = asyncio.create_task(self._clean_up(name, upload, is_visible=is_visible))
                self._cleanups.add(task)
                task.add_done_callback(self._cleanups.discard)
                await asyncio.shield(task)
            raise
        return total

    async def put_bytes(self, name: str, content: bytes) -> None:
        """Stores a blob that is in memory."""
        await self._call("put_object", name, Body=content)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yields the content of a blob in chunks. Fetches one part per request, so that a slow reader does not occupy a
        connection. Raises `UnavailableError` if the blob is replaced meanwhile.
        """
        at, size, same = 0, 1, dict[str, str]()
        while at < size:
            content, size, tag = await self._fetch_range(name, at, PART_BYTES, is_start=at == 0, **same)
            if size and not content:
                raise self._unavailable("returned no content", is_temporary=True)
            for start in range(0, len(content), CHUNK_BYTES):
                yield content[start : start + CHUNK_BYTES]
            at += len(content)
            same = {"IfMatch": tag} if tag else {}

    async def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Returns a range of bytes of a blob."""
        return (await self._fetch_range(name, offset, length))[0]

    async def _fetch_range(
        self, name: str, offset: int, length: int, *, is_start: bool = False, **more: str
    ) -> tuple[bytes, int, str]:
        """Returns a range of bytes, the size of the whole blob, and its entity tag. With `is_start`, an empty blob is
        no error.
        """

        async def fetch(client: Any) -> tuple[bytes, int, str]:  # noqa: ANN401 - the client class is generated at runtime
            span = f"bytes={offset}-{offset + length - 1}"
            location = {"Bucket": self.options.bucket, "Key": self._prefix + name}
            try:
                result = await client.get_object(**location, Range=span, **more)
            except ClientError as error:
                if is_start and _error_code(error) == EMPTY_CODE:
                    return b"", 0, ""
                raise
            async with result["Body"] as body:
                content: bytes = await body.read()
            total = result.get("ContentRange", "").rpartition("/")[2]
            return content, int(total) if total.isdecimal() else offset + len(content), result.get("ETag", "")

        return await self._guard(fetch)

    async def delete(self, *names: str) -> None:
        """Deletes the blobs; ignores names without a blob."""
        if len(names) == 1:
            await self._call("delete_object", names[0])
            return
        for start in range(0, len(names), DELETE_BATCH):
            objects = [{"Key": self._prefix + name} for name in names[start : start + DELETE_BATCH]]
            response = await self._call("delete_objects", None, Delete={"Objects": objects, "Quiet": True})
            if failed := response.get("Errors"):
                raise self._unavailable(f"refused to delete an object: {failed[0].get('Code', '')}", is_temporary=False)

    async def sign_url(self, name: str, filename: str, media_type: str, seconds: int) -> str:
        """Returns a URL at which anyone can download a blob for `seconds`, under the name `filename`. If it is signed
        with temporary credentials, it ends with them.
        """
        location = {"Bucket": self.options.bucket, "Key": self._prefix + name}
        fields = {"ResponseContentType": media_type, "ResponseContentDisposition": f'attachment; filename="{filename}"'}

        async def sign(client: Any) -> str:  # noqa: ANN401 - the client class is generated at runtime
            return await client.generate_presigned_url("get_object", {**location, **fields}, ExpiresIn=seconds)

        return await self._guard(sign)

    async def delete_below(self, folder: str) -> int:
        """Deletes all blobs whose names start with `folder/`, and returns their number."""
        count = 0
        while names := await self.list_names(f"{folder}/"):
            await self.delete(*names)
            count += len(names)
        return count

    async def list_names(self, start: str, *, is_direct: bool = False) -> list[str]:
        """Returns up to 1,000 names that start with this text, in alphabetical order. If `is_direct`, there is no slash
        after this text.
        """
        # Pages may have only folders.
        options = {"Delimiter": "/"} if is_direct else {}
        while True:
            response = await self._call(
                "list_objects_v2", None, Prefix=self._prefix + start, MaxKeys=DELETE_BATCH, **options
            )
            names = [item["Key"].removeprefix(self._prefix) for item in response.get("Contents", [])]
            if names or not response.get("IsTruncated"):
                return names
            options["ContinuationToken"] = response["NextContinuationToken"]

    async def list_folders(self, start: str) -> list[str]:
        """Returns the names of the folders directly below `start`, which is empty or ends with a slash."""
        names: list[str] = []
        token: dict[str, str] = {}
        while True:
            response = await self._call("list_objects_v2", None, Prefix=self._prefix + start, Delimiter="/", **token)
            names += [
                item["Prefix"].removeprefix(self._prefix)[len(start) : -1]
                for item in response.get("CommonPrefixes", [])
            ]
            if not response.get("IsTruncated"):
                return names
            token = {"ContinuationToken": response["NextContinuationToken"]}

    async def probe(self) -> None:
        """Checks that objects can be written."""
        await self.put_bytes(PROBE_NAME, b"")

    async def close(self) -> None:
        """Waits until the parts of failed uploads are removed, then closes the connections."""
        if self._cleanups:
            await asyncio.wait(self._cleanups)
        await self._stack.aclose()
        self._client = None

    async def _begin_upload(self, name: str) -> str:
        return (await self._call("create_multipart_upload", name))["UploadId"]

    async def _put_part(self, name: str, upload: str, number: int, content: bytes) -> dict[str, Any]:
        response = await self._call("upload_part", name, UploadId=upload, PartNumber=number, Body=content)
        return {"PartNumber": number, "ETag": response["ETag"]}

    async def _clean_up(self, name: str, upload: str | None, *, is_visible: bool) -> None:
        # An upload that cannot be aborted stays until a lifecycle rule of the bucket removes it.
        with suppress(UnavailableError, NotFoundError, TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                if upload:
                    with suppress(NotFoundError):
                        await self._call("abort_multipart_upload", name, UploadId=upload)
                if is_visible:
                    await self.delete(name)

    async def _call(self, operation: str, name: str | None, **fields: Any) -> Any:  # noqa: ANN401 - the client class is generated at runtime
        if name is not None:
            fields["Key"] = self._prefix + name

        async def send(client: Any) -> Any:  # noqa: ANN401 - as above
            return await getattr(client, operation)(Bucket=self.options.bucket, **fields)

        return await self._guard(send)

    async def _guard(self, call: Any) -> Any:  # noqa: ANN401 - as above
        try:
            # Outside the timeout, because the first call loads the description of the service, which takes long.
            client = await self._open_client()
            async with asyncio.timeout(self.options.timeout_seconds):
                return await call(client)
        except TimeoutError:
            raise self._unavailable(
                f"did not respond within {self.options.timeout_seconds:g} s", is_temporary=True
            ) from None
        except ClientError as error:
            code = _error_code(error)
            if code in MISSING_CODES:
                message = "the stored content of this file is missing"
                raise NotFoundError(message) from None
            is_temporary = code in BUSY_CODES or (code.isdecimal() and int(code) >= SERVER_ERROR)
            raise self._unavailable(f"refused a request: {code or 'no reason'}", is_temporary=is_temporary) from None
        except (BotoCoreError, HttpClientError, OSError) as error:
            raise self._unavailable(f"cannot be reached: {type(error).__name__}", is_temporary=False) from None

    def _unavailable(self, subject: str, *, is_temporary: bool) -> UnavailableError:
        hint = "try again later" if is_temporary else f"check {self.options.setting}, and the `s3_` settings beside it"
        return UnavailableError(f"the bucket {self.options.bucket!r} {subject}; hint: {hint}")

    async def _open_client(self) -> Any:  # noqa: ANN401 - the client class is generated at runtime
        async with self._turn:
            if self._client is None:
                options = self.options
                config = AioConfig(
                    connect_timeout=options.timeout_seconds,
                    read_timeout=options.timeout_seconds,
                    max_pool_connections=MAX_CONNECTIONS,
                    retries={"total_max_attempts": options.attempts, "mode": "standard"},
                    # The default signature of signed URLs is an older one, which newer regions reject.
                    signature_version="s3v4",
                    # Compatible services rarely support a host name for each bucket, or the newer checksums.
                    s3={"addressing_style": "path" if options.endpoint_url else "auto"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                )
                session: Any = AioSession()
                opening = session.create_client(
                    "s3",
                    region_name=options.region or None,
                    endpoint_url=options.endpoint_url or None,
                    aws_access_key_id=options.access_key_id or None,
                    aws_secret_access_key=options.secret_access_key or None,
                    verify=options.ca_file or None,
                    config=config,
                )
                self._client = await self._stack.enter_async_context(opening)
            return self._client


def _take_part(buffered: bytearray) -> bytes:
    """Removes the first part from a buffer and returns it."""
    with memoryview(buffered) as view:
        part = view[:PART_BYTES].tobytes()
    del buffered[:PART_BYTES]
    return part


def _error_code(error: ClientError) -> str:
    response: dict[str, Any] = error.response  # pyright: ignore[reportUnknownMemberType]
    return str(response.get("Error", {}).get("Code", ""))
