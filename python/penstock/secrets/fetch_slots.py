"""Slots for fetches from secret managers. Managers that do not answer leave slots for the secrets of other tenants."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# Fetches at once of one organisation from one secret manager, of one organisation, and of all.
MAX_FETCHES_PER_HOST, MAX_FETCHES_PER_ORGANISATION, MAX_FETCHES = 2, 6, 24


class FetchSlots:
    """Limits fetches at once, in all and by tenant."""

    def __init__(self) -> None:
        """Starts with all slots free."""
        self._all = asyncio.Semaphore(MAX_FETCHES)
        # By organisation, and by organisation and host: the slots, and how many fetches use or wait for them.
        self._shares: dict[tuple[str, ...], tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def acquire(self, organisation_id: str, host: str) -> AsyncGenerator[None]:
        """Waits for a slot of the host, of the organisation, and of all, and holds them."""
        # The narrowest limit comes first, so that a fetch that waits holds no slot that others could use.
        by_host = self._share((organisation_id, host), MAX_FETCHES_PER_HOST)
        by_organisation = self._share((organisation_id,), MAX_FETCHES_PER_ORGANISATION)
        async with by_host, by_organisation, self._all:
            yield

    @asynccontextmanager
    async def _share(self, name: tuple[str, ...], most: int) -> AsyncGenerator[None]:
        slots, users = self._shares.get(name, (asyncio.Semaphore(most), 0))
        self._shares[name] = slots, users + 1
        try:
            async with slots:
                yield
        finally:
            slots, users = self._shares.pop(name)
            if users > 1:
                self._shares[name] = slots, users - 1
