"""Looks at the keys that an identity provider publishes, and has the data plane learn the new ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kit.tokens import IssuerKeys, TokenVerifier

log = logging.getLogger("penstock")


class JwksRefresher:
    """Looks every so often; while nothing can be read, what is known stays good."""

    def __init__(self, tokens: TokenVerifier, seconds: float, ring: Callable[[], None]) -> None:
        """Know whom to tell."""
        self._sources = [source for source in tokens.sources if source.own.jwks_url]
        self._seconds = seconds
        self._ring = ring
        self._ill: set[IssuerKeys] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while self._sources:
            await self.refresh_all()
            await asyncio.sleep(self._seconds)

    async def refresh_all(self) -> None:
        """Look once, everywhere at the same time."""
        if any(await asyncio.gather(*map(self._refresh_source, self._sources))):
            self._ring()

    async def _refresh_source(self, source: IssuerKeys) -> bool:
        try:
            changed = await source.refresh()
        except (httpx2.HTTPError, ValueError) as error:
            if source not in self._ill:
                host = urlsplit(source.own.jwks_url).hostname
                log.warning("the keys of %s cannot be read, those known stay: %s", host, type(error).__name__)
            self._ill.add(source)
            return False
        self._ill.discard(source)
        return changed
