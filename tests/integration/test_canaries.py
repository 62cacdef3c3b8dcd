"""Secrets must not appear in anything that the gateway writes, returns or logs, in any encoding."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import pytest
import zstandard
from joserfc.jwk import ECKey

from penstock.log_api.exports import EXPORT_FIELDS
from tests.integration import vaults as fakes
from tests.integration.amazon import run_moto
from tests.integration.canaries import CANARIES, basic_auth, canary, find_secrets, gateway_output
from tests.integration.canary_requests import send_bodies_with_secrets, send_tokens, use_saved_providers
from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.nodes import wait_for_redis
from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    RawConnection,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import read_metrics, run_gateway
from tests.integration.vaults import MockSecretStores
from tests.otel_collector import OtelCollector
from tests.postgres import dump_database
from tests.processes import wait_for
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.raw_http import Response
    from tests.postgres import Postgres

    Call = tuple[str, str, bytes | None, dict[str, str]]

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True


def sigv4_header(access_key_id: str, name: str) -> str:
    scope = f"{access_key_id}/20261121/eu-west-1/bedrock/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={canary(name)}"


# `real_start`, because the tests search the command lines of processes, and a fork has that of the fork server.
pytestmark = [pytest.mark.real_start, pytest.mark.timeout(150)]
TABLES = {
    "keys": [{"name": "k", "key": canary("gateway key")}, {"name": "old", "key": canary("old key"), "expires_at": 1}],
    "providers": [
        {"slug": "mine", "provider": "mock", "api_key": canary("stored")},
        {"slug": "env", "provider": "mock", "api_key": "${CANARY_KEY}"},
    ],
    "configs": [{"slug": "pc", "config": {"provider": "mock", "api_key": canary("stored in a config")}}],
    "records": {"sensitive_headers": ["X-Team"], "headers_to_metadata": ["Authorization", "x-team", "x-private"]},
    "log": {"level": "debug"},
    "metrics": {"enabled": True},
    "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
}
CLIENT_HEADERS = {"x-gateway-provider": "mock", "x-gateway-api-key": canary("gateway key"), **JSON_HEADERS}
AWS_CREDENTIALS = {
    "aws_access_key_id": canary("aws id"),
    "aws_secret_access_key": canary("aws"),
    "aws_session_token": canary("sts"),
}
INLINE_CONFIG = json.dumps(
    {"provider": "mock", "api_key": canary("inline"), "more": {"api_key": canary("unknown")}, **AWS_CREDENTIALS}
)


def secret_headers() -> list[dict[str, str]]:
    """Returns header fields with a secret in every place where one may be sent."""
    return [
        {"authorization": f"Bearer {canary('bearer')}"},
        {"authorization": basic_auth("basic")},
        {"authorization": canary("no scheme")},
        {"authorization": sigv4_header(canary("access key id"), "signature")},
        {"authorization": sigv4_header(canary("gateway key"), "signature of ours"), "x-gateway-api-key": ""},
        {"x-api-key": canary("x-api-key"), "api-key": canary("api-key"), "x-goog-api-key": canary("x-goog-api-key")},
        {"x-api-key": canary("gateway key"), "x-gateway-api-key": ""},
        {"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{canary('protocol')}"},
        {"cookie": f"session={canary('cookie')}", "proxy-authorization": basic_auth("proxy")},
        {"x-amz-security-token": canary("amz")},
        {"x-team": canary("team")},
        {
            "x-private": canary("private"),
            "x-gateway-sensitive-headers": "x-private, X-Other",
            "x-gateway-forward-headers": "x-private, x-other",
        },
        {"x-other": canary("other"), "x-gateway-sensitive-headers": "x-private,X-Other"},
        {"referer": f"https://host/?token={canary('referer')}"},
        {"x-gateway-config": INLINE_CONFIG},
        {"x-gateway-config": " " + INLINE_CONFIG},
        {"x-portkey-config": INLINE_CONFIG, "x-portkey-api-key": canary("gateway key")},
        {"x-gateway-config": INLINE_CONFIG[:-1]},
        {"x-gateway-config": f'["{canary("in a list")}"]'},
        {"x-gateway-config": json.dumps({"api_key": canary("refused"), "retry": "wrong"})},
        {"x-gateway-config": json.dumps({"api_key": [canary("wrong type")], "provider": {"a": canary("wrong too")}})},
        {"x-gateway-config": "pc"},
        {"x-gateway-provider": "@mine"},
        {"x-gateway-provider": "@env"},
        {"x-gateway-provider": "@mine", "x-gateway-custom-host": "http://127.0.0.1:1"},
        {"x-gateway-api-key": canary("wrong key")},
        {"x-gateway-api-key": canary("old key")},
        {"x-gateway-aws-secret-access-key": canary("aws field"), "x-gateway-aws-session-token": canary("sts field")},
        {"x-gateway-vertex-service-account-json": json.dumps({"private_key": canary("service account")})},
        {"x-gateway-azure-ad-token": canary("entra"), "x-gateway-oracle-private-key": canary("oracle")},
        {"x-gateway-custom-host": f"http://user:{canary('userinfo')}@127.0.0.1:1/v1"},
        {"x-gateway-custom-host": f"http://user:?{canary('odd userinfo')}#@127.0.0.1:1/v1"},
        {"x-gateway-custom-host": f"http://127.0.0.1:1/v1?key={canary('query of a host')}"},
        # Hosts that refuse connections, are not allowed or do not exist, each with a credential for it.
        {"x-gateway-custom-host": "http://127.0.0.1:1/v1", "authorization": f"Bearer {canary('refusing host')}"},
        {"x-gateway-custom-host": "http://10.0.0.1/v1", "authorization": f"Bearer {canary('private host')}"},
        {"x-gateway-custom-host": "http://nobody.invalid/v1", "authorization": f"Bearer {canary('no host')}"},
    ]


def secret_calls() -> Iterator[Call]:
    """Yields successful calls, rejected calls and every kind of provider failure, with a secret wherever one may be."""
    for fields in secret_headers():
        headers = {**CLIENT_HEADERS, **fields}
        yield "POST", CHAT_PATH, chat_body(), headers
        yield "POST", MESSAGES_PATH, chat_body(stream=True), headers
        yield "GET", "/v1/proxy/some/where", None, headers
        yield "POST", CHAT_PATH, chat_body("mock?fault=reset"), headers
        yield "POST", CHAT_PATH, chat_body("mock?fault=cut", stream=True), headers
    for name in (
        "key",
        "api_key",
        "api-key",
        "apiKey",
        "access_token",
        "sig%6Eature",
        "s%69g",
        "X-Amz-Signature",
        "%6Bey",
    ):
        yield "GET", f"/v1/models?a=b&{name}={canary('query ' + name)}", None, CLIENT_HEADERS
        yield "GET", f"/v1/files?{name}={canary('query ' + name)}&mock-fault=reset", None, CLIENT_HEADERS
    for model in ("mock?status=99", "mock?fault=429", "mock?fault=long_length", "mock?fault=redirect_metadata"):
        yield (
            "POST",
            CHAT_PATH,
            chat_body(model),
            {**CLIENT_HEADERS, "authorization": f"Bearer {canary('failing ' + model)}"},
        )
    silent = {**CLIENT_HEADERS, "x-gateway-request-timeout": "50", "authorization": f"Bearer {canary('timeout')}"}
    yield "POST", CHAT_PATH, chat_body("mock?fault=silence"), silent
    yield "POST", CHAT_PATH, b'{"api_key": "' + canary("body").encode(), CLIENT_HEADERS


def disconnect_early(gateway: Gateway) -> int:
    """Sends requests and disconnects before and during the response; returns the number of requests."""
    models = ("mock?first_ms=20000", "mock?chunks=100&chunk_ms=50")
    for model in models:
        with RawConnection(gateway.base_url) as connection:
            headers = {**CLIENT_HEADERS, "authorization": f"Bearer {canary('leaving ' + model)}"}
            connection.send(encode_request("POST", CHAT_PATH, headers, chat_body(model, stream=True)))
            time.sleep(0.2)
    return len(models)


def reload_invalid_settings(gateway: Gateway) -> None:
    """Loads invalid settings files, each with a secret near its error."""
    output = gateway.program.read_output().count("the old snapshot stays")
    row = {"slug": "p", "provider": "mock", "api_key": canary("broken row")}
    good = gateway.config_file.read_text()
    for broken in (
        lambda: gateway.configure({**TABLES, "providers": [{**row, "provider": 7}]}),
        lambda: gateway.configure({**TABLES, "providers": [{**row, "provider": "nobody"}]}),
        lambda: gateway.configure({**TABLES, "providers": [{**row, "api_key": [canary("listed")]}]}),
        lambda: gateway.configure(
            {**TABLES, "providers": [{**row, "custom_host": f"http://u:{canary('toml host')}@h"}]}
        ),
        lambda: gateway.configure({**TABLES, "configs": [{"slug": "c", "config": "{" + canary("toml config")}]}),
        lambda: gateway.configure(
            {**TABLES, "keys": [{"name": "k", "key": canary("both"), "sha256": canary("no digest")}]}
        ),
        lambda: gateway.config_file.write_text(
            good + f'\nkey = {canary("unquoted")}\n[[keys]\nkey = "{canary("syntax")}"'
        ),
    ):
        broken()
        output += 1
        wait_for(
            "the refusal of a file",
            lambda count=output: gateway.program.read_output().count("the old snapshot stays") >= count or None,
        )


def test_search_finds_a_secret_in_every_encoding():
    secret = canary("to be found")
    part = secret[5:15].encode()
    spelled = {
        "raw": part,
        "upper": part.upper(),
        "hex": part.hex().encode(),
        "url": b"".join(b"%%%02X" % byte for byte in part),
        "json": b"".join(b"\\u%04x" % byte for byte in part),
        **{f"base64 {before}": base64.b64encode(b"y" * before + part + b"z") for before in range(4)},
        "nothing": canary("another").encode() + part[:7],
    }
    hits = find_secrets({name: b"before " + text + b" after" for name, text in spelled.items()}, {"secret": secret})
    assert hits == {(name, "secret") for name in spelled if name != "nothing"}


def read_public_output(gateway: Gateway) -> bytes:
    """Returns the responses that anyone can read without a key."""
    fields = {"authorization": f"Bearer {canary('management')}", "cookie": canary("management cookie")}
    paths = ("/metrics", "/v1/health", "/schema/openapi.json", "/v1/nothing", "/live", f"/x?key={canary('lost')}")
    responses = [send_raw_request(gateway.base_url, path, headers=fields) for path in paths]
    return b"".join(gateway_output(response) + response.body for response in responses)


def read_response(gateway: Gateway, call: Call) -> bytes:
    method, path, body, headers = call
    with contextlib.suppress(ConnectionError):
        return gateway_output(send_raw_request(gateway.base_url, path, body, headers, method=method))
    return b""


def test_no_secret_is_written_shown_or_logged(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, **TABLES}
    every = list(secret_calls())
    with run_gateway(tmp_path, tables, env={"CANARY_KEY": canary("referred")}) as gateway:
        responses = [read_response(gateway, call) for call in every]
        remaining = disconnect_early(gateway)
        reload_invalid_settings(gateway)
        # Requests without a valid key are recorded in a file of their own.
        wait_for(
            "all records",
            lambda: len(gateway.records(0)) + len(gateway.refused_records(0)) >= len(every) + remaining or None,
        )
        refused_file = gateway.records_file.with_name("records-refused.jsonl")
        sinks = {
            "answers": b"\n".join(responses),
            "management": read_public_output(gateway),
            "command lines": "\n".join(gateway.pids().values()).encode(),
            "run folder": b"\n".join(
                str(path).encode() + (path.read_bytes() if path.is_file() else b"")
                for path in gateway.temporary.rglob("*")
            ),
        }
    sinks["records"] = gateway.records_file.read_bytes() + refused_file.read_bytes()
    sinks["output"] = gateway.program.log.read_bytes()
    # Checks that every kind of failure was covered, by status and by outcome.
    lines = map(json.loads, sinks["records"].splitlines())
    records = [fields for fields in lines if not fields.get("is_amendment")]
    assert {record["outcome"] for record in records} == {"complete", "refused", "failed", "aborted", "cut"}
    assert {200, 302, 400, 401, 408, 429, 502} <= {record["response_status_code"] for record in records}
    assert not find_secrets(sinks, CANARIES)
    # The records do contain values that are not secret.
    assert b"x-gateway-provider" in sinks["records"]
    assert b"a=b&" in sinks["records"]


# ── secrets in the store ─────────────────────────────────────────────────────────────────────────────────────────────


def bodies_with_secrets(vaults: MockSecretStores) -> dict[str, dict[str, Any]]:
    """Returns bodies that create objects over the API, with a secret in every field that may hold one."""
    aws = {"aws_auth_type": "accessKey", "aws_region": "eu-west-1", "aws_access_key_id": "AKIDEXAMPLE"}
    service_account = {"client_email": "a@b.test", "private_key": canary("key of a service account")}
    vertex = {
        "vertex_auth_type": "serviceAccount",
        "vertex_region": "r",
        "vertex_service_account_json": service_account,
    }
    entra = {
        "azure_auth_mode": "entra",
        "azure_entra_tenant_id": "t",
        "azure_entra_client_id": "c",
        "azure_vault_url": vaults.url,
    }
    token = {"vault_auth_type": "token", "vault_addr": vaults.url, "vault_token": fakes.VAULT_TOKEN}
    approle = {"vault_auth_type": "approle", "vault_addr": vaults.url, "vault_role_id": "role"}
    headers = {"custom_host": "https://models.test", "custom_headers": {"x-team": canary("header of an integration")}}
    integrations = {
        "plain": {"ai_provider_id": "mock", "key": canary("key of an integration")},
        "hosted": {"ai_provider_id": "openai", "key": canary("key of a hosted one"), "configurations": headers},
        "aws": {
            "ai_provider_id": "bedrock",
            "configurations": {**aws, "aws_secret_access_key": canary("aws of an integration")},
        },
        "google": {"ai_provider_id": "vertex-ai", "configurations": vertex},
        "mapped": {
            "ai_provider_id": "mock",
            "secret_mappings": [{"target_field": "key", "secret_reference_id": "token"}],
        },
    }
    references = {
        "token": ("hashicorp_vault", token, "secret/data/app"),
        "approle": ("hashicorp_vault", {**approle, "vault_secret_id": canary("secret id")}, "a/b"),
        "entra": ("azure_kv", {**entra, "azure_entra_client_secret": canary("entra of a reference")}, "a"),
        "keys": ("aws_sm", {**aws, "aws_secret_access_key": canary("aws of a reference")}, "a"),
    }
    return {
        **{
            f"/v1/secret-references {slug}": {
                "name": slug,
                "slug": slug,
                "manager_type": kind,
                "auth_config": auth,
                "secret_path": path,
            }
            for slug, (kind, auth, path) in references.items()
        },
        **{f"/v1/integrations {slug}": {"name": slug, "slug": slug, **body} for slug, body in integrations.items()},
        "/v1/virtual-keys own": {"name": "own", "provider": "mock", "key": canary("key of a virtual key")},
    }


def config_with_secrets(name: str) -> dict[str, Any]:
    """Returns a config with a secret in every field that may hold one."""
    header = {"Authorization": canary(f"tool of {name}")}
    return {
        "strategy": {"mode": "fallback"},
        "targets": [
            {"provider": "mock", "api_key": canary(f"key in {name}")},
            {"provider": "bedrock", "aws_secret_access_key": canary(f"aws in {name}"), "aws_region": "eu-west-1"},
            {"provider": "mock", "override_params": {"tools": [{"type": "mcp", "headers": header}]}},
        ],
    }


def create_objects(
    admin: Client, location: dict[str, str], created: Mapping[str, dict[str, Any]]
) -> Iterator[Response]:
    """Creates all objects, and also sends each with an invalid field next to the secret; yields the responses."""
    for name, body in created.items():
        path = name.split()[0]
        here = {} if "secret" in path else location
        for wrong in ({"odd": 1}, {"name": 5}, {"tags": 5, "description": 5}):
            yield admin.post(path, {**body, **here, **wrong})
        # Creating a provider of the same name again is a conflict.
        yield from (admin.post(path, {**body, **here}) for _ in range(2))
    saved = {"name": "saved", "config": config_with_secrets("a config"), **location}
    for wrong in (
        {"odd": 1},
        {"name": 5},
        {"config": {**saved["config"], "retry": 5}},
        {"config": "{" + canary("torn")},
    ):
        yield admin.post("/v1/configs", {**saved, **wrong})
    path = f"/v1/configs/{admin.create('/v1/configs', saved)['slug']}"
    yield admin.put(path, {"config": config_with_secrets("another version")})
    yield admin.put(path, {"config": {**config_with_secrets("no version"), "retry": 5}})
    yield admin.put(path, {"config": {"provider": "openai", "api_key": "*****"}})
    model = {"slug": "m", "enabled": True, "is_custom": True}
    configured = {"custom_host": "https://m.test", "custom_headers": {"x-model": canary("header of a model")}}
    yield admin.put("/v1/integrations/plain/models", {"models": [{**model, "configurations": configured}]})
    yield admin.put("/v1/integrations/plain", {"key": canary("another key of an integration")})
    yield admin.put("/v1/integrations/plain", {"key": canary("key of no integration"), "tags": 5})
    yield admin.put("/v1/secret-references/approle", {"auth_config": {"vault_secret_id": canary("another secret id")}})


def read_all_objects(admin: Client, location: str) -> bytes:
    """Returns everything that the API can return about the objects."""
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    inside = f"?workspace_id={location}"
    paths = [f"/v1/audit-logs?{span}&organisation_id={organisation}&page_size=100&current_page={n}" for n in range(2)]
    for collection, query in (
        ("/v1/integrations", ""),
        ("/v1/secret-references", ""),
        ("/v1/virtual-keys", inside),
        ("/v1/providers", inside),
        ("/v1/configs", inside),
        ("/v1/api-keys", ""),
        ("/v1/admin/users/invites", ""),
        ("/v1/admin/users", ""),
    ):
        paths.append(collection + query)
        paths += [f"{collection}/{row['id']}{query}" for row in admin.read(collection + query)["data"]]
    below = ("models", "workspaces")
    paths += [
        f"/v1/integrations/{row['slug']}/{name}" for row in admin.read("/v1/integrations")["data"] for name in below
    ]
    paths += [f"/v1/configs/{row['id']}/versions" for row in admin.read(f"/v1/configs{inside}")["data"]]
    responses = [admin.get(path) for path in [*paths, f"/v1/models{inside}", "/v1/admin/organisation/settings"]]
    assert {response.status for response in responses} == {200}
    return b"".join(gateway_output(response) + response.body for response in responses)


def sign_in_with_errors(admin: Client, secrets: dict[str, str]) -> Iterator[Response]:
    """Invites a user who signs in, with invalid requests in between; yields the responses."""
    invited = {"email": "new@example.test", "role": "member", "workspaces": []}
    secrets["invitation"] = admin.create("/v1/admin/users/invites", invited)["invite_link"].rpartition("=")[2]
    no_match = Client(admin.gateway, "")
    password = canary("password")
    person = {"token": secrets["invitation"], "first_name": "A", "last_name": "B", "password": password}
    yield no_match.post("/v1/auth/invites", {**person, "first_name": 5})
    yield no_match.post("/v1/auth/invites", person)
    yield no_match.post("/v1/auth/invites", person)
    yield no_match.post("/v1/auth/sessions", {"email": "new@example.test", "password": canary("wrong password")})
    yield no_match.post("/v1/auth/sessions", {"email": "new@example.test", "password": password, "odd": 1})
    session = no_match.post("/v1/auth/sessions", {"email": "new@example.test", "password": password})
    secrets["cookie"] = (session.get_header("set-cookie") or "").split(";")[0].partition("=")[2]
    secrets["csrf"] = session.json()["csrf_token"]
    fields = {**JSON_HEADERS, "cookie": f"penstock_session={secrets['cookie']}"}
    change = {"current_password": canary("wrong again"), "new_password": canary("new password")}
    for csrf in ("", secrets["csrf"], canary("csrf")):
        headers = {**fields, "x-csrf-token": csrf}
        yield send_raw_request(
            admin.gateway.base_url, "/v1/auth/password", json.dumps(change).encode(), headers, method="PUT"
        )


def read_stored_files(folder: Path, url: str) -> dict[str, bytes]:
    """Returns the database, the saved snapshot, the records and the output; not the operator's settings file."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "penstock.toml"]
    result = {path.name: path.read_bytes() for path in files}
    if url.startswith("postgresql"):
        result["penstock.db"] = dump_database(url)
    return result


def read_logs(admin: Client, workspace_id: str) -> dict[str, bytes]:
    """Returns what the API shows of the logs, with bodies, and an export of them. Their files are compressed."""
    query = f"workspace_slug={workspace_id}&page_size=1000"
    rows = wait_for("the logs", lambda: admin.read(f"/v1/logs?{query}")["data"] or None, 10)
    contents = [admin.get(f"/v1/logs/{row['id']}").body for row in rows]
    assert any(b'"transformedRequest":{"body":{' in content for content in contents)
    fields = {"filters": {}, "requested_data": list(EXPORT_FIELDS), "workspace_id": workspace_id}
    path = f"/v1/logs/exports/{admin.create('/v1/logs/exports', fields)['id']}"
    admin.create(f"{path}/start", {})
    wait_for("the export", lambda: admin.read(path)["status"] == "success" or None, 10)
    url = urlsplit(admin.read(f"{path}/download")["signed_url"])
    exported = admin.get(f"{url.path}?{url.query}").body
    assert len(exported.splitlines()) >= len(rows)
    graphs = [admin.get(f"/v1/analytics/groups/{name}?{query}").body for name in ("model", "provider", "config")]
    return {"logs": b"\n".join(contents), "export": exported, "analytics": b"\n".join(graphs)}


BUCKET, REGION = "bodies", "eu-west-1"


def create_bucket(url: str) -> dict[str, str]:
    """Creates a bucket for bodies of logs. Returns the settings that use it."""
    keys = {"s3_access_key_id": "AKIDEXAMPLE", "s3_secret_access_key": canary("secret key of the bucket")}
    boto3.client("s3", **s3_options(url)).create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    return {"bodies": f"s3://{BUCKET}/logs", "s3_endpoint_url": url, "s3_region": REGION, **keys}


def s3_options(url: str) -> dict[str, Any]:
    keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": canary("secret key of the bucket")}
    return {"region_name": REGION, "endpoint_url": url, **keys}


def read_bucket(url: str) -> bytes:
    """Returns the names of all objects and their contents, as they are stored and decompressed."""
    bucket = boto3.resource("s3", **s3_options(url)).Bucket(BUCKET)
    contents: list[bytes] = []
    for item in bucket.objects.all():
        stored: bytes = item.get()["Body"].read()
        contents += [item.key.encode(), stored]
        if item.key.endswith(".pack"):
            reader = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
            contents.append(reader.read())
    return b"\n".join(contents)


@contextlib.contextmanager
def run_with_bucket(
    folder: Path, tables: dict[str, Any], env: Mapping[str, str]
) -> Iterator[tuple[Gateway, dict[str, bytes]]]:
    """Runs a gateway that stores the bodies of logs in a bucket. After it has stopped, the yielded dictionary has the
    content of the bucket.
    """
    content: dict[str, bytes] = {}
    with run_moto(create_folder(folder.parent, "moto")) as url:
        log_store = {"enabled": True, **create_bucket(url)}
        with run_gateway(folder, {**tables, "log_store": log_store}, env=env) as gateway:
            yield gateway, content
        content["bucket"] = read_bucket(url)
    # Checks that the search covers the objects: texts of conversations are not masked.
    assert b'"content":"hello"' in content["bucket"].replace(b" ", b"")
    assert b'"url":"http://127.0.0.1:' in content["bucket"]


@pytest.mark.slow(18)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_stored_secret_is_written_shown_or_logged(
    kind: str, provider: Mock, tmp_path: Path, request: pytest.FixtureRequest
):
    vaults = MockSecretStores(create_folder(tmp_path, "vaults"))
    vaults.kept["secret/app"] = json.dumps({"value": canary("kept elsewhere")})
    signer = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"})
    # The operator's key set wrongly includes the private part.
    rules = {"enabled": True, "jwks": json.dumps({"keys": [signer.as_dict(private=True)]}), "algorithms": ["ES256"]}
    folder = create_folder(tmp_path, "gateway")
    url = (
        request.getfixturevalue("postgres").create_database()
        if kind == "postgresql"
        else f"sqlite:///{folder}/penstock.db"
    )
    env = {"PENSTOCK_ADMIN_KEY": canary("admin key"), "PENSTOCK_STORE_URL": url, "TLS_CA": str(vaults.ca)}
    run_init(folder, env)
    tables = {"mock": {"host": provider.url}, "log": {"level": "debug"}, "metrics": {"enabled": True}, "jwt": rules}
    secrets = {"private key": str(signer.as_dict(private=True)["d"]), "vault token": fakes.VAULT_TOKEN}
    otel = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-collector={canary('collector')}", "PENSTOCK_OTEL_CONTENT": "true"}
    with (
        OtelCollector() as collector,
        run_with_bucket(folder, tables, {**env, **otel, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as (
            gateway,
            in_bucket,
        ),
    ):
        admin = Client(gateway, canary("admin key"))
        workspace = admin.create("/v1/workspaces", {"name": "canaries"})
        target_workspace = {"workspace_id": workspace["id"]}
        responses = [
            response
            for response in create_objects(admin, target_workspace, bodies_with_secrets(vaults))
            if response.status != 200
        ]
        responses += sign_in_with_errors(admin, secrets)
        key = admin.create(
            "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], **target_workspace}
        )
        secrets["api key"] = key["key"]
        secrets["rotated"] = admin.create(f"/v1/api-keys/{key['id']}/rotate", {})["key"]
        responses += send_tokens(gateway, signer, workspace, secrets)
        fields = {**JSON_HEADERS, "x-gateway-api-key": secrets["api key"]}
        wait_for(
            "the key",
            lambda: send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), fields).status != 401 or None,
            5,
        )
        responses += use_saved_providers(gateway, fields)
        responses += send_bodies_with_secrets(gateway, fields)
        for row in admin.read(f"/v1/configs?workspace_id={workspace['id']}")["data"]:
            responses.append(
                send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**fields, "x-gateway-config": row["slug"]})
            )
        secrets |= CANARIES
        sinks = {
            "answers": b"\n".join(gateway_output(response) for response in responses),
            "reads": read_all_objects(admin, workspace["id"]) + read_public_output(gateway),
            "run folder": b"".join(path.read_bytes() for path in gateway.temporary.rglob("*") if path.is_file()),
        }
        gateway.records(10)
        collector.wait_for_spans(10)
        sinks["OTLP"] = b"\n".join(collector.received)
        sinks |= read_logs(admin, workspace["id"])
    vaults.stop()
    sinks |= in_bucket
    assert {200, 400, 401, 403, 409} <= {response.status for response in responses}
    sinks |= read_stored_files(folder, url)
    assert {"penstock.db", "gateway.log", "records.jsonl"} <= set(sinks)
    # Checks that the search covers the database: an id that is not secret is found.
    assert workspace["id"].encode() in sinks["penstock.db"]
    assert len(secrets) > 25
    assert not find_secrets(sinks, secrets)


def create_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


# ── credentials of the stores ────────────────────────────────────────────────────────────────────────────────────────

MASTER_KEY = canary("master key") + "012345"


class RedisWithPassword(RedisServer):
    PASSWORD = canary("password of Redis")


def failed_start_outputs(folder: Path, url: str, redis: str) -> Iterator[bytes]:
    """Yields the output of starts that fail, each with a secret in the invalid setting."""
    right = {"PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": base64.b64encode(MASTER_KEY.encode()).decode()}
    for number, wrong in enumerate(
        (
            {"PENSTOCK_STORE_URL": f"postgresql://penstock:{canary('database')}@127.0.0.1:1/none"},
            {"PENSTOCK_STORE_URL": f"mysql://penstock:{canary('database')}@127.0.0.1/none"},
            {"PENSTOCK_STORE_URL": f"{canary('database')}:{canary('database')}"},
            {"PENSTOCK_STORE_MASTER_KEY": MASTER_KEY},
            {"PENSTOCK_STORE_MASTER_KEY": base64.b64encode(MASTER_KEY[:31].encode()).decode()},
            {"REDIS_URL": redis.replace("redis://", "http://")},
            {"REDIS_URL": redis.replace("/0", "/odd")},
        )
    ):
        location = folder / str(number)
        location.mkdir(parents=True)
        # The first case uses `migrate`, because a node starts even while the database is unreachable. Migrations need
        # no master key.
        command = ["serve", "--port", "0"] if number else ["migrate"]
        program = [sys.executable, "-m", "penstock", *command]
        env = {**os.environ, **right, **wrong}
        done = subprocess.run(program, check=False, capture_output=True, env=env, cwd=location, timeout=30)
        assert done.returncode, (command, wrong)
        yield done.stdout + done.stderr


@pytest.mark.slow(26)
def test_store_credentials_appear_only_in_operator_settings(provider: Mock, own_postgres: Postgres, tmp_path: Path):
    redis = RedisWithPassword(create_folder(tmp_path, "redis"))
    folder = create_folder(tmp_path, "gateway")
    url = own_postgres.create_database().replace("penstock@", f"penstock:{canary('database')}@")
    written = base64.b64encode(MASTER_KEY.encode()).decode()
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": url,
        "PENSTOCK_STORE_MASTER_KEY": written,
        "REDIS_URL": redis.url,
    }
    run_init(folder, env)
    secrets = {
        "database": canary("database"),
        "master key": MASTER_KEY,
        "written": written,
        "redis": RedisWithPassword.PASSWORD,
    }
    tables = {"mock": {"host": provider.url}, "log": {"level": "debug"}, "metrics": {"enabled": True}}
    with run_gateway(folder, tables, env=env) as gateway:
        wait_for_redis(gateway)
        admin = Client(gateway)
        workspace = admin.create("/v1/workspaces", {"name": "opened"})
        target_workspace = {"workspace_id": workspace["id"]}
        admin.create("/v1/virtual-keys", {"name": "own", "provider": "mock", "key": "sk-plain", **target_workspace})
        key = admin.create(
            "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], **target_workspace}
        )
        fields = {**JSON_HEADERS, "x-gateway-api-key": key["key"], "x-gateway-provider": "@own"}
        wait_for(
            "the key",
            lambda: send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), fields).status == 200 or None,
            5,
        )
        sinks = {"reads": read_all_objects(admin, workspace["id"]) + read_public_output(gateway)}
        # Both servers go down, which is reported in every possible way; calls continue.
        redis.stop()
        own_postgres.crash()
        responses = [admin.get("/v1/configs"), admin.post("/v1/workspaces", {"name": "x"}), admin.get("/ready")]
        responses += [send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), fields) for _ in range(3)]
        wait_for("Redis is missed", lambda: read_metrics(gateway).get("penstock_redis_up") == 0 or None, 10)
        sinks |= {
            "answers": b"\n".join(gateway_output(response) + response.body for response in responses),
            "metrics": read_public_output(gateway),
            "command lines": "\n".join(gateway.pids().values()).encode(),
            "run folder": b"".join(path.read_bytes() for path in gateway.temporary.rglob("*") if path.is_file()),
        }
        gateway.records(4)
        own_postgres.start()
        wait_for("the database", lambda: admin.get("/v1/configs").status == 200 or None, 20)
    assert {200, 503} <= {response.status for response in responses}
    sinks |= read_stored_files(folder, url)
    sinks["refusals"] = b"\n".join(failed_start_outputs(tmp_path / "refused", url, redis.url))
    assert {"penstock.db", "gateway.log", "records.jsonl", "refusals"} <= set(sinks)
    assert b"REDIS_URL" in sinks["refusals"] or b"redis" in sinks["refusals"]
    assert not find_secrets(sinks, secrets)
