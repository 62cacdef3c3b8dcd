"""SDKs of other vendors, and frameworks built on them, through the gateway to a provider of each API format. The mock
provider validates the requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.python.packages import KEY, run_sdk_script
from tests.e2e.saved_providers import PATH_PREFIXES, provider_rows
from tests.gateway import Gateway, Mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESPONSE_TEXT = "Hello from the pretend provider: all is well. "


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Runs a gateway with five providers, each of them the mock provider in another API format."""
    folder = tmp_path_factory.mktemp("sdks")
    mock = Mock(folder)
    tables = {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": provider_rows(mock),
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(folder, tables, {})
    yield running
    running.stop()
    mock.stop()


EXPECTED_EMBEDDINGS_AND_COUNTS: dict[tuple[str, str, str], object] = {
    ("google_sdk.py", "openai", "embed_texts"): [3, 3],
    ("google_sdk.py", "google", "embed_texts"): [3, 3],
    ("google_sdk.py", "cohere", "embed_texts"): [3, 3],
    ("google_sdk.py", "anthropic", "embed_texts"): [500, "INTERNAL"],
    ("google_sdk.py", "bedrock", "embed_texts"): [400, "INVALID_ARGUMENT"],
    # OpenAI and Cohere count no tokens here, so the gateway counts "say something" itself.
    ("google_sdk.py", "openai", "count_tokens"): 2,
    ("google_sdk.py", "cohere", "count_tokens"): 2,
    ("google_sdk.py", "google", "count_tokens"): 12,
    ("google_sdk.py", "anthropic", "count_tokens"): 12,
    ("google_sdk.py", "bedrock", "count_tokens"): 12,
    ("boto3_sdk.py", "openai", "count_tokens"): 9,
    ("boto3_sdk.py", "cohere", "count_tokens"): 9,
    ("boto3_sdk.py", "google", "count_tokens"): 12,
    ("boto3_sdk.py", "anthropic", "count_tokens"): 12,
    ("boto3_sdk.py", "bedrock", "count_tokens"): 12,
    ("boto3_sdk.py", "openai", "count_claude_tokens"): 9,
    ("boto3_sdk.py", "cohere", "count_claude_tokens"): 9,
    ("boto3_sdk.py", "google", "count_claude_tokens"): 12,
    ("boto3_sdk.py", "anthropic", "count_claude_tokens"): 12,
    ("boto3_sdk.py", "bedrock", "count_claude_tokens"): 12,
}
REQUIRED_CALLS = ("send_chat", "stream_chat", "call_tool", "provoke_error")


@pytest.mark.parametrize(
    ("script", "refusal"),
    [
        ("google_sdk.py", [429, "RESOURCE_EXHAUSTED"]),
        ("boto3_sdk.py", [429, "ThrottlingException"]),
        ("mistral_sdk.py", [429]),
        ("litellm_sdk.py", [429]),
        ("langchain_sdk.py", [429]),
        ("agents_sdk.py", [429]),
    ],
)
def test_sdk_reaches_every_provider_with_streams_tools_and_errors(
    running_gateway: Gateway, script: str, refusal: list[object]
):
    received = run_sdk_script(script, running_gateway, list(PATH_PREFIXES))
    expected: dict[str, object] = {
        "send_chat": [RESPONSE_TEXT, 12, 8],
        "stream_chat": [RESPONSE_TEXT, 12, 8],
        "call_tool": ["weather", True, True],
        "stream_tool_call": [["weather", True]],
        "provoke_error": refusal,
        "invoke_chat": [RESPONSE_TEXT, 12, 8],
        "invoke_chat_stream": [RESPONSE_TEXT, 12, 8],
        "instructed": True,
    }
    # A stream reports usage only if the client requests it, and Mistral's SDK cannot.
    unasked = {("mistral_sdk.py", provider, "stream_chat"): [RESPONSE_TEXT, None, None] for provider in PATH_PREFIXES}
    special = unasked | EXPECTED_EMBEDDINGS_AND_COUNTS
    wrong = {
        call: actual
        for call, actual in received.items()
        if actual != special.get((script, *call), expected.get(call[1]))
    }
    assert not wrong
    assert len({provider.split()[0] for provider, _ in received}) == len(PATH_PREFIXES)
    assert set(REQUIRED_CALLS) <= {call for _, call in received}


def test_cohere_sdk_passes_through_and_its_usage_is_recorded(running_gateway: Gateway):
    before = len(running_gateway.records(0))
    received = run_sdk_script("cohere_sdk.py", running_gateway, ["cohere"])
    called = [["clock", {"zone": "UTC"}]]
    assert received == {
        ("cohere", "send_chat"): [RESPONSE_TEXT, [12, 8]],
        ("cohere", "stream_chat"): [RESPONSE_TEXT, [12, 8]],
        ("cohere", "call_tool"): called,
        ("cohere", "stream_tool_call"): called,
        ("cohere", "send_tool_result"): "COMPLETE",
        ("cohere", "embed_texts"): [True, True],
        ("cohere", "rerank_documents"): [0, 1],
        ("cohere", "provoke_error"): [429],
    }
    records = running_gateway.records(before + len(received))[before:]
    used = [(record.get("req_units"), record.get("res_units")) for record in records]
    assert used == [(12, 8)] * 5 + [(12, 0), (0, 0), (None, None)]
    assert records[6]["usage"] == {"rankings": 1}


def test_cohere_sdk_passes_through_to_aimock(gateway: Callable[..., Gateway], aimock: str):
    tables = {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": [{"slug": "cohere", "provider": "cohere", "api_key": "sk-stored", "custom_host": aimock}],
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    received = run_sdk_script("cohere_sdk.py", gateway(tables), ["cohere"])
    weather = "Sunny, with a light wind from the west and no cloud before the evening."
    clock = [["clock", {"zone": "UTC"}]]
    assert received == {
        ("cohere", "send_chat"): [weather, [0, 0]],
        ("cohere", "stream_chat"): [weather, [0, 0]],
        ("cohere", "call_tool"): clock,
        ("cohere", "stream_tool_call"): clock,
        # aimock responds to the last user message and ignores tool results.
        ("cohere", "send_tool_result"): "TOOL_CALL",
        ("cohere", "embed_texts"): [True, True],
        # aimock has no fixture for reranking, so it returns no results.
        ("cohere", "rerank_documents"): [],
        ("cohere", "provoke_error"): [404],
    }
