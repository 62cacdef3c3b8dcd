"""Each request leaves one line, with what is known of it and without a single secret."""

from __future__ import annotations

import base64
import datetime as dt
import json
import stat
import urllib.parse
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.serving import running, settled
from tests.integration.wire import CHAT, JSON, MESSAGES, MOCK, Wire, ask, asked, request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.gateway import Gateway, Mock

TABLES = {"keys": [{"name": "k", "id": "k-1", "key": "pk-0123456789"}], "records": {"sensitive_headers": ["x-team"]}}
HEADERS = {**MOCK, "x-gateway-api-key": "pk-0123456789"}


@pytest.fixture
def new(served: Gateway) -> Callable[..., list[dict[str, Any]]]:
    """Wait for the records of this test."""
    before = settled(served, HEADERS)
    return lambda count=1: served.records(before + count)[before:]


def test_a_whole_call(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    answer = ask(served.base_url, CHAT, asked(), HEADERS)
    (record,) = new()
    expected = {
        "request_method": "POST",
        "request_url": CHAT,
        "response_status_code": 200,
        "is_success": True,
        "outcome": "complete",
        "ai_org": "mock",
        "ai_model": "mock",
        "operation": "chatComplete",
        "mode": "single",
        "is_proxy_call": False,
        "stream_mode": False,
        "req_units": 12,
        "res_units": 8,
        "total_units": 20,
        "cache_status": "disabled",
        "retry_success_count": 0,
        "last_used_option_index": "config",
        "api_key_id": "k-1",
        "bytes_out": len(answer.body),
        "worker": 1,
    }
    assert {name: record.get(name) for name in expected} == expected
    assert record["trace_id"] == record["id"] == answer.get("x-gateway-trace-id")
    assert 0 < record["upstream_response_time"] <= record["time_to_first_byte"] <= record["response_time"] < 20_000
    created = dt.datetime.fromisoformat(record["created_at"])
    assert abs((dt.datetime.now(dt.UTC) - created).total_seconds()) < 60


@pytest.mark.parametrize(("path", "operation"), [(CHAT, "chatComplete"), (MESSAGES, "messages")])
def test_a_stream(served: Gateway, new: Callable[..., list[dict[str, Any]]], path: str, operation: str):
    options = {"include_usage": True} if path == CHAT else {}
    answer = ask(
        served.base_url, path, asked("mock?chunks=5&chunk_ms=20", stream=True, stream_options=options), HEADERS
    )
    (record,) = new()
    assert (record["outcome"], record["stream_mode"], record["operation"]) == ("complete", True, operation)
    assert (record["res_units"], record["bytes_out"]) == (5, len(answer.body))
    assert record["time_to_first_byte"] < record["response_time"]
    assert record["response_time"] >= 80


def test_a_raw_proxy_call(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    ask(served.base_url, "/v1/proxy/some/where?page=2", headers=HEADERS)
    (record,) = new()
    assert (record["is_proxy_call"], record["request_url"]) == (True, "/v1/proxy/some/where?page=2")


def test_what_the_caller_says_about_a_call(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    own = {"trace-id": "t-1", "span-id": "s-1", "span-name": "ask", "parent-span-id": "p-1"}
    fields = {f"x-gateway-{name}": value for name, value in own.items()}
    answer = ask(served.base_url, CHAT, asked(), {**HEADERS, **fields, "x-gateway-metadata": '{"_user":"ann","n":1}'})
    (record,) = new()
    assert {name: record[name.replace("-", "_")] for name in own} == own
    assert record["metadata"] == {"key": ["_user", "n"], "value": ["ann", "1"]}
    assert answer.get("x-gateway-trace-id") == "t-1"


def test_each_refusal_leaves_one(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    refusals = [
        (401, CHAT, asked(), {**HEADERS, "x-gateway-api-key": "pk-wrong"}),
        (400, CHAT, b"{", HEADERS),
        (400, CHAT, asked(), {"x-gateway-api-key": "pk-0123456789", **JSON}),
        (400, CHAT, asked(), {**HEADERS, "x-gateway-provider": "nobody"}),
        (400, CHAT, asked(), {**HEADERS, "x-gateway-config": "pc-nothing"}),
        (408, CHAT, asked("mock?first_ms=5000"), {**HEADERS, "x-gateway-request-timeout": "50"}),
        (502, CHAT, asked("mock?fault=reset"), HEADERS),
    ]
    for status, path, body, headers in refusals:
        assert ask(served.base_url, path, body, headers).status == status
    records = new(len(refusals))
    assert [record["response_status_code"] for record in records] == [status for status, *_ in refusals]
    assert {(record["outcome"], record["is_success"]) for record in records} == {("refused", False)}
    assert all(record["error"] for record in records)


def test_an_error_of_the_providers_is_an_answer(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    ask(served.base_url, CHAT, asked("mock?fault=429"), HEADERS)
    (record,) = new()
    assert (record["response_status_code"], record["outcome"], record["is_success"]) == (429, "complete", False)


def test_a_cut_stream_and_an_aborted_one(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    ask(served.base_url, CHAT, asked("mock?fault=cut", stream=True), HEADERS)
    with Wire(served.base_url) as wire:
        wire.send(request("POST", CHAT, HEADERS, asked("mock?chunks=1000&chunk_ms=20", stream=True)))
        wire.events(wire.head(), 2)
    records = new(2)
    assert [(record["outcome"], record["is_success"]) for record in records] == [("cut", False), ("aborted", False)]


def test_what_is_no_call_leaves_none(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    for path in ("/", "/live", "/ready", "/v1/health", "/v1/version", "/schema", "/nothing", "/metrics"):
        ask(served.base_url, path, headers={})
    ask(served.base_url, CHAT, asked("last"), HEADERS)
    assert [record["ai_model"] for record in new()] == ["last"]


def test_many_at_once_leave_one_each(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    with Wire(served.base_url) as wire:
        for number in range(500):
            wire.ask(CHAT, asked(f"mock-{number}"), HEADERS)
    records = new(500)
    assert [record["ai_model"] for record in records] == [f"mock-{number}" for number in range(500)]
    assert len({record["id"] for record in records}) == 500


def test_odd_text_stays_one_line_of_json(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    headers = {**HEADERS, "user-agent": 'quote " back \\ \xe9 \xff', "x-gateway-metadata": '{"a":"line\\nend\\u2028"}'}
    ask(served.base_url, CHAT, b'{"model":"a\\n\\"b\\u0000\\ud83d\\ude00","messages":[]}', headers)
    (record,) = new()
    assert record["ai_model"].startswith('a\n"b\0')
    assert record["metadata"]["value"] == ["line\nend\u2028"]


def test_the_file_is_for_its_owner_alone(served: Gateway):
    ask(served.base_url, CHAT, asked(), HEADERS)
    served.records(1)
    assert stat.S_IMODE(served.records_file.stat().st_mode) == 0o600


def test_with_records_off_there_are_none(provider: Mock, tmp_path: Path):
    with running(tmp_path, {"mock": {"host": provider.url}, "records": {"enabled": False}}) as gateway:
        assert ask(gateway.base_url, CHAT, asked()).status == 200
    assert not gateway.records_file.exists()


def test_a_file_that_was_moved_away_is_begun_anew(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    ask(served.base_url, CHAT, asked("before"), HEADERS)
    new()
    served.records_file.rename(served.folder / "moved.jsonl")
    ask(served.base_url, CHAT, asked("after"), HEADERS)
    assert [record["ai_model"] for record in served.records(1)] == ["after"]


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def canary(number: int) -> str:
    return f"canary{number:02}-{number * 7919 % 100003:06}-qzxj"


STORED, INLINE, GATEWAY, WRONG, REFERRED = map(canary, range(5))
CANARY_TABLES = {
    "keys": [{"name": "k", "key": GATEWAY}],
    "providers": [
        {"slug": "mine", "provider": "mock", "api_key": STORED},
        {"slug": "env", "provider": "mock", "api_key": "${CANARY_KEY}"},
    ],
    "configs": [{"slug": "pc", "config": {"provider": "mock", "api_key": canary(5)}}],
    "records": {"sensitive_headers": ["X-Team"]},
    "log": {"level": "debug"},
    "metrics": {"enabled": True},
    "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
}
MOCKED = {"x-gateway-provider": "mock", "x-gateway-api-key": GATEWAY, **JSON}


def basic(number: int) -> str:
    return base64.b64encode(f"user:{canary(number)}".encode()).decode()


def canary_requests() -> list[tuple[str, str, bytes | None, dict[str, str]]]:
    """A request for every place that a secret may be in."""
    inline = json.dumps({"provider": "mock", "api_key": INLINE, "unknown": {"api_key": canary(6)}})
    every = [
        {"authorization": f"Bearer {canary(10)}"},
        {"authorization": f"Basic {basic(11)}"},
        {"authorization": canary(12)},
        {"x-api-key": canary(13)},
        {"api-key": canary(14)},
        {"x-goog-api-key": canary(15)},
        {"cookie": f"session={canary(16)}"},
        {"proxy-authorization": f"Basic {canary(17)}"},
        {"x-amz-security-token": canary(18)},
        {"x-team": canary(19)},
        {"x-private": canary(20), "x-gateway-sensitive-headers": "x-private, X-Other"},
        {"x-other": canary(21), "x-gateway-sensitive-headers": "x-private,X-Other"},
        {"x-gateway-config": inline},
        {"x-gateway-config": " " + inline},
        {"x-portkey-config": inline, "x-portkey-api-key": GATEWAY},
        {"x-gateway-config": inline[:-1]},
        {"x-gateway-config": json.dumps({"api_key": canary(7), "retry": "wrong"})},
        {"x-gateway-config": "pc"},
        {"x-gateway-provider": "@mine"},
        {"x-gateway-provider": "@env"},
        {"x-gateway-api-key": WRONG},
        {"x-gateway-aws-secret-access-key": canary(22), "x-gateway-aws-session-token": canary(23)},
        {"x-gateway-vertex-service-account-json": json.dumps({"private_key": canary(24)})},
        {"x-gateway-custom-host": f"http://user:{canary(25)}@127.0.0.1:1/v1"},
        {"x-gateway-custom-host": f"http://127.0.0.1:1/v1?key={canary(26)}"},
    ]
    calls: list[tuple[str, str, bytes | None, dict[str, str]]] = []
    for fields in every:
        calls += [("POST", path, asked(stream=path == MESSAGES), {**MOCKED, **fields}) for path in (CHAT, MESSAGES)]
        calls.append(("GET", "/v1/proxy/some/where", None, {**MOCKED, **fields}))
    for number, name in enumerate(
        ("key", "api_key", "api-key", "apiKey", "access_token", "sig%6Eature", "X-Amz-Signature")
    ):
        query = urllib.parse.quote(name, safe="%") + "=" + canary(30 + number)
        calls.append(("GET", f"/v1/models?a=b&{query}", None, MOCKED))
    # Errors of either side, each with a secret in its body that must stay out of what is written down.
    for model in ("mock?fault=reset", "mock?status=99", "mock?fault=cut", "mock?fault=429"):
        calls.append(("POST", CHAT, asked(model, user=canary(40)), MOCKED))
    calls.append(("POST", CHAT, b'{"api_key": "' + canary(41).encode(), MOCKED))
    return calls


def spellings(secret: str) -> set[bytes]:
    """A secret as it may hide: in clear, in base64, in hex, and each piece of eight characters at its end."""
    raw = secret.encode()
    inner = {base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)}
    return {raw, raw[-8:] if b"qzxj" in raw[-8:] else raw, raw.hex().encode(), *inner}


def test_no_secret_is_written_anywhere(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, **CANARY_TABLES}
    calls = canary_requests()
    with running(tmp_path, tables, env={"CANARY_KEY": REFERRED}) as gateway:
        answers = [ask(gateway.base_url, path, body, headers, method=method) for method, path, body, headers in calls]
        with Wire(gateway.base_url) as wire:
            headers = {**MOCKED, "authorization": f"Bearer {canary(50)}"}
            wire.send(request("POST", CHAT, headers, asked("mock?first_ms=20000")))
            provider.ledger()
        gateway.configure({**CANARY_TABLES, "providers": [{"slug": "p", "api_key": canary(51), "provider": 7}]})
        gateway.records(len(calls) + 1)
        shown = b"".join(
            ask(gateway.base_url, path, headers={"authorization": f"Bearer {canary(52)}"}).body
            for path in ("/metrics", "/v1/health", "/schema/openapi.json", "/v1/nothing", "/live")
        )
    written = {
        "records": gateway.records_file.read_bytes(),
        "output": gateway.program.log.read_bytes(),
        "management": shown,
        # What a request says about itself in an error goes back to its sender alone; what is stored never goes to anyone.
        # The provider repeats what it got where a path is none of its own.
        "answers": b"".join(
            answer.body for answer, (_, path, *_) in zip(answers, calls, strict=True) if "/proxy/" not in path
        ),
    }
    assert len(written["records"].splitlines()) >= len(calls) + 1
    every = {number: spellings(canary(number)) for number in range(60)}
    stored = {0, 2, 4, 5}
    hits = [
        (where, canary(number))
        for where, text in written.items()
        for number, forms in every.items()
        if (where != "answers" or number in stored) and any(form in text for form in forms)
    ]
    assert not hits
    # The records do hold what is no secret.
    assert b"x-gateway-provider" in written["records"]
    assert b"a=b&" in written["records"]
