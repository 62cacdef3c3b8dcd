"""Blobs in a bucket: moto as S3, and endpoints that refuse, hang, fail, are slow or cut requests off."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import httpx2
import pytest

from penstock.blobs.s3 import PART_BYTES, S3Bucket, S3Options, parse_s3_url
from penstock.errors import NotFoundError, UnavailableError
from penstock.logs.batch import BodyLocation, Position
from penstock.logs.breaker import BreakerState, StorageBreaker
from penstock.logs.packs import PackedRecord, PackStore, PackWriter
from penstock.logs.spool_format import CLIENT_REQUEST
from tests.fault_proxy import run_fault_proxy
from tests.faulty_server import BUSY_RESPONSE, run_faulty_server
from tests.integration.amazon import run_moto
from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from pathlib import Path

REGION, BUCKET = "eu-west-1", "bodies"
CREDENTIALS: dict[str, Any] = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "aws-canary-0123456789"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Runs moto with one bucket; returns its URL."""
    with run_moto(tmp_path_factory.mktemp("moto")) as url:
        keys = {f"aws_{name}": value for name, value in CREDENTIALS.items()}
        client = boto3.client("s3", region_name=REGION, endpoint_url=url, **keys)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield url


@asynccontextmanager
async def open_bucket(url: str, bucket: str = BUCKET, timeout_seconds: float = 15) -> AsyncGenerator[S3Bucket]:
    blobs = S3Bucket(S3Options(bucket, "logs", url, REGION, **CREDENTIALS, timeout_seconds=timeout_seconds))
    try:
        yield blobs
    finally:
        await blobs.close()


async def iter_chunks(content: bytes, *, fails: bool = False) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 1_000_000):
        yield content[at : at + 1_000_000]
    if fails:
        raise ZeroDivisionError


async def read_all(blobs: S3Bucket, name: str) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(name)])


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 17])
def test_put_read_ranges_and_delete(endpoint: str, size: int):
    content = os.urandom(size)

    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            assert await blobs.put("a/b", iter_chunks(content)) == size
            assert await read_all(blobs, "a/b") == content
            if size > 100:
                assert await blobs.read_range("a/b", 10, 50) == content[10:60]
            await blobs.put_bytes("a/b", b"second")
            assert await read_all(blobs, "a/b") == b"second"
            await blobs.delete("a/b")
            await blobs.delete("a/b")
            with pytest.raises(NotFoundError):
                await read_all(blobs, "a/b")

    asyncio.run(scenario())


def test_failed_upload_stores_nothing(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            for size in (10, PART_BYTES + 10):
                with pytest.raises(ZeroDivisionError):
                    await blobs.put("broken", iter_chunks(bytes(size), fails=True))
            assert await blobs.list_names("broken") == []
        assert list_uploads(endpoint) == []

    asyncio.run(scenario())


def test_lists_and_deletes_below_folders(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            for name in ("2026-01-01/a/1", "2026-01-01/b", "2026-01-02/a", "2026-01-011"):
                await blobs.put_bytes(name, b"x")
            assert await blobs.list_folders("2026-01-01/") == ["a"]
            assert {"2026-01-01", "2026-01-02"} <= set(await blobs.list_folders(""))
            assert await blobs.delete_below("2026-01-01") == 2
            assert await blobs.list_names("2026-01-0") == ["2026-01-011", "2026-01-02/a"]
            assert await blobs.list_names("2026-01-0", is_direct=True) == ["2026-01-011"]

    asyncio.run(scenario())


def test_lists_names_behind_pages_of_folders(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.blobs.s3.DELETE_BATCH", 1)

    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            for name in ("pages/00-a/1", "pages/00-b/1", "pages/01", "pages/02"):
                await blobs.put_bytes(name, b"x")
            assert await blobs.list_names("pages/0", is_direct=True) == ["pages/01"]

    asyncio.run(scenario())


def test_missing_bucket_is_unavailable(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint, bucket="absent") as blobs:
            with pytest.raises(UnavailableError, match="'absent' refused a request: NoSuchBucket"):
                await blobs.probe()
            # A bucket that is missing is a mistake of the operator; a blob that is missing is not.
            with pytest.raises(UnavailableError, match=r"NoSuchBucket; hint: check log_store\.bodies"):
                await read_all(blobs, "x")

    asyncio.run(scenario())


def test_deletes_several_blobs_at_once(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            for name in ("many-1", "many-2", "many-3"):
                await blobs.put_bytes(name, b"x")
            await blobs.delete()
            await blobs.delete("many-1", "many-2", "absent")
            assert await blobs.list_names("many-") == ["many-3"]

    asyncio.run(scenario())


def test_reading_a_blob_that_is_replaced_fails(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            await blobs.put("changing", iter_chunks(bytes(PART_BYTES + 1)))
            chunks = blobs.read("changing")
            assert await anext(chunks)
            await blobs.put("changing", iter_chunks(b"x" * (PART_BYTES + 1)))
            with pytest.raises(UnavailableError, match="PreconditionFailed"):
                async for _ in chunks:
                    pass

    asyncio.run(scenario())


def test_signed_url_serves_the_blob_to_anyone(endpoint: str):
    async def scenario() -> None:
        async with open_bucket(endpoint) as blobs:
            await blobs.put_bytes("shared", b"content")
            url = await blobs.sign_url("shared", "logs.jsonl", "application/jsonl", 3600)
        assert url.startswith(f"{endpoint}/{BUCKET}/logs/shared?")
        fields = dict(parse_qsl(urlsplit(url).query))
        assert (fields["X-Amz-Algorithm"], fields["X-Amz-Expires"]) == ("AWS4-HMAC-SHA256", "3600")
        assert CREDENTIALS["secret_access_key"] not in url
        actual = httpx2.get(url)
        assert (actual.status_code, actual.content) == (200, b"content")
        assert actual.headers["content-type"] == "application/jsonl"
        assert actual.headers["content-disposition"] == 'attachment; filename="logs.jsonl"'

    asyncio.run(scenario())


def list_uploads(endpoint: str) -> list[str]:
    """Returns the names of incomplete uploads."""
    keys = {f"aws_{name}": value for name, value in CREDENTIALS.items()}
    client = boto3.client("s3", region_name=REGION, endpoint_url=endpoint, **keys)
    return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


def test_cancelled_upload_is_aborted(endpoint: str):
    async def scenario() -> None:
        has_begun, never = asyncio.Event(), asyncio.Event()

        async def wait_after_a_part() -> AsyncIterator[bytes]:
            yield bytes(PART_BYTES)
            has_begun.set()
            await never.wait()

        async with open_bucket(endpoint) as blobs:
            task = asyncio.ensure_future(blobs.put("cancelled", wait_after_a_part()))
            await has_begun.wait()
            assert await asyncio.to_thread(list_uploads, endpoint) == ["logs/cancelled"]
            # A shutdown may cancel more than once.
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert list_uploads(endpoint) == []

    asyncio.run(scenario())


def test_refused_connection_is_unavailable():
    async def scenario() -> None:
        async with open_bucket(f"http://127.0.0.1:{free_port()}") as blobs:
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await blobs.put_bytes("x", b"1")

    asyncio.run(scenario())


def test_hanging_endpoint_ends_within_the_timeout():
    async def scenario() -> None:
        async with run_faulty_server(b"") as (url, requests), open_bucket(url, timeout_seconds=1.5) as blobs:
            started_at = time.monotonic()
            with pytest.raises(UnavailableError, match=r"did not respond within 1.5 s|cannot be reached"):
                await blobs.put_bytes("x", b"1")
            assert time.monotonic() - started_at < 5
            assert len(requests) == 1

    asyncio.run(scenario())


def test_failing_endpoint_gets_one_request_per_call():
    async def scenario() -> None:
        async with run_faulty_server(BUSY_RESPONSE) as (url, requests), open_bucket(url) as blobs:
            for _ in range(2):
                with pytest.raises(UnavailableError, match="refused a request: 503; hint: try again later"):
                    await blobs.put_bytes("x", b"1")
            assert len(requests) == 2

    asyncio.run(scenario())


def test_busy_endpoint_is_retried_within_the_timeout():
    async def scenario() -> None:
        async with run_faulty_server(BUSY_RESPONSE) as (url, requests):
            blobs = S3Bucket(S3Options(BUCKET, "", url, REGION, **CREDENTIALS, attempts=3, setting="files.store"))
            with pytest.raises(UnavailableError, match="503"):
                await blobs.delete("x")
            await blobs.close()
            assert len(requests) == 3

    asyncio.run(scenario())


def fill_pack(folder: Path) -> tuple[PackWriter, BodyLocation]:
    """Writes a complete pack of about 64 KiB, which cannot be compressed."""
    writer = PackWriter(str(folder), "packs", is_remote=True, limit_bytes=10**9)
    record = PackedRecord("r-1", "o-1", "w-1", "red", "2026-11-26T09:15:00.123Z")
    location = writer.add(record, {CLIENT_REQUEST: os.urandom(64 * 1024)}, "node", "edge-1", Position(7, 1))
    assert location
    writer.flush()
    writer.commit(is_final=True)
    return writer, location


def test_upload_that_is_cut_off_is_repeated_until_the_pack_is_complete(endpoint: str, tmp_path: Path):
    now = [1000.0]

    async def scenario() -> None:
        writer, location = fill_pack(tmp_path)
        expected = (tmp_path / location.key).read_bytes()
        async with run_fault_proxy(endpoint) as proxy, open_bucket(proxy.url) as blobs, open_bucket(endpoint) as direct:
            store = PackStore(writer, blobs, StorageBreaker(5, 60, lambda: now[0]))
            bodies = await store.read(location)
            proxy.cut_after_bytes = len(expected) // 2
            for _ in range(5):
                assert not await store.upload_next()
                # The local file is read until the upload is complete.
                assert await store.read(location) == bodies
            assert (store.breaker.state, store.failed_uploads) == (BreakerState.OPEN, 5)
            # The HTTP client may repeat a request whose connection was closed.
            cut_count = proxy.cut_count
            assert cut_count >= 5
            assert writer.waiting_bytes == len(expected)
            assert not await store.upload_next()
            assert proxy.cut_count == cut_count
            proxy.cut_after_bytes = None
            now[0] += 61
            assert await store.upload_next()
            assert store.breaker.state is BreakerState.CLOSED
            assert ((tmp_path / location.key).exists(), writer.waiting_bytes) == (False, 0)
            assert await read_all(direct, location.key) == expected
            assert await store.read(location) == bodies

    asyncio.run(scenario())


def test_slow_endpoint_gets_the_pack_within_the_timeout_or_the_upload_fails(endpoint: str, tmp_path: Path):
    async def scenario() -> None:
        writer, location = fill_pack(tmp_path)
        async with run_fault_proxy(endpoint) as proxy, open_bucket(proxy.url, timeout_seconds=2) as blobs:
            store = PackStore(writer, blobs, StorageBreaker(5, 60))
            proxy.pause_seconds = 0.5
            started_at = time.monotonic()
            assert not await store.upload_next()
            assert time.monotonic() - started_at < 5
            assert (store.failed_uploads, (tmp_path / location.key).exists()) == (1, True)
            # About half a second for the pack.
            proxy.pause_seconds = 0.005
            assert await store.upload_next()
            assert (store.uploaded, (tmp_path / location.key).exists()) == (1, False)
            assert len((await store.read(location))["client_request"]) == 64 * 1024

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b", ("b", "")),
        ("s3://b/p/q/", ("b", "p/q")),
        ("s3:///p", None),
        ("https://b/p", None),
        ("s3://k@b", None),
    ],
)
def test_bucket_urls(url: str, expected: tuple[str, str] | None):
    if expected:
        assert parse_s3_url(url) == expected
    else:
        with pytest.raises(ValueError, match="is not allowed"):
            parse_s3_url(url)
