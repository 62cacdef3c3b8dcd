"""Slots that limit concurrent costly work, shared fairly. One tenant, or one caller of a tenant, can use only some of
them, so that others need not wait for all of its work.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# Organisation of the caller of the current request, and the workspace or user for which it acts. Authentication sets
# it. All work without a caller counts as one tenant with empty names.
current_tenant: ContextVar[tuple[str, str]] = ContextVar("current_tenant", default=("", ""))


class FairSlots:
    """A limited number of slots. Each tenant can use only some of them, and each part of a tenant even fewer.

    `FairSlots(8, 6, 2)` has 8 slots: at most 6 for one organisation, and at most 2 for one of its workspaces.
    """

    def __init__(self, total: int, *shares: int) -> None:
        """Starts with all slots free. `shares` has the limit of each level, from organisations down to their parts."""
        self._all = asyncio.Semaphore(total)
        self._limits = shares
        # Semaphore of each tenant or part of a tenant, by its names from the widest level down. The number counts its
        # users, including those that wait.
        self._shares: dict[tuple[str, ...], tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def acquire(self, *names: str) -> AsyncGenerator[None]:
        """Waits for a slot, and frees it at the end of the block. `names` names the organisation, then the part of
        it that has its own limit, such as a workspace.
        """
        with await self.take(*names):
            yield

    async def take(self, *names: str) -> ExitStack:
        """Waits for a slot. Closing the returned stack frees it."""
        with ExitStack() as stack:
            # Waits for the narrowest limit first, so that waiting work does not occupy a slot that other tenants could
            # use.
            for depth in range(len(self._limits), 0, -1):
                await self._take_share(stack, names[:depth], self._limits[depth - 1])
            await self._all.acquire()
            stack.callback(self._all.release)
            return stack.pop_all()

    async def _take_share(self, stack: ExitStack, name: tuple[str, ...], limit: int) -> None:
        slots, users = self._shares.get(name, (asyncio.Semaphore(limit), 0))
        self._shares[name] = slots, users + 1
        stack.callback(self._release_share, name)
        await slots.acquire()
        stack.callback(slots.release)

    def _release_share(self, name: tuple[str, ...]) -> None:
        slots, users = self._shares.pop(name)
        if users > 1:
            self._shares[name] = slots, users - 1
