"""Client IP address. `X-Forwarded-For` is trusted only from the configured proxies."""

from __future__ import annotations

import pytest

from penstock.forwarded import TrustedProxies, split_addresses


def resolve_client_ip(networks: list[str], *content: str) -> str:
    """Takes the `X-Forwarded-For` value of each hop; the last one comes from the edge."""
    return TrustedProxies(networks).find_client(split_addresses(content))


def test_ignores_the_header_without_trusted_proxies():
    assert resolve_client_ip([], "203.0.113.9", "192.0.2.1") == "192.0.2.1"
    assert resolve_client_ip([], "192.0.2.1") == "192.0.2.1"


def test_ignores_a_proxy_that_is_not_listed():
    assert resolve_client_ip(["10.0.0.0/8"], "203.0.113.9", "192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("network", ["192.0.2.0/24", "192.0.2.1", "192.0.2.77/24"])
def test_trusted_proxy_vouches_for_its_own_client_only(network: str):
    assert resolve_client_ip([network], "198.51.100.1, 203.0.113.9", "192.0.2.1") == "203.0.113.9"


def test_skips_several_trusted_proxies():
    assert (
        resolve_client_ip(["10.0.0.0/8", "fd00::/8"], "1.1.1.1, 203.0.113.9, fd00::5", "10.1.2.3", "10.0.0.1")
        == "203.0.113.9"
    )


def test_invalid_address_is_returned_as_sent():
    assert resolve_client_ip(["10.0.0.0/8"], "203.0.113.9, unknown", "10.0.0.1") == "unknown"
    assert resolve_client_ip(["10.0.0.0/8"], "x" * 100, "10.0.0.1") == "x" * 64


def test_first_address_is_the_client_if_all_are_trusted():
    assert resolve_client_ip(["10.0.0.0/8"], "10.0.0.9", "10.0.0.1") == "10.0.0.9"
