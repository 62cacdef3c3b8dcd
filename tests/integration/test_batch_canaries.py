"""Secrets of batches must not appear in anything that the gateway writes, returns or logs, while batches run and
afterwards.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import openai
import pytest

from tests.integration.amazon import run_moto
from tests.integration.batch_provider import FakeBatchProvider
from tests.integration.batching import (
    OPEN_CLIENTS,
    TABLES,
    batch_line,
    create_batch,
    create_workspace,
    to_jsonl,
    wait_until_ended,
)
from tests.integration.bucket_provider import FakeBucketProvider
from tests.integration.canaries import CANARIES, canary, find_secrets
from tests.integration.management_client import Client
from tests.integration.serving import run_gateway
from tests.integration.test_administer import run_command
from tests.integration.test_bucket_batches import PROVIDER_CASES, success_row, wait_for_job_id
from tests.integration.test_canaries import read_public_output
from tests.postgres import dump_database
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

# Leaves out the PostgreSQL variants: both kinds of database store the same values.
ONE_STORE = True
pytestmark = pytest.mark.usefixtures("sdk_client_cleanup")
WINDOW_24H = "24h"
# Canary in the content of batch lines. Only the stored files and the logs of the lines' requests may contain it.
CONTENT_CANARY = "content of a line"


class BatchSetup(NamedTuple):
    """Admin client of a gateway, and the providers that run its batches."""

    admin: Client
    direct_provider: FakeBatchProvider
    bucket_provider: FakeBucketProvider


def client_with_credential(client: Client, credential: str, **headers: str) -> openai.OpenAI:
    """Creates an SDK client that sends a provider credential next to the gateway's key."""
    sent = {f"x-gateway-{name.replace('_', '-')}": value for name, value in headers.items()}
    base = f"{client.gateway.base_url}/v1"
    own = {"x-gateway-api-key": client.key, **sent}
    OPEN_CLIENTS.append(
        openai.OpenAI(api_key=credential or client.key, base_url=base, default_headers=own, max_retries=0)
    )
    return OPEN_CLIENTS[-1]


def secret_line(number: int, **body: object) -> dict[str, Any]:
    return batch_line(number, canary(CONTENT_CANARY), **body)


def run_gateway_batches(scenario: BatchSetup) -> list[str]:
    """Runs batches that the gateway sends itself, with a credential in each possible place. The provider succeeds,
    fails or resets the connection.
    """
    client = create_workspace(scenario.admin, "here", key=canary("saved key of a batch"))
    models = ("mock", "mock?status=401", "mock?fault=reset", "mock?fault=429")
    lines = to_jsonl(*(secret_line(number, model=model) for number, model in enumerate(models)))
    config = json.dumps({"provider": "mock", "api_key": canary("config of a batch"), "retry": {"attempts": 1}})
    ways: list[tuple[openai.OpenAI, dict[str, str]]] = [
        (client_with_credential(client, canary("bearer of a batch"), provider="mock"), {}),
        (client_with_credential(client, "", provider="@m-here"), {"x-gateway-custom-host": "http://127.0.0.1:1"}),
        (client_with_credential(client, ""), {"x-gateway-config": config}),
        (
            client_with_credential(
                client,
                "",
                provider="bedrock",
                aws_secret_access_key=canary("aws header of a batch"),
                custom_host="http://127.0.0.1:1",
            ),
            {"x-gateway-aws-access-key-id": "AKIDEXAMPLE", "x-gateway-aws-session-token": canary("option of a batch")},
        ),
    ]
    return [
        wait_until_ended(ai, create_batch(ai, lines, extra_body={"gateway_options": options}).id, 30).status
        for ai, options in ways
    ]


def run_provider_batches(scenario: BatchSetup) -> list[Any]:
    """Runs provider batches that complete, that fail with the credential in the message, and that are rejected with the
    credential echoed.
    """
    key = canary("key of a provider's batch")
    client = create_workspace(
        scenario.admin, "there", "openai", "m-w", key=key, custom_host=scenario.direct_provider.url
    )
    inline = canary("inline key of a provider's batch")
    ways = [client_with_credential(client, "", provider="@m-w")]
    ways.append(client_with_credential(client, inline, provider="openai", custom_host=scenario.direct_provider.url))
    over: list[Any] = []
    for ai, credential in zip(ways, (key, inline), strict=True):
        for status in ("completed", "failed"):
            scenario.direct_provider.batches.clear()
            scenario.direct_provider.why = f"no account of {credential}"
            batch = create_batch(ai, to_jsonl(secret_line(1), secret_line(2)), WINDOW_24H)
            wait_for("the batch there", lambda: scenario.direct_provider.batches or None)
            scenario.direct_provider.finish_batches(status, good=1)
            over.append(wait_until_ended(ai, batch.id))
        scenario.direct_provider.echoes = True
        over.append(wait_until_ended(ai, create_batch(ai, to_jsonl(secret_line(1)), WINDOW_24H).id))
        scenario.direct_provider.echoes = False
    assert {key, inline} <= {credential.removeprefix("Bearer ") for credential in scenario.direct_provider.credentials}
    return over


def run_bucket_batches(scenario: BatchSetup, folder: Path, url: str) -> tuple[list[Any], bytes]:
    """Runs batches whose lines go to a bucket; returns them and the bytes that the gateway stored while they ran."""
    there = scenario.bucket_provider
    there.secret, there.token = canary("aws of a bucket"), canary("token of a bucket")
    there.signed = f"/signed/results?X-Goog-Signature={canary('signed address')}&sig={canary('signed by Azure')}"
    over: list[Any] = []
    written = b""
    for name, kind in PROVIDER_CASES.items():
        about = {**kind.configurations, "custom_host": there.url}
        if "aws_secret_access_key" in about:
            about["aws_secret_access_key"] = there.secret
        client = create_workspace(scenario.admin, f"b-{name}", kind.slug, "m-w", key=there.token, **about)
        ai = client_with_credential(client, "", provider="@m-w")
        for status in ("good", "bad"):
            there.jobs.clear()
            there.state = "running"
            batch = create_batch(ai, to_jsonl(batch_line(1, model=kind.model)), WINDOW_24H)
            wait_for_job_id(client, there, batch.id)
            written += read_stored_bytes(folder, url)
            if status == "good":
                there.finish_job(kind.done_state, [success_row(kind, sent) for sent in there.input_lines()])
            else:
                there.why = f"no account of {there.secret if kind.slug == 'bedrock' else there.token}"
                there.finish_job(
                    kind.done_state.replace("Completed", "Failed")
                    .replace("COMPLETED", "FAILED")
                    .replace("SUCCEEDED", "FAILED")
                )
            over.append(wait_until_ended(ai, batch.id))
    assert not there.refused
    return over, written


def read_stored_bytes(folder: Path, url: str) -> bytes:
    """Returns the database and all files of the gateway's folder, except clients' files and the operator's settings."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "penstock.toml"]
    chunks: list[bytes] = []
    for path in paths:
        with suppress(FileNotFoundError):
            chunks.append(b"" if "files" in path.parts else path.read_bytes())
    if url.startswith("postgresql"):
        chunks.append(dump_database(url))
    return b"".join(chunks)


def read_visible_output(gateway: Gateway, admin: Client) -> bytes:
    """Returns the audit log, the export and everything else that the gateway shows."""
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    logs = admin.get(f"/v1/audit-logs?{span}&organisation_id={organisation}&page_size=100")
    assert logs.status == 200
    return logs.body + run_command(admin, "export").encode() + read_public_output(gateway)


@pytest.mark.slow(30)
@pytest.mark.timeout(150)
def test_no_secret_of_a_batch_is_stored_shown_or_logged(provider: Mock, new_store: StoreFactory, tmp_path: Path):
    folder = tmp_path / "gateway"
    folder.mkdir()
    tables = {
        **TABLES,
        "mock": {"host": provider.url},
        "log": {"level": "debug"},
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
        "batches": {**TABLES["batches"], "poll_ms": 30},
    }
    env = new_store(folder)
    url = env["PENSTOCK_STORE_URL"]
    with ExitStack() as stack:
        s3 = stack.enter_context(run_moto(tmp_path))
        httpx2.put(f"{s3}/s3-bucket").raise_for_status()
        direct, buckets = stack.enter_context(FakeBatchProvider()), stack.enter_context(FakeBucketProvider(s3))
        gateway = stack.enter_context(run_gateway(folder, tables, env=env))
        scenario = BatchSetup(Client(gateway), direct, buckets)
        assert set(run_gateway_batches(scenario)) == {"completed"}
        over = run_provider_batches(scenario)
        more, written = run_bucket_batches(scenario, folder, url)
        over += more
        sinks = {
            "batches": b"".join(json.dumps(batch.to_dict()).encode() for batch in over),
            "looked at": read_visible_output(gateway, scenario.admin),
            "run folder": b"".join(path.read_bytes() for path in gateway.temporary.rglob("*") if path.is_file()),
        }
    assert {batch.status for batch in over} == {"completed", "failed"}
    assert {path.name for path in folder.iterdir()} >= {"gateway.log", "records.jsonl"}
    stored = read_stored_bytes(folder, url)
    # Checks that the search covers the database: an id that is no secret is found.
    assert over[0].id.encode() in stored
    assert len(CANARIES) >= 10
    assert not find_secrets(sinks, CANARIES)
    passes = re.compile(rb"batch-pass\W{1,8}[0-9a-f]{48}")
    assert not [
        name for name, content in {**sinks, "stored": stored, "written": written}.items() if passes.search(content)
    ]
    credentials = {name: secret for name, secret in CANARIES.items() if name != CONTENT_CANARY}
    assert not find_secrets({"stored": stored, "stored while it ran": written}, credentials)
