"""Model calls in span attributes, converted to requests and responses in OpenAI's format, so that their usage can be
priced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.logs.otel_spans import PROVIDER_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.otel.attributes import Attributes

# Names of each attribute: the current one, older ones, and that of OpenInference. The first that exists is used.
MODEL_NAMES = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
PROVIDER_ATTRIBUTES = ("gen_ai.provider.name", "gen_ai.system", "llm.provider")
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
CACHED_TOKENS = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
REASONING_TOKENS = ("gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning")
INPUT_NAMES = ("gen_ai.input.messages", "gen_ai.prompt", "input.value")
OUTPUT_NAMES = ("gen_ai.output.messages", "gen_ai.completion", "output.value")
INSTRUCTION_NAME, TOOLS_NAME = "gen_ai.system_instructions", "gen_ai.tool.definitions"
OPERATION_NAME = "gen_ai.operation.name"
METHOD_NAMES = ("http.request.method", "http.method")
URL_NAMES = ("url.full", "http.url", "url.path", "http.target", "http.route")
REQUEST_PARAMETERS = {
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.stream": "stream",
}
# Path of a model call by operation. The path decides how the call is priced. Other operations, such as tools, are no
# model calls.
OPERATION_PATHS = {
    "chat": "/v1/chat/completions",
    "generate_content": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "embeddings": "/v1/embeddings",
}
PROVIDER_SLUGS = {name: slug for slug, name in reversed(PROVIDER_NAMES.items())}
MAX_URL_CHARS = 2048

JsonObject = dict[str, Any]


class Call(NamedTuple):
    """Request and response of a span. `is_plain` is true if the span is not a model call."""

    url: str
    method: str
    provider: str | None
    request_body: Any
    response_body: JsonObject
    is_plain: bool


def build_call(name: str, attributes: Attributes) -> Call:
    """Returns the request and response that the attributes of a span describe. `name` is the name of the span."""
    model, operation = attributes.first_text(*MODEL_NAMES), attributes.first_text(OPERATION_NAME)
    path = OPERATION_PATHS.get(operation, "" if operation or not model else OPERATION_PATHS["chat"])
    if not path:
        url = attributes.first_text(*URL_NAMES) or name or "span"
        body = {"name": name, "attributes": attributes.values}
        return Call(url[:MAX_URL_CHARS], attributes.first_text(*METHOD_NAMES), None, body, {}, is_plain=True)
    host = attributes.first_text("server.address")
    provider = attributes.first_text(*PROVIDER_ATTRIBUTES)
    return Call(
        f"https://{host}{path}"[:MAX_URL_CHARS] if host else path,
        "POST",
        PROVIDER_SLUGS.get(provider, provider)[:MAX_URL_CHARS] or None,
        _build_request(model, attributes),
        _build_response(model, attributes),
        is_plain=False,
    )


def _build_request(model: str, attributes: Attributes) -> JsonObject:
    instructed = _read_json(attributes.values.get(INSTRUCTION_NAME))
    is_text = isinstance(instructed, str)
    instructions = to_messages(instructed if is_text else {"role": "system", "parts": instructed}, "system")
    messages = to_messages(_read_json(attributes.first(*INPUT_NAMES)), "user")
    tools = _read_json(attributes.values.get(TOOLS_NAME))
    parameters = {
        parameter: attributes.values[name]
        for name, parameter in REQUEST_PARAMETERS.items()
        if name in attributes.values
    }
    return {
        "model": model,
        **parameters,
        **({"messages": [*instructions, *messages]} if instructions or messages else {}),
        **({"tools": tools} if isinstance(tools, list) else {}),
    }


def _build_response(model: str, attributes: Attributes) -> JsonObject:
    reasons = attributes.values.get("gen_ai.response.finish_reasons")
    known = cast("list[Any]", reasons) if isinstance(reasons, list) else []
    choices: list[JsonObject] = []
    for index, message in enumerate(to_messages(_read_json(attributes.first(*OUTPUT_NAMES)), "assistant")):
        reason = message.pop("finish_reason", None) or (known[index] if index < len(known) else None)
        choices.append({"index": index, "message": message, "finish_reason": reason})
    return {
        **({"id": response_id} if (response_id := attributes.first_text("gen_ai.response.id")) else {}),
        "model": attributes.first_text("gen_ai.response.model") or model,
        "choices": choices,
        **_build_usage(attributes),
    }


def _build_usage(attributes: Attributes) -> JsonObject:
    request, response = attributes.first_integer(*INPUT_TOKENS), attributes.first_integer(*OUTPUT_TOKENS)
    if request is None and response is None:
        return {}
    requested, responded = max(0, request or 0), max(0, response or 0)
    cached, reasoning = attributes.first_integer(*CACHED_TOKENS), attributes.first_integer(*REASONING_TOKENS)
    return {
        "usage": {
            "prompt_tokens": requested,
            "completion_tokens": responded,
            "total_tokens": requested + responded,
            **({"prompt_tokens_details": {"cached_tokens": min(requested, cached)}} if cached else {}),
            **({"completion_tokens_details": {"reasoning_tokens": min(responded, reasoning)}} if reasoning else {}),
        }
    }


def to_messages(value: Any, role: str = "user") -> list[JsonObject]:  # noqa: ANN401 - JSON
    """Converts messages of the OpenTelemetry conventions, or a text, to messages in OpenAI's format."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [
        message for item in items if isinstance(item, dict) for message in _to_messages(cast("JsonObject", item), role)
    ]


def _to_messages(item: JsonObject, role: str) -> Iterator[JsonObject]:
    """Yields the messages of one message with parts. In OpenAI's format, tool results are separate messages."""
    parts = item.get("parts")
    if not isinstance(parts, list):
        if "parts" not in item and len(item) > 1:
            # A message without `parts` is not in the format of the conventions, so it stays as it is.
            yield item
        return
    contents: list[Any] = []
    calls: list[JsonObject] = []
    for part in (cast("JsonObject", item) for item in cast("list[Any]", parts) if isinstance(item, dict)):
        match part.get("type"):
            case "text":
                contents.append({"type": "text", "text": str(part.get("content", ""))})
            case "tool_call":
                function = {"name": part.get("name"), "arguments": _to_text(part.get("arguments"))}
                calls.append({"id": part.get("id"), "type": "function", "function": function})
            case "tool_call_response":
                content = _to_text(part.get("response", part.get("result")))
                yield {"role": "tool", "tool_call_id": part.get("id"), "content": content}
            case _:
                contents.append(part)
    if contents or calls:
        is_text = all(content.get("type") == "text" for content in contents)
        yield {
            "role": item.get("role") or role,
            "content": "\n".join(content["text"] for content in contents) if is_text else contents,
            **({"tool_calls": calls} if calls else {}),
            **({"finish_reason": item["finish_reason"]} if item.get("finish_reason") else {}),
        }


def _read_json(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Decodes an attribute that may be JSON text. Returns other text unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _to_text(value: Any) -> str:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
