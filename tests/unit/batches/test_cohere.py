"""A result of Cohere's is read in each of the ways in which one may be told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.batches.input import BatchLine
from penstock.batches.providers.cohere import Cohere

SAID = {
    "id": "c-1",
    "finish_reason": "COMPLETE",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    "usage": {"tokens": {"input_tokens": 3, "output_tokens": 2}},
}
LINE = BatchLine(
    "one", "POST", "/v1/chat/completions", {"model": "command-a", "messages": [{"role": "user", "content": "?"}]}
)


def told(result: dict[str, Any]) -> Any:
    nobody: Any = None
    return Cohere(nobody).parse_result(LINE, json.dumps({"custom_id": "1", **result}).encode())


@pytest.mark.parametrize(
    "result",
    [
        {"body": SAID},
        {"body": json.dumps(SAID)},
        {"response": SAID},
        {"response": json.dumps(SAID)},
        {"body": None, "response": {"status_code": 200, "body": SAID}},
    ],
)
def test_an_answer_is_found_by_itself_and_within_another(result: dict[str, Any]):
    found = told(result)
    assert found.error is None
    assert b'"content":"Yes."' in json.dumps(found.response, separators=(",", ":")).encode()


def test_a_line_without_an_answer_has_failed():
    for result in ({}, {"body": None, "error": {"message": "too long"}}, {"response": SAID, "error": "too long"}):
        found = told(result)
        assert found.response is None
        assert found.error["code"] == "provider_failed"
