"""A Redis of one's own that fails as it is told to: itself, or on the way to it."""

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
# Of connections that nobody accepts: enough to fill the queue of a socket that listens with the shortest one.
CROWD = 8
# From then on a server that runs a script says that it is busy; before it says nothing.
BUSY_MS = 500
FLUSH_SECONDS = 0.1

Half = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Way:
    """Passes everything on between gateways and the server; may be slow, lead nowhere, or not be there."""

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
        """Be there from now on."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(1)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def gone(self) -> None:
        """Refuse all, and end what there is."""
        for task in (self._accepting, *self._tasks):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._listener:
            self._listener.close()

    async def swallow(self) -> None:
        """Answer nothing and refuse nothing: neither what is connected nor who connects."""
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
        """Let through what was held, and who waits."""
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
            # The server is not there: nor is whoever came for it.
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
    """One server that keeps nothing on the disk, and the way to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = ports.free()
        self._program = packages.debian("redis-server", "redis-server")
        self._aside: list[asyncio.Task[None]] = []
        self.way = Way(self._port)
        # Past the way; of its methods that library says half the types.
        self.own = cast("Any", Redis)(host="127.0.0.1", port=self._port, socket_timeout=2)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.way.port}/0"

    async def start(self) -> None:
        """Start it, or a new one in the place of one that was killed."""
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
        """The connections on which workers just looked up or kept an answer: on no other is it done."""
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
        """Take no writes, as the replica of somebody who is not there."""
        await self.own.replicaof("127.0.0.1", ports.free())

    async def rule(self) -> None:
        await self.own.replicaof("NO", "ONE")

    async def fill(self) -> None:
        await self.own.config_set("maxmemory", 1)

    async def widen(self) -> None:
        await self.own.config_set("maxmemory", 0)

    async def flush(self) -> None:
        """Forget all, again and again."""

        async def flushing() -> None:
            while True:
                await self.own.flushall()
                await asyncio.sleep(FLUSH_SECONDS)

        self._aside.append(asyncio.create_task(flushing()))

    async def keep(self) -> None:
        self._aside.pop().cancel()

    async def compute(self) -> None:
        """Run a script that never ends."""

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
        """How each begins and ends."""
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
    """The server and the way to it, for as long as the block lasts."""
    server = Server(folder)
    await server.start()
    server.way.there()
    try:
        yield server
    finally:
        await server.stop()
