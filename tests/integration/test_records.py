"""Each request leaves one line, with what is known of it and without a single secret."""

from __future__ import annotations

import datetime as dt
import stat
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
    answer = ask(served.base_url, CHAT, asked(), {**HEADERS, **fields, "x-gateway-metadata": '{"_user":"ann","n":"1"}'})
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


def test_who_asks_for_no_debugging_leaves_figures_alone(served: Gateway, new: Callable[..., list[dict[str, Any]]]):
    for said in ("false", "False", "true", "0"):
        ask(served.base_url, CHAT, asked(), {**HEADERS, "x-gateway-debug": said, "x-note": "private-17"})
    *discreet, usual, other = new(4)
    for record in discreet:
        assert (record["debug"], record["total_units"], "request_headers" in record) == (False, 20, False)
        assert "private-17" not in str(record)
    for record in (usual, other):
        assert ("debug" in record, record["request_headers"]["x-note"]) == (False, "private-17")


@pytest.mark.parametrize(
    ("path", "said", "kept"),
    [
        ("/v1/audio/transcriptions", "61500", 61500.0),
        ("/v1/audio/translations", "0.5", 0.5),
        ("/v1/proxy/audio/transcriptions", "7", 7.0),
        ("/v1/audio/transcriptions", "-1", None),
        ("/v1/audio/transcriptions", "nan", None),
        ("/v1/audio/transcriptions", "1e300", None),
        ("/v1/audio/transcriptions", "long", None),
        ("/v1/audio/speech", "61500", None),
        (CHAT, "61500", None),
    ],
)
def test_how_long_a_recording_lasts_is_kept(
    served: Gateway, new: Callable[..., list[dict[str, Any]]], path: str, said: str, kept: float | None
):
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nmock\r\n--b--\r\n'
    is_form = "/trans" in path
    kind = {"content-type": "multipart/form-data; boundary=b"} if is_form else {}
    ask(served.base_url, path, form if is_form else asked(), {**HEADERS, **kind, "x-gateway-audio-file-duration": said})
    (record,) = new()
    assert record.get("audio_file_duration") == kept
