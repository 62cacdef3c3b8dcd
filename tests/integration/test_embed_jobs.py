"""Cohere batches through the OpenAI API. Files become datasets, and batches become embed jobs."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from tests.integration.batching import (
    CHAT_PATH,
    RestartableGateway,
    batch_line,
    create_workspace,
    openai_client,
    status_and_code,
    to_jsonl,
)
from tests.integration.bucket_provider import FakeBucketProvider
from tests.integration.management_client import Client, expect_ok
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Mock

pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")
WORKSPACE_NUMBERS = itertools.count(1)
MODEL, EMBEDDINGS = "embed-english-v3.0", "/v1/embeddings"


@pytest.fixture
def cohere_provider() -> Iterator[FakeBucketProvider]:
    with FakeBucketProvider("") as provider:
        provider.validation = ["validated"]
        yield provider
    assert provider.refused == []


@pytest.fixture(scope="module")
def restarted_gateway(tmp_path_factory: pytest.TempPathFactory, provider: Mock) -> Iterator[RestartableGateway]:
    trusted: dict[str, object] = {"trusted_custom_hosts": ["127.0.0.1"]}
    started = RestartableGateway(tmp_path_factory.mktemp("here"), provider, upstream=trusted)
    yield started
    print(started.gateway.program.read_output())
    started.gateway.stop()


@pytest.fixture
def caller(restarted_gateway: RestartableGateway, cohere_provider: FakeBucketProvider) -> Client:
    return create_workspace(
        Client(restarted_gateway.gateway),
        f"e{next(WORKSPACE_NUMBERS)}",
        "cohere",
        "m-w",
        custom_host=cohere_provider.url,
    )


@pytest.fixture
def ai(caller: Client) -> openai.OpenAI:
    return openai_client(caller, provider="@m-w")


def embedding_line(number: int, **body: object) -> dict[str, Any]:
    request_body = {"model": MODEL, "input": f"text {number}", **body}
    return {"custom_id": f"t-{number}", "method": "POST", "url": EMBEDDINGS, "body": request_body}


def upload_file(ai: openai.OpenAI, *rows: object) -> Any:
    return ai.files.create(file=("my lines.jsonl", to_jsonl(*rows)), purpose="batch")


def create_batch(ai: openai.OpenAI, file_id: str, **more: object) -> Any:
    content: dict[str, Any] = {"model": MODEL, **more}
    return ai.batches.create(
        input_file_id=file_id,
        endpoint=EMBEDDINGS,
        completion_window="24h",
        extra_body=content,
        metadata={"team": "red"},
    )


def test_embed_job_starts_once_the_dataset_is_validated(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    cohere_provider.validation = ["queued", "processing", "validated"]
    file = upload_file(ai, embedding_line(1), embedding_line(2, input=["text 2"], encoding_format="float"))
    assert (file.status, file.filename, file.purpose) == ("uploaded", "my lines.jsonl", "batch")
    with pytest.raises(openai.BadRequestError, match=f"dataset {file.id} is not validated"):
        create_batch(ai, file.id)
    file = ai.files.wait_for_processing(file.id, poll_interval=0.01)
    assert (file.status, file.bytes > 0) == ("processed", True)
    response = ai.batches.with_raw_response.create(
        input_file_id=file.id,
        endpoint=EMBEDDINGS,
        completion_window="24h",
        metadata={"team": "red"},
        extra_body={"model": MODEL, "input_type": "clustering", "truncate": "START", "name": "mine"},
    )
    batch = response.parse()
    assert response.headers["x-gateway-not-translated"] == "metadata"
    assert (batch.id, batch.status, batch.endpoint, batch.input_file_id) == ("e-1", "validating", EMBEDDINGS, file.id)
    job = {"model": MODEL, "dataset_id": file.id, "input_type": "clustering", "truncate": "START", "name": "mine"}
    assert cohere_provider.jobs == [job]
    assert cohere_provider.input_lines() == [
        {"custom_id": f"t-{number}", "text": f"text {number}"} for number in (1, 2)
    ]
    assert [(item.id, item.status) for item in ai.batches.list(limit=3)] == [("e-1", "in_progress")]
    cohere_provider.state = "complete"
    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id, batch.completion_window) == ("completed", "d-out", "24h")


def embedded_record(number: int, **vectors: list[float]) -> dict[str, Any]:
    """Returns a record in the format that a Cohere embed job writes."""
    return {"text": f"text {number}", "custom_id": f"t-{number}", "embeddings": vectors}


def test_job_output_is_translated_to_openai_format(
    ai: openai.OpenAI, caller: Client, cohere_provider: FakeBucketProvider
):
    batch = create_batch(ai, upload_file(ai, *map(embedding_line, range(200))).id)
    output = Client(caller.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    path = f"/v1/batches/{batch.id}/output"
    assert output.get(path).json()["error"]["code"] == "no_output"
    records = [embedded_record(number, float=[number + 0.5, -0.1] * 200) for number in range(200)]
    records[7]["embeddings"] = {"int8": [1, -2]}
    cohere_provider.finish_job("complete", records)
    response = output.get(path)
    rows = [json.loads(row) for row in response.body.splitlines()]
    # The output consists of two files, read one after the other; each contains every second record.
    assert [row["custom_id"] for row in rows] == [f"t-{number}" for start in (0, 1) for number in range(start, 200, 2)]
    bodies = {row["custom_id"]: row["response"]["body"] for row in rows}
    assert {row["response"]["status_code"] for row in rows} == {200}
    assert bodies["t-3"]["data"] == [{"object": "embedding", "index": 0, "embedding": [3.5, -0.1] * 200}]
    assert (bodies["t-3"]["object"], bodies["t-3"]["model"]) == ("list", MODEL)
    assert bodies["t-7"]["data"][0]["embedding"] == [1, -2]
    lines = [json.loads(row) for row in ai.files.content("d-out").iter_lines() if row]
    assert lines[4] == {**records[8], "embeddings": {**records[8]["embeddings"], "int8": None}}
    assert len(lines) == 200


def test_content_of_unvalidated_dataset_is_rejected(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    file = upload_file(ai, embedding_line(1)).id
    for state, reason in (("queued", "once it is `processed`"), ("failed", "it did not please")):
        cohere_provider.validation, cohere_provider.has_parts = [state], False
        with pytest.raises(openai.BadRequestError, match=reason):
            ai.files.content(file)


def test_unreadable_output_fails_at_start_or_breaks_the_stream(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    create_batch(ai, upload_file(ai, embedding_line(1)).id)
    cohere_provider.finish_job("complete", [embedded_record(number, float=[0.5] * 500) for number in range(40)])
    first, second = (f"{cohere_provider.signed}&part={number}" for number in (0, 1))
    complete = cohere_provider.objects[second]
    for broken in (b"<html>", complete[:-1], complete[: len(complete) // 2] + b"\xff" * 40):
        cohere_provider.objects[second] = broken
        with pytest.raises(httpx2.HTTPError), ai.files.with_streaming_response.content("d-out") as response:
            list(response.iter_lines())
    cohere_provider.objects[first] = b"<html>"
    ai.max_retries = 0
    with pytest.raises(openai.InternalServerError, match="does not begin with the magic bytes of Avro"):
        ai.files.content("d-out")


def test_cancels_a_job(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    batch = create_batch(ai, upload_file(ai, embedding_line(1)).id)
    ended = ai.batches.cancel(batch.id)
    assert (ended.id, ended.status, ended.input_file_id) == (batch.id, "cancelled", "texts-1")
    assert cohere_provider.count_requests("POST", "/v1/embed-jobs/e-1/cancel") == 1


def test_files_are_stored_as_datasets(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    own = {"text": "as it is", "custom_id": "a", "more": 1}
    first, second = upload_file(ai, own), upload_file(ai, embedding_line(1))
    assert b'"text": "as it is", "custom_id": "a", "more": 1}' in cohere_provider.objects[first.id]
    page = ai.files.list(limit=1, purpose="batch")
    assert ([item.id for item in page.data], page.has_more) == ([first.id], True)
    assert [item.id for item in ai.files.list(limit=1)] == [first.id, second.id]
    assert ai.files.delete(first.id).deleted
    assert [item.id for item in ai.files.list()] == [second.id]
    cohere_provider.validation = ["failed"]
    for_processing = ai.files.wait_for_processing(second.id)
    assert (for_processing.status, for_processing.status_details) == ("error", "it did not please")


def test_lists_line_parameters_that_only_a_job_can_set(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    row = embedding_line(1, dimensions=256, user="u", encoding_format="base64")
    response = ai.files.with_raw_response.create(file=("a.jsonl", to_jsonl(row)), purpose="batch")
    assert response.headers["x-gateway-not-translated"] == "dimensions, user, encoding_format"
    assert cohere_provider.datasets["texts-1"]["name"] == "a.jsonl"


def test_rejects_invalid_embedding_line_with_its_number(ai: openai.OpenAI, cohere_provider: FakeBucketProvider):
    for row, reason in (
        (embedding_line(2, input=["a", "b"]), "line 2: input must be one text"),
        (embedding_line(2, model="embed-other"), "line 2: it is `embed-other`"),
        (batch_line(2, model=MODEL), "line 2"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason):
            upload_file(ai, embedding_line(1), row)
    with pytest.raises(openai.BadRequestError, match="must be batch"):
        ai.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match=f"batches of this provider support only {EMBEDDINGS}"):
        ai.batches.create(input_file_id="a", endpoint=CHAT_PATH, completion_window="24h", extra_body={"model": MODEL})
    assert cohere_provider.received_requests == []


def test_model_allowlist_applies_to_embed_jobs(
    restarted_gateway: RestartableGateway, cohere_provider: FakeBucketProvider
):
    name, admin = f"e{next(WORKSPACE_NUMBERS)}", Client(restarted_gateway.gateway)
    ai = openai_client(create_workspace(admin, name, "cohere", "m-w", custom_host=cohere_provider.url), provider="@m-w")
    allowed = {"models": [{"slug": MODEL, "enabled": True, "is_custom": True}], "allow_all_models": False}
    expect_ok(admin.put(f"/v1/integrations/m-{name}/models", allowed))
    file, no = upload_file(ai, embedding_line(1)).id, (403, "model_not_allowed")
    wait_for(
        "the models at the edge",
        lambda: status_and_code(lambda: create_batch(ai, file, model="embed-other")) == no or None,
    )
    cohere_provider.received_requests.clear()
    cohere_provider.jobs.clear()
    assert status_and_code(lambda: upload_file(ai, embedding_line(1, model="embed-other"))) == no
    assert status_and_code(lambda: create_batch(ai, file, model="embed-other")) == no
    assert status_and_code(lambda: create_batch(ai, file, model=None))[0] == 400
    # Extra provider options must not name another model either.
    assert status_and_code(lambda: create_batch(ai, file, provider_options={"model": "embed-other"})) == no
    assert (cohere_provider.received_requests, cohere_provider.jobs) == ([], [])
