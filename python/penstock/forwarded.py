"""Client addresses from `x-forwarded-for`, which is used only if a trusted proxy sends it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FORWARDED_FOR_HEADER = "x-forwarded-for"
MAX_ADDRESS_LENGTH = 64


class TrustedProxies:
    """Networks of trusted reverse proxies."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Parses the trusted networks. The settings have already validated them."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def find_client(self, addresses: list[str]) -> str:
        """Returns the client's address: the last one that does not belong to a trusted proxy. The last of `addresses`
        is the peer of the connection; the others come from headers.
        """
        addresses = list(addresses)
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


def split_addresses(values: Iterable[str]) -> list[str]:
    """Returns the addresses in all `x-forwarded-for` headers of a request. The last one was added by the
    nearest proxy.
    """
    return [part.strip() for value in values for part in value.split(",")]
