"""Azure Key Vault backend."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from azure.core.pipeline.transport import AioHttpTransport
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential
from azure.keyvault.secrets.aio import SecretClient

from penstock.fetch import DEFAULT_PORTS, MAX_BODY_BYTES, find_proxy, parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.fetch import Endpoint, Fetcher
    from penstock.settings import Settings


async def fetch(settings: Settings, fetcher: Fetcher, auth: Mapping[str, Any], path: str) -> str:
    """Returns the value of a secret. The path is its name, optionally followed by a slash and a version."""
    name, _, version = path.partition("/")
    verify = {"connection_verify": settings.upstream.tls_ca} if settings.upstream.tls_ca else {}
    options: dict[str, Any] = {"retry_total": 1, **verify}
    credential = _create_credential(settings, auth, options)
    endpoint = parse_endpoint(auth["azure_vault_url"])
    is_default_port = endpoint.port == DEFAULT_PORTS[endpoint.scheme]
    # Builds the URL from its parsed parts, so that the library cannot parse another host from it.
    url = f"{endpoint.scheme}://{endpoint.host}{'' if is_default_port else f':{endpoint.port}'}"
    # The library connects to IP addresses without a call of the resolver, so the URL is checked first. Redirects would
    # not be checked, so they are not followed.
    await fetcher.resolve(endpoint)
    # A proxy resolves the name of the vault itself, so the resolver is only for direct connections.
    has_proxy = find_proxy(endpoint) is not None
    resolver = None if has_proxy else CheckedResolver(fetcher, endpoint)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=resolver),
        response_class=BoundedResponse,
        auto_decompress=False,
        trust_env=has_proxy,
    )
    # The client does not pass its options on to the transport, so the transport gets `verify` here.
    transport = AioHttpTransport(session=session, **verify)
    client = SecretClient(url, credential, transport=transport, permit_redirects=False, **options)
    async with session, credential, client:
        secret = await client.get_secret(name, version or None)
    return secret.value or ""


class BoundedResponse(aiohttp.ClientResponse):
    """Response whose body may have at most `MAX_BODY_BYTES` bytes."""

    async def read(self) -> bytes:
        """Returns the body. Raises ClientPayloadError if it is too large."""
        if self._body is None:
            body = bytearray()
            async for chunk in self.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    self.close()
                    message = f"the response is larger than {MAX_BODY_BYTES} bytes"
                    raise aiohttp.ClientPayloadError(message)
            self._body = bytes(body)
            self.release()
        return self._body


class CheckedResolver(AbstractResolver):
    """Resolver that returns only addresses that the address policy allows."""

    def __init__(self, fetcher: Fetcher, endpoint: Endpoint) -> None:
        """Stores the policy and the destination of the URL."""
        self._fetcher = fetcher
        self._endpoint = endpoint

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - the policy covers both address families
    ) -> list[ResolveResult]:
        """Returns the checked addresses of a host."""
        endpoint = self._endpoint._replace(host=host, port=port)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._fetcher.resolve(endpoint)
        ]

    async def close(self) -> None:
        """Has nothing to close."""


def _create_credential(settings: Settings, auth: Mapping[str, Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - the credential types have no common base
    """Returns the credential of the auth config. Falls back to the machine's own identity."""
    if settings.secrets.azure_authority:
        # Instance discovery fails for a private cloud, which Microsoft's directory does not list.
        options = {**options, "authority": settings.secrets.azure_authority, "disable_instance_discovery": True}
    if auth["azure_auth_mode"] == "entra":
        return ClientSecretCredential(
            auth["azure_entra_tenant_id"], auth["azure_entra_client_id"], auth["azure_entra_client_secret"], **options
        )
    if auth["azure_auth_mode"] == "managed":
        return ManagedIdentityCredential(client_id=auth.get("azure_managed_client_id"))
    return DefaultAzureCredential(**options)
