"""Clients and a provider that record the requests that they sent or received, for the comparison with the log store.

Run as a program, it sends requests and prints their trace ids, and the trace ids of those whose whole response arrived.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
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
# Fractions of the other requests: with two choices, embeddings, and realtime sessions.
CHOICES_RATIO, EMBEDDED_RATIO, SESSION_RATIO = 0.15, 0.15, 0.02
TEXT = "Is the gate open? " * 20
INPUT_TOKENS, OUTPUT_TOKENS = 9, 4
# Key with which a server accepts a WebSocket (RFC 6455, section 1.3).
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT_OPCODE = 1


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
                if b"\r\nupgrade: websocket" in head.lower():
                    await self._serve_session(head, reader, writer)
                    return
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                request = json.loads(await reader.readexactly(length))
                self.served.append(request["user"])
                if b"/embeddings " in head.partition(b"\r\n")[0]:
                    _write_json(writer, _embedding(request))
                    await writer.drain()
                else:
                    await _respond(writer, request)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _serve_session(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a realtime session. Its instructions are the trace id."""
        lines = (line.partition(b": ") for line in head.splitlines())
        sent = next(value for name, _, value in lines if name.lower() == b"sec-websocket-key")
        accepted = base64.b64encode(hashlib.sha1(sent + WEBSOCKET_GUID).digest())  # noqa: S324 - RFC 6455 demands it
        writer.write(b"HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: upgrade\r\n")
        writer.write(b"sec-websocket-accept: %s\r\n\r\n" % accepted)
        while (message := await _read_message(reader)) is not None:
            event = json.loads(message)
            if event["type"] == "session.update":
                self.served.append(event["session"]["instructions"])
            elif event["type"] == "response.create":
                counts = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
                usage = {**counts, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS}
                done = {"type": "response.done", "response": {"id": "r", "status": "completed", "usage": usage}}
                payload = json.dumps(done).encode()
                writer.write(bytes([0x80 | TEXT_OPCODE, 126]) + len(payload).to_bytes(2, "big") + payload)
            await writer.drain()


async def _read_message(reader: asyncio.StreamReader) -> bytes | None:
    """Reads a text message of a client, which is masked and not fragmented; returns `None` for any other message."""
    first, second = await reader.readexactly(2)
    length = second & 0x7F
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    mask = await reader.readexactly(4)
    payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(await reader.readexactly(length)))
    return payload if first & 0x0F == TEXT_OPCODE else None


def _embedding(request: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": INPUT_TOKENS, "total_tokens": INPUT_TOKENS}
    row = {"object": "embedding", "index": 0, "embedding": [0.5]}
    return {"object": "list", "model": request["model"], "data": [row], "usage": usage}


def _usage(choices: int) -> dict[str, int]:
    output = choices * OUTPUT_TOKENS
    return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": output, "total_tokens": INPUT_TOKENS + output}


def _write_json(writer: asyncio.StreamWriter, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def _respond(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    basics = {"id": "c", "created": 1, "model": request["model"]}
    if request["model"] == "failing":
        body = json.dumps({"error": {"message": "down", "type": "server_error", "code": None}}).encode()
        writer.write(
            b"HTTP/1.1 500 x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
    elif not request.get("stream"):
        message = {"role": "assistant", "content": "yes " * 50}
        count = request.get("n", 1)
        choices = [{"index": index, "message": message, "finish_reason": "stop"} for index in range(count)]
        _write_json(writer, {**basics, "object": "chat.completion", "choices": choices, "usage": _usage(count)})
    else:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(CHUNKS):
            reason = "stop" if number == CHUNKS - 1 else None
            choice = {"index": 0, "delta": {"content": "yes "}, "finish_reason": reason}
            _write_event(writer, json.dumps({**basics, "object": "chat.completion.chunk", "choices": [choice]}))
            await writer.drain()
            await asyncio.sleep(0.002)
        _write_event(
            writer, json.dumps({**basics, "object": "chat.completion.chunk", "choices": [], "usage": _usage(1)})
        )
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
            "messages": [{"role": "user", "content": TEXT}],
        }
        headers = {**self._headers, "x-gateway-trace-id": trace_id}
        path = "/v1/chat/completions"
        rest = chance - FAILED_RATIO - STREAMED_RATIO
        if 0 <= rest < CHOICES_RATIO:
            body["n"] = 2
        elif CHOICES_RATIO <= rest < CHOICES_RATIO + EMBEDDED_RATIO:
            path, body = "/v1/embeddings", {"model": "m", "user": trace_id, "input": TEXT}
        elif rest >= 1 - FAILED_RATIO - STREAMED_RATIO - SESSION_RATIO:
            await self._run_session(session, trace_id, headers)
            return False
        if FAILED_RATIO <= chance < FAILED_RATIO + STREAMED_RATIO:
            body["stream"] = True
        async with session.post(f"{self._url}{path}", json=body, headers=headers) as response:
            if body.get("stream") and chance < FAILED_RATIO + DISCONNECTED_RATIO:
                await response.content.readany()
                response.close()
                return False
            await response.read()
            return True

    async def _run_session(self, session: aiohttp.ClientSession, trace_id: str, headers: dict[str, str]) -> None:
        """Gets one response in a realtime session."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async with session.ws_connect(f"{self._url}/v1/realtime?model=m", headers=headers) as socket:
                await socket.send_json({"type": "session.update", "session": {"instructions": trace_id}})
                await socket.send_json({"type": "response.create"})
                async for message in socket:
                    if message.type != aiohttp.WSMsgType.TEXT or message.json()["type"] == "response.done":
                        return


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
