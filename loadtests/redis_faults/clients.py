"""Load client with a fixed request rate. Every request is unique, so that none is a cache hit; each is timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass
from itertools import count

from benches.compare.peers.peer import CHAT_PATH

CALL_TIMEOUT_SECONDS = 10.0
BREAKER_CONFIG_INTERVAL = 4
# Number of connections. They are used in turn, and are enough to reach all workers.
CONNECTION_COUNT = 24
CACHE_CONFIG = {"provider": "mock", "cache": {"mode": "simple", "max_age": 60}}
BREAKER_CONFIG = {
    "strategy": {"mode": "fallback", "cb_config": {"failure_threshold": 3, "cooldown_interval": 30000}},
    "targets": [
        {"provider": "mock", "override_params": {"model": "mock?status=503"}},
        {"provider": "mock", "override_params": {"model": "mock?chunks=1"}},
    ],
}

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class CallResult:
    """Due time, duration since then, and status of one request; status 0 if there was no response."""

    due_at: float
    duration_seconds: float
    status: int


class LoadClient:
    """Reused connections to one gateway."""

    def __init__(self, host: str, key: str) -> None:
        self._host, _, self._port = host.partition(":")
        self._key = key
        self._lines: deque[Connection] = deque()
        self._numbers = count()

    async def run_calls(self, seconds: float, rate: float) -> list[CallResult]:
        """Sends requests at this rate for this time and returns their results once all have finished."""
        start = time.monotonic()
        calling: list[asyncio.Task[CallResult]] = []
        for number in range(int(seconds * rate)):
            due = start + number / rate
            await asyncio.sleep(due - time.monotonic())
            calling.append(asyncio.create_task(self._run_call(due)))
        return list(await asyncio.gather(*calling))

    async def _run_call(self, due: float) -> CallResult:
        number = next(self._numbers)
        config = BREAKER_CONFIG if number % BREAKER_CONFIG_INTERVAL == 0 else CACHE_CONFIG
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                status = await self._send_request(number, config)
        except (OSError, EOFError, TimeoutError):
            status = 0
        return CallResult(due, time.monotonic() - due, status)

    async def _send_request(self, number: int, config: object) -> int:
        is_enough = len(self._lines) >= CONNECTION_COUNT
        line = self._lines.popleft() if is_enough else await asyncio.open_connection(self._host, int(self._port))
        reader, writer = line
        writer.write(self._build_request(number, config))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        self._lines.append(line)
        return int(head.split(b" ", 2)[1])

    def _build_request(self, number: int, config: object) -> bytes:
        messages = [{"role": "user", "content": f"question {number}"}]
        body = json.dumps({"model": "mock?chunks=1", "messages": messages}).encode()
        fields = {"host": self._host, "x-gateway-api-key": self._key, "x-gateway-config": json.dumps(config)}
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {CHAT_PATH} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def close(self) -> None:
        for _, writer in self._lines:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
