"""OpenTelemetry attributes from request and response bodies: the parameters of the request, the finish reason, and, if
enabled, messages. Reads the API formats of OpenAI, Anthropic, Google and Amazon; other bodies have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.logs import spool_format as spool
from penstock.logs.otel_messages import collect_output, find_input, find_instructions, find_tools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Kinds of response bodies, of which the first that exists is read. A separate client response exists only if it was
# translated.
RESPONSE_KINDS = (spool.CLIENT_RESPONSE, spool.UPSTREAM_RESPONSE)
MAX_CONTENT_BYTES, MAX_LIST_ITEMS = 256 * 1024, 64
# Number of events that are read at the beginning and at the end of a stream. The first ones have the id of the
# response, and the last ones its finish reason.
FIRST_EVENTS, LAST_EVENTS = 3, 8
# Type and names in requests of the parameter for each attribute. Google and Amazon nest the parameters in a separate
# object.
PARAMETERS: dict[str, tuple[type, tuple[str, ...]]] = {
    "gen_ai.request.max_tokens": (
        int,
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens"),
    ),
    "gen_ai.request.temperature": (float, ("temperature",)),
    "gen_ai.request.top_p": (float, ("top_p", "topP")),
    "gen_ai.request.top_k": (float, ("top_k", "topK")),
    "gen_ai.request.frequency_penalty": (float, ("frequency_penalty", "frequencyPenalty")),
    "gen_ai.request.presence_penalty": (float, ("presence_penalty", "presencePenalty")),
    "gen_ai.request.seed": (int, ("seed",)),
    "gen_ai.request.choice.count": (int, ("n", "candidateCount")),
    "gen_ai.request.stop_sequences": (list, ("stop", "stop_sequences", "stopSequences")),
    "gen_ai.request.encoding_formats": (list, ("encoding_format",)),
    "gen_ai.embeddings.dimension.count": (int, ("dimensions",)),
}

PARAMETER_NAMES = {name: (attribute, kind) for attribute, (kind, names) in PARAMETERS.items() for name in names}

RequestParameters = msgspec.defstruct(
    "RequestParameters",
    [
        *((name, Any, None) for name in PARAMETER_NAMES),
        ("generationConfig", Any, None),
        ("inferenceConfig", Any, None),
    ],
    frozen=True,
)


class ResponseChoice(msgspec.Struct, frozen=True):
    """A choice in a response of OpenAI, or a candidate in one of Google."""

    finish_reason: Any = None
    finishReason: Any = None  # noqa: N815 - name in the API


class ResponseHead(msgspec.Struct, frozen=True):
    """Fields that identify a response and contain its finish reason. They are in a complete response, or in an event of
    a stream.
    """

    id: Any = None
    model: Any = None
    responseId: Any = None  # noqa: N815 - name in the API
    modelVersion: Any = None  # noqa: N815 - name in the API
    status: Any = None
    stop_reason: Any = None
    stopReason: Any = None  # noqa: N815 - name in the API
    object: Any = None
    choices: list[ResponseChoice] = []
    candidates: list[ResponseChoice] = []
    delta: Any = None
    message: Any = None
    response: Any = None


DATA = b"data:"
_decode_parameters = msgspec.json.Decoder(RequestParameters).decode
_decode_head = msgspec.json.Decoder(ResponseHead).decode


def read_body_attributes(bodies: Mapping[int, bytes], *, with_content: bool) -> dict[str, Any]:
    """Returns the attributes from the bodies of a request. They include message contents only `with_content`."""
    request = bodies.get(spool.CLIENT_REQUEST, b"")
    response = next((bodies[kind] for kind in RESPONSE_KINDS if bodies.get(kind)), b"")
    attributes = {**_read_parameters(request), **_read_head(response)}
    if with_content:
        attributes |= _read_content(request, response)
    return attributes


def iter_events(body: bytes) -> Iterator[bytes]:
    """Yields the data of server-sent events that may be JSON."""
    for line in body.splitlines():
        if line.startswith(DATA) and (data := line[len(DATA) :].strip()).startswith(b"{"):
            yield data


def find_edge_events(body: bytes) -> list[bytes]:
    """Returns the first and the last events of a stream, without reading those in between."""
    starts: list[int] = []
    at, end = -1, len(body)
    while len(starts) < FIRST_EVENTS and (at := body.find(DATA, at + 1)) >= 0:
        starts += [at] if _is_line_start(body, at) else []
    first_count, last_of_first = len(starts), starts[-1] if starts else end
    while len(starts) < first_count + LAST_EVENTS and (end := body.rfind(DATA, 0, end)) > last_of_first:
        starts += [end] if _is_line_start(body, end) else []
    return [data for start in sorted(starts) for data in iter_events(_line_at(body, start))]


def _line_at(body: bytes, start: int) -> bytes:
    end = body.find(b"\n", start)
    return body[start : len(body) if end < 0 else end]


def _is_line_start(body: bytes, at: int) -> bool:
    return at == 0 or body[at - 1] in b"\r\n"


def _read_parameters(body: bytes) -> dict[str, Any]:
    try:
        parameters: Any = _decode_parameters(body)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    attributes: dict[str, Any] = {}
    for source in (msgspec.structs.asdict(parameters), parameters.generationConfig, parameters.inferenceConfig):
        for name, value in cast("dict[str, Any]", source).items() if isinstance(source, dict) else ():
            if value is None or name not in PARAMETER_NAMES:
                continue
            attribute, kind = PARAMETER_NAMES[name]
            if attribute not in attributes and (checked := _check_value(value, kind)) is not None:
                attributes[attribute] = checked
    if attributes.get("gen_ai.request.choice.count") == 1:
        del attributes["gen_ai.request.choice.count"]
    return attributes


def _check_value(value: Any, kind: type) -> Any:  # noqa: ANN401 - JSON
    if kind is list:
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, str)][:MAX_LIST_ITEMS] or None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind is int:
        return int(value) if value == value // 1 else None
    return float(value)


def _read_head(body: bytes) -> dict[str, Any]:
    heads = list(_decode_heads(body))
    identity = {
        "gen_ai.response.id": _first_text(part for head in heads for part in _find_ids(head)),
        "gen_ai.response.model": _first_text(part for head in heads for part in _find_models(head)),
    }
    reasons = [reason for head in heads for reason in _find_reasons(head) if isinstance(reason, str) and reason]
    return {**identity, "gen_ai.response.finish_reasons": reasons[:MAX_LIST_ITEMS] or None}


def _decode_heads(body: bytes) -> Iterator[ResponseHead]:
    for part in [body] if _is_object(body) else find_edge_events(body):
        try:
            yield _decode_head(part)
        except (msgspec.MsgspecError, RecursionError):
            continue


def _is_object(body: bytes) -> bool:
    return body[:64].lstrip()[:1] == b"{"


def _find_ids(head: ResponseHead) -> list[Any]:
    return [head.id, head.responseId, _get(head.message, "id"), _get(head.response, "id")]


def _find_models(head: ResponseHead) -> list[Any]:
    return [head.model, head.modelVersion, _get(head.message, "model"), _get(head.response, "model")]


def _find_reasons(head: ResponseHead) -> list[Any]:
    is_response = head.object == "response"
    status = head.status if is_response else _get(head.response, "status")
    is_end = isinstance(status, str) and status in {"completed", "incomplete", "failed", "cancelled"}
    return [
        *(choice.finish_reason for choice in head.choices),
        *(candidate.finishReason for candidate in head.candidates),
        head.stop_reason,
        head.stopReason,
        _get(head.delta, "stop_reason"),
        # The first events of a stream have the status `in_progress`.
        status if is_end else None,
    ]


def _get(value: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _first_text(values: Iterable[Any]) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def _read_content(request: bytes, response: bytes) -> dict[str, Any]:
    requested = _decode_object(request)
    events = [response] if _is_object(response) else iter_events(response)
    parts = {
        "gen_ai.input.messages": find_input(requested),
        "gen_ai.output.messages": collect_output(map(_decode_object, events)),
        "gen_ai.system_instructions": find_instructions(requested),
        "gen_ai.tool.definitions": find_tools(requested),
    }
    return {name: _encode_bounded(items) for name, items in parts.items() if items}


def _encode_bounded(items: list[Any]) -> str:
    """Encodes a list as JSON text. If it is too long, omits the first items: they are older messages, which earlier
    spans usually contain.
    """
    texts = [msgspec.json.encode(item) for item in items]
    size = sum(map(len, texts))
    while texts and size > MAX_CONTENT_BYTES:
        size -= len(texts.pop(0))
    return f"[{b','.join(texts).decode()}]"


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
