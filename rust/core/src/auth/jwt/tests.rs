//! Tests of token verification and of the claims that decide admission.

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::json;

use super::*;

fn encode_base64url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

struct TestSigner {
    rsa: RsaKeyPair,
    ecdsa_p256: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
}

impl TestSigner {
    fn new() -> Self {
        Self {
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
            ecdsa_p256: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            ed25519: Ed25519KeyPair::generate().unwrap(),
        }
    }

    fn build_authenticator(&self, algorithms: &[&str]) -> TokenAuthenticator {
        // DER layout: SEQUENCE { INTEGER n of 257 bytes, INTEGER e of 3 bytes }.
        let der = self.rsa.public_key().as_ref();
        let (n, e) = (&der[9..265], &der[267..270]);
        let point = self.ecdsa_p256.public_key().as_ref();
        let published = json!({"algorithms": algorithms, "organisations": [], "default_scopes": [],
        "leeway_seconds": 60, "issuers": [{}], "keys": [
            {"issuer": 0, "kid": "r", "kty": "RSA", "n": encode_base64url(n), "e": encode_base64url(e)},
            {"issuer": 0, "kid": "p", "kty": "EC", "crv": "P-256", "x": encode_base64url(&point[1..33]), "y": encode_base64url(&point[33..])},
            self.published_ed25519_key(0),
        ]});
        compile_settings(published)
    }

    /// Returns the published Ed25519 key as a key of this issuer.
    fn published_ed25519_key(&self, issuer: usize) -> Value {
        json!({"issuer": issuer, "kid": "e", "kty": "OKP", "crv": "Ed25519",
            "x": encode_base64url(self.ed25519.public_key().as_ref())})
    }

    fn sign_token(&self, algorithm: &str, claims: &Value) -> String {
        let kid = match algorithm {
            "RS256" => "r",
            "ES256" => "p",
            _ => "e",
        };
        let head = json!({"alg": algorithm, "kid": kid, "typ": "JWT"});
        let message = format!(
            "{}.{}",
            encode_base64url(head.to_string().as_bytes()),
            encode_base64url(claims.to_string().as_bytes())
        );
        let random = SystemRandom::new();
        let signature = match algorithm {
            "RS256" => {
                let mut signature = vec![0; self.rsa.public_modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
            "ES256" => self.ecdsa_p256.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec(),
            _ => self.ed25519.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", encode_base64url(&signature))
    }

    /// Builds the token of a case in `tests/vectors/tokens.json`.
    fn sign_case(&self, table: &Value, case: &Value) -> String {
        let times = |text: &str, field: &str| text.repeat(case[field].as_u64().unwrap_or(0) as usize);
        let nested = times("[", "nested") + &times("]", "nested");
        let part = |name: &str| {
            case[format!("{name}_base64")].as_str().map_or_else(
                || {
                    let text = case[name].as_str().or(table[name].as_str()).unwrap();
                    let text = text.replace("NESTED", &nested).replace("FILLED", &times("x", "filled"));
                    encode_base64url(text.as_bytes())
                },
                str::to_owned,
            )
        };
        let message = format!("{}.{}", part("header"), part("claims"));
        let signature = case["signature"]
            .as_str()
            .map_or_else(|| encode_base64url(self.ed25519.sign(message.as_bytes()).as_ref()), str::to_owned);
        format!("{message}.{signature}{}", case["signature_suffix"].as_str().unwrap_or_default())
    }
}

fn compile_settings(published: Value) -> TokenAuthenticator {
    let mut problems = Vec::new();
    let departed = json!([{"organisation_id": "o", "names": ["u-1", "gone@b.test"]},
        {"organisation_id": "o", "workspace_id": "w", "names": ["left@b.test"]},
        {"organisation_id": "o", "workspace_id": "other", "names": ["somebody"]}]);
    let departed = serde_json::from_value(departed).unwrap();
    let tokens = TokenAuthenticator::compile(serde_json::from_value(published).unwrap(), departed, &mut problems);
    assert!(problems.is_empty());
    tokens
}

fn sample_workspaces() -> Vec<Workspace> {
    vec![Workspace { id: "w".into(), slug: "ws-1".into(), organisation_id: "o".into() }]
}

fn valid_claims() -> Value {
    json!({"organisation_id": "o", "workspace_slug": "ws-1", "scope": "logs.write portkey.completions.write",
        "exp": 4_000_000_000u64, "sub": "somebody"})
}

fn authentication_outcome(tokens: &TokenAuthenticator, text: &str) -> String {
    match tokens.authenticate(text, &sample_workspaces()) {
        None => "no token".into(),
        Some(Ok(token_identity)) => token_identity.key.id.to_string(),
        Some(Err(error)) => format!("{} {}", error.status(), error.message()),
    }
}

#[test]
fn verifies_each_allowed_algorithm_and_rejects_others() {
    let issuer = TestSigner::new();
    let all = issuer.build_authenticator(&["RS256", "ES256", "EdDSA"]);
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        let text = issuer.sign_token(algorithm, &valid_claims());
        // The second call uses the cached token.
        assert_eq!(
            [authentication_outcome(&all, &text), authentication_outcome(&all, &text)],
            ["somebody", "somebody"],
            "{algorithm}"
        );
        let others = ["RS256", "ES256", "EdDSA"].into_iter().filter(|other| *other != algorithm);
        assert!(
            authentication_outcome(&issuer.build_authenticator(&others.collect::<Vec<_>>()), &text).starts_with("401"),
            "{algorithm}"
        );
        assert!(
            authentication_outcome(&TestSigner::new().build_authenticator(&[algorithm]), &text).starts_with("401"),
            "{algorithm}"
        );
    }
    let token_identity =
        all.authenticate(&issuer.sign_token("RS256", &valid_claims()), &sample_workspaces()).unwrap().unwrap();
    let key = &token_identity.key;
    assert_eq!((key.workspace.as_deref(), key.user_id.as_deref()), (Some("w"), Some("somebody")));
    let mut with_email = valid_claims();
    with_email["email_id"] = "Ann@b.test".into();
    let by_email = all.authenticate(&issuer.sign_token("EdDSA", &with_email), &sample_workspaces()).unwrap();
    assert_eq!(by_email.unwrap().key.user_id.as_deref(), Some("ann@b.test"));
}

/// `tests/unit/access/test_token_verification.py` runs the same cases, so that both verifiers accept the same tokens.
#[test]
fn decides_shared_cases_like_the_management_api() {
    let table: Value = serde_json::from_str(include_str!("../../../../../tests/vectors/tokens.json")).unwrap();
    let signer = TestSigner::new();
    let tokens = signer.build_authenticator(&["RS256", "ES256", "EdDSA"]);
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let outcome = authentication_outcome(&tokens, &signer.sign_case(&table, case));
        let expected = if case["accepted"] == true { !outcome.contains(' ') } else { outcome.starts_with("401 ") };
        assert!(expected, "{}: {outcome}", case["name"]);
    }
}

#[test]
fn claims_decide_admission() {
    let issuer = TestSigner::new();
    let tokens = issuer.build_authenticator(&["EdDSA"]);
    for (name, value, status) in [
        ("exp", json!(1), "401"),
        ("exp", json!("soon"), "401"),
        ("nbf", json!(4_000_000_000u64), "401"),
        ("organisation_id", json!("other"), "401"),
        ("organisation_id", Value::Null, "401"),
        ("sub", Value::Null, "401"),
        ("workspace_slug", json!("ws-2"), "403"),
        ("workspace_slug", Value::Null, "403"),
        ("scope", json!("logs.write"), "403"),
        ("scope", Value::Null, "403"),
        ("scopes", json!(["logs.write"]), "403"),
        ("scopes", json!(["completions.write"]), "somebody"),
        ("email_id", json!("a@b.test"), "a@b.test"),
        ("email_id", json!("Gone@b.test"), "401 the subject"),
        ("sub", json!("u-1"), "401 the subject"),
        ("email_id", json!("Left@b.test"), "403 the workspace"),
    ] {
        let mut changed = valid_claims();
        changed[name] = value.clone();
        let outcome = authentication_outcome(&tokens, &issuer.sign_token("EdDSA", &changed));
        assert!(outcome.starts_with(status), "{name} {value}: {outcome}");
    }
}

#[test]
fn issuer_is_limited_to_its_claims_and_organisations() {
    let (first_signer, other) = (TestSigner::new(), TestSigner::new());
    // Both issuers use the same key id.
    let tokens = compile_settings(json!({"algorithms": ["EdDSA"], "organisations": [], "default_scopes": [],
    "leeway_seconds": 60, "keys": [first_signer.published_ed25519_key(0), other.published_ed25519_key(1)], "issuers": [
        {"url": "https://one.test", "issuer": "one", "organisations": ["o"]},
        {"url": "https://other.test", "issuer": "other", "audience": "us", "organisations": ["p"]},
    ]}));
    let both = || {
        let mut all = sample_workspaces();
        all.push(Workspace { id: "v".into(), slug: "ws-1".into(), organisation_id: "p".into() });
        all
    };
    for (issuer, changes, status) in [
        (&first_signer, json!({"iss": "one"}), 200),
        (&first_signer, json!({}), 401),
        (&first_signer, json!({"iss": "other"}), 401),
        (&first_signer, json!({"iss": ["one"]}), 401),
        (&first_signer, json!({"iss": "one", "organisation_id": "p"}), 403),
        (&other, json!({"iss": "other", "aud": "us", "organisation_id": "p"}), 200),
        (&other, json!({"iss": "other", "aud": ["they", "us"], "organisation_id": "p"}), 200),
        (&other, json!({"iss": "other", "aud": "they", "organisation_id": "p"}), 401),
        (&other, json!({"iss": "other", "organisation_id": "p"}), 401),
        (&other, json!({"iss": "other", "aud": "us"}), 403),
        (&other, json!({"iss": "one", "aud": "us"}), 401),
    ] {
        let mut claims = valid_claims();
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let outcome = tokens.authenticate(&issuer.sign_token("EdDSA", &claims), &both()).unwrap();
        assert_eq!(outcome.map_or_else(|error| error.status(), |_| 200), status, "{changes}");
    }
}

#[test]
fn returns_503_while_issuer_keys_are_missing() {
    let issuer = TestSigner::new();
    let read = |url: &str, keys: Value, iss: &str| {
        let tokens = compile_settings(json!({"algorithms": ["EdDSA"], "organisations": [], "default_scopes": [],
            "leeway_seconds": 60, "keys": keys, "issuers": [{"url": url, "issuer": "one"}]}));
        let mut claims = valid_claims();
        claims["iss"] = iss.into();
        authentication_outcome(&tokens, &issuer.sign_token("EdDSA", &claims))
    };
    let url = "https://one.test";
    assert!(read(url, json!([]), "one").starts_with("503"));
    assert!(read(url, json!([]), "other").starts_with("401"));
    assert!(read("", json!([]), "one").starts_with("401"));
    assert!(read(url, json!([TestSigner::new().published_ed25519_key(0)]), "one").starts_with("401"));
    assert_eq!(read(url, json!([issuer.published_ed25519_key(0)]), "one"), "somebody");
}

#[test]
fn applies_defaults_claim_like_key_defaults() {
    let issuer = TestSigner::new();
    let tokens = issuer.build_authenticator(&["EdDSA"]);
    let with = |defaults: Value| {
        let mut claims = valid_claims();
        claims["defaults"] = defaults;
        tokens.authenticate(&issuer.sign_token("EdDSA", &claims), &sample_workspaces()).unwrap()
    };
    assert_eq!(with(json!({"config_id": "c-1"})).unwrap().key.default_config(), Some("c-1"));
    let defaults_claim =
        json!({"config_id": "pc-1", "allow_config_override": false, "metadata": {"team": "a", "size": 3}});
    let key = &with(defaults_claim).unwrap().key;
    assert_eq!((key.default_config(), key.is_config_locked()), (Some("pc-1"), true));
    assert_eq!(key.metadata().len(), 2);
    assert_eq!(with(Value::Null).unwrap().key.default_config(), None);
    for wrong in [json!("pc-1"), json!([]), json!({"config_id": 5}), json!({"metadata": []})] {
        assert_eq!(with(wrong.clone()).err().map(|error| error.status()), Some(401), "{wrong}");
    }
}

#[test]
fn tokens_may_carry_limits() {
    let issuer = TestSigner::new();
    let tokens = issuer.build_authenticator(&["EdDSA"]);
    let with = |name: &str, limits: Value| {
        let mut claims = valid_claims();
        claims[name] = limits;
        tokens.authenticate(&issuer.sign_token("EdDSA", &claims), &sample_workspaces()).unwrap()
    };
    let rates = json!([{"type": "requests", "unit": "rpm", "value": 5}]);
    assert_eq!(with("rate_limits", rates).unwrap().key.limits.as_ref().unwrap()[0].limit, 5);
    for none in [json!(null), json!([])] {
        assert!(with("usage_limits", none).unwrap().key.limits.is_none());
    }
    for wrong in [json!([{"value": 5}]), json!({}), json!("5")] {
        assert_eq!(with("rate_limits", wrong.clone()).err().map(|error| error.status()), Some(401), "{wrong}");
    }
}

#[test]
fn rejects_tampered_tokens_and_ignores_other_text() {
    let issuer = TestSigner::new();
    let tokens = issuer.build_authenticator(&["RS256", "ES256", "EdDSA"]);
    let text = issuer.sign_token("EdDSA", &valid_claims());
    let (head, rest) = text.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let other = encode_base64url(br#"{"organisation_id":"o"}"#);
    let unsigned = encode_base64url(br#"{"alg":"none","kid":"e","typ":"JWT"}"#);
    let confused = encode_base64url(br#"{"alg":"RS256","kid":"e","typ":"JWT"}"#);
    for changed in [
        format!("{head}.{other}.{signature}"),
        format!("{unsigned}.{rest}"),
        format!("{confused}.{rest}"),
        format!("{head}.{rest}AA"),
        format!("{head}.{}.", rest.split_once('.').unwrap().0),
        format!("{text}{}", "A".repeat(MAX_TOKEN_BYTES)),
    ] {
        assert!(authentication_outcome(&tokens, &changed).starts_with("401"), "{changed}");
    }
    for key in ["abc", "a.b.c", "eyJ.b", "eyJ.b.c.d", ""] {
        assert_eq!(authentication_outcome(&tokens, key), "no token");
    }
}
