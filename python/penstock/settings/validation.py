"""Validation of settings. Finds values that are not allowed, alone or in combination."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import Problem
from penstock.extras import find_missing_extra
from penstock.settings import jwt
from penstock.settings.buckets import validate_bucket
from penstock.settings.log_store import validate_log_store
from penstock.settings.monitoring import validate_metrics
from penstock.settings.otel import validate_otel
from penstock.settings.server_tls import validate_server_tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.settings import Settings
    from penstock.settings.redis import Redis
    from penstock.settings.secret import Secret
    from penstock.settings.store import Store

REDIS_SCHEMES = ("redis://", "rediss://", "redis+unix://", "unix://")
BUCKET_SCHEME = "s3://"
HEADER_PREFIX_PATTERN = re.compile(r"x-[a-z0-9-]+-", re.IGNORECASE)
# Segments of letters, digits and a few signs. The first one is none of the gateway's own paths, because a request
# without the base path would lose it.
BASE_PATH_PATTERN = re.compile(
    r"(?!/(?:v\d+(?:alpha|beta)?\d*|console|guardrail|health|internal|live|metrics|model|openai|ready|schema|upload)(?:/|$))"
    r"(?:/(?!\.+(?:/|$))[A-Za-z0-9._~-]+)+"
)


def validate_settings(settings: Settings) -> Iterator[Problem]:
    """Yields every validation error."""
    try:
        ipaddress.ip_address(settings.bind_address)
    except ValueError:
        yield Problem("server.host", f"{settings.server.host!r} is not allowed: expected an IP address or `localhost`")
    if settings.mock.host and not settings.mock.host.startswith(("http://", "https://")):
        yield Problem("mock.host", f"{settings.mock.host!r} is not allowed: expected a URL with http:// or https://")
    for prefix in settings.security.header_aliases:
        if not HEADER_PREFIX_PATTERN.fullmatch(prefix):
            yield Problem(
                "security.header_aliases", f"{prefix!r} is not allowed: expected a prefix such as `x-portkey-`"
            )
    yield from _validate_base_path(settings.server.base_path)
    for network in settings.security.trusted_proxies:
        if not _is_ip_network(network):
            message = f"{network!r} is not allowed: expected an address or a network such as `10.0.0.0/8`"
            yield Problem("security.trusted_proxies", message)
    for name, proxy in (("https_proxy", settings.upstream.https_proxy), ("http_proxy", settings.upstream.http_proxy)):
        if proxy and not _is_proxy_url(proxy):
            # The value is not repeated, because it may contain a password.
            yield Problem(f"upstream.{name}", "is not allowed: expected an address such as `http://proxy.example:3128`")
    yield from _validate_store(settings.store)
    yield from _validate_redis(settings.redis)
    yield from validate_log_store(settings.log_store)
    yield from validate_bucket("files", "store", settings.files.store, settings.files)
    yield from validate_otel(settings.otel)
    yield from validate_metrics(settings)
    yield from jwt.validate_jwt(settings.jwt, settings.issuers)
    yield from _find_missing_extras(settings)
    yield from validate_server_tls(settings.server)
    if settings.upstream.tls_ca and not os.path.isfile(settings.upstream.tls_ca):
        yield Problem("upstream.tls_ca", f"there is no file {settings.upstream.tls_ca!r}")


def _find_missing_extras(settings: Settings) -> Iterator[Problem]:
    """Yields the settings that need a client library which is not installed."""
    database = settings.store.url.reveal() if settings.store.url else ""
    needed = {
        "store.url": ("postgres", settings.store.enabled and database.startswith("postgres")),
        "redis.url": ("redis", settings.redis.url is not None),
        "log_store.bodies": ("aws", settings.log_store.bodies.startswith(BUCKET_SCHEME)),
        "files.store": ("aws", settings.files.store.startswith(BUCKET_SCHEME)),
    }
    for path, (extra, is_needed) in needed.items():
        if is_needed and (subject := find_missing_extra(extra)):
            yield Problem(path, subject)


def _validate_base_path(base_path: str) -> Iterator[Problem]:
    if base_path and not BASE_PATH_PATTERN.fullmatch(base_path):
        message = (
            f"{base_path!r} is not allowed: expected a path such as `/tools/gateway`, without a slash at its end, "
            "which does not begin like a path of the gateway itself"
        )
        yield Problem("server.base_path", message)


def _is_ip_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _validate_store(store: Store) -> Iterator[Problem]:
    if store.master_key_reference and (store.master_key or store.master_key_file):
        reason = "is not allowed together with store.master_key or store.master_key_file: set only one of them"
        yield Problem("store.master_key_reference", reason)


def _validate_redis(redis: Redis) -> Iterator[Problem]:
    if redis.url and not redis.url.reveal().startswith(REDIS_SCHEMES):
        # The value is not repeated, because it may contain a password.
        yield Problem("redis.url", "is not allowed: expected an address such as `redis://redis.example:6379`")


def _is_proxy_url(proxy: Secret) -> bool:
    text = proxy.reveal()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
