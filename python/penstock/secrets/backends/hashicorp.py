"""HashiCorp Vault backend."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.errors import UnavailableError
from penstock.fetch import FetchRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.fetch import Fetcher
    from penstock.settings import Settings

# Path at which Kubernetes mounts the service account token of a pod.
SERVICE_ACCOUNT_TOKEN_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def fetch(settings: Settings, fetcher: Fetcher, auth: Mapping[str, Any], path: str) -> str:
    """Returns the fields of the secret at a path as a JSON object."""
    client = VaultClient(fetcher, auth, settings.secrets.fetch_ms / 1000)
    await client.sign_in(auth)
    return msgspec.json.encode(await client.read_secret(path.strip("/"))).decode()


class VaultClient:
    """Client of Vault's HTTP API for one address and namespace."""

    def __init__(self, fetcher: Fetcher, auth: Mapping[str, Any], seconds: float) -> None:
        """Starts without a token."""
        self._fetcher = fetcher
        self._address: str = auth["vault_addr"].rstrip("/")
        self._headers = {"x-vault-request": "true"}
        if auth.get("vault_namespace"):
            self._headers["x-vault-namespace"] = auth["vault_namespace"]
        self._seconds = seconds

    async def sign_in(self, auth: Mapping[str, Any]) -> None:
        """Uses the token of the auth config, or gets one from Vault with the AppRole or the service account."""
        if auth["vault_auth_type"] == "token":
            token: str = auth["vault_token"]
        elif auth["vault_auth_type"] == "approle":
            token = await self._log_in("approle", role_id=auth["vault_role_id"], secret_id=auth["vault_secret_id"])
        else:
            own_token = await asyncio.to_thread(SERVICE_ACCOUNT_TOKEN_PATH.read_text)
            token = await self._log_in("kubernetes", role=auth["vault_role"], jwt=own_token)
        self._headers["x-vault-token"] = token

    async def read_secret(self, path: str) -> dict[str, Any]:
        """Reads the secret at a path. In a versioned engine (KV v2), `mount/name` is read as `mount/data/name`."""
        mount, _, name = path.partition("/")
        # A policy that allows only `mount/data/*` makes Vault return 403 for `mount/name`, even if that does not exist.
        absent = {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}
        response = await self._send("GET", path, absent) or await self._send("GET", f"{mount}/data/{name}", set())
        data: dict[str, Any] = (response or {})["data"]
        return data["data"] if set(data) == {"data", "metadata"} else data

    async def _log_in(self, method: str, **credentials: str) -> str:
        response = await self._send("POST", f"auth/{method}/login", set(), credentials)
        return (response or {})["auth"]["client_token"]

    async def _send(
        self, method: str, path: str, absent: set[HTTPStatus], body: object = None
    ) -> dict[str, Any] | None:
        """Sends a request. Returns `None` for the statuses in `absent`, and raises UnavailableError for other errors."""
        request = FetchRequest(
            url=f"{self._address}/v1/{quote(path)}",
            method=method,
            headers=self._headers,
            content=b"" if body is None else msgspec.json.encode(body),
            seconds=self._seconds,
        )
        response = await self._fetcher.send(request)
        if response.status in absent:
            return None
        if response.status != HTTPStatus.OK:
            raise UnavailableError(f"Vault returned the status {response.status}")
        return msgspec.json.decode(response.content, type=dict[str, Any])
