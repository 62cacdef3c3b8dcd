"""Throttle of sign-ins. Wrong passwords make later attempts wait, by client address and account. A stranger's
failures do not delay an address from which the account signed in before.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time

import msgspec

from penstock.errors import RateLimitedError

# Time without a new failure after which earlier failures no longer count.
WINDOW_SECONDS = 300.0
FREE_FAILURES, FREE_FAILURES_PER_ACCOUNT, FREE_FAILURES_PER_ADDRESS = 5, 50, 100
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.1, 5.0
# Maximum wait of an attempt. An attempt that would have to wait longer is rejected.
MAX_WAIT_SECONDS = 10.0
MAX_TRACKED_DELAYS, MAX_KNOWN_ADDRESSES = 10_000, 10_000
# Maximum number of attempts that wait at the same time, for all accounts together.
MAX_WAITING = 200
# Length of the IPv6 prefix that counts as one client. Internet providers assign each customer at least such a network
# (RFC 6177).
IPV6_PREFIX_BITS = 64


class FailureDelay(msgspec.Struct):
    """Group of attempts that share a delay: the number of recent failures, and when the next attempt may begin."""

    free_failures: int
    failures: int = 0
    failed_at: float = 0.0
    next_at: float = 0.0

    def delay_seconds(self) -> float:
        """Returns the pause after each attempt. It doubles with every failure beyond the free ones."""
        excess_failures = self.failures - self.free_failures
        return (
            0.0 if excess_failures < 0 else min(FIRST_DELAY_SECONDS * 2 ** min(excess_failures, 20), MAX_DELAY_SECONDS)
        )


def client_network(address: str) -> str:
    """Returns the address that failures are counted for: the /64 network of an IPv6 address, because a client can use
    all addresses in it. Returns other texts unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX_BITS), strict=False))


class SignInThrottle:
    """Delays of sign-ins by account and address, in memory of this node."""

    def __init__(self) -> None:
        """Starts without failures."""
        self._delays: dict[str, FailureDelay] = {}
        self._known: dict[tuple[str, str], None] = {}
        self._waiting = 0

    async def wait_until_allowed(self, account: str | None, address: str) -> None:
        """Waits until an attempt may begin. Raises RateLimitedError if that would take too long. `account` is `None` for
        an API key: keys cannot be guessed, so failures count only for the client that causes them.
        """
        moment = time.monotonic()
        delays = self._find_delays(account, address)
        begin = max([moment, *(delay.next_at for delay in delays)])
        if begin - moment > MAX_WAIT_SECONDS or (begin > moment and self._waiting >= MAX_WAITING):
            raise RateLimitedError("too many failed sign-ins; try again in a minute")
        for delay in delays:
            delay.next_at = begin + delay.delay_seconds()
        if begin > moment:
            self._waiting += 1
            try:
                await asyncio.sleep(begin - moment)
            finally:
                self._waiting -= 1

    def record_failure(self, account: str | None, address: str) -> None:
        """Counts a failed attempt."""
        moment = time.monotonic()
        for delay in self._find_delays(account, address):
            delay.failures += 1
            delay.failed_at = moment
            delay.next_at = max(delay.next_at, moment + delay.delay_seconds())

    def record_success(self, account: str, address: str) -> None:
        """Remembers the address of an account, and forgets the failures from there."""
        address = client_network(address)
        self._delays.pop(f"{account} {address}", None)
        self._known.pop((account, address), None)
        while len(self._known) >= MAX_KNOWN_ADDRESSES:
            self._known.pop(next(iter(self._known)))
        self._known[account, address] = None

    def _find_delays(self, account: str | None, address: str) -> list[FailureDelay]:
        address = client_network(address)
        if account is None:
            return [self._find_delay(f"api key {address}", FREE_FAILURES_PER_ADDRESS)]
        names = {f"{account} {address}": FREE_FAILURES}
        # Failures of others must not delay the owner of the account at an address from which the account signed in
        # before.
        if (account, address) not in self._known:
            names[f"account {account}"] = FREE_FAILURES_PER_ACCOUNT
            names[f"address {address}"] = FREE_FAILURES_PER_ADDRESS
        return [self._find_delay(name, free) for name, free in names.items()]

    def _find_delay(self, name: str, free_failures: int) -> FailureDelay:
        # Moves the delay to the end, so that the least recently used delay is evicted first.
        delay = self._delays.pop(name, None)
        if delay is None or time.monotonic() - delay.failed_at >= WINDOW_SECONDS:
            delay = FailureDelay(free_failures)
        while len(self._delays) >= MAX_TRACKED_DELAYS:
            self._delays.pop(next(iter(self._delays)))
        self._delays[name] = delay
        return delay
