"""Converts messages of requests and responses to the JSON format of OpenTelemetry's conventions: a role, and parts with
a type. Binary data is omitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

JsonObject = dict[str, Any]
ROLES = {"model": "assistant", "developer": "system", "function": "tool"}
TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
IMAGE_TYPES = frozenset({"image_url", "input_image"})


def find_input(request: JsonObject) -> list[JsonObject]:
    """Returns the messages of a request, in order."""
    for name in ("messages", "contents"):
        if isinstance(request.get(name), list):
            return [_to_message(item) for item in _objects(request[name])]
    prompt = request.get("prompt", request.get("input"))
    if isinstance(prompt, str):
        return [{"role": "user", "parts": [_text_part(prompt)]}]
    return [_to_message(item) for item in _objects(prompt)]


def find_instructions(request: JsonObject) -> list[JsonObject]:
    """Returns the system instructions that a request has outside of its messages."""
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        if instructions := request.get(name):
            return list(_to_parts(_object(instructions).get("parts", instructions)))
    return []


def find_tools(request: JsonObject) -> list[JsonObject]:
    """Returns the names and descriptions of the tools of a request."""
    tools = request.get("tools") or _object(request.get("toolConfig")).get("tools")
    return [tool for item in _objects(tools) for tool in _to_tools(item)]


def collect_output(documents: Iterable[JsonObject]) -> list[JsonObject]:
    """Returns the messages of a response, from one document or from the events of its stream."""
    output = OutputCollector()
    for document in documents:
        output.add(document)
    return output.messages()


class OutputMessage(msgspec.Struct):
    """One message of a response. Its parts grow with each event of a stream."""

    parts: dict[object, JsonObject] = {}
    finish_reason: str = ""

    def append(self, key: object, kind: str, field: str, text: object) -> None:
        """Appends text to a field of the part with this key. Creates the part if it does not exist."""
        part = self.parts.setdefault(key, {"type": kind})
        if isinstance(text, str):
            part[field] = part.get(field, "") + text


class OutputCollector:
    """Collects the messages of a response from one document, or from the events of a stream."""

    def __init__(self) -> None:
        """Starts without messages."""
        self._messages: dict[int, OutputMessage] = {}

    def add(self, document: JsonObject) -> None:
        """Adds a complete response, or one event of a stream."""
        for choice in _objects(document.get("choices")):
            self._add_choice(choice)
        for candidate in _objects(document.get("candidates")):
            self._add_parts(_index(candidate), _object(candidate.get("content")).get("parts"))
            self._finish(_index(candidate), candidate.get("finishReason"))
        if _text(document.get("type")) in {"response.completed", "response.incomplete", "response.failed"}:
            document = _object(document.get("response"))
        if isinstance(document.get("output"), list):
            self._add_items(document)
        elif message := _object(document.get("output")).get("message"):
            self._add_parts(0, _object(message).get("content"))
            self._finish(0, document.get("stopReason"))
        elif document.get("type") == "message":
            self._add_parts(0, document.get("content"))
            self._finish(0, document.get("stop_reason"))
        else:
            self._add_block(document)

    def messages(self) -> list[JsonObject]:
        """Returns the messages in the order of their choices."""
        return [
            {
                "role": "assistant",
                "parts": [_parse_arguments(part) for part in message.parts.values()],
                "finish_reason": message.finish_reason or "stop",
            }
            for _, message in sorted(self._messages.items())
            if message.parts
        ]

    def _at(self, index: int) -> OutputMessage:
        return self._messages.setdefault(index, OutputMessage({}))

    def _finish(self, index: int, reason: Any) -> None:  # noqa: ANN401 - JSON
        if isinstance(reason, str) and reason:
            self._at(index).finish_reason = reason

    def _add_parts(self, index: int, content: Any) -> None:  # noqa: ANN401 - JSON
        message = self._at(index)
        for part in _to_parts(content):
            last = next(reversed(message.parts.values()), None)
            # Each event of a stream from Google has a separate text part, so consecutive text parts are joined.
            if last and part["type"] == last["type"] == "text":
                last["content"] += part["content"]
            else:
                message.parts[len(message.parts)] = part

    def _add_choice(self, choice: JsonObject) -> None:
        """Adds a choice of OpenAI's chats and completions."""
        message, message_fields = self._at(_index(choice)), _object(choice.get("message") or choice.get("delta"))
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message_fields.get(name), str):
                message.append(name, "reasoning", "content", message_fields[name])
        for text in (choice.get("text"), message_fields.get("content"), message_fields.get("refusal")):
            if isinstance(text, str) and text:
                message.append("text", "text", "content", text)
        if isinstance(message_fields.get("content"), list):
            self._add_parts(_index(choice), message_fields["content"])
        for number, call in enumerate(_objects(message_fields.get("tool_calls"))):
            function, key = _object(call.get("function")), ("call", _index(call, number))
            message.append(key, "tool_call", "arguments", function.get("arguments"))
            message.parts[key] |= {
                name: value for name, value in (("id", call.get("id")), ("name", function.get("name"))) if value
            }
        self._finish(_index(choice), choice.get("finish_reason"))

    def _add_items(self, response: JsonObject) -> None:
        """Adds the output items of OpenAI's Responses API as parts of a single message."""
        for item in _objects(response.get("output")):
            self._add_parts(0, item.get("content") if item.get("type") == "message" else [item])
        self._finish(0, response.get("status"))

    def _add_block(self, event: JsonObject) -> None:
        """Adds an event of a stream from Anthropic's Messages API."""
        key = ("block", _index(event))
        match event.get("type"):
            case "content_block_start":
                part = next(_to_parts([event.get("content_block")]), {"type": "text", "content": ""})
                # The arguments of a tool call follow as text in later events.
                self._at(0).parts[key] = {**part, "arguments": ""} if part["type"] == "tool_call" else part
            case "content_block_delta":
                delta, message = _object(event.get("delta")), self._at(0)
                if "partial_json" in delta:
                    message.append(key, "tool_call", "arguments", delta["partial_json"])
                elif "thinking" in delta:
                    message.append(key, "reasoning", "content", delta["thinking"])
                elif "text" in delta:
                    message.append(key, "text", "content", delta["text"])
            case "message_delta":
                self._finish(0, _object(event.get("delta")).get("stop_reason"))
            case _:
                pass


def _to_message(item: JsonObject) -> JsonObject:
    role = item.get("role")
    name = ROLES.get(role, role) if isinstance(role, str) else _role_of_item(item)
    if name == "tool" and "content" in item:
        parts = [_response_part(item.get("tool_call_id"), item["content"])]
    elif "content" in item or "parts" in item:
        parts = list(_to_parts(item.get("content", item.get("parts"))))
    else:
        parts = [] if role else list(_to_parts([item]))
    for call in _objects(item.get("tool_calls")):
        function = _object(call.get("function"))
        parts.append(_call_part(call.get("id"), function.get("name"), function.get("arguments")))
    return {"role": name, "parts": parts}


def _role_of_item(item: JsonObject) -> str:
    """Returns the role for an input item of OpenAI's Responses API that has no role field."""
    return "tool" if str(item.get("type")).endswith("_output") else "assistant"


def _to_parts(content: Any) -> Iterator[JsonObject]:  # noqa: ANN401 - JSON
    if isinstance(content, str):
        yield _text_part(content)
    elif isinstance(content, list):
        for item in cast("list[Any]", content):
            if isinstance(item, str):
                yield _text_part(item)
            elif isinstance(item, dict):
                yield _to_part(cast("JsonObject", item))


def _to_part(item: JsonObject) -> JsonObject:
    """Converts one part of a message from the format of OpenAI, Anthropic, Google or Amazon. Of unknown parts, only the
    type remains.
    """
    kind = _text(item.get("type"))
    if kind in TEXT_TYPES or (not kind and isinstance(item.get("text"), str)):
        return _text_part(item.get("text"))
    for name in ("functionCall", "function_call", "toolUse"):
        if call := _object(item.get(name)):
            return _call_part(
                call.get("id") or call.get("toolUseId"), call.get("name"), call.get("args", call.get("input"))
            )
    for name in ("functionResponse", "toolResult"):
        if call := _object(item.get(name)):
            return _response_part(call.get("id") or call.get("toolUseId"), call.get("response", call.get("content")))
    return _to_typed_part(kind, item)


def _to_typed_part(kind: str, item: JsonObject) -> JsonObject:
    if kind in {"tool_use", "function_call"}:
        return _call_part(
            item.get("call_id") or item.get("id"), item.get("name"), item.get("input", item.get("arguments"))
        )
    if kind in {"tool_result", "function_call_output"}:
        return _response_part(item.get("tool_use_id") or item.get("call_id"), item.get("content", item.get("output")))
    if kind in {"thinking", "reasoning"}:
        text = item.get("thinking") or " ".join(
            str(part.get("text", "")) for part in _objects(item.get("summary")) if part.get("text")
        )
        return {"type": "reasoning", "content": text}
    if kind in IMAGE_TYPES:
        url = _object(item.get("image_url")).get("url", item.get("image_url"))
        if isinstance(url, str) and not url.startswith("data:"):
            return {"type": "uri", "modality": "image", "uri": url}
    return {"type": kind or next(iter(item), "unknown")}


def _to_tools(item: JsonObject) -> Iterator[JsonObject]:
    nested = item.get("functionDeclarations") or item.get("function_declarations")
    for declaration in _objects(nested) if nested else [item.get("function") or item.get("toolSpec") or item]:
        tool = _object(declaration)
        kind = _text(item.get("type")) or "function"
        name = tool.get("name") or kind
        words = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
        yield {"type": "function" if kind == "custom" else kind, "name": name, **words}


def _text_part(text: Any) -> JsonObject:  # noqa: ANN401 - JSON
    return {"type": "text", "content": _text(text)}


def _call_part(call_id: Any, name: Any, arguments: Any) -> JsonObject:  # noqa: ANN401 - JSON
    return _parse_arguments({"type": "tool_call", "id": call_id, "name": name or "", "arguments": arguments})


def _response_part(call_id: Any, response: Any) -> JsonObject:  # noqa: ANN401 - JSON
    return {"type": "tool_call_response", "id": call_id, "response": response}


def _parse_arguments(part: JsonObject) -> JsonObject:
    """Returns the part. If it is a tool call whose arguments are valid JSON text, replaces the text by the JSON
    value.
    """
    arguments = part.get("arguments")
    if part["type"] == "tool_call" and isinstance(arguments, str) and arguments:
        try:
            return {**part, "arguments": msgspec.json.decode(arguments)}
        except (msgspec.DecodeError, RecursionError):
            return part
    return part


def _objects(value: Any) -> list[JsonObject]:  # noqa: ANN401 - JSON
    """Returns the objects of a list."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", item) for item in items if isinstance(item, dict)]


def _object(value: Any) -> JsonObject:  # noqa: ANN401 - JSON
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else ""


def _index(choice: JsonObject, default: int = 0) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else default
