"""Responses to requests that failed, in the error envelope of the management API."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException

from penstock import resource_paths
from penstock.authorization import find_credential
from penstock.errors import (
    PenstockError,
    RateLimitedError,
    ReplayedResponse,
    UnauthorisedError,
    UnavailableError,
    error_code_for,
    error_envelope,
    openai_error,
)
from penstock.kit.client_format import client_error_fields, detect_client_format
from penstock.kit.client_ip import IDENTITY_PATH
from penstock.kit.request_id import request_id
from penstock.kit.validation_errors import NO_BODY, parse_problems, route_parameters, summarize_problems

if TYPE_CHECKING:
    from penstock.kit.refusals import RefusalLog

log = logging.getLogger("penstock")

BAD_REQUEST, METHOD_NOT_ALLOWED, INTERNAL_ERROR = 400, 405, 500
REFUSAL_STATUSES = frozenset({401, 403})


def render_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Renders any exception in the error envelope of the management API."""
    if isinstance(error, ReplayedResponse):
        headers = {"idempotency-replayed": "true"}
        return Response(error.body, status_code=200, media_type="application/json", headers=headers)
    if isinstance(error, PenstockError):
        status, message, code, listed = error.status, error.message, error.code, error.problems
    elif isinstance(error, HTTPException):
        scope = cast("dict[str, Any]", request.scope)
        used = route_parameters(scope.get("route_handler"))
        problems = parse_problems(error, request, used, scope["state"].get("body", NO_BODY))
        status = BAD_REQUEST if problems else error.status_code
        code = error_code_for(status)
        listed, message = tuple(problems), summarize_problems(problems, error.detail)
    elif isinstance(error, RecursionError):
        # The parser reached its recursion limit: a document in the request is nested too deeply.
        status, message, code, listed = BAD_REQUEST, "the request nests too deep", error_code_for(BAD_REQUEST), ()
    else:
        status, message, code, listed = INTERNAL_ERROR, "something went wrong", error_code_for(INTERNAL_ERROR), ()
    if status == INTERNAL_ERROR:
        log.error("%s %s failed, id=%s", request.method, request.url.path, request_id(request.scope), exc_info=error)
        message = "something went wrong"
    refusals: RefusalLog | None = request.app.state.get("refusals")
    if refusals and is_audited_refusal(request.url.path, status) and not _asks_who_is_signed_in(request):
        refusals.add(request, status)
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, UnavailableError | RateLimitedError) else {}
    if status == METHOD_NOT_ALLOWED:
        allowed, hint = find_allowed_methods(request.app, request.method, request.url.path)
        headers["allow"] = ", ".join(allowed)
        message = f"{request.method} is not allowed at this path; allowed: {', '.join(allowed)}{hint}"
    body = error_envelope(message, code, listed)
    if any(resource_paths.is_path_of(name, request.url.path) for name in ("guardrails", "execute_guardrails")):
        # The error envelope that these routes document, for clients that read the field `error`.
        body["error"] = {**openai_error(message, status, listed), "code": code}
    if resource_paths.uses_client_errors(request.url.path):
        client = detect_client_format(request.scope["headers"])
        body |= client_error_fields(client, message, status, listed, request_id(request.scope))
    return Response(body, status_code=status, headers=headers)


def find_allowed_methods(app: Litestar, method: str, path: str) -> tuple[list[str], str]:
    """Returns the methods that a path has, and a hint that names a longer path with the requested method."""
    parts = [part for part in path.split("/") if part]
    allowed: set[str] = set()
    longer: list[str] = []
    for route in app.routes:
        own = [part for part in route.path_format.split("/") if part]
        methods = {name for handler in getattr(route, "route_handlers", ()) for name in handler.http_methods}
        is_same = all(item.startswith("{") or item == other for item, other in zip(own, parts, strict=False))
        if is_same and len(own) == len(parts):
            allowed |= methods
        elif is_same and len(own) > len(parts) and method in methods:
            longer.append(route.path_format)
    # The hint prefers paths that end in a parameter, such as an id. A path that ends in a word is an action on an
    # object.
    longer.sort(key=lambda item: (not item.endswith("}"), len(item)))
    hint = f"; hint: {method} {longer[0]}" if longer else ""
    return sorted(allowed), hint


def is_audited_refusal(path: str, status: int) -> bool:
    """Returns true if the audit log records a request that was answered with this status: a refusal, or a sign-in that
    was throttled.
    """
    # At `IDENTITY_PATH` the engine authenticates a client before it reads a large body. Clients cannot call the other
    # internal paths.
    is_clients = not path.startswith("/internal/") or path == IDENTITY_PATH
    is_throttled_sign_in = status == RateLimitedError.status and path.startswith("/v1/auth/")
    return (status in REFUSAL_STATUSES or is_throttled_sign_in) and is_clients


def _asks_who_is_signed_in(request: Request[Any, Any, Any]) -> bool:
    """Returns true for `GET …/auth/self` without a credential. Each visit of the sign-in page sends this request, so
    its refusal is not audited.
    """
    if request.method != "GET" or not request.url.path.endswith("/auth/self"):
        return False
    try:
        return find_credential(request) is None
    except UnauthorisedError:
        return False
