//! Tests with tokens of every kind, which keys of the tests sign. A mock host returns the keys.

use std::{
    collections::VecDeque,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::future::BoxFuture;
use penstock_net::headers::Headers;

use super::*;
use crate::{
    guardrails::{
        checks::{compile_check, tests::input_of},
        host_access::{HostReply, HostRequest},
    },
    parse::document_reader::Strictness,
};

/// Mock of another host, with its replies in order.
#[derive(Default)]
struct PlayedHost {
    replies: Mutex<VecDeque<(u16, String)>>,
    requests: Mutex<Vec<HostRequest>>,
}

impl HostAccess for PlayedHost {
    fn send(&self, request: HostRequest) -> BoxFuture<'_, Result<HostReply, CheckError>> {
        self.requests.lock().unwrap().push(request);
        let reply = self.replies.lock().unwrap().pop_front();
        let reply = reply.map(|(status, body)| HostReply { status, headers: Headers::default(), body: body.into() });
        async move { reply.ok_or_else(|| CheckError::new("unreachable")) }.boxed()
    }

    fn resolve<'s>(&'s self, _url: &'s str) -> BoxFuture<'s, Result<(), CheckError>> {
        async { Ok(()) }.boxed()
    }
}

struct Signer(Ed25519KeyPair);

impl Signer {
    fn new() -> Self {
        Self(Ed25519KeyPair::generate().unwrap())
    }

    fn jwk(&self, id: &str) -> Value {
        let x = BASE64_URL_SAFE_NO_PAD.encode(self.0.public_key().as_ref());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "use": "sig", "x": x})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(header), part(claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.0.sign(text.as_bytes()).as_ref());
        format!("{text}.{signature}")
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

async fn run(parameters: &Value, token: &str, host: &Arc<PlayedHost>) -> Result<CheckOutcome, CheckError> {
    let mut parameters = parameters.clone();
    parameters["algorithms"] = json!(["EdDSA"]);
    let compiled = compile_check("default.jwt", &parameters, "$", Strictness::StrictWithLints).unwrap();
    let mut headers = Headers::default();
    headers.push(b"authorization", format!("Bearer {token}").as_bytes());
    let request = json!({});
    let job = compiled.check.job(&CheckInput { headers: &headers, ..input_of(&request, &[]) }).unwrap();
    job(Arc::clone(host) as Arc<dyn HostAccess>).await
}

#[tokio::test]
async fn signatures_lifetimes_and_claims_are_verified() {
    let (signer, other, host) = (Signer::new(), Signer::new(), Arc::default());
    let header = json!({"alg": "EdDSA", "kid": "k", "tenant": "a"});
    let claims = json!({"iat": now(), "exp": now() + 60, "sub": "ann", "tenant": "a", "groups": ["x", "y"]});
    let with = |more: Value| {
        let mut changed = claims.clone();
        changed.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        signer.sign(&header, &changed)
    };
    let jwks = json!({"keys": [signer.jwk("k")]});
    let base = json!({"jwks": jwks, "requiredClaims": ["sub"], "headerPayloadMatch": ["tenant"],
        "claimValues": {"groups": {"values": ["x", "z"], "matchType": "contains"}, "sub": {"values": "^a", "matchType": "regex"}}});
    let unsigned = with(json!({})).rsplit_once('.').unwrap().0.to_owned() + ".";
    for (token, expected) in [
        (with(json!({})), "the token is valid"),
        (other.sign(&header, &claims), "the signature of the token is not valid"),
        (signer.sign(&json!({"alg": "none", "kid": "k"}), &claims), "the signature of the token is not valid"),
        (signer.sign(&json!({"alg": "EdDSA", "kid": "z"}), &claims), "the signature of the token is not valid"),
        (unsigned, "the signature of the token is not valid"),
        (signer.sign(&json!({"alg": "EdDSA", "crit": ["x"]}), &claims), "the header field has no signed token"),
        ("abc".to_owned(), "the header field has no signed token"),
        (with(json!({"exp": now() - 60})), "the token has expired"),
        (with(json!({"nbf": now() + 60})), "the token is not valid yet"),
        (with(json!({"iat": now() - 90_000})), "the token is too old"),
        (with(json!({"exp": "x"})), "a time of the token is no number"),
        (with(json!({"sub": null})), "the token lacks required claims"),
        (with(json!({"groups": ["q"]})), "claims of the token have other values"),
        (with(json!({"tenant": "b"})), "header and payload of the token differ"),
    ] {
        let outcome = run(&base, &token, &host).await.unwrap();
        assert_eq!(outcome.data["explanation"], expected);
        assert_eq!(outcome.verdict, expected == "the token is valid", "{}", outcome.data);
    }
}

#[tokio::test]
async fn keys_are_fetched_once_and_again_for_an_unknown_key() {
    let (signer, host) = (Signer::new(), Arc::new(PlayedHost::default()));
    let token = signer.sign(&json!({"alg": "EdDSA", "kid": "k"}), &json!({"iat": now()}));
    let parameters = json!({"jwksUri": "https://keys.example/once"});
    assert!(run(&parameters, &token, &host).await.is_err());
    host.replies.lock().unwrap().push_back((200, json!({"keys": [signer.jwk("k")]}).to_string()));
    for _ in 0..3 {
        assert!(run(&parameters, &token, &host).await.unwrap().verdict);
    }
    // A client that names unknown keys cannot make the gateway fetch all the time.
    let unknown = signer.sign(&json!({"alg": "EdDSA", "kid": "z"}), &json!({"iat": now()}));
    assert!(!run(&parameters, &unknown, &host).await.unwrap().verdict);
    assert_eq!(host.requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_endpoint_knows_active_tokens() {
    let host = Arc::new(PlayedHost::default());
    let parameters = json!({"introspectEndpoint": "https://idp.example/introspect", "introspectCacheMaxAge": 60,
        "requiredClaims": ["sub"]});
    let reply = |body: Value| host.replies.lock().unwrap().push_back((200, body.to_string()));
    reply(json!({"active": false}));
    assert_eq!(run(&parameters, "opaque 1", &host).await.unwrap().data["explanation"], "the token is not active");
    reply(json!({"active": true, "sub": "ann"}));
    assert!(run(&parameters, "opaque-2", &host).await.unwrap().verdict);
    assert!(run(&parameters, "opaque-2", &host).await.unwrap().verdict);
    let requests = host.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].body.as_ref().unwrap().1, "token=opaque-2");
}

#[tokio::test]
async fn claims_become_header_fields() {
    let (signer, host) = (Signer::new(), Arc::default());
    let claims = json!({"iat": now(), "userId": "ann\r\nx: y", "groups": ["a", "b"]});
    let token = signer.sign(&json!({"alg": "EdDSA", "kid": "k"}), &claims);
    let parameters = json!({"jwks": {"keys": [signer.jwk("k")]}, "extractClaims": ["userId", "groups", "absent"]});
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        run(&parameters, &token, &host).await.unwrap().change,
        Some(Change::Headers(vec![
            field("x-jwt-user-id", "annx: y"),
            field("x-jwt-groups", "a,b"),
            field("x-jwt-absent", "")
        ]))
    );
    // Without a valid token the fields are empty, so that the client cannot set them. The same if the keys are unknown.
    let empty =
        Some(Change::Headers(["user-id", "groups", "absent"].map(|name| field(&format!("x-jwt-{name}"), "")).into()));
    let unsigned = signer.sign(&json!({"alg": "none", "kid": "k"}), &claims);
    let unreachable = json!({"jwksUri": "https://keys.example/none", "extractClaims": ["userId", "groups", "absent"]});
    for (parameters, token, is_error) in [
        (&parameters, "", false),
        (&parameters, "abc", false),
        (&parameters, &unsigned, false),
        (&unreachable, &token, true),
    ] {
        let outcome = run(parameters, token, &host).await.unwrap();
        assert_eq!((outcome.verdict, outcome.error.is_some(), &outcome.change), (false, is_error, &empty), "{token}");
    }
}

#[test]
fn parameters_are_validated() {
    let path = |parameters: Value| {
        compile_check("default.jwt", &parameters, "$", Strictness::StrictWithLints).unwrap_err()[0].path.clone()
    };
    assert_eq!(path(json!({})), "$.parameters");
    assert_eq!(
        path(json!({"jwksUri": "https://a.example", "introspectEndpoint": "https://b.example"})),
        "$.parameters"
    );
    assert_eq!(path(json!({"jwksUri": "http://169.254.169.254/"})), "$.parameters.jwksUri");
    assert_eq!(path(json!({"jwks": {"keys": [{"kty": "oct", "k": "AA"}]}})), "$.parameters.jwks");
    assert_eq!(path(json!({"jwksUri": "https://a.example", "algorithms": ["none"]})), "$.parameters.algorithms.0");
}
