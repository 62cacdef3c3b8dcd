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
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
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
    ("google_sdk.py", "openai", "vectors"): [3, 3],
    ("google_sdk.py", "google", "vectors"): [3, 3],
    ("google_sdk.py", "cohere", "vectors"): [3, 3],
    ("google_sdk.py", "anthropic", "vectors"): [500, "INTERNAL"],
    ("google_sdk.py", "bedrock", "vectors"): [400, "INVALID_ARGUMENT"],
    # OpenAI and Cohere count no tokens here, so the gateway counts "say something" itself.
    ("google_sdk.py", "openai", "counted"): 2,
    ("google_sdk.py", "cohere", "counted"): 2,
    ("google_sdk.py", "google", "counted"): 12,
    ("google_sdk.py", "anthropic", "counted"): 12,
    ("google_sdk.py", "bedrock", "counted"): 12,
    ("boto3_sdk.py", "openai", "counted"): 9,
    ("boto3_sdk.py", "cohere", "counted"): 9,
    ("boto3_sdk.py", "google", "counted"): 12,
    ("boto3_sdk.py", "anthropic", "counted"): 12,
    ("boto3_sdk.py", "bedrock", "counted"): 12,
    ("boto3_sdk.py", "openai", "counted_for_claude"): 9,
    ("boto3_sdk.py", "cohere", "counted_for_claude"): 9,
    ("boto3_sdk.py", "google", "counted_for_claude"): 12,
    ("boto3_sdk.py", "anthropic", "counted_for_claude"): 12,
    ("boto3_sdk.py", "bedrock", "counted_for_claude"): 12,
}
REQUIRED_CALLS = ("whole", "streamed", "tool", "error")


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
def test_sdk_reaches_every_provider_with_streams_tools_and_errors(served: Gateway, script: str, refusal: list[object]):
    received = run_sdk_script(script, served, list(PATH_PREFIXES))
    expected: dict[str, object] = {
        "whole": [RESPONSE_TEXT, 12, 8],
        "streamed": [RESPONSE_TEXT, 12, 8],
        "tool": ["weather", True, True],
        "tool_streamed": [["weather", True]],
        "error": refusal,
        "invoke_whole": [RESPONSE_TEXT, 12, 8],
        "invoke_streamed": [RESPONSE_TEXT, 12, 8],
        "instructed": True,
    }
    # A stream reports usage only if the client requests it, and Mistral's SDK cannot.
    unasked = {("mistral_sdk.py", provider, "streamed"): [RESPONSE_TEXT, None, None] for provider in PATH_PREFIXES}
    special = unasked | EXPECTED_EMBEDDINGS_AND_COUNTS
    wrong = {
        call: actual
        for call, actual in received.items()
        if actual != special.get((script, *call), expected.get(call[1]))
    }
    assert not wrong
    assert len({provider.split()[0] for provider, _ in received}) == len(PATH_PREFIXES)
    assert set(REQUIRED_CALLS) <= {call for _, call in received}


def test_cohere_sdk_passes_through_and_its_usage_is_recorded(served: Gateway):
    before = len(served.records(0))
    received = run_sdk_script("cohere_sdk.py", served, ["cohere"])
    called = [["clock", {"zone": "UTC"}]]
    assert received == {
        ("cohere", "whole"): [RESPONSE_TEXT, [12, 8]],
        ("cohere", "streamed"): [RESPONSE_TEXT, [12, 8]],
        ("cohere", "tool"): called,
        ("cohere", "tool_streamed"): called,
        ("cohere", "tool_answered"): "COMPLETE",
        ("cohere", "embedded"): [True, True],
        ("cohere", "ranked"): [0, 1],
        ("cohere", "error"): [429],
    }
    records = served.records(before + len(received))[before:]
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
        ("cohere", "whole"): [weather, [0, 0]],
        ("cohere", "streamed"): [weather, [0, 0]],
        ("cohere", "tool"): clock,
        ("cohere", "tool_streamed"): clock,
        # aimock responds to the last user message and ignores tool results.
        ("cohere", "tool_answered"): "TOOL_CALL",
        ("cohere", "embedded"): [True, True],
        # aimock has no fixture for reranking, so it returns no results.
        ("cohere", "ranked"): [],
        ("cohere", "error"): [404],
    }
