"""Looks at the keys that an identity provider publishes, and has the data plane learn the new ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kit.tokens import Tokens

log = logging.getLogger("penstock")


class Follower:
    """Looks every so often; while nothing can be read, what is known stays good."""

    def __init__(self, tokens: Tokens, seconds: float, ring: Callable[[], None]) -> None:
        """Know whom to tell."""
        self._tokens = tokens
        self._seconds = seconds
        self._ring = ring
        self._ill = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._seconds)

    async def look(self) -> None:
        """Look once."""
        try:
            if await self._tokens.refresh():
                self._ring()
            self._ill = False
        except (httpx2.HTTPError, ValueError) as error:
            if not self._ill:
                log.warning("the keys for tokens cannot be read, those known stay: %s", type(error).__name__)
            self._ill = True
