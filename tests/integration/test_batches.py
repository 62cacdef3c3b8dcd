"""Files and batches that the gateway stores and runs itself, through OpenAI's SDK. Each line gets one response, even if
processes are killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.integration.batching import (
    CHAT_PATH,
    TABLES,  # noqa: F401 - the fixture `admin` reads it here
    batch_line,
    create_batch,
    create_workspace,
    openai_client,
    read_output_lines,
    to_jsonl,
    wait_until_ended,
)
from tests.integration.management_client import Client, expect_error
from tests.integration.serving import control_pid, read_metrics
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Mock
    from tests.integration.batching import RestartableGateway

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")


@pytest.fixture(scope="module")
def caller(admin: Client) -> Client:
    return create_workspace(admin, "batching")


def test_file_is_stored_shown_listed_and_deleted(caller: Client):
    ai = openai_client(caller)
    content = b"\x00\xff one\r\n" * 40_000
    created = ai.files.create(file=("a b.jsonl", content), purpose="batch")
    assert created.id.startswith("gw_file_")
    assert (created.bytes, created.filename, created.purpose, created.status) == (
        len(content),
        "a b.jsonl",
        "batch",
        "processed",
    )
    assert ai.files.retrieve(created.id).expires_at == created.created_at + 30 * 24 * 3600
    assert ai.files.content(created.id).read() == content
    for purpose in ("user_data", "evals", "assistants", "fine-tune"):
        remaining = ai.files.create(file=("p", b"1"), purpose=purpose)
        assert (remaining.purpose, ai.files.delete(remaining.id).deleted) == (purpose, True)
    other = ai.files.create(file=("b", b"2"), purpose="vision", expires_after={"anchor": "created_at", "seconds": 3600})
    assert other.expires_at == other.created_at + 3600
    assert [file.id for file in ai.files.list()][:2] == [other.id, created.id]
    assert [file.id for file in ai.files.list(limit=1)][:2] == [other.id, created.id]
    assert [file.id for file in ai.files.list(purpose="vision")] == [other.id]
    expect_error(caller.post("/v1/files", {}), 400, "AB01")
    with pytest.raises(openai.RateLimitError, match="workspace_bytes"):
        ai.files.create(file=("c", b"x" * 100_000), purpose="batch")
    for file in (created, other):
        assert ai.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            ai.files.retrieve(file.id)


def test_invalid_file_form_is_rejected_with_the_field(caller: Client):
    ai = openai_client(caller)
    purpose: Any = "anything"
    with pytest.raises(openai.BadRequestError, match="purpose"):
        ai.files.create(file=("a", b"1"), purpose=purpose)
    with pytest.raises(openai.BadRequestError, match="seconds"):
        ai.files.create(file=("a", b"1"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7})


def test_runs_each_line_as_a_request_and_returns_lines(caller: Client, provider: Mock):
    ai = openai_client(caller, provider="@m-batching", metadata='{"job":"nightly"}')
    lines = [batch_line(number) for number in range(30)] + [batch_line(30, model="gpt-mock?status=400")]
    batch = create_batch(
        ai, to_jsonl(*lines[:10]) + b"\n\r\n" + to_jsonl(*lines[10:]).rstrip(b"\n"), metadata={"a": "b"}
    )
    assert batch.id.startswith("gw_batch_")
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    batch = wait_until_ended(ai, batch.id)
    assert (batch.status, batch.request_counts.total) == ("completed", 31)
    assert batch.in_progress_at
    assert batch.finalizing_at
    assert batch.completed_at
    assert (batch.request_counts.completed, batch.request_counts.failed) == (30, 1)
    good, bad = read_output_lines(ai, batch.output_file_id), read_output_lines(ai, batch.error_file_id)
    assert list(good) == [f"line-{number}" for number in range(30)]
    first = good["line-0"]
    assert (first["response"]["status_code"], first["error"]) == (200, None)
    assert first["response"]["body"]["object"] == "chat.completion"
    assert first["id"].startswith("batch_req_")
    assert bad["line-30"]["response"]["status_code"] == 400
    raw = caller.get(f"/v1/batches/{batch.id}/output")
    assert raw.body == ai.files.content(batch.output_file_id).read()
    received = [entry for entry in provider.ledger() if entry["path"] == CHAT_PATH]
    assert len(received) == 31

    def line_records() -> list[dict[str, Any]] | None:
        records = [record for record in caller.gateway.records() if record["trace_id"] == batch.id]
        return records if len(records) >= 31 else None

    records = wait_for("the records of the lines", line_records)
    assert len(records) == 31
    assert all(list(record["metadata"].values()) == ["nightly"] for record in records)
    assert read_metrics(caller.gateway)["penstock_batch_lines_answered_total"] >= 30
    assert batch.id in [item.id for item in openai_client(caller).batches.list(limit=1)]


def test_output_expires_as_the_batch_requests(caller: Client):
    ai = openai_client(caller, provider="@m-batching")
    life = {"anchor": "created_at", "seconds": 3600}
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1)), output_expires_after=life).id)
    output, body = ai.files.retrieve(batch.output_file_id), ai.files.retrieve(batch.input_file_id)
    assert output.expires_at == output.created_at + 3600
    assert body.expires_at == body.created_at + 30 * 24 * 3600


def test_batch_options_override_those_of_its_request(caller: Client, provider: Mock):
    ai = openai_client(caller)
    nameless = batch_line(1)
    del nameless["body"]["model"]
    options = {"x-gateway-provider": "@m-batching", "x-portkey-trace-id": "mine"}
    batch = create_batch(ai, to_jsonl(nameless), extra_body={"model": "gpt-other", "gateway_options": options})
    assert wait_until_ended(ai, batch.id).request_counts.completed == 1
    assert [entry["model"] for entry in provider.ledger()] == ["gpt-other"]
    for name, value in [("authorization", "x"), ("x-gateway-api-key", "x"), ("x-gateway-metadata", "a\nb")]:
        with pytest.raises(openai.BadRequestError, match=name):
            create_batch(ai, to_jsonl(batch_line(1)), extra_body={"gateway_options": {name: value}})


def test_retries_lines_that_may_still_succeed(caller: Client, provider: Mock):
    ai = openai_client(caller, provider="@m-batching")
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1, model="gpt-mock?status=500"))).id)
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)
    assert batch.output_file_id is None
    assert read_output_lines(ai, batch.error_file_id)["line-1"]["response"]["status_code"] == 500
    assert len(provider.ledger()) == 2
    with pytest.raises(openai.NotFoundError, match="no output: it is completed"):
        ai.get(f"/batches/{batch.id}/output", cast_to=object)


INVALID_FILES = {
    "invalid_json_line": b"{",
    "invalid_line": b'{"custom_id":1,"method":"POST","url":"/","body":{}}\n[]',
    "duplicate_custom_id": to_jsonl(batch_line(1), batch_line(1)),
    "invalid_url": to_jsonl({**batch_line(1), "url": "/v1/embeddings"}),
    "invalid_method": to_jsonl({**batch_line(1), "method": "GET"}),
    "invalid_custom_id": to_jsonl({**batch_line(1), "custom_id": ""}),
    "invalid_body": to_jsonl(batch_line(1, stream=True)),
    "missing_model": to_jsonl(batch_line(1, model=None)),
    "line_too_long": to_jsonl(batch_line(1, "x" * 3000)),
    "too_many_lines": to_jsonl(*map(batch_line, range(61))),
    "empty_file": b"\n \n",
}


def test_invalid_file_fails_with_its_lines_before_sending(caller: Client, provider: Mock):
    ai = openai_client(caller, provider="@m-batching")
    for code, content in INVALID_FILES.items():
        batch = wait_until_ended(ai, create_batch(ai, content).id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", code), (code, batch)
        assert batch.errors.data[0].message
    begun_at = wait_until_ended(
        ai, create_batch(ai, to_jsonl(batch_line(1)) + b"\xff\n" + to_jsonl(batch_line(2)) + b"{}").id
    )
    assert [(error.code, error.line) for error in begun_at.errors.data] == [
        ("invalid_json_line", 2),
        ("invalid_line", 4),
    ]
    assert begun_at.errors.data[1].param is None
    assert provider.ledger() == []


def test_invalid_batch_is_rejected_with_the_field(caller: Client):
    good = {"input_file_id": "gw_file_x", "endpoint": CHAT_PATH, "completion_window": "immediate"}
    for field, value in [("endpoint", "/v1/other"), ("completion_window", "1h"), ("metadata", {"a": 1}), ("other", 1)]:
        expect_error(caller.post("/v1/batches", {**good, field: value}), 400, "AB01", field)
    expect_error(caller.post("/v1/batches", good), 404, "AB08", "gw_file_x")
    for seconds in (7, 10**9):
        life = {"anchor": "created_at", "seconds": seconds}
        expect_error(
            caller.post("/v1/batches", {**good, "output_expires_after": life}), 400, "AB01", "output_expires_after"
        )
    ai = openai_client(caller)
    picture = ai.files.create(file=("a", b"1"), purpose="vision")
    expect_error(caller.post("/v1/batches", {**good, "input_file_id": picture.id}), 400, "AB01", "input_file_id")


def test_batches_of_another_workspace_are_not_found(admin: Client, caller: Client):
    ai, other = openai_client(caller, provider="@m-batching"), create_workspace(admin, "elsewhere")
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1))).id)
    for path in (f"/v1/batches/{batch.id}", f"/v1/batches/{batch.id}/output", f"/v1/files/{batch.input_file_id}"):
        expect_error(other.get(path), 404, "AB08")
    expect_error(other.post(f"/v1/batches/{batch.id}/cancel", {}), 404, "AB08")
    expect_error(other.delete(f"/v1/files/{batch.input_file_id}"), 404, "AB08")
    body = {"input_file_id": batch.input_file_id, "endpoint": CHAT_PATH, "completion_window": "immediate"}
    expect_error(other.post("/v1/batches", body), 404, "AB08")
    assert (openai_client(other).files.list().data, openai_client(other).batches.list().data) == ([], [])
    expect_error(admin.get("/v1/files"), 403, "AB03", "completions.write")
    expect_error(Client(caller.gateway, "nobody").get("/v1/batches"), 401, "AB05")


def test_every_route_requires_a_workspace_key_that_calls_models(admin: Client, caller: Client):
    ai = openai_client(caller, provider="@m-batching")
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1))).id)
    workspace = next(row["id"] for row in admin.read("/v1/admin/workspaces")["data"] if row["name"] == "batching")
    weak = admin.with_new_key(workspace_id=workspace, scopes=["logs.list"])
    fields = {"input_file_id": batch.input_file_id, "endpoint": CHAT_PATH, "completion_window": "immediate"}
    item, file = f"/v1/batches/{batch.id}", f"/v1/files/{batch.input_file_id}"
    routes: list[tuple[str, str, object]] = [
        ("GET", "/v1/batches", None),
        ("POST", "/v1/batches", fields),
        ("GET", item, None),
        ("GET", f"{item}/output", None),
        ("POST", f"{item}/cancel", {}),
        ("PUT", f"/v2/batches/{batch.id}", {"internal_output_file_id": batch.output_file_id}),
        ("GET", "/v1/files", None),
        ("POST", "/v1/files", {}),
        ("GET", file, None),
        ("GET", f"{file}/content", None),
        ("DELETE", file, None),
    ]
    for method, path, body in routes:
        expect_error(Client(admin.gateway, "nobody").send(method, path, body), 401, "AB05")
        for client in (admin, weak):
            expect_error(client.send(method, path, body), 403, "AB03", "completions.write")
    assert ai.files.retrieve(batch.input_file_id)


def test_output_file_of_a_batch_can_be_replaced(caller: Client):
    ai = openai_client(caller, provider="@m-batching")
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1))).id)
    checked = openai_client(caller).files.create(file=("checked", b'{"custom_id":"line-1"}\n'), purpose="batch")
    changed = caller.put(f"/v2/batches/{batch.id}", {"internal_output_file_id": checked.id}).json()
    assert (changed["output_file_id"], changed["status"]) == (checked.id, "completed")
    assert caller.get(f"/v1/batches/{batch.id}/output").body == b'{"custom_id":"line-1"}\n'
    expect_error(caller.put(f"/v2/batches/{batch.id}", {"internal_output_file_id": "gw_file_x"}), 404, "AB08")
    expect_error(caller.put(f"/v2/batches/{batch.id}", {"output": 1}), 400, "AB01", "output")


def test_cancelling_waits_for_running_lines_and_sends_no_more(caller: Client, provider: Mock):
    ai = openai_client(caller, provider="@m-batching")
    batch = create_batch(ai, to_jsonl(*(batch_line(number, model="gpt-mock?first_ms=400") for number in range(60))))
    wait_for("the first lines", lambda: provider.ledger() or None)
    expect_error(caller.put(f"/v2/batches/{batch.id}", {"internal_output_file_id": batch.input_file_id}), 409, "AB07")
    with pytest.raises(openai.BadRequestError, match="is the input of an unfinished batch"):
        ai.files.delete(batch.input_file_id)
    assert ai.batches.cancel(batch.id).status == "cancelling"
    batch = wait_until_ended(ai, batch.id)
    done = batch.request_counts.completed
    assert (batch.status, batch.request_counts.failed) == ("cancelled", 0)
    assert 0 < done < 60
    assert len(read_output_lines(ai, batch.output_file_id)) == done == len(provider.ledger())
    assert ai.batches.cancel(batch.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        ai.batches.cancel(wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1))).id).id)


def test_workspace_with_files_and_batches_needs_force_to_delete(admin: Client):
    caller = create_workspace(admin, "going")
    ai = openai_client(caller, provider="@m-going")
    batch = create_batch(ai, to_jsonl(*(batch_line(number, model="gpt-mock?first_ms=400") for number in range(60))))
    workspace = next(row for row in admin.read("/v1/admin/workspaces")["data"] if row["name"] == "going")
    path = f"/v1/workspaces/{workspace['id']}"
    expect_error(admin.delete(path, {"name": "going"}), 409, "AB07", "1 files", "1 batches")
    ai.batches.cancel(batch.id)
    wait_until_ended(ai, batch.id)
    response = admin.delete(path, {"name": "going"})
    expect_error(response, 409, "AB07", "files")
    assert "batches" not in response.body.decode()
    assert admin.delete(path, {"name": "going", "force_delete": True}).status == 200


def completed_counts(mock: Mock) -> Counter[str]:
    """Returns how often the provider answered each line."""
    return Counter(entry["model"] for entry in mock.ledger() if entry["outcome"] == "complete")


@pytest.mark.parametrize("what", ["control", "all"])
def test_batch_resumes_after_kill_9_without_repeating_lines(
    start_restartable: Callable[..., RestartableGateway], mock: Mock, what: str
):
    restartable_gateway = start_restartable(concurrency=2)
    caller = create_workspace(Client(restartable_gateway.gateway), "w")
    lines = [batch_line(number, model=f"gpt-{number}?first_ms=30") for number in range(40)]
    batch = create_batch(openai_client(caller, provider="@m-w"), to_jsonl(*lines))

    def completed_count() -> int:
        return caller.read(f"/v1/batches/{batch.id}")["request_counts"]["completed"]

    before = wait_for("some lines", lambda: number if (number := completed_count()) > 5 else None)
    if what == "control":
        os.kill(control_pid(restartable_gateway.gateway), signal.SIGKILL)
    else:
        restartable_gateway.kill()
        restartable_gateway.start()
    ai = openai_client(restartable_gateway.client_with_key(caller.key))
    done = wait_until_ended(ai, batch.id)
    assert done.error_file_id is None, ai.files.content(done.error_file_id).text
    assert (done.status, done.request_counts.completed) == ("completed", 40)
    assert list(read_output_lines(ai, done.output_file_id)) == [f"line-{number}" for number in range(40)]
    received = completed_counts(mock)
    # Lines in flight at the kill may have been answered without being recorded.
    assert len(received) == 40
    assert sum(received.values()) <= 42
    assert before < 40


def test_lines_that_run_out_of_time_expire(start_restartable: Callable[..., RestartableGateway], mock: Mock):
    restartable_gateway = start_restartable(concurrency=1, window_seconds=2)
    ai = openai_client(create_workspace(Client(restartable_gateway.gateway), "w"), provider="@m-w")
    batch = wait_until_ended(
        ai, create_batch(ai, to_jsonl(*(batch_line(number, model="gpt?first_ms=300") for number in range(30)))).id
    )
    assert batch.status == "expired"
    assert batch.expired_at
    good, rest = read_output_lines(ai, batch.output_file_id), read_output_lines(ai, batch.error_file_id)
    assert 0 < len(good) < 30
    assert (len(good), len(rest)) == (batch.request_counts.completed, batch.request_counts.failed)
    assert {item["error"]["code"] for item in rest.values()} == {"batch_expired"}
    assert len(good) == len(mock.ledger())


def test_deleting_a_key_ends_its_batch_requests(start_restartable: Callable[..., RestartableGateway], mock: Mock):
    restartable_gateway = start_restartable(concurrency=1)
    admin = Client(restartable_gateway.gateway)
    caller = create_workspace(admin, "w")
    workspace = next(row["id"] for row in admin.read("/v1/admin/workspaces")["data"] if row["name"] == "w")
    key = admin.create(
        "/v1/api-keys/workspace/service", {"name": "other", "workspace_id": workspace, "scopes": ["completions.write"]}
    )
    lines = (batch_line(number, model="gpt?first_ms=50") for number in range(30))
    batch = create_batch(
        openai_client(Client(restartable_gateway.gateway, key["key"]), provider="@m-w"), to_jsonl(*lines)
    )
    wait_for("a line", lambda: mock.ledger() or None)
    assert admin.delete(f"/v1/api-keys/{key['id']}").status == 200
    ai = openai_client(caller)
    batch = wait_until_ended(ai, batch.id)
    assert batch.request_counts.failed > 0
    refusals = read_output_lines(ai, batch.error_file_id).values()
    assert {refusal["response"]["status_code"] for refusal in refusals} == {401}


def test_old_files_and_batches_are_deleted_and_counted(
    start_restartable: Callable[..., RestartableGateway], mock: Mock
):
    restartable_gateway = start_restartable()
    restartable_gateway.tables["files"] = {"retention_seconds": 1}
    restartable_gateway.gateway.stop()
    restartable_gateway.start()
    caller = create_workspace(Client(restartable_gateway.gateway), "w")
    ai = openai_client(caller, provider="@m-w")
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(batch_line(1))).id)
    wait_for("its end", lambda: caller.get(f"/v1/files/{batch.output_file_id}").status == 404 or None)
    assert mock.ledger()
    assert len(list((restartable_gateway.folder / "files").iterdir())) == 2
    restartable_gateway.gateway.stop()
    restartable_gateway.start()
    wait_for(
        "the purge", lambda: read_metrics(restartable_gateway.gateway)["penstock_files_deleted_total"] == 2 or None
    )
    assert list((restartable_gateway.folder / "files").iterdir()) == []
    expect_error(restartable_gateway.client_with_key(caller.key).get(f"/v1/batches/{batch.id}"), 404, "AB08")


def test_lines_are_checked_by_guardrails(caller: Client, provider: Mock):
    guardrail = {"deny": True, "contains": {"words": ["canary"], "operator": "none"}}
    redact = {"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": True}}
    config = json.dumps({"provider": "@m-batching", "input_guardrails": [guardrail, redact]})
    ai = openai_client(caller, config=config, provider="@m-batching")
    provider.clear_ledger()
    lines = [batch_line(1, "a canary"), batch_line(2, "write to ann@example.com")]
    batch = wait_until_ended(ai, create_batch(ai, to_jsonl(*lines)).id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 1, 1)
    denied = read_output_lines(ai, batch.error_file_id)["line-1"]["response"]
    assert (denied["status_code"], denied["body"]["error"]["type"]) == (446, "hooks_failed")
    assert "ann@example.com" not in json.dumps(provider.ledger())
    first, second = batch.hook_results["before_request_hooks"]
    assert (first["lines"], first["denied_lines"], first["deny"], first["verdict"]) == (2, 1, True, False)
    assert (second["transformed"], second["verdict"]) == (True, True)
