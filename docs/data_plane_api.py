"""OpenAPI document of the data plane, from the table of operations. Providers define most fields of bodies, so only the
fields that the gateway needs or that clients use most are listed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.kit.openapi import SECURITY_SCHEMES

if TYPE_CHECKING:
    from pathlib import Path

ROW_PATTERN = re.compile(r'^    \(\w+, "(\w+)", "([^"]+)", "(\w+)", (\w+)\),$', re.MULTILINE)
TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
HEADERS = {
    "x-gateway-provider": ("name of a provider, such as `openai`, or `@slug` of a saved one", "@my-openai"),
    "x-gateway-config": ("slug or id of a saved config, or a config as JSON", "pc-main"),
    "x-gateway-custom-host": ("base URL of another host of the provider", "https://models.example.com/v1"),
    "x-gateway-metadata": ("JSON object of strings; part of the log", '{"team": "search"}'),
    "x-gateway-request-timeout": ("time limit of the request in milliseconds", "30000"),
    "x-gateway-debug": ("`false`: the log contains no bodies and headers", "false"),
}
ERROR_DESCRIPTIONS = {
    "400": "The request, its headers or its config are invalid.",
    "401": "No API key of the gateway was sent, or it is not valid.",
    "403": "The API key or a policy forbids it.",
    "412": "A limit or a budget is used up.",
    "429": "A rate limit of the gateway or of the provider; `retry-after` says when to try again.",
    "446": "A guardrail denied the request or the response.",
    "502": "The provider cannot be reached, or its response cannot be used.",
    "503": "All targets are unavailable, or the gateway has too many requests.",
    "504": "The provider did not respond in time.",
}
# Routes of saved prompts, which are in no table of the engine: their requests become chat or text completions.
PROMPT_ROWS = [
    ("POST", "/prompts/:id/completions", "runPrompt", "Json"),
    ("POST", "/prompts/:id/render", "renderPrompt", "Json"),
    ("POST", "/prompts/:id/compare", "comparePrompt", "Json"),
]
ROLES = {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]}


def _field(schema: dict[str, Any], words: str) -> dict[str, Any]:
    return {**schema, "description": words}


MODEL = _field(TEXT, "name of the model; `@slug/model` also names a saved provider")
VARIABLES = _field({"type": "object"}, "a value for each variable of the prompt")
OVERRIDES = _field({"type": "object"}, "fields of the request that replace those of the prompt")
STREAM = _field(FLAG, "return the response as an event stream")
MESSAGES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": _field(ROLES, "author of the message"),
            "content": _field({}, "text, or a list of parts"),
        },
    },
    "description": "conversation so far",
}
# Request bodies by operation: fields with descriptions, names of the required fields, and an example.
BODIES: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "chatComplete": (
        {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": _field(NUMBER, "limit of the output"),
            "temperature": _field({"type": "number"}, "0 for the most likely output"),
            "tools": _field({"type": "array", "items": {"type": "object"}}, "functions that the model may call"),
            "stream": STREAM,
        },
        ["model", "messages"],
        {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello"}]},
    ),
    "messages": (
        {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": _field(NUMBER, "limit of the output"),
            "system": _field({}, "instructions: text, or a list of blocks"),
            "stream": STREAM,
        },
        ["model", "messages", "max_tokens"],
        {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": "Say hello"}]},
    ),
    "createModelResponse": (
        {
            "model": MODEL,
            "input": _field({}, "text, or a list of items"),
            "instructions": _field(TEXT, "instructions for the model"),
            "stream": STREAM,
        },
        ["model", "input"],
        {"model": "gpt-4o", "input": "Say hello"},
    ),
    "complete": (
        {"model": MODEL, "prompt": _field({}, "text, or a list of texts"), "stream": STREAM},
        ["model", "prompt"],
        {"model": "gpt-3.5-turbo-instruct", "prompt": "Say hello"},
    ),
    "embed": (
        {
            "model": MODEL,
            "input": _field({}, "text, or a list of texts"),
            "dimensions": _field(NUMBER, "length of the vectors"),
            "encoding_format": _field({"type": "string", "enum": ["float", "base64"]}, "format of the vectors"),
        },
        ["model", "input"],
        {"model": "text-embedding-3-small", "input": "hello"},
    ),
    "moderate": ({"model": MODEL, "input": _field({}, "text to check")}, ["input"], {"input": "hello"}),
    "rerank": (
        {
            "model": MODEL,
            "query": _field(TEXT, "what to search for"),
            "documents": _field({"type": "array", "items": {}}, "texts to sort"),
            "top_n": _field(NUMBER, "number of results"),
        },
        ["model", "query", "documents"],
        {"model": "rerank-v3.5", "query": "capital", "documents": ["Paris", "Rome"]},
    ),
    "imageGenerate": (
        {"model": MODEL, "prompt": _field(TEXT, "description of the image"), "size": _field(TEXT, "width x height")},
        ["model", "prompt"],
        {"model": "gpt-image-1", "prompt": "A lighthouse"},
    ),
    "runPrompt": (
        {"variables": VARIABLES, "stream": STREAM, "model": MODEL, "hyperparameters": OVERRIDES},
        [],
        {"variables": {"name": "Ann"}},
    ),
    "renderPrompt": (
        {"variables": VARIABLES, "model": MODEL, "hyperparameters": OVERRIDES},
        [],
        {"variables": {"name": "Ann"}},
    ),
    "comparePrompt": (
        {
            "versions": {
                "type": "array",
                "items": {},
                "minItems": 2,
                "maxItems": 2,
                "description": "two versions: numbers, `latest`, `default` or labels",
            },
            "variables": {
                "type": "array",
                "items": VARIABLES,
                "minItems": 1,
                "maxItems": 20,
                "description": "sets of variables; both versions run with each",
            },
            "hyperparameters": OVERRIDES,
        },
        ["versions", "variables"],
        {"versions": ["default", "latest"], "variables": [{"name": "Ann"}]},
    ),
    "createSpeech": (
        {"model": MODEL, "input": _field(TEXT, "text to read"), "voice": _field(TEXT, "name of the voice")},
        ["model", "input", "voice"],
        {"model": "gpt-4o-mini-tts", "input": "hello", "voice": "alloy"},
    ),
}


def build_document(operations: Path) -> str:
    """Returns the document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, name, takes in [*ROW_PATTERN.findall(operations.read_text()), *PROMPT_ROWS]:
        template = re.sub(r":(id)\b", r"{\1}", path.replace("*", "{model}"))
        paths.setdefault(f"/v1{template}", {})[method.lower()] = _operation(name, template, takes)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock data plane",
            "version": __version__,
            "description": "Requests to model providers. Send the API key of the gateway, and a header that names a "
            "provider or a config. The API formats are those of OpenAI, Anthropic, Google and Amazon.",
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {name: SECURITY_SCHEMES[name] for name in ("key", "token")},
            "parameters": {name: _header(name, *about) for name, about in HEADERS.items()},
            "schemas": {"Error": ERROR_SCHEMA},
        },
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "description": "error in the API format of the client",
            "properties": {
                "message": _field(TEXT, "what is wrong, and what to do"),
                "type": _field(TEXT, "kind of the error"),
                "code": _field(TEXT, "code of the error, as in errors.md"),
            },
        }
    },
}


def _operation(name: str, path: str, takes: str) -> dict[str, Any]:
    headers = [{"$ref": f"#/components/parameters/{header}"} for header in HEADERS]
    parameters = [
        {"name": place, "in": "path", "required": True, "schema": TEXT} for place in re.findall(r"\{(\w+)\}", path)
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "operationId": name,
        "summary": re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower(),
        "tags": ["Data plane"],
        "parameters": [*parameters, *headers],
        "responses": {
            "200": {"description": "The provider's response, in the API format of the client."},
            **{status: {"description": words, "content": error} for status, words in ERROR_DESCRIPTIONS.items()},
        },
    }
    if takes == "Json":
        fields, required, example = BODIES.get(name, ({}, [], {}))
        schema: dict[str, Any] = {"type": "object", "additionalProperties": True}
        if fields:
            schema |= {"properties": fields, "required": required}
        content: dict[str, Any] = {"schema": schema, **({"example": example} if example else {})}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    elif takes == "Form":
        form = {"schema": {"type": "object", "additionalProperties": True}}
        described["requestBody"] = {"required": True, "content": {"multipart/form-data": form}}
    return described


def _header(name: str, words: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": TEXT, "description": words, "example": example}
