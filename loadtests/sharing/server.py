"""Private Redis server with injectable faults, in the server itself or in a proxy in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from benches.compare import ports
from benches.compare.peers import packages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

SLOW_SECONDS = 0.5
START_SECONDS = 10
# Number of connections that are never accepted. Enough to fill the accept queue of a socket with the shortest backlog.
CROWD = 8
# After this time, a server that runs a script replies with an error that it is busy. Before, it does not reply.
BUSY_MS = 500
FLUSH_SECONDS = 0.1

Half = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Way:
    """TCP proxy between gateways and the server. It can delay data, forward nothing, or refuse connections."""

    def __init__(self, server: int) -> None:
        self.port = ports.free()
        self.delay = 0.0
        self._server = server
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._crowd: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    def there(self) -> None:
        """Starts to listen and to accept connections."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(1)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def gone(self) -> None:
        """Refuses new connections and closes existing ones."""
        for task in (self._accepting, *self._tasks):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._listener:
            self._listener.close()

    async def swallow(self) -> None:
        """Forwards nothing and refuses nothing: existing connections stall, and new ones are never accepted."""
        self._open.clear()
        if self._accepting:
            self._accepting.cancel()
        for _ in range(CROWD):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", self.port))
            self._crowd.append(one)
        await asyncio.sleep(0)

    def lead(self) -> None:
        """Forwards the data that was held back and accepts the waiting connections."""
        for one in self._crowd:
            one.close()
        self._crowd.clear()
        self._open.set()
        if self._listener:
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            task = asyncio.create_task(self._pass_all(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_all(self, client: socket.socket) -> None:
        halves = [await asyncio.open_connection(sock=client)]
        ways: list[asyncio.Task[None]] = []
        try:
            halves.append(await asyncio.open_connection("127.0.0.1", self._server))
            here, there = halves
            ways.append(asyncio.create_task(self._pass(here, there, answers=False)))
            ways.append(asyncio.create_task(self._pass(there, here, answers=True)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            # The server is unreachable; the client's connection is closed as well.
            return
        finally:
            for way in ways:
                way.cancel()
            for _, writer in halves:
                writer.close()
            await asyncio.gather(*ways, *(writer.wait_closed() for _, writer in halves), return_exceptions=True)

    async def _pass(self, source: Half, sink: Half, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source[0].read(65536):
                await self._open.wait()
                if answers and self.delay:
                    await asyncio.sleep(self.delay)
                sink[1].write(piece)
                await sink[1].drain()


class Server:
    """A Redis server without persistence, and the proxy in front of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = ports.free()
        self._program = packages.debian("redis-server", "redis-server")
        self._aside: list[asyncio.Task[None]] = []
        self.way = Way(self._port)
        # Connects directly, not through the proxy. The cast is needed because redis-py has incomplete types.
        self.own = cast("Any", Redis)(host="127.0.0.1", port=self._port, socket_timeout=2)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.way.port}/0"

    async def start(self) -> None:
        """Starts the server, or a new one after it was killed, and waits until it responds."""
        self._process = self._run()
        async with asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    return await self.own.ping()
                await asyncio.sleep(0.02)

    def _run(self) -> subprocess.Popen[bytes]:
        options = {"port": self._port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder}
        options["busy-reply-threshold"] = BUSY_MS
        command = [self._program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def stop(self) -> None:
        for task in self._aside:
            task.cancel()
        await self.own.aclose()
        await self.way.gone()
        self._process.kill()
        self._process.wait()

    async def users(self) -> set[str]:
        """Returns the ids of the connections on which workers just read or wrote cached responses. No other connection
        is used for that.
        """
        clients = await self.own.client_list()
        return {one["id"] for one in clients if one["cmd"] in {"get", "pttl", "set"} and one["idle"] == "0"}

    async def refuse(self) -> None:
        self._process.kill()
        self._process.wait()
        await self.way.gone()

    async def return_empty(self) -> None:
        await self.start()
        self.way.there()

    async def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    async def lead(self) -> None:
        self.way.lead()

    async def slow(self) -> None:
        self.way.delay = SLOW_SECONDS

    async def hurry(self) -> None:
        self.way.delay = 0.0

    async def follow(self) -> None:
        """Makes the server read-only, as the replica of a primary that does not exist."""
        await self.own.replicaof("127.0.0.1", ports.free())

    async def rule(self) -> None:
        await self.own.replicaof("NO", "ONE")

    async def fill(self) -> None:
        await self.own.config_set("maxmemory", 1)

    async def widen(self) -> None:
        await self.own.config_set("maxmemory", 0)

    async def flush(self) -> None:
        """Deletes all keys every `FLUSH_INTERVAL_SECONDS`, until `stop_flushing`."""

        async def flushing() -> None:
            while True:
                await self.own.flushall()
                await asyncio.sleep(FLUSH_SECONDS)

        self._aside.append(asyncio.create_task(flushing()))

    async def keep(self) -> None:
        self._aside.pop().cancel()

    async def compute(self) -> None:
        """Blocks the server with a script that never ends."""

        async def running() -> None:
            async with cast("Any", Redis)(host="127.0.0.1", port=self._port) as aside:
                with contextlib.suppress(RedisError):
                    await aside.eval("while true do end", 0)

        self._aside.append(asyncio.create_task(running()))

    async def rest(self) -> None:
        await self.own.script_kill()
        await self._aside.pop()

    @property
    def faults(self) -> dict[str, tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]]:
        """Returns the functions that start and end each fault, by its name."""
        return {
            "refused": (self.refuse, self.return_empty),
            "frozen": (self.freeze, self.thaw),
            "blackholed": (self.way.swallow, self.lead),
            "slow": (self.slow, self.hurry),
            "read-only": (self.follow, self.rule),
            "full": (self.fill, self.widen),
            "flushed": (self.flush, self.keep),
            "blocked": (self.compute, self.rest),
        }


FAULTS = ("refused", "frozen", "blackholed", "slow", "read-only", "full", "flushed", "blocked")


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[Server]:
    """Runs the server and its proxy for the duration of the block."""
    server = Server(folder)
    await server.start()
    server.way.there()
    try:
        yield server
    finally:
        await server.stop()
