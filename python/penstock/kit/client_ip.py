"""Client address and public URL of a request. Forwarding headers count only if they come from proxies that the settings
trust.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar import Request

    from penstock.settings import Settings

MAX_ADDRESS_LENGTH = 64
FORWARDED_FOR_HEADER = "x-forwarded-for"


class TrustedProxies:
    """Networks of trusted reverse proxies."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Parses the trusted networks. The settings have already validated them."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def client_address(self, request: Request[Any, Any, Any]) -> str:
        """Returns the address of the client: the last `x-forwarded-for` entry that does not belong to a trusted proxy."""
        # The edge appends the address of its own peer as the last entry.
        addresses = [
            part.strip() for value in request.headers.getall(FORWARDED_FOR_HEADER, []) for part in value.split(",")
        ]
        nearest = addresses.pop() if addresses else ""
        while addresses and self._is_trusted(nearest):
            nearest = addresses.pop()
        return nearest[:MAX_ADDRESS_LENGTH]

    def _is_trusted(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def is_behind_tls(settings: Settings, request: Request[Any, Any, Any]) -> bool:
    """Returns true if clients connect over TLS, according to the proxy's header of this request or the public URL in
    the settings.
    """
    return request.headers.get("x-forwarded-proto") == "https" or settings.server.public_url.startswith("https:")


def public_base_url(settings: Settings, request: Request[Any, Any, Any]) -> str:
    """Returns the gateway's URL as clients see it, without a trailing slash. Uses the configured public URL, else the
    request's host.
    """
    host = request.headers.get("host", f"{settings.bind_address}:{settings.server.port}")
    scheme = "https" if is_behind_tls(settings, request) else "http"
    return settings.server.public_url.rstrip("/") or f"{scheme}://{host}"
