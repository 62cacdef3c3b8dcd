//! Pass-through of requests and responses that the gateway does not interpret. Bytes stay as they were sent, but
//! gateway keys never reach a provider.

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request, fetch_directly, get_request, pick_fields,
    post_request,
    scripted_server::{ScriptedServer, json_response, read_request},
    wait_for_ledger_entries,
};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD as STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use penstock_mock::Server;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{io::AsyncWriteExt, sync::mpsc};

fn request_to_mock(method: &str, target: &str) -> TestRequest {
    TestRequest::new(method, target).header("x-gateway-provider", "mock")
}

#[tokio::test]
async fn request_and_response_bodies_are_byte_identical() {
    let (sender, mut response) = mpsc::unbounded_channel();
    let reply = "{ \"b\":1.0, \"a\" : \"\\u00e9\", \"b\":2 }\n";
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut io).await.unwrap()).unwrap();
            io.write_all(&json_response("200 OK", "", reply)).await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    // Odd spacing, duplicate keys, escapes, and numbers that a parser would change. The gateway must not re-serialise
    // any of it.
    let body = "\n{\"model\" : \"m\",  \"messages\":[], \"n\":1.50, \"n\":1e400, \"s\":\"\\u00e9\\/\\ud83d\\ude00\"}  ";
    let got = gateway.send(post_request(CHAT_PATH, body)).await;
    assert_eq!((got.status, got.text().as_str(), got.is_streamed), (200, reply, false));
    let sent = String::from_utf8(response.recv().await.unwrap()).unwrap();
    assert!(sent.ends_with(&format!("\r\n\r\n{body}")), "{sent}");
}

#[tokio::test]
async fn complete_responses_of_both_formats_are_unchanged() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, crate::harness::MESSAGES_PATH, "/v1/completions", "/v1/embeddings", "/v1/moderations"] {
        let body = chat_body("mock", false);
        let sent = fetch_directly(provider.addr, path, &body).await;
        let response = gateway.send(post_request(path, body)).await;
        assert_eq!((response.status, response.text()), (200, String::from_utf8(sent).unwrap()), "{path}");
        assert_eq!(response.header("content-length"), Some(response.body.len().to_string().as_str()), "{path}");
    }
}

#[tokio::test]
async fn any_method_on_any_path_reaches_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let response = gateway.send(request_to_mock(method, "/v1/files/f%2F1/part")).await;
        let echo = response.json();
        let actual = json!([echo["method"], echo["path"], response.status]);
        assert_eq!(actual, json!([method, "/v1/files/f%2F1/part", 200]));
    }
    let response = gateway.send(request_to_mock("HEAD", "/v1/models")).await;
    assert_eq!((response.status, response.body.len()), (200, 0));
    assert!(response.header("content-length").unwrap().parse::<usize>().unwrap() > 0);
}

/// A TRACE response echoes the request, and with it a stored credential.
#[tokio::test]
async fn rejects_trace_connect_and_invalid_methods() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for method in ["TRACE", "CONNECT", "TRACK", "trace", "G T", "GÉT"] {
        for path in [CHAT_PATH, "/v1/proxy/x", "/v1/files"] {
            let response = gateway.send(request_to_mock(method, path)).await;
            assert_eq!(
                (response.status, response.error_code().as_str()),
                (405, "method_not_allowed"),
                "{method} {path}"
            );
            assert_eq!(response.header("allow"), Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
            assert_eq!(gateway.single_record()["error"], "method_not_allowed");
        }
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn uncommon_method_passes_with_its_body() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for method in ["PROPFIND", "REPORT", "QUERY", "M-SEARCH", "get"] {
        for path in ["/v1/proxy/x", "/v1/files", CHAT_PATH] {
            let response = gateway.send(request_to_mock(method, path).body("what is meant")).await;
            let echo = response.json();
            assert_eq!(
                json!([response.status, echo["method"], echo["body_bytes"]]),
                json!([200, method, 13]),
                "{path}"
            );
            assert_eq!(gateway.single_record()["outcome"], "complete");
        }
    }
}

/// API key in the form that the gateway generates.
const GENERATED_KEY: &str = "Q7dP0aXkE2mVnW8sYtB4cRjH6uLgZf1oK9iNqT3xM5vAwSbC";
/// Seed of the signing key of a trusted token issuer.
const ISSUER_SEED: [u8; 32] = [7; 32];

/// Returns an expired token of the trusted issuer. The gateway must remove expired tokens as well.
fn expired_token() -> String {
    sign_claims(r#"{"exp":1,"sub":"s","organisation_id":"o","workspace_slug":"w"}"#)
}

fn sign_claims(claims: &str) -> String {
    let encoded = |part: &str| BASE64_URL_SAFE_NO_PAD.encode(part);
    let head = encoded(r#"{"alg":"EdDSA","kid":"e","typ":"JWT"}"#);
    let message = format!("{head}.{}", encoded(claims));
    let pair = Ed25519KeyPair::from_seed_unchecked(&ISSUER_SEED).unwrap();
    format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes())))
}

fn hash_key(text: &str) -> String {
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap());
    Sha256::digest(text).iter().flat_map(digits).collect()
}

fn snapshot_with_keys() -> Value {
    let public = Ed25519KeyPair::from_seed_unchecked(&ISSUER_SEED).unwrap();
    let key = BASE64_URL_SAFE_NO_PAD.encode(public.public_key().as_ref());
    json!({"epoch": "1",
        "keys": [
            {"id": "1", "name": "new", "sha256": hash_key("key-of-the-caller")},
            {"id": "2", "name": "old", "sha256": hash_key("key-from-before")},
            {"id": "3", "name": "made", "sha256": hash_key(GENERATED_KEY)},
            {"id": "4", "sha256": hash_key("key-of-an-admin"), "lacks": "workspace"}],
        "jwt": {"algorithms": ["EdDSA"], "organisations": [], "default_scopes": [], "leeway_seconds": 60,
            "issuers": [{}], "keys": [{"issuer": 0, "kid": "e", "kty": "OKP", "crv": "Ed25519", "x": key}]}})
}

/// Locations of a second key in a request, next to the one that authenticates it: path, header name and header value.
/// `{}` stands for the key.
const KEY_LOCATIONS: [(&str, &str, &str); 14] = [
    ("/v1/proxy/x", "authorization", "Bearer {}"),
    ("/v1/proxy/x", "authorization", "{}"),
    ("/v1/proxy/x", "authorization", "Token {}"),
    ("/v1/proxy/x", "authorization", "Key id=1, secret={}"),
    ("/v1/proxy/x", "api-key", "{}"),
    ("/v1/proxy/x", "x-goog-api-key", "{}"),
    ("/v1/proxy/x", "x-note", "{}"),
    ("/v1/proxy/x", "x-note", "{};v=1"),
    ("/v1/proxy/x", "x-note", "a ({}) b"),
    ("/v1/proxy/x", "x-note", r#"{"key":"{}"}"#),
    ("/v1/proxy/x?a=1&token={}&b=2", "x-note", "1"),
    ("/v1/proxy/x?a=1&token={}%20&b=2", "x-note", "1"),
    ("/v1/proxy/x?a=1&{}&b=2", "x-note", "1"),
    ("/v1/proxy/x?a=1&t%6Fken=%28{%}%29&b=2", "x-note", "1"),
];

#[tokio::test]
async fn gateway_keys_never_reach_a_provider() {
    let (sender, mut response) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            while let Some(sent) = read_request(&mut io).await {
                sender.send(String::from_utf8(sent).unwrap()).unwrap();
                io.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
            }
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    gateway.apply_snapshot(&snapshot_with_keys());
    let token = expired_token();
    let kinds = ["key-of-the-caller", "key-from-before", "key-of-an-admin", GENERATED_KEY, &token];
    let mut cases = vec![];
    for kind in kinds {
        // The key with its first character percent-encoded.
        let escaped = format!("%{:02X}{}", kind.as_bytes()[0], &kind[1..]);
        let put = |text: &str| text.replace("{%}", &escaped).replace("{}", kind);
        cases.extend(KEY_LOCATIONS.map(|(path, name, value)| (put(path), name, put(value), kind)));
        let pairs = [format!(":{kind}"), format!("{kind}:"), format!("user:{kind}")].map(|pair| STANDARD.encode(pair));
        cases.extend(pairs.map(|pair| ("/v1/proxy/x".into(), "authorization", format!("Basic {pair}"), kind)));
    }
    for (path, name, value, kind) in cases {
        let request =
            request_to_mock("GET", &path).header("x-gateway-api-key", "key-of-the-caller").header(name, &value);
        assert_eq!(gateway.send(request).await.status, 200, "{name}: {value}");
        let sent = response.recv().await.unwrap();
        let absent = [kind, &kind[1..], value.strip_prefix("Basic ").unwrap_or(kind)];
        assert!(!absent.iter().any(|text| sent.contains(text)), "{path} {name}: {value}\n{sent}");
        assert!(sent.contains("?a=1&b=2 ") || !path.contains('?'), "{sent}");
    }
    // The gateway forwards a value that is not a gateway key. It also forwards a header that the provider needs,
    // whatever the header contains.
    for (name, value) in [
        ("authorization", "Token sk-of-the-provider"),
        ("x-note", "Q7dP0aXkE2mVnW8sYtB4cRjH6uLgZf1oK9iNqT3xM5vAwSbD"),
        ("user-agent", "key-of-the-caller/1.0"),
        ("content-type", "application/key-of-the-caller"),
    ] {
        let request = request_to_mock("GET", "/v1/proxy/x?k=%41")
            .header("x-gateway-api-key", "key-of-the-caller")
            .header(name, value);
        gateway.send(request).await;
        let sent = response.recv().await.unwrap();
        assert!(sent.contains(&format!("{name}: {value}\r\n")) && sent.contains("?k=%41 "), "{sent}");
    }
}

#[tokio::test]
async fn rejects_requests_with_too_many_words_to_check_for_keys() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    let caller = |build_request: TestRequest| build_request.header("x-gateway-api-key", "key-of-the-caller");
    let query = |pairs: usize| (0..pairs).map(|pair| format!("a={pair}")).collect::<Vec<_>>().join("&");
    let response = gateway
        .send(caller(request_to_mock("GET", &format!("/v1/proxy/x?{}&token=key-from-before", query(400)))))
        .await;
    assert_eq!(response.status, 200);
    let sent = provider.ledger_entries().last().unwrap().path.clone();
    assert!(sent.ends_with("&a=399") && !sent.contains("token"), "{sent}");
    let tokens = vec!["eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.e30.AAAA"; 400].join("&");
    let mut requests = vec![caller(request_to_mock("GET", &format!("/v1/proxy/x?{}", query(9_000))))];
    requests.push(caller(request_to_mock("GET", &format!("/v1/proxy/x?{tokens}"))));
    requests.push(caller(request_to_mock("GET", "/v1/proxy/x").header("x-note", &"notakey1 ".repeat(7_000))));
    for build_request in requests {
        let response = gateway.send(build_request).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"));
        assert!(response.text().contains("too many words"), "{}", response.text());
    }
    assert_eq!(provider.ledger_entries().len(), 1);
}

#[tokio::test]
async fn token_is_accepted_only_in_its_own_workspace() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut snapshot = snapshot_with_keys();
    snapshot["workspaces"] = json!([
        {"id": "w-1", "slug": "here", "organisation_id": "o"},
        {"id": "w-2", "slug": "there", "organisation_id": "o"}]);
    gateway.apply_snapshot(&snapshot);
    let claims =
        r#"{"exp":99999999999,"sub":"s","organisation_id":"o","workspace_slug":"here","scope":"completions.write"}"#;
    let bearer = format!("Bearer {}", sign_claims(claims));
    for (provider_name, status) in
        [(None, 200), (Some("here"), 200), (Some("w-1"), 200), (Some("there"), 403), (Some("w-2"), 403)]
    {
        let request = chat_request("mock").header("authorization", &bearer);
        let response = gateway
            .send(provider_name.into_iter().fold(request, |request, name| request.header("x-gateway-workspace", name)))
            .await;
        assert_eq!(response.status, status, "{provider_name:?}: {}", response.text());
        assert_eq!(provider.ledger_entries().last().unwrap().header("x-gateway-workspace"), None);
    }
    // A key belongs to one workspace; the header does not change that.
    let response = gateway
        .send(chat_request("mock").header("x-gateway-api-key", GENERATED_KEY).header("x-gateway-workspace", "there"))
        .await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn known_keys_are_removed_even_if_no_key_is_required() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut snapshot = snapshot_with_keys();
    snapshot["keys"] = json!([snapshot["keys"][3]]);
    snapshot.as_object_mut().unwrap().remove("jwt");
    gateway.apply_snapshot(&snapshot);
    let response = gateway.send(get_request("/v1/proxy/x").header("authorization", "Bearer key-of-an-admin")).await;
    assert_eq!(response.status, 200);
    let sent = provider.ledger_entries().last().unwrap().headers.clone();
    assert!(!sent.is_empty() && sent.iter().all(|(_, value)| !value.contains("key-of-an-admin")), "{sent:?}");
}

#[tokio::test]
async fn denied_key_returns_403_with_the_reason() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut snapshot = snapshot_with_keys();
    let scopeless = json!({"id": "5", "sha256": hash_key("key-without-scope"), "lacks": "scope"});
    snapshot["keys"].as_array_mut().unwrap().push(scopeless);
    gateway.apply_snapshot(&snapshot);
    for (key, reason) in [("key-of-an-admin", "organisation"), ("key-without-scope", "completions.write")] {
        for (name, value) in [("x-gateway-api-key", key.to_owned()), ("authorization", format!("Bearer {key}"))] {
            for path in [CHAT_PATH, "/v1/proxy/x"] {
                let response = gateway
                    .send(request_to_mock("POST", path).header(name, &value).body(chat_body("mock", false)))
                    .await;
                let body = response.json();
                assert_eq!(
                    (response.status, &body["data"]["errorCode"], &body["success"]),
                    (403, &json!("AB03"), &json!(false))
                );
                assert!(body["data"]["message"].as_str().unwrap().contains(reason), "{body}");
                // SDKs of providers show only this message.
                assert_eq!(body["error"]["message"], body["data"]["message"]);
                assert_eq!(body["error"]["type"], "permission_error");
                assert_eq!(gateway.single_record()["error"], "AB03");
            }
        }
    }
    // A valid key in another header takes precedence.
    let both = request_to_mock("POST", CHAT_PATH)
        .header("authorization", "Bearer key-of-an-admin")
        .header("api-key", "key-from-before");
    assert_eq!(gateway.send(both.body(chat_body("mock", false))).await.status, 200);
    let unknown = gateway
        .send(request_to_mock("POST", CHAT_PATH).header("x-gateway-api-key", "nobodys").body(chat_body("mock", false)))
        .await;
    assert_eq!((unknown.status, unknown.error_code().as_str()), (401, "03"));
    assert_eq!(provider.ledger_entries().len(), 1);
    // A key that the next snapshot omits is unknown.
    gateway.apply_snapshot(&json!({"epoch": "2", "keys": [snapshot["keys"][0]]}));
    let gone = gateway.send(request_to_mock("POST", CHAT_PATH).header("x-gateway-api-key", "key-of-an-admin")).await;
    assert_eq!(gone.status, 401);
}

#[tokio::test]
async fn google_resumable_upload_continues_through_the_gateway() {
    let (sender, mut response) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            while let Some(sent) = read_request(&mut io).await {
                sender.send(String::from_utf8(sent).unwrap()).unwrap();
                let more = "x-goog-upload-status: active\r\nx-goog-upload-url: https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id=A\r\n";
                io.write_all(&json_response("200 OK", more, "{}")).await.unwrap();
            }
        }
    })
    .await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let (mut target, url) = ("/upload/v1beta/files".to_owned(), provider.url());
    for (command, scheme) in [("start", "http"), ("upload, finalize", "https")] {
        let request = TestRequest::new("POST", &target)
            .header("host", "gw.example")
            .header("x-gateway-provider", "google")
            .header("x-gateway-custom-host", &url)
            .header("x-goog-api-key", "sk-1")
            .header("x-goog-upload-command", command)
            .header("x-forwarded-proto", scheme);
        let response_body = gateway.send(request.body("bytes")).await;
        let own_url = format!("{scheme}://gw.example/upload/v1beta/files?upload_id=A");
        assert_eq!((response_body.status, response_body.header("x-goog-upload-url")), (200, Some(own_url.as_str())));
        let sent = response.recv().await.unwrap();
        assert!(sent.starts_with(&format!("POST {target} HTTP/1.1\r\n")) && sent.ends_with("\r\n\r\nbytes"), "{sent}");
        assert!(
            sent.contains("x-goog-api-key: sk-1\r\n")
                && sent.contains(&format!("x-goog-upload-command: {command}\r\n"))
        );
        target = own_url.split_once("gw.example").unwrap().1.to_owned();
    }
}

/// Starts a provider that reports each request that it receives, and answers all with an upload URL of Google's.
async fn start_upload_provider() -> (ScriptedServer, mpsc::UnboundedReceiver<String>) {
    let (sender, received) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            while let Some(sent) = read_request(&mut io).await {
                sender.send(String::from_utf8(sent).unwrap()).unwrap();
                let more =
                    "x-goog-upload-url: https://generativelanguage.googleapis.com/upload/v1/files?upload_id=A\r\n";
                io.write_all(&json_response("200 OK", more, "{}")).await.unwrap();
            }
        }
    })
    .await;
    (provider, received)
}

fn rig_with_saved_provider(provider: &str, host: &str) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let mut snapshot = snapshot_with_keys();
    snapshot["workspaces"] = json!([{"id": "w-1", "slug": "here", "organisation_id": "o"}]);
    snapshot["providers"] =
        json!([{"slug": "own", "provider": provider, "api_key": "AIza-0123456789abcdef", "custom_host": host}]);
    gateway.apply_snapshot(&snapshot);
    gateway
}

#[tokio::test]
async fn google_upload_continues_without_a_key() {
    let (provider, mut received) = start_upload_provider().await;
    let gateway = rig_with_saved_provider("google", &provider.url());
    let upload = |target: &str, command: &str| {
        TestRequest::new("POST", target).header("host", "gw.example").header("x-goog-upload-command", command)
    };
    let start = |header: &str, value: &str| {
        upload("/upload/v1/files", "start").header("x-gateway-provider", "@own").header(header, value)
    };
    let started = gateway.send(start("x-goog-api-key", "key-of-the-caller").body("{}")).await;
    let url = started.header("x-goog-upload-url").unwrap().to_owned();
    let target = url.strip_prefix("http://gw.example").unwrap();
    assert!(target.starts_with("/upload/v1/files?upload_id=A&gateway_upload_token="), "{target}");
    let response = gateway.send(upload(target, "upload, finalize").body("bytes")).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(received.recv().await.unwrap().starts_with("POST /upload/v1/files HTTP/1.1\r\n"));
    let sent = received.recv().await.unwrap();
    assert!(sent.starts_with("POST /upload/v1/files?upload_id=A HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("x-goog-api-key: AIza-0123456789abcdef\r\n") && sent.ends_with("\r\n\r\nbytes"), "{sent}");
    let records = gateway.drain_records();
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!((&record["api_key_id"], &record["response_status_code"]), (&json!("1"), &json!(200)), "{record}");
        assert!(!record.to_string().contains("upload_token"), "{record}");
    }
    let refused = gateway.send(upload(&target.replace("=A&", "=B&"), "upload, finalize").body("bytes")).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (401, json!(401)), "{}", refused.text());
    // A caller with a signed token gets no `upload_token`, because nothing could find this caller again.
    let claims =
        r#"{"exp":99999999999,"sub":"s","organisation_id":"o","workspace_slug":"here","scope":"completions.write"}"#;
    let bearer = format!("Bearer {}", sign_claims(claims));
    let started = gateway.send(start("authorization", &bearer).body("{}")).await;
    assert_eq!(started.header("x-goog-upload-url"), Some("http://gw.example/upload/v1/files?upload_id=A"));
}

#[tokio::test]
async fn forwarded_paths_keep_the_version_of_the_client() {
    for (kind, header, cases) in [
        (
            "google",
            "x-goog-api-key",
            &[
                ("GET", "/v1/files/abc", "/v1/files/abc"),
                ("GET", "/v1/files?pageSize=2", "/v1/files?pageSize=2"),
                ("DELETE", "/v1/files/abc", "/v1/files/abc"),
                ("GET", "/v1/batches", "/v1/batches"),
                ("GET", "/v1/batches/b", "/v1/batches/b"),
                ("POST", "/v1/interactions", "/v1/interactions"),
                ("POST", "/v1/cachedContents", "/v1/cachedContents"),
                ("POST", "/v1/models/m:batchGenerateContent", "/v1/models/m:batchGenerateContent"),
                ("GET", "/v1beta/files/abc", "/v1beta/files/abc"),
                ("POST", "/v1/proxy/v1beta/cachedContents", "/v1beta/cachedContents"),
            ][..],
        ),
        (
            "cohere",
            "authorization",
            &[
                ("POST", "/v1/tokenize", "/v1/tokenize"),
                ("GET", "/v1/datasets", "/v1/datasets"),
                ("POST", "/v1/chat", "/v1/chat"),
                ("POST", "/v2/chat", "/v2/chat"),
            ],
        ),
        ("openai", "authorization", &[("GET", "/v1/assistants", "/assistants")]),
    ] {
        let (provider, mut received) = start_upload_provider().await;
        let gateway = rig_with_saved_provider(kind, &provider.url());
        let key = if header == "authorization" { "Bearer key-of-the-caller" } else { "key-of-the-caller" };
        for (method, path, expected) in cases {
            let request = TestRequest::new(method, path).header("x-gateway-provider", "@own").header(header, key);
            let response = gateway.send(request.body(if *method == "POST" { "{}" } else { "" })).await;
            assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
            let sent = received.recv().await.unwrap();
            assert!(sent.starts_with(&format!("{method} {expected} HTTP/1.1\r\n")), "{kind} {path}: {sent}");
        }
    }
}

#[tokio::test]
async fn query_string_is_forwarded_unchanged() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for query in ["a=1&a=2&b", "q=%7B%22x%22%3A1%7D+%20", "x=/../..&y=a?b"] {
        let response = gateway.send(get_request(&format!("/v1/batches?{query}"))).await;
        assert_eq!(response.json()["query"], query);
    }
    gateway.send(post_request(&format!("{CHAT_PATH}?api-version=2"), chat_body("mock", false))).await;
    assert_eq!(provider.ledger_entries().last().unwrap().path, format!("{CHAT_PATH}?api-version=2"));
}

#[tokio::test]
async fn proxy_prefix_is_stripped() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (requested, expected_path) in [
        ("/v1/proxy/assistants/a", "/v1/assistants/a"),
        // Some clients put the version in their own paths.
        ("/v1/proxy/v1/assistants/a", "/v1/assistants/a"),
        ("/v1/proxyish/a", "/v1/proxyish/a"),
    ] {
        assert_eq!(gateway.send(get_request(requested)).await.json()["path"], expected_path, "{requested}");
    }
    let response = gateway.send(post_request("/v1/proxy/chat/completions", chat_body("mock", false))).await;
    assert_eq!(response.json()["object"], "chat.completion");
    assert_eq!(gateway.drain_records().pop().unwrap()["is_proxy_call"], true);
}

#[tokio::test]
async fn passthrough_drops_hop_by_hop_and_gateway_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway
        .send(
            get_request("/v1/threads/t")
                .header("host", "gateway.example")
                .header("OpenAI-Beta", "assistants=v2")
                .header("X-Team", "red")
                .header("accept-encoding", "gzip")
                .header("connection", "keep-alive, X-Hop")
                .header("X-Hop", "1")
                .header("te", "trailers")
                .header("cookie", "session=1")
                .header("x-gateway-trace-id", "t-1")
                .header("x-portkey-metadata", "{}"),
        )
        .await;
    let sent_headers = &response.json()["headers"];
    assert_eq!(
        json!([sent_headers["openai-beta"], sent_headers["x-team"], sent_headers["accept-encoding"]]),
        json!(["assistants=v2", "red", "gzip"])
    );
    assert_eq!(sent_headers["host"], provider.addr.to_string());
    for absent in
        ["x-hop", "connection", "te", "cookie", "x-gateway-trace-id", "x-gateway-provider", "x-portkey-metadata"]
    {
        assert!(sent_headers[absent].is_null(), "{absent} in {sent_headers}");
    }
}

#[tokio::test]
async fn forwards_headers_that_the_request_or_its_config_lists() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.send(chat_request("mock").header("x-team", "red").header("x-user", "ann")).await;
    gateway
        .send(chat_request("mock").header("x-team", "red").header("x-gateway-forward-headers", "X-Team, x-absent"))
        .await;
    let config = r#"{"provider":"mock","forward_headers":["x-user"]}"#;
    gateway
        .send(chat_request("mock").header("x-team", "red").header("x-user", "ann").header("x-gateway-config", config))
        .await;
    let received: Vec<_> = provider
        .ledger_entries()
        .iter()
        .map(|entry| (entry.header("x-team").is_some(), entry.header("x-user").is_some()))
        .collect();
    assert_eq!(received, [(false, false), (true, false), (false, true)]);
}

#[tokio::test]
async fn gzip_response_stays_compressed() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let body = chat_body("mock?fault=gzip", false);
    let sent = fetch_directly(provider.addr, CHAT_PATH, &body).await;
    let response = gateway.send(post_request(CHAT_PATH, body)).await;
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert!(response.body == sent && response.body.starts_with(b"\x1f\x8b"));
}

#[tokio::test]
async fn redirect_is_returned_and_never_followed() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for request in [chat_request("mock?fault=redirect_metadata"), get_request("/v1/files?mock-fault=redirect_metadata")]
    {
        let response = gateway.send(request).await;
        assert_eq!(
            (response.status, response.header("location")),
            (302, Some("http://169.254.169.254/latest/meta-data/")),
            "{}",
            response.text()
        );
    }
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn large_response_arrives_complete() {
    // Sizes below, at and above the limit up to which a response is buffered before it is sent.
    for size in [1000, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 5_000_000] {
        let body: String = ('a'..='w').cycle().take(size).collect();
        let provider = ScriptedServer::start_responding(json_response("200 OK", "", &body)).await;
        let reply = TestGateway::for_url(&provider.url()).send(chat_request("m")).await;
        assert!(reply.text() == body && !reply.is_truncated, "{size}: {}", reply.body.len());
        assert_eq!(reply.header("content-length"), Some(size.to_string().as_str()));
    }
}

#[tokio::test]
async fn large_chunked_response_arrives_complete() {
    let body = "x".repeat(3_000_000);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let framed =
        [head.as_bytes(), &crate::harness::scripted_server::encode_chunks(body.as_bytes(), 100_000), b"0\r\n\r\n"]
            .concat();
    let provider = ScriptedServer::start_responding(framed).await;
    let response = TestGateway::for_url(&provider.url()).send(chat_request("m")).await;
    assert!(response.is_streamed && response.body == body.as_bytes() && response.header("content-length").is_none());
}

#[tokio::test]
async fn response_has_provider_headers_and_gateway_headers() {
    let more = "X-Request-Id: r-1\r\nx-ratelimit-remaining-requests: 7\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
                strict-transport-security: max-age=1\r\nClear-Site-Data: \"*\"\r\nAlt-Svc: h3\r\naccess-control-allow-origin: *\r\n\
                Connection: keep-alive\r\nkeep-alive: timeout=5\r\n";
    let provider = ScriptedServer::start_responding(json_response("200 OK", more, "{}")).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(chat_request("m").header("x-gateway-trace-id", "t-1")).await;
    assert_eq!(
        (response.header("x-request-id"), response.header("x-ratelimit-remaining-requests")),
        (Some("r-1"), Some("7"))
    );
    // A provider does not decide how browsers treat the gateway's origin.
    for name in ["set-cookie", "strict-transport-security", "clear-site-data", "alt-svc", "access-control-allow-origin"]
    {
        assert_eq!(response.header(name), None, "{name}");
    }
    assert_eq!((response.header("connection"), response.header("keep-alive")), (None, None));
    let record = gateway.single_record();
    assert_eq!(response.header("x-gateway-request-id"), record["id"].as_str());
    let own = ["trace-id", "provider", "last-used-option-index", "retry-attempt-count", "cache-status"]
        .map(|name| response.header(&format!("x-gateway-{name}")));
    assert_eq!(own, [Some("t-1"), Some("mock"), Some("config"), Some("0"), Some("DISABLED")]);
}

#[tokio::test]
async fn portkey_request_headers_get_portkey_response_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request =
        TestRequest::new("GET", "/v1/models").header("x-portkey-provider", "mock").header("x-portkey-trace-id", "t-1");
    let response = gateway.send(request).await;
    assert_eq!((response.status, response.header("x-portkey-trace-id")), (200, Some("t-1")));
    assert_eq!(response.header("x-gateway-trace-id"), None);
}

#[tokio::test]
async fn rejects_dot_segments_in_any_spelling() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [
        "/v1/../internal/records",
        "/v1/proxy/%2e%2e/admin",
        "/v1/files/.%2E/x",
        "/v1/./files",
        "/v1/proxy/..%2f..%2fadmin",
        "/v1/proxy/..%5cadmin",
        "/v1/proxy/..\\admin",
    ] {
        assert_eq!(gateway.send(get_request(path)).await.status, 400, "{path}");
    }
    let response =
        gateway.send(post_request("/v1/messages/%2e%2e/x", "{}").header("anthropic-version", "2023-06-01")).await;
    assert_eq!((response.status, &response.json()["type"]), (400, &json!("error")), "{}", response.text());
    assert!(response.header("x-gateway-trace-id").is_some() && response.header("request-id").is_some());
    assert_eq!(pick_fields(&gateway.last_record(8), ["response_status_code", "outcome"]), json!([400, "refused"]));
    assert!(provider.ledger_entries().is_empty());
    assert_eq!(gateway.send(get_request("/v1/files/..a/b%2e.txt")).await.status, 200);
}

#[tokio::test]
async fn paths_outside_the_data_plane_return_404() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    for path in ["/v2/chat/completions", "/chat/completions", "/v1", "/v1/", "/metrics"] {
        let response = gateway.send(get_request(path)).await;
        assert_eq!((response.status, response.json()), (404, json!({"message": "Not Found", "ok": false})), "{path}");
        let ids =
            ["x-request-id", "request-id", "x-gateway-trace-id"].map(|name| response.header(name).unwrap().to_owned());
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
    let response = gateway.send(get_request("/v2/x").header("x-portkey-trace-id", "t-1")).await;
    assert_eq!(response.header("x-portkey-trace-id"), Some("t-1"));
    assert_eq!(gateway.send(get_request("/")).await.text(), "Penstock says hey!");
}
