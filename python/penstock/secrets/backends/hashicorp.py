"""HashiCorp Vault backend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hvac
import msgspec
from hvac.exceptions import Forbidden

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Settings

# Path at which Kubernetes mounts the service account token of a pod.
SERVICE_ACCOUNT_TOKEN_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def fetch(settings: Settings, auth: Mapping[str, Any], path: str) -> str:
    """Returns the fields of the secret at a path as a JSON object."""
    # The library blocks, so it runs in a thread.
    return await asyncio.to_thread(_fetch_blocking, settings, auth, path.strip("/"))


def _fetch_blocking(settings: Settings, auth: Mapping[str, Any], path: str) -> str:
    client = hvac.Client(
        url=auth["vault_addr"],
        # An empty token prevents the library from sending the machine's own token to this address.
        token="",
        namespace=auth.get("vault_namespace") or None,
        timeout=max(settings.secrets.fetch_ms // 1000, 1),
        verify=settings.upstream.tls_ca or True,
        allow_redirects=False,
    )
    try:
        _sign_in(client, auth)
        fields = _read_secret(client, path)
    finally:
        client.adapter.close()
    return msgspec.json.encode(fields).decode()


def _sign_in(client: Any, auth: Mapping[str, Any]) -> None:  # noqa: ANN401 - hvac has no types
    if auth["vault_auth_type"] == "token":
        client.token = auth["vault_token"]
    elif auth["vault_auth_type"] == "approle":
        client.auth.approle.login(role_id=auth["vault_role_id"], secret_id=auth["vault_secret_id"])
    else:
        client.auth.kubernetes.login(role=auth["vault_role"], jwt=SERVICE_ACCOUNT_TOKEN_PATH.read_text())


def _read_secret(client: Any, path: str) -> dict[str, Any]:  # noqa: ANN401 - hvac has no types
    """Reads the secret at a path. In a versioned engine (KV v2), `mount/name` is read as `mount/data/name`."""
    mount, _, name = path.partition("/")
    try:
        found = client.read(path)
    except Forbidden:
        # A policy for `mount/data/*` alone makes Vault answer 403 for `mount/name`, which may not exist.
        found = None
    found = found or client.read(f"{mount}/data/{name}")
    if found is None:
        raise LookupError(path)
    data: dict[str, Any] = found["data"]
    return data["data"] if set(data) == {"data", "metadata"} else data
