"""Files API through the official OpenAI SDK for Python, at providers that store files in buckets. Bedrock and Vertex AI
both use moto's S3.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import httpx2
import openai
import pytest

from tests.gateway import Gateway
from tests.integration.amazon import run_moto
from tests.integration.bucket_provider import KEY_ID, REGION, S3_OWNER_HEADERS, SECRET, FakeBucketProvider
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "pk-e2e-0123456789"
# Larger than an upload part of 8 MiB.
LARGE_FILE_BYTES = 20_000_000


class ProviderCase(NamedTuple):
    """Saved options of a provider, and the form of its file ids and batch lines."""

    options: dict[str, str]
    folder: str
    model: str
    # Returns a batch line as it is stored.
    stored_line: Callable[[int], dict[str, Any]]


BUCKET_CASES = {
    "bedrock": ProviderCase(
        {
            "aws_region": REGION,
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "aws_s3_bucket": "s3-bucket",
            "amz_server_side_encryption": "AES256",
        },
        "s3://s3-bucket/penstock/files/",
        "amazon.nova-lite-v1:0",
        lambda number: {
            "recordId": f"row-{number}",
            "modelInput": {"messages": [{"role": "user", "content": [{"text": f"question {number}"}]}]},
        },
    ),
    "vertex-ai": ProviderCase(
        {
            "vertex_region": "europe-west4",
            "vertex_project_id": "p-1",
            "vertex_storage_bucket_name": "gcs-files",
        },
        "gs://gcs-files/penstock/files/",
        "gemini-2.5-pro",
        lambda number: {
            "request": {
                "contents": [{"role": "user", "parts": [{"text": f"question {number}"}]}],
                "labels": {"custom_id": f"row-{number}"},
            }
        },
    ),
}


FIREWORKS_CASE = ProviderCase(
    {"fireworks_account_id": "acme"},
    "",
    "accounts/fireworks/models/llama-test",
    lambda number: {
        "custom_id": f"row-{number}",
        "body": {"messages": [{"role": "user", "content": f"question {number}"}]},
    },
)
SAVED_CASES = {**BUCKET_CASES, "fireworks-ai": FIREWORKS_CASE}


@pytest.fixture(params=list(BUCKET_CASES))
def kind(request: pytest.FixtureRequest) -> ProviderCase:
    return BUCKET_CASES[request.param]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_moto(tmp_path_factory.mktemp("moto")) as url:
        for bucket in ("s3-bucket", "gcs-files"):
            httpx2.put(f"{url}/{bucket}").raise_for_status()
        yield url


@pytest.fixture(scope="module")
def listening(s3: str) -> Iterator[FakeBucketProvider]:
    with FakeBucketProvider(s3) as provider:
        yield provider


@pytest.fixture
def bucket_provider(listening: FakeBucketProvider) -> Iterator[FakeBucketProvider]:
    yield listening
    assert listening.refused == []


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory, listening: FakeBucketProvider) -> Iterator[Gateway]:
    saved: list[dict[str, Any]] = [
        {
            "slug": slug,
            "provider": slug,
            "api_key": listening.token,
            "options": kind.options,
            "custom_host": listening.url,
        }
        for slug, kind in SAVED_CASES.items()
    ]
    tables = {
        "keys": [{"name": "e2e", "key": KEY}],
        "providers": saved,
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(tmp_path_factory.mktemp("files"), tables, {})
    yield running
    running.stop()


@pytest.fixture
def ai(kind: ProviderCase, running_gateway: Gateway, bucket_provider: FakeBucketProvider) -> Iterator[openai.OpenAI]:
    slug = next(slug for slug, item in BUCKET_CASES.items() if item is kind)
    assert bucket_provider.url
    with build_client(running_gateway, slug) as client:
        yield client


def build_client(running_gateway: Gateway, slug: str) -> openai.OpenAI:
    headers = {"x-gateway-provider": f"@{slug}"}
    return openai.OpenAI(
        base_url=f"{running_gateway.base_url}/v1", api_key=KEY, default_headers=headers, max_retries=0, timeout=30
    )


def batch_line(number: int, model: str) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": f"question {number}"}]}
    row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row).encode() + b"\n"


def test_file_makes_a_round_trip(ai: openai.OpenAI, kind: ProviderCase):
    content = b'{"messages": []}\n' * 3
    created = ai.files.create(file=("train it.jsonl", content, "application/jsonl"), purpose="fine-tune")
    assert unquote(created.id).startswith(f"{kind.folder}fine-tune/")
    assert (created.object, created.bytes, created.filename, created.purpose) == (
        "file",
        len(content),
        "train_it.jsonl",
        "fine-tune",
    )
    fetched = ai.files.retrieve(created.id)
    assert (fetched.id, fetched.bytes, fetched.filename, fetched.purpose) == (
        created.id,
        created.bytes,
        created.filename,
        created.purpose,
    )
    assert abs(fetched.created_at - created.created_at) <= 2
    assert ai.files.content(created.id).content == content
    assert ai.files.content(created.id, extra_headers={"range": "bytes=2-9"}).content == content[2:10]
    assert created.id in {file.id for file in ai.files.list(purpose="fine-tune")}
    gone = ai.files.delete(created.id)
    assert (gone.id, gone.deleted) == (created.id, True)
    for send_request in (ai.files.retrieve, ai.files.content, ai.files.delete):
        with pytest.raises(openai.NotFoundError):
            send_request(created.id)


def test_large_file_is_uploaded_in_parts_and_read_back(ai: openai.OpenAI, bucket_provider: FakeBucketProvider):
    content = bytes(range(256)) * (LARGE_FILE_BYTES // 256)
    request = len(bucket_provider.received_requests)
    created = ai.files.create(file=("large.bin", content), purpose="user_data")
    assert created.bytes == len(content)
    parts = [path for method, path in bucket_provider.received_requests[request:] if method == "PUT"]
    assert [path.split("?")[1].split("&")[0] for path in parts] == [f"partNumber={number}" for number in (1, 2, 3)]
    assert ai.files.content(created.id).content == content
    assert ai.files.retrieve(created.id).purpose == "user_data"


def test_batch_lines_are_stored_in_the_models_format(
    ai: openai.OpenAI, kind: ProviderCase, bucket_provider: FakeBucketProvider
):
    count = 2_000
    lines = b"".join(batch_line(number, kind.model) for number in range(count))
    created = ai.files.create(file=("lines.jsonl", lines), purpose="batch")
    rows = [json.loads(row) for row in bucket_provider.read_object(unquote(created.id)).splitlines()]
    assert len(rows) == count
    assert rows[-1] == kind.stored_line(count - 1)
    with pytest.raises(openai.BadRequestError, match="line 3: it is `other`"):
        ai.files.create(file=lines[: len(batch_line(0, kind.model)) * 2] + batch_line(7, "other"), purpose="batch")


def test_lists_files_by_page(ai: openai.OpenAI):
    created = [ai.files.create(file=(f"{number}.png", b"x"), purpose="vision").id for number in range(5)]
    assert [file.id for file in ai.files.list(purpose="vision", limit=2)] == created
    page = ai.files.list(purpose="vision", limit=2, after=created[3])
    assert ([file.id for file in page.data], page.has_more) == (created[4:], False)


@pytest.mark.parametrize("kind", ["bedrock"], indirect=True)
def test_encrypts_stored_files_as_configured(ai: openai.OpenAI, s3: str):
    created = ai.files.create(file=("a.txt", b"x"), purpose="user_data")
    displayed = httpx2.head(f"{s3}/{unquote(created.id).removeprefix('s3://')}", headers=S3_OWNER_HEADERS)
    assert displayed.headers["x-amz-server-side-encryption"] == "AES256"


def test_aborts_upload_if_client_disconnects(running_gateway: Gateway, bucket_provider: FakeBucketProvider):
    head = (
        "POST /v1/files HTTP/1.1\r\nhost: gateway\r\ncontent-type: multipart/form-data; boundary=edge\r\n"
        f"x-gateway-api-key: {KEY}\r\nx-gateway-provider: @bedrock\r\ncontent-length: {LARGE_FILE_BYTES}\r\n\r\n"
        '--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        '--edge\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    request = len(bucket_provider.received_requests)

    def has_upload_request(method: str) -> bool | None:
        return (
            any(item == method and "uploadId=" in path for item, path in bucket_provider.received_requests[request:])
            or None
        )

    with socket.create_connection(("127.0.0.1", running_gateway.port)) as connection:
        connection.sendall(head.encode() + bytes(LARGE_FILE_BYTES // 2))
        wait_for("the first part", lambda: has_upload_request("PUT"))
    wait_for("its end", lambda: has_upload_request("DELETE"))


def test_fireworks_files_are_datasets(running_gateway: Gateway, bucket_provider: FakeBucketProvider):
    with build_client(running_gateway, "fireworks-ai") as ai:
        lines = b"".join(batch_line(number, FIREWORKS_CASE.model) for number in range(3_000))
        created = ai.files.create(file=("lines.jsonl", lines), purpose="batch")
        filled = bucket_provider.objects[created.id].split(b"\r\n\r\n", 1)[1].rpartition(b"\r\n--")[0].splitlines()
        assert json.loads(filled[2_999]) == FIREWORKS_CASE.stored_line(2_999)
        fetched = ai.files.retrieve(created.id)
        assert (fetched.id, fetched.purpose, fetched.filename, fetched.status) == (
            created.id,
            "batch",
            "lines.jsonl",
            "processed",
        )
        large = ai.files.create(file=("train.jsonl", bytes(LARGE_FILE_BYTES)), purpose="fine-tune")
        assert (large.bytes, len(bucket_provider.objects[large.id]) > LARGE_FILE_BYTES) == (LARGE_FILE_BYTES, True)
        assert [file.id for file in ai.files.list(limit=1)] == [created.id, large.id]
        assert ai.files.delete(created.id).deleted
        with pytest.raises(openai.NotFoundError, match="no dataset"):
            ai.files.retrieve(created.id)
        # The content is in result files elsewhere; the file with the errors is read last.
        bucket_provider.objects[bucket_provider.signed] = b"one\ntwo\n"
        assert ai.files.content(large.id).content.split() == [b"one", b"two"]
        bucket_provider.objects[f"{bucket_provider.signed}&errors=1"] = b"three\n"
        assert ai.files.content(large.id).content.split() == [b"one", b"two", b"three"]
        bucket_provider.objects.pop(bucket_provider.signed)
        bucket_provider.objects.pop(f"{bucket_provider.signed}&errors=1")
        with pytest.raises(openai.InternalServerError, match="the dataset lists no files"):
            ai.files.content(large.id)
        with pytest.raises(openai.BadRequestError, match="purpose: `vision`"):
            ai.files.create(file=b"x", purpose="vision")
