//! Parts of a request and of its response that hooks can read. A denying hook denies everything that may contain texts
//! which the gateway cannot read. Hooks that do not deny report it as skipped.

use penstock_llm::{
    operation::Operation,
    texts::{TextKind, TextPart},
};
use penstock_net::body::Body;
use serde_json::Value;

use super::unreadable::UNREADABLE_REQUEST;
use crate::{
    guardrails::{checks::Stage, hook::Hook},
    ingress::lenient_path::read_leniently,
    resolve::target_resolver::ClientRequest,
};

const UNKNOWN_PATH: &str = "requests at this path cannot be read";
const WEBSOCKET: &str = "the messages of a WebSocket cannot be read";
const PROVIDER_BATCH: &str = "the lines of a batch that a provider runs cannot be read";

/// Texts that hooks can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The texts of the request and of the response.
    Conversation,
    /// The texts of the request. The response has vectors or numbers, or repeats the request.
    Embedding,
    /// The response, which repeats what a model wrote earlier, for example in the background.
    StoredOutput,
    /// Nothing, because there are no texts of a conversation, such as in a request for a list of files.
    Nothing,
    /// Nothing, although there may be texts. Denying hooks deny the request for this reason.
    Unreadable(&'static str),
    /// Nothing, although the body may be a conversation that only its provider can parse. Hooks that redact texts deny
    /// it, too, because a client could choose such a body to get around them.
    NotJson,
    /// Nothing, although lines in a file of the provider have texts. Hooks that change texts deny the batch, too.
    ProviderBatch,
}

/// First path segments of requests whose texts are no conversation, or that guardrails do not apply to.
const OTHER_RESOURCES: [&str; 18] = [
    "assistants",
    "audio",
    "containers",
    "corpora",
    "evals",
    "files",
    "filesearchstores",
    "fine_tuning",
    "guardrail",
    "images",
    "moderations",
    "operations",
    "organization",
    "rerank",
    "tunedmodels",
    "uploads",
    "vector_stores",
    "videos",
];
/// Last segments of paths that create a batch at a provider, also after a colon.
const BATCH_SEGMENTS: [&str; 6] = [
    "batches",
    "batchgeneratecontent",
    "batchpredictionjobs",
    "asyncbatchembedcontent",
    "batch",
    "model-invocation-job",
];
/// Segments before the first that names a resource.
const BASE_SEGMENTS: [&str; 9] = ["v1", "v2", "proxy", "openai", "upload", "v1beta", "v1alpha", "v1beta1", "api"];

impl Reading {
    /// Decides which texts hooks can read, for a request in which `texts` were found.
    pub fn of_request(
        client_request: &ClientRequest<'_>,
        is_websocket: bool,
        request: &Value,
        texts: &[TextPart],
        body: &Body,
    ) -> Self {
        let operation = client_request.requested_operation();
        match operation {
            _ if is_websocket || operation == Operation::Realtime => Self::Unreadable(WEBSOCKET),
            _ if operation.is_embedding() || operation.counts_tokens() => Self::Embedding,
            Operation::Rerank | Operation::Ocr => Self::Embedding,
            _ if operation.is_chat() => Self::Conversation,
            Operation::GetModelResponse | Operation::CancelModelResponse => Self::StoredOutput,
            Operation::CreateBatch | Operation::CreateBatchJob => Self::ProviderBatch,
            // A body with the fields of a conversation counts as one on every path.
            Operation::Proxy if has_known_texts(texts) || has_turns(request) => Self::Conversation,
            Operation::Proxy => {
                let is_empty = matches!(body, Body::Complete(bytes) if bytes.is_empty());
                match Self::of_path(client_request, is_empty) {
                    Self::Unreadable(UNKNOWN_PATH) if !request.is_object() => Self::NotJson,
                    reading => reading,
                }
            }
            _ => Self::Nothing,
        }
    }

    /// Decides by the path of a forwarded request without texts.
    fn of_path(client_request: &ClientRequest<'_>, is_empty: bool) -> Self {
        let path = read_leniently(client_request.route.path);
        let mut segments = path.split('/').skip(1).skip_while(|segment| BASE_SEGMENTS.contains(segment));
        let first = segments.next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let is_sent = !matches!(client_request.head.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "DELETE");
        if is_sent && BATCH_SEGMENTS.iter().any(|name| last == *name || last.ends_with(&format!(":{name}"))) {
            return Self::ProviderBatch;
        }
        match first {
            "chat" | "conversations" | "responses" if !is_sent || is_empty => Self::StoredOutput,
            // A thread run sends no text, but its response contains generated text.
            "threads" => Self::StoredOutput,
            _ if !is_sent || is_empty || OTHER_RESOURCES.contains(&first) => Self::Nothing,
            _ => Self::Unreadable(UNKNOWN_PATH),
        }
    }

    /// Returns true if hooks read texts at this stage.
    pub fn includes(self, stage: Stage) -> bool {
        match self {
            Self::Conversation => true,
            Self::Embedding => stage == Stage::Input,
            Self::StoredOutput => stage == Stage::Output,
            Self::Nothing | Self::Unreadable(_) | Self::NotJson | Self::ProviderBatch => false,
        }
    }

    /// Returns true if a request has texts in a form that hooks expect.
    pub fn has_request_texts(self) -> bool {
        self.includes(Stage::Input)
    }

    /// Returns why there may be texts that cannot be read; `None` if there are none, or if they can be read.
    pub fn unreadable_reason(self) -> Option<&'static str> {
        match self {
            Self::Unreadable(reason) => Some(reason),
            Self::NotJson => Some(UNREADABLE_REQUEST),
            Self::ProviderBatch => Some(PROVIDER_BATCH),
            Self::Conversation | Self::Embedding | Self::StoredOutput | Self::Nothing => None,
        }
    }

    /// Returns true if a synchronous hook denies a request or response that cannot be read. A hook that changes texts
    /// denies a batch, because it cannot change the lines of the batch. A hook that returns values denies too, because
    /// it must replace all of them.
    pub fn is_denied_by(self, hook: &Hook) -> bool {
        let is_changing = match self {
            Self::ProviderBatch => hook.may_change(),
            Self::NotJson => hook.may_redact(),
            _ => false,
        };
        self.unreadable_reason().is_some() && (hook.denies || is_changing || hook.restores())
    }
}

/// Returns true if a body has the turns of a conversation, also if their content has an unknown form.
fn has_turns(request: &Value) -> bool {
    ["messages", "contents"].iter().any(|name| request[name].as_array().is_some_and(|turns| !turns.is_empty()))
}

/// Returns true if some texts are in fields that a format knows.
pub fn has_known_texts(texts: &[TextPart]) -> bool {
    texts.iter().any(|part| part.kind != TextKind::Other)
}
