"""Files, batches and log exports whose contents are in an S3 bucket: as with a folder, and while the bucket is frozen."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import httpx2
import openai
import pytest

from tests.integration import batching
from tests.integration.amazon import run_moto_program
from tests.integration.batching import (
    batch_line,
    create_batch,
    create_workspace,
    openai_client,
    read_output_lines,
    to_jsonl,
    wait_until_ended,
)
from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.test_batches import (
    test_batch_resumes_after_kill_9_without_repeating_lines,  # noqa: F401 - runs here with contents in a bucket
    test_file_is_stored_shown_listed_and_deleted,  # noqa: F401 - as above
    test_output_file_of_a_batch_can_be_replaced,  # noqa: F401 - as above
    test_runs_each_line_as_a_request_and_returns_lines,  # noqa: F401 - as above
)
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.gateway import Gateway, Mock
    from tests.integration.batching import RestartableGateway
    from tests.processes import Program

    StartGateway = Callable[..., RestartableGateway]

ONE_STORE = True
pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")

REGION, BUCKET, PREFIX = "eu-west-1", "contents", "penstock/files"
KEY_ID, SECRET = "AKIDEXAMPLE", "aws-canary-0123456789"
TABLES = {**batching.TABLES, "log_store": {"enabled": True}}
LARGE_FILES = {"workspace_bytes": 100_000_000}
LOGS_SECONDS = 10
TIMEOUT_SECONDS = 1.5


class Bucket(NamedTuple):
    """Bucket of a moto server that can be frozen."""

    program: Program
    url: str
    client: Any

    def environment(self) -> dict[str, str]:
        """Returns the settings of a gateway that stores contents in the bucket."""
        return {
            "PENSTOCK_FILES_STORE": f"s3://{BUCKET}/{PREFIX}",
            "PENSTOCK_LOG_STORE_S3_ENDPOINT_URL": self.url,
            "PENSTOCK_LOG_STORE_S3_REGION": REGION,
            "PENSTOCK_FILES_S3_ACCESS_KEY_ID": KEY_ID,
            "PENSTOCK_FILES_S3_SECRET_ACCESS_KEY": SECRET,
            "LOG_STORE_CONNECTION_TIMEOUT_MS": str(int(TIMEOUT_SECONDS * 1000)),
        }

    def names(self) -> set[str]:
        actual = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/").get("Contents", [])
        return {item["Key"].removeprefix(f"{PREFIX}/") for item in actual}

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Freezes the server during the block: it accepts connections but never responds."""
        os.kill(self.program.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.program.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with run_moto_program(tmp_path_factory.mktemp("moto")) as (program, url):
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", region_name=REGION, endpoint_url=url, **keys)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield Bucket(program, url, client)


@pytest.fixture(scope="module")
def environment_variables(bucket: Bucket) -> Mapping[str, str]:
    return bucket.environment()


@pytest.fixture(scope="module")
def caller(admin: Client) -> Client:
    return create_workspace(admin, "batching")


def bare_id(prefixed_id: str | None) -> str:
    assert prefixed_id
    return prefixed_id.removeprefix("gw_file_")


def assert_no_secret(gateway: Gateway, *texts: str) -> None:
    for text in (gateway.program.read_output(), *texts):
        assert SECRET not in text
        assert KEY_ID not in text


def test_contents_are_objects_of_the_bucket(start_restartable: StartGateway, bucket: Bucket):
    restartable_gateway = start_restartable()
    ai = openai_client(create_workspace(Client(restartable_gateway.gateway), "w"), provider="@m-w")
    before = bucket.names()
    lines = (batch_line(1), batch_line(2, model="gpt-mock?status=400"))
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(*lines)).id)
    assert batch.status == "completed"
    ids = {bare_id(item) for item in (batch.input_file_id, batch.output_file_id, batch.error_file_id)}
    assert bucket.names() - before == ids
    assert not (restartable_gateway.folder / "files").exists()


def test_file_of_several_parts(start_restartable: StartGateway, bucket: Bucket):
    content = os.urandom(17 * 1024 * 1024)
    restartable_gateway = start_restartable(files=LARGE_FILES)
    ai = openai_client(create_workspace(Client(restartable_gateway.gateway), "w"))
    created = ai.files.create(file=("large", content), purpose="user_data")
    assert ai.files.content(created.id).read() == content
    assert ai.files.delete(created.id).deleted
    assert bare_id(created.id) not in bucket.names()


def test_frozen_bucket_is_reported_and_content_is_deleted_later(start_restartable: StartGateway, bucket: Bucket):
    restartable_gateway = start_restartable()
    client = create_workspace(Client(restartable_gateway.gateway), "w")
    ai = openai_client(client)
    created = ai.files.create(file=("a", b"content"), purpose="user_data")
    before = bucket.names()
    with bucket.freeze():
        for use_bucket in (
            lambda: ai.files.create(file=("b", b"content"), purpose="user_data"),
            lambda: ai.files.content(created.id),
        ):
            started_at = time.monotonic()
            with pytest.raises(openai.InternalServerError, match=r"did not respond within 1\.5 s") as caught:
                use_bucket()
            assert time.monotonic() - started_at < 10
            assert caught.value.status_code == 503
            assert "hint: try again later" in str(caught.value)
            assert_no_secret(restartable_gateway.gateway, str(caught.value))
        assert [file.id for file in ai.files.list()] == [created.id]
        assert ai.files.delete(created.id).deleted
        expect_error(client.get(f"/v1/files/{created.id}"), 404, "AB08")
    # The bucket may still handle the requests that it received while it was frozen.
    assert "is deleted later" in restartable_gateway.gateway.program.read_output()
    # The next process deletes the content when it starts.
    restartable_gateway.gateway.stop()
    restartable_gateway.start()
    wait_for("the deletion", lambda: bucket.names() == before - {bare_id(created.id)} or None, 10)
    assert_no_secret(restartable_gateway.gateway)


def test_batch_continues_after_an_outage_in_the_middle(start_restartable: StartGateway, mock: Mock, bucket: Bucket):
    """The input has two parts. The second cannot be read while the bucket is frozen."""
    restartable_gateway = start_restartable(files=LARGE_FILES, concurrency=1, line_bytes=2**20)
    client = create_workspace(Client(restartable_gateway.gateway), "w")
    ai = openai_client(client, provider="@m-w")
    text = "x" * 900_000
    lines = [batch_line(number, text, model=f"gpt-{number}?first_ms=150") for number in range(12)]
    batch = create_batch(ai, to_jsonl(*lines))
    wait_for("the first line", lambda: mock.ledger() or None, 10)
    with bucket.freeze():
        wait_for(
            "the outage",
            lambda: "stopped running the batch" in restartable_gateway.gateway.program.read_output() or None,
            20,
        )
        assert client.read(f"/v1/batches/{batch.id}")["status"] == "in_progress"
    # A new process takes over at once; another node would wait for the end of the lease.
    restartable_gateway.gateway.stop()
    restartable_gateway.start()
    ai = openai_client(restartable_gateway.client_with_key(client.key))
    done = wait_until_ended(ai, batch.id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 12, 0)
    assert list(read_output_lines(ai, done.output_file_id)) == [f"line-{number}" for number in range(12)]
    assert set(Counter(entry["model"] for entry in mock.ledger()).values()) == {1}


def test_export_is_downloaded_from_the_bucket(admin: Client, bucket: Bucket):
    workspace = admin.create("/v1/admin/workspaces", {"name": "exporting"})["id"]
    client = admin.with_new_key(
        workspace_id=workspace, scopes=["completions.write", "logs.write", "logs.list", "logs.export"]
    )
    request = {"url": "https://api.openai.com/v1/chat/completions", "body": {"model": "gpt-4o", "messages": []}}
    sent = {"request": request, "response": {"body": {}}, "metadata": {"trace_id": "exported"}}
    (log_id,) = client.create("/v1/logs", sent)["ids"]
    query = "/v1/logs?trace_id=exported"
    wait_for(
        "the log", lambda: (actual := client.get(query)).status == 200 and (actual.json()["data"] or None), LOGS_SECONDS
    )
    export = client.create("/v1/logs/exports", {"filters": {}, "requested_data": ["id", "trace_id"]})
    path = f"/v1/logs/exports/{export['id']}"
    expect_ok(client.post(f"{path}/start", {}))
    wait_for("the export", lambda: client.read(path)["status"] == "success" or None, LOGS_SECONDS)
    link = client.read(f"{path}/download")["signed_url"]
    assert link.startswith(f"{bucket.url}/{BUCKET}/{PREFIX}/")
    actual = httpx2.get(link)
    assert actual.headers["content-disposition"] == f'attachment; filename="logs-{export["id"]}.jsonl"'
    assert [json.loads(line) for line in actual.text.splitlines()] == [{"id": log_id, "trace_id": "exported"}]
    weak = admin.with_new_key(workspace_id=workspace, scopes=["logs.list"])
    expect_error(weak.get(f"{path}/download"), 403, "AB03", "logs.export")
    assert_no_secret(admin.gateway)
