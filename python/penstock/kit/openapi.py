"""OpenAPI document of the management API. Adds what Litestar does not know about each route: authorisation, error
responses, and an example of each body.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock import errors
from penstock.authorization import SESSION_COOKIE, RequireScopes, allow_anyone, own_pages_only, signed_in_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from litestar import Litestar

JsonObject = dict[str, Any]

ERROR_SCHEMA_NAME = "Error"
SCHEMA_PREFIX = "#/components/schemas/"
# Generic type whose schemas Litestar names after the type and the modules and names of its parameters.
LIST_PREFIX = "ListResponse_"
CLASS_NAME = re.compile(r"\.([A-Z][A-Za-z0-9]*)(?=_|$)")
# Descriptions of errors by status. `WRITE_ERRORS` apply only to routes that change something.
COMMON_ERRORS = {
    400: "The body, a parameter or a header is invalid; each problem has its path.",
    404: "Nothing exists under this id or slug, or the request names something that does not exist.",
    500: "Internal error; the log has the details.",
    503: "The store is unavailable; `retry-after` says when to try again.",
}
AUTH_ERRORS = {
    401: "No credential was sent, or it is not valid.",
    403: "The scope, the kind of key or the workspace forbids it.",
}
WRITE_ERRORS = {
    409: "It exists already, or something else depends on it.",
    412: "It was changed since the state that `if-match` names.",
    429: "Too many requests in a short time; `retry-after` says when to try again.",
}
SECURITY_SCHEMES: JsonObject = {
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-gateway-api-key",
        "description": "an API key of the gateway; also accepted as `Authorization: Bearer`",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "a token of the identity provider in the settings",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "a session of the console; changes also send `x-csrf-token`",
    },
}
CONDITIONAL_HEADERS: JsonObject = {
    verb: {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}
    for verb, name, words in (
        (
            "post",
            "idempotency-key",
            "makes a retry safe: within a day, the same key runs the request once and repeats its response",
        ),
        ("put", "if-match", "the `etag` that was read; the change is made only if it is still current"),
        ("delete", "if-match", "the `etag` that was read; the deletion is made only if it is still current"),
        (
            "get",
            "if-none-match",
            "the `etag` that was read; if it is still current, the response is 304 without a body",
        ),
    )
}
PROBLEM_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["path", "message"],
    "properties": {
        "path": {"type": "string", "description": "JSON path, such as `targets[0].provider`; empty: the whole body"},
        "message": {"type": "string", "description": "what is wrong, and what is allowed"},
    },
}
ERROR_CODES = sorted({*errors.CODE_BY_STATUS.values(), "AB02", "AB04"})
ERROR_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["success", "data"],
    "properties": {
        "success": {"const": False, "description": "always false"},
        "data": {
            "type": "object",
            "description": "what went wrong",
            "required": ["message", "errorCode"],
            "properties": {
                "message": {"type": "string", "description": "the problems in one line, at most five of them"},
                "errorCode": {"type": "string", "enum": ERROR_CODES, "description": "kind of error"},
                "errors": {"type": "array", "items": PROBLEM_SCHEMA, "description": "every problem with its path"},
            },
        },
        "error": {
            "type": "object",
            "description": "the same in OpenAI's format, on the paths that OpenAI's SDKs call",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "the message"},
                "type": {"type": "string", "description": "`invalid_request_error` or `api_error`"},
                "param": {"type": ["string", "null"], "description": "path of the first problem"},
                "code": {"type": ["string", "null"], "description": "always null"},
            },
        },
    },
}


@functools.cache
def _request_examples() -> dict[str, JsonObject]:
    """Returns an example of each request body, by the name of its schema."""
    return msgspec.json.decode(Path(__file__).with_name("request_examples.json").read_bytes())


def build_openapi(app: Litestar) -> JsonObject:
    """Returns the OpenAPI document of an app, with authorisation, error responses and examples of each route."""
    described: JsonObject = _rename_schemas(app.openapi_schema.to_schema())
    described["components"]["schemas"][ERROR_SCHEMA_NAME] = ERROR_SCHEMA
    described["components"]["securitySchemes"] = SECURITY_SCHEMES
    for path, verb, handler in _iter_handlers(app):
        if operation := described["paths"].get(path, {}).get(verb):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            _describe_operation(operation, verb, guards, handler.opt)
            _add_example(operation)
    return described


def _rename_schemas(described: JsonObject) -> JsonObject:
    """Gives schemas of lists plain names: `ScopeList` instead of `ListResponse_penstock.resources.scopes.Scope_`."""
    schemas = described["components"]["schemas"]
    names = {name: f"{'Or'.join(CLASS_NAME.findall(name))}List" for name in schemas if name.startswith(LIST_PREFIX)}
    if len({*names.values(), *schemas}) < len(names) + len(schemas):
        message = f"two schemas would have the same name: {sorted(names.values())}"
        raise ValueError(message)
    for name, plain in names.items():
        schemas[plain] = {**schemas.pop(name), "title": plain}
    references = {SCHEMA_PREFIX + name: SCHEMA_PREFIX + plain for name, plain in names.items()}
    return _replace_references(described, references)


def _replace_references(value: Any, references: Mapping[str, str]) -> Any:  # noqa: ANN401 - a part of a document
    if isinstance(value, list):
        return [_replace_references(item, references) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            key: references.get(item, item) if key == "$ref" else _replace_references(item, references)
            for key, item in cast("JsonObject", value).items()
        }
    return value


def _add_example(operation: JsonObject) -> None:
    for body in operation.get("requestBody", {}).get("content", {}).values():
        schema = body.get("schema", {})
        # An optional body has null as its other alternative.
        references = [
            item["$ref"] for item in (schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())) if "$ref" in item
        ]
        for reference in references[:1]:
            if (example := _request_examples().get(reference.removeprefix(SCHEMA_PREFIX))) is not None:
                body["example"] = example


def _iter_handlers(app: Litestar) -> Iterator[tuple[str, str, Any]]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            for method in handler.http_methods:
                yield getattr(route, "path_format", "") or "/", method.lower(), handler


def _describe_operation(operation: JsonObject, verb: str, guards: list[object], opt: JsonObject) -> None:
    is_open, extra_errors = allow_anyone in guards or own_pages_only in guards, opt.get("refuses", {})
    refusals = COMMON_ERRORS | ({} if is_open else AUTH_ERRORS) | ({} if verb == "get" else WRITE_ERRORS) | extra_errors
    good = {status: response for status, response in operation["responses"].items() if int(status) < min(COMMON_ERRORS)}
    operation["responses"] = good | {str(status): _error_response(refusals[status]) for status in sorted(refusals)}
    # Routes that change only the caller itself get no conditional header, because they depend on no state that it could
    # have read before.
    depends = not is_open and (verb in {"get", "post"} or signed_in_only not in guards)
    depends &= not opt.get("changes_nothing")
    if header := CONDITIONAL_HEADERS.get(verb) if depends or opt.get("is_once") else None:
        operation.setdefault("parameters", []).append(header)
    operation["security"] = [] if is_open else [{name: []} for name in SECURITY_SCHEMES]
    scopes = [
        " or ".join(f"`{scope}`" for scope in sorted(guard.scopes))
        for guard in guards
        if isinstance(guard, RequireScopes)
    ]
    if scopes:
        operation["description"] = f"{operation.get('description', '')}\n\nScope: {' and '.join(scopes)}.".lstrip()


def _error_response(description: str) -> JsonObject:
    schema = {"$ref": f"{SCHEMA_PREFIX}{ERROR_SCHEMA_NAME}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
