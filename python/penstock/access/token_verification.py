"""Verification of JSON web tokens from trusted identity providers. Checks the signature against published keys, then
the claims. The engine (`rust/core/src/auth/jwt`) must accept the same tokens: `tests/vectors/tokens.json`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from penstock.access.strict_json import parse_object
from penstock.authorization import ALL_SCOPES
from penstock.errors import ForbiddenError, InvalidError, UnauthorisedError, UnavailableError
from penstock.fetch import Fetcher, FetchRequest, fetch_errors
from penstock.limit_fields import KEY_RATE_UNITS, RateLimit, UsageLimits, check_rate_limits, check_usage_limit_list
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Settings
    from penstock.settings.jwt import Issuer, Jwt

log = logging.getLogger("penstock")

# Curves that the engine can use, by key type.
CURVES = {"EC": ("P-256", "P-384"), "OKP": ("Ed25519",)}
# Minimum and maximum size of RSA keys that the engine can use.
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
MAX_TOKEN_LENGTH, MAX_KEY_SET_BYTES, MAX_KEYS = 16_384, 1_000_000, 100
FETCH_TIMEOUT_SECONDS = 5.0
# Unix time in seconds, in the year 5138. Later expiry times are reduced to it: such a token practically never expires.
MAX_EXPIRY_SECONDS = 10**11
# Exclusive upper bound of times. This module and the engine reject later times instead of rounding them.
END_OF_TIME_SECONDS = 2**64
# Minimum interval between key fetches that are triggered by tokens with an unknown key id.
MIN_REFRESH_INTERVAL_SECONDS = 10.0


class RequestDefaults(msgspec.Struct, frozen=True):
    """Request defaults in a token. The data plane applies them unless the request overrides them."""

    config_id: str | None = None
    metadata: dict[str, Any] | None = None
    allow_config_override: bool | None = None


# Types of the optional claims, by name.
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
    # Default config of requests with this token.
    config_id: str | None
    # True if a request with this token may use another config.
    may_leave_config: bool
    # Metadata of all requests with this token.
    metadata: dict[str, Any] = {}
    # True if the token has usage limits.
    has_budget: bool = False


class SignedToken(msgspec.Struct, frozen=True):
    """Parts of a token whose signature is not verified yet."""

    algorithm: str
    key_id: str
    claims: dict[str, Any]
    signed_text: bytes
    signature: bytes

    @classmethod
    def parse(cls, text: str) -> SignedToken:
        """Parses a token. Raises ValueError if a part is malformed, or if the header lacks `alg`, `kid` or `typ`. Also
        rejects `crit`, because no extension is supported (RFC 7515 section 4.1.11).
        """
        signed_text, _, signature = text.encode("ascii").rpartition(b".")
        head, _, claims = signed_text.partition(b".")
        header = parse_object(urlsafe_b64decode(head))
        algorithm, key_id, _ = (_non_empty_text(header.get(name)) for name in ("alg", "kid", "typ"))
        if "crit" in header:
            message = "crit is not supported"
            raise ValueError(message)
        content = parse_object(urlsafe_b64decode(claims))
        return cls(algorithm, key_id, content, signed_text, urlsafe_b64decode(signature))


class IssuerKeys:
    """Public keys of one trusted identity provider, and the issuer and audience that its tokens must have."""

    def __init__(self, issuer: Issuer, fetcher: Fetcher) -> None:
        """Loads the keys that are in the settings."""
        self.own = issuer
        self.rows: list[dict[str, str]] = []
        self._fetcher = fetcher
        self._keys: list[RSAKey | ECKey | OKPKey] = []
        self._fetched_at = float("-inf")
        if issuer.jwks:
            self.load_keys(json.loads(issuer.jwks))

    def load_keys(self, document: Mapping[str, Any]) -> bool:
        """Loads the usable keys of a JWKS document. Returns true if they changed."""
        keys = msgspec.convert(document.get("keys"), list[Any])
        rows = [row for row in map(_parse_public_key, keys[:MAX_KEYS]) if row]
        changed = rows != self.rows
        self.rows, self._keys = rows, [_import_key(row) for row in rows]
        return changed

    async def refresh(self) -> bool:
        """Fetches the JWKS document from its URL. Returns true if the keys changed; raises an HTTP error or ValueError
        on failure.
        """
        self._fetched_at = time.monotonic()
        request = FetchRequest(url=self.own.jwks_url, max_bytes=MAX_KEY_SET_BYTES, seconds=FETCH_TIMEOUT_SECONDS)
        response = await self._fetcher.send(request)
        if response.status != HTTPStatus.OK:
            message = f"the status is {response.status}"
            raise ValueError(message)
        return self.load_keys(msgspec.json.decode(response.content, type=dict[str, Any]))

    async def ensure_key(self, kid: str) -> bool:
        """Returns true if a key with this id is loaded. Fetches the keys again first if it is not, unless the last
        fetch was too recent.
        """
        if (
            self.own.jwks_url
            and not self._has_key(kid)
            and time.monotonic() - self._fetched_at >= MIN_REFRESH_INTERVAL_SECONDS
        ):
            try:
                await self.refresh()
            except fetch_errors() as error:
                log.warning("cannot fetch the keys that verify tokens: %s", type(error).__name__)
        return self._has_key(kid)

    def _has_key(self, kid: str) -> bool:
        return any(row["kid"] == kid for row in self.rows)

    def matches_claims(self, claims: Mapping[str, Any]) -> bool:
        """Returns true if the unverified claims name this issuer and audience."""
        audience = claims.get("aud")
        listed = cast("list[object]", audience if isinstance(audience, list) else [audience])
        return (not self.own.issuer or claims.get("iss") == self.own.issuer) and (
            not self.own.audience or self.own.audience in listed
        )

    def has_signed(self, token: SignedToken) -> bool:
        """Returns true if one of the keys with the token's key id verifies its signature."""
        keys = (key for row, key in zip(self.rows, self._keys, strict=True) if row["kid"] == token.key_id)
        return any(_is_signed_with(key, token) for key in keys)


class TokenVerifier:
    """Verifies tokens with the keys of all trusted issuers."""

    def __init__(self, settings: Settings) -> None:
        """Loads the keys that are in the settings."""
        self._own: Jwt = settings.jwt
        # Allows private addresses: the operator chose these URLs, and an identity provider is often in the private
        # network.
        fetcher = Fetcher(settings, is_operators=True)
        self.sources = [IssuerKeys(issuer, fetcher) for issuer in settings.trusted_issuers]

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
        urls = [item["url"] for item in before.get("issuers", ())]
        for source in (source for source in self.sources if source.own.jwks_url and source.own.jwks_url in urls):
            index = urls.index(source.own.jwks_url)
            source.load_keys({"keys": [row for row in before["keys"] if row.get("issuer") == index]})

    async def verify(self, text: str) -> Claims:
        """Verifies a token and returns its claims. Raises UnauthorisedError, ForbiddenError or UnavailableError."""
        if len(text) > MAX_TOKEN_LENGTH:
            raise UnauthorisedError("this token is too long")
        if not any(source.rows or source.own.jwks_url for source in self.sources):
            raise ForbiddenError("there are no keys to verify tokens with")
        try:
            token = SignedToken.parse(text)
        except ValueError:
            raise UnauthorisedError("this token is not valid") from None
        candidates = [source for source in self.sources if source.matches_claims(token.claims)]
        keys_found = await asyncio.gather(*(source.ensure_key(token.key_id) for source in candidates))
        for source in itertools.compress(candidates, keys_found):
            if token.algorithm in self._own.algorithms and source.has_signed(token):
                return self._check_claims(source.own, token.claims)
        if any(source.own.jwks_url and not source.rows for source in candidates):
            # The token may be valid, but without the issuer's keys it cannot be verified.
            raise UnavailableError("tokens of this issuer cannot be checked now: its keys could not be read yet")
        raise UnauthorisedError("this token is not valid")

    def _check_claims(self, issuer: Issuer, claims: Mapping[str, Any]) -> Claims:
        moment, leeway = now() / 1000, self._own.leeway_seconds
        end, begin = _read_seconds("exp", claims.get("exp")), _read_seconds("nbf", claims.get("nbf", 0))
        if end + leeway <= moment:
            raise UnauthorisedError("this token has expired")
        if begin - leeway > moment:
            raise UnauthorisedError("this token is not valid yet")
        organisation = claims.get("organisation_id")
        if not isinstance(organisation, str) or not organisation:
            raise UnauthorisedError("this token names no organisation: it needs the claim organisation_id")
        if any(allowed and organisation not in allowed for allowed in (self._own.organisations, issuer.organisations)):
            raise ForbiddenError("tokens of this organisation are not accepted here")
        # Uses the first of these claims that is not empty. It must be a string.
        identities = (claims.get(name) for name in ("email_id", "sub", "uid"))
        user = next((value for value in identities if value is not None and value != ""), None)
        if not isinstance(user, str):
            raise UnauthorisedError("this token names no user: it needs the claim email_id, sub or uid")
        if "\0" in organisation + user:
            raise UnauthorisedError("the claims of this token must not contain the character U+0000")
        defaults = _read_defaults(claims)
        slug = claims.get("workspace_slug")
        may_leave = defaults.allow_config_override is not False
        binds = bool(defaults.config_id) and not may_leave
        return Claims(
            organisation_id=organisation,
            user=user,
            workspace_slug=slug if isinstance(slug, str) else None,
            scopes=self._read_scopes(claims),
            expires_at=min(end, MAX_EXPIRY_SECONDS) * 1000,
            is_bound=binds or any(claims.get(name) for name in ("usage_limits", "rate_limits")),
            config_id=defaults.config_id,
            may_leave_config=may_leave,
            metadata=defaults.metadata or {},
            has_budget=bool(claims.get("usage_limits")),
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


def _is_signed_with(key: RSAKey | ECKey | OKPKey, token: SignedToken) -> bool:
    algorithm = JWSRegistry.algorithms[token.algorithm]
    try:
        algorithm.check_key(key)
        return algorithm.verify(token.signed_text, token.signature, key)
    except (JoseError, ValueError, TypeError):
        return False


def _non_empty_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        message = "the header needs alg, kid and typ"
        raise ValueError(message)
    return value


def _read_seconds(name: str, value: object) -> int:
    """Returns Unix seconds without their fraction. Raises UnauthorisedError if the claim is no such time."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < END_OF_TIME_SECONDS:
        return int(value)
    raise UnauthorisedError(f"the claim {name} of this token is not valid: it must be Unix time in seconds")


def _parse_public_key(raw: object) -> dict[str, str] | None:
    """Parses one key of a JWKS. Returns `None` unless it is a public signature key that both verifiers can use."""
    if not isinstance(raw, dict):
        return None
    claims = cast("dict[str, object]", raw)
    if claims.get("use", "sig") != "sig" or not isinstance(claims.get("kid"), str):
        return None
    fields = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}.get(str(claims.get("kty")))
    if fields is None or not all(isinstance(claims.get(name), str) for name in fields):
        return None
    row = {name: str(claims[name]) for name in ("kty", "kid", *fields)}
    try:
        return row if _has_supported_size(row) and _import_key(row) else None
    except (JoseError, ValueError, TypeError):
        return None


def _has_supported_size(row: Mapping[str, str]) -> bool:
    if row["kty"] != "RSA":
        return row["crv"] in CURVES[row["kty"]]
    return MIN_RSA_BITS <= int.from_bytes(urlsafe_b64decode(row["n"].encode())).bit_length() <= MAX_RSA_BITS


def _import_key(row: dict[str, str]) -> RSAKey | ECKey | OKPKey:
    kinds: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    return kinds[row["kty"]].import_key(cast("Any", row))
