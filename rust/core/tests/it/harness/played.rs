//! Providers that play the golden cases of translation, and keep what they were sent.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    Ask, Rig, by_with,
    scripted::{Scripted, chunks, request},
};

/// The case of a provider as the golden files have it.
pub fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/golden").join(case)
}

/// Plays the provider of a golden case and keeps what it was sent.
pub struct Played {
    pub provider: Scripted,
    /// What came last.
    pub sent: Arc<Mutex<Vec<u8>>>,
    /// The first lines of all that came.
    pub lines: Arc<Mutex<Vec<String>>>,
}

impl Played {
    pub async fn answering(status: u16, kind: &str, body: Vec<u8>, chunk: usize) -> Self {
        Self::naming(status, &format!("{kind}\r\nx-request-id: up-1"), body, chunk).await
    }

    /// The same, where the head names the request as it says.
    pub async fn naming(status: u16, kind: &str, body: Vec<u8>, chunk: usize) -> Self {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let answer = Arc::new([head.as_bytes(), &chunks(&body, chunk), b"0\r\n\r\n"].concat());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&lines);
        let provider = Scripted::start(move |mut stream, _| {
            let (answer, kept, noted) = (Arc::clone(&answer), Arc::clone(&kept), Arc::clone(&noted));
            async move {
                while let Some(bytes) = request(&mut stream).await {
                    let line = bytes.split(|byte| *byte == b'\r').next().unwrap();
                    noted.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
                    *kept.lock().unwrap() = bytes;
                    stream.write_all(&answer).await.unwrap();
                }
            }
        })
        .await;
        Self { provider, sent, lines }
    }

    pub fn rig() -> Rig {
        Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()])
    }

    /// A gateway that has it saved as `@saved`, which says what it is.
    pub fn saved(&self, provider: &str) -> Rig {
        let rig = Self::rig();
        let saved = json!({"slug": "saved", "provider": provider, "custom_host": self.provider.url()});
        rig.apply(&json!({"epoch": "1", "providers": [saved]}));
        rig
    }

    /// What that one is to get as it is, but for the part of the model's name that says who is meant.
    pub fn through(path: &str, mut body: Value) -> Ask {
        body["model"] = format!("@saved/{}", body["model"].as_str().unwrap()).into();
        by_with(&json!({"passthrough": true}), path, body.to_string())
    }

    pub fn ask(&self, provider: &str, path: &str, body: Vec<u8>) -> Ask {
        Ask::new("POST", path)
            .header("x-gateway-provider", provider)
            .header("x-gateway-custom-host", &self.provider.url())
            .header("x-gateway-vertex-project-id", "p")
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-aws-region", "eu-west-1")
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-1")
            .header("anthropic-beta", "caching")
            .body(body)
    }

    pub fn sent(&self) -> (String, Value) {
        let bytes = self.sent.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a request came");
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }
}

/// The bytes of a file of frames in hexadecimal.
pub fn frames(path: &Path) -> Vec<u8> {
    let text = fs::read_to_string(path).unwrap();
    let digits: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::bytes).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The answer without the time at which it was made.
pub fn timeless(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\"created\":") {
        out += before;
        rest = after.trim_start_matches(|one: char| one.is_ascii_digit());
    }
    out + rest
}

pub fn without_model(asked: &[u8]) -> (String, Vec<u8>) {
    let mut asked: Value = serde_json::from_slice(asked).unwrap();
    let model = asked.as_object_mut().unwrap().shift_remove("model").unwrap();
    (model.as_str().unwrap().to_owned(), asked.to_string().into_bytes())
}
