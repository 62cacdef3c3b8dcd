"""Identity providers whose tokens are accepted: the settings section `[jwt]` and the tables `[[issuers]]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from penstock.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Maximum number of issuers. It is limited because a token with an unknown key makes the gateway fetch the keys of all
# issuers.
MAX_ISSUERS = 32


class Jwt(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for callers that send a token of the organisation's identity provider instead of an API key."""

    enabled: Annotated[
        bool,
        Meta(description="accept tokens; they are verified with `jwks_url` or `jwks`", extra={"env": "JWT_ENABLED"}),
    ] = False
    jwks_url: Annotated[
        str, Meta(description="URL at which the identity provider publishes its keys; it is fetched regularly")
    ] = ""
    jwks: Annotated[str, Meta(description="the keys as JSON, instead of `jwks_url`")] = ""
    algorithms: Annotated[
        tuple[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"], ...],
        Meta(description="signature algorithms that are accepted; shared secrets never are"),
    ] = ("RS256",)
    organisations: Annotated[
        tuple[str, ...],
        Meta(
            description="organisations whose tokens are accepted; default: all", extra={"env": "ORGANISATIONS_TO_SYNC"}
        ),
    ] = ()
    default_scopes: Annotated[
        tuple[str, ...],
        Meta(description="scopes of a token without scopes", extra={"env": "JWT_LOCAL_AUTH_DEFAULT_SCOPES"}),
    ] = ()
    leeway_seconds: Annotated[int, Meta(ge=0, le=600, description="clock difference that is tolerated")] = 60
    refresh_seconds: Annotated[
        int,
        Meta(
            ge=1, le=86_400, description="how often `jwks_url` is fetched; a new key is accepted from the next fetch on"
        ),
    ] = 60


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[issuers]]` table: an identity provider and the organisations it may issue tokens for."""

    # Required value of the claim `iss`; not checked if empty.
    issuer: str = ""
    # Required value of the claim `aud`; not checked if empty.
    audience: str = ""
    jwks_url: str = ""
    jwks: str = ""
    organisations: tuple[str, ...] = ()


def parse_issuers(tables: object, problems: list[Problem]) -> tuple[Issuer, ...]:
    """Parses the tables and appends validation errors to `problems`."""
    issuers: list[Issuer] = []
    for index, table in enumerate(cast("list[object]", tables) if isinstance(tables, list) else [tables]):
        try:
            issuers.append(msgspec.convert(table, Issuer))
        except msgspec.ValidationError as error:
            message, _, location = str(error).partition(" - at `$")
            problems.append(Problem(f"issuers[{index}]{location.rstrip('`')}", message[:1].lower() + message[1:]))
    return tuple(issuers)


def trusted_issuers(jwt: Jwt, others: Sequence[Issuer]) -> tuple[Issuer, ...]:
    """Returns all issuers whose tokens are accepted: the one of `[jwt]`, if set, then the others."""
    main_issuer = Issuer(jwks_url=jwt.jwks_url, jwks=jwt.jwks)
    return (main_issuer, *others) if main_issuer.jwks_url or main_issuer.jwks else tuple(others)


def validate_jwt(jwt: Jwt, others: Sequence[Issuer]) -> Iterator[Problem]:
    """Yields every validation error of `[jwt]` and `[[issuers]]`."""
    all_of_them = trusted_issuers(jwt, others)
    if jwt.enabled and not all_of_them:
        yield Problem("jwt", "needs jwks_url or jwks, or [[issuers]]")
    if others and not jwt.enabled:
        yield Problem("issuers", "have no effect, because tokens are not accepted; hint: jwt.enabled")
    if len(all_of_them) > MAX_ISSUERS:
        yield Problem("issuers", f"are {len(all_of_them)}: at most {MAX_ISSUERS} are allowed")
    if jwt.enabled and not jwt.algorithms:
        yield Problem("jwt.algorithms", "must not be empty")
    if jwt.jwks_url or jwt.jwks:
        yield from _validate_key_source("jwt", jwt)
    for index, issuer in enumerate(others):
        yield from _validate_key_source(f"issuers[{index}]", issuer)
    urls = [issuer.jwks_url for issuer in all_of_them if issuer.jwks_url]
    for url in sorted({url for url in urls if urls.count(url) > 1}):
        yield Problem("issuers", f"{url!r} is used twice; each issuer needs its own jwks_url")


def _validate_key_source(path: str, source: Jwt | Issuer) -> Iterator[Problem]:
    if bool(source.jwks_url) == bool(source.jwks):
        yield Problem(path, "needs either jwks_url or jwks")
    if source.jwks_url and not source.jwks_url.startswith(("http://", "https://")):
        message = f"{source.jwks_url!r} is not allowed: expected a URL with http:// or https://"
        yield Problem(f"{path}.jwks_url", message)
    if source.jwks:
        try:
            listed = msgspec.json.decode(source.jwks, type=dict[Literal["keys"], list[dict[str, Any]]])
        except msgspec.DecodeError as error:
            yield Problem(f"{path}.jwks", f"is not a set of keys: {error}")
        else:
            if not listed:
                yield Problem(f"{path}.jwks", "is not a set of keys: `keys` is missing")
