"""Passwords of users: hashing and checking with argon2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from msgspec import Meta
from sqlalchemy import select

from penstock.access.sign_in_throttle import SignInThrottle
from penstock.errors import RateLimitedError, UnauthorisedError
from penstock.store.tables import users

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

Result = TypeVar("Result")

MIN_LENGTH, MAX_LENGTH = 12, 256
# Maximum number of hashes at once, and of requests that wait. Each hash takes 64 MiB and about 50 ms of one core.
MAX_PARALLEL, MAX_WAITING = 2, 20

Password = Annotated[str, Meta(min_length=MIN_LENGTH, max_length=MAX_LENGTH, description="password")]


class PasswordService:
    """Hashes and checks passwords, only a few at a time."""

    def __init__(self) -> None:
        """Starts without failed attempts."""
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_PARALLEL)
        self._waiting = 0
        self.throttle = SignInThrottle()
        # Hash that is compared for users who do not exist, so that their check takes as long as others.
        self._nobodys: str | None = None

    async def hash_password(self, password: str) -> str:
        """Hashes a new password."""
        return await self._run_in_thread(lambda: self._hasher.hash(password))

    async def check_password(self, identity: str, address: str, stored_hash: str | None, password: str) -> None:
        """Checks a password against the stored hash, which is `None` if the user does not exist. Waits first if
        attempts for this identity or client address failed before. Raises UnauthorisedError if the password is wrong.
        """
        await self.throttle.wait_until_allowed(identity, address)
        if not await self._run_in_thread(lambda: self._matches(stored_hash, password)):
            self.throttle.record_failure(identity, address)
            raise UnauthorisedError("the e-mail address or the password is wrong")
        self.throttle.record_success(identity, address)

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
        if self._waiting >= MAX_WAITING:
            raise RateLimitedError("too many sign-ins at this moment; try again")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(function)
        finally:
            self._waiting -= 1
