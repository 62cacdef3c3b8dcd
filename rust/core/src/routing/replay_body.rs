//! Replayable request body. Stores the original and prepares a version for each target.

use bytes::Bytes;
use penstock_llm::{
    api_format::{self, gemini},
    json::edit,
    operation::Operation,
};
use penstock_net::body::{Body, BodyRecovery};
use serde_json::Value;

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    features::parameters::Parameters,
    request::param_map,
    resolve::target_resolver::ClientRequest,
};

/// Maximum bytes of JSON that is edited on the async thread, which takes far less than a millisecond.
pub const MAX_INLINE_EDIT_BYTES: usize = 256 * 1024;

/// Type of a body, which determines if it can be read and edited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    /// JSON object that was parsed.
    JsonObject,
    /// JSON that is forwarded without validation: an object or an array.
    PassthroughJson,
    Opaque,
}

/// Request body that may be sent to several targets. A buffered body can be resent; an unbuffered one, which is still
/// arriving, can be sent only once.
pub struct ReplayBody {
    buffered: Option<Bytes>,
    unbuffered: Option<Body>,
    /// Handle that returns the unbuffered body if its target read nothing of it.
    return_handle: Option<BodyRecovery>,
    kind: BodyKind,
    /// True if the path named the model and streaming. During routing the body names the model too, as in other
    /// formats.
    has_model_in_path: bool,
    /// Model that the client requested.
    pub model: String,
    pub is_streaming: bool,
}

/// Request body prepared for one target.
pub struct PreparedBody {
    pub body: Body,
    pub model: String,
    pub is_streaming: bool,
}

impl ReplayBody {
    /// Creates the body of a request. `is_json` is true if it is JSON that was parsed, unless the operation is a proxy
    /// request.
    pub async fn new(
        client_request: &ClientRequest<'_>,
        mut body: Body,
        is_json: bool,
        log: &RequestLog,
    ) -> Result<Self> {
        let (model, stream) = (log.model.clone(), log.is_streaming);
        let is_by_path = client_request.route.model().is_some();
        if is_by_path && matches!(body, Body::Complete(_)) {
            body.rewrite_buffered(param_map::model_setter(client_request, model.clone())).await?;
        }
        let (buffered, streamed) = match body {
            Body::Complete(bytes) => (Some(bytes), None),
            fed @ Body::Streamed(..) => (None, Some(fed)),
        };
        let content = match client_request.route.operation {
            _ if !is_json => BodyKind::Opaque,
            Operation::Proxy => BodyKind::PassthroughJson,
            _ => BodyKind::JsonObject,
        };
        Ok(Self {
            buffered,
            unbuffered: streamed,
            return_handle: None,
            kind: content,
            has_model_in_path: is_by_path,
            model,
            is_streaming: stream,
        })
    }

    /// Returns true if the body can be sent once more.
    pub fn can_resend(&self) -> bool {
        self.buffered.is_some()
            || self.unbuffered.is_some()
            || self.return_handle.as_ref().is_some_and(BodyRecovery::is_returned)
    }

    /// Prepares the body for sending and keeps a handle to it. If the target reads nothing of it, `reclaim` returns it.
    pub fn check_out(&mut self, body: Body) -> Body {
        let (body, return_handle) = body.make_recoverable();
        self.return_handle = return_handle;
        body
    }

    /// Returns the unbuffered body if it was not sent or its target read nothing of it.
    pub fn reclaim(&mut self) -> Option<Body> {
        self.unbuffered.take().or_else(|| self.return_handle.take()?.recover())
    }

    /// Puts back a body that was not sent.
    pub fn restore(&mut self, body: Body) {
        if self.buffered.is_none() {
            self.unbuffered = Some(body);
        }
    }

    /// Returns a copy if the body is buffered; `None` if it is still arriving.
    pub fn try_clone(&self) -> Option<Self> {
        let bytes = self.buffered.clone()?;
        Some(Self {
            buffered: Some(bytes),
            unbuffered: None,
            return_handle: None,
            kind: self.kind,
            has_model_in_path: self.has_model_in_path,
            model: self.model.clone(),
            is_streaming: self.is_streaming,
        })
    }

    pub fn as_json(&self) -> Option<&Bytes> {
        self.buffered.as_ref().filter(|_| self.kind != BodyKind::Opaque)
    }

    /// Returns the values of top-level JSON fields, in the order of `names`.
    pub fn json_fields(&self, names: &[String]) -> Vec<Option<Value>> {
        match self.as_json() {
            Some(bytes) if !names.is_empty() => edit::pick_values(bytes, names),
            _ => vec![None; names.len()],
        }
    }

    /// Returns the body for a target, with these parameters applied.
    pub async fn prepare(&mut self, parameters: &Parameters) -> Result<PreparedBody> {
        let (model, stream) = (self.model.clone(), self.is_streaming);
        let Some(bytes) = &self.buffered else {
            let body = self.reclaim().ok_or(Error::IncompleteBody)?;
            return Ok(PreparedBody { body, model, is_streaming: stream });
        };
        let same = PreparedBody { body: Body::Complete(bytes.clone()), model, is_streaming: stream };
        if parameters.is_none() || self.kind == BodyKind::Opaque || bytes.is_empty() {
            return Ok(same);
        }
        let changed = if bytes.len() <= MAX_INLINE_EDIT_BYTES {
            apply_parameters(parameters, bytes)
        } else {
            let (parameters, bytes) = (parameters.clone(), bytes.clone());
            let applied = tokio::task::spawn_blocking(move || apply_parameters(&parameters, &bytes)).await;
            applied.map_err(|_| Error::Panicked)?
        };
        let stream = same.is_streaming;
        let changed = match (changed, self.kind) {
            (Err(_), BodyKind::PassthroughJson) => same,
            (changed, _) => changed?.unwrap_or(same),
        };
        Ok(if self.has_model_in_path { PreparedBody { is_streaming: stream, ..changed } } else { changed })
    }
}

fn apply_parameters(parameters: &Parameters, bytes: &[u8]) -> Result<Option<PreparedBody>> {
    let invalid = |error: api_format::ScanError| Error::BodyInvalid { offset: error.offset, message: error.message };
    let Some(changed) = parameters.apply(bytes).map_err(invalid)? else { return Ok(None) };
    let peek = api_format::peek(&changed).map_err(invalid)?;
    let (stream, model) = (peek.is_streaming(), peek.model.unwrap_or_default());
    Ok(Some(PreparedBody { body: Body::Complete(changed.into()), model, is_streaming: stream }))
}

/// Removes the model from a body, for requests that name it in the path. `None` if the body has none.
fn remove_model(bytes: &[u8]) -> Option<Vec<u8>> {
    let path = edit::FieldPath::parse("model").ok()?;
    edit::remove_paths(bytes, &[path]).ok().flatten()
}

impl PreparedBody {
    /// Replaces the model in the body.
    pub async fn set_model(&mut self, client_request: &ClientRequest<'_>, model: &str) -> Result<()> {
        model.clone_into(&mut self.model);
        Ok(self.body.rewrite_buffered(param_map::model_setter(client_request, model.to_owned())).await?)
    }

    /// Returns the final body for its target. Removes the model if the path names it, and sets it in each item of a
    /// batch.
    pub async fn into_body(self, client_request: &ClientRequest<'_>) -> Result<Body> {
        let Self { mut body, model, .. } = self;
        let is_batch = client_request.route.operation == Operation::BatchEmbedContents;
        if matches!(body, Body::Complete(_)) && (is_batch || client_request.route.model().is_some()) {
            let change = move |bytes: &[u8]| {
                let rest = remove_model(bytes);
                let updated =
                    is_batch.then(|| gemini::replace_batch_model(rest.as_deref().unwrap_or(bytes), &model)).flatten();
                updated.or(rest)
            };
            body.rewrite_buffered(change).await?;
        }
        Ok(body)
    }
}
