"""The plug-in process: runs checks that the engine calls over a Unix socket.

It has none of the gateway's memory and environment. It exits if a call runs far beyond its time limit, and the
supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import resource
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock import process
from penstock.plugins import Call, Check, PluginError, Result
from penstock.plugins.loading import describe_check, load_checks

TITLE = "plug-ins"
THREADS, MAX_CALLS = 16, 64
MAX_FRAME_BYTES = 128 * 1024 * 1024
LENGTH_BYTES = 4
# The contents of all running calls together may use the memory limit divided by this number. Checks need a multiple of
# the content.
CONTENT_FRACTION = 8
# A call may take `OVERRUN_FACTOR` times its time limit plus `OVERRUN_SECONDS`. By then the engine no longer waits for
# it.
OVERRUN_FACTOR, OVERRUN_SECONDS = 2.0, 1.0
WATCH_SECONDS = 0.2
# Seconds after which code that never yields to other threads, such as a costly regular expression, ends the process.
STALL_SECONDS = 5.0


class Frame(Call, frozen=True, kw_only=True):
    """A call as the engine sends it, including the name of the check."""

    check: str
    parameters: dict[str, Any]
    timeout_ms: int


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to a call."""

    passed: bool | None = None
    data: dict[str, Any] | None = None
    texts: list[str] | None = None
    error: str | None = None


class PluginHost:
    """Runs the checks of plug-ins in threads."""

    def __init__(self, checks: dict[str, Check], memory_bytes: int) -> None:
        """Stores the checks by id, and the memory that the contents of all calls share."""
        self._checks = checks
        self._free_bytes = memory_bytes // CONTENT_FRACTION
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="check")
        self._count = 0
        # Latest end of each running call, and the id of its check.
        self._running: dict[int, tuple[float, str]] = {}
        # Numbers for calls. A counter object, because several threads take numbers from it at the same time.
        self._numbers = itertools.count(1)

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Serves calls until `stop` is set."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        server = await asyncio.start_unix_server(self._serve_call, sock=listener)
        await stop.wait()
        server.close()

    def run(self, content: bytes) -> Reply:
        """Decodes a `Frame` and runs the check that it names."""
        frame = msgspec.json.decode(content, type=Frame)
        check = self._checks.get(frame.check)
        if check is None:
            return Reply(error="this process does not have the check; restart the gateway")
        number = self._begin(frame)
        try:
            return self._run_check(check, frame)
        except BaseException as error:  # noqa: BLE001 - a plug-in must not end the thread
            _report_exception(frame.check, error)
            return Reply(error=f"it raised {type(error).__name__}")
        finally:
            self._running.pop(number, None)

    def _begin(self, frame: Frame) -> int:
        number = next(self._numbers)
        limit = frame.timeout_ms / 1000 * OVERRUN_FACTOR + OVERRUN_SECONDS
        self._running[number] = (time.monotonic() + limit, frame.check)
        return number

    @staticmethod
    def _run_check(check: Check, frame: Frame) -> Reply:
        call = Call(**{name: getattr(frame, name) for name in Call.__struct_fields__})
        arguments: list[Any] = [msgspec.convert(frame.parameters, check.parameters)] if check.takes_parameters else []
        result = check.function(call, *arguments)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        if isinstance(result, bool):
            result = Result(result)
        if not isinstance(result, Result):
            return Reply(error=f"it returned {type(result).__name__}, not a Result")
        # Converts the result to enforce the types of its fields, because a plug-in can set values of any type.
        return msgspec.convert(msgspec.to_builtins(result), Reply)

    async def _serve_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
            if length <= MAX_FRAME_BYTES:
                content = _encode(await self._reply_to(reader, length))
                writer.write(len(content).to_bytes(LENGTH_BYTES) + content)
                await writer.drain()
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async def _reply_to(self, reader: asyncio.StreamReader, length: int) -> Reply:
        # A single call is accepted even if it is larger than the shared memory.
        if self._count >= MAX_CALLS or (self._count and length > self._free_bytes):
            return Reply(error="the process of plug-ins is busy")
        self._count += 1
        self._free_bytes -= length
        try:
            content = await reader.readexactly(length)
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.run, content)
        finally:
            self._count -= 1
            self._free_bytes += length

    def _watch(self) -> None:
        """Ends the process if a call runs far beyond its limit, or if code keeps all other threads from running."""
        while True:
            # The timer thread runs without the interpreter lock, so it can also end code that never releases the lock.
            faulthandler.dump_traceback_later(STALL_SECONDS, exit=True)
            now = time.monotonic()
            for limit, check in list(self._running.values()):
                if now > limit:
                    _write_line(f"{check} does not end; the process of plug-ins is restarted")
                    os._exit(1)
            time.sleep(WATCH_SECONDS)


def _encode(reply: Reply) -> bytes:
    try:
        return msgspec.json.encode(reply)
    except (TypeError, ValueError, MemoryError, RecursionError) as error:
        return msgspec.json.encode(Reply(error=f"its result cannot be sent: {type(error).__name__}"))


def _report_exception(check: str, error: BaseException) -> None:
    """Logs where a check failed. Omits the message of the exception, because it may contain text of a request."""
    line = error.__traceback__
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    place = f" in {Path(line.tb_frame.f_code.co_filename).name}, line {line.tb_lineno}" if line else ""
    _write_line(f"{check} raised {type(error).__name__}{place}")


def _write_line(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Describes or serves plug-ins: `describe|serve MEMORY_BYTES PARENT_PID SOCKET_DESCRIPTOR PATH…`."""
    verb, memory, parent, descriptor, *paths = arguments
    process.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    # The output of plug-ins is redirected to standard error, which is the log.
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        checks = load_checks(paths)
        described = [describe_check(id_, check) for id_, check in checks.items()]
    except PluginError as error:
        _write_line(str(error))
        return 1
    if verb == "describe":
        with os.fdopen(output, "wb") as pipe:
            pipe.write(msgspec.json.encode(described))
        return 0
    os.close(output)
    process.set_process_title(TITLE)
    process.lower_priority()
    faulthandler.enable()
    asyncio.run(_serve(PluginHost(checks, int(memory)), socket.socket(fileno=int(descriptor))))
    # Exits at once: threads of calls that still run must not delay the exit.
    os._exit(0)


async def _serve(host: PluginHost, listener: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await host.serve(listener, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
