"""Batches of Bedrock, Vertex AI, Fireworks and Cohere. Lines go to a bucket or dataset and results come from one,
across restarts.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import openai
import pytest

from tests.integration.amazon import run_moto
from tests.integration.batching import (
    CHAT_PATH,
    RestartableGateway,
    batch_line,
    create_batch,
    create_workspace,
    openai_client,
    read_output_lines,
    status_and_code,
    to_jsonl,
    wait_until_ended,
)
from tests.integration.bucket_provider import (
    BEDROCK,
    COHERE,
    FIREWORKS_PATH,
    JOB_ARN,
    KEY_ID,
    REGION,
    SECRET,
    VERTEX,
    FakeBucketProvider,
)
from tests.integration.management_client import Client, expect_error, expect_ok
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Mock

pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")
WINDOW_24H = "24h"
COUNTER = itertools.count(1)
ROLE_ARN = "arn:aws:iam::123456789012:role/batches"
CLAUDE, GEMINI, LLAMA = "anthropic.claude-test", "gemini-test", "accounts/fireworks/models/llama-test"
COMMAND = "command-test"
PRICES = {"request_token": {"price": 0.002}, "response_token": {"price": 0.01}}
BATCH_PRICES = {"request_token": {"price": 0.0001}, "response_token": {"price": 0.0002}}
AWS_OPTIONS = {
    "aws_auth_type": "accessKey",
    "aws_region": REGION,
    "aws_access_key_id": KEY_ID,
    "aws_secret_access_key": SECRET,
    "aws_s3_bucket": "s3-bucket",
    "aws_batch_role_arn": ROLE_ARN,
}
VERTEX_OPTIONS = {
    "vertex_auth_type": "basic",
    "vertex_region": "europe-west4",
    "vertex_project_id": "p-1",
    "vertex_storage_bucket_name": "gcs-bucket",
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_moto(tmp_path_factory.mktemp("moto")) as url:
        for bucket in ("s3-bucket", "gcs-files"):
            httpx2.put(f"{url}/{bucket}").raise_for_status()
        yield url


@pytest.fixture
def bucket_provider(s3: str) -> Iterator[FakeBucketProvider]:
    with FakeBucketProvider(s3) as provider:
        yield provider
    assert provider.refused == []


@pytest.fixture(scope="module")
def restartable_gateway(tmp_path_factory: pytest.TempPathFactory, provider: Mock) -> Iterator[RestartableGateway]:
    trusted: dict[str, object] = {"trusted_custom_hosts": ["127.0.0.1"]}
    prices = [
        {"provider": "bedrock", "model": CLAUDE, "pay_as_you_go": PRICES},
        {"provider": "cohere", "model": COMMAND, "pay_as_you_go": PRICES},
        {"provider": "fireworks-ai", "model": LLAMA, "pay_as_you_go": PRICES},
        {"provider": "vertex-ai", "model": GEMINI, "pay_as_you_go": PRICES, "batch_config": BATCH_PRICES},
    ]
    started = RestartableGateway(tmp_path_factory.mktemp("here"), provider, upstream=trusted, prices=prices, poll_ms=30)
    yield started
    print(started.gateway.program.read_output())
    started.gateway.stop()


class ProviderCase(NamedTuple):
    """Options of one provider, and the values that its jobs are expected to have."""

    slug: str
    configurations: dict[str, str]
    model: str
    done_state: str
    # Method and path of the request that cancels a job.
    cancel_method: str
    cancel_path: str
    # Cost in nano-dollars of a line with ten input tokens and five output tokens.
    cost_nanodollars: int


PROVIDER_CASES = {
    # Half of the usual price: 10 × 20,000 and 5 × 100,000.
    "bedrock": ProviderCase("bedrock", AWS_OPTIONS, CLAUDE, "Completed", "POST", f"{BEDROCK}/{JOB_ARN}/stop", 350_000),
    # The batch price: 10 × 1,000 and 5 × 2,000.
    "vertex-ai": ProviderCase(
        "vertex-ai", VERTEX_OPTIONS, GEMINI, "JOB_STATE_SUCCEEDED", "POST", f"{VERTEX}/77:cancel", 20_000
    ),
    "fireworks-ai": ProviderCase(
        "fireworks-ai",
        {"fireworks_account_id": "acme"},
        LLAMA,
        "JOB_STATE_COMPLETED",
        "DELETE",
        f"{FIREWORKS_PATH}/batchInferenceJobs/gateway-",
        350_000,
    ),
    "cohere": ProviderCase("cohere", {}, COMMAND, "BATCH_STATUS_COMPLETED", "POST", f"{COHERE}/b-1:cancel", 350_000),
}


@pytest.fixture(params=list(PROVIDER_CASES))
def kind(request: pytest.FixtureRequest) -> ProviderCase:
    return PROVIDER_CASES[request.param]


@pytest.fixture
def caller(kind: ProviderCase, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider) -> Client:
    return create_client(restartable_gateway, bucket_provider, kind)


def create_client(
    restartable_gateway: RestartableGateway,
    bucket_provider: FakeBucketProvider,
    kind: ProviderCase,
    **configurations: str,
) -> Client:
    """Returns a client of a new workspace whose provider is `@m-w`."""
    options = {**kind.configurations, "custom_host": bucket_provider.url, **configurations}
    return create_workspace(Client(restartable_gateway.gateway), f"b{next(COUNTER)}", kind.slug, "m-w", **options)


def wait_for_job_id(caller: Client, bucket_provider: FakeBucketProvider, batch_id: str) -> str:
    """Waits until the gateway has stored the provider's job id; returns the id."""
    wait_for("the job", lambda: bucket_provider.jobs or None)
    return wait_for("its name at the provider", lambda: caller.read(f"/v1/batches/{batch_id}")["provider_job_id"])


def success_row(kind: ProviderCase, sent: dict[str, Any]) -> dict[str, Any]:
    """Returns the output row of a successful response to an input row."""
    if kind.slug == "bedrock":
        text = f"to {sent['modelInput']['messages'][0]['content'][0]['text']}"
        message = {"role": "assistant", "content": [{"text": text}]}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        return {**sent, "modelOutput": {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}}
    if kind.slug == "fireworks-ai":
        message = {"role": "assistant", "content": f"to {sent['body']['messages'][0]['content']}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        response = {"id": "c-1", "object": "chat.completion", "choices": [choice], "usage": usage}
        return {"custom_id": sent["custom_id"], "response": response}
    if kind.slug == "cohere":
        text = f"to {sent['body']['messages'][0]['content'][0]['text']}"
        message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        usage = {"tokens": {"input_tokens": 10.0, "output_tokens": 5.0}}
        body = {"id": "c-1", "finish_reason": "COMPLETE", "message": message, "usage": usage}
        return {"custom_id": sent["custom_id"], "error": "", "body": body}
    text = f"to {sent['request']['contents'][0]['parts'][0]['text']}"
    actual = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    return {**sent, "status": "", "response": {"candidates": [actual], "usageMetadata": usage, "responseId": "r-1"}}


def error_row(kind: ProviderCase, sent: dict[str, Any]) -> dict[str, Any]:
    if kind.slug == "bedrock":
        return {**sent, "error": {"errorCode": 429, "errorMessage": "too busy"}}
    if kind.slug == "fireworks-ai":
        return {"custom_id": sent["custom_id"], "error": {"code": 429, "message": "too busy"}}
    if kind.slug == "cohere":
        return {"custom_id": sent["custom_id"], "error": "too busy", "body": None}
    status = 'Too Many Requests: {"error": {"code": 429, "message": "too busy", "status": "RESOURCE_EXHAUSTED"}}'
    return {**sent, "status": status, "response": {}}


def wait_for_records(restartable_gateway: RestartableGateway, batch_id: str, count: int) -> list[dict[str, Any]]:
    def chat_records() -> list[dict[str, Any]] | None:
        records = [record for record in restartable_gateway.gateway.records() if record["trace_id"] == batch_id]
        records = [item for item in records if item["operation"] == "chatComplete"]
        return records if len(records) >= count else None

    return wait_for(f"{count} records", chat_records)


def test_lines_go_to_a_bucket_and_return_in_openai_format(
    kind: ProviderCase, caller: Client, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    ai = openai_client(caller, provider="@m-w", metadata='{"team":"red"}')
    lines = [batch_line(number, f"word {number}", model=kind.model, seed=1) for number in range(1, 4)]
    batch = create_batch(ai, to_jsonl(*lines), WINDOW_24H)
    name = wait_for_job_id(caller, bucket_provider, batch.id)
    names = {"bedrock": JOB_ARN, "vertex-ai": "77", "fireworks-ai": f"gateway-{batch.id.removeprefix('gw_batch_')}"}
    names["cohere"] = "b-1"
    assert name == names[kind.slug]
    sent = bucket_provider.input_lines()
    # Results are not in the order of the input.
    bucket_provider.finish_job(
        kind.done_state, [error_row(kind, sent[2]), success_row(kind, sent[1]), success_row(kind, sent[0])]
    )
    batch = wait_until_ended(ai, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 2, 1), batch.errors
    good, bad = read_output_lines(ai, batch.output_file_id), read_output_lines(ai, batch.error_file_id)
    assert list(good) == ["line-1", "line-2"]
    first = good["line-1"]["response"]
    assert first["body"]["choices"][0]["message"]["content"] == "to word 1"
    assert (first["status_code"], first["body"]["object"]) == (200, "chat.completion")
    if kind.slug == "cohere":
        # Cohere reports no status code.
        assert bad["line-3"]["error"] == {"code": "provider_failed", "message": "too busy"}
    else:
        assert bad["line-3"]["response"]["status_code"] == 429
        assert "too busy" in bad["line-3"]["response"]["body"]["error"]["message"]
    failures = [] if kind.slug == "cohere" else [(429, None)]
    recorded = wait_for_records(restartable_gateway, batch.id, 2 + len(failures))
    costs = [(item["response_status_code"], item.get("cost_nanodollars")) for item in recorded]
    assert costs == [(200, kind.cost_nanodollars), (200, kind.cost_nanodollars), *failures]
    assert {item["ai_org"] for item in recorded} == {kind.slug}
    assert recorded[0]["metadata"] == {"team": "red"}
    assert recorded[0]["api_key_id"]


def test_job_names_its_input_and_output_and_role(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["bedrock"])
    batch = create_batch(openai_client(caller, provider="@m-w"), to_jsonl(batch_line(1, model=CLAUDE)), WINDOW_24H)
    wait_for_job_id(caller, bucket_provider, batch.id)
    own, job = batch.id.removeprefix("gw_batch_"), bucket_provider.jobs[0]
    assert (job["roleArn"], job["modelId"], job["modelInvocationType"]) == (ROLE_ARN, CLAUDE, "Converse")
    assert job["clientRequestToken"] == own
    assert job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"] == f"s3://s3-bucket/penstock/{own}.jsonl"
    assert bucket_provider.input_lines()[0]["recordId"] == "00000000001"
    bucket_provider.finish_job("Failed")
    batch = wait_until_ended(openai_client(caller), batch.id)
    assert (batch.status, batch.errors.data[0].message) == ("failed", "it did not please")


def test_bedrock_embedding_batches_use_invoke_model(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["bedrock"])
    ai = openai_client(caller, provider="@m-w")
    body = {"model": "amazon.titan-embed-text-v2:0", "input": "hi"}
    item = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": body}
    file = ai.files.create(file=("a", to_jsonl(item)), purpose="batch", extra_headers={"x-gateway-provider": "gateway"})
    role = {"provider_options": {"role_arn": "arn:aws:iam::1:role/other"}}
    batch = ai.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", extra_body=role
    )
    wait_for_job_id(caller, bucket_provider, batch.id)
    assert (bucket_provider.jobs[0]["modelInvocationType"], bucket_provider.jobs[0]["roleArn"]) == (
        "InvokeModel",
        "arn:aws:iam::1:role/other",
    )
    (sent,) = bucket_provider.input_lines()
    assert sent["modelInput"]["inputText"] == "hi"
    bucket_provider.finish_job(
        "Completed", [{**sent, "modelOutput": {"embedding": [0.5, 1.0], "inputTextTokenCount": 2}}]
    )
    batch = wait_until_ended(ai, batch.id)
    assert batch.status == "completed", batch.errors
    response = read_output_lines(ai, batch.output_file_id)["e"]["response"]["body"]
    assert (response["data"][0]["embedding"], response["usage"]["total_tokens"]) == ([0.5, 1.0], 2)


def test_cohere_validates_the_dataset_before_the_batch(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["cohere"])
    ai = openai_client(caller, provider="@m-w")
    bucket_provider.validation = ["queued", "processing", "failed"]
    bucket_provider.why = "custom_id is missing"
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1, model=COMMAND)), WINDOW_24H).id)
    assert (batch.status, batch.errors.data[0].message) == ("failed", "custom_id is missing")
    assert bucket_provider.kinds == [(batch.id.replace("gw_batch_", "gateway-"), "batch-chat-v2-input")]
    assert bucket_provider.jobs == []


def test_translates_lines_to_cohere_dataset_rows(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["cohere"])
    ai = openai_client(caller, provider="@m-w")
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    request = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [image]}]
    batch = create_batch(
        ai, to_jsonl(batch_line(1, model=COMMAND, messages=request, tools=[tool], max_tokens=9, top_p=0.5)), WINDOW_24H
    )
    wait_for_job_id(caller, bucket_provider, batch.id)
    (sent,) = bucket_provider.input_lines()
    assert sent == {
        "custom_id": "line-1",
        "body": {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.png"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": '{"type":"object"}'}}],
            "max_tokens": 9,
            "p": 0.5,
        },
    }
    assert bucket_provider.jobs[0] == {
        "name": batch.id.replace("gw_batch_", "gateway-"),
        "input_dataset_id": "d-in",
        "model": COMMAND,
    }
    bucket_provider.finish_job("BATCH_STATUS_FAILED")
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.errors.data[0].message) == ("failed", "it did not please")


def test_unsupported_cohere_parameters_fail_with_their_line(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["cohere"])
    ai = openai_client(caller, provider="@m-w")
    lines = [
        batch_line(1, model=COMMAND),
        batch_line(2, model=COMMAND, stop=["x"]),
        batch_line(3, model=COMMAND, tool_choice="none"),
    ]
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(*lines), WINDOW_24H).id)
    actual = [(error.code, error.line) for error in batch.errors.data]
    assert (batch.status, actual) == ("failed", [("untranslatable", 2)])
    assert "stop_sequences" in batch.errors.data[0].message
    assert bucket_provider.received_requests == []


def test_cohere_embeds_each_line_with_its_input_type(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["cohere"])
    ai = openai_client(caller, provider="@m-w")
    bodies = [{"input": ["a", "b"], "input_type": "search_query"}, {"input": "c", "dimensions": 256}]
    lines = [
        {"custom_id": f"e{n}", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embed-v4.0", **body}}
        for n, body in enumerate(bodies)
    ]
    file = ai.files.create(
        file=("a", to_jsonl(*lines)), purpose="batch", extra_headers={"x-gateway-provider": "gateway"}
    )
    batch = ai.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    wait_for_job_id(caller, bucket_provider, batch.id)
    assert bucket_provider.kinds[0][1] == "batch-embed-v2-input"
    assert [input_line["body"] for input_line in bucket_provider.input_lines()] == [
        {"texts": ["a", "b"], "input_type": "search_query", "embedding_types": ["float"]},
        {"texts": ["c"], "input_type": "search_document", "embedding_types": ["float"], "output_dimension": 256},
    ]
    vectors = [[[0.5, 1.0], [1.5, 2.0]], [[3.0, 4.0]]]
    results = [
        {
            "custom_id": f"line-{n + 1}",
            "error": "",
            "body": {"id": "e", "embeddings": {"float": actual}, "meta": {"billed_units": {"input_tokens": 3.0}}},
        }
        for n, actual in enumerate(vectors)
    ]
    bucket_provider.finish_job("BATCH_STATUS_COMPLETED", results)
    batch = wait_until_ended(ai, batch.id)
    assert batch.status == "completed", batch.errors
    output_lines = read_output_lines(ai, batch.output_file_id)
    reported = [[item["embedding"] for item in output_lines[name]["response"]["body"]["data"]] for name in ("e0", "e1")]
    assert reported == vectors
    assert output_lines["e0"]["response"]["body"]["usage"]["total_tokens"] == 3


def test_invalid_avro_output_fails_the_batch_with_a_message(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["cohere"])
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1, model=COMMAND)), WINDOW_24H)
    wait_for_job_id(caller, bucket_provider, batch.id)
    bucket_provider.finish_job("running", [])
    bucket_provider.objects[f"{bucket_provider.signed}&part=0"] = b"<html>"
    bucket_provider.state = "BATCH_STATUS_COMPLETED"
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, "Avro" in batch.errors.data[0].message) == ("failed", True)


def test_claude_on_vertex_uses_the_anthropic_format(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["vertex-ai"])
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1, model="claude-test@1")), WINDOW_24H)
    wait_for_job_id(caller, bucket_provider, batch.id)
    (sent,) = bucket_provider.input_lines()
    assert bucket_provider.jobs[0]["model"] == "publishers/anthropic/models/claude-test@1"
    assert sent["request"]["anthropic_version"] == "vertex-2023-10-16"
    assert "model" not in sent["request"]
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    bucket_provider.finish_job("JOB_STATE_SUCCEEDED", [{**sent, "status": "", "response": message}])
    batch = wait_until_ended(ai, batch.id)
    assert batch.status == "completed", batch.errors
    response = read_output_lines(ai, batch.output_file_id)["line-1"]["response"]["body"]
    assert (response["choices"][0]["message"]["content"], response["usage"]["total_tokens"]) == ("hello", 5)


def test_kill_9_duplicates_neither_job_nor_records(
    kind: ProviderCase, caller: Client, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    batch = create_batch(
        openai_client(caller, provider="@m-w"),
        to_jsonl(batch_line(1, model=kind.model), batch_line(2, model=kind.model)),
        WINDOW_24H,
    )
    wait_for_job_id(caller, bucket_provider, batch.id)
    restartable_gateway.kill()
    bucket_provider.finish_job(kind.done_state, [success_row(kind, sent) for sent in bucket_provider.input_lines()])
    restartable_gateway.start()
    batch = wait_until_ended(openai_client(restartable_gateway.client_with_key(caller.key)), batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert len(bucket_provider.jobs) == 1
    assert len(wait_for_records(restartable_gateway, batch.id, 2)) == 2


def test_cancelling_ends_a_job_without_results(kind: ProviderCase, caller: Client, bucket_provider: FakeBucketProvider):
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1, model=kind.model)), WINDOW_24H)
    wait_for_job_id(caller, bucket_provider, batch.id)
    assert ai.batches.cancel(batch.id).status == "cancelling"
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed, batch.output_file_id) == ("cancelled", 0, None), batch.errors
    assert (
        sum(
            method == kind.cancel_method and path.startswith(kind.cancel_path)
            for method, path in bucket_provider.received_requests
        )
        == 1
    )


def test_invalid_lines_of_a_job_fail_before_they_are_sent(
    kind: ProviderCase, caller: Client, bucket_provider: FakeBucketProvider
):
    ai = openai_client(caller, provider="@m-w")
    wrong = [
        batch_line(1, model=kind.model),
        batch_line(2, model="another"),
        batch_line(3, model=kind.model, messages=7),
    ]
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(*wrong), WINDOW_24H).id)
    actual = [(error.code, error.line) for error in batch.errors.data]
    expected = [("mismatched_model", 2), *([("untranslatable", 3)] if kind.slug != "fireworks-ai" else [])]
    assert (batch.status, actual) == ("failed", expected)
    assert bucket_provider.received_requests == []


@pytest.mark.parametrize(
    "kind", [kind for kind in PROVIDER_CASES.values() if kind.configurations], ids=lambda kind: kind.slug
)
def test_missing_job_options_are_reported_before_creation(
    kind: ProviderCase, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    absent = {"aws_s3_bucket", "aws_batch_role_arn", "fireworks_account_id", "vertex_storage_bucket_name"}
    bare = {name: value for name, value in kind.configurations.items() if name not in absent}
    caller = create_client(restartable_gateway, bucket_provider, kind._replace(configurations=bare))
    file = openai_client(caller).files.create(file=("a", to_jsonl(batch_line(1, model=kind.model))), purpose="batch")
    body: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT_PATH, "completion_window": WINDOW_24H}
    options = {"x-gateway-provider": "@m-w"}
    label = "account" if kind.slug == "fireworks-ai" else "bucket"
    expect_error(
        caller.post("/v1/batches", {**body, "gateway_options": options}), 400, "AB01", "gateway_options", label
    )
    odd = {**body, "gateway_options": options, "provider_options": {"colour": "red"}}
    expect_error(caller.post("/v1/batches", odd), 400, "AB01", "provider_options.colour")


def test_native_jobs_must_use_an_allowed_model(
    kind: ProviderCase, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    name, admin = f"b{next(COUNTER)}", Client(restartable_gateway.gateway)
    options = {**kind.configurations, "custom_host": bucket_provider.url}
    caller = create_workspace(admin, name, kind.slug, "m-w", **options)
    allowed = {"models": [{"slug": kind.model, "enabled": True, "is_custom": True}], "allow_all_models": False}
    expect_ok(admin.put(f"/v1/integrations/m-{name}/models", allowed))
    provider_client = Client(restartable_gateway.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    another = native_job(kind, kind.model + "-other")
    wait_for("the models at the edge", lambda: provider_client.post("/v1/batch_jobs", another).status == 403 or None)
    bucket_provider.received_requests.clear()
    bucket_provider.jobs.clear()
    # Fields that the provider ignores do not count as the model.
    with_model = {"model": kind.model, **another} if kind.slug == "bedrock" else {"modelId": kind.model, **another}
    for job in ({}, another, with_model):
        response = provider_client.post("/v1/batch_jobs", job)
        assert (response.status, response.json()["error"]["code"]) == (403, "model_not_allowed"), job
    assert bucket_provider.received_requests == []
    ai = openai_client(caller, provider="@m-w")
    wrong = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1, model=kind.model + "-other")), WINDOW_24H).id)
    assert [error.code for error in wrong.errors.data] == ["model_not_allowed"]
    batch = create_batch(ai, to_jsonl(batch_line(1, model=kind.model), batch_line(2, model=kind.model)), WINDOW_24H)
    wait_for_job_id(caller, bucket_provider, batch.id)
    bucket_provider.finish_job(kind.done_state, [success_row(kind, sent) for sent in bucket_provider.input_lines()])
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors


def native_job(kind: ProviderCase, model: str) -> dict[str, str]:
    """Returns the body of a job for a model in the provider's native format."""
    if kind.slug == "bedrock":
        return {"modelId": model}
    return {"model": f"publishers/google/models/{model}" if kind.slug == "vertex-ai" else model}


# Options by provider, for batches that the provider runs and that OpenAI's batch API reaches. Vertex AI uses a bucket
# that moto emulates.
PASSTHROUGH_OPTIONS = {
    "bedrock": {},
    "vertex-ai": {"vertex_storage_bucket_name": "gcs-files"},
    "fireworks-ai": {},
}


@pytest.mark.parametrize("slug", list(PASSTHROUGH_OPTIONS))
def test_provider_batch_follows_the_openai_api_end_to_end(
    slug: str, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    kind = PROVIDER_CASES[slug]
    caller = create_client(restartable_gateway, bucket_provider, kind, **PASSTHROUGH_OPTIONS[slug])
    ai = openai_client(caller, provider="@m-w")
    lines = [batch_line(number, f"word {number}", model=kind.model) for number in (1, 2)]
    file = ai.files.create(file=("lines.jsonl", to_jsonl(*lines)), purpose="batch")
    batch = ai.batches.create(
        input_file_id=file.id, endpoint=CHAT_PATH, completion_window=WINDOW_24H, extra_body={"model": kind.model}
    )
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT_PATH)
    assert (batch.input_file_id, batch.output_file_id, batch.completion_window) == (file.id, None, WINDOW_24H)
    assert ai.batches.retrieve(batch.id).id == batch.id
    assert [item.id for item in ai.batches.list(limit=5)] == [batch.id]
    output = Client(restartable_gateway.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    early = output.get(f"/v1/batches/{batch.id}/output")
    assert (early.status, early.json()["error"]["code"]) == (404, "no_output")
    sent = bucket_provider.input_lines()
    bucket_provider.finish_job(kind.done_state, [error_row(kind, sent[1]), success_row(kind, sent[0])])
    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.input_file_id) == ("completed", 1, file.id)
    response = output.get(f"/v1/batches/{batch.id}/output")
    actual = {splitline["custom_id"]: splitline for splitline in map(json.loads, response.body.splitlines())}
    first, second = actual["line-1"]["response"], actual["line-2"]["response"]
    assert (first["status_code"], first["body"]["object"]) == (200, "chat.completion")
    assert first["body"]["choices"][0]["message"]["content"] == "to word 1"
    assert first["body"]["usage"]["total_tokens"] == 15
    assert (second["status_code"], "too busy" in second["body"]["error"]["message"]) == (429, True)
    # The file content is as the provider wrote it.
    own = ai.files.content(batch.output_file_id or "").text
    assert [json.loads(splitline) for splitline in own.splitlines()] == [
        error_row(kind, sent[1]),
        success_row(kind, sent[0]),
    ]


@pytest.mark.parametrize("slug", list(PASSTHROUGH_OPTIONS))
def test_provider_batch_is_cancelled(
    slug: str, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    kind = PROVIDER_CASES[slug]
    ai = openai_client(
        create_client(restartable_gateway, bucket_provider, kind, **PASSTHROUGH_OPTIONS[slug]), provider="@m-w"
    )
    file = ai.files.create(file=("lines.jsonl", to_jsonl(batch_line(1, model=kind.model))), purpose="batch")
    batch = ai.batches.create(
        input_file_id=file.id, endpoint=CHAT_PATH, completion_window=WINDOW_24H, extra_body={"model": kind.model}
    )
    ended = ai.batches.cancel(batch.id)
    assert (ended.id, ended.status, ended.input_file_id) == (batch.id, "cancelled", file.id)


def test_providers_without_batches_point_to_gateway_batches(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    caller = create_workspace(
        Client(restartable_gateway.gateway),
        f"b{next(COUNTER)}",
        "perplexity-ai",
        "m-w",
        custom_host=bucket_provider.url,
    )
    ai = openai_client(caller, provider="@m-w")
    fields = ("lines.jsonl", to_jsonl(batch_line(1, model=COMMAND)))
    body: dict[str, Any] = {"input_file_id": "d-in", "endpoint": CHAT_PATH, "completion_window": WINDOW_24H}
    for build_request in (
        lambda: ai.files.create(file=fields, purpose="batch"),
        lambda: ai.files.content("d-out"),
        lambda: ai.batches.create(**body),
        ai.batches.list,
        lambda: ai.batches.retrieve("b-1"),
        lambda: ai.batches.cancel("b-1"),
    ):
        with pytest.raises(openai.APIStatusError, match="gateway_options of the batch") as wrong:
            build_request()
        assert wrong.value.code == "unsupported_operation"
    assert bucket_provider.received_requests == []


@pytest.mark.parametrize("slug", list(PASSTHROUGH_OPTIONS))
def test_files_batches_and_tuning_must_use_an_allowed_model(
    slug: str, restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    kind, name, admin = PROVIDER_CASES[slug], f"b{next(COUNTER)}", Client(restartable_gateway.gateway)
    options = {**kind.configurations, "custom_host": bucket_provider.url, **PASSTHROUGH_OPTIONS[slug]}
    caller = create_workspace(admin, name, kind.slug, "m-w", **options)
    allowed = {"models": [{"slug": kind.model, "enabled": True, "is_custom": True}], "allow_all_models": False}
    expect_ok(admin.put(f"/v1/integrations/m-{name}/models", allowed))
    ai, other = openai_client(caller, provider="@m-w"), kind.model + "-other"
    uri = {"bedrock": "s3://s3-bucket/penstock/a", "vertex-ai": "gs://gcs-files/penstock/a"}.get(slug, "batch-a")
    body: dict[str, Any] = {"input_file_id": uri, "endpoint": CHAT_PATH, "completion_window": WINDOW_24H}

    def create_tuning_job() -> object:
        return ai.fine_tuning.jobs.create(model=other, training_file=uri, suffix="s")

    def upload_row(row: dict[str, Any]) -> object:
        return ai.files.create(file=("lines.jsonl", to_jsonl(row)), purpose="batch")

    no = (403, "model_not_allowed")
    wait_for("the models at the edge", lambda: status_and_code(create_tuning_job) == no or None)
    bucket_provider.received_requests.clear()
    bucket_provider.jobs.clear()
    assert status_and_code(lambda: upload_row(batch_line(1, model=other))) == no
    if slug == "fireworks-ai":
        assert status_and_code(lambda: upload_row({"custom_id": "a", "body": {"model": other, "messages": []}})) == no
    assert status_and_code(lambda: ai.batches.create(**body, extra_body={"model": other})) == no
    assert (
        status_and_code(lambda: ai.batches.create(**body, extra_body={"provider_options": {"model": kind.model}}))[0]
        == 400
    )
    untold = Client(restartable_gateway.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    assert untold.post("/v1/fine_tuning/jobs", {"training_file": uri}).status == 403
    assert bucket_provider.received_requests == []
    # Additional fields must not name another model either.
    for other_model in ({"provider_options": {"model": other}}, {"modelId": other}):
        sent = {"model": kind.model, **other_model}
        assert status_and_code(lambda sent=sent: ai.batches.create(**body, extra_body=sent)) == no
    assert bucket_provider.jobs == []


def test_missing_batch_fields_are_named_before_sending(
    restartable_gateway: RestartableGateway, bucket_provider: FakeBucketProvider
):
    ai = openai_client(create_client(restartable_gateway, bucket_provider, PROVIDER_CASES["bedrock"]), provider="@m-w")
    good: dict[str, Any] = {"input_file_id": "s3://s3-bucket/a", "endpoint": CHAT_PATH, "completion_window": WINDOW_24H}
    for wrong, names in (
        ({}, "model"),
        ({"completion_window": "immediate", "extra_body": {"model": CLAUDE}}, "completion_window"),
    ):
        with pytest.raises(openai.BadRequestError, match=names):
            ai.batches.create(**{**good, **wrong})
    assert bucket_provider.jobs == []
