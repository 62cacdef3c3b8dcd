"""Calls that arrive at the process of plug-ins, and the memory that they share."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.plugins import host

CALL = msgspec.json.encode(
    {
        "check": "acme.gone",
        "parameters": {},
        "timeout_ms": 1000,
        "texts": ["x" * 200],
        "stage": "input",
        "provider": "openai",
        "model": "m",
        "request_type": "chatComplete",
        "is_streaming": False,
        "metadata": {},
    }
)


def read_call(content: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    return reader


def test_calls_share_a_part_of_the_memory():
    async def run() -> None:
        # The first call alone may be larger than the shared part.
        plugin_host = host.PluginHost({}, host.CONTENT_FRACTION * 100)
        slow = asyncio.StreamReader()
        first = asyncio.create_task(plugin_host._reply_to(slow, len(CALL)))
        await asyncio.sleep(0)
        busy = await plugin_host._reply_to(read_call(CALL), len(CALL))
        assert busy.error == "the process of plug-ins is busy"
        slow.feed_data(CALL)
        assert "does not have the check" in ((await first).error or "")
        later = await plugin_host._reply_to(read_call(CALL), len(CALL))
        assert "does not have the check" in (later.error or "")

    asyncio.run(run())
