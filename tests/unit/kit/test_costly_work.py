"""Slots for costly work: one tenant leaves slots to others, and work that nobody waits for keeps its slot."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import UnavailableError
from penstock.fair_slots import current_tenant
from penstock.kit.costly_work import CostlyWork

OF_ALL, OF_ORGANISATION, OF_WORKSPACE = SLOTS = (5, 3, 2)


class Workshop:
    """Costly work that lasts until it is released."""

    def __init__(self, max_seconds: float) -> None:
        self.work = CostlyWork("test", SLOTS, max_seconds)
        self.is_released = threading.Event()

    async def start(self, *tenants: tuple[str, str]) -> list[str]:
        async def run(tenant: tuple[str, str]) -> str:
            current_tenant.set(tenant)
            try:
                return "done" if await self.work.run(self.is_released.wait, 60) else "released late"
            except (TimeoutError, UnavailableError) as error:
                return type(error).__name__

        return list(await asyncio.gather(*(asyncio.create_task(run(tenant)) for tenant in tenants)))

    async def release(self) -> None:
        self.is_released.set()
        for thread in threading.enumerate():
            if thread.name == "test":
                await asyncio.to_thread(thread.join)
        # Lets the ended threads give their slots back.
        await asyncio.sleep(0)


def test_one_tenant_leaves_slots_to_others():
    async def run() -> None:
        shop = Workshop(0.05)
        of_one = await shop.start(*[("busy", "first")] * (OF_WORKSPACE + 1))
        assert of_one == [*["TimeoutError"] * OF_WORKSPACE, "UnavailableError"]
        # The organisation has one slot left, whatever the workspace.
        assert await shop.start(("busy", "second"), ("busy", "third")) == ["TimeoutError", "UnavailableError"]
        others = [("other", "first")] * (OF_ALL - OF_ORGANISATION)
        assert await shop.start(*others, ("last", "")) == [*["TimeoutError"] * len(others), "UnavailableError"]
        await shop.release()
        requests = [("busy", "first"), ("busy", "second"), *others, ("last", "")]
        assert await shop.start(*requests) == ["done"] * len(requests)

    asyncio.run(run())


def test_errors_and_full_slots_are_reported():
    def fail() -> None:
        raise KeyError("inner")

    async def run() -> None:
        work = CostlyWork("guardrail-trial", (1, 1, 1), 0.05)
        for _ in range(3):
            with pytest.raises(KeyError, match="inner"):
                await work.run(fail)
        shop = Workshop(0.05)
        assert await shop.start(*[("a", "b")] * OF_WORKSPACE) == ["TimeoutError"] * OF_WORKSPACE
        current_tenant.set(("a", "b"))
        with pytest.raises(UnavailableError, match="at most 2 at once of a workspace or user, and 5 of all"):
            await shop.work.run(fail)
        await shop.release()

    asyncio.run(run())
