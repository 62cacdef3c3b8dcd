"""State that the gateway stores because official SDKs do not: signatures of tool calls, and the backing model of an
inference profile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.python.packages import KEY
from tests.e2e.python.scripted_provider import json_response, sse_response
from tests.gateway import Gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import anthropic
    import openai

    from tests.e2e.python.scripted_provider import ScriptedProvider

MODEL, SIGNATURE = "gemini-3-new", "c2lnbmVk"
PROFILE_ARN = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2"
BACKING_MODEL = "anthropic.claude-new"
USER_MESSAGE = {"role": "user", "content": "what is the weather?"}
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory, scripted_provider: ScriptedProvider) -> Iterator[Gateway]:
    amazon = {"aws_region": "us-east-1", "aws_access_key_id": "AKID", "aws_secret_access_key": "secret"}
    prices = {"request_token": {"price": 0.0001}, "response_token": {"price": 0.0002}}
    tables = {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": [
            {"slug": "google", "provider": "google", "api_key": "sk-stored", "custom_host": scripted_provider.url},
            {"slug": "bedrock", "provider": "bedrock", "options": amazon, "custom_host": scripted_provider.url},
        ],
        "prices": [
            {"provider": "bedrock", "model": BACKING_MODEL, "valid_from": "2020-01-01", "pay_as_you_go": prices}
        ],
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(tmp_path_factory.mktemp("kept"), tables, {})
    yield running
    running.stop()


def tool_calls_body(mark: str) -> dict[str, Any]:
    """Returns a Gemini response with two tool calls, of which the first is signed. `mark` makes its ids unique."""
    parts = [
        {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": SIGNATURE + mark},
        {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
    ]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}
    return {"responseId": mark, "candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}


def set_tool_call_responses(scripted_provider: ScriptedProvider, mark: str) -> None:
    done = tool_calls_body(mark)
    done["candidates"][0]["content"]["parts"] = [{"text": "rain"}]
    scripted_provider.set_responses(
        "POST", f"{MODEL}:generateContent", json_response(tool_calls_body(mark)), json_response(done)
    )
    scripted_provider.set_responses("POST", f"{MODEL}:streamGenerateContent", sse_response(tool_calls_body(mark)))


def sent_signatures(scripted_provider: ScriptedProvider) -> list[str | None]:
    """Returns the signature, or `None`, of each tool call in the last request that the provider received."""
    parts = [part for content in scripted_provider.sent[-1]["contents"] for part in content["parts"]]
    return [part.get("thoughtSignature") for part in parts if "functionCall" in part]


@pytest.mark.parametrize("streams", [False, True])
def test_openai_sdk_needs_no_signatures(scripted_provider: ScriptedProvider, chat: openai.OpenAI, streams: bool):
    mark = f"chat{streams}"
    set_tool_call_responses(scripted_provider, mark)
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": TOOL_SCHEMA}}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "tools": tools}
    if streams:
        with chat.chat.completions.stream(**request, messages=[USER_MESSAGE]) as stream:
            created = stream.get_final_completion().choices[0].message
    else:
        created = chat.chat.completions.create(**request, messages=[USER_MESSAGE]).choices[0].message
    # Sends only the standard fields of the calls, as an application does that does not know signatures.
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in created.tool_calls or ()
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in calls]
    raw = chat.chat.completions.with_raw_response.create(
        **request, messages=[USER_MESSAGE, {"role": "assistant", "tool_calls": calls}, *results]
    )
    assert sent_signatures(scripted_provider) == [SIGNATURE + mark, None]
    assert "x-gateway-not-translated" not in raw.headers


def test_openai_sdk_needs_no_signatures_in_responses(scripted_provider: ScriptedProvider, chat: openai.OpenAI):
    set_tool_call_responses(scripted_provider, "responses")
    tools: Any = [{"type": "function", "name": "weather", "parameters": TOOL_SCHEMA, "strict": False}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "tools": tools}
    created = chat.responses.create(**request, input="what is the weather?")
    calls = [item for item in created.output if item.type == "function_call"]
    content = [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in calls
    ]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    chat.responses.create(**request, input=[USER_MESSAGE, *content, *results])
    assert sent_signatures(scripted_provider) == [f"{SIGNATURE}responses", None]


def test_anthropic_sdk_needs_no_signatures(scripted_provider: ScriptedProvider, claude: anthropic.Anthropic):
    set_tool_call_responses(scripted_provider, "messages")
    tools: Any = [{"name": "weather", "input_schema": TOOL_SCHEMA}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "max_tokens": 64, "tools": tools}
    created = claude.messages.create(**request, messages=[USER_MESSAGE])
    uses = [block for block in created.content if block.type == "tool_use"]
    content = [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input} for use in uses]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"} for use in uses]
    turns = [USER_MESSAGE, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    claude.messages.create(**request, messages=turns)
    assert sent_signatures(scripted_provider) == [f"{SIGNATURE}messages", None]


def test_boto3_needs_no_signatures(scripted_provider: ScriptedProvider, amazon: Any):
    set_tool_call_responses(scripted_provider, "converse")
    tools = {"tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": TOOL_SCHEMA}}}]}
    request = {"role": "user", "content": [{"text": "what is the weather?"}]}
    created = amazon.converse(modelId=f"@google/{MODEL}", messages=[request], toolConfig=tools)
    uses = [block for block in created["output"]["message"]["content"] if "toolUse" in block]
    results = [
        {"toolResult": {"toolUseId": use["toolUse"]["toolUseId"], "content": [{"text": "rain"}]}} for use in uses
    ]
    turns = [request, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    amazon.converse(modelId=f"@google/{MODEL}", messages=turns, toolConfig=tools)
    assert sent_signatures(scripted_provider) == [f"{SIGNATURE}converse", None]


def test_backing_model_of_a_profile_decides_format_and_price(
    scripted_provider: ScriptedProvider,
    running_gateway: Gateway,
    chat: openai.OpenAI,
    claude: anthropic.Anthropic,
    amazon: Any,
):
    fields = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "rain"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 30, "output_tokens": 12},
    }
    reported = {
        "output": {"message": {"role": "assistant", "content": [{"text": "rain"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 30, "outputTokens": 12, "totalTokens": 42},
        "metrics": {"latencyMs": 1},
    }
    profile = {
        "models": [{"modelArn": f"arn:aws:bedrock:us-east-1::foundation-model/{BACKING_MODEL}"}],
        "type": "APPLICATION",
    }
    scripted_provider.set_responses("GET", f"/inference-profiles/{PROFILE_ARN}", json_response(profile))
    scripted_provider.set_responses("POST", f"/model/{PROFILE_ARN}/invoke", json_response(fields))
    scripted_provider.set_responses("POST", f"/model/{PROFILE_ARN}/converse", json_response(reported))
    scripted_provider.received_requests.clear()
    model = f"@bedrock/{PROFILE_ARN}"
    response = chat.chat.completions.create(model=model, messages=[USER_MESSAGE])
    assert response.choices[0].message.content == "rain"
    assert claude.messages.create(model=model, max_tokens=64, messages=[USER_MESSAGE]).content[0].text == "rain"
    turn = {"role": "user", "content": [{"text": "what is the weather?"}]}
    conversed = amazon.converse(modelId=model, messages=[turn])
    assert conversed["output"]["message"]["content"] == [{"text": "rain"}]
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64, "messages": [USER_MESSAGE]}
    invoked = json.loads(amazon.invoke_model(modelId=model, body=json.dumps(body))["body"].read())
    assert invoked["content"] == fields["content"]

    def bedrock_costs() -> list[int | None] | None:
        records = [
            record.get("cost_nanodollars") for record in running_gateway.records(0) if record["ai_org"] == "bedrock"
        ]
        return records if len(records) >= 4 else None

    assert wait_for("four records", bedrock_costs) == [30 * 1_000 + 12 * 2_000] * 4
    # The profile was looked up once for all requests.
    assert scripted_provider.count_requests("GET", f"/inference-profiles/{PROFILE_ARN}") == 1
