"""`[upstream]` settings: timeouts, proxies and trusted certificates for connections to providers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for connections to providers."""

    request_timeout_ms: Annotated[
        int, Meta(ge=1, description="timeout for a provider's response", extra={"env": "REQUEST_TIMEOUT"})
    ] = 300_000
    dns_timeout_ms: Annotated[int, Meta(ge=1, description="timeout of the DNS lookup of a provider's name")] = 2000
    connect_timeout_ms: Annotated[
        int, Meta(ge=1, description="timeout for connecting to a provider, over all of its addresses")
    ] = 3000
    tls_timeout_ms: Annotated[int, Meta(ge=1, description="timeout of the TLS handshake with a provider")] = 5000
    idle_timeout_ms: Annotated[int, Meta(ge=1, description="longest pause within a provider's response")] = 60_000
    stream_timeout_ms: Annotated[
        int, Meta(ge=1, description="maximum duration of a response from its first byte to its last, streams included")
    ] = 3_600_000
    trusted_custom_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="hosts, including their subdomains, that may resolve to private addresses or have private names",
            extra={"env": "TRUSTED_CUSTOM_HOSTS"},
        ),
    ] = ()
    http2: Annotated[bool, Meta(description="use HTTP/2 with providers that offer it")] = True
    https_proxy: Annotated[
        Secret | None,
        Meta(
            description="proxy for https providers, such as `http://user:password@host:3128`",
            extra={"env": "HTTPS_PROXY"},
        ),
    ] = None
    http_proxy: Annotated[Secret | None, Meta(description="proxy for http providers", extra={"env": "HTTP_PROXY"})] = (
        None
    )
    no_proxy: Annotated[
        tuple[str, ...],
        Meta(
            description="hosts to reach without a proxy: names including subdomains, addresses or networks, each with an optional port; `*` for all",
            extra={"env": "NO_PROXY"},
        ),
    ] = ()
    tls_ca: Annotated[
        str,
        Meta(
            description="PEM file of certificate authorities to trust in addition to the default ones",
            extra={"env": "TLS_CA"},
        ),
    ] = ""


class Mock(msgspec.Struct, frozen=True, kw_only=True):
    """The mock provider."""

    host: Annotated[str, Meta(description="base URL of the provider named `mock`; empty: no mock provider")] = ""
