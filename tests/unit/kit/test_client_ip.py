"""Requests that come from this machine, and those that a proxy on it forwards for other machines."""

from __future__ import annotations

import pytest
from litestar.testing import RequestFactory

from penstock.kit.client_ip import is_local_client


def is_local(**headers: str) -> bool:
    request = RequestFactory().get("/", headers={name.replace("_", "-"): text for name, text in headers.items()})
    return is_local_client(request)


@pytest.mark.parametrize("addresses", ["127.0.0.1", "::1", "127.0.0.9, 127.0.0.1"])
def test_loopback_addresses_are_local(addresses: str):
    assert is_local(x_forwarded_for=addresses)


def test_request_over_the_private_socket_is_local():
    assert is_local()


@pytest.mark.parametrize(
    "addresses", ["192.0.2.1", "192.0.2.1, 127.0.0.1", "unknown", "", "127.0.0.1, 10.0.0.1", "::2"]
)
def test_other_addresses_are_not_local(addresses: str):
    assert not is_local(x_forwarded_for=addresses)


@pytest.mark.parametrize("name", ["forwarded", "x_real_ip", "via"])
def test_proxy_on_this_machine_makes_a_request_not_local(name: str):
    assert not is_local(x_forwarded_for="127.0.0.1", **{name: "127.0.0.1"})
