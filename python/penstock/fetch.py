"""Outgoing HTTP requests of the control process to URLs that a tenant sets. Applies the engine's address policy to
every address of a host. Connects to a checked address, so that a later DNS answer has no effect.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from penstock import engine
from penstock.errors import UnavailableError

if TYPE_CHECKING:
    import httpx2

    from penstock.settings import Settings

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_BODY_BYTES = 1024 * 1024
TIMEOUT_SECONDS = 10.0


class DestinationError(UnavailableError):
    """The destination of a URL is not allowed, or its name cannot be resolved."""


def fetch_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that `Fetcher.send` raises. Unlike the others, DestinationError is also a `PenstockError`."""
    import httpx2  # noqa: PLC0415 - it takes 0.1 s to load, and most gateways send no such request

    return (httpx2.HTTPError, TimeoutError, ValueError, DestinationError)


class Endpoint(NamedTuple):
    """Scheme, host and port of a URL. `host` is as in the URL, with an IPv6 address in brackets."""

    scheme: str
    host: str
    port: int


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, with the limits for its response."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    content: bytes = b""
    max_bytes: int = MAX_BODY_BYTES
    # Time limit for everything: DNS lookup, connection, and the complete response.
    seconds: float = TIMEOUT_SECONDS


class FetchedResponse(NamedTuple):
    """A complete response. Redirects are returned, not followed."""

    status: int
    headers: httpx2.Headers
    content: bytes


class Fetcher:
    """Sends requests to URLs. Also checks destinations for client libraries that send requests themselves."""

    def __init__(self, settings: Settings, *, is_operators: bool = False) -> None:
        """Reads the address policy. With `is_operators`, URLs come from the settings of the operator and may lead to
        any address.
        """
        self._trusted = list(settings.upstream.trusted_custom_hosts)
        self._tls_ca = settings.upstream.tls_ca
        self._is_operators = is_operators

    async def send(self, request: FetchRequest) -> FetchedResponse:
        """Sends a request and returns its complete response. Raises DestinationError, TimeoutError, ValueError if the
        response is too large, or an HTTP error.
        """
        import httpx2  # noqa: PLC0415 - as above

        async with asyncio.timeout(request.seconds):
            endpoint = parse_endpoint(request.url)
            addresses = [] if self._is_operators else await self.resolve(endpoint)
            proxy = find_proxy(endpoint)
            if self._is_operators or proxy:
                return await self._send_to(request, endpoint, None, proxy)
            for address in addresses[:-1]:
                try:
                    return await self._send_to(request, endpoint, address, None)
                except httpx2.ConnectError:
                    continue
            return await self._send_to(request, endpoint, addresses[-1], None)

    async def resolve(self, endpoint: Endpoint) -> list[str]:
        """Returns all addresses of a host. Raises DestinationError if one of them is not allowed."""
        self.check_name(endpoint)
        name = endpoint.host.strip("[]")
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(name, endpoint.port, type=socket.SOCK_STREAM)
        except OSError:
            raise DestinationError(f"the host {endpoint.host!r} cannot be resolved") from None
        addresses = list(dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos))
        self._check(endpoint, addresses)
        return addresses

    def check_name(self, endpoint: Endpoint) -> None:
        """Checks a host without resolving it. Raises DestinationError if it is not allowed."""
        self._check(endpoint, [])

    def _check(self, endpoint: Endpoint, addresses: list[str]) -> None:
        if self._is_operators:
            return
        if not endpoint.host.isascii():
            raise DestinationError(f"the host {endpoint.host!r} is not allowed: it must be ASCII")
        reason = engine.refuse_destination(self._trusted, endpoint.host, endpoint.port, addresses)
        if reason:
            raise DestinationError(f"the host {endpoint.host!r} is not allowed: {reason}")

    async def _send_to(
        self, request: FetchRequest, endpoint: Endpoint, address: str | None, proxy: str | None
    ) -> FetchedResponse:
        import httpx2  # noqa: PLC0415 - as above

        url, headers = httpx2.URL(request.url), {"accept-encoding": "identity", **request.headers}
        extensions: dict[str, object] = {}
        if address:
            # The URL now has an IP address, but the certificate is checked against the original name.
            extensions["sni_hostname"] = url.host
            headers["host"] = url.netloc.decode("ascii")
            url = url.copy_with(host=address)
        verify = self._tls_ca or True
        async with (
            httpx2.AsyncClient(
                timeout=request.seconds, verify=verify, trust_env=False, proxy=proxy, follow_redirects=False
            ) as client,
            client.stream(
                request.method, url, headers=headers, content=request.content or None, extensions=extensions
            ) as response,
        ):
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > request.max_bytes:
                    message = f"the response of {endpoint.host} is larger than {request.max_bytes} bytes"
                    raise ValueError(message)
            return FetchedResponse(response.status_code, response.headers, bytes(content))


def parse_endpoint(url: str) -> Endpoint:
    """Returns the scheme, host and port of a URL. Raises DestinationError if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise DestinationError("the URL is malformed") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise DestinationError("the URL must be http or https, with a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Endpoint(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme])


def find_proxy(endpoint: Endpoint) -> str | None:
    """Returns the proxy that the environment sets for a destination; `None` without a proxy."""
    if proxy_bypass(f"{endpoint.host}:{endpoint.port}"):
        return None
    return getproxies().get(endpoint.scheme)
