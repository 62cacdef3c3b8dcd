//! Forwarding of all routes. Each request reaches the provider at its own path, with unchanged bytes, and is recorded
//! under its operation id.

use crate::harness::{
    TestGateway, TestRequest, pick_fields, scripted_server::ScriptedServer, sha256_hex, wait_for_ledger_entries,
};
use bytes::Bytes;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::json;

/// Method, path after `/v1`, and operation id. Routes without an id of their own use `proxy`.
const ROUTES: &[(&str, &str, &str)] = &[
    ("POST", "/chat/completions", "chatComplete"),
    ("POST", "/completions", "complete"),
    ("POST", "/embeddings", "embed"),
    ("POST", "/moderations", "moderate"),
    ("POST", "/messages", "messages"),
    ("POST", "/messages?beta=true", "messages"),
    ("POST", "/messages/count_tokens", "messagesCountTokens"),
    ("POST", "/messages/batches", "proxy"),
    ("POST", "/images/generations", "imageGenerate"),
    ("POST", "/images/edits", "imageEdit"),
    ("POST", "/images/variations", "proxy"),
    ("POST", "/audio/speech", "createSpeech"),
    ("POST", "/audio/transcriptions", "createTranscription"),
    ("POST", "/audio/translations", "createTranslation"),
    ("GET", "/files?purpose=batch&limit=2", "listFiles"),
    ("POST", "/files", "uploadFile"),
    ("GET", "/files/file-1", "retrieveFile"),
    ("GET", "/files/s3%3A%2F%2Fbucket%2Fa.jsonl", "retrieveFile"),
    ("DELETE", "/files/file-1", "deleteFile"),
    ("GET", "/files/file-1/content", "retrieveFileContent"),
    ("PUT", "/files/file-1", "proxy"),
    ("POST", "/batches", "createBatch"),
    ("GET", "/batches", "listBatches"),
    ("GET", "/batches/b-1", "retrieveBatch"),
    ("POST", "/batches/b-1/cancel", "cancelBatch"),
    ("POST", "/fine_tuning/jobs", "createFinetune"),
    ("GET", "/fine_tuning/jobs?after=a&limit=2", "listFinetunes"),
    ("GET", "/fine_tuning/jobs/ft-1", "retrieveFinetune"),
    ("POST", "/fine_tuning/jobs/ft-1/cancel", "cancelFinetune"),
    ("GET", "/fine_tuning/jobs/ft-1/events?after=e&limit=2", "listFinetuneEvents"),
    ("GET", "/fine_tuning/jobs/ft-1/checkpoints?after=c&limit=2", "listFinetuneCheckpoints"),
    ("POST", "/rerank", "rerank"),
    ("POST", "/ocr", "ocr"),
    ("POST", "/responses", "createModelResponse"),
    ("GET", "/responses/resp-1?include=a&include=b", "getModelResponse"),
    ("DELETE", "/responses/resp-1", "deleteModelResponse"),
    ("GET", "/responses/resp-1/input_items", "listResponseInputItems"),
    ("POST", "/responses/resp-1/cancel", "cancelModelResponse"),
    ("GET", "/models", "models"),
    ("GET", "/models/gpt%2F4", "proxy"),
    ("POST", "/assistants", "proxy"),
    ("POST", "/threads/t-1/runs", "proxy"),
    ("PATCH", "/vector_stores/vs-1", "proxy"),
    ("HEAD", "/anything/else", "proxy"),
    ("DELETE", "/anything/else?a=%20&a", "proxy"),
];

const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=edge";

fn form_field(name: &str, value: &str) -> String {
    format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn form_file(size: usize) -> String {
    let head = "--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav";
    format!("{head}\r\n\r\n{}\r\n", "\r\n--edg\r\n".repeat(size / 9))
}

fn route_request(method: &str, target: &str) -> TestRequest {
    let request = TestRequest::new(method, target).header("x-gateway-provider", "mock");
    if method == "GET" || method == "HEAD" || method == "DELETE" {
        return request;
    }
    request.header("content-type", "application/json").body(r#"{"model": "m-1", "input" : "\u00e4"}"#)
}

#[tokio::test]
async fn forwards_every_route_unchanged_and_records_its_operation() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (before, (method, path, id)) in ROUTES.iter().enumerate() {
        let response = gateway.send(route_request(method, &format!("/v1{path}"))).await;
        assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
        let entries = wait_for_ledger_entries(&provider, before + 1).await;
        let received = entries.last().unwrap();
        assert_eq!((received.method.as_str(), received.path.as_str()), (*method, format!("/v1{path}").as_str()));
        let record = gateway.single_record();
        let takes_body = matches!(*method, "POST" | "PUT" | "PATCH");
        let expected = json!([id, *id == "proxy", if takes_body { "m-1" } else { "" }, "complete"]);
        assert_eq!(
            pick_fields(&record, ["operation", "is_proxy_call", "ai_model", "outcome"]),
            expected,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn proxy_prefix_forwards_every_path_without_parsing() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (before, (method, path, _)) in ROUTES.iter().enumerate() {
        // Without the proxy prefix, the route would reject this body.
        let body = b"\x00 no JSON at all \xff".as_slice();
        let response = gateway
            .send(
                TestRequest::new(method, &format!("/v1/proxy{path}"))
                    .header("x-gateway-provider", "mock")
                    .header("content-type", "application/octet-stream")
                    .body(body),
            )
            .await;
        assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
        let entries = wait_for_ledger_entries(&provider, before + 1).await;
        let received = entries.last().unwrap();
        assert_eq!((received.path.as_str(), received.body_bytes), (format!("/v1{path}").as_str(), body.len() as u64));
        assert_eq!(
            pick_fields(&gateway.single_record(), ["operation", "is_proxy_call"]),
            json!(["proxy", true]),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn forwards_a_form_byte_for_byte_in_any_field_order() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let (model, more) = (form_field("model", "whisper-1"), form_field("timestamp_granularities[]", "word"));
    for path in ["/v1/audio/transcriptions", "/v1/images/edits", "/v1/files", "/v1/proxy/audio/transcriptions"] {
        for parts in [[model.clone(), more.clone(), form_file(5_000)], [form_file(5_000), more.clone(), model.clone()]]
        {
            let form = parts.concat() + "--edge--\r\n";
            let response = gateway.send(form_request(path, Body::Complete(form.clone().into()))).await;
            let expected = json!([form.len(), sha256_hex(&form), FORM_CONTENT_TYPE]);
            assert_eq!(
                json!([
                    response.json()["body_bytes"],
                    response.json()["body_sha"],
                    response.json()["headers"]["content-type"]
                ]),
                expected
            );
            assert_eq!(pick_fields(&gateway.single_record(), ["ai_model", "stream_mode"]), json!(["whisper-1", false]));
        }
    }
}

#[tokio::test]
async fn streams_a_large_form_and_reads_its_fields() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let form =
        form_file(900_000) + &form_field("stream", "true") + &form_field("model", "gpt-4o-transcribe") + "--edge--\r\n";
    let (feeder, reading) = feed_channel(|| ());
    let chunks: Vec<_> = form.as_bytes().chunks(70_001).map(Bytes::copy_from_slice).collect();
    let sending = tokio::spawn(async move {
        for chunk in chunks {
            feeder.push(chunk);
            tokio::task::yield_now().await;
        }
        feeder.finish(BodyEnd::Complete);
    });
    let response = gateway.send(form_request("/v1/audio/transcriptions", Body::Streamed(reading, None))).await;
    sending.await.unwrap();
    assert!(response.text().contains("transcript.text.done"), "{}", response.text());
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].body_bytes, form.len() as u64);
    let record = gateway.single_record();
    assert_eq!(pick_fields(&record, ["ai_model", "stream_mode", "res_units"]), json!(["gpt-4o-transcribe", true, 3]));
}

fn form_request(path: &str, body: Body) -> TestRequest {
    TestRequest::new("POST", path)
        .header("x-gateway-provider", "mock")
        .header("content-type", FORM_CONTENT_TYPE)
        .with_body(body)
}

#[tokio::test]
async fn returns_binary_responses_and_their_headers_unchanged() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(route_request("GET", "/v1/files/file-1/content")).await;
    let fields = ["content-type", "content-disposition", "etag"].map(|name| response.header(name));
    assert_eq!(fields, [Some("application/octet-stream"), Some("attachment; filename=\"mock\""), Some("\"mock-1\"")]);
    let large = gateway.send(route_request("GET", "/v1/files/file-1/content?mock-response_bytes=5000000")).await;
    assert_eq!((large.body.len(), large.is_streamed), (5_000_000, true));
    let speech = gateway.send(route_request("POST", "/v1/audio/speech")).await;
    assert_eq!((speech.header("content-type"), speech.body[..5].to_vec()), (Some("audio/mpeg"), b"\0ID3 ".to_vec()));
}

#[tokio::test]
async fn returns_no_body_for_204_and_304() {
    for (line, head) in [("204 No Content", ""), ("304 Not Modified", "etag: \"x\"\r\ncontent-length: 99\r\n")] {
        let provider = ScriptedServer::start_responding(format!("HTTP/1.1 {line}\r\n{head}\r\n")).await;
        let gateway = TestGateway::for_url(&provider.url());
        for method in ["GET", "DELETE", "POST"] {
            let response =
                gateway.send(route_request(method, "/v1/files/file-1").header("if-none-match", "\"x\"")).await;
            assert_eq!((response.status.to_string().as_str(), response.body.len()), (&line[..3], 0), "{method}");
        }
        // The connection was reused: the gateway did not wait for a body that never comes.
        assert_eq!(provider.connection_count(), 1);
    }
}

#[tokio::test]
async fn error_names_the_operation_that_a_provider_lacks() {
    let gateway = TestGateway::for_url("");
    let response = gateway
        .send(
            TestRequest::new("POST", "/v1/embeddings")
                .header("x-gateway-provider", "groq")
                .header("content-type", "application/json")
                .body("{}"),
        )
        .await;
    assert_eq!((response.status, &response.json()["message"]), (500, &json!("embed is not supported by groq")));
    for (method, path) in [("GET", "/v1/files"), ("GET", "/v1/batches/b/output"), ("POST", "/v1/batches/b/cancel")] {
        let response = gateway.send(TestRequest::new(method, path).header("x-gateway-provider", "groq")).await;
        let message = response.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            response.status == 500 && message.contains("gateway_options of the batch"),
            "{path}: {}",
            response.text()
        );
    }
}

#[tokio::test]
async fn shared_paths_return_errors_in_the_client_format() {
    let gateway = TestGateway::for_url("");
    for path in ["/v1/files", "/v1/models", "/v1/messages/batches", "/v1/anything"] {
        let response = gateway.send(TestRequest::new("GET", path).header("anthropic-version", "2023-06-01")).await;
        assert_eq!((response.status, &response.json()["type"]), (400, &json!("error")), "{path}");
        let response = gateway.send(TestRequest::new("GET", path)).await;
        assert_eq!(response.json()["type"] == "error", path.starts_with("/v1/messages"), "{path}");
    }
}

fn azure_request(provider: &Server, target: &str) -> TestRequest {
    TestRequest::new("POST", target)
        .header("x-gateway-provider", "azure-openai")
        .header("x-gateway-custom-host", &format!("{}/openai", provider.url()))
        .header("content-type", "application/json")
        .body(r#"{"model":"gpt-4o","messages":[]}"#)
}

#[tokio::test]
async fn azure_gets_the_deployment_in_its_path_and_an_api_key_header() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let requests = [
        azure_request(&provider, "/v1/chat/completions")
            .header("x-gateway-azure-api-version", "2024-10-21")
            .header("x-gateway-azure-deployment-id", "my-gpt")
            .header("authorization", "Bearer 0123abcd"),
        azure_request(&provider, "/v1/chat/completions")
            .header("x-portkey-azure-api-version", "v1")
            .header("authorization", "Bearer eyJ0.e30.sig"),
        azure_request(&provider, "/openai/deployments/d%201/chat/completions?api-version=2025-01-01")
            .header("api-key", "0123abcd")
            .header("authorization", "Bearer 0123abcd"),
        azure_request(&provider, "/v1/responses")
            .header("x-gateway-azure-api-version", "p 1")
            .header("x-gateway-azure-ad-token", "a-token"),
        azure_request(&provider, "/openai/v1/responses").header("api-key", "0123abcd"),
    ];
    for request in requests {
        let response = gateway.send(request).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let received: Vec<_> = wait_for_ledger_entries(&provider, 5)
        .await
        .iter()
        .map(|entry| {
            let field = |name| entry.header(name).map(ToOwned::to_owned);
            (entry.path.clone(), field("api-key"), field("authorization"))
        })
        .collect();
    let (key, bearer) = (Some("0123abcd".to_owned()), |token: &str| Some(format!("Bearer {token}")));
    let path = |path: &str| path.to_owned();
    assert_eq!(
        received,
        [
            (path("/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"), key.clone(), None),
            (path("/openai/v1/chat/completions"), None, bearer("eyJ0.e30.sig")),
            (path("/openai/deployments/d%201/chat/completions?api-version=2025-01-01"), key.clone(), None),
            (path("/openai/responses?api-version=p%201"), None, bearer("a-token")),
            (path("/openai/v1/responses"), key, None),
        ]
    );
    let missing = gateway.send(azure_request(&provider, "/v1/chat/completions")).await;
    assert_eq!((missing.status, missing.error_code().as_str()), (400, "invalid_provider_option"));
}

#[tokio::test]
async fn azure_host_in_the_path_must_match_the_resource_name() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let hosted = |resource: &str| {
        let path = format!("/{resource}.openai.azure.com/openai/deployments/d/chat/completions?api-version=1");
        ["/v1", "/v1/proxy"].map(|prefix| azure_request(&provider, &format!("{prefix}{path}")))
    };
    for request in hosted("my-res") {
        let response = gateway.send(request.header("authorization", "Bearer 0123abcd")).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    for entry in wait_for_ledger_entries(&provider, 2).await {
        assert_eq!(entry.path, "/openai/deployments/d/chat/completions?api-version=1");
    }
    for request in hosted("other") {
        let response = gateway.send(request.header("x-gateway-azure-resource-name", "my-res")).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_provider_option"));
        assert!(response.text().contains("resource_name is `my-res`, but the path has `other`"), "{}", response.text());
    }
    // Without a custom host the gateway dials the resource's host. It rejects resource names that would form another
    // address.
    for (resource, status) in [("a.b", 400), ("evil.example%2F", 400), ("", 400)] {
        let path = format!("/v1/{resource}.openai.azure.com/openai/x?api-version=1");
        let request =
            TestRequest::new("GET", &path).header("x-gateway-provider", "azure-openai").header("api-key", "k");
        assert_eq!(gateway.send(request).await.status, status, "{resource}");
    }
    assert_eq!(wait_for_ledger_entries(&provider, 2).await.len(), 2);
}

#[tokio::test]
async fn post_to_a_fine_tuning_job_cancels_it() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response =
        gateway.send(TestRequest::new("POST", "/v1/fine_tuning/jobs/ft-1").header("x-gateway-provider", "mock")).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].path, "/v1/fine_tuning/jobs/ft-1/cancel");
}
