"""What the description says of every route besides what the framework finds: who may call it, and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.authorization import SESSION_COOKIE, RequireScopes, allow_anyone, signed_in_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Litestar

JsonObject = dict[str, Any]

ERROR_SCHEMA_NAME = "Error"
# By status: when it comes. Reads change nothing, so nobody is in their way.
COMMON_ERRORS = {
    400: "The body, a parameter or a header is not as it must be; each problem has its path.",
    404: "Nothing is here under this id or slug, or something that the request names is not there.",
    500: "Something went wrong here; the log says what.",
    503: "The store does not answer; `retry-after` says when to ask again.",
}
AUTH_ERRORS = {
    401: "No credential came, or none that is good.",
    403: "The scope, the kind of key or the workspace forbids it.",
}
WRITE_ERRORS = {
    409: "It exists already, or something else depends on it.",
    412: "It was changed since the state that `if-match` names.",
    429: "Too many of these in a short time; `retry-after` says when to ask again.",
}
SECURITY_SCHEMES: JsonObject = {
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-gateway-api-key",
        "description": "a key of the gateway; also taken as `Authorization: Bearer`",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "a token of the identity provider that the settings name",
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
        ("post", "idempotency-key", "the same text again within a day: it is done once, and answered as it was then"),
        ("put", "if-match", "what `etag` said when it was read; it is changed only while it is still so"),
        ("delete", "if-match", "what `etag` said when it was read; it is deleted only while it is still so"),
        ("get", "if-none-match", "what `etag` said when it was read; while it is still so, 304 and no body"),
    )
}
PROBLEM_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["path", "message"],
    "properties": {
        "path": {"type": "string", "description": "where it is, as `targets[0].provider`; empty: the whole"},
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
                "message": {"type": "string", "description": "the first problem in a sentence"},
                "errorCode": {"type": "string", "enum": ERROR_CODES, "description": "what kind of fault it is"},
                "errors": {"type": "array", "items": PROBLEM_SCHEMA, "description": "every problem with its path"},
            },
        },
        "error": {
            "type": "object",
            "description": "the same in OpenAI's shape, on the paths that OpenAI's SDKs ask",
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


def build_openapi(app: Litestar) -> JsonObject:
    """Give the description of an application with how each route is guarded and how it refuses."""
    described: JsonObject = app.openapi_schema.to_schema()
    described["components"]["schemas"][ERROR_SCHEMA_NAME] = ERROR_SCHEMA
    described["components"]["securitySchemes"] = SECURITY_SCHEMES
    for path, verb, handler in _iter_handlers(app):
        if operation := described["paths"].get(path, {}).get(verb):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            _describe_operation(operation, verb, guards, handler.opt)
    return described


def _iter_handlers(app: Litestar) -> Iterator[tuple[str, str, Any]]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            for method in handler.http_methods:
                yield getattr(route, "path_format", "") or "/", method.lower(), handler


def _describe_operation(operation: JsonObject, verb: str, guards: list[object], opt: JsonObject) -> None:
    is_open, own = allow_anyone in guards, opt.get("refuses", {})
    refusals = COMMON_ERRORS | ({} if is_open else AUTH_ERRORS) | ({} if verb == "get" else WRITE_ERRORS) | own
    good = {status: answer for status, answer in operation["responses"].items() if int(status) < min(COMMON_ERRORS)}
    operation["responses"] = good | {str(status): _error_response(refusals[status]) for status in sorted(refusals)}
    # What callers do to themselves depends on no state that they could have read.
    depends = not is_open and (verb in {"get", "post"} or signed_in_only not in guards)
    if header := CONDITIONAL_HEADERS.get(verb) if depends or opt.get("is_once") else None:
        operation.setdefault("parameters", []).append(header)
    operation["security"] = [] if is_open else [{name: []} for name in SECURITY_SCHEMES]
    scopes = [f"`{scope}`" for guard in guards if isinstance(guard, RequireScopes) for scope in sorted(guard.scopes)]
    if scopes:
        operation["description"] = f"{operation.get('description', '')}\n\nScope: {' or '.join(scopes)}.".lstrip()


def _error_response(words: str) -> JsonObject:
    schema = {"$ref": f"#/components/schemas/{ERROR_SCHEMA_NAME}"}
    return {"description": words, "content": {"application/json": {"schema": schema}}}
