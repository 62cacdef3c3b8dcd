"""Official SDKs of one API format against providers of another. The provider's responses are the golden files."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import anthropic
import openai
import pytest

from tests.e2e.python.golden_case import GoldenCase
from tests.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai.types.chat import ChatCompletionMessage

CHAT_PROVIDERS = ["anthropic", "google", "vertex-ai", "bedrock", "cohere"]
MESSAGES_PROVIDERS = ["openai", "groq", "together-ai", "google", "bedrock", "cohere"]
PROVIDER_HEADERS = {
    "x-gateway-vertex-project-id": "project",
    "x-gateway-vertex-region": "europe-west4",
    "x-gateway-aws-region": "eu-west-1",
}


class GoldenProvider:
    """Answers each request with the bytes of a golden case and records the requests."""

    def __init__(self, case: GoldenCase, status: int = 200) -> None:
        kind, response = _load_response(case)
        self.sent: list[dict[str, Any]] = []
        sent = self.sent

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)

            def log_message(self, *_: object) -> None:
                """Suppresses the access log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _load_response(case: GoldenCase) -> tuple[str, bytes]:
    if case.response.suffix == ".sse":
        return "text/event-stream", case.response.read_bytes()
    if case.response.suffix == ".hex":
        frames = [line for line in case.response.read_text().splitlines() if not line.startswith("#")]
        return "application/vnd.amazon.eventstream", bytes.fromhex("".join(frames))
    return "application/json", case.response.read_bytes()


def load_request(case: GoldenCase) -> dict[str, Any]:
    request = json.loads(case.request.read_text())
    request.pop("stream", None)
    return request


def load_messages_request(case: GoldenCase) -> dict[str, Any]:
    """Returns the request as arguments for the newest Anthropic SDK. Its signature lacks parameters that the newest
    models reject, so these go into `extra_body`.
    """
    request = load_request(case)
    compared = ("model", "max_tokens", "messages", "system", "tools", "tool_choice")
    extra_fields = {key: request.pop(key) for key in list(request) if key not in compared}
    return {**request, "extra_body": extra_fields}


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    tables = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
    running = Gateway(tmp_path_factory.mktemp("gateway"), tables, {})
    yield running
    running.stop()


@pytest.fixture
def chat(running_gateway: Gateway) -> Iterator[Callable[[str, str], openai.OpenAI]]:
    created: list[openai.OpenAI] = []

    def make_client(provider: str, url: str) -> openai.OpenAI:
        headers = {"x-gateway-provider": provider, "x-gateway-custom-host": url, **PROVIDER_HEADERS}
        base = f"{running_gateway.base_url}/v1"
        created.append(openai.OpenAI(base_url=base, api_key="k", default_headers=headers, max_retries=0, timeout=10))
        return created[-1]

    yield make_client
    for item in created:
        item.close()


@pytest.fixture
def messages(running_gateway: Gateway) -> Iterator[Callable[[str, str], anthropic.Anthropic]]:
    created: list[anthropic.Anthropic] = []

    def make_client(provider: str, url: str) -> anthropic.Anthropic:
        headers = {"x-gateway-provider": provider, "x-gateway-custom-host": url, **PROVIDER_HEADERS}
        base = running_gateway.base_url
        created.append(
            anthropic.Anthropic(base_url=base, api_key="k", default_headers=headers, max_retries=0, timeout=10)
        )
        return created[-1]

    yield make_client
    for item in created:
        item.close()


def function_calls(message: ChatCompletionMessage) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    ]


WEATHER_CALLS = [("weather", {"city": "Oslo", "unit": "C"}), ("weather", {})]


@pytest.mark.parametrize("provider", CHAT_PROVIDERS)
def test_openai_sdk_gets_tool_calls_of_every_provider(chat: Callable[..., openai.OpenAI], provider: str):
    case = GoldenCase(provider, "chatComplete", "tools")
    with GoldenProvider(case) as upstream:
        response = chat(provider, upstream.url).chat.completions.create(**load_request(case))
    assert upstream.sent == [json.loads(case.path("upstream_request.json").read_text())]
    assert response.choices[0].finish_reason == "tool_calls"
    assert response.choices[0].message.content == "I look."
    assert function_calls(response.choices[0].message) == WEATHER_CALLS
    assert response.usage
    assert (response.usage.prompt_tokens, response.usage.completion_tokens, response.usage.total_tokens) == (30, 20, 50)


@pytest.mark.parametrize("provider", CHAT_PROVIDERS)
def test_openai_sdk_streams_tool_calls_of_every_provider(chat: Callable[..., openai.OpenAI], provider: str):
    case = GoldenCase(provider, "chatComplete", "tools_stream")
    request = {**load_request(case), "stream_options": {"include_usage": True}}
    with GoldenProvider(case) as upstream, chat(provider, upstream.url).chat.completions.stream(**request) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content == "I look."
    assert function_calls(final.choices[0].message) == WEATHER_CALLS
    assert final.usage
    assert final.usage.total_tokens == 50


@pytest.mark.parametrize("provider", MESSAGES_PROVIDERS)
def test_anthropic_sdk_gets_equal_complete_and_streamed_messages(
    messages: Callable[..., anthropic.Anthropic], provider: str
):
    case = GoldenCase(provider, "messages", "tools")
    with GoldenProvider(case) as upstream:
        complete = messages(provider, upstream.url).messages.create(**load_messages_request(case))
    assert upstream.sent == [json.loads(case.path("upstream_request.json").read_text())]
    with (
        GoldenProvider(case.sibling("tools_stream")) as upstream,
        messages(provider, upstream.url).messages.stream(**load_messages_request(case)) as stream,
    ):
        streamed = stream.get_final_message()
    assert complete.stop_reason == streamed.stop_reason == "tool_use"
    assert [block.to_dict() for block in complete.content] == [block.to_dict() for block in streamed.content]
    uses = [(block.name, block.input) for block in complete.content if block.type == "tool_use"]
    assert uses == WEATHER_CALLS
    assert (complete.usage.input_tokens, complete.usage.output_tokens) == (30, 20)
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (30, 20)


def test_anthropic_sdk_gets_each_citation_with_its_text(messages: Callable[..., anthropic.Anthropic]):
    case = GoldenCase("bedrock", "messages", "cited")
    with GoldenProvider(case) as upstream:
        complete = messages("bedrock", upstream.url).messages.create(**load_messages_request(case))
    assert upstream.sent == [json.loads(case.path("upstream_request.json").read_text())]
    with (
        GoldenProvider(case.sibling("cited_stream")) as upstream,
        messages("bedrock", upstream.url).messages.stream(**load_messages_request(case)) as stream,
    ):
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in complete.content] == [block.to_dict() for block in streamed.content]
    texts = [block for block in complete.content if block.type == "text"]
    cited = [(block.text, [citation.type for citation in block.citations or ()]) for block in texts]
    page = "page_location"
    assert cited[1:3] == [("it is the capital", [page, "web_search_result_location"]), (" of Norway", [page])]
    assert (cited[0], cited[3]) == (("Yes: ", []), (".", []))


@pytest.mark.parametrize("provider", [*CHAT_PROVIDERS, "deepseek"])
def test_openai_sdk_gets_equal_complete_and_streamed_responses(chat: Callable[..., openai.OpenAI], provider: str):
    case = GoldenCase(provider, "createModelResponse", "tools")
    with GoldenProvider(case) as upstream:
        complete = chat(provider, upstream.url).responses.create(**load_request(case))
    assert upstream.sent == [json.loads(case.path("upstream_request.json").read_text())]
    with (
        GoldenProvider(case.sibling("tools_stream")) as upstream,
        chat(provider, upstream.url).responses.stream(**load_request(case)) as stream,
    ):
        numbers = [event.sequence_number for event in stream]
        streamed = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert complete.output_text == streamed.output_text == "I look."
    calls = [(item.name, json.loads(item.arguments)) for item in streamed.output if item.type == "function_call"]
    assert calls == WEATHER_CALLS
    assert complete.usage
    assert (complete.usage.input_tokens, complete.usage.output_tokens) == (30, 20)


@pytest.mark.parametrize("provider", ["cohere", "google"])
def test_openai_sdk_gets_embeddings_in_base64_encoding(chat: Callable[..., openai.OpenAI], provider: str):
    case = GoldenCase(provider, "embed", "complete")
    request = {key: value for key, value in load_request(case).items() if key != "encoding_format"}
    with GoldenProvider(case) as upstream:
        response = chat(provider, upstream.url).embeddings.create(**request)
    assert [row.embedding for row in response.data] == [[0.5, -0.25, 1.0], [0.0, 0.125, -1.0]]


def test_errors_of_other_api_formats_raise_the_sdks_own_types(
    chat: Callable[..., openai.OpenAI], messages: Callable[..., anthropic.Anthropic]
):
    case = GoldenCase("anthropic", "chatComplete", "error")
    with (
        GoldenProvider(case, 429) as upstream,
        pytest.raises(openai.RateLimitError, match="anthropic error: max_tokens"),
    ):
        chat("anthropic", upstream.url).chat.completions.create(**load_request(case))
    case = GoldenCase("openai", "messages", "error")
    with GoldenProvider(case, 529) as upstream, pytest.raises(anthropic.APIStatusError, match="openai error") as caught:
        messages("openai", upstream.url).messages.create(**load_messages_request(case))
    assert caught.value.status_code == 529


def test_rejects_untranslatable_and_lists_dropped_parameters(chat: Callable[..., openai.OpenAI]):
    case = GoldenCase("anthropic", "chatComplete", "complete")
    with GoldenProvider(case) as upstream:
        client = chat("anthropic", upstream.url)
        with pytest.raises(openai.BadRequestError, match="n: must be 1"):
            client.chat.completions.create(**load_request(case), n=2)
        raw = client.chat.completions.with_raw_response.create(**load_request(case), seed=7)
    assert raw.headers["x-gateway-not-translated"] == "seed"
    assert len(upstream.sent) == 1
