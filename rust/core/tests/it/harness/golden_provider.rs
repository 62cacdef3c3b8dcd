//! Mock providers that replay the golden cases of translation and record the requests that they receive.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    TestGateway, TestRequest, post_with_config,
    scripted_server::{ScriptedServer, encode_chunks, read_request},
};

#[path = "../../../../llm/tests/it/golden_cases/files.rs"]
mod golden_files;

pub use golden_files::{CaseFiles, find_case as find_golden_case};

/// Returns the files of the golden case `<provider>/<operation>/<case>`.
pub fn golden_case(name: &str) -> CaseFiles {
    find_golden_case(name).unwrap_or_else(|| panic!("no golden case {name}"))
}

/// Replays the provider of a golden case and records the requests.
pub struct GoldenProvider {
    pub server: ScriptedServer,
    /// Bytes of the last request.
    pub last_request: Arc<Mutex<Vec<u8>>>,
    /// Request lines of all requests.
    pub request_lines: Arc<Mutex<Vec<String>>>,
}

impl GoldenProvider {
    pub async fn start(status: u16, kind: &str, body: Vec<u8>, chunk: usize) -> Self {
        Self::start_with_headers(status, &format!("{kind}\r\nx-request-id: up-1"), body, chunk).await
    }

    /// Starts a provider. Further header lines, such as the request ID, may follow the content type in `kind`.
    pub async fn start_with_headers(status: u16, kind: &str, body: Vec<u8>, chunk: usize) -> Self {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let response = Arc::new([head.as_bytes(), &encode_chunks(&body, chunk), b"0\r\n\r\n"].concat());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&sent);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&lines);
        let provider = ScriptedServer::start(move |mut stream, _| {
            let (response, shared, noted) = (Arc::clone(&response), Arc::clone(&shared), Arc::clone(&noted));
            async move {
                while let Some(bytes) = read_request(&mut stream).await {
                    let line = bytes.split(|byte| *byte == b'\r').next().unwrap();
                    noted.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
                    *shared.lock().unwrap() = bytes;
                    stream.write_all(&response).await.unwrap();
                }
            }
        })
        .await;
        Self { server: provider, last_request: sent, request_lines: lines }
    }

    pub fn gateway_trusting_loopback() -> TestGateway {
        TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()])
    }

    /// Returns a gateway that has this server saved as `@saved`, with the given provider name.
    pub fn gateway_with_saved_provider(&self, provider: &str) -> TestGateway {
        let gateway = Self::gateway_trusting_loopback();
        let saved = json!({"slug": "saved", "provider": provider, "custom_host": self.server.url()});
        gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved]}));
        gateway
    }

    /// Builds a passthrough request to the saved provider. The gateway changes nothing but the `@saved/` prefix of the
    /// model.
    pub fn passthrough_request(path: &str, mut body: Value) -> TestRequest {
        body["model"] = format!("@saved/{}", body["model"].as_str().unwrap()).into();
        post_with_config(&json!({"passthrough": true}), path, body.to_string())
    }

    pub fn build_request(&self, provider: &str, path: &str, body: Vec<u8>) -> TestRequest {
        TestRequest::new("POST", path)
            .header("x-gateway-provider", provider)
            .header("x-gateway-custom-host", &self.server.url())
            .header("x-gateway-vertex-project-id", "p")
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-aws-region", "eu-west-1")
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-1")
            .header("anthropic-beta", "caching")
            .body(body)
    }

    pub fn parse_last_request(&self) -> (String, Value) {
        let bytes = self.last_request.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a request came");
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }
}

/// Decodes a file of hexadecimal frames.
pub fn read_hex_frames(path: &Path) -> Vec<u8> {
    let text = fs::read_to_string(path).unwrap();
    let digits: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::bytes).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Removes the creation time from a response.
pub fn strip_created_time(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\"created\":") {
        out += before;
        rest = after.trim_start_matches(|character: char| character.is_ascii_digit());
    }
    out + rest
}

pub fn extract_model(request: &[u8]) -> (String, Vec<u8>) {
    let mut request: Value = serde_json::from_slice(request).unwrap();
    let model = request.as_object_mut().unwrap().shift_remove("model").unwrap();
    (model.as_str().unwrap().to_owned(), request.to_string().into_bytes())
}
