"""How long places are waited for that keep secrets, and what is told of them."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.errors import UnavailableError
from penstock.secrets import backends
from penstock.settings import Secrets, Settings

AUTH = {"vault_auth_type": "token", "vault_token": "hvs.canary"}


def test_a_place_that_says_nothing_is_left_in_time():
    over = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()
        await writer.wait_closed()

    async def ask() -> float:
        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        auth = {**AUTH, "vault_addr": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        settings = Settings(secrets=Secrets(fetch_ms=300))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer within 300 ms"):
            await backends.fetch(settings, "hashicorp_vault", auth, "secret/data/x")
        took = time.monotonic() - began
        over.set()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.1)
        return took

    assert asyncio.run(ask()) < 2


def test_what_went_wrong_is_told_without_what_was_sent():
    auth = {**AUTH, "vault_addr": "http://127.0.0.1:1"}
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(backends.fetch(Settings(), "hashicorp_vault", auth, "secret/data/x"))
    assert "canary" not in str(caught.value)
    assert "ConnectionError" in str(caught.value)
