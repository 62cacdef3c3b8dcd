"""Recorded costs of usage other than tokens, and of usage at the end of large responses. They are the same for every
SDK.
"""

from __future__ import annotations

import base64
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.e2e.python.packages import KEY, run_sdk_script
from tests.e2e.python.scripted_provider import json_response, sse_response
from tests.gateway import Gateway
from tests.integration.nodes import wait_for_redis
from tests.integration.serving import control_pid, edge_pids
from tests.processes import wait_for
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import anthropic
    import openai

    from tests.e2e.python.scripted_provider import ScriptedProvider

# Prices of an input token, an output token, a web search and a file search, in nano-dollars (ten-millionths of a cent).
INPUT_NANODOLLARS, OUTPUT_NANODOLLARS, WEB_SEARCH_NANODOLLARS, FILE_SEARCH_NANODOLLARS = (
    1_000,
    2_000,
    10_000_000,
    2_500_000,
)
IMAGE_PRICES = {"standard": {"1024x1024": 40_000_000}, "high": {"1024x1536": 80_000_000}}
# Maximum number of connections that are opened until each worker has one.
MAX_CONNECTIONS = 64
PROMPT_MESSAGES = [{"role": "user", "content": "what is new?"}]
MODELS = {
    "openai": "gpt-new",
    "google": "gemini-3-new",
    "anthropic": "claude-new",
    "perplexity-ai": "sonar-new",
}


# Model that always searches the web before it responds.
SEARCH_MODEL = "gpt-4o-search-preview"


def price_in_cents(nanodollars: int) -> dict[str, float]:
    return {"price": nanodollars / 1e7}


CHAT_PRICES = {
    "request_token": price_in_cents(INPUT_NANODOLLARS),
    "response_token": price_in_cents(OUTPUT_NANODOLLARS),
    "additional_units": {
        "web_search": price_in_cents(WEB_SEARCH_NANODOLLARS),
        "file_search": price_in_cents(FILE_SEARCH_NANODOLLARS),
    },
}
IMAGE_MODEL_PRICES = {
    "request_token": price_in_cents(INPUT_NANODOLLARS),
    "image": {
        quality: {size: price_in_cents(item) for size, item in sizes.items()} for quality, sizes in IMAGE_PRICES.items()
    },
}


def build_tables(scripted_provider: ScriptedProvider) -> dict[str, Any]:
    priced = [(provider, model, CHAT_PRICES) for provider, model in MODELS.items()]
    priced += [("openai", "image-new", IMAGE_MODEL_PRICES), ("openai", SEARCH_MODEL, CHAT_PRICES)]
    return {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": [
            {"slug": slug, "provider": slug, "api_key": "sk-stored", "custom_host": scripted_provider.url}
            for slug in MODELS
        ],
        "prices": [
            {"provider": provider, "model": model, "valid_from": "2020-01-01", "pay_as_you_go": price}
            for provider, model, price in priced
        ],
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory, scripted_provider: ScriptedProvider) -> Iterator[Gateway]:
    running = Gateway(tmp_path_factory.mktemp("costs"), build_tables(scripted_provider), {})
    yield running
    running.stop()


@pytest.fixture
def costs(running_gateway: Gateway) -> Callable[[int], list[tuple[int | None, dict[str, int] | None]]]:
    """Returns a function that waits for this test's records and returns the cost and usage of each."""
    before = len(running_gateway.records(0))

    def wait_for_costs(count: int) -> list[tuple[int | None, dict[str, int] | None]]:
        records = running_gateway.records(before + count)[before:]
        return [(record.get("cost_nanodollars"), record.get("usage")) for record in records]

    return wait_for_costs


def model_name(provider: str) -> str:
    return f"@{provider}/{MODELS[provider]}"


SEARCH_OUTPUT_ITEMS = [
    {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "news"}},
    {"id": "ws_2", "type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": "u"}},
    {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["q"], "results": None},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "much", "annotations": [], "logprobs": []}],
    },
]


def response_body(**more: object) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": MODELS["openai"],
        "output": SEARCH_OUTPUT_ITEMS,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [{"type": "web_search"}],
        "usage": usage | details,
        **more,
    }


def test_bills_searches_of_buffered_and_streamed_responses(
    scripted_provider: ScriptedProvider, chat: openai.OpenAI, costs: Callable[[int], list[object]]
):
    begun = response_body(status="in_progress", output=[], usage=None)
    done = [
        {"type": "response.output_item.done", "sequence_number": 1 + number, "output_index": number, "item": item}
        for number, item in enumerate(SEARCH_OUTPUT_ITEMS)
    ]
    streamed = sse_response(
        {"type": "response.created", "sequence_number": 0, "response": begun},
        *done,
        {"type": "response.completed", "sequence_number": 9, "response": response_body()},
    )
    scripted_provider.set_responses("POST", "/responses", json_response(response_body()), streamed)
    request: dict[str, Any] = {
        "model": model_name("openai"),
        "input": "what is new?",
        "tools": [{"type": "web_search"}],
    }
    response = chat.responses.create(**request)
    assert response.output_text == "much"
    with chat.responses.create(**request, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
    used = {"input": 100, "output": 10, "web_searches": 1, "file_searches": 1}
    assert (
        costs(2)
        == [
            (100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + WEB_SEARCH_NANODOLLARS + FILE_SEARCH_NANODOLLARS, used)
        ]
        * 2
    )


def message_body(**more: object) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 10, "server_tool_use": {"web_search_requests": 3}}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODELS["anthropic"],
        "content": [{"type": "text", "text": "much"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
        **more,
    }


def test_bills_claude_searches_in_both_client_formats(
    scripted_provider: ScriptedProvider,
    claude: anthropic.Anthropic,
    chat: openai.OpenAI,
    costs: Callable[[int], list[object]],
):
    usage = message_body()["usage"]
    streamed = sse_response(
        {
            "type": "message_start",
            "message": message_body(content=[], stop_reason=None, usage={**usage, "output_tokens": 1}),
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "much"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    )
    scripted_provider.set_responses(
        "POST", "/messages", json_response(message_body()), streamed, json_response(message_body()), streamed
    )
    tools: list[Any] = [{"type": "web_search_20250305", "name": "web_search"}]
    request: dict[str, Any] = {
        "model": model_name("anthropic"),
        "max_tokens": 64,
        "messages": PROMPT_MESSAGES,
        "tools": tools,
    }
    assert claude.messages.create(**request).usage.server_tool_use.web_search_requests == 3
    with claude.messages.stream(**request) as stream:
        assert stream.get_final_text() == "much"
    assert (
        chat.chat.completions.create(model=model_name("anthropic"), messages=PROMPT_MESSAGES).choices[0].message.content
        == "much"
    )
    with chat.chat.completions.create(model=model_name("anthropic"), messages=PROMPT_MESSAGES, stream=True) as chunks:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "much"
    used = {"input": 100, "output": 10, "web_searches": 3}
    assert costs(4) == [(100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + 3 * WEB_SEARCH_NANODOLLARS, used)] * 4


GENERATED, STREAMED = ":generateContent", ":streamGenerateContent"


def gemini_body(*parts: dict[str, Any], **more: object) -> dict[str, Any]:
    queries = {"webSearchQueries": ["news", "weather", "news"], "searchEntryPoint": {"renderedContent": "<b>"}}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}
    last = {"finishReason": "STOP", "groundingMetadata": queries}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    return {"candidates": [candidate | last], "usageMetadata": usage, "modelVersion": MODELS["google"]}


def gemini_chunks() -> list[dict[str, Any]]:
    first = {"candidates": [{"content": {"role": "model", "parts": [{"text": "mu"}]}, "index": 0}]}
    return [{**first, "modelVersion": MODELS["google"]}, gemini_body({"text": "ch"})]


EXPECTED_USAGE = {"input": 100, "output": 10, "web_searches": 2}
EXPECTED_COST = 100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + 2 * WEB_SEARCH_NANODOLLARS


def test_bills_gemini_searches_for_every_sdk(
    scripted_provider: ScriptedProvider,
    running_gateway: Gateway,
    claude: anthropic.Anthropic,
    chat: openai.OpenAI,
    costs: Callable[[int], list[object]],
):
    scripted_provider.set_responses(
        "POST", f"{MODELS['google']}{GENERATED}", json_response(gemini_body({"text": "much"}))
    )
    scripted_provider.set_responses("POST", f"{MODELS['google']}{STREAMED}", sse_response(*gemini_chunks()))
    received = run_sdk_script("google_search.py", running_gateway, [model_name("google")])
    assert received == {(model_name("google"), "send_chat"): "much", (model_name("google"), "stream_chat"): "much"}
    request: dict[str, Any] = {"model": model_name("google"), "messages": PROMPT_MESSAGES}
    assert chat.chat.completions.create(**request).choices[0].message.content == "much"
    with chat.chat.completions.create(**request, stream=True) as chunks:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "much"
    assert chat.responses.create(model=model_name("google"), input="what is new?").output_text == "much"
    assert claude.messages.create(**request, max_tokens=64).content[0].text == "much"
    assert costs(6) == [(EXPECTED_COST, EXPECTED_USAGE)] * 6


def test_bills_large_and_array_responses_of_gemini(
    scripted_provider: ScriptedProvider,
    running_gateway: Gateway,
    chat: openai.OpenAI,
    costs: Callable[[int], list[object]],
):
    picture = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(bytes(1_500_000)).decode()}}
    response = json_response(gemini_body({"text": "much"}, picture))
    array = json_response([*gemini_chunks()[:1], gemini_body({"text": "ch"}, picture)])
    scripted_provider.set_responses("POST", f"{MODELS['google']}{GENERATED}", response)
    scripted_provider.set_responses(
        "POST",
        f"{MODELS['google']}{STREAMED}",
        sse_response(*gemini_chunks()[:1], gemini_body({"text": "ch"}, picture)),
        array,
    )
    received = run_sdk_script("google_search.py", running_gateway, [model_name("google")])
    assert received == {(model_name("google"), "send_chat"): "much", (model_name("google"), "stream_chat"): "much"}
    assert (
        chat.chat.completions.create(model=model_name("google"), messages=PROMPT_MESSAGES).choices[0].message.content
        == "much"
    )
    # None of the SDKs requests a JSON array; a plain HTTP request gets one.
    url = f"{running_gateway.base_url}/v1beta/models/{model_name('google')}{STREAMED}"
    request_body = httpx2.post(url, json={"contents": [{"parts": [{"text": "?"}]}]}, headers={"x-goog-api-key": KEY})
    assert request_body.content == array.body
    assert costs(4) == [(EXPECTED_COST, EXPECTED_USAGE)] * 4


@pytest.mark.parametrize(
    ("model", "counted", "searches"),
    [(model_name("perplexity-ai"), {"num_search_queries": 4}, 4), (f"@openai/{SEARCH_MODEL}", {}, 1)],
)
def test_bills_chat_searches_with_and_without_counts(
    scripted_provider: ScriptedProvider,
    chat: openai.OpenAI,
    costs: Callable[[int], list[object]],
    model: str,
    counted: dict[str, int],
    searches: int,
):
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, **counted}
    content = {"id": "1", "created": 1_700_000_000, "model": model.rpartition("/")[2]}
    choice = {"index": 0, "finish_reason": "stop"}
    response = {"choices": [{**choice, "message": {"role": "assistant", "content": "much"}}], "usage": usage}
    chunk = {"choices": [{**choice, "delta": {"role": "assistant", "content": "much"}}], "usage": usage}
    scripted_provider.set_responses(
        "POST",
        "/chat/completions",
        json_response({**content, "object": "chat.completion", **response}),
        sse_response({**content, "object": "chat.completion.chunk", **chunk}),
    )
    request: dict[str, Any] = {"model": model, "messages": PROMPT_MESSAGES}
    assert chat.chat.completions.create(**request).choices[0].message.content == "much"
    with chat.chat.completions.create(**request, stream=True) as chunks:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "much"
    used = {"input": 100, "output": 10, "web_searches": searches}
    assert (
        costs(2) == [(100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + searches * WEB_SEARCH_NANODOLLARS, used)] * 2
    )


def test_bills_images_by_quality_size_and_received_count(
    scripted_provider: ScriptedProvider, chat: openai.OpenAI, costs: Callable[[int], list[object]]
):
    def image_body(count: int, size: int = 30) -> object:
        return {"created": 1_700_000_000, "data": [{"b64_json": base64.b64encode(bytes(size)).decode()}] * count}

    scripted_provider.set_responses(
        "POST", "/images/generations", *(json_response(image_body(*item)) for item in ((2,), (1,), (1,), (2, 900_000)))
    )
    scripted_provider.set_responses("POST", "/images/edits", json_response(image_body(2)))
    request: dict[str, Any] = {"model": "@openai/image-new", "prompt": "a cat"}
    assert len(chat.images.generate(**request, n=2).data or ()) == 2
    chat.images.generate(**request, quality="high", size="1024x1536")
    # The provider returns one image instead of three.
    chat.images.generate(**request, n=3)
    chat.images.generate(**request, n=2)
    chat.images.edit(**request, image=("a.png", b"\x89PNG", "image/png"), n=2)
    usual, high = IMAGE_PRICES["standard"]["1024x1024"], IMAGE_PRICES["high"]["1024x1536"]
    assert [cost for cost, _ in costs(5)] == [2 * usual, high, usual, 2 * usual, 2 * usual]


def test_bills_background_response_once_when_usage_is_seen(
    scripted_provider: ScriptedProvider, chat: openai.OpenAI, costs: Callable[[int], list[object]]
):
    begun = response_body(status="queued", background=True, output=[], usage=None)
    scripted_provider.set_responses("POST", "/responses", json_response(begun))
    scripted_provider.set_responses(
        "GET", "/responses/resp_1", json_response(begun), json_response(response_body(background=True))
    )
    scripted_provider.set_responses(
        "POST",
        "/responses/resp_1/cancel",
        json_response(response_body(status="cancelled", background=True, usage=None)),
    )
    created = chat.responses.create(model=model_name("openai"), input="what is new?", background=True)
    assert created.status == "queued"
    names = {"extra_headers": {"x-gateway-provider": "@openai"}}
    states = [chat.responses.retrieve("resp_1", **names).status for _ in range(3)]
    assert states == ["queued", "completed", "completed"]
    assert chat.responses.cancel("resp_1", **names).status == "cancelled"
    used = {"input": 100, "output": 10, "web_searches": 1, "file_searches": 1}
    paid = (100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + WEB_SEARCH_NANODOLLARS + FILE_SEARCH_NANODOLLARS, used)
    assert costs(5) == [(None, None), (None, None), paid, (None, None), (None, None)]


@pytest.fixture(params=["of one node", "with Redis"])
def workers(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    scripted_provider: ScriptedProvider,
    gateway: Callable[..., Gateway],
) -> Iterator[tuple[Gateway, list[httpx2.Client]]]:
    """Starts a gateway with two workers and opens a connection to each."""
    with ExitStack() as stack:
        request_body = {**build_tables(scripted_provider), "server": {"workers": 2}}
        if request.param == "with Redis":
            redis = RedisServer(tmp_path)
            stack.callback(redis.stop)
            request_body |= {"redis": {"url": redis.url}, "metrics": {"enabled": True}}
        running = gateway(request_body)
        if "redis" in request_body:
            wait_for_redis(running, workers=2)
        else:
            # Workers share charges through the control process, which starts later than they do.
            edge_pids(running, 2)
        actual: dict[int, httpx2.Client] = {}
        # Connections are spread over the workers; more are opened until each worker has one.
        for number in range(MAX_CONNECTIONS):
            headers = {"x-gateway-provider": "@openai", "authorization": f"Bearer {KEY}"}
            client = stack.enter_context(httpx2.Client(base_url=f"{running.base_url}/v1", headers=headers))
            client.get("/responses/none")
            actual.setdefault(running.records(number + 1)[-1]["worker"], client)
            if len(actual) == 2:
                break
        yield running, [client for _, client in sorted(actual.items())]


def test_workers_share_pending_charges_of_background_responses(
    scripted_provider: ScriptedProvider, workers: tuple[Gateway, list[httpx2.Client]]
):
    running, (here, elsewhere) = workers
    begun, done = response_body(status="queued", background=True, output=[], usage=None), response_body(background=True)
    scripted_provider.set_responses("POST", "/responses", json_response(begun))

    def send_request(of: httpx2.Client, method: str = "GET") -> None:
        path, body = ("/responses", {"model": model_name("openai"), "input": "?", "background": True})
        response = of.post(path, json=body) if method == "POST" else of.get(f"{path}/resp_1")
        assert response.status_code == httpx2.codes.OK, response.text

    def request_costs(*requested: tuple[httpx2.Client, str], total: int) -> list[tuple[int, int | None]]:
        """Sends the requests; returns the worker and cost of each, once the costs have this total. Records may get
        costs later.
        """
        before = len(running.records())
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda item: send_request(*item), requested))

        def read_costs() -> list[tuple[int, int | None]] | None:
            records = running.records(before + len(requested))[before:]
            costs = [(record["worker"], record.get("cost_nanodollars")) for record in records]
            return costs if sum(cost or 0 for _, cost in costs) >= total else None

        return wait_for("the costs", read_costs)

    scripted_provider.set_responses("GET", "/responses/resp_1", json_response(done))
    paid = 100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + WEB_SEARCH_NANODOLLARS + FILE_SEARCH_NANODOLLARS
    requested = [(here, "POST"), (elsewhere, "GET"), (elsewhere, "GET"), (here, "GET")]
    totals = [0, paid, 0, 0]
    actual = [request_costs(item, total=total) for item, total in zip(requested, totals, strict=True)]
    assert actual == [[(1, None)], [(2, paid)], [(2, None)], [(1, None)]]
    # The response was not yet billed when both requests were sent.
    for _ in range(5):
        request_costs((here, "POST"), total=0)
        scripted_provider.set_responses("GET", "/responses/resp_1", json_response(done, threading.Barrier(2)))
        both = request_costs((here, "GET"), (elsewhere, "GET"), total=paid)
        assert sorted(cost or 0 for _, cost in both) == [0, paid], both


@pytest.mark.parametrize("workers", ["of one node"], indirect=True)
def test_pending_charges_outlive_a_restart_of_the_control_process(
    scripted_provider: ScriptedProvider, workers: tuple[Gateway, list[httpx2.Client]]
):
    running, (here, elsewhere) = workers
    begun, done = response_body(status="queued", background=True, output=[], usage=None), response_body(background=True)
    scripted_provider.set_responses("POST", "/responses", json_response(begun))
    scripted_provider.set_responses("GET", "/responses/resp_1", json_response(done))
    before = len(running.records())
    os.kill(control_pid(running, 2), signal.SIGKILL)
    here.post("/responses", json={"model": model_name("openai"), "input": "?", "background": True})
    edge_pids(running, 2)
    elsewhere.get("/responses/resp_1")

    def read_costs() -> list[tuple[int, int | None]] | None:
        costs = [(record["worker"], record.get("cost_nanodollars")) for record in running.records(before + 2)[before:]]
        return costs if any(cost for _, cost in costs) else None

    # The worker that began the response repeats the write until the new process has it.
    assert wait_for("the costs", read_costs) == [
        (1, None),
        (2, 100 * INPUT_NANODOLLARS + 10 * OUTPUT_NANODOLLARS + WEB_SEARCH_NANODOLLARS + FILE_SEARCH_NANODOLLARS),
    ]
