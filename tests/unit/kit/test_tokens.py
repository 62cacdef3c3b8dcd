"""Tokens of several identity providers: which issuer signed them, and which organisations each issuer may name."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from penstock.errors import PenstockError
from penstock.kit.tokens import TokenVerifier
from penstock.settings import Issuer, Jwt, Settings

# Both use the same key ID.
SIGNING_KEYS = {name: ECKey.generate_key("P-256", {"kid": "k", "use": "sig"}) for name in ("one", "other")}


def make_jwks(name: str) -> str:
    return json.dumps({"keys": [SIGNING_KEYS[name].as_dict(private=False)]})


ISSUERS = (
    Issuer(issuer="one", jwks=make_jwks("one"), organisations=("o",)),
    Issuer(issuer="other", audience="us", jwks=make_jwks("other"), organisations=("p",)),
)


def make_verifier(*issuers: Issuer) -> TokenVerifier:
    return TokenVerifier(Settings(jwt=Jwt(enabled=True, algorithms=("ES256",)), issuers=issuers))


def sign_token(name: str, **claims: Any) -> str:
    said = {"organisation_id": "o", "sub": "somebody", "exp": time.time() + 60, "scope": "configs.list", **claims}
    head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
    return jws.serialize_compact(head, json.dumps(said), SIGNING_KEYS[name], algorithms=["ES256"])


def verify_token(known: TokenVerifier, text: str) -> int | str:
    try:
        return asyncio.run(known.verify(text)).organisation_id
    except PenstockError as error:
        return error.status


@pytest.mark.parametrize(
    ("name", "claims", "expected"),
    [
        ("one", {"iss": "one"}, "o"),
        ("one", {}, 401),
        ("one", {"iss": "other", "aud": "us"}, 401),
        ("one", {"iss": ["one"]}, 401),
        ("one", {"iss": "one", "organisation_id": "p"}, 403),
        ("other", {"iss": "other", "aud": "us", "organisation_id": "p"}, "p"),
        ("other", {"iss": "other", "aud": ["they", "us"], "organisation_id": "p"}, "p"),
        ("other", {"iss": "other", "aud": "they", "organisation_id": "p"}, 401),
        ("other", {"iss": "other", "organisation_id": "p"}, 401),
        ("other", {"iss": "other", "aud": "us"}, 403),
        ("other", {"iss": "one", "aud": "us"}, 401),
        ("one", {"iss": "one", "defaults": {"config_id": "pc-1", "metadata": {"a": 1}}}, "o"),
        ("one", {"iss": "one", "defaults": None}, "o"),
        ("one", {"iss": "one", "defaults": "pc-1"}, 401),
        ("one", {"iss": "one", "defaults": []}, 401),
        ("one", {"iss": "one", "defaults": {"config_id": 5}}, 401),
        ("one", {"iss": "one", "rate_limits": [{"type": "requests", "unit": "rpm", "value": 5}]}, "o"),
        ("one", {"iss": "one", "rate_limits": [{"type": "requests", "unit": "rpy", "value": 5}]}, 401),
        ("one", {"iss": "one", "rate_limits": {"type": "requests", "unit": "rpm", "value": 5}}, 401),
        ("one", {"iss": "one", "usage_limits": [{"credit_limit": 5, "periodic_reset": "weekly"}]}, "o"),
        ("one", {"iss": "one", "usage_limits": [{"credit_limit": 5, "alert_threshold": 6}]}, 401),
        ("one", {"iss": "one", "usage_limits": "much"}, 401),
        ("one", {"iss": "one", "usage_limits": None, "rate_limits": []}, "o"),
    ],
)
def test_issuer_signs_only_for_itself_and_its_organisations(name: str, claims: dict[str, Any], expected: int | str):
    assert verify_token(make_verifier(*ISSUERS), sign_token(name, **claims)) == expected


def test_unnamed_issuers_are_distinguished_by_signature():
    known = make_verifier(Issuer(jwks=make_jwks("one")), Issuer(jwks=make_jwks("other")))
    assert [verify_token(known, sign_token(name)) for name in SIGNING_KEYS] == ["o", "o"]
    assert verify_token(make_verifier(Issuer(jwks=make_jwks("one"))), sign_token("other")) == 401


def test_unreachable_issuer_gives_503_instead_of_401():
    away = Issuer(issuer="one", jwks_url="http://127.0.0.1:1/jwks")
    assert verify_token(make_verifier(away), sign_token("one", iss="one")) == 503
    assert (
        verify_token(make_verifier(away, ISSUERS[1]), sign_token("other", iss="other", aud="us", organisation_id="p"))
        == "p"
    )
    # The claimed issuer is not configured, so the token is invalid whatever its signature is.
    assert verify_token(make_verifier(away), sign_token("one", iss="other")) == 401


def test_cached_keys_go_to_the_issuer_with_the_same_url():
    addresses = ("https://one.test/jwks", "https://other.test/jwks")
    one, other = (Issuer(jwks_url=url, issuer=url) for url in addresses)
    before = make_verifier(one, other)
    for source, name in zip(before.sources, SIGNING_KEYS, strict=True):
        source.load_keys(json.loads(make_jwks(name)))
    after = make_verifier(other, Issuer(jwks=make_jwks("one")), one)
    after.restore_keys(before.export_keys())
    kept = {source.own.jwks_url: [row["x"] for row in source.rows] for source in after.sources}
    assert kept[one.jwks_url] == [SIGNING_KEYS["one"].as_dict(private=False)["x"]] == kept[""]
    assert kept[other.jwks_url] == [SIGNING_KEYS["other"].as_dict(private=False)["x"]]


@pytest.mark.parametrize("said", [{}, {"keys": None}, {"keys": {}}, {"error": "busy"}])
def test_invalid_key_set_keeps_the_known_keys(said: dict[str, Any]):
    (source,) = make_verifier(Issuer(jwks=make_jwks("one"))).sources
    known = list(source.rows)
    with pytest.raises(ValueError, match="array"):
        source.load_keys(said)
    assert source.rows == known
