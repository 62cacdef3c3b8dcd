"""Where a request comes from: proxies are believed as far as the settings trust them, and nobody else is."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar import Request

LONGEST = 64
HEADER = "x-forwarded-for"


class Proxies:
    """The networks whose word counts."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Read what the settings list, which was looked at there."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def client(self, request: Request[Any, Any, Any]) -> str:
        """Give the address of the caller: the nearest that no trusted proxy stands for."""
        # The edge has written last who was at the other end.
        said = [part.strip() for value in request.headers.getall(HEADER, []) for part in value.split(",")]
        nearest = said.pop() if said else ""
        while said and self._trusts(nearest):
            nearest = said.pop()
        return nearest[:LONGEST]

    def _trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self._networks)
