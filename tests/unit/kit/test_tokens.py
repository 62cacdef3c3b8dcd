"""Tokens of several identity providers: whose they are, and for whom each may speak."""

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

# Both call their key by the same id.
KEYS = {name: ECKey.generate_key("P-256", {"kid": "k", "use": "sig"}) for name in ("one", "other")}


def published(name: str) -> str:
    return json.dumps({"keys": [KEYS[name].as_dict(private=False)]})


ISSUERS = (
    Issuer(issuer="one", jwks=published("one"), organisations=("o",)),
    Issuer(issuer="other", audience="us", jwks=published("other"), organisations=("p",)),
)


def tokens(*issuers: Issuer) -> TokenVerifier:
    return TokenVerifier(Settings(jwt=Jwt(enabled=True, algorithms=("ES256",)), issuers=issuers))


def token(name: str, **claims: Any) -> str:
    said = {"organisation_id": "o", "sub": "somebody", "exp": time.time() + 60, "scope": "configs.list", **claims}
    head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
    return jws.serialize_compact(head, json.dumps(said), KEYS[name], algorithms=["ES256"])


def outcome(known: TokenVerifier, text: str) -> int | str:
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
def test_an_issuer_speaks_for_itself_and_its_own_organisations_alone(
    name: str, claims: dict[str, Any], expected: int | str
):
    assert outcome(tokens(*ISSUERS), token(name, **claims)) == expected


def test_issuers_that_say_nothing_of_themselves_are_told_apart_by_their_signatures():
    known = tokens(Issuer(jwks=published("one")), Issuer(jwks=published("other")))
    assert [outcome(known, token(name)) for name in KEYS] == ["o", "o"]
    assert outcome(tokens(Issuer(jwks=published("one"))), token("other")) == 401


def test_a_token_whose_issuer_cannot_be_asked_for_its_keys_is_not_said_to_be_wrong():
    away = Issuer(issuer="one", jwks_url="http://127.0.0.1:1/jwks")
    assert outcome(tokens(away), token("one", iss="one")) == 503
    assert outcome(tokens(away, ISSUERS[1]), token("other", iss="other", aud="us", organisation_id="p")) == "p"
    # Whoever it says to be from is known not to have signed it.
    assert outcome(tokens(away), token("one", iss="other")) == 401


def test_keys_that_were_kept_go_to_the_issuer_at_the_same_address_whatever_the_order():
    addresses = ("https://one.test/jwks", "https://other.test/jwks")
    one, other = (Issuer(jwks_url=url, issuer=url) for url in addresses)
    before = tokens(one, other)
    for source, name in zip(before.sources, KEYS, strict=True):
        source.load_keys(json.loads(published(name)))
    after = tokens(other, Issuer(jwks=published("one")), one)
    after.restore_keys(before.export_keys())
    kept = {source.own.jwks_url: [row["x"] for row in source.rows] for source in after.sources}
    assert kept[one.jwks_url] == [KEYS["one"].as_dict(private=False)["x"]] == kept[""]
    assert kept[other.jwks_url] == [KEYS["other"].as_dict(private=False)["x"]]


@pytest.mark.parametrize("said", [{}, {"keys": None}, {"keys": {}}, {"error": "busy"}])
def test_what_is_no_set_of_keys_takes_none_of_those_that_are_known(said: dict[str, Any]):
    (source,) = tokens(Issuer(jwks=published("one"))).sources
    known = list(source.rows)
    with pytest.raises(ValueError, match="array"):
        source.load_keys(said)
    assert source.rows == known
