"""Health check of a running gateway: one request to `/ready`, for containers and scripts. It ends within its time
limit.
"""

from __future__ import annotations

import http.client
import threading
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.certificate import create_client_context
from penstock.errors import SettingsError

# Maximum number of bytes of a response that are read and shown.
MAX_SHOWN_BYTES = 200


class Health(NamedTuple):
    """Result of a check, and the line that describes it."""

    is_ready: bool
    message: str


def check_health(url: str, seconds: float, certificate: str | None = None) -> Health:
    """Requests `/ready` from the gateway at a base URL. With the file of its own `certificate`, accepts only that
    certificate, whatever its name and authority. Raises SettingsError if the URL cannot be used.
    """
    parts = _parse_url(url)
    # Users may pass the URL for model clients, which ends with `/v1`.
    path = f"{parts.path.rstrip('/').removesuffix('/v1')}/ready"
    display_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
    healths: list[Health] = []
    # Runs in a thread to bound the total time: a socket timeout covers neither DNS lookups nor a response that arrives
    # byte by byte. A daemon thread does not delay the exit of the process.
    request_thread = threading.Thread(
        target=lambda: healths.append(_request_ready(parts, path, seconds, display_url, certificate)), daemon=True
    )
    request_thread.start()
    request_thread.join(seconds)
    return (
        healths[0]
        if healths
        else Health(is_ready=False, message=f"not ready: {display_url} did not answer in {seconds:g} s")
    )


def _parse_url(url: str) -> SplitResult:
    # The message does not repeat the URL, because it may contain a password.
    message = "--url or PENSTOCK_URL is not allowed; expected a URL such as http://127.0.0.1:8787"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise SettingsError(message) from None
    if not is_usable:
        raise SettingsError(message)
    return parts


def _request_ready(parts: SplitResult, path: str, seconds: float, address: str, certificate: str | None) -> Health:
    try:
        connection = _open_connection(parts, seconds, certificate)
    except OSError as error:
        return Health(is_ready=False, message=f"not ready: {address}: {error.strerror or error}")
    try:
        connection.request("GET", path, headers={"connection": "close"})
        response = connection.getresponse()
        text = response.read(MAX_SHOWN_BYTES).decode("utf-8", "replace").partition("\n")[0].strip()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Health(is_ready=False, message=f"not ready: {address}: {reason}")
    finally:
        connection.close()
    if response.status == http.client.OK:
        return Health(is_ready=True, message=f"ready: {address}")
    return Health(is_ready=False, message=f"not ready: {address}: status {response.status}{text and f', {text}'}")


def _open_connection(parts: SplitResult, seconds: float, certificate: str | None) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=seconds)
    context = create_client_context(certificate) if certificate else None
    return http.client.HTTPSConnection(host, parts.port, timeout=seconds, context=context)
