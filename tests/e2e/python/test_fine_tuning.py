"""Fine-tuning through the official OpenAI SDK for Python, at OpenAI itself and at providers whose jobs have another
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import openai
import pytest

from tests.e2e.python.tuning_provider import CHECKPOINTS, EVENTS, KEY_ID, MADE, REGION, TOKEN, FakeFineTuningProvider
from tests.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "pk-e2e-0123456789"
ROLE_ARN = "arn:aws:iam::123456789012:role/tuner"


class ProviderCase(NamedTuple):
    """Saved options of a provider, and the job states that it reports."""

    slug: str
    options: dict[str, str]
    model: str
    training_file: str
    # Status of a new job.
    initial_status: str
    # Status of a job that is retrieved later.
    retrieved_status: str
    has_checkpoints: bool = False
    prefix: str = ""


PROVIDER_CASES = {
    "openai": ProviderCase(
        "openai", {}, "gpt-4o-mini", "file-1", "queued", "queued", has_checkpoints=True, prefix="/v1"
    ),
    "bedrock": ProviderCase(
        "bedrock",
        {
            "aws_region": REGION,
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": "aws-secret",
            "aws_s3_bucket": "results",
            "aws_customization_role_arn": ROLE_ARN,
        },
        "amazon.nova-lite-v1:0:300k",
        "s3://data/a.jsonl",
        "queued",
        "running",
    ),
    "vertex-ai": ProviderCase(
        "vertex-ai",
        {"vertex_region": "europe-west4", "vertex_project_id": "p-1"},
        "gemini-2.0-flash-001",
        "gs://data/a.jsonl",
        "running",
        "running",
        has_checkpoints=True,
    ),
    "fireworks-ai": ProviderCase(
        "fireworks-ai",
        {"fireworks_account_id": "acme"},
        "accounts/fireworks/models/llama-v3p1-8b-instruct",
        "accounts/acme/datasets/d",
        "running",
        "running",
    ),
}


@pytest.fixture(params=list(PROVIDER_CASES))
def kind(request: pytest.FixtureRequest) -> ProviderCase:
    return PROVIDER_CASES[request.param]


@pytest.fixture(scope="module")
def listening() -> Iterator[FakeFineTuningProvider]:
    with FakeFineTuningProvider() as provider:
        yield provider


@pytest.fixture
def fine_tuning_provider(listening: FakeFineTuningProvider) -> Iterator[FakeFineTuningProvider]:
    """Returns the provider without the jobs of earlier tests."""
    listening.jobs.clear()
    yield listening
    assert listening.refused == []


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory, listening: FakeFineTuningProvider) -> Iterator[Gateway]:
    """Serves four saved providers, all the same stub provider with a different API format each."""
    saved = [
        {
            "slug": slug,
            "provider": slug,
            "api_key": TOKEN,
            "options": kind.options,
            "custom_host": listening.url + kind.prefix,
        }
        for slug, kind in PROVIDER_CASES.items()
    ]
    tables = {
        "keys": [{"name": "e2e", "key": KEY}],
        "providers": saved,
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(tmp_path_factory.mktemp("tuning"), tables, {})
    yield running
    running.stop()


@pytest.fixture
def client(
    kind: ProviderCase, running_gateway: Gateway, fine_tuning_provider: FakeFineTuningProvider
) -> Iterator[openai.OpenAI]:
    assert fine_tuning_provider.jobs == {}
    headers = {"x-gateway-provider": f"@{kind.slug}"}
    with openai.OpenAI(
        base_url=f"{running_gateway.base_url}/v1", api_key=KEY, default_headers=headers, max_retries=0, timeout=10
    ) as client:
        yield client


def create_jobs(client: openai.OpenAI, kind: ProviderCase, count: int) -> list[str]:
    """Creates `count` jobs and returns their ids, newest first."""
    created = []
    for number in range(count):
        supervised = {"hyperparameters": {"n_epochs": 2}}
        job = client.fine_tuning.jobs.create(
            model=kind.model,
            training_file=kind.training_file,
            suffix=f"mine{number}",
            method={"type": "supervised", "supervised": supervised},
            extra_body={"job_name": f"job-{number}"} if kind.slug == "bedrock" else None,
        )
        assert (job.object, job.status) == ("fine_tuning.job", kind.initial_status)
        assert (job.training_file, job.method.type if job.method else None) == (kind.training_file, "supervised")
        created.insert(0, job.id)
    assert len(set(created)) == count
    return created


def test_creates_and_retrieves_a_job(
    client: openai.OpenAI, kind: ProviderCase, fine_tuning_provider: FakeFineTuningProvider
):
    (name,) = create_jobs(client, kind, 1)
    job = client.fine_tuning.jobs.retrieve(name)
    assert (job.id, job.status, job.created_at) == (name, kind.retrieved_status, MADE)
    assert (job.model, job.training_file, job.fine_tuned_model) == (kind.model, kind.training_file, None)
    (remaining,) = fine_tuning_provider.jobs.values()
    content = str(remaining)
    assert "mine0" in content
    assert kind.training_file in content


def test_lists_jobs_by_page_newest_first(client: openai.OpenAI, kind: ProviderCase):
    created = create_jobs(client, kind, 5)
    jobs = client.fine_tuning.jobs
    assert [job.id for job in jobs.list()] == created
    assert [job.id for job in jobs.list(limit=2)] == created
    page = jobs.list(limit=2, after=created[1])
    assert ([job.id for job in page.data], page.has_more) == (created[2:4], True)
    assert not jobs.list(limit=2, after=created[2]).has_more


def test_cancels_a_job_and_returns_its_status(client: openai.OpenAI, kind: ProviderCase):
    created = create_jobs(client, kind, 2)
    job = client.fine_tuning.jobs.cancel(created[0])
    assert (job.id, job.object, job.status) == (created[0], "fine_tuning.job", "cancelled")
    jobs = client.fine_tuning.jobs
    assert [jobs.retrieve(name).status for name in created] == ["cancelled", kind.retrieved_status]


def test_lists_checkpoints_by_page_if_supported(client: openai.OpenAI, kind: ProviderCase):
    (name,) = create_jobs(client, kind, 1)
    checkpoints = client.fine_tuning.jobs.checkpoints
    if not kind.has_checkpoints:
        with pytest.raises(
            openai.InternalServerError, match=f"listFinetuneCheckpoints is not supported by {kind.slug}"
        ):
            checkpoints.list(name)
        return
    all_of_them = list(checkpoints.list(name))
    assert len({item.id for item in all_of_them}) == CHECKPOINTS
    assert {(item.object, item.fine_tuning_job_id) for item in all_of_them} == {("fine_tuning.job.checkpoint", name)}
    assert list(checkpoints.list(name, limit=1)) == all_of_them
    page = checkpoints.list(name, limit=1, after=all_of_them[0].id)
    assert (page.data, page.has_more) == (all_of_them[1:2], True)


def test_lists_events_by_page_if_supported(client: openai.OpenAI, kind: ProviderCase):
    (name,) = create_jobs(client, kind, 1)
    events = client.fine_tuning.jobs.list_events
    if kind.slug != "openai":
        with pytest.raises(openai.InternalServerError, match=f"listFinetuneEvents is not supported by {kind.slug}"):
            events(name)
        return
    assert [(event.id, event.message) for event in events(name, limit=2)] == [
        (f"ev-{at}", name) for at in range(EVENTS)
    ]
    page = events(name, limit=1, after="ev-0")
    assert ([item.id for item in page.data], page.has_more) == (["ev-1"], True)


def test_reports_errors_in_openai_format(
    client: openai.OpenAI, kind: ProviderCase, fine_tuning_provider: FakeFineTuningProvider
):
    with pytest.raises(openai.NotFoundError) as gone:
        client.fine_tuning.jobs.retrieve("job-of-nobody")
    assert gone.value.status_code == 404
    if kind.slug == "openai":
        return
    request_count = len(fine_tuning_provider.received_requests)
    with pytest.raises(openai.BadRequestError, match=r"method\.type: `reinforcement` is not supported"):
        client.fine_tuning.jobs.create(
            model=kind.model, training_file=kind.training_file, method={"type": "reinforcement"}
        )
    with pytest.raises(openai.BadRequestError, match="limit: must be a number from 1 to 100"):
        client.fine_tuning.jobs.list(limit=101)
    assert len(fine_tuning_provider.received_requests) == request_count
