"""Load client with a fixed request rate. Every request is unique, so that none is a cache hit; each is timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass
from itertools import count

from benches.compare.peers.peer import CHAT

PATIENCE_SECONDS = 10.0
GUARDED_EVERY = 4
# Used in turn, so that the connections reach all workers.
LINES = 24
KEPT = {"provider": "mock", "cache": {"mode": "simple", "max_age": 60}}
GUARDED = {
    "strategy": {"mode": "fallback", "cb_config": {"failure_threshold": 3, "cooldown_interval": 30000}},
    "targets": [
        {"provider": "mock", "override_params": {"model": "mock?status=503"}},
        {"provider": "mock", "override_params": {"model": "mock?chunks=1"}},
    ],
}

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Call:
    """Due time, duration since then, and status of one request; status 0 if there was no response."""

    due: float
    seconds: float
    status: int


class Callers:
    """Reused connections to one gateway."""

    def __init__(self, host: str, key: str) -> None:
        self._host, _, self._port = host.partition(":")
        self._key = key
        self._lines: deque[Line] = deque()
        self._numbers = count()

    async def call_for(self, seconds: float, rate: float) -> list[Call]:
        """Sends requests at this rate for this time and returns their results once all have finished."""
        start = time.monotonic()
        calling: list[asyncio.Task[Call]] = []
        for number in range(int(seconds * rate)):
            due = start + number / rate
            await asyncio.sleep(due - time.monotonic())
            calling.append(asyncio.create_task(self._call(due)))
        return list(await asyncio.gather(*calling))

    async def _call(self, due: float) -> Call:
        number = next(self._numbers)
        config = GUARDED if number % GUARDED_EVERY == 0 else KEPT
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status = await self._ask(number, config)
        except (OSError, EOFError, TimeoutError):
            status = 0
        return Call(due, time.monotonic() - due, status)

    async def _ask(self, number: int, config: object) -> int:
        is_enough = len(self._lines) >= LINES
        line = self._lines.popleft() if is_enough else await asyncio.open_connection(self._host, int(self._port))
        reader, writer = line
        writer.write(self._request(number, config))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        self._lines.append(line)
        return int(head.split(b" ", 2)[1])

    def _request(self, number: int, config: object) -> bytes:
        said = [{"role": "user", "content": f"question {number}"}]
        body = json.dumps({"model": "mock?chunks=1", "messages": said}).encode()
        fields = {"host": self._host, "x-gateway-api-key": self._key, "x-gateway-config": json.dumps(config)}
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def close(self) -> None:
        for _, writer in self._lines:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
