"""Secret backends: the timeout of a fetch, and error messages without credentials."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.errors import UnavailableError
from penstock.secrets import backends
from penstock.settings import Secrets, Settings
from penstock.settings.upstream import Upstream

VAULT_AUTH = {"vault_auth_type": "token", "vault_token": "hvs.canary"}
LOOPBACK = Upstream(trusted_custom_hosts=("127.0.0.1",))


def test_silent_backend_times_out():
    over = asyncio.Event()

    async def never_respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()
        await writer.wait_closed()

    async def time_fetch() -> float:
        server = await asyncio.start_server(never_respond, "127.0.0.1", 0)
        auth = {**VAULT_AUTH, "vault_addr": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        settings = Settings(secrets=Secrets(fetch_ms=300), upstream=LOOPBACK)
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer within 300 ms"):
            await backends.fetch(settings, "hashicorp_vault", auth, "secret/data/x")
        elapsed = time.monotonic() - began
        over.set()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.1)
        return elapsed

    assert asyncio.run(time_fetch()) < 2


def test_error_message_contains_no_credential():
    auth = {**VAULT_AUTH, "vault_addr": "http://127.0.0.1:1"}
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(backends.fetch(Settings(upstream=LOOPBACK), "hashicorp_vault", auth, "secret/data/x"))
    assert "canary" not in str(caught.value)
    assert "ConnectError" in str(caught.value)
