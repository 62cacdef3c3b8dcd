"""Id of a management request: the client's `x-request-id`, or a new one. The response, the log and the audit log have
the same id.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, cast

from penstock.forwarded import FORWARDED_FOR_HEADER, TrustedProxies, split_addresses
from penstock.ids import new_id
from penstock.process_log import AccessEntry, log_access, logs_access

if TYPE_CHECKING:
    from litestar.types import Message, Scope

log = logging.getLogger("penstock")

CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
HEADER_NAME = b"x-request-id"
# Response headers with the id. OpenAI's SDK reads the first one, Anthropic's the second one.
RESPONSE_HEADERS = (HEADER_NAME, b"request-id")
INTERNAL_PREFIX = "/internal/"


def request_id(scope: Any) -> str:  # noqa: ANN401 - the scope of a request, also of the framework's own types
    """Returns the id of a request."""
    state = cast("dict[str, Any]", scope["state"])
    if "request_id" not in state:
        sent = [value for name, value in scope["headers"] if name == HEADER_NAME]
        is_usable = len(sent) == 1 and CLIENT_ID.fullmatch(sent[0])
        state["request_id"] = sent[0].decode("ascii") if is_usable else new_id()
        state["began"] = time.monotonic()
    return state["request_id"]


async def add_request_id(message: Message, scope: Scope) -> None:
    """Adds the id to a response. Also writes the line of the access log, and a log line at the level debug."""
    if message["type"] != "http.response.start" or scope["path"].startswith(INTERNAL_PREFIX):
        return
    own_id = request_id(scope)
    message["headers"] = [*message.get("headers", ()), *((name, own_id.encode()) for name in RESPONSE_HEADERS)]
    if logs_access():
        _log_access(message["status"], scope)
    if log.isEnabledFor(logging.DEBUG):
        method = cast("dict[str, Any]", scope)["method"]
        milliseconds = (time.monotonic() - scope["state"]["began"]) * 1000
        log.debug("request %s %s %d %.0f ms id=%s", method, scope["path"], message["status"], milliseconds, own_id)


def _log_access(status: int, scope: Any) -> None:  # noqa: ANN401 - the scope of a request
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR_HEADER.encode()]
    proxies: TrustedProxies = scope["app"].state["proxies"]
    log_access(
        AccessEntry(
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round((time.monotonic() - scope["state"]["began"]) * 1000, 1),
            api_key_id=getattr(scope.get("auth"), "key_id", None),
            id=request_id(scope),
            client=proxies.find_client(split_addresses(values)),
        )
    )
