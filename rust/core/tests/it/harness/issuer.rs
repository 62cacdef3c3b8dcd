//! A mock credential issuer that records its requests.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::scripted_server::{ScriptedServer, read_request};

/// Issues credentials and records the requests for them.
pub struct CredentialIssuer {
    pub server: ScriptedServer,
    requests: Arc<Mutex<Vec<String>>>,
}

impl CredentialIssuer {
    /// Starts an issuer. `response` maps the request number, counted from 1, to a status and a body.
    pub async fn start_with_responses(response: impl Fn(usize) -> (u16, String) + Send + Sync + 'static) -> Self {
        let received_requests = Arc::new(Mutex::new(Vec::new()));
        let (shared, response) = (Arc::clone(&received_requests), Arc::new(response));
        let server = ScriptedServer::start(move |mut stream, _| {
            let (shared, response) = (Arc::clone(&shared), Arc::clone(&response));
            async move {
                while let Some(bytes) = read_request(&mut stream).await {
                    let number = {
                        let mut shared = shared.lock().unwrap();
                        shared.push(String::from_utf8(bytes).unwrap());
                        shared.len()
                    };
                    let (status, body) = response(number);
                    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
                    stream.write_all([head, body].concat().as_bytes()).await.unwrap();
                }
            }
        })
        .await;
        Self { server, requests: received_requests }
    }

    pub async fn start_with_tokens() -> Self {
        Self::start_with_responses(|number| {
            (200, json!({"access_token": format!("token-{number}"), "expires_in": 3600}).to_string())
        })
        .await
    }

    pub fn received_requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns the form fields of the request with this index.
    pub fn form_fields(&self, number: usize) -> Vec<(String, String)> {
        let requests = self.received_requests();
        let (_, body) = requests[number].split_once("\r\n\r\n").unwrap();
        url::form_urlencoded::parse(body.as_bytes()).into_owned().collect()
    }
}
