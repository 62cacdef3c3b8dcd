//! Error responses: order of checks, format for the client, and request ids.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, chat_request, get_request, post_request,
    scripted_server::{ScriptedServer, json_response},
    sha256_hex, stream_request,
};
use penstock_mock::Server;
use serde_json::json;

const GATEWAY_KEY: &str = "pk-gateway-0123456789";

fn apply_gateway_key(gateway: &TestGateway) {
    gateway
        .apply_snapshot(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex(GATEWAY_KEY)}]}));
}

#[tokio::test]
async fn authenticates_before_validating_anything_else() {
    let gateway = TestGateway::with_settings("", |settings| settings.block_inline_config = true);
    apply_gateway_key(&gateway);
    let wrong = [
        ("content-type", "text/plain"),
        ("x-gateway-provider", "nobody"),
        ("x-gateway-config", "{"),
        ("x-gateway-custom-host", "ftp://a"),
        ("x-gateway-metadata", "{"),
        ("x-gateway-forward-headers", "x-gateway-forward-headers"),
    ];
    let every = |mut build_request: TestRequest| {
        for (name, value) in wrong {
            build_request = build_request.header(name, value);
        }
        build_request
    };
    for path in [CHAT_PATH, "/v1/files", "/v1/proxy/x"] {
        let response = gateway.send(every(TestRequest::new("POST", path)).body("{")).await;
        assert_eq!((response.status, response.error_code().as_str()), (401, "03"), "{path}");
        let response = gateway
            .send(every(TestRequest::new("POST", path)).header("x-gateway-api-key", GATEWAY_KEY).body("{"))
            .await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "inline_config_blocked"), "{path}");
    }
}

#[tokio::test]
async fn reports_every_config_error_with_its_path() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    let config = r#"{"provider":3,"request_timeout":"soon"}"#;
    let response = gateway.send(TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", config)).await.json();
    assert_eq!(json!([response["status"], response["message"]]), json!(["failure", "invalid config"]));
    let errors: Vec<_> = response["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    assert_eq!(errors[0], "path: provider, message: must be a string, not a number");
    assert!(errors[1].starts_with("path: request_timeout, message: "), "{errors:?}");
    let response = gateway.send(TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", "{oops")).await.json();
    assert!(response["errors"][0].as_str().unwrap().contains("valid JSON"), "{response}");
}

#[tokio::test]
async fn anthropic_clients_receive_anthropic_errors() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    for request in [
        TestRequest::new("POST", MESSAGES_PATH).body(chat_body("m", false)),
        TestRequest::new("POST", "/v1/messages/count_tokens").body("{}"),
        TestRequest::new("POST", "/v1/messages/batches"),
        TestRequest::new("GET", "/v1/proxy/messages/batches/b"),
        TestRequest::new("GET", "/v1/models/m").header("anthropic-version", "2023-06-01"),
    ] {
        let response = gateway.send(request).await;
        let record = gateway.single_record();
        let body = response.json();
        assert_eq!(
            (response.status, json!([body["type"], body["error"]["type"], body["request_id"]])),
            (400, json!(["error", "invalid_request_error", record["id"]])),
            "{record:#}"
        );
        assert!(body["error"]["message"].as_str().unwrap().starts_with("no provider"));
        assert_eq!(response.header("request-id"), record["id"].as_str());
    }
    for request in [TestRequest::new("POST", "/v1/messagesx"), TestRequest::new("GET", "/v1/files")] {
        assert_eq!(gateway.send(request).await.json()["status"], "failure");
    }
}

#[tokio::test]
async fn every_response_has_request_ids() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for request in [
        chat_request("mock"),
        stream_request(CHAT_PATH, "mock"),
        stream_request(MESSAGES_PATH, "mock"),
        get_request("/v1/files"),
        get_request("/v1/files?mock-fault=reset"),
        post_request(CHAT_PATH, "nonsense"),
        TestRequest::new("POST", CHAT_PATH),
    ] {
        let response = gateway.send(request).await;
        let record = gateway.single_record();
        for name in ["x-request-id", "request-id"] {
            let values: Vec<_> = response.headers.iter().filter(|(field, _)| *field == name.as_bytes()).collect();
            assert_eq!(values.len(), 1, "{name}: {record:#}");
        }
        // The mock provider sets one of the two ids if it knows the API format; the gateway sets the other.
        let ids = ["x-request-id", "request-id"].map(|name| response.header(name).unwrap());
        let ours = record["id"].as_str().unwrap();
        assert!(ids.contains(&ours) && ids.iter().all(|id| *id == ours || id.starts_with("req_0")), "{ids:?}");
    }
}

#[tokio::test]
async fn keeps_provider_request_ids_and_drops_server_headers() {
    let more = "x-request-id: theirs\r\nX-Powered-By: Express\r\nx-gateway-provider: forged\r\n\
                Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n";
    let provider = ScriptedServer::start_responding(json_response("200 OK", more, "{}")).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(chat_request("m")).await;
    let record = gateway.single_record();
    assert_eq!(
        (response.header("x-request-id"), response.header("request-id")),
        (Some("theirs"), record["id"].as_str())
    );
    let headers = ["x-powered-by", "x-hop", "x-gateway-provider"].map(|name| response.header(name));
    assert_eq!(headers, [None, None, Some("mock")]);
    let provider = ScriptedServer::start_responding(json_response("200 OK", "Request-Id: req_1\r\n", "{}")).await;
    let response = TestGateway::for_url(&provider.url()).send(post_request(MESSAGES_PATH, chat_body("m", false))).await;
    assert_eq!(response.header("request-id"), Some("req_1"));
}
