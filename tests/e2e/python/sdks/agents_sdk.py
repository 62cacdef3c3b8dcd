"""What builds agents upon OpenAI's client: openai-agents, pydantic-ai, instructor. Tools are called and answered in a loop."""

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
from said import ARGUMENTS, GATEWAY, KEY, PROMPT, PROVIDERS, REFUSING, asking, calling, model, refused, say

agents.set_tracing_disabled(disabled=True)
OPTIONS: dict[str, Any] = {"base_url": f"{GATEWAY}/v1", "api_key": KEY, "max_retries": 0, "timeout": 10}
CALLED: list[str] = []


class City(pydantic.BaseModel):
    """The weather of a city."""

    city: str


def weather(city: str) -> str:
    """Tell the weather."""
    CALLED.append(city)
    return "rain"


def called() -> list[str]:
    found = [*CALLED]
    CALLED.clear()
    return found


def client(headers: dict[str, str]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(default_headers=headers, **OPTIONS)


class OpenAIAgents:
    name = "openai-agents"

    def agent(self, provider: str, headers: dict[str, str]) -> agents.Agent:
        spoken = agents.OpenAIResponsesModel(model(provider), client(headers))
        return agents.Agent(name="a", model=spoken, tools=[agents.function_tool(weather)])

    def told(self, result: Any) -> object:
        usage = result.context_wrapper.usage
        return [result.final_output, usage.input_tokens, usage.output_tokens]

    async def whole(self, provider: str, headers: dict[str, str]) -> object:
        return self.told(await agents.Runner.run(self.agent(provider, headers), PROMPT))

    async def streamed(self, provider: str) -> object:
        result = agents.Runner.run_streamed(self.agent(provider, {}), PROMPT)
        async for _ in result.stream_events():
            pass
        return self.told(result)


class PydanticAi:
    def __init__(self, name: str, kind: Any) -> None:
        self.name, self.kind = name, kind

    def agent(self, provider: str, headers: dict[str, str]) -> pydantic_ai.Agent:
        spoken = self.kind(model(provider), provider=OpenAIProvider(openai_client=client(headers)))
        return pydantic_ai.Agent(spoken, tools=[weather])

    def told(self, output: str, usage: Any) -> object:
        usage = usage() if callable(usage) else usage
        return [output, usage.input_tokens, usage.output_tokens]

    async def whole(self, provider: str, headers: dict[str, str]) -> object:
        result = await self.agent(provider, headers).run(PROMPT)
        return self.told(result.output, result.usage)

    async def streamed(self, provider: str) -> object:
        async with self.agent(provider, {}).run_stream(PROMPT) as result:
            return self.told(await result.get_output(), result.usage)


MADE = [
    OpenAIAgents(),
    PydanticAi("pydantic-ai chat", OpenAIChatModel),
    PydanticAi("pydantic-ai responses", OpenAIResponsesModel),
]


def tool(made: Any, provider: str) -> object:
    answer = asyncio.run(made.whole(provider, calling()))
    return ["weather", called() == [ARGUMENTS["city"]], bool(answer[0])]


def status_of(error: BaseException | None) -> object:
    while error is not None:
        if found := getattr(error, "status_code", None):
            return [found]
        error = error.__cause__
    return "no status"


def error(made: Any, provider: str) -> object:
    return refused(lambda: asyncio.run(made.whole(provider, asking(**REFUSING))), Exception, status_of)


def instructed(provider: str) -> object:
    made = instructor.from_openai(openai.OpenAI(default_headers=calling("City"), **OPTIONS))
    asked = [{"role": "user", "content": PROMPT}]
    city = made.chat.completions.create(model=model(provider), response_model=City, messages=asked, max_retries=1)
    return city.model_dump() == ARGUMENTS


for provider in PROVIDERS:
    for made in MADE:
        named = f"{provider} by {made.name}"
        say(named, "whole", lambda made=made, provider=provider: asyncio.run(made.whole(provider, {})))
        say(named, "streamed", lambda made=made, provider=provider: asyncio.run(made.streamed(provider)))
        say(named, "tool", lambda made=made, provider=provider: tool(made, provider))
        say(named, "error", lambda made=made, provider=provider: error(made, provider))
    say(f"{provider} by instructor", "instructed", lambda provider=provider: instructed(provider))
