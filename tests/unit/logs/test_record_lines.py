"""Record lines of killed requests: what is known of them, and the tokens that are counted in their bodies."""

from __future__ import annotations

import json
import uuid
from typing import Any

from penstock.logs.batch import Position
from penstock.logs.body_text import extract_text
from penstock.logs.record_lines import amend_line, find_missing_usage, make_line_of_killed_request
from penstock.logs.spool_format import CLIENT_REQUEST, CLIENT_RESPONSE, UPSTREAM_RESPONSE
from penstock.logs.spool_reader import KILLED, UNAMENDED, BodyReference, OpenRequest, SpoolEvent

QUESTION = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "Is the gate open?"}]}).encode()
STREAM = b"".join(
    b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word for word in (b"The gate", b" is open", b" today")
)


def read_killed(bodies: dict[int, bytes], **begin: Any) -> dict[str, Any]:
    fields = {"created_at": "2026-11-20T12:00:00.000Z", "operation": "chatComplete", "ai_model": "gpt-5", **begin}
    references = [BodyReference(kind, 1, 0, len(body)) for kind, body in bodies.items()]
    request = OpenRequest(1, json.dumps(fields).encode(), bodies=references)
    event = SpoolEvent(KILLED, 0, uuid.uuid4().bytes, request.begin, request, Position(1, 0))
    return json.loads(make_line_of_killed_request(event, lambda _request: bodies))


def test_tokens_of_a_killed_request_are_counted_in_what_is_known():
    record = read_killed({CLIENT_REQUEST: QUESTION, UPSTREAM_RESPONSE: STREAM})
    assert (record["outcome"], record["is_success"], record["units_estimated"]) == ("killed", False, True)
    # Five words and a mark, the start of the message and of the response.
    assert record["req_units"] in range(10, 20)
    assert record["res_units"] == 5
    assert (record["total_units"], record["bytes_out"]) == (record["req_units"] + 5, len(STREAM))
    assert not {"response_status_code", "cost_nanodollars"} & record.keys()


def test_response_of_the_client_is_counted_if_there_is_one():
    record = read_killed({CLIENT_REQUEST: QUESTION, UPSTREAM_RESPONSE: b"x", CLIENT_RESPONSE: STREAM})
    assert (record["res_units"], record["bytes_out"]) == (5, len(STREAM))


def test_killed_requests_without_text_have_no_tokens():
    assert "total_units" not in read_killed({})
    assert "total_units" not in read_killed({CLIENT_REQUEST: b"{}"}, operation="files")
    cut = read_killed({CLIENT_REQUEST: QUESTION[:-9]})
    assert cut["req_units"] > 0
    assert read_killed({CLIENT_REQUEST: QUESTION, CLIENT_RESPONSE: STREAM}, operation="embed")["res_units"] == 0


def read_missing(bodies: dict[int, bytes], **fields: Any) -> dict[str, Any]:
    record = {"operation": "chatComplete", "ai_model": "gpt-5", "bytes_out": 999, **fields}
    references = [BodyReference(kind, 1, 0, len(body)) for kind, body in bodies.items()]
    request = OpenRequest(1, json.dumps(record).encode(), bodies=references)
    event = SpoolEvent(UNAMENDED, 0, uuid.uuid4().bytes, request.begin, request, Position(1, 0))
    return find_missing_usage(event, lambda _request: bodies)


def test_usage_without_an_amendment_is_what_was_known_or_is_counted():
    bodies = {CLIENT_REQUEST: QUESTION, UPSTREAM_RESPONSE: STREAM}
    known = {"req_units": 3, "res_units": 4, "total_units": 7, "cost_nanodollars": 5}
    assert read_missing(bodies, pending_usage=known) == known
    counted = read_missing(bodies, pending_usage={})
    assert (counted["res_units"], counted["units_estimated"]) == (5, True)
    assert counted.keys() == {"req_units", "res_units", "total_units", "units_estimated"}
    # The request has no usage, or its bodies are not recorded.
    assert read_missing(bodies) == read_missing({}, pending_usage={}) == {}


def test_amended_record_has_no_pending_usage():
    line = amend_line(b'{"id":1,"pending_usage":{"total_units":7}}', {"total_units": 8})
    assert json.loads(line) == {"id": 1, "total_units": 8}


def make_stream(events: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


def test_finished_text_of_a_responses_stream_is_counted_once():
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in ("The gate", " is open", " today")]
    part = {"type": "output_text", "text": "The gate is open today"}
    item = {"type": "message", "content": [part]}
    repeats = [
        {"type": "response.output_text.done", "text": part["text"]},
        {"type": "response.content_part.done", "part": part},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"output": [item]}},
    ]
    stream = make_stream(deltas + repeats)
    record = read_killed({CLIENT_REQUEST: b'{"input":"x"}', CLIENT_RESPONSE: stream}, operation="createModelResponse")
    assert record["res_units"] == 5
    # The search finds the words of all events.
    assert extract_text(stream).count("gate") == 5


def test_all_tokens_of_a_long_response_are_counted():
    stream = make_stream([{"choices": [{"delta": {"content": " gate" * 1000}}]}] * 100)
    record = read_killed({CLIENT_REQUEST: QUESTION, CLIENT_RESPONSE: stream})
    assert record["res_units"] == 100_000
