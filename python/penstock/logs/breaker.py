"""Circuit breaker of the storage for bodies: closed, open, probing."""

from __future__ import annotations

import enum
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("penstock")


class BreakerState(enum.Enum):
    """State of the breaker. The numbers are the values of its metric."""

    CLOSED = 0
    PROBING = 1
    OPEN = 2


class StorageBreaker:
    """Opens after consecutive failures. After the backoff one probe decides whether it closes or stays open."""

    def __init__(self, threshold: int, backoff_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Sets how many consecutive failures open the breaker, and how long it stays open before a probe."""
        self._threshold = threshold
        self._backoff_seconds = backoff_seconds
        self._clock = clock
        self._failures = 0
        self._opened_at = 0.0
        self._state = BreakerState.CLOSED

    @property
    def state(self) -> BreakerState:
        """Current state. An open breaker becomes probing when its backoff is over."""
        if self._state is BreakerState.OPEN and self.seconds_until_probe <= 0:
            self._state = BreakerState.PROBING
        return self._state

    @property
    def seconds_until_probe(self) -> float:
        """Remaining seconds of the backoff of an open breaker."""
        return self._opened_at + self._backoff_seconds - self._clock()

    def record_success(self) -> None:
        """Records a call or a probe that succeeded: closes the breaker."""
        if self._state is not BreakerState.CLOSED:
            log.info("the storage of bodies can be reached again")
        self._failures = 0
        self._state = BreakerState.CLOSED

    def record_failure(self, reason: str) -> None:
        """Records a failed call; a failed probe opens the breaker again for the same backoff."""
        self._failures += 1
        if self._state is not BreakerState.CLOSED or self._failures >= self._threshold:
            if self._state is BreakerState.CLOSED:
                log.error("the storage of bodies fails: %s; it is tried again in %g s", reason, self._backoff_seconds)
            self._opened_at = self._clock()
            self._state = BreakerState.OPEN
