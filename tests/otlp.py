"""Requests of OpenTelemetry clients: spans and log records in OTLP JSON."""

from __future__ import annotations

import json
import time
from typing import Any

CANARY = "sk-canary-of-otel-0123456789"
TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "53995c3f42cd8ad8"
INPUT = [
    {"role": "user", "parts": [{"type": "text", "content": "zebra crossing?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
]
OUTPUT = [{"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"}]
# Attributes of a span for the call of a model.
CALL_ATTRIBUTES: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.response.model": "gpt-4o-2024",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.usage.input_tokens": 10,
    "gen_ai.usage.output_tokens": 5,
    "gen_ai.input.messages": json.dumps(INPUT),
    "gen_ai.output.messages": json.dumps(OUTPUT),
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be brief"}]),
    "server.address": "api.openai.com",
    "user.id": "ann",
    "gen_ai.conversation.id": "s-1",
    "team": "red",
    "http.request.header.authorization": [f"Bearer {CANARY}"],
    "url.full": f"https://api.openai.com/v1/chat/completions?api_key={CANARY}",
    "url.query": f"api_key={CANARY}",
}
# The same request and response as `custom_logs` stores them.
CALL_REQUEST = {
    "model": "gpt-4o",
    "temperature": 0.5,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "zebra crossing?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ],
}


def encode_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [encode_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": encode_attributes(value)}}
    return {"stringValue": value}


def encode_attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": encode_value(value)} for key, value in values.items()]


def make_span(values: dict[str, Any] | None = None, *, age_seconds: float = 60, **fields: Any) -> dict[str, Any]:
    start = int((time.time() - age_seconds) * 1000) * 1_000_000
    return {
        "traceId": TRACE,
        "spanId": SPAN,
        "parentSpanId": PARENT,
        "name": "chat gpt-4o",
        "kind": 3,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 250_000_000),
        "attributes": encode_attributes(CALL_ATTRIBUTES if values is None else values),
        "status": {"code": 1},
        "laterField": 1,
        **fields,
    }


def make_traces(*spans: Any) -> dict[str, Any]:
    resource = {"attributes": encode_attributes({"service.name": "agent"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": list(spans)}]}]}


def make_logs(*records: Any) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}
