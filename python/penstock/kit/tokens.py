"""Tokens of the organisation's own identity provider: checked against its published keys, and read."""

from __future__ import annotations

import json
import logging
import time
from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING, Any, cast

import httpx2
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from penstock.caller import EVERYTHING
from penstock.errors import ForbiddenError, UnauthorisedError
from penstock.kit.record import now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Jwt, Settings

log = logging.getLogger("penstock")

SHORTEST_RSA = 2048
LARGEST_TOKEN, LARGEST_SET, MOST_KEYS = 16_384, 1_000_000, 100
PATIENCE = 5.0
# A token with a key that nobody knows has the keys looked at again, but not more often than this.
SOON = 10.0


class Claims(msgspec.Struct, frozen=True):
    """What a token says of its caller."""

    organisation_id: str
    user: str
    workspace_slug: str | None
    scopes: frozenset[str]


class Tokens:
    """Reads tokens; the keys are learned from the settings, or from where they are published."""

    def __init__(self, settings: Settings) -> None:
        """Learn the keys that are in the settings."""
        self._own: Jwt = settings.jwt
        self._tls_ca = settings.upstream.tls_ca
        self._keys = KeySet([])
        self._rows: list[dict[str, str]] = []
        self._asked = float("-inf")
        if self._own.jwks:
            self.learn(json.loads(self._own.jwks))

    def looks_like_one(self, text: str) -> bool:
        """Whether this is a token rather than a key."""
        return text.startswith("eyJ") and text.count(".") == 2  # noqa: PLR2004 - head, claims, signature

    def published(self) -> bytes:
        """Say what the engine must know to check tokens itself, as JSON."""
        content = {
            "keys": self._rows,
            "algorithms": self._own.algorithms,
            "organisations": self._own.organisations,
            "default_scopes": self._own.default_scopes,
            "leeway_seconds": self._own.leeway_seconds,
        }
        return msgspec.json.encode(content)

    def recall(self, published: bytes) -> None:
        """Begin with the keys that were known before, for as long as no others can be read."""
        if published and self._own.jwks_url:
            self.learn(msgspec.json.decode(published, type=dict[str, Any]))

    def learn(self, document: Mapping[str, Any]) -> bool:
        """Take the keys of a document that may be used, and say whether they changed."""
        rows = [row for row in map(_public, document.get("keys", [])[:MOST_KEYS]) if row]
        changed = rows != self._rows
        self._rows, self._keys = rows, KeySet([_key(row) for row in rows])
        return changed

    async def refresh(self) -> bool:
        """Look at where the keys are published, and say whether they changed."""
        self._asked = time.monotonic()
        verify = self._tls_ca or True
        async with (
            httpx2.AsyncClient(timeout=PATIENCE, verify=verify) as client,
            client.stream("GET", self._own.jwks_url) as answer,
        ):
            answer.raise_for_status()
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > LARGEST_SET:
                    message = "the set of keys is too large"
                    raise ValueError(message)
        return self.learn(msgspec.json.decode(bytes(content), type=dict[str, Any]))

    async def read(self, text: str) -> Claims:
        """Check a token, and give what it says."""
        if len(text) > LARGEST_TOKEN:
            raise UnauthorisedError("this token is too long")
        if not self._rows and not self._own.jwks_url:
            raise ForbiddenError("no keys are known to check tokens with")
        await self._meet(text)
        try:
            token = jwt.decode(text, self._keys, algorithms=list(self._own.algorithms))
        except (JoseError, ValueError, TypeError, KeyError):
            raise UnauthorisedError("this token is not valid") from None
        return self._claims(token.header, token.claims)

    async def _meet(self, text: str) -> None:
        """Look for a key that is new where keys are published."""
        kid = _kid(text)
        known = any(row["kid"] == kid for row in self._rows)
        if known or not self._own.jwks_url or time.monotonic() - self._asked < SOON:
            return
        try:
            await self.refresh()
        except (httpx2.HTTPError, ValueError) as error:
            log.warning("the keys for tokens cannot be read: %s", type(error).__name__)

    def _claims(self, header: Mapping[str, Any], claims: Mapping[str, Any]) -> Claims:
        if not header.get("kid") or not header.get("typ"):
            raise UnauthorisedError("this token is not valid: its header needs kid and typ")
        moment, leeway = now() / 1000, self._own.leeway_seconds
        end, begin = _seconds(claims.get("exp")), _seconds(claims.get("nbf", 0))
        if end is None or end + leeway <= moment:
            raise UnauthorisedError("this token has expired")
        if begin is None or begin - leeway > moment:
            raise UnauthorisedError("this token is not good yet")
        organisation = claims.get("organisation_id")
        if not isinstance(organisation, str):
            raise UnauthorisedError("this token names no organisation: claim organisation_id")
        if self._own.organisations and organisation not in self._own.organisations:
            raise ForbiddenError("tokens of this organisation are not taken here")
        user = claims.get("email_id") or claims.get("sub") or claims.get("uid")
        if not isinstance(user, str):
            raise UnauthorisedError("this token names nobody: claim email_id, sub or uid")
        slug = claims.get("workspace_slug")
        return Claims(organisation, user, slug if isinstance(slug, str) else None, self._scopes(claims))

    def _scopes(self, claims: Mapping[str, Any]) -> frozenset[str]:
        said: Any = claims.get("scopes", claims.get("scope", self._own.default_scopes))
        said = said.split() if isinstance(said, str) else said
        listed = cast("list[object]", said if isinstance(said, list | tuple) else [])
        return frozenset(known for scope in listed if (known := plain(str(scope))))


def plain(scope: str) -> str | None:
    """Take the prefix of a brand off a scope; one that does not exist is none."""
    if scope in EVERYTHING:
        return scope
    rest = scope.partition(".")[2]
    return rest if rest in EVERYTHING else None


def _kid(text: str) -> object:
    part = text.partition(".")[0]
    try:
        head = urlsafe_b64decode(part + "=" * (-len(part) % 4))
        return msgspec.json.decode(head, type=dict[str, Any]).get("kid")
    except (ValueError, msgspec.DecodeError):
        return None


def _seconds(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _public(raw: object) -> dict[str, str] | None:
    """Read one key of a set: only public ones for signatures that are strong enough."""
    if not isinstance(raw, dict):
        return None
    given = cast("dict[str, object]", raw)
    if given.get("use", "sig") != "sig" or not isinstance(given.get("kid"), str):
        return None
    fields = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}.get(str(given.get("kty")))
    if fields is None or not all(isinstance(given.get(name), str) for name in fields):
        return None
    row = {name: str(given[name]) for name in ("kty", "kid", *fields)}
    if row["kty"] == "RSA" and len(row["n"]) * 6 < SHORTEST_RSA:
        return None
    try:
        _key(row)
    except (JoseError, ValueError, TypeError):
        return None
    return row


def _key(row: dict[str, str]) -> RSAKey | ECKey | OKPKey:
    kinds: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    return kinds[row["kty"]].import_key(cast("Any", row))
