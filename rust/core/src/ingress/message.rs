//! Requests without their body, facts about them for their records, and complete responses.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use penstock_net::{ResponseHead, headers::Headers};
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

/// Where the gateway reads the output of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutput {
    /// The gateway must read the batch first, to find its output.
    Batch,
    /// The output is in the customer's own storage at this URL.
    Blob(String),
    /// The output is a file at the provider, with response lines for this endpoint and model.
    ProviderFile { endpoint: String, model: String },
}

/// Prompt from which a request was rendered, as the record of the request contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptIdentity {
    pub id: Box<str>,
    pub slug: Box<str>,
    pub version_id: Box<str>,
    pub version: u32,
    /// Label by which the caller chose the version.
    pub label: Option<Box<str>>,
    pub variables: Value,
    /// True for a request of a comparison of two versions.
    pub is_comparison: bool,
    /// Saved provider of a prompt that another workspace shares.
    pub provider: Option<PromptProvider>,
}

/// Saved provider that a shared prompt uses with the rights of its own workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptProvider {
    pub workspace: Box<str>,
    pub slug: Box<str>,
    /// Model of the prompt, with the slug as its prefix. Only requests for this model may use the provider. `None` if
    /// the prompt has no model.
    pub model: Option<Box<str>>,
}

impl PromptProvider {
    /// Fields that callers of a shared prompt may set. Other fields could change the prompt or request more than it
    /// does: providers have fields with texts, models and tools that the gateway does not know.
    pub const FIELDS_OF_CALLER: [&'static str; 17] = [
        "frequency_penalty",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
    ];
    /// Fields whose value callers may not raise above the value in the prompt.
    pub const TOKEN_FIELDS: [&'static str; 3] = ["max_completion_tokens", "max_output_tokens", "max_tokens"];

    /// Returns true if callers of a shared prompt may set this field.
    pub fn may_caller_set(field: &str) -> bool {
        Self::FIELDS_OF_CALLER.contains(&field)
    }
}

/// Figures for a request whose record is already closed.
#[derive(Debug, Clone, Copy)]
pub struct RecordFigures {
    /// Id of the record, by which its log is found.
    pub id: Uuid,
    pub elapsed: Duration,
    /// Cost of the request; `None` if the model has no price.
    pub nanodollars: Option<u64>,
    /// Tokens of input and output; `None` if they are not known.
    pub tokens: Option<(u64, u64)>,
}

/// Receives the figures of one request.
#[derive(Debug, Default)]
pub struct RecordObserver {
    figures: OnceLock<RecordFigures>,
    closed: Notify,
}

impl RecordObserver {
    /// Stores the figures. Called once, when the record closes.
    pub fn report(&self, figures: RecordFigures) {
        self.figures.set(figures).ok();
        self.closed.notify_one();
    }

    /// Waits for the figures. They may come late, because the gateway counts tokens that the provider did not report
    /// after it has sent the response.
    pub async fn wait(&self, limit: Duration) -> Option<RecordFigures> {
        if self.figures.get().is_none() {
            tokio::time::timeout(limit, self.closed.notified()).await.ok();
        }
        self.figures.get().copied()
    }
}

/// Request without its body, shared by the request pipeline and the record.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// Upper-case method, such as `POST`.
    pub method: String,
    /// Path as received: percent-encoded, without the query.
    pub path: String,
    pub query: String,
    pub headers: Headers,
    /// Address of the connection's peer. Set for management requests, and for other requests if records contain it.
    pub peer_ip: Option<IpAddr>,
    /// Location of the batch output that the gateway fetches for the caller, as the provider reported it.
    pub batch_output: Option<Box<BatchOutput>>,
    /// Prompt from which the request was rendered.
    pub prompt: Option<Box<PromptIdentity>>,
    /// Receives the figures of the request, if the gateway itself sent it.
    pub observer: Option<Arc<RecordObserver>>,
    /// True if a guardrail sends the request to a model. No guardrail checks such a request.
    pub is_guardrail_question: bool,
}

impl RequestHead {
    /// Returns the size in bytes of the request head, without the HTTP version.
    pub fn size_bytes(&self) -> usize {
        self.method.len() + self.path.len() + self.query.len() + self.headers.size_bytes()
    }

    /// Returns true for methods whose requests have a body even when it is empty.
    pub fn has_body_method(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }

    /// Returns true if sending the request twice does no harm.
    pub fn is_replayable(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE")
            || self.headers.get("idempotency-key").is_some()
    }
}

/// Response with its complete body, as opposed to a stream.
#[derive(Debug, Default, Clone)]
pub struct CompleteResponse {
    pub head: ResponseHead,
    pub body: Bytes,
}
