"""Agent frameworks on top of OpenAI's client: openai-agents, pydantic-ai, instructor. They call tools in a loop and
return the results.
"""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import instructor
import openai
import pydantic
import pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from sdk_calls import (
    GATEWAY,
    KEY,
    MOCK_REJECTION,
    PROMPT,
    PROVIDERS,
    TOOL_ARGUMENTS,
    failure_status,
    mock_headers,
    model_name,
    report_call,
    tool_call_headers,
)

agents.set_tracing_disabled(disabled=True)
CLIENT_OPTIONS: dict[str, Any] = {"base_url": f"{GATEWAY}/v1", "api_key": KEY, "max_retries": 0, "timeout": 10}
TOOL_CALLS: list[str] = []


class City(pydantic.BaseModel):
    """The weather of a city."""

    city: str


def weather(city: str) -> str:
    """Returns the weather of a city."""
    TOOL_CALLS.append(city)
    return "rain"


def drain_tool_calls() -> list[str]:
    actual = [*TOOL_CALLS]
    TOOL_CALLS.clear()
    return actual


def build_client(headers: dict[str, str]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(default_headers=headers, **CLIENT_OPTIONS)


class OpenAIAgents:
    name = "openai-agents"

    def build_agent(self, provider: str, headers: dict[str, str]) -> agents.Agent:
        spoken = agents.OpenAIResponsesModel(model_name(provider), build_client(headers))
        return agents.Agent(name="a", model=spoken, tools=[agents.function_tool(weather)])

    def text_and_usage(self, result: Any) -> object:
        usage = result.context_wrapper.usage
        return [result.final_output, usage.input_tokens, usage.output_tokens]

    async def send_chat(self, provider: str, headers: dict[str, str]) -> object:
        return self.text_and_usage(await agents.Runner.run(self.build_agent(provider, headers), PROMPT))

    async def stream_chat(self, provider: str) -> object:
        result = agents.Runner.run_streamed(self.build_agent(provider, {}), PROMPT)
        async for _ in result.stream_events():
            pass
        return self.text_and_usage(result)


class PydanticAi:
    def __init__(self, name: str, kind: Any) -> None:
        self.name, self.kind = name, kind

    def build_agent(self, provider: str, headers: dict[str, str]) -> pydantic_ai.Agent:
        spoken = self.kind(model_name(provider), provider=OpenAIProvider(openai_client=build_client(headers)))
        return pydantic_ai.Agent(spoken, tools=[weather])

    def text_and_usage(self, output: str, usage: Any) -> object:
        usage = usage() if callable(usage) else usage
        return [output, usage.input_tokens, usage.output_tokens]

    async def send_chat(self, provider: str, headers: dict[str, str]) -> object:
        result = await self.build_agent(provider, headers).run(PROMPT)
        return self.text_and_usage(result.output, result.usage)

    async def stream_chat(self, provider: str) -> object:
        async with self.build_agent(provider, {}).run_stream(PROMPT) as result:
            return self.text_and_usage(await result.get_output(), result.usage)


AGENT_SDKS = [
    OpenAIAgents(),
    PydanticAi("pydantic-ai chat", OpenAIChatModel),
    PydanticAi("pydantic-ai responses", OpenAIResponsesModel),
]


def check_tool_call(created: Any, provider: str) -> object:
    response = asyncio.run(created.send_chat(provider, tool_call_headers()))
    return ["weather", drain_tool_calls() == [TOOL_ARGUMENTS["city"]], bool(response[0])]


def find_status(error: BaseException | None) -> object:
    while error is not None:
        if actual := getattr(error, "status_code", None):
            return [actual]
        error = error.__cause__
    return "no status"


def check_error(created: Any, provider: str) -> object:
    return failure_status(
        lambda: asyncio.run(created.send_chat(provider, mock_headers(**MOCK_REJECTION))), Exception, find_status
    )


def check_instructor(provider: str) -> object:
    created = instructor.from_openai(openai.OpenAI(default_headers=tool_call_headers("City"), **CLIENT_OPTIONS))
    request = [{"role": "user", "content": PROMPT}]
    city = created.chat.completions.create(
        model=model_name(provider), response_model=City, messages=request, max_retries=1
    )
    return city.model_dump() == TOOL_ARGUMENTS


for provider in PROVIDERS:
    for sdk in AGENT_SDKS:
        label = f"{provider} by {sdk.name}"
        report_call(label, "send_chat", lambda sdk=sdk, provider=provider: asyncio.run(sdk.send_chat(provider, {})))
        report_call(label, "stream_chat", lambda sdk=sdk, provider=provider: asyncio.run(sdk.stream_chat(provider)))
        report_call(label, "call_tool", lambda sdk=sdk, provider=provider: check_tool_call(sdk, provider))
        report_call(label, "provoke_error", lambda sdk=sdk, provider=provider: check_error(sdk, provider))
    report_call(f"{provider} by instructor", "instructed", lambda provider=provider: check_instructor(provider))
