"""LangChain, with its packages for OpenAI and for Anthropic."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
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

TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": TOOL_SCHEMA}}


def openai(provider: str, headers: dict[str, str]) -> Any:
    base = f"{GATEWAY}/v1"
    return ChatOpenAI(
        model=model_name(provider),
        base_url=base,
        api_key=KEY,
        default_headers=headers,
        max_retries=0,
        stream_usage=True,
    )


def anthropic(provider: str, headers: dict[str, str]) -> Any:
    return ChatAnthropic(
        model=model_name(provider), base_url=GATEWAY, api_key=KEY, default_headers=headers, max_retries=0, max_tokens=64
    )


def message_text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def text_and_usage(message: Any) -> object:
    usage = message.usage_metadata
    return [message_text(message), usage["input_tokens"], usage["output_tokens"]]


def send_chat(make: Any, provider: str) -> object:
    return text_and_usage(make(provider, {}).invoke(PROMPT))


def stream_chat(make: Any, provider: str) -> object:
    chunks = list(make(provider, {}).stream(PROMPT))
    complete: AIMessageChunk = chunks[0]
    for chunk in chunks[1:]:
        complete += chunk
    return text_and_usage(complete)


def call_tool(make: Any, provider: str) -> object:
    bound = make(provider, tool_call_headers()).bind_tools([TOOL])
    first = bound.invoke(PROMPT)
    call = first.tool_calls[0]
    second = bound.invoke([HumanMessage(PROMPT), first, ToolMessage("rain", tool_call_id=call["id"])])
    return [call["name"], call["args"] == TOOL_ARGUMENTS, bool(message_text(second))]


def provoke_error(make: Any, provider: str) -> object:
    created = make(provider, mock_headers(**MOCK_REJECTION))
    return failure_status(
        lambda: created.invoke(PROMPT), Exception, lambda error: [getattr(error, "status_code", repr(error))]
    )


for provider in PROVIDERS:
    for make in (openai, anthropic):
        for call in (send_chat, stream_chat, call_tool, provoke_error):
            report_call(f"{provider} by {make.__name__}", call.__name__, partial(call, make, provider))
