"""An application that fails or goes silent fails its test, with what was wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit import asgi

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


async def fails_at_once(_scope: object, _receive: Receive, _send: Send) -> None:
    raise LookupError("of a test")


async def fails_with_a_word(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})
    raise LookupError("of a test")


async def fails_at_the_end(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise LookupError("of a test")


async def ends_without_a_word(_scope: object, _receive: Receive, _send: Send) -> None:
    pass


async def waits_for_ever(_scope: object, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def live(app: asgi.App) -> None:
    async with asgi.living(app):
        pass


@pytest.mark.parametrize("app", [fails_at_once, fails_with_a_word, fails_at_the_end])
def test_what_an_application_fails_with_is_raised(app: asgi.App):
    with pytest.raises(LookupError, match="of a test"):
        asyncio.run(live(app))


@pytest.mark.parametrize(("app", "words"), [(ends_without_a_word, "ended"), (waits_for_ever, "waits")])
def test_an_application_that_says_nothing_is_told_apart(monkeypatch: pytest.MonkeyPatch, app: asgi.App, words: str):
    monkeypatch.setattr(asgi, "PATIENCE", 0.05)
    with pytest.raises(AssertionError, match=f"{words} without saying lifespan.startup.complete"):
        asyncio.run(live(app))
