"""Access log and JSON lines of a running gateway: one line per request, without queries and secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock

KEY = "pk-canary-of-the-tests"


def access_lines(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """Waits for this many lines of the access log; returns all of them."""

    def read_lines() -> list[dict[str, Any]] | None:
        lines = [json.loads(line) for line in gateway.program.read_output().splitlines() if line.startswith("{")]
        result = [line for line in lines if line["logger"] == "penstock.access"]
        return result if len(result) >= count else None

    return wait_for(f"{count} lines", read_lines, 10)


@pytest.mark.parametrize("entry_mode", ["intercepted", "plain"])
def test_each_request_has_one_json_line(provider: Mock, tmp_path: Path, entry_mode: str):
    tables = {
        "mock": {"host": provider.url},
        "log": {"format": "json", "access": True},
        "security": {"trusted_proxies": ["127.0.0.0/8"]},
        "keys": [{"name": "team", "key": KEY}],
    }
    proxied = {"x-forwarded-for": "203.0.113.5, 192.0.2.7", "x-gateway-api-key": KEY}
    with run_gateway(tmp_path, tables, entry_mode) as gateway:
        path = f"{CHAT_PATH}?api_key=canary-1&x=canary-2"
        responses = [
            send_raw_request(gateway.base_url, path, chat_body(), {**MOCK_HEADERS, **proxied}),
            send_raw_request(gateway.base_url, CHAT_PATH, chat_body("mock?fault=429"), {**MOCK_HEADERS, **proxied}),
            send_raw_request(gateway.base_url, path, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": "canary-3"}),
            send_raw_request(gateway.base_url, "/v1/version?x=canary-4", headers={"x-forwarded-for": "192.0.2.8"}),
        ]
        lines = access_lines(gateway, 4)
        records = gateway.records(2)
        output = gateway.program.read_output()
        (refused,) = gateway.refused_records()
    assert [response.status for response in responses] == [200, 429, 401, 200]
    actual = {line["id"]: line for line in lines}
    assert len(lines) == len(actual) == 4
    headers = ("x-gateway-trace-id", "x-gateway-trace-id", "x-gateway-trace-id", "x-request-id")
    ids = [response.get_header(name) or "" for name, response in zip(headers, responses, strict=True)]
    first, second, third, fourth = (actual[item] for item in ids)
    displayed = ("method", "path", "status", "client")
    assert [first[name] for name in displayed] == ["POST", CHAT_PATH, 200, "192.0.2.7"]
    assert [second[name] for name in displayed] == ["POST", CHAT_PATH, 429, "192.0.2.7"]
    assert [third[name] for name in displayed] == ["POST", CHAT_PATH, 401, "127.0.0.1"]
    assert [fourth[name] for name in displayed] == ["GET", "/v1/version", 200, "192.0.2.8"]
    assert first["api_key_id"] == records[0]["api_key_id"]
    assert "api_key_id" not in third
    assert all(line["ms"] >= 0 and line["level"] == "info" for line in lines)
    assert {record["peer"] for record in [*records, refused]} == {"127.0.0.1"}
    assert "canary" not in output


def test_nothing_is_logged_by_default(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}) as gateway:
        assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body()).status == 200
        assert "peer" not in gateway.records()[0]
        assert "access" not in gateway.program.read_output()
