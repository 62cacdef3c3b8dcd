"""Who is believed about where a request comes from."""

from __future__ import annotations

import pytest
from litestar.testing import RequestFactory

from penstock.kit.client_ip import TrustedProxies


def client(networks: list[str], *said: str) -> str:
    """What each wrote, the last of them the edge."""
    request = RequestFactory().get("/")
    request.scope["headers"] = [(b"x-forwarded-for", value.encode()) for value in said]
    return TrustedProxies(networks).client_address(request)


def test_nobody_is_believed_where_nobody_is_trusted():
    assert client([], "203.0.113.9", "192.0.2.1") == "192.0.2.1"
    assert client([], "192.0.2.1") == "192.0.2.1"


def test_a_proxy_that_is_not_listed_is_not_believed():
    assert client(["10.0.0.0/8"], "203.0.113.9", "192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("network", ["192.0.2.0/24", "192.0.2.1", "192.0.2.77/24"])
def test_a_trusted_proxy_is_believed_about_its_own_caller_alone(network: str):
    assert client([network], "198.51.100.1, 203.0.113.9", "192.0.2.1") == "203.0.113.9"


def test_several_trusted_proxies_are_stepped_over():
    assert client(["10.0.0.0/8", "fd00::/8"], "1.1.1.1, 203.0.113.9, fd00::5", "10.1.2.3", "10.0.0.1") == "203.0.113.9"


def test_what_is_no_address_is_shown_as_it_was_said_and_ends_the_search():
    assert client(["10.0.0.0/8"], "203.0.113.9, unknown", "10.0.0.1") == "unknown"
    assert client(["10.0.0.0/8"], "x" * 100, "10.0.0.1") == "x" * 64


def test_where_all_are_trusted_the_first_one_is_the_caller():
    assert client(["10.0.0.0/8"], "10.0.0.9", "10.0.0.1") == "10.0.0.9"
