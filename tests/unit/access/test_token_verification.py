"""Tokens of several identity providers: which issuer signed them, and which organisations each issuer may name."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey

from penstock.access.token_verification import TokenVerifier
from penstock.errors import PenstockError
from penstock.settings import Issuer, Jwt, Settings

# Both use the same key ID.
SIGNING_KEYS = {name: ECKey.generate_key("P-256", {"kid": "k", "use": "sig"}) for name in ("one", "other")}


def make_jwks(name: str) -> str:
    return json.dumps({"keys": [SIGNING_KEYS[name].as_dict(private=False)]})


ISSUERS = (
    Issuer(issuer="one", jwks=make_jwks("one"), organisations=("o",)),
    Issuer(issuer="other", audience="us", jwks=make_jwks("other"), organisations=("p",)),
)


# `rust/core/src/auth/jwt` runs the same cases, so that both verifiers accept the same tokens.
SHARED = json.loads((Path(__file__).parents[2] / "vectors/tokens.json").read_text())


def make_verifier(*issuers: Issuer) -> TokenVerifier:
    return TokenVerifier(Settings(jwt=Jwt(enabled=True, algorithms=("ES256",)), issuers=issuers))


def sign_token(name: str, **claims: Any) -> str:
    claim_set = {"organisation_id": "o", "sub": "somebody", "exp": time.time() + 60, "scope": "configs.list", **claims}
    head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
    return jws.serialize_compact(head, json.dumps(claim_set), SIGNING_KEYS[name], algorithms=["ES256"])


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
    item, other = (Issuer(jwks_url=url, issuer=url) for url in addresses)
    before = make_verifier(item, other)
    for source, name in zip(before.sources, SIGNING_KEYS, strict=True):
        source.load_keys(json.loads(make_jwks(name)))
    after = make_verifier(other, Issuer(jwks=make_jwks("one")), item)
    after.restore_keys(before.export_keys())
    remaining = {source.own.jwks_url: [row["x"] for row in source.rows] for source in after.sources}
    assert remaining[item.jwks_url] == [SIGNING_KEYS["one"].as_dict(private=False)["x"]] == remaining[""]
    assert remaining[other.jwks_url] == [SIGNING_KEYS["other"].as_dict(private=False)["x"]]


def test_publishes_only_keys_that_the_engine_can_use():
    def rsa_key(bits: int) -> dict[str, str]:
        modulus = encode_base64url(((1 << bits - 1) | 1).to_bytes(bits // 8 + 1))
        return {"kty": "RSA", "kid": f"RSA {bits}", "n": modulus, "e": "AQAB"}

    keys: list[Any] = [
        *(ECKey.generate_key(curve, {"kid": curve}).as_dict(private=False) for curve in ("P-256", "P-384", "P-521")),
        *(
            OKPKey.generate_key(curve, {"kid": curve}).as_dict(private=False)
            for curve in ("Ed25519", "Ed448", "X25519")
        ),
        *map(rsa_key, (1024, 2040, 2048, 8192, 8200)),
        {**rsa_key(2048), "kid": "padded", "n": rsa_key(2048)["n"] + "="},
    ]
    (source,) = make_verifier(Issuer(jwks=json.dumps({"keys": keys}))).sources
    assert [row["kid"] for row in source.rows] == ["P-256", "P-384", "Ed25519", "RSA 2048", "RSA 8192"]


@pytest.mark.parametrize("content", [{}, {"keys": None}, {"keys": {}}, {"error": "busy"}])
def test_invalid_key_set_keeps_the_known_keys(content: dict[str, Any]):
    (source,) = make_verifier(Issuer(jwks=make_jwks("one"))).sources
    known = list(source.rows)
    with pytest.raises(ValueError, match="array"):
        source.load_keys(content)
    assert source.rows == known


def sign_case(case: dict[str, Any], key: OKPKey) -> str:
    def encode_part(name: str) -> str:
        nested = "[" * case.get("nested", 0) + "]" * case.get("nested", 0)
        text = case.get(name, SHARED[name]).replace("NESTED", nested).replace("FILLED", "x" * case.get("filled", 0))
        return case.get(f"{name}_base64", encode_base64url(text.encode()))

    message = f"{encode_part('header')}.{encode_part('claims')}"
    signature = encode_base64url(jws.JWSRegistry.algorithms["EdDSA"].sign(message.encode(), key))
    return f"{message}.{case.get('signature', signature)}{case.get('signature_suffix', '')}"


def encode_base64url(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.mark.parametrize("case", SHARED["cases"], ids=lambda case: case["name"])
def test_decides_shared_cases_like_the_engine(case: dict[str, Any]):
    key = OKPKey.generate_key("Ed25519", {"kid": "e"})
    jwks = json.dumps({"keys": [key.as_dict(private=False)]})
    jwt = Jwt(enabled=True, algorithms=("RS256", "ES256", "EdDSA"), jwks=jwks)
    assert verify_token(TokenVerifier(Settings(jwt=jwt)), sign_case(case, key)) == ("o" if case["accepted"] else 401)
