"""Routes of files while their storage fails: clear errors before the response begins, and nothing half-stored."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from sqlalchemy import insert, select, update

from penstock.batches.files import FILE, new_file_row
from penstock.settings.batches import Files
from penstock.settings.log_store import LogStore
from penstock.settings.secret import Secret
from penstock.store.job_tables import files, log_exports
from tests.faulty_server import BUSY_RESPONSE, run_faulty_server
from tests.processes import free_port
from tests.unit.asgi import Response, send_request
from tests.unit.resources.logged import logged_client, open_workspace
from tests.unit.resources.management_api import ManagementClient, management_client

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "aws-canary-0123456789"
KEY_ID = "AKIDEXAMPLE"
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n--b--\r\n'
)
CONTENT = b"{}"
# `TIMEOUT_MS` is long enough for attempts after an error, which wait up to 3 seconds.
TIMEOUT_MS, SHORT_TIMEOUT_MS = 5000, 700


async def upload(client: ManagementClient) -> Response:
    headers = {"content-type": "multipart/form-data; boundary=b", "x-gateway-api-key": client.key}
    return await send_request(client.app, "POST", "/v1/files", FORM, headers)


async def create_file_key(api: ManagementClient, name: str = "w") -> tuple[dict[str, str], ManagementClient]:
    """Creates a workspace; returns the fields of its rows, and a client with a key that may use files and exports."""
    home = await open_workspace(api, name)
    scopes = ["completions.write", "logs.export"]
    _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=scopes)
    return {name: home[name] for name in ("organisation_id", "workspace_id")}, client


async def insert_file(api: ManagementClient, owner: dict[str, str], **more: Any) -> str:
    """Inserts the row of a file without its content; returns its id."""
    row = new_file_row("batch", "a.jsonl", 3600, **owner, created_by=None, **more)
    async with api.database.write_transaction() as connection:
        await connection.execute(insert(files).values(row))
    return row["id"]


def bucket_settings(url: str, timeout_ms: int = TIMEOUT_MS) -> dict[str, Any]:
    """Returns settings whose files are in a bucket, which is reached like the bucket of log bodies."""
    shared = LogStore(
        s3_endpoint_url=url,
        s3_region="eu-west-1",
        s3_access_key_id=KEY_ID,
        s3_secret_access_key=Secret(SECRET),
        connection_timeout_ms=timeout_ms,
    )
    return {"files": Files(store="s3://files/here"), "log_store": shared}


FAULTS = {
    "refused": (None, "cannot be reached", "check files.store"),
    "hanging": (b"", "did not respond within 0.7 s", "try again later"),
    "busy": (BUSY_RESPONSE, "refused a request: 503", "try again later"),
    "forbidden": (
        BUSY_RESPONSE.replace(b"503 Service Unavailable", b"403 Forbidden"),
        "refused a request: 403",
        "check files.store",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_bucket_is_reported_and_leaves_nothing(bootstrapped_url: Secret, fault: str):
    response, reason, hint = FAULTS[fault]

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            url = f"http://127.0.0.1:{free_port()}"
            if response is not None:
                url, _ = await stack.enter_async_context(run_faulty_server(response))
            timeout_ms = SHORT_TIMEOUT_MS if fault == "hanging" else TIMEOUT_MS
            settings = bucket_settings(url, timeout_ms)
            api = await stack.enter_async_context(management_client(bootstrapped_url, **settings))
            stack.push_async_callback(api.dependency("blobs").close)
            owner, client = await create_file_key(api)
            started_at = time.monotonic()
            responses = [await upload(client)]
            assert (await client.request_ok("GET", "files"))["data"] == []
            file_id = await insert_file(api, owner, bytes=2)
            responses.append(await client.fetch(f"/v1/files/{FILE}{file_id}/content"))
            assert time.monotonic() - started_at < 15
            for reply in responses:
                assert reply.status == 503, reply
                assert (reply.json()["success"], reply.json()["data"]["errorCode"]) == (False, "AB04")
                message = reply.json()["data"]["message"]
                assert (reason in message, hint in message) == (True, True), message
                assert (SECRET in message, KEY_ID in message) == (False, False)
            # The content is deleted once the bucket is back, with the files that have expired.
            assert (await client.request_ok("DELETE", f"files/{FILE}{file_id}"))["deleted"] is True
            await client.expect_error(404, "no file", "GET", f"files/{FILE}{file_id}")
            async with api.database.read_connection() as connection:
                assert list(await connection.execute(select(files.c.id, files.c.expires_at))) == [(file_id, 0)]

    asyncio.run(scenario())


def test_missing_content_is_not_found(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario() -> None:
        async with management_client(bootstrapped_url, files=Files(folder=str(tmp_path))) as api:
            owner, client = await create_file_key(api)
            created = (await upload(client)).json()
            path = f"/v1/files/{created['id']}/content"
            actual = await client.fetch(path)
            assert (actual.status, actual.body, actual.headers["content-length"]) == (200, CONTENT, "2")
            (tmp_path / created["id"].removeprefix(FILE)).unlink()
            response = await client.fetch(path)
            assert (response.status, response.json()["data"]["errorCode"]) == (404, "AB08")
            empty = await insert_file(api, owner)
            (tmp_path / empty).touch()
            actual = await client.fetch(f"/v1/files/{FILE}{empty}/content")
            assert (actual.status, actual.body, actual.headers["content-length"]) == (200, b"", "0")

    asyncio.run(scenario())


def test_link_of_an_export_is_signed_by_the_bucket(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario() -> None:
        # Signing needs no connection.
        url = f"http://127.0.0.1:{free_port()}"
        async with logged_client(bootstrapped_url, tmp_path, **bucket_settings(url)) as (api, _):
            owner, client = await create_file_key(api)
            _, other_client = await create_file_key(api, "other")
            file_id = await insert_file(api, owner, bytes=2)
            body = {"filters": {}, "requested_data": ["id"]}
            export_id = (await client.request_ok("POST", "logs/exports", body))["id"]
            async with api.database.write_transaction() as connection:
                await connection.execute(update(log_exports).values(status="success", file_id=file_id))
            path = f"logs/exports/{export_id}/download"
            link = (await client.request_ok("GET", path))["signed_url"]
            assert link.startswith(f"{url}/files/here/{file_id}?")
            query = dict(parse_qsl(urlsplit(link).query))
            assert (query["X-Amz-Expires"], query["response-content-type"]) == ("3600", "application/jsonl")
            assert query["response-content-disposition"] == f'attachment; filename="logs-{export_id}.jsonl"'
            assert SECRET not in link
            await other_client.expect_error(404, "no object", "GET", path)
            async with api.database.write_transaction() as connection:
                await connection.execute(update(files).values(expires_at=1))
            await client.expect_error(404, "has expired", "GET", path)
            await api.dependency("blobs").close()

    asyncio.run(scenario())
