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

    def check_limit(self, identity: str) -> None:
        """Raises RateLimitedError if `identity` failed too often."""
        since, times = self._failed.get(identity, (0.0, 0))
        if times >= self._most and time.monotonic() - since < SECONDS:
            raise RateLimitedError(self._message)

    def record_failure(self, identity: str) -> None:
        """Counts one failure of `identity`."""
        now = time.monotonic()
        since, times = self._failed.get(identity, (now, 0))
        if now - since >= SECONDS:
            since, times = now, 0
        if len(self._failed) >= MOST and identity not in self._failed:
            self._failed.pop(next(iter(self._failed)))
        self._failed[identity] = (since, times + 1)

    def clear_failures(self, identity: str) -> None:
        """Clears the failures of `identity` after a success."""
        self._failed.pop(identity, None)


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

    async def check_password(self, identity: str, stored_hash: str | None, password: str) -> None:
        """Checks a password against the known hash, which is `None` if the user does not exist. Raises
        UnauthorisedError if it is wrong.
        """
        self._failed.check_limit(identity)
        if not await self._run_in_thread(lambda: self._matches(stored_hash, password)):
            self._failed.record_failure(identity)
            raise UnauthorisedError("the e-mail address or the password is wrong")
        self._failed.clear_failures(identity)

    async def reject_changed_password(self, connection: AsyncConnection, user_id: str, stored_hash: str) -> None:
        """Raises UnauthorisedError if the password was changed since it was checked. Must run while the organisation is
        locked.
        """
        if await connection.scalar(select(users.c.password).where(users.c.id == user_id)) != stored_hash:
            raise UnauthorisedError("the password was changed meanwhile; use the new one")

    def _matches(self, stored_hash: str | None, password: str) -> bool:
        if self._nobodys is None:
            self._nobodys = self._hasher.hash("nobody's")
        try:
            return self._hasher.verify(stored_hash or self._nobodys, password) and stored_hash is not None
        except (VerificationError, InvalidHashError):
            return False

    async def _run_in_thread(self, function: Callable[[], Result]) -> Result:
        if self._waiting >= WAITING:
            raise RateLimitedError("too many sign-ins at this moment; try again")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(function)
        finally:
            self._waiting -= 1
