"""Settings of the server: network address, connection limits and shutdown; and authentication of clients."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


def _default_worker_count() -> int:
    # The event loop of one worker is fast enough for the engine threads of about four cores.
    return max(1, (os.cpu_count() or 1) // 4)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Network address, connection limits and shutdown of the gateway."""

    host: Annotated[str, Meta(description="IP address to listen on, or `localhost`")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 takes any free one")] = 8787
    workers: Annotated[int, Meta(ge=1, le=256, description="edge processes; default: one per four cores")] = (
        msgspec.field(default_factory=_default_worker_count)
    )
    backlog: Annotated[int, Meta(ge=128, le=65535, description="connections waiting to be accepted, per worker")] = 2048
    connections: Annotated[int, Meta(ge=1, description="maximum open connections per worker, including idle ones")] = (
        65536
    )
    header_timeout_ms: Annotated[int, Meta(ge=100, description="time limit for the headers of a request to arrive")] = (
        10_000
    )
    keep_alive_ms: Annotated[
        int, Meta(ge=100, description="time after which an idle keep-alive connection is closed")
    ] = 75_000
    header_bytes: Annotated[
        int, Meta(ge=8192, description="maximum size of a request head: first line and headers")
    ] = 65536
    drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="time that open requests get to finish at shutdown")
    ] = 30.0
    write_stall_ms: Annotated[
        int, Meta(ge=100, description="time limit for a client that does not read its response")
    ] = 60_000
    heartbeat_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="silence in an event stream before a comment is sent as a heartbeat; 0: never"),
    ] = 15.0
    shutdown_delay_seconds: Annotated[
        float,
        Meta(ge=0, le=60, description="time between `/ready` failing and the port closing at shutdown; 0 on loopback"),
    ] = 1.0
    tls_certificate_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate of the gateway and its intermediate certificates; with "
            "`server.tls_key_file` the gateway accepts only TLS; reloaded when it changes"
        ),
    ] = ""
    tls_key_file: Annotated[str, Meta(description="PEM file with the key of the certificate, without a passphrase")] = (
        ""
    )
    tls_min_version: Annotated[
        Literal["1.2", "1.3"], Meta(description="oldest version of TLS that clients may use")
    ] = "1.2"
    public_url: Annotated[
        str,
        Meta(
            description="base URL at which people reach the gateway, such as `https://ai.example.com`; default: the URL of the request"
        ),
    ] = ""
    base_path: Annotated[
        str,
        Meta(
            description="path below which a reverse proxy serves the gateway, if the proxy keeps it in requests, such as `/tools/gateway`"
        ),
    ] = ""
    run_dir: Annotated[
        str,
        Meta(description="private folder for the sockets between the processes; default: a new one, removed at exit"),
    ] = ""

    @property
    def has_tls(self) -> bool:
        """True if clients connect over TLS."""
        return bool(self.tls_certificate_file and self.tls_key_file)


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication of clients, and what a request may choose inline."""

    require_key: Annotated[
        bool | None,
        Meta(
            description="require a gateway key even while none is configured; default: yes, but no on loopback without a store"
        ),
    ] = None
    block_inline_config: Annotated[
        bool,
        Meta(
            description="reject configs, providers and hosts that a request chooses inline",
            extra={"env": "BLOCK_INLINE_CONFIG"},
        ),
    ] = False
    header_aliases: Annotated[
        tuple[str, ...],
        Meta(
            description="other prefixes that are accepted and returned in place of `x-gateway-`, for clients made for other gateways",
            extra={"env": "GATEWAY_HEADER_ALIASES"},
        ),
    ] = ("x-portkey-",)
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="addresses and networks (`10.0.0.0/8`) of proxies in front of the gateway: "
            "their `x-forwarded-for` header is trusted"
        ),
    ] = ()
