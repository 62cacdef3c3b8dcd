"""How long places are waited for that keep secrets, and what is told of them."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.errors import UnavailableError
from penstock.kit import sources
from penstock.settings import Secrets, Settings

AUTH = {"vault_auth_type": "token", "vault_token": "hvs.canary"}


def test_a_place_that_says_nothing_is_left_in_time():
    async def ask() -> float:
        server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(5), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        auth = {**AUTH, "vault_addr": f"http://127.0.0.1:{port}"}
        settings = Settings(secrets=Secrets(fetch_ms=300))
        with pytest.raises(UnavailableError, match="no answer within 300 ms"):
            await sources.fetch(settings, "hashicorp_vault", auth, "secret/data/x")
        server.close()
        return time.monotonic() - began

    assert asyncio.run(ask()) < 3


def test_what_went_wrong_is_told_without_what_was_sent():
    auth = {**AUTH, "vault_addr": "http://127.0.0.1:1"}
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(sources.fetch(Settings(), "hashicorp_vault", auth, "secret/data/x"))
    assert "canary" not in str(caught.value)
    assert "ConnectionError" in str(caught.value)
