"""Citations as official SDKs receive them in their own format, buffered and streamed. The providers' responses are
golden files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.python.golden_case import GoldenCase
from tests.e2e.python.packages import KEY
from tests.e2e.python.scripted_provider import ScriptedResponse
from tests.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    import anthropic
    import openai

    from tests.e2e.python.scripted_provider import ScriptedProvider

QUESTION = "Where is Oslo?"
USER_MESSAGE: Any = {"role": "user", "content": QUESTION}
DOCUMENTS = [{"id": "doc:0", "data": {"title": "Oslo"}}, {"id": "d1", "data": {"title": "Map"}}]
# Cited text and its source, in the order of the text, for clients with annotations.
EXPECTED_ANNOTATIONS = {
    "google": [
        ("Ålesund is in Norway.", "https://a.example"),
        ("Oslo", "https://b.example"),
        ("Oslo is its capital.", "gs://maps/oslo.txt"),
        ("Oslo is its capital.", "https://a.example"),
    ],
    "cohere": [("Oslo", "https://a.example/oslo")],
    "perplexity-ai": [("[1]", "https://a.example"), ("[2]", "https://b.example"), ("[2]", "https://b.example")],
    "cometapi": [("([a](https://a.example))", "https://a.example")],
}
# Cited text and its sources, for clients with blocks of text.
EXPECTED_BLOCKS = {
    "google": [
        ("Ålesund is in Norway.", ["https://a.example"]),
        ("Oslo is its capital.", ["gs://maps/oslo.txt", "https://a.example", "https://b.example"]),
    ],
    "cohere": [("Ålesund", ["d1"]), ("Oslo", ["atlas_1:2", "https://a.example/oslo"])],
    "perplexity-ai": [
        ("It is in Norway[1][2]", ["https://a.example", "https://b.example"]),
        ("Oslo is its capital.[2]", ["https://b.example"]),
    ],
    "cometapi": [("It's in Oslo ([a](https://a.example))", ["https://a.example"])],
}
PROVIDERS = list(EXPECTED_ANNOTATIONS)
# Providers with their own chat format; chat responses of the others pass unchanged.
TRANSLATED_PROVIDERS = ["google", "cohere"]
# Perplexity has its own Responses API.
WITHOUT_RESPONSES_API = [*TRANSLATED_PROVIDERS, "cometapi"]


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory, scripted_provider: ScriptedProvider) -> Iterator[Gateway]:
    providers = [
        {"slug": item, "provider": item, "api_key": "sk", "custom_host": scripted_provider.url} for item in PROVIDERS
    ]
    tables = {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": providers,
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(tmp_path_factory.mktemp("cited"), tables, {})
    yield running
    running.stop()


def set_golden_response(scripted_provider: ScriptedProvider, provider: str, *, streams: bool) -> None:
    """Sets the provider's golden response with citations for every request. It is the same in the cases of all client
    formats.
    """
    kind = "text/event-stream" if streams else "application/json"
    case = GoldenCase(provider, "messages", "cited_stream" if streams else "cited")
    scripted_provider.set_responses("POST", "", ScriptedResponse(case.response.read_bytes(), kind))


def model_name(provider: str) -> str:
    return f"@{provider}/m-1"


def extra_fields(provider: str) -> dict[str, Any]:
    return {"documents": DOCUMENTS} if provider == "cohere" else {}


@pytest.mark.parametrize("provider", TRANSLATED_PROVIDERS)
@pytest.mark.parametrize("streams", [False, True])
def test_openai_sdk_reads_citations_of_a_chat(
    scripted_provider: ScriptedProvider, chat: openai.OpenAI, provider: str, streams: bool
):
    set_golden_response(scripted_provider, provider, streams=streams)
    request: dict[str, Any] = {
        "model": model_name(provider),
        "messages": [USER_MESSAGE],
        "extra_body": extra_fields(provider),
    }
    if streams:
        with chat.chat.completions.stream(**request) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = chat.chat.completions.create(**request).choices[0].message
    text = message.content or ""
    cited = [item.url_citation for item in message.annotations or () if item.type == "url_citation"]
    # Slices the text as OpenAI's own examples do: by characters, end exclusive.
    assert sorted((text[item.start_index : item.end_index], item.url) for item in cited) == sorted(
        EXPECTED_ANNOTATIONS[provider]
    )


@pytest.mark.parametrize("provider", WITHOUT_RESPONSES_API)
@pytest.mark.parametrize("streams", [False, True])
def test_openai_sdk_reads_citations_of_a_response(
    scripted_provider: ScriptedProvider, chat: openai.OpenAI, provider: str, streams: bool
):
    set_golden_response(scripted_provider, provider, streams=streams)
    request: dict[str, Any] = {"model": model_name(provider), "input": QUESTION, "extra_body": extra_fields(provider)}
    added = 0
    if streams:
        with chat.responses.stream(**request) as stream:
            added = sum(event.type == "response.output_text.annotation.added" for event in stream)
            response: Any = stream.get_final_response()
    else:
        response = chat.responses.create(**request)
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    cited = [
        (part.text[annotation.start_index : annotation.end_index], annotation.url)
        for part in parts
        for annotation in part.annotations
    ]
    assert sorted(cited) == sorted(EXPECTED_ANNOTATIONS[provider])
    assert added == (len(cited) if streams else 0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_anthropic_sdk_reads_citations_as_blocks(
    scripted_provider: ScriptedProvider, claude: anthropic.Anthropic, provider: str
):
    request: dict[str, Any] = {"model": model_name(provider), "max_tokens": 64, "messages": [USER_MESSAGE]}
    request["extra_body"] = extra_fields(provider)
    set_golden_response(scripted_provider, provider, streams=False)
    complete = claude.messages.create(**request)
    set_golden_response(scripted_provider, provider, streams=True)
    with claude.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    blocks, reported = ([block for block in item.content if block.type == "text"] for item in (complete, streamed))

    def citation_source(citation: Any) -> str:
        return citation.url if citation.type == "web_search_result_location" else citation.source

    cited = [
        (block.text.strip(), sorted({citation_source(citation) for citation in block.citations}))
        for block in blocks
        if block.citations
    ]
    assert cited == EXPECTED_BLOCKS[provider]
    # A block that was already sent cannot be split, so a streamed citation may cover more text than is cited.
    assert "".join(block.text for block in reported) == "".join(block.text for block in blocks)
    describe_item = [
        (block.text, {citation_source(citation) for citation in block.citations})
        for block in reported
        if block.citations
    ]
    assert set().union(*(sources for _, sources in describe_item)) == {
        source for _, sources in cited for source in sources
    }
    for words, sources in cited:
        last = words.split()[-1]
        assert any(last in text and set(sources) <= its for text, its in describe_item)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_boto3_reads_citations_as_blocks(scripted_provider: ScriptedProvider, amazon: Any, provider: str):
    turn = {"role": "user", "content": [{"text": QUESTION}]}
    request = {
        "modelId": model_name(provider),
        "messages": [turn],
        "additionalModelRequestFields": extra_fields(provider),
    }
    set_golden_response(scripted_provider, provider, streams=False)
    content = amazon.converse(**request)["output"]["message"]["content"]
    set_golden_response(scripted_provider, provider, streams=True)
    events = list(amazon.converse_stream(**request)["stream"])

    def citation_source(citation: Any) -> str:
        web = citation["location"].get("web")
        return web["url"] if web else citation["source"]

    blocks = [block["citationsContent"] for block in content if "citationsContent" in block]
    parts = [part for block in content for part in block.get("citationsContent", {}).get("content", [block])]
    texts = [part["text"] for part in parts if "text" in part]
    cited = [
        (block["content"][0]["text"].strip(), sorted({citation_source(item) for item in block["citations"]}))
        for block in blocks
    ]
    assert cited == EXPECTED_BLOCKS[provider]
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert "".join(delta["text"] for delta in deltas if "text" in delta) == "".join(texts)
    reported = {citation_source(delta["citation"]) for delta in deltas if "citation" in delta}
    assert reported == {source for _, sources in cited for source in sources}
