"""The section of the settings about the way out to providers: how long it may take, through which proxy, and whom to trust."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The way out to providers."""

    request_timeout_ms: Annotated[
        int, Meta(ge=1, description="time for a provider to answer", extra={"env": "REQUEST_TIMEOUT"})
    ] = 300_000
    dns_timeout_ms: Annotated[int, Meta(ge=1, description="time to look up a provider's name")] = 2000
    connect_timeout_ms: Annotated[int, Meta(ge=1, description="time to connect to a provider, all its addresses")] = (
        3000
    )
    tls_timeout_ms: Annotated[int, Meta(ge=1, description="time for the TLS handshake with a provider")] = 5000
    idle_timeout_ms: Annotated[int, Meta(ge=1, description="longest silence within a provider's answer")] = 60_000
    stream_timeout_ms: Annotated[
        int, Meta(ge=1, description="longest that an answer may come, from its first byte to its last, a stream's too")
    ] = 3_600_000
    trusted_custom_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="hosts, with their subdomains, that may be private addresses or have private names",
            extra={"env": "TRUSTED_CUSTOM_HOSTS"},
        ),
    ] = ()
    http2: Annotated[bool, Meta(description="speak HTTP/2 with providers that offer it")] = True
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
            description="hosts without a proxy: names with their subdomains, addresses, networks, each with a port or not; `*` is all",
            extra={"env": "NO_PROXY"},
        ),
    ] = ()
    tls_ca: Annotated[
        str,
        Meta(
            description="PEM file of certificate authorities to trust besides the usual ones", extra={"env": "TLS_CA"}
        ),
    ] = ""
