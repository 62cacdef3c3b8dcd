"""What the description says of every route besides what the framework finds: who may call it, and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.authorization import SESSION_COOKIE, Needs, anyone, signed_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Litestar

Table = dict[str, Any]

ERROR = "Error"
# By status: when it comes. Reads change nothing, so nobody is in their way.
ALWAYS = {
    400: "The body, a parameter or a header is not as it must be; each problem has its path.",
    404: "Nothing is here under this id or slug, or something that the request names is not there.",
    500: "Something went wrong here; the log says what.",
    503: "The store does not answer; `retry-after` says when to ask again.",
}
GUARDED = {
    401: "No credential came, or none that is good.",
    403: "The scope, the kind of key or the workspace forbids it.",
}
CHANGING = {
    409: "It exists already, or something else depends on it.",
    412: "It was changed since the state that `if-match` names.",
    429: "Too many of these in a short time; `retry-after` says when to ask again.",
}
SCHEMES: Table = {
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
CONDITIONS: Table = {
    verb: {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}
    for verb, name, words in (
        ("post", "idempotency-key", "the same text again within a day: it is done once, and answered as it was then"),
        ("put", "if-match", "what `etag` said when it was read; it is changed only while it is still so"),
        ("delete", "if-match", "what `etag` said when it was read; it is deleted only while it is still so"),
        ("get", "if-none-match", "what `etag` said when it was read; while it is still so, 304 and no body"),
    )
}
PROBLEM: Table = {
    "type": "object",
    "required": ["path", "message"],
    "properties": {
        "path": {"type": "string", "description": "where it is, as `targets[0].provider`; empty: the whole"},
        "message": {"type": "string", "description": "what is wrong, and what is allowed"},
    },
}
CODES = sorted({*errors.CODES.values(), "AB02", "AB04"})
ENVELOPE: Table = {
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
                "errorCode": {"type": "string", "enum": CODES, "description": "what kind of fault it is"},
                "errors": {"type": "array", "items": PROBLEM, "description": "every problem with its path"},
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


def complete(app: Litestar) -> Table:
    """Give the description of an application with how each route is guarded and how it refuses."""
    described: Table = app.openapi_schema.to_schema()
    described["components"]["schemas"][ERROR] = ENVELOPE
    described["components"]["securitySchemes"] = SCHEMES
    for path, verb, handler in _handlers(app):
        if operation := described["paths"].get(path, {}).get(verb):
            guards = [guard for layer in handler.ownership_layers for guard in layer.guards or ()]
            _say(operation, verb, guards, handler.opt)
    return described


def _handlers(app: Litestar) -> Iterator[tuple[str, str, Any]]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            for method in handler.http_methods:
                yield getattr(route, "path_format", "") or "/", method.lower(), handler


def _say(operation: Table, verb: str, guards: list[object], opt: Table) -> None:
    is_open, own = anyone in guards, opt.get("refuses", {})
    refusals = ALWAYS | ({} if is_open else GUARDED) | ({} if verb == "get" else CHANGING) | own
    good = {status: answer for status, answer in operation["responses"].items() if int(status) < min(ALWAYS)}
    operation["responses"] = good | {str(status): _refusal(refusals[status]) for status in sorted(refusals)}
    # What callers do to themselves depends on no state that they could have read.
    depends = not is_open and (verb in {"get", "post"} or signed_in not in guards)
    if header := CONDITIONS.get(verb) if depends or opt.get("is_once") else None:
        operation.setdefault("parameters", []).append(header)
    operation["security"] = [] if is_open else [{name: []} for name in SCHEMES]
    scopes = [f"`{scope}`" for guard in guards if isinstance(guard, Needs) for scope in sorted(guard.scopes)]
    if scopes:
        operation["description"] = f"{operation.get('description', '')}\n\nScope: {' or '.join(scopes)}.".lstrip()


def _refusal(words: str) -> Table:
    schema = {"$ref": f"#/components/schemas/{ERROR}"}
    return {"description": words, "content": {"application/json": {"schema": schema}}}
