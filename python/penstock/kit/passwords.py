"""Passwords of users: hashing with argon2, and limits on failed sign-ins."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from msgspec import Meta
from sqlalchemy import select

from penstock.errors import RateLimitedError, UnauthorisedError
from penstock.store.tables import users

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

Result = TypeVar("Result")

SHORTEST, LONGEST = 12, 256
# Each hash takes 64 MiB and about 50 ms of one core.
AT_ONCE, WAITING = 2, 20
TRIES, SECONDS, MOST = 10, 300, 10_000
# For all users of one client address, which may be that of an office.
MAX_TRIES_PER_ADDRESS = 100

Password = Annotated[str, Meta(min_length=SHORTEST, max_length=LONGEST, description="password")]


class FailedAttempts:
    """Counts recent failures of each user or address."""

    def __init__(self, most: int, message: str) -> None:
        """Starts without failures."""
        self._most = most
        self._message = message
        self._failed: dict[str, tuple[float, int]] = {}

    def check_limit(self, who: str) -> None:
        """Raises RateLimitedError if `who` failed too often."""
        since, times = self._failed.get(who, (0.0, 0))
        if times >= self._most and time.monotonic() - since < SECONDS:
            raise RateLimitedError(self._message)

    def record_failure(self, who: str) -> None:
        """Counts one failure of `who`."""
        now = time.monotonic()
        since, times = self._failed.get(who, (now, 0))
        if now - since >= SECONDS:
            since, times = now, 0
        if len(self._failed) >= MOST and who not in self._failed:
            self._failed.pop(next(iter(self._failed)))
        self._failed[who] = (since, times + 1)

    def clear_failures(self, who: str) -> None:
        """Clears the failures of `who` after a success."""
        self._failed.pop(who, None)


class PasswordService:
    """Hashes and checks passwords, only a few at a time."""

    def __init__(self) -> None:
        """Starts without failures."""
        self._hasher = PasswordHasher()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._failed = FailedAttempts(TRIES, "too many wrong passwords for this address; try again in a few minutes")
        self.from_address = FailedAttempts(
            MAX_TRIES_PER_ADDRESS, "too many failed sign-ins from your address; try again in a few minutes"
        )
        # Hash for users who do not exist, so that checking them takes as long as checking others.
        self._nobodys: str | None = None

    async def hash_password(self, password: str) -> str:
        """Hashes a new password."""
        return await self._run_in_thread(lambda: self._hasher.hash(password))

    async def check_password(self, who: str, known: str | None, password: str) -> None:
        """Checks a password against the known hash, which is `None` if the user does not exist. Raises
        UnauthorisedError if it is wrong.
        """
        self._failed.check_limit(who)
        if not await self._run_in_thread(lambda: self._matches(known, password)):
            self._failed.record_failure(who)
            raise UnauthorisedError("the e-mail address or the password is wrong")
        self._failed.clear_failures(who)

    async def reject_changed_password(self, connection: AsyncConnection, user_id: str, known: str) -> None:
        """Raises UnauthorisedError if the password was changed since it was checked. Must run while the organisation is
        locked.
        """
        if await connection.scalar(select(users.c.password).where(users.c.id == user_id)) != known:
            raise UnauthorisedError("the password was changed meanwhile; use the new one")

    def _matches(self, known: str | None, password: str) -> bool:
        if self._nobodys is None:
            self._nobodys = self._hasher.hash("nobody's")
        try:
            return self._hasher.verify(known or self._nobodys, password) and known is not None
        except (VerificationError, InvalidHashError):
            return False

    async def _run_in_thread(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= WAITING:
            raise RateLimitedError("too many sign-ins at this moment; try again")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1
