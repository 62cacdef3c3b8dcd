"""Verification of JSON web tokens from trusted identity providers. Checks the signature against published keys, then
the claims.
"""

from __future__ import annotations

import asyncio
import itertools
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

from penstock.authorization import ALL_SCOPES
from penstock.errors import ForbiddenError, InvalidError, UnauthorisedError, UnavailableError
from penstock.kit.limits import KEY_RATE_UNITS, RateLimit, UsageLimits, check_rate_limits, check_usage_limit_list
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.settings import Settings
    from penstock.settings.jwt import Issuer, Jwt

log = logging.getLogger("penstock")

MIN_RSA_BITS = 2048
LARGEST_TOKEN, LARGEST_SET, MOST_KEYS = 16_384, 1_000_000, 100
FETCH_TIMEOUT_SECONDS = 5.0
# Unix time in seconds, in the year 5138. Later expiry times are reduced to it, because they mean that the token never
# expires.
MAX_EXPIRY_SECONDS = 1e11
# Minimum interval between key fetches that are triggered by tokens with an unknown key id.
MIN_REFRESH_INTERVAL_SECONDS = 10.0


class RequestDefaults(msgspec.Struct, frozen=True):
    """Request defaults in a token. The data plane applies them unless the request overrides them."""

    config_id: str | None = None
    metadata: dict[str, Any] | None = None
    allow_config_override: bool | None = None


# Types of the optional claims.
CLAIM_TYPES: dict[str, Any] = {
    "defaults": RequestDefaults | None,
    "usage_limits": list[UsageLimits] | None,
    "rate_limits": list[RateLimit] | None,
}


class Claims(msgspec.Struct, frozen=True):
    """Verified claims of a token."""

    organisation_id: str
    user: str
    workspace_slug: str | None
    scopes: frozenset[str]
    # Unix time in milliseconds, without the leeway for clock skew.
    expires_at: int
    # True if the token has limits, or a config that requests may not override.
    is_bound: bool
    # Default config of requests with this token, and whether a request may use another one.
    config_id: str | None
    may_leave_config: bool


class IssuerKeys:
    """Public keys of one trusted identity provider, and the issuer and audience that its tokens must have."""

    def __init__(self, issuer: Issuer, tls_ca: str) -> None:
        """Loads the keys that are in the settings."""
        self.own = issuer
        self.rows: list[dict[str, str]] = []
        self._tls_ca = tls_ca
        self._keys = KeySet([])
        self._asked = float("-inf")
        if issuer.jwks:
            self.load_keys(json.loads(issuer.jwks))

    def load_keys(self, document: Mapping[str, Any]) -> bool:
        """Loads the usable keys of a JWKS document. Returns true if they changed."""
        keys = msgspec.convert(document.get("keys"), list[Any])
        rows = [row for row in map(_parse_public_key, keys[:MOST_KEYS]) if row]
        changed = rows != self.rows
        self.rows, self._keys = rows, KeySet([_import_key(row) for row in rows])
        return changed

    async def refresh(self) -> bool:
        """Fetches the JWKS document from its URL. Returns true if the keys changed; raises an HTTP error or ValueError
        on failure.
        """
        self._asked = time.monotonic()
        verify = self._tls_ca or True
        async with (
            httpx2.AsyncClient(timeout=FETCH_TIMEOUT_SECONDS, verify=verify) as client,
            client.stream("GET", self.own.jwks_url) as response,
        ):
            response.raise_for_status()
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > LARGEST_SET:
                    message = "the set of keys is too large"
                    raise ValueError(message)
        return self.load_keys(msgspec.json.decode(bytes(content), type=dict[str, Any]))

    async def ensure_key(self, kid: object) -> bool:
        """Returns true if a key id is known. Fetches the keys first if it is not."""
        if (
            self.own.jwks_url
            and not self._has_key(kid)
            and time.monotonic() - self._asked >= MIN_REFRESH_INTERVAL_SECONDS
        ):
            try:
                await self.refresh()
            except (httpx2.HTTPError, ValueError) as error:
                log.warning("cannot fetch the keys that verify tokens: %s", type(error).__name__)
        return self._has_key(kid)

    def _has_key(self, kid: object) -> bool:
        return any(row["kid"] == kid for row in self.rows)

    def matches_claims(self, claims: Mapping[str, Any]) -> bool:
        """Returns true if the unverified claims name this issuer and audience."""
        audience = claims.get("aud")
        listed = cast("list[object]", audience if isinstance(audience, list) else [audience])
        return (not self.own.issuer or claims.get("iss") == self.own.issuer) and (
            not self.own.audience or self.own.audience in listed
        )

    def decode_token(self, text: str, algorithms: Sequence[str]) -> jwt.Token | None:
        """Returns the decoded token; `None` if none of the keys verifies its signature."""
        try:
            return jwt.decode(text, self._keys, algorithms=list(algorithms))
        except (JoseError, ValueError, TypeError, KeyError):
            return None


class TokenVerifier:
    """Verifies tokens with the keys of all trusted issuers."""

    def __init__(self, settings: Settings) -> None:
        """Loads the keys that are in the settings."""
        self._own: Jwt = settings.jwt
        self.sources = [IssuerKeys(issuer, settings.upstream.tls_ca) for issuer in settings.trusted_issuers]

    def is_jwt(self, text: str) -> bool:
        """Returns true if a credential has the form of a JWT; other credentials are API keys."""
        return text.startswith("eyJ") and text.count(".") == 2  # noqa: PLR2004 - head, claims, signature

    def export_keys(self) -> bytes:
        """Returns the keys and rules with which the engine verifies tokens, as JSON."""
        content = {
            "keys": [{**row, "issuer": index} for index, source in enumerate(self.sources) for row in source.rows],
            "issuers": [
                {
                    "url": source.own.jwks_url,
                    "issuer": source.own.issuer,
                    "audience": source.own.audience,
                    "organisations": source.own.organisations,
                }
                for source in self.sources
            ],
            "algorithms": self._own.algorithms,
            "organisations": self._own.organisations,
            "default_scopes": self._own.default_scopes,
            "leeway_seconds": self._own.leeway_seconds,
        }
        return msgspec.json.encode(content)

    def restore_keys(self, published: bytes) -> None:
        """Restores fetched keys from an earlier export, for use until new ones can be fetched."""
        if not published:
            return
        before = msgspec.json.decode(published, type=dict[str, Any])
        # Matches issuers by URL, because their order in the settings may have changed since the export.
        urls = [one["url"] for one in before.get("issuers", ())]
        for source in (source for source in self.sources if source.own.jwks_url and source.own.jwks_url in urls):
            index = urls.index(source.own.jwks_url)
            source.load_keys({"keys": [row for row in before["keys"] if row.get("issuer") == index]})

    async def verify(self, text: str) -> Claims:
        """Verifies a token and returns its claims. Raises UnauthorisedError, ForbiddenError or UnavailableError."""
        if len(text) > LARGEST_TOKEN:
            raise UnauthorisedError("this token is too long")
        if not any(source.rows or source.own.jwks_url for source in self.sources):
            raise ForbiddenError("there are no keys to verify tokens with")
        head, claims = (_decode_part(text, number) for number in (0, 1))
        candidates = [source for source in self.sources if source.matches_claims(claims)]
        keys_found = await asyncio.gather(*(source.ensure_key(head.get("kid")) for source in candidates))
        for source in itertools.compress(candidates, keys_found):
            if token := source.decode_token(text, self._own.algorithms):
                return self._check_claims(source.own, token.header, token.claims)
        if any(source.own.jwks_url and not source.rows for source in candidates):
            # The token may be valid, but without the issuer's keys it cannot be verified.
            raise UnavailableError("tokens of this issuer cannot be checked now: its keys could not be read yet")
        raise UnauthorisedError("this token is not valid")

    def _check_claims(self, issuer: Issuer, header: Mapping[str, Any], claims: Mapping[str, Any]) -> Claims:
        if not header.get("kid") or not header.get("typ"):
            raise UnauthorisedError("this token is not valid: its header needs kid and typ")
        moment, leeway = now() / 1000, self._own.leeway_seconds
        end, begin = _number_or_none(claims.get("exp")), _number_or_none(claims.get("nbf", 0))
        if end is None or end + leeway <= moment:
            raise UnauthorisedError("this token has expired")
        if begin is None or begin - leeway > moment:
            raise UnauthorisedError("this token is not valid yet")
        organisation = claims.get("organisation_id")
        if not isinstance(organisation, str):
            raise UnauthorisedError("this token names no organisation: it needs the claim organisation_id")
        if any(allowed and organisation not in allowed for allowed in (self._own.organisations, issuer.organisations)):
            raise ForbiddenError("tokens of this organisation are not accepted here")
        user = claims.get("email_id") or claims.get("sub") or claims.get("uid")
        if not isinstance(user, str):
            raise UnauthorisedError("this token names no user: it needs the claim email_id, sub or uid")
        defaults = _read_defaults(claims)
        slug = claims.get("workspace_slug")
        may_leave = defaults.allow_config_override is not False
        binds = bool(defaults.config_id) and not may_leave
        return Claims(
            organisation_id=organisation,
            user=user,
            workspace_slug=slug if isinstance(slug, str) else None,
            scopes=self._read_scopes(claims),
            expires_at=int(min(end, MAX_EXPIRY_SECONDS) * 1000),
            is_bound=binds or any(claims.get(name) for name in ("usage_limits", "rate_limits")),
            config_id=defaults.config_id,
            may_leave_config=may_leave,
        )

    def _read_scopes(self, claims: Mapping[str, Any]) -> frozenset[str]:
        raw_scopes: Any = claims.get("scopes", claims.get("scope", self._own.default_scopes))
        raw_scopes = raw_scopes.split() if isinstance(raw_scopes, str) else raw_scopes
        listed = cast("list[object]", raw_scopes if isinstance(raw_scopes, list | tuple) else [])
        return frozenset(stripped for scope in listed if (stripped := strip_scope_prefix(str(scope))))


def strip_scope_prefix(scope: str) -> str | None:
    """Removes a vendor prefix from a scope. Returns `None` for an unknown scope."""
    if scope in ALL_SCOPES:
        return scope
    rest = scope.partition(".")[2]
    return rest if rest in ALL_SCOPES else None


def _read_defaults(claims: Mapping[str, Any]) -> RequestDefaults:
    """Returns the request defaults of a token. Also validates its limits, which apply to model requests and not to
    management requests.
    """
    defaults = RequestDefaults()
    for name, form in CLAIM_TYPES.items():
        try:
            value = msgspec.convert(claims.get(name), form)
            if name == "usage_limits":
                check_usage_limit_list(name, value)
            elif name == "rate_limits":
                check_rate_limits(name, value, units=KEY_RATE_UNITS)
            else:
                defaults = value or defaults
        except (msgspec.ValidationError, InvalidError) as error:
            raise UnauthorisedError(f"the claim {name} of this token is not valid: {error}") from None
    return defaults


def _decode_part(text: str, number: int) -> dict[str, Any]:
    """Decodes the header or the claims of a token that is not verified yet. Returns an empty object if it is malformed."""
    part = text.split(".")[number]
    try:
        return msgspec.json.decode(urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=dict[str, Any])
    except (ValueError, msgspec.DecodeError):
        return {}


def _number_or_none(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _parse_public_key(raw: object) -> dict[str, str] | None:
    """Parses one key of a JWKS. Returns `None` unless it is a public signature key of sufficient strength."""
    if not isinstance(raw, dict):
        return None
    given = cast("dict[str, object]", raw)
    if given.get("use", "sig") != "sig" or not isinstance(given.get("kid"), str):
        return None
    fields = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}.get(str(given.get("kty")))
    if fields is None or not all(isinstance(given.get(name), str) for name in fields):
        return None
    row = {name: str(given[name]) for name in ("kty", "kid", *fields)}
    if row["kty"] == "RSA" and len(row["n"]) * 6 < MIN_RSA_BITS:
        return None
    try:
        _import_key(row)
    except (JoseError, ValueError, TypeError):
        return None
    return row


def _import_key(row: dict[str, str]) -> RSAKey | ECKey | OKPKey:
    kinds: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    return kinds[row["kty"]].import_key(cast("Any", row))
