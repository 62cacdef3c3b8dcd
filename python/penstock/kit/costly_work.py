"""Limits how many expensive functions of the engine, such as validations and guardrail trials, run at once. Each tenant
gets only some of the slots. A function occupies its slot until it returns, even if its request no longer waits.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import UnavailableError
from penstock.fair_slots import FairSlots, current_tenant

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

Result = TypeVar("Result")


class CostlyWork:
    """Runs each function on its own thread, and limits how many run at once."""

    def __init__(self, name: str, slots: tuple[int, int, int], max_seconds: float) -> None:
        """Sets the limits. `slots` has the maximum numbers of functions at once: in total, per organisation, and per
        workspace or user.
        """
        self._name = name
        self._limits = slots
        self._slots = FairSlots(*slots)
        self._max_seconds = max_seconds

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:  # noqa: ANN401 - arguments of any function
        """Runs a function. Raises `TimeoutError` if it takes too long, and `UnavailableError` if no slot becomes free
        in that time.

        A function cannot be stopped, even if its regular expression takes hours. It therefore runs on a separate daemon
        thread, for which the process does not wait when it exits.
        """
        running = None
        try:
            async with asyncio.timeout(self._max_seconds):
                slot = await self._slots.take(*current_tenant.get())
                running = _start_thread(self._name, slot, function, args)
                return await running
        except TimeoutError:
            if running is not None:
                raise
            of_all, _, of_one = self._limits
            message = f"other {self._name.replace('-', ' ')}s are running: at most {of_one} at once of a workspace or user, and {of_all} of all"
            raise UnavailableError(f"{message}; hint: try again later") from None


def _start_thread(
    name: str, slot: ExitStack, function: Callable[..., Result], args: tuple[Any, ...]
) -> asyncio.Future[Result]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def finish(result: Any, error: Exception | None) -> None:  # noqa: ANN401 - any result of the function
        slot.close()
        if done.cancelled():
            return
        if error:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args)
        except Exception as problem:  # noqa: BLE001 - raised by the coroutine that waits
            error = problem
        # The event loop may already be closed, because the gateway does not wait for this thread when it exits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        slot.close()
        raise
    return done
