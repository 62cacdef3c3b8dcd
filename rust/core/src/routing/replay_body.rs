//! The body of a request on its way from target to target: as it came, as each of them gets it.

use bytes::Bytes;
use penstock_llm::{
    api_format::{self, gemini},
    json::edit,
    operation::Operation,
};
use serde_json::Value;

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    features::parameters::Parameters,
    ingress::body::{Body, BodyRecovery},
    request::param_map,
    resolve::target_resolver::Call,
};

/// JSON up to this size is changed in far less than a millisecond.
const MAX_INLINE_EDIT_BYTES: usize = 256 * 1024;

/// What can be looked into and changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    /// A JSON object, which was read.
    JsonObject,
    /// JSON that is between caller and provider: an object or a list.
    PassthroughJson,
    Opaque,
}

/// A body that is whole may be sent to many; one that is still arriving goes to the first and is gone.
pub struct ReplayBody {
    buffered: Option<Bytes>,
    unbuffered: Option<Body>,
    /// The same while it is at a target.
    return_handle: Option<BodyRecovery>,
    kind: BodyKind,
    /// Model and stream were said in the path: while it is routed the body names the model too, as everybody else's.
    has_model_in_path: bool,
    /// The model that the caller asks for.
    pub model: String,
    pub is_streaming: bool,
}

/// A body as one target gets it.
pub struct PreparedBody {
    pub body: Body,
    pub model: String,
    pub is_streaming: bool,
}

impl ReplayBody {
    /// `is_json`: it is JSON, and was read where its operation is known.
    pub async fn new(call: &Call<'_>, mut body: Body, is_json: bool, facts: &RequestLog) -> Result<Self> {
        let (model, stream) = (facts.model.clone(), facts.is_streaming);
        let is_by_path = call.route.model().is_some();
        if is_by_path && matches!(body, Body::Complete(_)) {
            body.rewrite_buffered(param_map::model_setter(call, model.clone())).await?;
        }
        let (whole, once) = match body {
            Body::Complete(bytes) => (Some(bytes), None),
            fed @ Body::Streamed(..) => (None, Some(fed)),
        };
        let content = match call.route.operation {
            _ if !is_json => BodyKind::Opaque,
            Operation::Proxy => BodyKind::PassthroughJson,
            _ => BodyKind::JsonObject,
        };
        Ok(Self {
            buffered: whole,
            unbuffered: once,
            return_handle: None,
            kind: content,
            has_model_in_path: is_by_path,
            model,
            is_streaming: stream,
        })
    }

    /// Whether it can be sent once more.
    pub fn can_resend(&self) -> bool {
        self.buffered.is_some()
            || self.unbuffered.is_some()
            || self.return_handle.as_ref().is_some_and(BodyRecovery::is_returned)
    }

    /// A body on its way to a target. Where nothing was read of it there it comes back.
    pub fn check_out(&mut self, body: Body) -> Body {
        let (body, lent) = body.make_recoverable();
        self.return_handle = lent;
        body
    }

    /// What came back of what is still arriving.
    pub fn reclaim(&mut self) -> Option<Body> {
        self.unbuffered.take().or_else(|| self.return_handle.take()?.recover())
    }

    /// It did not leave.
    pub fn restore(&mut self, body: Body) {
        if self.buffered.is_none() {
            self.unbuffered = Some(body);
        }
    }

    /// The same once more, where it is whole.
    pub fn try_clone(&self) -> Option<Self> {
        let whole = self.buffered.clone()?;
        Some(Self {
            buffered: Some(whole),
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

    /// The values of these fields, where it is JSON.
    pub fn json_fields(&self, names: &[String]) -> Vec<Option<Value>> {
        match self.as_json() {
            Some(bytes) if !names.is_empty() => edit::pick_values(bytes, names),
            _ => vec![None; names.len()],
        }
    }

    /// The body for a target with these parameters.
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
            let elsewhere = tokio::task::spawn_blocking(move || apply_parameters(&parameters, &bytes)).await;
            elsewhere.map_err(|_| Error::Panicked)?
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
    let invalid = |found: api_format::ScanError| Error::BodyInvalid { offset: found.offset, message: found.message };
    let Some(changed) = parameters.apply(bytes).map_err(invalid)? else { return Ok(None) };
    let peek = api_format::peek(&changed).map_err(invalid)?;
    let (stream, model) = (peek.is_streaming(), peek.model.unwrap_or_default());
    Ok(Some(PreparedBody { body: Body::Complete(changed.into()), model, is_streaming: stream }))
}

/// The same without the model, for whom the path names it; `None` where there is none in it.
fn remove_model(bytes: &[u8]) -> Option<Vec<u8>> {
    let path = edit::FieldPath::parse("model").ok()?;
    edit::remove_paths(bytes, &[path]).ok().flatten()
}

impl PreparedBody {
    /// The same with another name of the model.
    pub async fn set_model(&mut self, call: &Call<'_>, model: &str) -> Result<()> {
        model.clone_into(&mut self.model);
        self.body.rewrite_buffered(param_map::model_setter(call, model.to_owned())).await
    }

    /// The body as its target gets it.
    pub async fn into_body(self, call: &Call<'_>) -> Result<Body> {
        let Self { mut body, model, .. } = self;
        let is_batch = call.route.operation == Operation::BatchEmbedContents;
        if matches!(body, Body::Complete(_)) && (is_batch || call.route.model().is_some()) {
            let change = move |bytes: &[u8]| {
                let rest = remove_model(bytes);
                let named =
                    is_batch.then(|| gemini::replace_batch_model(rest.as_deref().unwrap_or(bytes), &model)).flatten();
                named.or(rest)
            };
            body.rewrite_buffered(change).await?;
        }
        Ok(body)
    }
}
