"""Where a request comes from: proxies are believed as far as the settings trust them, and nobody else is."""

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
    """The networks whose word counts."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Read what the settings list, which was looked at there."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def client_address(self, request: Request[Any, Any, Any]) -> str:
        """Give the address of the caller: the nearest that no trusted proxy stands for."""
        # The edge has written last who was at the other end.
        said = [part.strip() for value in request.headers.getall(FORWARDED_FOR_HEADER, []) for part in value.split(",")]
        nearest = said.pop() if said else ""
        while said and self._is_trusted(nearest):
            nearest = said.pop()
        return nearest[:MAX_ADDRESS_LENGTH]

    def _is_trusted(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self._networks)


def is_behind_tls(settings: Settings, request: Request[Any, Any, Any]) -> bool:
    """Whether callers see us over TLS: a proxy says so of this request, or the settings of all."""
    return request.headers.get("x-forwarded-proto") == "https" or settings.server.public_url.startswith("https:")


def public_base_url(settings: Settings, request: Request[Any, Any, Any]) -> str:
    """Give the address that callers see us at, without a slash at its end: the settings' word, or how this one came."""
    host = request.headers.get("host", f"{settings.bind_address}:{settings.server.port}")
    scheme = "https" if is_behind_tls(settings, request) else "http"
    return settings.server.public_url.rstrip("/") or f"{scheme}://{host}"
