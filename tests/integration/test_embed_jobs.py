"""Files and batches of Cohere's own in OpenAI's shape: datasets of texts, and the jobs that embed them."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from tests.integration.batching import CHAT, Restarted, jsonl, line, refusal, sdk, workspace
from tests.integration.bucket_provider import BucketProvider
from tests.integration.managed import Client, good
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Mock

pytestmark = pytest.mark.usefixtures("closed")
NUMBERS = itertools.count(1)
MODEL, EMBEDDINGS = "embed-english-v3.0", "/v1/embeddings"


@pytest.fixture
def there() -> Iterator[BucketProvider]:
    with BucketProvider("") as provider:
        provider.validation = ["validated"]
        yield provider
    assert provider.refused == []


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, provider: Mock) -> Iterator[Restarted]:
    trusted: dict[str, object] = {"trusted_custom_hosts": ["127.0.0.1"]}
    started = Restarted(tmp_path_factory.mktemp("here"), provider, upstream=trusted)
    yield started
    print(started.gateway.program.output())
    started.gateway.stop()


@pytest.fixture
def caller(here: Restarted, there: BucketProvider) -> Client:
    return workspace(Client(here.gateway), f"e{next(NUMBERS)}", "cohere", "m-w", custom_host=there.url)


@pytest.fixture
def ai(caller: Client) -> openai.OpenAI:
    return sdk(caller, provider="@m-w")


def text(number: int, **body: object) -> dict[str, Any]:
    asked = {"model": MODEL, "input": f"text {number}", **body}
    return {"custom_id": f"t-{number}", "method": "POST", "url": EMBEDDINGS, "body": asked}


def uploaded(ai: openai.OpenAI, *rows: object) -> Any:
    return ai.files.create(file=("my lines.jsonl", jsonl(*rows)), purpose="batch")


def made(ai: openai.OpenAI, file_id: str, **more: object) -> Any:
    said: dict[str, Any] = {"model": MODEL, **more}
    return ai.batches.create(
        input_file_id=file_id, endpoint=EMBEDDINGS, completion_window="24h", extra_body=said, metadata={"team": "red"}
    )


def test_texts_are_embedded_by_a_job_once_cohere_has_looked_at_them(ai: openai.OpenAI, there: BucketProvider):
    there.validation = ["queued", "processing", "validated"]
    file = uploaded(ai, text(1), text(2, input=["text 2"], encoding_format="float"))
    assert (file.status, file.filename, file.purpose) == ("uploaded", "my lines.jsonl", "batch")
    with pytest.raises(openai.BadRequestError, match=f"dataset {file.id} is not validated"):
        made(ai, file.id)
    file = ai.files.wait_for_processing(file.id, poll_interval=0.01)
    assert (file.status, file.bytes > 0) == ("processed", True)
    answer = ai.batches.with_raw_response.create(
        input_file_id=file.id,
        endpoint=EMBEDDINGS,
        completion_window="24h",
        metadata={"team": "red"},
        extra_body={"model": MODEL, "input_type": "clustering", "truncate": "START", "name": "mine"},
    )
    batch = answer.parse()
    assert answer.headers["x-gateway-not-translated"] == "metadata"
    assert (batch.id, batch.status, batch.endpoint, batch.input_file_id) == ("e-1", "validating", EMBEDDINGS, file.id)
    job = {"model": MODEL, "dataset_id": file.id, "input_type": "clustering", "truncate": "START", "name": "mine"}
    assert there.jobs == [job]
    assert there.lines() == [{"custom_id": f"t-{number}", "text": f"text {number}"} for number in (1, 2)]
    assert [(one.id, one.status) for one in ai.batches.list(limit=3)] == [("e-1", "in_progress")]
    there.state = "complete"
    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id, batch.completion_window) == ("completed", "d-out", "24h")


def embedded(number: int, **vectors: list[float]) -> dict[str, Any]:
    """A record as a job of Cohere's writes it."""
    return {"text": f"text {number}", "custom_id": f"t-{number}", "embeddings": vectors}


def test_what_a_job_made_is_told_in_openais_shape(ai: openai.OpenAI, caller: Client, there: BucketProvider):
    batch = made(ai, uploaded(ai, *map(text, range(200))).id)
    output = Client(caller.gateway, caller.key, {"x-gateway-provider": "@m-w"})
    path = f"/v1/batches/{batch.id}/output"
    assert output.get(path).json()["error"]["code"] == "no_output"
    records = [embedded(number, float=[number + 0.5, -0.1] * 200) for number in range(200)]
    records[7]["embeddings"] = {"int8": [1, -2]}
    there.finish("complete", records)
    told = output.get(path)
    rows = [json.loads(row) for row in told.body.splitlines()]
    # A file after the other, of which each has every second one.
    assert [row["custom_id"] for row in rows] == [f"t-{number}" for start in (0, 1) for number in range(start, 200, 2)]
    bodies = {row["custom_id"]: row["response"]["body"] for row in rows}
    assert {row["response"]["status_code"] for row in rows} == {200}
    assert bodies["t-3"]["data"] == [{"object": "embedding", "index": 0, "embedding": [3.5, -0.1] * 200}]
    assert (bodies["t-3"]["object"], bodies["t-3"]["model"]) == ("list", MODEL)
    assert bodies["t-7"]["data"][0]["embedding"] == [1, -2]
    lines = [json.loads(row) for row in ai.files.content("d-out").iter_lines() if row]
    assert lines[4] == {**records[8], "embeddings": {**records[8]["embeddings"], "int8": None}}
    assert len(lines) == 200


def test_what_is_in_a_dataset_that_is_not_good_is_not_told(ai: openai.OpenAI, there: BucketProvider):
    file = uploaded(ai, text(1)).id
    for state, why in (("queued", "once it is `processed`"), ("failed", "it did not please")):
        there.validation, there.has_parts = [state], False
        with pytest.raises(openai.BadRequestError, match=why):
            ai.files.content(file)


def test_files_that_cannot_be_read_are_told_before_anything_is_or_break_off(ai: openai.OpenAI, there: BucketProvider):
    made(ai, uploaded(ai, text(1)).id)
    there.finish("complete", [embedded(number, float=[0.5] * 500) for number in range(40)])
    first, second = (f"{there.signed}&part={number}" for number in (0, 1))
    whole = there.objects[second]
    for broken in (b"<html>", whole[:-1], whole[: len(whole) // 2] + b"\xff" * 40):
        there.objects[second] = broken
        with pytest.raises(httpx2.HTTPError), ai.files.with_streaming_response.content("d-out") as answer:
            list(answer.iter_lines())
    there.objects[first] = b"<html>"
    ai.max_retries = 0
    with pytest.raises(openai.InternalServerError, match="does not begin as Avro"):
        ai.files.content("d-out")


def test_a_job_is_cancelled(ai: openai.OpenAI, there: BucketProvider):
    batch = made(ai, uploaded(ai, text(1)).id)
    ended = ai.batches.cancel(batch.id)
    assert (ended.id, ended.status, ended.input_file_id) == (batch.id, "cancelled", "texts-1")
    assert there.count("POST", "/v1/embed-jobs/e-1/cancel") == 1


def test_files_are_datasets(ai: openai.OpenAI, there: BucketProvider):
    own = {"text": "as it is", "custom_id": "a", "more": 1}
    first, second = uploaded(ai, own), uploaded(ai, text(1))
    assert b'"text": "as it is", "custom_id": "a", "more": 1}' in there.objects[first.id]
    page = ai.files.list(limit=1, purpose="batch")
    assert ([one.id for one in page.data], page.has_more) == ([first.id], True)
    assert [one.id for one in ai.files.list(limit=1)] == [first.id, second.id]
    assert ai.files.delete(first.id).deleted
    assert [one.id for one in ai.files.list()] == [second.id]
    there.validation = ["failed"]
    found = ai.files.wait_for_processing(second.id)
    assert (found.status, found.status_details) == ("error", "it did not please")


def test_what_a_line_says_that_only_the_job_says_is_named(ai: openai.OpenAI, there: BucketProvider):
    row = text(1, dimensions=256, user="u", encoding_format="base64")
    answer = ai.files.with_raw_response.create(file=("a.jsonl", jsonl(row)), purpose="batch")
    assert answer.headers["x-gateway-not-translated"] == "dimensions, user, encoding_format"
    assert there.datasets["texts-1"]["name"] == "a.jsonl"


def test_what_is_no_text_to_embed_is_refused_with_its_line(ai: openai.OpenAI, there: BucketProvider):
    for row, why in (
        (text(2, input=["a", "b"]), "line 2: input must be one text"),
        (text(2, model="embed-other"), "line 2: it is `embed-other`"),
        (line(2, model=MODEL), "line 2"),
    ):
        with pytest.raises(openai.BadRequestError, match=why):
            uploaded(ai, text(1), row)
    with pytest.raises(openai.BadRequestError, match="must be batch"):
        ai.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match=f"batches of this provider are of {EMBEDDINGS}"):
        ai.batches.create(input_file_id="a", endpoint=CHAT, completion_window="24h", extra_body={"model": MODEL})
    assert there.asked == []


def test_where_some_models_alone_may_be_used_no_text_is_embedded_by_another(here: Restarted, there: BucketProvider):
    name, admin = f"e{next(NUMBERS)}", Client(here.gateway)
    ai = sdk(workspace(admin, name, "cohere", "m-w", custom_host=there.url), provider="@m-w")
    allowed = {"models": [{"slug": MODEL, "enabled": True, "is_custom": True}], "allow_all_models": False}
    good(admin.put(f"/v1/integrations/m-{name}/models", allowed))
    file, no = uploaded(ai, text(1)).id, (403, "model_not_allowed")
    wait("the models at the edge", lambda: refusal(lambda: made(ai, file, model="embed-other")) == no or None)
    there.asked.clear()
    there.jobs.clear()
    assert refusal(lambda: uploaded(ai, text(1, model="embed-other"))) == no
    assert refusal(lambda: made(ai, file, model="embed-other")) == no
    assert refusal(lambda: made(ai, file, model=None))[0] == 400
    assert there.asked == []
    # Whatever is said beside it, the job is of the model that was looked at.
    made(ai, file, provider_options={"model": "embed-other"})
    assert [job["model"] for job in there.jobs] == [MODEL]
