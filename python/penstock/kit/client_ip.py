"""Client address and public URL of a request. Forwarding headers count only if they come from proxies that the settings
trust.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from penstock.forwarded import FORWARDED_FOR_HEADER, split_addresses

if TYPE_CHECKING:
    from litestar import Request

    from penstock.forwarded import TrustedProxies
    from penstock.settings import Settings

# Path at which an engine fetches the identity of a client, before it reads the body of the client's request.
IDENTITY_PATH = "/internal/identity"
# Header of an identity request: method and path of the client's request.
ORIGINAL_REQUEST_HEADER = "x-penstock-request"
# Header of an identity request: the `x-forwarded-for` addresses of the client's request.
ORIGINAL_FORWARDED_FOR_HEADER = "x-penstock-forwarded-for"
# Other headers that proxies add to a request. They show that the request was forwarded.
OTHER_PROXY_HEADERS = ("forwarded", "x-real-ip", "via")


def client_address(request: Request[Any, Any, Any]) -> str:
    """Returns the address of the client."""
    proxies: TrustedProxies = request.app.state["proxies"]
    return proxies.find_client(_forwarded_addresses(request))


def original_request(request: Request[Any, Any, Any]) -> tuple[str, str]:
    """Returns the method and the path of the client's request."""
    if request.url.path == IDENTITY_PATH and (text := request.headers.get(ORIGINAL_REQUEST_HEADER)):
        method, _, path = text.partition(" ")
        return method, path
    return request.method, request.url.path


def is_local_client(request: Request[Any, Any, Any]) -> bool:
    """Returns true if a client on this machine sent a request, and no proxy on it forwarded the request for another
    machine.
    """
    if any(name in request.headers for name in OTHER_PROXY_HEADERS):
        return False
    # A request without addresses came over the private socket, not through an edge worker.
    return all(_is_loopback(address) for address in _forwarded_addresses(request))


def _forwarded_addresses(request: Request[Any, Any, Any]) -> list[str]:
    """Returns the `x-forwarded-for` addresses. The edge worker appends the address of its own peer as the last one."""
    is_identity = request.url.path == IDENTITY_PATH
    name = ORIGINAL_FORWARDED_FOR_HEADER if is_identity else FORWARDED_FOR_HEADER
    return split_addresses(request.headers.getall(name, []))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_behind_tls(settings: Settings, request: Request[Any, Any, Any]) -> bool:
    """Returns true if clients connect over TLS. Then the gateway has a certificate, a proxy set `x-forwarded-proto` to
    `https`, or the public URL in the settings begins with `https:`.
    """
    return settings.server.has_tls or (
        request.headers.get("x-forwarded-proto") == "https" or settings.server.public_url.startswith("https:")
    )


def public_base_url(settings: Settings, request: Request[Any, Any, Any]) -> str:
    """Returns the gateway's URL as clients see it, without a trailing slash. Uses the configured public URL, else the
    request's host and the base path.
    """
    host = request.headers.get("host", f"{settings.bind_address}:{settings.server.port}")
    scheme = "https" if is_behind_tls(settings, request) else "http"
    return settings.server.public_url.rstrip("/") or f"{scheme}://{host}{settings.server.base_path}"
