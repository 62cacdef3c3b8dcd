"""Bodies of every kind on the routes that have them: forms, files of any size, audio, event streams, and empty bodies."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.integration import memory
from tests.integration.raw_http import JSON_HEADERS, MOCK_HEADERS, RawConnection, encode_request, send_raw_request
from tests.integration.serving import count_settled_records, edge_pids, provider_headers

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

FORM_HEADERS = {**MOCK_HEADERS, "content-type": "multipart/form-data; boundary=b0undary"}
LARGE_BYTES = 100_000_000


def form_part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--b0undary\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form_body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b0undary--\r\n"


AUDIO_PART = form_part("file", bytes(range(256)) * 40, '; filename="a.wav"')
MODEL_PART = form_part("model", b"whisper-1")
STREAM_PART = form_part("stream", b"true")


@pytest.mark.parametrize(
    ("method", "path", "kind", "body"),
    [
        ("POST", "/v1/audio/speech", JSON_HEADERS, b'{"model": "mock", "voice": "alloy", "input": "hi"}'),
        ("POST", "/v1/audio/speech", JSON_HEADERS, b'{"model": "mock", "input": "hi", "stream_format": "sse"}'),
        ("POST", "/v1/audio/transcriptions", FORM_HEADERS, form_body(AUDIO_PART, STREAM_PART, MODEL_PART)),
        ("GET", "/v1/files/file-1/content", {}, None),
        ("GET", "/v1/files/file-1/content?mock-response_bytes=3000000", {}, None),
        ("GET", "/v1/proxy/files/file-1/content", {}, None),
        ("GET", "/v1/files/file-1/content?mock-fault=gzip", {}, None),
        ("GET", "/v1/files/file-1/content?mock-status=204", {}, None),
        ("GET", "/v1/files/file-1/content?mock-status=304", {}, None),
        ("GET", "/v1/proxy/files/file-1?mock-status=404", {}, None),
        ("HEAD", "/v1/files/file-1/content", {}, None),
    ],
)
def test_response_of_any_kind_equals_the_providers(
    running_gateway: Gateway, provider: Mock, method: str, path: str, kind: dict[str, str], body: bytes | None
):
    direct = send_raw_request(provider.url, path.replace("/proxy", ""), body, kind, method=method)
    response = send_raw_request(running_gateway.base_url, path, body, {**MOCK_HEADERS, **kind}, method=method)
    assert (response.status, response.stable_body) == (direct.status, direct.stable_body)
    assert provider_headers(response) == provider_headers(direct)


@pytest.mark.parametrize(
    "parts", [(MODEL_PART, STREAM_PART, AUDIO_PART), (AUDIO_PART, STREAM_PART, MODEL_PART)], ids=["first", "last"]
)
def test_record_contains_values_of_a_form(running_gateway: Gateway, parts: tuple[bytes, ...]):
    known = count_settled_records(running_gateway)
    assert (
        send_raw_request(running_gateway.base_url, "/v1/audio/transcriptions", form_body(*parts), FORM_HEADERS).status
        == 200
    )
    record = running_gateway.records(known + 1)[-1]
    received = [record[name] for name in ("operation", "ai_model", "stream_mode", "is_proxy_call")]
    assert received == ["createTranscription", "whisper-1", True, False]


def test_upload_of_100_mb_uses_little_memory(running_gateway: Gateway, provider: Mock):
    (edge,) = edge_pids(running_gateway)
    head, tail = form_part("file", b"", '; filename="a.wav"')[:-2], b"\r\n" + form_body(MODEL_PART)
    block = bytes(range(256)) * 4096
    filler = LARGE_BYTES - len(head) - len(tail)
    chunks = [head, *[block] * (filler // len(block)), block[: filler % len(block)], tail]
    known = count_settled_records(running_gateway)
    # Warm-up, so that memory which the process keeps after a first large upload is already allocated.
    send_raw_request(
        running_gateway.base_url, "/v1/files", form_body(form_part("file", block * 2, '; filename="b"')), FORM_HEADERS
    )
    before = memory.rss(edge)
    memory.reset_peak_rss(edge)
    with RawConnection(running_gateway.base_url, timeout=50) as connection:
        connection.send(encode_request("POST", "/v1/files", {**FORM_HEADERS, "content-length": str(LARGE_BYTES)}))
        for chunk in chunks:
            connection.send(chunk)
        response = connection.read_response()
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    assert response.json()["body_sha"] == digest.hexdigest()
    assert running_gateway.records(known + 2)[-1]["ai_model"] == "whisper-1"
    grown = memory.peak_rss(edge) - before
    assert grown < 8 * memory.MIB, f"{grown / memory.MIB:.1f} MiB for an upload of 100 MB"
    assert [received["body_bytes"] for received in provider.ledger()][-1] == LARGE_BYTES


def test_download_of_100_mb_uses_little_memory(running_gateway: Gateway, provider: Mock):
    (edge,) = edge_pids(running_gateway)
    path = "/v1/files/file-1/content"
    row = send_raw_request(provider.url, path, None, {}).body
    send_raw_request(running_gateway.base_url, f"{path}?mock-response_bytes=2000000", None, MOCK_HEADERS)
    before = memory.rss(edge)
    memory.reset_peak_rss(edge)
    got, length = hashlib.sha256(), 0
    with RawConnection(running_gateway.base_url, timeout=50) as connection:
        connection.send(encode_request("GET", f"{path}?mock-response_bytes={LARGE_BYTES}", MOCK_HEADERS))
        response = connection.read_head()
        for chunk in connection.iter_body(response):
            got.update(chunk)
            length += len(chunk)
    assert (response.status, response.end_reason, length) == (200, "length", LARGE_BYTES)
    assert got.hexdigest() == hashlib.sha256((row * (LARGE_BYTES // len(row) + 1))[:LARGE_BYTES]).hexdigest()
    grown = memory.peak_rss(edge) - before
    assert grown < 8 * memory.MIB, f"{grown / memory.MIB:.1f} MiB for a download of 100 MB"


@pytest.mark.parametrize("method", ["PROPFIND", "REPORT", "QUERY", "M-SEARCH"])
def test_http_extension_methods_reach_the_provider(running_gateway: Gateway, method: str):
    echo = send_raw_request(running_gateway.base_url, "/v1/proxy/echo", b"what", MOCK_HEADERS, method=method)
    assert (echo.status, echo.json()["method"], echo.json()["body_bytes"]) == (200, method, 4)
