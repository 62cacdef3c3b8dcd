"""Invalid and unusual JSON bodies on every route. They are rejected with the byte position or forwarded unchanged,
without delay.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import CHAT_PATH, MESSAGES_PATH, MOCK_HEADERS, RawConnection, chat_body, encode_request

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

# `test_bodies.py` sends bodies in both entry modes.
ONE_ENTRY_MODE = True
TABLES = {"limits": {"body_bytes": 60_000_000}}
JSON_ROUTES = [
    CHAT_PATH,
    MESSAGES_PATH,
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/messages/count_tokens",
    "/v1/ocr",
    "/v1/batches",
    "/v1/fine_tuning/jobs",
]
# Routes that do not forward the body unchanged.
TRANSLATED_ROUTES = ["/v1/explain", "/v1/models/mock:generateContent", "/v1/model/mock/converse"]
# Routes that forward any body.
PASSTHROUGH_ROUTES = [
    "/v1/assistants",
    "/v1/threads/t-1/runs",
    "/v1/vector_stores",
    "/v1/anything",
    "/v1/proxy/chat/completions",
]
# Parsing cases of JSONTestSuite; the licence is in the same folder.
SUITE_FILE = Path(__file__).parents[1] / "vectors" / "json_test_suite.txt"


def decode_part(text: str) -> bytes:
    digits, _, times = text.partition("*")
    return bytes.fromhex(digits) * int(times or 1)


def load_cases() -> list[tuple[str, bytes]]:
    """Returns each case by name: `y` is valid JSON, `n` is invalid, `i` is up to the implementation."""
    lines = (line.split(" ") for line in SUITE_FILE.read_text().splitlines())
    return [(name, b"".join(map(decode_part, parts))) for name, *parts in lines]


def embed_in_request(value: bytes) -> bytes:
    return b'{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"x":' + value + b"}"


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_json_test_suite_is_accepted_or_rejected_as_specified(running_gateway: Gateway, provider: Mock, path: str):
    forwarded, slowest = [], 0.0
    with RawConnection(running_gateway.base_url) as connection:
        for name, text in load_cases():
            for body in (text, embed_in_request(text)):
                started = time.monotonic()
                response = connection.request(path, body)
                slowest = max(slowest, time.monotonic() - started)
                refused = response.status == 400 and re.search(rb"invalid JSON body at byte \d+: ", response.body)
                if not refused:
                    assert response.status < 500, (name, response)
                    forwarded.append(len(body))
                if name.startswith("n"):
                    assert refused, (name, response)
                if name.startswith("y"):
                    assert bool(refused) == (not body.lstrip().startswith(b"{")), (name, response)
    received = [entry["body_bytes"] for entry in provider.ledger()]
    assert received == forwarded
    assert received
    # Work that grows faster than the body would take much longer for several hundred thousand bytes.
    assert slowest < 5


@pytest.mark.parametrize("path", TRANSLATED_ROUTES)
def test_json_test_suite_causes_no_error_on_translated_routes(running_gateway: Gateway, path: str):
    with RawConnection(running_gateway.base_url) as connection:
        for name, text in load_cases():
            for body in (text, embed_in_request(text)):
                response = connection.request(path, body)
                assert response.status < 500, (name, response)
                assert response.status == 400 or not name.startswith("n"), (name, response)


@pytest.mark.parametrize("path", PASSTHROUGH_ROUTES)
def test_passthrough_routes_forward_any_body_unchanged(running_gateway: Gateway, provider: Mock, path: str):
    # A config sets parameters in JSON objects only. The mock provider may reject a body that it cannot read; the
    # gateway must not.
    config = {"x-gateway-config": '{"provider":"mock","override_params":{"y":1}}'}
    bodies = [body for _, text in load_cases() for body in (text, embed_in_request(text))]
    with RawConnection(running_gateway.base_url) as connection:
        for body in bodies:
            assert connection.request(path, body).status < 500, body[:99]
        assert [entry["body_bytes"] for entry in provider.ledger()] == [len(body) for body in bodies]
        for body in bodies:
            assert connection.request(path, body, {**MOCK_HEADERS, **config}).status < 500, body[:99]


HARD_CASES = {
    "deep": (embed_in_request(b"[" * 100_000 + b"]" * 100_000), 400),
    "deep objects": (b'{"a":' * 100_000, 400),
    "one long string": (embed_in_request(b'"' + b"x" * 50_000_000 + b'"'), 200),
    "a long string of escapes": (embed_in_request(b'"' + b"\\n" * 1_000_000 + b'"'), 200),
    "the same key twice": (embed_in_request(b'1,"x":2'), 200),
    "the model twice": (embed_in_request(b'1,"model":"other"'), 400),
    "the model twice, once escaped": (embed_in_request(b'1,"mod\\u0065l":"other"'), 400),
    "half a pair of surrogates": (embed_in_request(b'"\\ud800"'), 200),
    "a byte order mark": (b"\xef\xbb\xbf" + embed_in_request(b"1"), 400),
    "UTF-16": (embed_in_request(b"1").decode().encode("utf-16"), 400),
    "no UTF-8": (embed_in_request(b'"\xff"'), 400),
    "a surrogate in UTF-8": (embed_in_request(b'"\xed\xa0\x80"'), 400),
    "nothing": (b"", 400),
    "an array": (b"[" + embed_in_request(b"1") + b"]", 400),
    "a text": (b'"x"', 400),
    "a compressed body": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", 400),
    "a million members": (embed_in_request(b"[" + b"0," * 1_000_000 + b"0]"), 200),
}


@pytest.mark.parametrize("name", HARD_CASES)
def test_hard_cases_are_accepted_or_rejected_without_failure(running_gateway: Gateway, provider: Mock, name: str):
    body, status = HARD_CASES[name]
    with RawConnection(running_gateway.base_url) as connection:
        response = connection.request(CHAT_PATH, body)
        assert response.status == status, response
        assert connection.request(CHAT_PATH, chat_body()).status == 200
    if status == 200:
        assert provider.ledger()[0]["body_bytes"] == len(body)


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/jsonl", "x"])
def test_operations_accept_only_json_content_types(running_gateway: Gateway, kind: str):
    with RawConnection(running_gateway.base_url) as connection:
        response = connection.request(CHAT_PATH, chat_body(), {**MOCK_HEADERS, "content-type": kind})
        assert (response.status, response.json()["error"]["code"]) == (400, "invalid_header")
        assert "content-type" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["application/octet-stream", "application/jsonl", "application/sdp", "text/csv", "audio/wav", ""]
)
def test_passthrough_routes_accept_any_content_type(running_gateway: Gateway, provider: Mock, kind: str):
    with RawConnection(running_gateway.base_url) as connection:
        fields = {name: value for name, value in MOCK_HEADERS.items() if name != "content-type"}
        assert (
            connection.request(
                "/v1/proxy/anything", b"\x00\xff{", {**fields, **({"content-type": kind} if kind else {})}
            ).status
            == 200
        )
    assert provider.ledger()[0]["body_bytes"] == 3


def test_rejects_a_compressed_body(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(
            encode_request(
                "POST", CHAT_PATH, {**MOCK_HEADERS, "content-encoding": "gzip"}, b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
            )
        )
        response = connection.read_response()
    assert (response.status, response.json()["error"]["code"]) == (400, "invalid_header")
    assert "content-encoding" in response.json()["error"]["message"]
