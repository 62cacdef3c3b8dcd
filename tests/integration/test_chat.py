"""Calls pass through byte for byte: complete and streamed, small and large, over every kind of connection."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.integration import memory
from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    MOCK_HEADERS,
    RawConnection,
    chat_body,
    encode_chunks,
    encode_request,
    send_raw_request,
    strip_volatile_fields,
)
from tests.integration.serving import edge_pids, provider_headers, wait_for_request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.raw_http import Response

# Mock models with unusual but successful responses. The client must get the same bytes.
STREAM_MODELS = [
    "mock",
    "mock?chunks=1",
    "mock?chunks=300&burst=on",
    "mock?chunks=20&chunk_ms=5",
    "mock?chunks=3&chunk_bytes=100000",
    "mock?usage=on",
    "mock?fault=crlf",
    "mock?fault=cr",
    "mock?fault=bom",
    "mock?fault=malformed_chunk",
    "mock?fault=invalid_utf8",
    "mock?fault=huge_event",
    "mock?fault=done_then_data",
    "mock?fault=early_1xx",
    "mock?fault=overloaded_first",
    "mock?fault=error_event",
    "mock?fault=gzip",
]
COMPLETE_MODELS = [
    "mock",
    "mock?response_bytes=100000",
    "mock?response_bytes=3000000",
    "mock?fault=malformed_chunk",
    "mock?fault=invalid_utf8",
    "mock?fault=gzip",
    "mock?fault=early_1xx",
    "mock?fault=redirect_metadata",
]
ERROR_MODELS = ["mock?fault=429", "mock?fault=429&retry_after=7", "mock?status=500"]


def decompress(response: Response) -> bytes:
    return gzip.decompress(response.body) if response.get_header("content-encoding") == "gzip" else response.body


def assert_same_through_gateway(running_gateway: Gateway, provider: Mock, path: str, body: bytes) -> None:
    """Sends the request directly and through the gateway and compares the responses."""
    direct = send_raw_request(provider.url, path, body, JSON_HEADERS)
    response = send_raw_request(running_gateway.base_url, path, body)
    # The provider compresses the time of the response too, which may differ by a second.
    direct.body, response.body = map(decompress, (direct, response))
    assert (response.status, response.end_reason, len(response.body)) == (
        direct.status,
        direct.end_reason,
        len(direct.body),
    )
    assert response.stable_body == direct.stable_body
    assert provider_headers(response) == provider_headers(direct)
    assert response.get_header("x-gateway-provider") == "mock"
    assert response.get_header("x-gateway-trace-id")


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("model", COMPLETE_MODELS)
def test_complete_response_passes_byte_for_byte(running_gateway: Gateway, provider: Mock, path: str, model: str):
    assert_same_through_gateway(running_gateway, provider, path, chat_body(model))


@pytest.mark.parametrize("model", ERROR_MODELS)
def test_error_is_unchanged_for_messages_and_named_for_chat(running_gateway: Gateway, provider: Mock, model: str):
    assert_same_through_gateway(running_gateway, provider, MESSAGES_PATH, chat_body(model))
    direct, response = (
        send_raw_request(provider.url, CHAT_PATH, chat_body(model), JSON_HEADERS),
        send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(model)),
    )
    body = direct.json()
    body["error"]["message"] = f"mock error: {body['error']['message']}"
    assert (response.status, response.json()) == (direct.status, {**body, "provider": "mock"})
    assert provider_headers(response) == provider_headers(direct)


@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("model", STREAM_MODELS)
def test_stream_passes_byte_for_byte(running_gateway: Gateway, provider: Mock, path: str, model: str):
    # With `include_usage` the usage event is not removed, so the bytes are identical.
    assert_same_through_gateway(
        running_gateway, provider, path, chat_body(model, stream=True, stream_options={"include_usage": True})
    )


def test_provider_gets_the_request_body_unchanged(running_gateway: Gateway, provider: Mock):
    body = b'{ "model":"mock",\t"messages": [],  "unknown": 1.50e1, "text": "\\u00e9\xc3\xa9" }'
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, body).status == 200
    assert wait_for_request(provider)["body_bytes"] == len(body)
    echo = send_raw_request(running_gateway.base_url, "/v1/echo", body).json()
    assert echo["body_sha"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("prefix", ["/v1", "/v1/proxy"])
def test_any_path_passes_with_any_method(running_gateway: Gateway, provider: Mock, method: str, prefix: str):
    body = b'{"a": 1}' if method in {"POST", "PUT", "PATCH"} else None
    response = send_raw_request(running_gateway.base_url, f"{prefix}/some/th%20ing/x?b=2&a=%2F", body, method=method)
    assert response.status == 200
    received = wait_for_request(provider)
    assert (received["method"], received["path"]) == (method, "/v1/some/th%20ing/x?b=2&a=%2F")
    assert received["body_bytes"] == len(body or b"")
    if method == "HEAD":
        assert int(response.get_header("content-length") or 0) > 0
    else:
        assert response.json()["method"] == method


def test_raw_proxy_drops_gateway_and_hop_by_hop_headers(running_gateway: Gateway, provider: Mock):
    headers = {**MOCK_HEADERS, "x-own": "kept", "te": "trailers", "connection": "x-hop", "x-hop": "1", "cookie": "a=b"}
    send_raw_request(running_gateway.base_url, "/v1/proxy/chat/completions", chat_body(), headers)
    received = wait_for_request(provider)["headers"]
    assert (received["x-own"], received["authorization"]) == ("kept", "Bearer sk-provider")
    assert not {"x-hop", "te", "cookie"} & set(received)
    assert not [name for name in received if name.startswith("x-gateway-")]


def test_listed_headers_are_forwarded_and_others_are_not(running_gateway: Gateway, provider: Mock):
    headers = {**MOCK_HEADERS, "x-team": "red", "x-other": "blue", "x-gateway-forward-headers": "X-Team"}
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), headers)
    received = wait_for_request(provider)["headers"]
    assert (received.get("x-team"), received.get("x-other")) == ("red", None)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_multipart_upload_keeps_its_boundary(running_gateway: Gateway, provider: Mock, is_chunked: bool):
    part = b'--b0undary\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = part + bytes(range(256)) * 8192 + b"\r\n--b0undary--\r\n"
    kind = {"content-type": 'multipart/form-data; boundary="b0undary"'}
    framing = {"transfer-encoding": "chunked"} if is_chunked else {}
    sent = encode_chunks(body[:1000], body[1000:900_000], body[900_000:]) if is_chunked else body
    response = send_raw_request(
        running_gateway.base_url, "/v1/audio/transcriptions", sent, {**MOCK_HEADERS, **kind, **framing}
    )
    assert response.json()["body_sha"] == hashlib.sha256(body).hexdigest()
    assert wait_for_request(provider)["headers"]["content-type"] == kind["content-type"]


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1_000_000, 1_048_576, 1_048_577, 20_000_000])
def test_accepts_chat_bodies_of_any_size(running_gateway: Gateway, provider: Mock, size: int):
    body = chat_body(text="x" * size)
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, body)
    assert (response.status, response.json()["object"]) == (200, "chat.completion")
    assert wait_for_request(provider)["body_bytes"] == len(body)


def test_large_upload_streams_with_little_memory(running_gateway: Gateway, provider: Mock):
    (edge,) = edge_pids(running_gateway)
    body = bytes(range(256)) * 8192 * 10
    kind = {"content-type": "application/octet-stream"}
    send_raw_request(running_gateway.base_url, "/v1/files", body[:2_000_000], {**MOCK_HEADERS, **kind})
    provider.clear_ledger()
    before = memory.rss(edge)
    memory.reset_peak_rss(edge)
    response = send_raw_request(running_gateway.base_url, "/v1/files", body, {**MOCK_HEADERS, **kind})
    assert response.json()["body_sha"] == hashlib.sha256(body).hexdigest()
    assert wait_for_request(provider)["body_bytes"] == len(body)
    grown = memory.peak_rss(edge) - before
    assert grown < 6 * memory.MIB, f"{grown / memory.MIB:.1f} MiB for an upload of 20"


def test_large_response_streams_with_little_memory(running_gateway: Gateway, provider: Mock):
    (edge,) = edge_pids(running_gateway)
    model = "mock?response_bytes=20000000"
    direct = send_raw_request(provider.url, CHAT_PATH, chat_body(model), JSON_HEADERS)
    send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body("mock?response_bytes=2000000"))
    before = memory.rss(edge)
    memory.reset_peak_rss(edge)
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(model))
    assert response.end_reason == "length"
    assert len(response.body) == len(direct.body) >= 20_000_000
    assert response.body[-1000:] == direct.body[-1000:]
    grown = memory.peak_rss(edge) - before
    assert grown < 6 * memory.MIB, f"{grown / memory.MIB:.1f} MiB for an answer of 20"


def test_body_over_the_limit_is_rejected_before_it_arrives(running_gateway: Gateway, provider: Mock):
    limit = 100 * 1024 * 1024
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(
            encode_request("POST", "/v1/files", {**MOCK_HEADERS, "content-length": str(limit + 1)}, b"only the start")
        )
        response = connection.read_response()
    assert response.status == 413
    assert str(limit) in response.json()["error"]["message"]
    assert not provider.ledger()


def test_one_connection_carries_many_requests(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        for number in range(20):
            response = connection.request(CHAT_PATH, chat_body(stream=number % 3 == 0))
            assert (response.status, response.end_reason) == (200, "chunk" if number % 3 == 0 else "length")


@pytest.mark.parametrize("length", [8, 64, 65, 128])
def test_each_response_has_its_own_trace_id(running_gateway: Gateway, length: int):
    with RawConnection(running_gateway.base_url) as item, RawConnection(running_gateway.base_url) as other:
        for number in range(100):
            for connection, letter in ((item, "a"), (other, "b"), (item, "a")):
                body = f"{letter}{number // 3}".ljust(length, "-")
                response = connection.request(CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-trace-id": body})
                assert (response.status, response.get_header("x-gateway-trace-id")) == (200, body)


def test_pipelined_requests_are_answered_in_order(running_gateway: Gateway, provider: Mock):
    models = [f"mock?chunks={1 + 9 * (number % 2)}&first_ms={30 * (number % 3)}" for number in range(6)]
    bodies = [chat_body(model, stream=number % 2 == 0) for number, model in enumerate(models)]
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(b"".join(encode_request("POST", CHAT_PATH, MOCK_HEADERS, body) for body in bodies))
        responses = [connection.read_response() for _ in bodies]
    assert [response.end_reason for response in responses] == ["chunk", "length"] * 3
    assert [response.stable_body for response in responses] == [
        send_raw_request(provider.url, CHAT_PATH, body, JSON_HEADERS).stable_body for body in bodies
    ]


def test_client_that_expects_100_continue_gets_it(running_gateway: Gateway):
    body = chat_body()
    with RawConnection(running_gateway.base_url, timeout=5) as connection:
        connection.send(
            encode_request(
                "POST", CHAT_PATH, {**MOCK_HEADERS, "expect": "100-continue", "content-length": str(len(body))}
            )
        )
        assert connection.socket.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.send(body)
        # The blank line after the 100 may arrive separately.
        assert connection.read_response().status == 200


def test_closes_the_connection_if_asked_to(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        response = connection.request(CHAT_PATH, chat_body(stream=True), {**MOCK_HEADERS, "connection": "close"})
        assert response.events[-1] == b"data: [DONE]"
        assert connection.is_closed()


def test_http_1_0_stream_ends_with_the_connection(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(
            encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body(stream=True)).replace(
                b" HTTP/1.1\r\n", b" HTTP/1.0\r\n"
            )
        )
        response = connection.read_response()
    assert (response.status, response.end_reason, response.events[-1]) == (200, "close", b"data: [DONE]")


def test_serves_a_client_with_a_connection_pool(running_gateway: Gateway):
    with httpx2.Client(base_url=running_gateway.base_url, headers=MOCK_HEADERS, timeout=20) as client:
        for _ in range(5):
            assert client.post(CHAT_PATH, content=chat_body()).json()["object"] == "chat.completion"
            with client.stream("POST", CHAT_PATH, content=chat_body("mock?chunks=40", stream=True)) as response:
                assert sum(line.startswith("data: ") for line in response.iter_lines()) == 43


@pytest.mark.parametrize("path", ["/v1/x/../keys", "/v1/%2e%2e/x", "/v1/proxy/./x"])
def test_rejects_paths_with_dot_segments(running_gateway: Gateway, provider: Mock, path: str):
    assert send_raw_request(running_gateway.base_url, path).status == 400
    assert not provider.ledger()


# ── HTTP/2 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def has_http2_curl() -> bool:
    curl = shutil.which("curl")
    return bool(curl) and b"HTTP2" in subprocess.run([curl, "--version"], check=True, capture_output=True).stdout


requires_http2_curl = pytest.mark.skipif(not has_http2_curl(), reason="needs a curl with HTTP/2")


def run_curl(running_gateway: Gateway, path: str, body: bytes, folder: Path, *options: str) -> tuple[bytes, str]:
    """Sends a request over HTTP/2 without TLS; returns the response body and `version status`."""
    sent, got = folder / "sent", folder / "got"
    sent.write_bytes(body)
    headers = [part for name, value in MOCK_HEADERS.items() for part in ("-H", f"{name}: {value}")]
    command = [
        "curl",
        "--silent",
        "--show-error",
        "--no-buffer",
        "--http2-prior-knowledge",
        "--max-time",
        "30",
        *headers,
    ]
    command += [
        "--data-binary",
        f"@{sent}",
        "--output",
        str(got),
        "--write-out",
        "%{http_version} %{http_code}",
        *options,
    ]
    done = subprocess.run(
        [*command, running_gateway.base_url + path], check=True, capture_output=True, text=True, timeout=40
    )
    return got.read_bytes(), done.stdout


@requires_http2_curl
@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH])
@pytest.mark.parametrize("model", ["mock", "mock?chunks=100&chunk_ms=2", "mock?chunks=2000&burst=on"])
def test_http_2_gets_the_same_bytes(running_gateway: Gateway, provider: Mock, path: str, model: str, tmp_path: Path):
    for body in (chat_body(model), chat_body(model, stream=True, stream_options={"include_usage": True})):
        response, content = run_curl(running_gateway, path, body, tmp_path)
        assert content == "2 200"
        assert strip_volatile_fields(response) == send_raw_request(provider.url, path, body, JSON_HEADERS).stable_body


@requires_http2_curl
def test_http_2_carries_a_large_upload(running_gateway: Gateway, tmp_path: Path):
    body = bytes(range(256)) * 8192 * 4
    kind = ("-H", "content-type: application/octet-stream")
    response, content = run_curl(running_gateway, "/v1/files", body, tmp_path, *kind)
    assert content == "2 200"
    assert hashlib.sha256(body).hexdigest().encode() in response
