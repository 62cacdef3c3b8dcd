"""JWKS refresh. Fetches the keys that identity providers publish. If they change, calls back so that a new snapshot is
published.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.fetch import fetch_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.access.token_verification import IssuerKeys, TokenVerifier

log = logging.getLogger("penstock")


class JwksRefresher:
    """Refreshes the keys periodically. If a fetch fails, the known keys stay valid."""

    def __init__(self, tokens: TokenVerifier, seconds: float, on_change: Callable[[], None]) -> None:
        """Stores the key sources with a URL, the interval in seconds, and the callback for changed keys."""
        self._sources = [source for source in tokens.sources if source.own.jwks_url]
        self._seconds = seconds
        self._on_change = on_change
        self._failing_sources: set[IssuerKeys] = set()

    async def run(self) -> None:
        """Refreshes the keys until cancelled. Returns at once if no identity provider has a JWKS URL."""
        while self._sources:
            await self.refresh_all()
            await asyncio.sleep(self._seconds)

    async def refresh_all(self) -> None:
        """Fetches the keys of all identity providers once, concurrently."""
        if any(await asyncio.gather(*map(self._refresh_source, self._sources))):
            self._on_change()

    async def _refresh_source(self, source: IssuerKeys) -> bool:
        try:
            changed = await source.refresh()
        except fetch_errors() as error:
            if source not in self._failing_sources:
                # The error of a malformed URL contains the URL, so the host is removed from the text.
                host = source.own.jwks_url.partition("://")[2].partition("/")[0].rpartition("@")[2]
                log.warning(
                    "the keys of %s cannot be fetched, the known ones stay valid: %s", host, type(error).__name__
                )
            self._failing_sources.add(source)
            return False
        self._failing_sources.discard(source)
        return changed
