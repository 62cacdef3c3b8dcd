"""Batches that a provider runs for the gateway: one shape in and out, in OpenAI's way and in Anthropic's, across restarts."""

from __future__ import annotations

import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.integration.batch_provider import BatchProvider
from tests.integration.batching import CHAT, Restarted, answers, begun, ended, jsonl, line, sdk, workspace
from tests.integration.managed import Client, refused
from tests.integration.serving import edges
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Mock

pytestmark = pytest.mark.usefixtures("closed")
DAY = "24h"
NUMBERS = itertools.count(1)


@pytest.fixture
def there() -> Iterator[BatchProvider]:
    with BatchProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, provider: Mock) -> Iterator[Restarted]:
    trusted: dict[str, object] = {"trusted_custom_hosts": ["127.0.0.1"]}
    started = Restarted(tmp_path_factory.mktemp("here"), provider, upstream=trusted, poll_ms=30)
    yield started
    print(started.gateway.program.output())
    started.gateway.stop()


def calling(here: Restarted, there: BatchProvider, kind: str) -> Client:
    """A caller in a workspace of its own, whose provider is `@m-w`."""
    return workspace(Client(here.gateway), f"w{next(NUMBERS)}", kind, "m-w", custom_host=there.url)


@pytest.fixture(params=["openai", "anthropic"])
def caller(request: pytest.FixtureRequest, here: Restarted, there: BatchProvider) -> Client:
    return calling(here, there, request.param)


def is_anthropics(there: BatchProvider) -> bool:
    return "m-1" in there.batches


def at_the_provider(there: BatchProvider) -> None:
    wait("the batch at its provider", lambda: there.batches or None)


def _recorded(here: Restarted, batch_id: str, count: int) -> list[dict[str, Any]] | None:
    found = [one for one in here.gateway.records() if one["trace_id"] == batch_id]
    found = [one for one in found if one["operation"] == "chatComplete"]
    return found if len(found) == count else None


def test_a_provider_runs_a_batch_and_its_answers_come_in_openais_shape(
    caller: Client, here: Restarted, there: BatchProvider
):
    ai = sdk(caller, provider="@m-w")
    there.busy = 2
    lines = [{**line(number, f"word {number}"), "custom_id": f"mine: {number}"} for number in range(1, 5)]
    batch = begun(ai, jsonl(*lines), DAY, metadata={"a": "b"})
    at_the_provider(there)
    assert ai.batches.retrieve(batch.id).status == "in_progress"
    name = next(iter(there.batches))
    wait("its name there", lambda: caller.shown(f"/v1/batches/{batch.id}")["provider_job_id"] == name or None)
    there.finish(good=3)
    batch = ended(ai, batch.id)
    assert (batch.status, batch.completion_window, batch.metadata) == ("completed", DAY, {"a": "b"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    good, bad = answers(ai, batch.output_file_id), answers(ai, batch.error_file_id)
    assert list(good) == ["mine: 1", "mine: 2", "mine: 3"]
    first = good["mine: 1"]["response"]
    assert (first["status_code"], first["body"]["object"], first["body"]["model"]) == (
        200,
        "chat.completion",
        "gpt-mock",
    )
    assert list(bad) == ["mine: 4"]
    if is_anthropics(there):
        assert first["body"]["choices"][0]["message"]["content"] == "to word 1"
        assert first["body"]["usage"]["total_tokens"] == 5
        assert (bad["mine: 4"]["response"]["status_code"], there.credentials) == (529, {"sk-provider"})
        assert "busy" in bad["mine: 4"]["response"]["body"]["error"]["message"]
    else:
        assert there.batches["b-1"]["made"]["metadata"] == {"gateway_batch": batch.id}
        assert (bad["mine: 4"]["response"]["status_code"], there.credentials) == (400, {"Bearer sk-provider"})
    recorded = wait("a record of each line", lambda: _recorded(here, batch.id, 4))
    assert sorted(record["response_status_code"] for record in recorded)[:3] == [200] * 3
    assert {record["ai_model"] for record in recorded} == {"gpt-mock"}
    # What was put together to be sent, and what came back, is gone.
    assert not [file for file in (caller.gateway.folder / "files").iterdir() if file.suffix]


def test_a_batch_that_was_handed_over_is_not_handed_over_again_after_kill_9(
    caller: Client, here: Restarted, there: BatchProvider
):
    batch = begun(sdk(caller, provider="@m-w"), jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    path = "/messages/batches" if is_anthropics(there) else "/batches"
    name = "m-1" if is_anthropics(there) else "b-1"
    wait("a question after it", lambda: there.count("GET", f"{path}/{name}") or None)
    here.kill()
    there.finish()
    here.start()
    ai = sdk(here.caller(caller.key))
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert there.count("POST", path) == 1


def test_a_batch_is_not_handed_over_twice_where_the_providers_yes_was_never_heard(
    here: Restarted, there: BatchProvider
):
    caller = calling(here, there, "openai")
    there.mute.set()
    batch = begun(sdk(caller, provider="@m-w"), jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    here.kill()
    there.mute.clear()
    there.finish()
    here.start()
    ai = sdk(here.caller(caller.key))
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert there.count("POST", "/batches") == 1


def test_a_batch_outlives_the_worker_that_handed_it_over(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "openai")
    there.mute.set()
    batch = begun(sdk(caller, provider="@m-w"), jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    (worker,) = edges(here.gateway)
    os.kill(worker, signal.SIGKILL)
    there.mute.clear()
    there.finish()
    wait("another worker", lambda: edges(here.gateway) != [worker] or None)
    batch = ended(sdk(caller), batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors
    assert there.count("POST", "/batches") == 1


def test_a_line_that_the_provider_left_out_is_named_and_one_that_it_made_up_is_not(
    caller: Client, there: BatchProvider
):
    ai = sdk(caller, provider="@m-w")
    batch = begun(ai, jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    there.finish()
    with there.lock:
        (made,) = there.batches.values()
        others = [{**made["lines"][1], "custom_id": f"line-{number}"} for number in ("77", "0", "-1", "9" * 30)]
        made.update(good=made["lines"][:1] + others)
    batch = ended(ai, batch.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 1, 1), batch.errors
    assert list(answers(ai, batch.output_file_id)) == ["line-1"]
    bad = answers(ai, batch.error_file_id)
    assert {name: answer["error"]["code"] for name, answer in bad.items()} == {"line-2": "no_answer"}


def test_cancelling_asks_the_provider_and_gives_what_there_was(caller: Client, there: BatchProvider):
    ai = sdk(caller, provider="@m-w")
    batch = begun(ai, jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    name = next(iter(there.batches))
    path = f"{'/messages' if is_anthropics(there) else ''}/batches/{name}"
    wait("a question after it", lambda: there.count("GET", path) or None)
    assert ai.batches.cancel(batch.id).status == "cancelling"
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 1)
    assert list(answers(ai, batch.output_file_id)) == ["line-1"]
    assert there.count("POST", f"{path}/cancel") == 1


def test_what_a_provider_says_of_a_batch_that_failed_is_passed_on(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "openai")
    ai = sdk(caller, provider="@m-w")
    batch = begun(ai, jsonl(line(1)), DAY)
    at_the_provider(there)
    there.finish("failed")
    batch = ended(ai, batch.id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "provider_failed")
    assert batch.errors.data[0].message == "it did not please"


def test_lines_that_a_provider_cannot_be_asked_fail_before_they_are_sent(here: Restarted, there: BatchProvider):
    ai = sdk(calling(here, there, "anthropic"), provider="@m-w")
    wrong = [line(1, messages=7), line(2, model="@other/claude"), line(3)]
    batch = ended(ai, begun(ai, jsonl(*wrong), DAY).id)
    found = [(error.code, error.line) for error in batch.errors.data]
    assert (batch.status, found) == ("failed", [("untranslatable", 1), ("invalid_model", 2)])
    assert there.asked == []


def test_a_model_that_may_not_be_used_is_not_asked_for_in_a_batch_either(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "openai")
    slug = f"m-w{next(NUMBERS) - 1}"
    disabled = {"models": [{"slug": "gpt-secret", "enabled": False}]}
    assert Client(here.gateway).put(f"/v1/integrations/{slug}/models", disabled).status == 200
    ai = sdk(caller, provider="@m-w")
    batch = ended(ai, begun(ai, jsonl(line(1), line(2, model="gpt-secret")), DAY).id)
    assert [(error.code, error.line) for error in batch.errors.data] == [("model_not_allowed", 2)]
    assert there.asked == []


def test_where_one_model_alone_may_be_used_neither_files_nor_batches_name_another(
    here: Restarted, there: BatchProvider
):
    caller = calling(here, there, "openai")
    slug = f"m-w{next(NUMBERS) - 1}"
    allowed = {"models": [{"slug": "gpt-mock", "enabled": True, "is_custom": True}], "allow_all_models": False}
    assert Client(here.gateway).put(f"/v1/integrations/{slug}/models", allowed).status == 200
    ai = sdk(caller, provider="@m-w")
    wrong = jsonl(line(1), *[line(number, "word" * 200, model="gpt-other") for number in range(2, 400)])

    def uploaded() -> str | None:
        try:
            ai.files.create(file=("lines.jsonl", wrong), purpose="batch")
        except openai.PermissionDeniedError as error:
            return str(error.code)
        return None

    assert wait("the models at the edge", uploaded) == "model_not_allowed"
    with there.lock:
        there.files.clear()
        there.files["file-in"] = wrong
        there.asked.clear()
    made: dict[str, Any] = {"endpoint": CHAT, "completion_window": DAY}
    with pytest.raises(openai.PermissionDeniedError) as refusal:
        ai.batches.create(input_file_id="file-in", **made)
    assert refusal.value.code == "model_not_allowed"
    assert there.asked == [("GET", "/files/file-in/content")]
    there.asked.clear()
    with pytest.raises(openai.PermissionDeniedError):
        ai.fine_tuning.jobs.create(model="gpt-other", training_file="file-in")
    # Which model its provider takes where none is named nobody here knows.
    itself = Client(here.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    for path, asked in (
        ("/v1/fine_tuning/jobs", {"training_file": "file-in"}),
        ("/v1/responses", {"prompt": {"id": "pmpt_1"}}),
        ("/v1/images/generations", {"prompt": "a cat"}),
    ):
        answer = itself.post(path, asked)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "model_not_allowed"), path
    assert there.asked == []
    file = ai.files.create(file=("lines.jsonl", jsonl(line(1), line(2))), purpose="batch")
    assert ai.batches.create(input_file_id=file.id, **made).id == "b-1"
    # Those of the gateway itself go the same way.
    there.batches.clear()
    batch = begun(ai, jsonl(line(1), line(2), line(3)), DAY)
    at_the_provider(there)
    there.finish()
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3), batch.errors


def test_where_one_model_alone_may_be_used_batches_of_messages_are_made(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "anthropic")
    slug = f"m-w{next(NUMBERS) - 1}"
    allowed = {"models": [{"slug": "gpt-mock", "enabled": True, "is_custom": True}], "allow_all_models": False}
    assert Client(here.gateway).put(f"/v1/integrations/{slug}/models", allowed).status == 200
    ai = sdk(caller, provider="@m-w")
    batch = begun(ai, jsonl(line(1), line(2)), DAY)
    at_the_provider(there)
    there.finish()
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors


def test_who_runs_a_batch_must_be_known_before_it_is_made(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "groq")
    file = sdk(caller).files.create(file=("a", jsonl(line(1))), purpose="batch")
    made: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": DAY}
    refused(caller.post("/v1/batches", made), 400, "AB01", "completion_window", "x-gateway-provider")
    options = {"x-gateway-provider": "@nobody"}
    refused(caller.post("/v1/batches", {**made, "gateway_options": options}), 404, "AB02", "nobody")
    options = {"x-gateway-virtual-key": "m-w"}
    refused(caller.post("/v1/batches", {**made, "gateway_options": options}), 400, "AB01", "groq", "anthropic")


def test_who_has_openais_batches_runs_them_by_openais_sdk_and_for_the_gateway(here: Restarted, there: BatchProvider):
    caller = calling(here, there, "kluster-ai")
    ai = sdk(caller, provider="@m-w")
    lines = jsonl(line(1), line(2))
    file = ai.files.create(file=("lines.jsonl", lines), purpose="batch")
    assert (file.id, there.files["file-in"]) == ("file-in", lines.strip(b"\n") + b"\n")
    made: dict[str, Any] = {"endpoint": CHAT, "completion_window": DAY, "metadata": {"why": "a test"}}
    batch = ai.batches.create(input_file_id=file.id, **made)
    assert there.batches["b-1"]["made"] == {"input_file_id": "file-in", **made}
    there.finish()
    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)
    assert list(answers(ai, batch.output_file_id)) == ["line-1", "line-2"]
    assert ai.batches.cancel(batch.id).status == "cancelled"
    there.batches.clear()
    batch = begun(ai, lines, DAY)
    at_the_provider(there)
    there.finish()
    batch = ended(ai, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 2), batch.errors


@pytest.mark.parametrize("name", ["gateway", "portkey"])
def test_the_gateways_own_files_and_batches_are_asked_for_by_its_name_or_that_of_another(
    name: str, here: Restarted, there: BatchProvider
):
    # As who comes from another gateway has it in each request.
    base, there_is = f"{here.gateway.base_url}/v1", {"x-portkey-provider": name}
    with openai.OpenAI(
        api_key=calling(here, there, "openai").key, base_url=base, default_headers=there_is, max_retries=0
    ) as ai:
        file = ai.files.create(file=("lines.jsonl", jsonl(line(1))), purpose="batch")
        assert (file.id[:8], [one.id for one in ai.files.list()]) == ("gw_file_", [file.id])
        options = {"gateway_options": {"x-portkey-provider": "@m-w"}}
        batch = ai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=DAY, extra_body=options)
        at_the_provider(there)
        there.finish()
        assert (ended(ai, batch.id).status, [one.id for one in ai.batches.list()]) == ("completed", [batch.id])


def test_the_output_of_a_batch_that_its_provider_keeps_is_one_question(here: Restarted):
    caller = workspace(Client(here.gateway), "mocked", slug="m-w")
    ai = sdk(caller, provider="@m-w")
    assert ai.batches.retrieve("b-1").status == "completed"
    assert (
        Client(here.gateway, caller.key, {"x-gateway-provider": "@m-w"})
        .get("/v1/batches/b-1/output")
        .body.endswith(b"\n")
    )
    jobs = ai.fine_tuning.jobs
    assert jobs.create(model="m", training_file="file-1").status == "running"
    assert (jobs.retrieve("ft-1").id, jobs.cancel("ft-1").id, jobs.list().data) == ("ft-1", "ft-1", [])
    assert jobs.list_events("ft-1").data[0].message == "ft-1"
    assert jobs.checkpoints.list("ft-1", limit=3).data[0].fine_tuning_job_id == "ft-1"
    wanted = {"listFinetuneEvents", "listFinetuneCheckpoints", "retrieveFileContent"}
    wait("the records", lambda: wanted <= {record["operation"] for record in here.gateway.records()} or None)
    with pytest.raises(openai.BadRequestError):
        sdk(caller).fine_tuning.jobs.list()
