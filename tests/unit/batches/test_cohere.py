"""Cohere batch results in each of the documented shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.batches.input import BatchLine
from penstock.batches.providers.cohere import Cohere

CHAT_RESPONSE = {
    "id": "c-1",
    "finish_reason": "COMPLETE",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    "usage": {"tokens": {"input_tokens": 3, "output_tokens": 2}},
}
BATCH_LINE = BatchLine(
    "one", "POST", "/v1/chat/completions", {"model": "command-a", "messages": [{"role": "user", "content": "?"}]}
)


def parse_result(result: dict[str, Any]) -> Any:
    no_match: Any = None
    return Cohere(no_match).parse_result(BATCH_LINE, json.dumps({"custom_id": "1", **result}).encode())


@pytest.mark.parametrize(
    "result",
    [
        {"body": CHAT_RESPONSE},
        {"body": json.dumps(CHAT_RESPONSE)},
        {"response": CHAT_RESPONSE},
        {"response": json.dumps(CHAT_RESPONSE)},
        {"body": None, "response": {"status_code": 200, "body": CHAT_RESPONSE}},
    ],
)
def test_finds_a_plain_or_nested_response(result: dict[str, Any]):
    actual = parse_result(result)
    assert actual.error is None
    assert b'"content":"Yes."' in json.dumps(actual.response, separators=(",", ":")).encode()


def test_line_without_a_response_has_failed():
    for result in (
        {},
        {"body": None, "error": {"message": "too long"}},
        {"response": CHAT_RESPONSE, "error": "too long"},
    ):
        actual = parse_result(result)
        assert actual.response is None
        assert actual.error["code"] == "provider_failed"
