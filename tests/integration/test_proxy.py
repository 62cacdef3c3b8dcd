"""Outbound HTTP proxy, configured through the usual environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.canned import CannedProvider
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

PROXY_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
OPENAI_HEADERS = {"x-gateway-provider": "openai", "authorization": "Bearer sk-1", **JSON_HEADERS}


def test_environment_proxy_is_used_and_its_password_hidden(provider: Mock, tmp_path: Path):
    with CannedProvider(PROXY_RESPONSE) as proxy:
        env = {"http_proxy": proxy.url.replace("//", "//alice:sesame@"), "NO_PROXY": "other.example"}
        # Only the proxy can resolve this host.
        env["TRUSTED_CUSTOM_HOSTS"] = "llm.example"
        with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
            to = {**OPENAI_HEADERS, "x-gateway-custom-host": "http://llm.example/v1"}
            assert send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), to).body == b"{}"
            # Loopback addresses are reached without the proxy.
            assert (
                send_raw_request(
                    gateway.base_url, CHAT_PATH, chat_body(), {**OPENAI_HEADERS, "x-gateway-provider": "mock"}
                ).status
                == 200
            )
            assert len(gateway.records(2)) >= 2
            output = gateway.program.read_output()
    assert len(proxy.heads) == 1
    head = proxy.heads[0].split(b"\r\n")
    assert head[0] == b"POST http://llm.example/v1/chat/completions HTTP/1.1"
    assert b"proxy-authorization: Basic YWxpY2U6c2VzYW1l" in head
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("sesame" in text or "YWxpY2U6c2VzYW1l" in text for text in [output, *files])
