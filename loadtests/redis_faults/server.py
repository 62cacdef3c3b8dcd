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

SLOW_DELAY_SECONDS = 0.5
START_TIMEOUT_SECONDS = 10
# Number of connections that are never accepted. Enough to fill the accept queue of a socket with the shortest backlog.
PENDING_CONNECTIONS = 8
# After this time, a server that runs a script replies with an error that it is busy. Before, it does not reply.
BUSY_REPLY_THRESHOLD_MS = 500
FLUSH_INTERVAL_SECONDS = 0.1

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FaultyProxy:
    """TCP proxy between gateways and the server. It can delay data, forward nothing, or refuse connections."""

    def __init__(self, server: int) -> None:
        self.port = ports.find_free_port()
        self.delay = 0.0
        self._server = server
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._crowd: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to listen and to accept connections."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(1)
        self._accepting = asyncio.create_task(self._accept_clients(self._listener))

    async def stop(self) -> None:
        """Refuses new connections and closes existing ones."""
        for task in (self._accepting, *self._tasks):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._listener:
            self._listener.close()

    async def blackhole(self) -> None:
        """Forwards nothing and refuses nothing: existing connections stall, and new ones are never accepted."""
        self._open.clear()
        if self._accepting:
            self._accepting.cancel()
        for _ in range(PENDING_CONNECTIONS):
            item = socket.socket()
            item.setblocking(False)
            item.connect_ex(("127.0.0.1", self.port))
            self._crowd.append(item)
        await asyncio.sleep(0)

    def end_blackhole(self) -> None:
        """Forwards the data that was held back and accepts the waiting connections."""
        for item in self._crowd:
            item.close()
        self._crowd.clear()
        self._open.set()
        if self._listener:
            self._accepting = asyncio.create_task(self._accept_clients(self._listener))

    async def _accept_clients(self, listener: socket.socket) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            task = asyncio.create_task(self._relay_connection(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay_connection(self, client: socket.socket) -> None:
        halves = [await asyncio.open_connection(sock=client)]
        tasks: list[asyncio.Task[None]] = []
        try:
            halves.append(await asyncio.open_connection("127.0.0.1", self._server))
            client_pair, server_pair = halves
            tasks.append(asyncio.create_task(self._relay_stream(client_pair, server_pair, responses=False)))
            tasks.append(asyncio.create_task(self._relay_stream(server_pair, client_pair, responses=True)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            # The server is unreachable; the client's connection is closed as well.
            return
        finally:
            for task in tasks:
                task.cancel()
            for _, writer in halves:
                writer.close()
            await asyncio.gather(*tasks, *(writer.wait_closed() for _, writer in halves), return_exceptions=True)

    async def _relay_stream(self, source: StreamPair, sink: StreamPair, *, responses: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source[0].read(65536):
                await self._open.wait()
                if responses and self.delay:
                    await asyncio.sleep(self.delay)
                sink[1].write(chunk)
                await sink[1].drain()


class RedisServer:
    """A Redis server without persistence, and the proxy in front of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = ports.find_free_port()
        self._program = packages.install_debian_program("redis-server", "redis-server")
        self._aside: list[asyncio.Task[None]] = []
        self.way = FaultyProxy(self._port)
        # Connects directly, not through the proxy. The cast is needed because redis-py has incomplete types.
        self.own = cast("Any", Redis)(host="127.0.0.1", port=self._port, socket_timeout=2)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.way.port}/0"

    async def start(self) -> None:
        """Starts the server, or a new one after it was killed, and waits until it responds."""
        self._process = self._spawn()
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    return await self.own.ping()
                await asyncio.sleep(0.02)

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = {"port": self._port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder}
        options["busy-reply-threshold"] = BUSY_REPLY_THRESHOLD_MS
        command = [self._program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def stop(self) -> None:
        for task in self._aside:
            task.cancel()
        await self.own.aclose()
        await self.way.stop()
        self._process.kill()
        self._process.wait()

    async def active_client_ids(self) -> set[str]:
        """Returns the ids of the connections on which workers just read or wrote cached responses. Other connections
        never send these commands.
        """
        clients = await self.own.client_list()
        return {item["id"] for item in clients if item["cmd"] in {"get", "pttl", "set"} and item["idle"] == "0"}

    async def refuse_connections(self) -> None:
        self._process.kill()
        self._process.wait()
        await self.way.stop()

    async def restart_empty(self) -> None:
        await self.start()
        self.way.start()

    async def suspend_process(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    async def resume_process(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    async def end_blackhole(self) -> None:
        self.way.end_blackhole()

    async def add_delay(self) -> None:
        self.way.delay = SLOW_DELAY_SECONDS

    async def remove_delay(self) -> None:
        self.way.delay = 0.0

    async def become_replica(self) -> None:
        """Makes the server read-only, as the replica of a primary that does not exist."""
        await self.own.replicaof("127.0.0.1", ports.find_free_port())

    async def become_primary(self) -> None:
        await self.own.replicaof("NO", "ONE")

    async def limit_memory(self) -> None:
        await self.own.config_set("maxmemory", 1)

    async def lift_memory_limit(self) -> None:
        await self.own.config_set("maxmemory", 0)

    async def start_flushing(self) -> None:
        """Deletes all keys every `FLUSH_INTERVAL_SECONDS`, until `stop_flushing`."""

        async def flush_loop() -> None:
            while True:
                await self.own.flushall()
                await asyncio.sleep(FLUSH_INTERVAL_SECONDS)

        self._aside.append(asyncio.create_task(flush_loop()))

    async def stop_flushing(self) -> None:
        self._aside.pop().cancel()

    async def start_endless_script(self) -> None:
        """Blocks the server with a script that never ends."""

        async def run_script() -> None:
            async with cast("Any", Redis)(host="127.0.0.1", port=self._port) as redis_client:
                with contextlib.suppress(RedisError):
                    await redis_client.eval("while true do end", 0)

        self._aside.append(asyncio.create_task(run_script()))

    async def kill_script(self) -> None:
        await self.own.script_kill()
        await self._aside.pop()

    @property
    def faults(self) -> dict[str, tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]]:
        """Returns the functions that start and end each fault, by its name."""
        return {
            "refused": (self.refuse_connections, self.restart_empty),
            "frozen": (self.suspend_process, self.resume_process),
            "blackholed": (self.way.blackhole, self.end_blackhole),
            "slow": (self.add_delay, self.remove_delay),
            "read-only": (self.become_replica, self.become_primary),
            "full": (self.limit_memory, self.lift_memory_limit),
            "flushed": (self.start_flushing, self.stop_flushing),
            "blocked": (self.start_endless_script, self.kill_script),
        }


FAULT_NAMES = ("refused", "frozen", "blackholed", "slow", "read-only", "full", "flushed", "blocked")


@asynccontextmanager
async def run_server(folder: Path) -> AsyncGenerator[RedisServer]:
    """Runs the server and its proxy for the duration of the block."""
    server = RedisServer(folder)
    await server.start()
    server.way.start()
    try:
        yield server
    finally:
        await server.stop()
