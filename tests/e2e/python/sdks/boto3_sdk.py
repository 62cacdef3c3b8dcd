"""AWS SDK (boto3): Converse calls, and InvokeModel calls with bodies of Claude models."""

from __future__ import annotations

import json
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from sdk_calls import (
    GATEWAY,
    KEY,
    MOCK_REJECTION,
    PROMPT,
    PROVIDERS,
    TOOL_ARGUMENTS,
    TOOL_SCHEMA,
    failure_status,
    mock_headers,
    model_name,
    report_call,
    tool_call_headers,
)

PROMPT_MESSAGES = [{"role": "user", "content": [{"text": PROMPT}]}]
TOOLS = {
    "tools": [{"toolSpec": {"name": "weather", "description": "The weather", "inputSchema": {"json": TOOL_SCHEMA}}}]
}
CLAUDE_BODY = json.dumps(
    {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
    }
)


def build_client(headers: dict[str, str]) -> Any:
    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=GATEWAY,
        region_name="eu-west-1",
        aws_access_key_id=KEY,
        aws_secret_access_key="not looked at",
        config=Config(retries={"total_max_attempts": 1}),
    )

    def add_headers(request: Any, **_: object) -> None:
        for name, value in headers.items():
            request.headers.add_header(name, value)

    client.meta.events.register("before-sign.bedrock-runtime.*", add_headers)
    return client


def send_chat(provider: str) -> object:
    response = build_client({}).converse(modelId=model_name(provider), messages=PROMPT_MESSAGES)
    usage = response["usage"]
    return [response["output"]["message"]["content"][0]["text"], usage["inputTokens"], usage["outputTokens"]]


def stream_chat(provider: str) -> object:
    events = list(build_client({}).converse_stream(modelId=model_name(provider), messages=PROMPT_MESSAGES)["stream"])
    text = "".join(event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event)
    usage = events[-1]["metadata"]["usage"]
    return [text, usage["inputTokens"], usage["outputTokens"]]


def call_tool(provider: str) -> object:
    client = build_client(tool_call_headers())
    first = client.converse(modelId=model_name(provider), messages=PROMPT_MESSAGES, toolConfig=TOOLS)
    message = first["output"]["message"]
    call = next(block["toolUse"] for block in message["content"] if "toolUse" in block)
    result = {"toolResult": {"toolUseId": call["toolUseId"], "content": [{"text": "rain"}]}}
    turns = [*PROMPT_MESSAGES, message, {"role": "user", "content": [result]}]
    second = client.converse(modelId=model_name(provider), messages=turns, toolConfig=TOOLS)
    text = second["output"]["message"]["content"][0]["text"]
    return [call["name"], call["input"] == TOOL_ARGUMENTS and first["stopReason"] == "tool_use", bool(text)]


def stream_tool_call(provider: str) -> object:
    events = list(
        build_client(tool_call_headers()).converse_stream(
            modelId=model_name(provider), messages=PROMPT_MESSAGES, toolConfig=TOOLS
        )["stream"]
    )
    starts = [event["contentBlockStart"]["start"]["toolUse"] for event in events if "contentBlockStart" in event]
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    arguments = "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta)
    return [[start["name"], json.loads(arguments) == TOOL_ARGUMENTS] for start in starts]


def provoke_error(provider: str) -> object:
    return failure_status(
        lambda: build_client(mock_headers(**MOCK_REJECTION)).converse(
            modelId=model_name(provider), messages=PROMPT_MESSAGES
        ),
        ClientError,
        lambda error: [error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]],
    )


def invoke_chat(provider: str) -> object:
    response = json.loads(build_client({}).invoke_model(modelId=model_name(provider), body=CLAUDE_BODY)["body"].read())
    return [response["content"][0]["text"], response["usage"]["input_tokens"], response["usage"]["output_tokens"]]


def invoke_chat_stream(provider: str) -> object:
    response = build_client({}).invoke_model_with_response_stream(modelId=model_name(provider), body=CLAUDE_BODY)
    events = [json.loads(event["chunk"]["bytes"]) for event in response["body"]]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    prompt = events[0]["message"]["usage"]["input_tokens"]
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    return [text, usage.get("input_tokens", prompt), usage["output_tokens"]]


def count_tokens(provider: str) -> object:
    return build_client({}).count_tokens(
        modelId=model_name(provider), input={"converse": {"messages": PROMPT_MESSAGES}}
    )["inputTokens"]


def count_claude_tokens(provider: str) -> object:
    return build_client({}).count_tokens(modelId=model_name(provider), input={"invokeModel": {"body": CLAUDE_BODY}})[
        "inputTokens"
    ]


for provider in PROVIDERS:
    for call in (
        send_chat,
        stream_chat,
        call_tool,
        stream_tool_call,
        provoke_error,
        invoke_chat,
        invoke_chat_stream,
        count_tokens,
        count_claude_tokens,
    ):
        report_call(provider, call.__name__, lambda call=call, provider=provider: call(provider))
