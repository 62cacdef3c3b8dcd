"""Amazon's own SDK: conversations, and the bodies of Claude's models."""

from __future__ import annotations

import json
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from said import ARGUMENTS, GATEWAY, KEY, PROMPT, PROVIDERS, REFUSING, SCHEMA, asking, calling, model, refused, say

TURNS = [{"role": "user", "content": [{"text": PROMPT}]}]
TOOLS = {"tools": [{"toolSpec": {"name": "weather", "description": "The weather", "inputSchema": {"json": SCHEMA}}}]}
BODY = json.dumps(
    {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
    }
)


def client(headers: dict[str, str]) -> Any:
    made = boto3.client(
        "bedrock-runtime",
        endpoint_url=GATEWAY,
        region_name="eu-west-1",
        aws_access_key_id=KEY,
        aws_secret_access_key="not looked at",
        config=Config(retries={"total_max_attempts": 1}),
    )

    def add(request: Any, **_: object) -> None:
        for name, value in headers.items():
            request.headers.add_header(name, value)

    made.meta.events.register("before-sign.bedrock-runtime.*", add)
    return made


def whole(provider: str) -> object:
    answer = client({}).converse(modelId=model(provider), messages=TURNS)
    usage = answer["usage"]
    return [answer["output"]["message"]["content"][0]["text"], usage["inputTokens"], usage["outputTokens"]]


def streamed(provider: str) -> object:
    events = list(client({}).converse_stream(modelId=model(provider), messages=TURNS)["stream"])
    text = "".join(event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event)
    usage = events[-1]["metadata"]["usage"]
    return [text, usage["inputTokens"], usage["outputTokens"]]


def tool(provider: str) -> object:
    made = client(calling())
    first = made.converse(modelId=model(provider), messages=TURNS, toolConfig=TOOLS)
    message = first["output"]["message"]
    call = next(block["toolUse"] for block in message["content"] if "toolUse" in block)
    result = {"toolResult": {"toolUseId": call["toolUseId"], "content": [{"text": "rain"}]}}
    turns = [*TURNS, message, {"role": "user", "content": [result]}]
    second = made.converse(modelId=model(provider), messages=turns, toolConfig=TOOLS)
    text = second["output"]["message"]["content"][0]["text"]
    return [call["name"], call["input"] == ARGUMENTS and first["stopReason"] == "tool_use", bool(text)]


def tool_streamed(provider: str) -> object:
    events = list(
        client(calling()).converse_stream(modelId=model(provider), messages=TURNS, toolConfig=TOOLS)["stream"]
    )
    starts = [event["contentBlockStart"]["start"]["toolUse"] for event in events if "contentBlockStart" in event]
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    arguments = "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta)
    return [[start["name"], json.loads(arguments) == ARGUMENTS] for start in starts]


def error(provider: str) -> object:
    return refused(
        lambda: client(asking(**REFUSING)).converse(modelId=model(provider), messages=TURNS),
        ClientError,
        lambda error: [error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]],
    )


def invoke_whole(provider: str) -> object:
    answer = json.loads(client({}).invoke_model(modelId=model(provider), body=BODY)["body"].read())
    return [answer["content"][0]["text"], answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]]


def invoke_streamed(provider: str) -> object:
    answer = client({}).invoke_model_with_response_stream(modelId=model(provider), body=BODY)
    events = [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    prompt = events[0]["message"]["usage"]["input_tokens"]
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    return [text, usage.get("input_tokens", prompt), usage["output_tokens"]]


def counted(provider: str) -> object:
    return client({}).count_tokens(modelId=model(provider), input={"converse": {"messages": TURNS}})["inputTokens"]


def counted_for_claude(provider: str) -> object:
    return client({}).count_tokens(modelId=model(provider), input={"invokeModel": {"body": BODY}})["inputTokens"]


for provider in PROVIDERS:
    for call in (
        whole,
        streamed,
        tool,
        tool_streamed,
        error,
        invoke_whole,
        invoke_streamed,
        counted,
        counted_for_claude,
    ):
        say(provider, call.__name__, lambda call=call, provider=provider: call(provider))
