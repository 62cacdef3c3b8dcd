"""Change notifications between nodes through Redis pub/sub. Without Redis, nodes detect changes by polling the store's
counter.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings.redis import Redis as Settings

log = logging.getLogger("penstock")

# Delay before reconnecting.
RECONNECT_DELAY_SECONDS = 0.5
# Timeout for connections and replies, and interval of the health checks of a connection.
REDIS_TIMEOUT_SECONDS = 1.0


async def fetch_redis_time(url: str, authorities: str = "") -> float:
    """Returns the clock of a Redis server in seconds since 1970. Raises `UnavailableError` if it does not respond."""
    client = _open_client(url, authorities)
    try:
        seconds, microseconds = await client.time()
        return float(seconds) + float(microseconds) / 1_000_000
    except (RedisError, OSError) as error:
        # The text of some errors contains the address, which may contain the password.
        message = f"Redis does not answer ({type(error).__name__})"
        raise UnavailableError(message) from None
    finally:
        await client.aclose()


def _open_client(url: str, authorities: str) -> Any:  # noqa: ANN401 - redis-py types only part of its methods
    times = {
        "socket_timeout": REDIS_TIMEOUT_SECONDS,
        "socket_connect_timeout": REDIS_TIMEOUT_SECONDS,
        "health_check_interval": int(REDIS_TIMEOUT_SECONDS),
    }
    trusted = {"ssl_ca_certs": authorities} if authorities and url.startswith("rediss:") else {}
    return cast("Any", Redis).from_url(url, **times, **trusted)


class RedisNotifier:
    """Publishes and receives change notifications on one channel. No method waits for Redis if it is unavailable."""

    def __init__(self, settings: Settings, url: str, on_change: Callable[[], None], authorities: str = "") -> None:
        """Creates the client without connecting. `authorities` is a file with CA certificates that are trusted in
        addition to the default ones.
        """
        self._redis = _open_client(url, authorities)
        self._channel = f"{settings.prefix}saved"
        self._name = uuid.uuid4().hex
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._is_unreachable = False

    def notify(self) -> None:
        """Notifies the other nodes of a change. While Redis is unavailable, they detect it by polling the store."""
        self._changed.set()

    async def run(self) -> None:
        """Publishes and receives notifications until cancelled."""
        publish_task = asyncio.create_task(self._publish_changes())
        try:
            while True:
                try:
                    await self._listen()
                except (RedisError, OSError) as error:
                    self._mark_unreachable(error)
                await asyncio.sleep(RECONNECT_DELAY_SECONDS)
        finally:
            publish_task.cancel()
            with suppress(asyncio.CancelledError):
                await publish_task
            with suppress(RedisError, OSError, TimeoutError):
                await asyncio.wait_for(self._redis.aclose(), REDIS_TIMEOUT_SECONDS)

    async def _listen(self) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            # Reads the reply, because redis-py only then raises an error of the subscription.
            if await channel.get_message(timeout=REDIS_TIMEOUT_SECONDS) is None:
                raise TimeoutError
            if self._is_unreachable:
                log.info("Redis is reachable again: other nodes' changes are received")
            self._is_unreachable = False
            # Notifications before the subscription were missed, so the publisher checks for changes now.
            self._on_change()
            while True:
                message = await channel.get_message(timeout=REDIS_TIMEOUT_SECONDS)
                if message and message["type"] == "message" and message["data"] != self._name.encode():
                    self._on_change()

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._redis.publish(self._channel, self._name)
            except (RedisError, OSError) as error:
                self._mark_unreachable(error)

    def _mark_unreachable(self, error: Exception) -> None:
        if not self._is_unreachable:
            # The error message may contain the URL with its password, so only the type is logged.
            log.warning(
                "Redis is unreachable (%s): changes of other nodes are detected by polling the store",
                type(error).__name__,
            )
        self._is_unreachable = True
