"""What the gateway keeps for official SDKs that do not: signatures of calls, and which model is behind a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.python.answering_provider import events, whole
from tests.e2e.python.packages import KEY
from tests.gateway import Gateway
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    import anthropic
    import openai

    from tests.e2e.python.answering_provider import AnsweringProvider

MODEL, SIGNATURE = "gemini-3-new", "c2lnbmVk"
PROFILE = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2"
BEHIND = "anthropic.claude-new"
TURN = {"role": "user", "content": "what is the weather?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, there: AnsweringProvider) -> Iterator[Gateway]:
    amazon = {"aws_region": "us-east-1", "aws_access_key_id": "AKID", "aws_secret_access_key": "secret"}
    prices = {"request_token": {"price": 0.0001}, "response_token": {"price": 0.0002}}
    tables = {
        "keys": [{"name": "k", "id": "k-1", "key": KEY}],
        "providers": [
            {"slug": "google", "provider": "google", "api_key": "sk-stored", "custom_host": there.url},
            {"slug": "bedrock", "provider": "bedrock", "options": amazon, "custom_host": there.url},
        ],
        "prices": [{"provider": "bedrock", "model": BEHIND, "valid_from": "2020-01-01", "pay_as_you_go": prices}],
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(tmp_path_factory.mktemp("kept"), tables, {})
    yield running
    running.stop()


def called(mark: str) -> dict[str, Any]:
    """Answer with two calls, the first of which is signed; those of another answer have other ids."""
    parts = [
        {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": SIGNATURE + mark},
        {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
    ]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}
    return {"responseId": mark, "candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}


def answers(there: AnsweringProvider, mark: str) -> None:
    done = called(mark)
    done["candidates"][0]["content"]["parts"] = [{"text": "rain"}]
    there.answer("POST", f"{MODEL}:generateContent", whole(called(mark)), whole(done))
    there.answer("POST", f"{MODEL}:streamGenerateContent", events(called(mark)))


def signatures(there: AnsweringProvider) -> list[str | None]:
    """Say which calls of the turn that came last were signed, and how."""
    parts = [part for content in there.sent[-1]["contents"] for part in content["parts"]]
    return [part.get("thoughtSignature") for part in parts if "functionCall" in part]


@pytest.mark.parametrize("streams", [False, True])
def test_openais_sdk_needs_no_signatures(there: AnsweringProvider, chat: openai.OpenAI, streams: bool):
    mark = f"chat{streams}"
    answers(there, mark)
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "tools": tools}
    if streams:
        with chat.chat.completions.stream(**request, messages=[TURN]) as stream:
            made = stream.get_final_completion().choices[0].message
    else:
        made = chat.chat.completions.create(**request, messages=[TURN]).choices[0].message
    # As an application does that has never heard of them.
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in made.tool_calls or ()
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in calls]
    raw = chat.chat.completions.with_raw_response.create(
        **request, messages=[TURN, {"role": "assistant", "tool_calls": calls}, *results]
    )
    assert signatures(there) == [SIGNATURE + mark, None]
    assert "x-gateway-not-translated" not in raw.headers


def test_openais_sdk_needs_no_signatures_in_responses(there: AnsweringProvider, chat: openai.OpenAI):
    answers(there, "responses")
    tools: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "tools": tools}
    made = chat.responses.create(**request, input="what is the weather?")
    calls = [item for item in made.output if item.type == "function_call"]
    said = [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in calls
    ]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    chat.responses.create(**request, input=[TURN, *said, *results])
    assert signatures(there) == [f"{SIGNATURE}responses", None]


def test_anthropics_sdk_needs_no_signatures(there: AnsweringProvider, claude: anthropic.Anthropic):
    answers(there, "messages")
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    request: dict[str, Any] = {"model": f"@google/{MODEL}", "max_tokens": 64, "tools": tools}
    made = claude.messages.create(**request, messages=[TURN])
    uses = [block for block in made.content if block.type == "tool_use"]
    said = [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input} for use in uses]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"} for use in uses]
    turns = [TURN, {"role": "assistant", "content": said}, {"role": "user", "content": results}]
    claude.messages.create(**request, messages=turns)
    assert signatures(there) == [f"{SIGNATURE}messages", None]


def test_amazons_sdk_needs_no_signatures(there: AnsweringProvider, amazon: Any):
    answers(there, "converse")
    tools = {"tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": SCHEMA}}}]}
    asked = {"role": "user", "content": [{"text": "what is the weather?"}]}
    made = amazon.converse(modelId=f"@google/{MODEL}", messages=[asked], toolConfig=tools)
    uses = [block for block in made["output"]["message"]["content"] if "toolUse" in block]
    results = [
        {"toolResult": {"toolUseId": use["toolUse"]["toolUseId"], "content": [{"text": "rain"}]}} for use in uses
    ]
    turns = [asked, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    amazon.converse(modelId=f"@google/{MODEL}", messages=turns, toolConfig=tools)
    assert signatures(there) == [f"{SIGNATURE}converse", None]


def test_the_model_behind_an_application_inference_profile_decides_how_it_is_asked_and_what_it_costs(
    there: AnsweringProvider, served: Gateway, chat: openai.OpenAI, claude: anthropic.Anthropic, amazon: Any
):
    made = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "rain"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 30, "output_tokens": 12},
    }
    told = {
        "output": {"message": {"role": "assistant", "content": [{"text": "rain"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 30, "outputTokens": 12, "totalTokens": 42},
        "metrics": {"latencyMs": 1},
    }
    behind = {"models": [{"modelArn": f"arn:aws:bedrock:us-east-1::foundation-model/{BEHIND}"}], "type": "APPLICATION"}
    there.answer("GET", f"/inference-profiles/{PROFILE}", whole(behind))
    there.answer("POST", f"/model/{PROFILE}/invoke", whole(made))
    there.answer("POST", f"/model/{PROFILE}/converse", whole(told))
    there.asked.clear()
    model = f"@bedrock/{PROFILE}"
    answer = chat.chat.completions.create(model=model, messages=[TURN])
    assert answer.choices[0].message.content == "rain"
    assert claude.messages.create(model=model, max_tokens=64, messages=[TURN]).content[0].text == "rain"
    turn = {"role": "user", "content": [{"text": "what is the weather?"}]}
    conversed = amazon.converse(modelId=model, messages=[turn])
    assert conversed["output"]["message"]["content"] == [{"text": "rain"}]
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64, "messages": [TURN]}
    invoked = json.loads(amazon.invoke_model(modelId=model, body=json.dumps(body))["body"].read())
    assert invoked["content"] == made["content"]

    def costs() -> list[int | None] | None:
        found = [record.get("cost_nanodollars") for record in served.records(0) if record["ai_org"] == "bedrock"]
        return found if len(found) >= 4 else None

    assert wait("four records", costs) == [30 * 1_000 + 12 * 2_000] * 4
    # It was asked once for all of them.
    assert there.count("GET", f"/inference-profiles/{PROFILE}") == 1
