"""Throttle of sign-ins: which attempts share a delay."""

from __future__ import annotations

import asyncio

import pytest

from penstock.access.sign_in_throttle import FREE_FAILURES, FREE_FAILURES_PER_ADDRESS, SignInThrottle, client_network
from penstock.errors import RateLimitedError


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("session 1", "session 1"),
        ("", ""),
    ],
)
def test_ipv6_clients_are_counted_by_network(address: str, network: str):
    assert client_network(address) == network


def fail(throttle: SignInThrottle, account: str | None, address: str) -> None:
    free = FREE_FAILURES if account else FREE_FAILURES_PER_ADDRESS
    for _ in range(free + 30):
        throttle.record_failure(account, address)


def is_delayed(throttle: SignInThrottle, account: str | None, address: str) -> bool:
    """Returns true if an attempt would wait. Cancels the attempt after 10 ms instead of waiting for the delay."""

    async def attempt() -> None:
        async with asyncio.timeout(0.01):
            await throttle.wait_until_allowed(account, address)

    try:
        asyncio.run(attempt())
    except (TimeoutError, RateLimitedError):
        return True
    return False


def test_failures_with_keys_delay_only_their_own_client():
    throttle = SignInThrottle()
    # Many clients, so that a delay that all keys share would show.
    for number in range(60):
        fail(throttle, None, f"192.0.2.{number}")
    assert is_delayed(throttle, None, "192.0.2.1")
    assert not is_delayed(throttle, None, "198.51.100.1")
    assert not is_delayed(throttle, "a@x.test", "192.0.2.1")


def test_client_cannot_escape_its_delay_with_another_address_of_its_network():
    throttle = SignInThrottle()
    fail(throttle, "a@x.test", "2001:db8::1")
    assert is_delayed(throttle, "a@x.test", "2001:db8::2")
    fail(throttle, None, "2001:db8::1")
    assert is_delayed(throttle, None, "2001:db8::3")
    assert not is_delayed(throttle, None, "2001:db8:0:1::3")
