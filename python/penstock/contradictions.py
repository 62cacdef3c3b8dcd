"""Settings that cannot be, or not together."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from penstock.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.secret import Secret
    from penstock.settings import Jwt, Settings

REDIS_SCHEMES = ("redis://", "rediss://", "redis+unix://", "unix://")
ALIAS = re.compile(r"x-[a-z0-9-]+-", re.IGNORECASE)


def contradictions(settings: Settings) -> Iterator[Problem]:
    """Tell every one."""
    try:
        ipaddress.ip_address(settings.address)
    except ValueError:
        yield Problem("server.host", f"{settings.server.host!r} is not allowed: expected an IP address or `localhost`")
    if settings.mock.host and not settings.mock.host.startswith(("http://", "https://")):
        yield Problem("mock.host", f"{settings.mock.host!r} is not allowed: expected a URL with http:// or https://")
    for prefix in settings.security.header_aliases:
        if not ALIAS.fullmatch(prefix):
            yield Problem(
                "security.header_aliases", f"{prefix!r} is not allowed: expected a prefix such as `x-portkey-`"
            )
    for name, proxy in (("https_proxy", settings.upstream.https_proxy), ("http_proxy", settings.upstream.http_proxy)):
        if proxy and not _is_proxy(proxy):
            # Not repeated: it may hold a password.
            yield Problem(f"upstream.{name}", "is not allowed: expected an address such as `http://proxy.example:3128`")
    if settings.redis.url and not settings.redis.url.reveal().startswith(REDIS_SCHEMES):
        # Not repeated: it may hold a password.
        yield Problem("redis.url", "is not allowed: expected an address such as `redis://redis.example:6379`")
    yield from _jwt_problems(settings.jwt)
    if settings.upstream.tls_ca and not os.path.isfile(settings.upstream.tls_ca):
        yield Problem("upstream.tls_ca", f"there is no file {settings.upstream.tls_ca!r}")


def _jwt_problems(jwt: Jwt) -> Iterator[Problem]:
    if jwt.enabled and bool(jwt.jwks_url) == bool(jwt.jwks):
        yield Problem("jwt", "needs either jwks_url or jwks")
    if jwt.jwks_url and not jwt.jwks_url.startswith(("http://", "https://")):
        yield Problem("jwt.jwks_url", f"{jwt.jwks_url!r} is not allowed: expected a URL with http:// or https://")
    if jwt.enabled and not jwt.algorithms:
        yield Problem("jwt.algorithms", "must not be empty")
    if jwt.jwks:
        try:
            msgspec.json.decode(jwt.jwks, type=dict[Literal["keys"], list[dict[str, Any]]])
        except msgspec.DecodeError as error:
            yield Problem("jwt.jwks", f"is not a set of keys: {error}")


def _is_proxy(proxy: Secret) -> bool:
    text = proxy.reveal()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
