"""Batches that a provider runs for the gateway. Requests and results have one format for OpenAI and Anthropic, and
batches survive restarts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import threading
import uuid
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.integration.batch_provider import FakeBatchProvider, RecordingServer
from tests.integration.batching import (
    CHAT_PATH,
    RestartableGateway,
    batch_line,
    create_batch,
    create_workspace,
    openai_client,
    read_output_lines,
    to_jsonl,
    wait_until_ended,
)
from tests.integration.management_client import Client, expect_error
from tests.integration.serving import control_pid, edge_pids
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Mock

pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")
COMPLETION_WINDOW = "24h"
WORKSPACE_NUMBERS = itertools.count(1)


@pytest.fixture
def stub_provider() -> Iterator[FakeBatchProvider]:
    with FakeBatchProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def restarted_gateway(tmp_path_factory: pytest.TempPathFactory, provider: Mock) -> Iterator[RestartableGateway]:
    trusted: dict[str, object] = {"trusted_custom_hosts": ["127.0.0.1"]}
    started = RestartableGateway(tmp_path_factory.mktemp("here"), provider, upstream=trusted, poll_ms=30)
    yield started
    print(started.gateway.program.read_output())
    started.gateway.stop()


def create_caller(restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider, kind: str) -> Client:
    """Creates a workspace with the provider `@m-w`, and returns a client with its key."""
    return create_workspace(
        Client(restarted_gateway.gateway), f"w{next(WORKSPACE_NUMBERS)}", kind, "m-w", custom_host=stub_provider.url
    )


@pytest.fixture(params=["openai", "anthropic"])
def caller(
    request: pytest.FixtureRequest, restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
) -> Client:
    return create_caller(restarted_gateway, stub_provider, request.param)


def is_anthropic(stub_provider: FakeBatchProvider) -> bool:
    return "m-1" in stub_provider.batches


def wait_for_submission(stub_provider: FakeBatchProvider) -> None:
    wait_for("the batch at its provider", lambda: stub_provider.batches or None)


def _batch_records(restarted_gateway: RestartableGateway, batch_id: str, count: int) -> list[dict[str, Any]] | None:
    records = [record for record in restarted_gateway.gateway.records() if record["trace_id"] == batch_id]
    records = [item for item in records if item["operation"] == "chatComplete"]
    return records if len(records) == count else None


def test_provider_batch_results_are_returned_in_openai_format(
    caller: Client, restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    ai = openai_client(caller, provider="@m-w")
    stub_provider.busy = 2
    lines = [{**batch_line(number, f"word {number}"), "custom_id": f"mine: {number}"} for number in range(1, 5)]
    batch = create_batch(ai, to_jsonl(*lines), COMPLETION_WINDOW, metadata={"a": "b"})
    wait_for_submission(stub_provider)
    assert ai.batches.retrieve(batch.id).status == "in_progress"
    name = next(iter(stub_provider.batches))
    wait_for("its name there", lambda: caller.read(f"/v1/batches/{batch.id}")["provider_job_id"] == name or None)
    path = f"/v1/batches/{batch.id}"
    assert caller.read(path)["provider_details"] is None
    details_path = f"{path}?include_provider_details=true"
    wait_for("a poll", lambda: caller.read(details_path)["provider_details"]["polled_at"])
    details = caller.read(details_path)["provider_details"]
    assert (details["job_id"], details["virtual_key"], details["status"]) == (name, "m-w", "in_progress")
    stub_provider.finish_batches(good=3)
    batch = wait_until_ended(ai, batch.id)
    assert caller.read(details_path)["provider_details"]["status"] == "completed"
    assert (batch.status, batch.completion_window, batch.metadata) == ("completed", COMPLETION_WINDOW, {"a": "b"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    good, bad = read_output_lines(ai, batch.output_file_id), read_output_lines(ai, batch.error_file_id)
    assert list(good) == ["mine: 1", "mine: 2", "mine: 3"]
    first = good["mine: 1"]["response"]
    assert (first["status_code"], first["body"]["object"], first["body"]["model"]) == (
        200,
        "chat.completion",
        "gpt-mock",
    )
    assert list(bad) == ["mine: 4"]
    if is_anthropic(stub_provider):
        assert first["body"]["choices"][0]["message"]["content"] == "to word 1"
        assert first["body"]["usage"]["total_tokens"] == 5
        assert (bad["mine: 4"]["response"]["status_code"], stub_provider.credentials) == (529, {"sk-provider"})
        assert "busy" in bad["mine: 4"]["response"]["body"]["error"]["message"]
    else:
        assert stub_provider.batches["b-1"]["made"]["metadata"] == {"gateway_batch": batch.id}
        assert (bad["mine: 4"]["response"]["status_code"], stub_provider.credentials) == (400, {"Bearer sk-provider"})
    recorded = wait_for("a record of each line", lambda: _batch_records(restarted_gateway, batch.id, 4))
    assert sorted(record["response_status_code"] for record in recorded)[:3] == [200] * 3
    assert {record["ai_model"] for record in recorded} == {"gpt-mock"}
    # The assembled upload and the downloaded results have been deleted.
    assert not [file for file in (caller.gateway.folder / "files").iterdir() if file.suffix]


def test_node_that_lost_a_batch_no_longer_writes_its_progress(
    caller: Client, restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    batch = create_batch(openai_client(caller, provider="@m-w"), to_jsonl(batch_line(1, "a word")), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    row_id = batch.id.removeprefix("gw_batch_")
    # What another node writes when it continues the batch.
    columns = {"run_by": str(uuid.uuid4()), "run_until": 2**52, "job": json.dumps({"provider": "mock", "id": "taken"})}
    with sqlite3.connect(restarted_gateway.folder / "penstock.db", timeout=10) as connection:
        connection.execute(
            "UPDATE batches SET run_by = ?, run_until = ?, job = ? WHERE id = ?", (*columns.values(), row_id)
        )
    message = f"stopped running the batch {row_id} on this node"
    wait_for("the end of its run here", lambda: message in restarted_gateway.gateway.program.read_output() or None)
    details = caller.read(f"/v1/batches/{batch.id}?include_provider_details=true")["provider_details"]
    assert (details["job_id"], details["polled_at"]) == ("taken", None)


def test_submitted_batch_is_not_resubmitted_after_kill_9(
    caller: Client, restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    batch = create_batch(
        openai_client(caller, provider="@m-w"), to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW
    )
    wait_for_submission(stub_provider)
    path = "/messages/batches" if is_anthropic(stub_provider) else "/batches"
    name = "m-1" if is_anthropic(stub_provider) else "b-1"
    wait_for("a question after it", lambda: stub_provider.count_requests("GET", f"{path}/{name}") or None)
    restarted_gateway.kill()
    stub_provider.finish_batches()
    restarted_gateway.start()
    ai = openai_client(restarted_gateway.client_with_key(caller.key))
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert stub_provider.count_requests("POST", path) == 1


def test_batch_is_not_resubmitted_if_the_response_was_lost(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    stub_provider.mute.set()
    batch = create_batch(
        openai_client(caller, provider="@m-w"), to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW
    )
    wait_for_submission(stub_provider)
    restarted_gateway.kill()
    stub_provider.mute.clear()
    stub_provider.finish_batches()
    restarted_gateway.start()
    ai = openai_client(restarted_gateway.client_with_key(caller.key))
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert stub_provider.count_requests("POST", "/batches") == 1


def test_batch_survives_the_worker_that_submitted_it(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    stub_provider.mute.set()
    batch = create_batch(
        openai_client(caller, provider="@m-w"), to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW
    )
    wait_for_submission(stub_provider)
    (worker,) = edge_pids(restarted_gateway.gateway)
    os.kill(worker, signal.SIGKILL)
    stub_provider.mute.clear()
    stub_provider.finish_batches()
    wait_for("another worker", lambda: edge_pids(restarted_gateway.gateway) != [worker] or None)
    batch = wait_until_ended(openai_client(caller), batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert stub_provider.count_requests("POST", "/batches") == 1


def test_missing_lines_are_reported_and_unknown_lines_ignored(caller: Client, stub_provider: FakeBatchProvider):
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches()
    with stub_provider.lock:
        (created,) = stub_provider.batches.values()
        others = [{**created["lines"][1], "custom_id": f"line-{number}"} for number in ("77", "0", "-1", "9" * 30)]
        created.update(good=created["lines"][:1] + others)
    batch = wait_until_ended(ai, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 1, 1), batch.errors
    assert list(read_output_lines(ai, batch.output_file_id)) == ["line-1"]
    bad = read_output_lines(ai, batch.error_file_id)
    assert {name: response["error"]["code"] for name, response in bad.items()} == {"line-2": "no_answer"}


def test_cancel_is_forwarded_and_returns_partial_results(caller: Client, stub_provider: FakeBatchProvider):
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    name = next(iter(stub_provider.batches))
    path = f"{'/messages' if is_anthropic(stub_provider) else ''}/batches/{name}"
    wait_for("a question after it", lambda: stub_provider.count_requests("GET", path) or None)
    assert ai.batches.cancel(batch.id).status == "cancelling"
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 1)
    assert list(read_output_lines(ai, batch.output_file_id)) == ["line-1"]
    assert stub_provider.count_requests("POST", f"{path}/cancel") == 1


def test_error_of_a_failed_provider_batch_is_passed_on(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches("failed")
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "provider_failed")
    assert batch.errors.data[0].message == "it did not please"


def test_untranslatable_lines_fail_before_submission(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    ai = openai_client(create_caller(restarted_gateway, stub_provider, "anthropic"), provider="@m-w")
    wrong = [batch_line(1, messages=7), batch_line(2, model="@other/claude"), batch_line(3)]
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(*wrong), COMPLETION_WINDOW).id)
    actual = [(error.code, error.line) for error in batch.errors.data]
    assert (batch.status, actual) == ("failed", [("untranslatable", 1), ("invalid_model", 2)])
    assert stub_provider.received_requests == []


def test_disabled_model_is_rejected_in_a_batch_line(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    slug = f"m-w{next(WORKSPACE_NUMBERS) - 1}"
    disabled = {"models": [{"slug": "gpt-secret", "enabled": False}]}
    assert Client(restarted_gateway.gateway).put(f"/v1/integrations/{slug}/models", disabled).status == 200
    ai = openai_client(caller, provider="@m-w")
    batch = wait_until_ended(
        ai, create_batch(ai, to_jsonl(batch_line(1), batch_line(2, model="gpt-secret")), COMPLETION_WINDOW).id
    )
    assert [(error.code, error.line) for error in batch.errors.data] == [("model_not_allowed", 2)]
    assert stub_provider.received_requests == []


def test_model_allowlist_applies_to_files_and_batches(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    slug = f"m-w{next(WORKSPACE_NUMBERS) - 1}"
    allowed = {"models": [{"slug": "gpt-mock", "enabled": True, "is_custom": True}], "allow_all_models": False}
    assert Client(restarted_gateway.gateway).put(f"/v1/integrations/{slug}/models", allowed).status == 200
    ai = openai_client(caller, provider="@m-w")
    wrong = to_jsonl(batch_line(1), *[batch_line(number, "word" * 200, model="gpt-other") for number in range(2, 400)])

    def get_upload_error_code() -> str | None:
        try:
            ai.files.create(file=("lines.jsonl", wrong), purpose="batch")
        except openai.PermissionDeniedError as error:
            return str(error.code)
        return None

    assert wait_for("the models at the edge", get_upload_error_code) == "model_not_allowed"
    with stub_provider.lock:
        stub_provider.files.clear()
        stub_provider.files["file-in"] = wrong
        stub_provider.received_requests.clear()
    body: dict[str, Any] = {"endpoint": CHAT_PATH, "completion_window": COMPLETION_WINDOW}
    with pytest.raises(openai.PermissionDeniedError) as refusal:
        ai.batches.create(input_file_id="file-in", **body)
    assert refusal.value.code == "model_not_allowed"
    assert stub_provider.received_requests == [("GET", "/files/file-in/content")]
    stub_provider.received_requests.clear()
    with pytest.raises(openai.PermissionDeniedError):
        ai.fine_tuning.jobs.create(model="gpt-other", training_file="file-in")
    # These requests name no model, and the gateway cannot know which model the provider would choose.
    itself = Client(restarted_gateway.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    for path, request in (
        ("/v1/fine_tuning/jobs", {"training_file": "file-in"}),
        ("/v1/responses", {"prompt": {"id": "pmpt_1"}}),
        ("/v1/images/generations", {"prompt": "a cat"}),
    ):
        response = itself.post(path, request)
        assert (response.status, response.json()["error"]["code"]) == (403, "model_not_allowed"), path
    assert stub_provider.received_requests == []
    file = ai.files.create(file=("lines.jsonl", to_jsonl(batch_line(1), batch_line(2))), purpose="batch")
    assert ai.batches.create(input_file_id=file.id, **body).id == "b-1"
    # Batches that the gateway itself manages are accepted too.
    stub_provider.batches.clear()
    batch = create_batch(ai, to_jsonl(batch_line(1), batch_line(2), batch_line(3)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches()
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3), batch.errors


def test_model_allowlist_permits_anthropic_message_batches(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "anthropic")
    slug = f"m-w{next(WORKSPACE_NUMBERS) - 1}"
    allowed = {"models": [{"slug": "gpt-mock", "enabled": True, "is_custom": True}], "allow_all_models": False}
    assert Client(restarted_gateway.gateway).put(f"/v1/integrations/{slug}/models", allowed).status == 200
    ai = openai_client(caller, provider="@m-w")
    batch = create_batch(ai, to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches()
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors


def test_rejects_a_batch_without_a_usable_provider(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "groq")
    file = openai_client(caller).files.create(file=("a", to_jsonl(batch_line(1))), purpose="batch")
    body: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT_PATH, "completion_window": COMPLETION_WINDOW}
    expect_error(caller.post("/v1/batches", body), 400, "AB01", "completion_window", "x-gateway-provider")
    options = {"x-gateway-provider": "@nobody"}
    expect_error(caller.post("/v1/batches", {**body, "gateway_options": options}), 404, "AB02", "nobody")
    options = {"x-gateway-virtual-key": "m-w"}
    expect_error(caller.post("/v1/batches", {**body, "gateway_options": options}), 400, "AB01", "groq", "anthropic")


def test_openai_compatible_batches_run_directly_and_via_gateway(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "kluster-ai")
    ai = openai_client(caller, provider="@m-w")
    lines = to_jsonl(batch_line(1), batch_line(2))
    file = ai.files.create(file=("lines.jsonl", lines), purpose="batch")
    assert (file.id, stub_provider.files["file-in"]) == ("file-in", lines.strip(b"\n") + b"\n")
    body: dict[str, Any] = {
        "endpoint": CHAT_PATH,
        "completion_window": COMPLETION_WINDOW,
        "metadata": {"why": "a test"},
    }
    batch = ai.batches.create(input_file_id=file.id, **body)
    assert stub_provider.batches["b-1"]["made"] == {"input_file_id": "file-in", **body}
    stub_provider.finish_batches()
    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)
    assert list(read_output_lines(ai, batch.output_file_id)) == ["line-1", "line-2"]
    assert ai.batches.cancel(batch.id).status == "cancelled"
    stub_provider.batches.clear()
    batch = create_batch(ai, lines, COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches()
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors


@pytest.mark.parametrize("name", ["gateway", "portkey"])
def test_provider_header_selects_the_gateways_own_batches(
    name: str, restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    # Clients that migrate from another gateway send this header with each request.
    base, there_is = f"{restarted_gateway.gateway.base_url}/v1", {"x-portkey-provider": name}
    with openai.OpenAI(
        api_key=create_caller(restarted_gateway, stub_provider, "openai").key,
        base_url=base,
        default_headers=there_is,
        max_retries=0,
    ) as ai:
        file = ai.files.create(file=("lines.jsonl", to_jsonl(batch_line(1))), purpose="batch")
        assert (file.id[:8], [item.id for item in ai.files.list()]) == ("gw_file_", [file.id])
        options = {"gateway_options": {"x-portkey-provider": "@m-w"}}
        batch = ai.batches.create(
            input_file_id=file.id, endpoint=CHAT_PATH, completion_window=COMPLETION_WINDOW, extra_body=options
        )
        wait_for_submission(stub_provider)
        stub_provider.finish_batches()
        assert (wait_until_ended(ai, batch.id).status, [item.id for item in ai.batches.list()]) == (
            "completed",
            [batch.id],
        )


def test_batch_output_at_the_provider_takes_one_request(restarted_gateway: RestartableGateway):
    caller = create_workspace(Client(restarted_gateway.gateway), "mocked", slug="m-w")
    ai = openai_client(caller, provider="@m-w")
    assert ai.batches.retrieve("b-1").status == "completed"
    assert (
        Client(restarted_gateway.gateway, caller.key, {"x-gateway-provider": "@m-w"})
        .get("/v1/batches/b-1/output")
        .body.endswith(b"\n")
    )
    jobs = ai.fine_tuning.jobs
    assert jobs.create(model="m", training_file="file-1").status == "running"
    assert (jobs.retrieve("ft-1").id, jobs.cancel("ft-1").id, jobs.list().data) == ("ft-1", "ft-1", [])
    assert jobs.list_events("ft-1").data[0].message == "ft-1"
    assert jobs.checkpoints.list("ft-1", limit=3).data[0].fine_tuning_job_id == "ft-1"
    expected = {"listFinetuneEvents", "listFinetuneCheckpoints", "retrieveFileContent"}
    wait_for(
        "the records",
        lambda: expected <= {record["operation"] for record in restarted_gateway.gateway.records()} or None,
    )
    with pytest.raises(openai.BadRequestError):
        openai_client(caller).fine_tuning.jobs.list()


NO_CANARY = {"contains": {"words": ["canary"], "operator": "none"}}
HIDE_EMAIL = {"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": True}}


def sent_lines(stub_provider: FakeBatchProvider) -> str:
    return json.dumps([batch["lines"] for batch in stub_provider.batches.values()])


def read_line(ai: openai.OpenAI, file_id: str | None, number: int) -> dict[str, Any]:
    return read_output_lines(ai, file_id)[f"line-{number}"]["response"]


def test_lines_are_checked_before_the_provider_gets_them(caller: Client, stub_provider: FakeBatchProvider):
    denying, observing = {"id": "no-canary", "deny": True, **NO_CANARY}, {"id": "short", "wordCount": {"maxWords": 2}}
    config = json.dumps({"input_guardrails": [denying, {"id": "emails", **HIDE_EMAIL}, observing]})
    ai = openai_client(caller, provider="@m-w", config=config)
    texts = ["a canary", "mail ann@example.com", "two words", "these are four words"]
    lines = [batch_line(number, text) for number, text in enumerate(texts, 1)]
    created = create_batch(ai, to_jsonl(*lines), COMPLETION_WINDOW)
    assert created.status == "validating"
    assert created.hook_results == {"before_request_hooks": [], "after_request_hooks": []}
    wait_for_submission(stub_provider)
    assert "canary" not in sent_lines(stub_provider)
    assert "ann@example.com" not in sent_lines(stub_provider)
    stub_provider.finish_batches()
    batch = wait_until_ended(ai, created.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 4, 3, 1)
    denied = read_line(ai, batch.error_file_id, 1)
    assert (denied["status_code"], denied["body"]["error"]["type"]) == (446, "hooks_failed")
    statuses = {number: read_line(ai, batch.output_file_id, number)["status_code"] for number in (2, 3, 4)}
    assert statuses == {2: 200, 3: 200, 4: 246}
    first = read_line(ai, batch.output_file_id, 4)["body"]["hook_results"]["before_request_hooks"]
    assert [(result["id"], result["verdict"]) for result in first][-1] == ("short", False)
    assert batch.input_file_id != created.input_file_id
    checked = ai.files.content(batch.input_file_id).text
    assert not any(text in checked for text in ["a canary", "ann@example.com"])
    assert "ann@example.com" in ai.files.content(created.input_file_id).text
    results = {result["id"]: result for result in batch.hook_results["before_request_hooks"]}
    assert (results["no-canary"]["denied_lines"], results["no-canary"]["deny"]) == (1, True)
    assert (results["emails"]["transformed"], results["emails"]["verdict"]) == (True, True)
    assert (results["short"]["lines"], results["short"]["failed_lines"]) == (4, 1)
    assert batch.processing_post_request_guardrails_at is None


def test_responses_are_checked_before_the_client_gets_them(caller: Client, stub_provider: FakeBatchProvider):
    config = json.dumps({"output_guardrails": [{"id": "no-canary", "deny": True, **NO_CANARY}, HIDE_EMAIL]})
    ai = openai_client(caller, provider="@m-w", config=config)
    lines = [batch_line(number, text) for number, text in enumerate(["a canary", "ann@example.com", "hi"], 1)]
    created = create_batch(ai, to_jsonl(*lines), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    assert "canary" in sent_lines(stub_provider)
    stub_provider.finish_batches()
    batch = wait_until_ended(ai, created.id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)
    assert batch.in_progress_at <= batch.processing_post_request_guardrails_at <= batch.finalizing_at
    assert batch.input_file_id == created.input_file_id
    denied, output = ai.files.content(batch.error_file_id).text, ai.files.content(batch.output_file_id).text
    assert read_line(ai, batch.error_file_id, 1)["status_code"] == 446
    assert "canary" not in denied.replace("no-canary", "")
    assert "ann@example.com" not in output
    body = read_line(ai, batch.output_file_id, 3)["body"]
    assert body["choices"][0]["message"]["content"] == "to hi"
    assert [result["verdict"] for result in body["hook_results"]["after_request_hooks"]] == [True, True]
    (first, *_) = batch.hook_results["after_request_hooks"]
    assert (first["lines"], first["denied_lines"], first["verdict"]) == (3, 1, False)


def test_cancelled_batch_returns_no_unchecked_response(caller: Client, stub_provider: FakeBatchProvider):
    config = json.dumps({"output_guardrails": [{"deny": True, **NO_CANARY}]})
    ai = openai_client(caller, provider="@m-w", config=config)
    batch = create_batch(ai, to_jsonl(batch_line(1, "a canary"), batch_line(2)), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    ai.batches.cancel(batch.id)
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert read_line(ai, batch.error_file_id, 1)["status_code"] == 446


class BlockingWebhook(RecordingServer):
    """Webhook that responds after `release` is set."""

    def __init__(self) -> None:
        super().__init__(_WebhookHandler)
        self.release = threading.Event()


class _WebhookHandler(BaseHTTPRequestHandler):
    provider: BlockingWebhook

    def log_message(self, *_: object) -> None:
        """Suppresses the access log."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.provider.received_requests.append(("POST", self.path))
        self.provider.release.wait(20)
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(b'{"verdict": true}')


def test_checks_of_responses_continue_after_kill_9(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    with BlockingWebhook() as webhook:
        check = {"webhook": {"webhookURL": webhook.url, "timeout": 15_000, "failOnError": True}}
        config = json.dumps({"output_guardrails": [{"id": "hook", "deny": True, **check}]})
        ai = openai_client(caller, provider="@m-w", config=config)
        batch = create_batch(ai, to_jsonl(batch_line(1), batch_line(2)), COMPLETION_WINDOW)
        wait_for_submission(stub_provider)
        stub_provider.finish_batches()
        wait_for("a check of a response", lambda: webhook.received_requests or None)
        assert ai.batches.retrieve(batch.id).status == "processing_post_request_guardrails"
        with pytest.raises(openai.ConflictError, match="processing_post_request_guardrails"):
            ai.batches.cancel(batch.id)
        os.kill(control_pid(restarted_gateway.gateway), signal.SIGKILL)
        webhook.release.set()
        wait_for("the management API", lambda: caller.get(f"/v1/batches/{batch.id}").status == 200 or None)
        batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)
    (result,) = batch.hook_results["after_request_hooks"]
    assert (result["id"], result["lines"], result["verdict"]) == ("hook", 2, True)


def test_batch_of_denied_lines_is_not_submitted(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    config = json.dumps({"input_guardrails": [{"deny": True, **NO_CANARY}]})
    ai = openai_client(caller, provider="@m-w", config=config)
    batch = create_batch(ai, to_jsonl(batch_line(1, "a canary")), COMPLETION_WINDOW)
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.failed, batch.output_file_id) == ("completed", 1, None)
    assert stub_provider.received_requests == []


def test_client_cannot_pretend_that_its_batch_was_checked(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    config = json.dumps({"input_guardrails": [{"deny": True, **NO_CANARY}]})
    headers = {"x-gateway-provider": "@m-w", "x-gateway-config": config, "x-gateway-batch-pass": "0" * 48}
    client = Client(restarted_gateway.gateway, caller.key, headers)
    batch = {"input_file_id": "file-1", "endpoint": CHAT_PATH, "completion_window": "24h"}
    assert client.post("/v1/batches", batch).status == 446
    assert client.post("/v1/batch_guardrails", {"path": CHAT_PATH, "request": {}}).status == 404
    # Without a key, nobody can make the gateway look for passes.
    unknown = Client(restarted_gateway.gateway, "unknown-key", headers)
    assert unknown.post("/v1/batch_guardrails", {"path": CHAT_PATH, "request": {}}).status == 401
    assert stub_provider.received_requests == []


TWO_TARGETS = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "@m-w"}, {"provider": "@m-w"}]}


@pytest.mark.parametrize(
    "config",
    [
        {"input_guardrails": [{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": True, "restore": True}}]},
        {"output_guardrails": [{"deny": True, **NO_CANARY}], **TWO_TARGETS},
        {"override_params": {"max_tokens": 5}},
    ],
)
def test_provider_gets_no_lines_if_a_guardrail_cannot_act_on_them(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider, config: dict[str, Any]
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    ai = openai_client(caller, provider="@m-w", config=json.dumps(config))
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1, "hi")), COMPLETION_WINDOW).id)
    (error,) = batch.errors.data
    assert (batch.status, error.code) == ("failed", "guardrail_denied")
    assert "'immediate'" in error.message
    assert stub_provider.received_requests == []


def test_guardrails_that_only_observe_do_not_stop_a_provider_batch(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    caller = create_caller(restarted_gateway, stub_provider, "openai")
    observing = {"contains": {"words": ["canary"], "operator": "none"}}
    dry = {"dry_run": True, "deny": True, **observing}
    config = json.dumps({"input_guardrails": [observing, dry]})
    ai = openai_client(caller, provider="@m-w", config=config)
    batch = create_batch(ai, to_jsonl(batch_line(1, "hi")), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches()
    assert wait_until_ended(ai, batch.id).status == "completed"


def test_lines_count_for_the_budgets_of_their_key_and_of_policies(
    restarted_gateway: RestartableGateway, stub_provider: FakeBatchProvider
):
    first = create_caller(restarted_gateway, stub_provider, "anthropic")
    admin = Client(restarted_gateway.gateway)
    workspace = max(admin.read("/v1/workspaces?page_size=100")["data"], key=lambda row: row["id"])["id"]
    fields = {"workspace_id": workspace, "scopes": ["completions.write"], "name": "batches"}
    client = admin.with_new_key(**fields, usage_limits={"type": "tokens", "credit_limit": 5})
    condition = {"key": "model", "value": "gpt-*"}
    policy = {
        "workspace_id": workspace,
        "conditions": [condition],
        "group_by": [{"key": "metadata.job"}, {"key": "provider"}],
        "type": "tokens",
        "credit_limit": 1000,
    }
    policy_id = admin.create("/v1/policies/usage-limits", policy)["id"]
    ai = openai_client(client, provider="@m-w", metadata='{"job":"nightly"}')
    batch = create_batch(ai, to_jsonl(*(batch_line(number) for number in range(4))), COMPLETION_WINDOW)
    wait_for_submission(stub_provider)
    stub_provider.finish_batches(good=4)
    wait_until_ended(ai, batch.id)
    records = wait_for("a record of each line", lambda: _batch_records(restarted_gateway, batch.id, 4))
    tokens = sum(record["total_units"] for record in records)

    def read_usage() -> float | None:
        usage = admin.read(f"/v1/policies/usage-limits/{policy_id}?include_usage=true")["value_key_usage_map"]
        used = usage.get("nightly|anthropic", {}).get("current_usage")
        return used if used == tokens else None

    assert wait_for("the usage of the policy", read_usage, 10) > 0
    # The lines have used up the budget of the key, but not that of another one.
    with pytest.raises(openai.APIStatusError, match="usage limit of API key `batches` reached") as refused:
        create_batch(ai, to_jsonl(batch_line(1)), COMPLETION_WINDOW)
    assert refused.value.status_code == 412
    other = openai_client(first, provider="@m-w")
    assert create_batch(other, to_jsonl(batch_line(1)), COMPLETION_WINDOW).id
    admin.create("/v1/policies/usage-limits", {**policy, "enforcement": "hard"})
    with pytest.raises(openai.APIStatusError, match="hard budget of policy") as unbounded:
        create_batch(other, to_jsonl(batch_line(1)), COMPLETION_WINDOW)
    assert unbounded.value.status_code == 412
