"""Requests with secrets in every place where a client or a saved provider has one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from joserfc import jws

from tests.integration.canaries import canary
from tests.integration.management_client import Client
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MESSAGES_PATH, chat_body, send_raw_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joserfc.jwk import ECKey

    from tests.gateway import Gateway
    from tests.integration.raw_http import Response


def send_tokens(
    gateway: Gateway, signer: ECKey, workspace: dict[str, Any], secrets: dict[str, str]
) -> Iterator[Response]:
    """Sends requests with a valid and an expired token. Adds their signatures to `secrets`."""
    claims = {"organisation_id": workspace["organisation_id"], "workspace_slug": workspace["slug"], "sub": "m"}
    for name, end in (("token", 4_000_000_000), ("old token", 1)):
        content = json.dumps({**claims, "exp": end, "scope": "completions.write configs.list", "jti": canary(name)})
        head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
        token = jws.serialize_compact(head, content, signer, algorithms=["ES256"])
        secrets[name] = token.rpartition(".")[2]
        yield Client(gateway, token).get("/v1/configs")
        yield send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**JSON_HEADERS, "x-gateway-api-key": token})


def use_saved_providers(gateway: Gateway, fields: dict[str, str]) -> Iterator[Response]:
    """Sends requests that succeed, that fail, and that are explained, to each provider with a secret."""
    for slug in ("plain", "hosted", "aws", "google", "mapped", "own", "nothing"):
        saved = {**fields, "x-gateway-provider": f"@{slug}"}
        for model in ("mock", "mock?fault=reset"):
            yield send_raw_request(gateway.base_url, CHAT_PATH, chat_body(model), saved)
        for path in ("/v1/explain", CHAT_PATH):
            yield send_raw_request(gateway.base_url, path, chat_body(), {**saved, "x-gateway-explain": "true"})


def send_bodies_with_secrets(gateway: Gateway, fields: dict[str, str]) -> Iterator[Response]:
    """Sends requests with credentials for tools and data sources in their bodies, and logs of such requests."""
    tool = {
        "type": "mcp",
        "server_label": "crm",
        "server_url": f"https://user:{canary('password of a tool')}@crm.test/mcp?sig={canary('signature of a tool')}",
        "authorization": canary("token of a tool"),
        "headers": {"X-Team": canary("header of a tool")},
    }
    server = {"type": "url", "url": "https://crm.test/mcp", "authorization_token": canary("token of an MCP server")}
    source = {"type": "azure_search", "parameters": {"authentication": {"key": canary("key of a data source")}}}
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "mock", "max_tokens": 9, "messages": messages, "input": "hello"}
    body |= {"tools": [tool], "mcp_servers": [server], "data_sources": [source], "api_key": canary("key in a body")}
    sent = {**fields, "x-gateway-provider": "mock"}
    for path in (CHAT_PATH, MESSAGES_PATH, "/v1/responses", "/v1/proxy/agents", "/v1/realtime/client_secrets"):
        yield send_raw_request(gateway.base_url, path, json.dumps(body).encode(), sent)
    log = {"request": {"url": "https://x.test", "body": body}, "response": {"body": {"tools": [tool]}}}
    yield send_raw_request(gateway.base_url, "/v1/logs", json.dumps(log).encode(), fields)
