"""Clients and a provider that record the requests that they sent or received, for the comparison with the log store.

Run as a program, it sends requests and prints their trace ids, and the trace ids of those whose whole response arrived.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from typing import Any, Self

import aiohttp

CONNECTIONS = 24
TIMEOUT_SECONDS = 30.0
RETRY_PAUSE_SECONDS = 0.05
CHUNKS = 5
# Fractions of all requests: rejected by the provider, streamed, and aborted by the client (some of the streamed ones).
FAILED_RATIO, STREAMED_RATIO, DISCONNECTED_RATIO = 0.05, 0.35, 0.05
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


class CountingProvider:
    """HTTP provider in a thread. `served` has the `user` field of each request, once for each time that the request
    arrived.
    """

    def __init__(self) -> None:
        self.served: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        self._loop.run_forever()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                request = json.loads(await reader.readexactly(length))
                self.served.append(request["user"])
                await _respond(writer, request)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _respond(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    basics = {"id": "c", "created": 1, "model": request["model"]}
    if request["model"] == "failing":
        body = json.dumps({"error": {"message": "down", "type": "server_error", "code": None}}).encode()
        writer.write(
            b"HTTP/1.1 500 x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
    elif not request.get("stream"):
        message = {"role": "assistant", "content": "yes " * 50}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({**basics, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
    else:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(CHUNKS):
            reason = "stop" if number == CHUNKS - 1 else None
            choice = {"index": 0, "delta": {"content": "yes "}, "finish_reason": reason}
            _write_event(writer, json.dumps({**basics, "object": "chat.completion.chunk", "choices": [choice]}))
            await writer.drain()
            await asyncio.sleep(0.002)
        _write_event(writer, json.dumps({**basics, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}))
        _write_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def _write_event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


class Client:
    """Sends requests over several connections until `count` of them were sent."""

    def __init__(self, url: str, count: int, name: str, headers: dict[str, str]) -> None:
        self.acknowledged: list[str] = []
        self.sent: list[str] = []
        self._url, self._count, self._name, self._headers = url, count, name, headers
        self._chance = random.Random(name)  # noqa: S311 - the mix of requests is no secret

    async def run(self) -> None:
        """Sends all requests."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(self._send_in_turn(session))

    async def _send_in_turn(self, session: aiohttp.ClientSession) -> None:
        while len(self.sent) < self._count:
            trace_id = f"{self._name}-{len(self.sent)}"
            self.sent.append(trace_id)
            try:
                if await self._send(session, trace_id):
                    self.acknowledged.append(trace_id)
            except (aiohttp.ClientError, TimeoutError, OSError):
                # The worker was killed, or none of them listens yet.
                await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _send(self, session: aiohttp.ClientSession, trace_id: str) -> bool:
        """Returns true if the whole response arrived."""
        chance = self._chance.random()
        body: dict[str, Any] = {
            "model": "failing" if chance < FAILED_RATIO else "m",
            "user": trace_id,
            "messages": [{"role": "user", "content": "Is the gate open? " * 20}],
        }
        if FAILED_RATIO <= chance < FAILED_RATIO + STREAMED_RATIO:
            body["stream"] = True
        headers = {**self._headers, "x-gateway-trace-id": trace_id}
        async with session.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as response:
            if body.get("stream") and chance < FAILED_RATIO + DISCONNECTED_RATIO:
                await response.content.readany()
                response.close()
                return False
            await response.read()
            return True


def main() -> None:
    """Takes the options as JSON in the first argument; prints what was sent and acknowledged."""
    options = json.loads(sys.argv[1])
    client = Client(**options)
    started = time.monotonic()
    asyncio.run(client.run())
    json.dump(
        {"sent": client.sent, "acknowledged": client.acknowledged, "seconds": time.monotonic() - started}, sys.stdout
    )


if __name__ == "__main__":
    main()
