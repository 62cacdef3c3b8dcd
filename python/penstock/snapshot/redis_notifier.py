"""Tells other nodes through Redis that the store changed, and hears it from them. Without it they find out by the store's counter."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings.redis import Redis as Settings

log = logging.getLogger("penstock")

# Before another try to connect.
RECONNECT_DELAY_SECONDS = 0.5
# To connect, to be heard, and between two looks at whether the connection lives.
REDIS_TIMEOUT_SECONDS = 1.0


class RedisNotifier:
    """Speaks and listens on one channel, for ever; whatever becomes of Redis, nobody waits for it."""

    def __init__(self, settings: Settings, url: str, heard: Callable[[], None], authorities: str = "") -> None:
        """Know the way, and the file of authorities to trust besides the usual; nothing is connected yet."""
        times = {
            "socket_timeout": REDIS_TIMEOUT_SECONDS,
            "socket_connect_timeout": REDIS_TIMEOUT_SECONDS,
            "health_check_interval": int(REDIS_TIMEOUT_SECONDS),
        }
        trusted = {"ssl_ca_certs": authorities} if authorities and url.startswith("rediss:") else {}
        # Of its methods that library says half the types.
        self._redis = cast("Any", Redis).from_url(url, **times, **trusted)
        self._channel = f"{settings.prefix}saved"
        self._name = uuid.uuid4().hex
        self._heard = heard
        self._changed = asyncio.Event()
        self._ill = False

    def notify(self) -> None:
        """Say that something changed here; what is told while Redis is away is found out by the others' own looks."""
        self._changed.set()

    async def run(self) -> None:
        """Tell and listen until cancelled."""
        telling = asyncio.create_task(self._publish_changes())
        try:
            while True:
                try:
                    await self._listen()
                except (RedisError, OSError) as error:
                    self._mark_unreachable(error)
                await asyncio.sleep(RECONNECT_DELAY_SECONDS)
        finally:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling
            with suppress(RedisError, OSError, TimeoutError):
                await asyncio.wait_for(self._redis.aclose(), REDIS_TIMEOUT_SECONDS)

    async def _listen(self) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            # A refusal is told where its answer is read.
            if await channel.get_message(timeout=REDIS_TIMEOUT_SECONDS) is None:
                raise TimeoutError
            if self._ill:
                log.info("other nodes are heard again")
            self._ill = False
            # What was said before nobody heard.
            self._heard()
            while True:
                message = await channel.get_message(timeout=REDIS_TIMEOUT_SECONDS)
                if message and message["type"] == "message" and message["data"] != self._name.encode():
                    self._heard()

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._redis.publish(self._channel, self._name)
            except (RedisError, OSError) as error:
                self._mark_unreachable(error)

    def _mark_unreachable(self, error: Exception) -> None:
        if not self._ill:
            # Its message may hold the address, and that a password.
            log.warning(
                "other nodes are not heard through Redis (%s): the store is asked instead", type(error).__name__
            )
        self._ill = True
