//! Batches that providers run, where only some models may be used: what their lines name is looked at when a file goes there, and
//! once more in the file itself when a batch is made of it, whoever brought it there.

use std::{borrow::Cow, sync::Arc};

use penstock_llm::{
    api_format::{ApiFormat, LineSplitter},
    http_form::batch_lines::{self, BatchLineError, BatchUploadChecker},
    operation::Operation,
};
use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    accounting::record::RequestLog,
    endpoints::batches::PATH_SEGMENT_ENCODE_SET,
    error::{Error, Result},
    gateway::Gateway,
    ingress::{body::Body, headers::RequestHead, route::Route},
    process::deadline::Deadline,
    resolve::{models::SavedModels, target::Target, target_resolver::Call},
    upstream::IncomingResponse,
};

/// Where Anthropic has batches.
const MESSAGE_BATCHES_PATH: &str = "/messages/batches";

/// What makes a batch, as far as it is known where its lines are: in one file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "they are known by their names, and nothing is read of them")]
struct CreateBatchBody<'b> {
    #[serde(borrow)]
    input_file_id: Cow<'b, str>,
    endpoint: Option<IgnoredAny>,
    completion_window: Option<IgnoredAny>,
    metadata: Option<IgnoredAny>,
    output_expires_after: Option<IgnoredAny>,
    model: Option<IgnoredAny>,
}

impl Target<'_> {
    /// Whose lines are to be looked at, where this request brings or names some and only some models may be used.
    pub fn batch_line_allowlist(&self, call: &Call<'_>) -> Option<&Arc<SavedModels>> {
        let is_one = match call.route.operation {
            // Elsewhere files become no batches, or a job names the model of all lines.
            Operation::UploadFile | Operation::CreateBatch => self.provider.supports_natively(Operation::CreateBatch),
            Operation::Proxy => call.route.path == MESSAGE_BATCHES_PATH && self.is_anthropic_post(call),
            _ => false,
        };
        if !is_one {
            return None;
        }
        self.saved_provider?.models.as_ref().filter(|models| models.is_restricted())
    }

    /// Whether a request asks for the end of a batch of messages, for which no model is asked.
    pub fn is_message_batch_cancel(&self, call: &Call<'_>) -> bool {
        let below = call.route.path.strip_prefix(MESSAGE_BATCHES_PATH).and_then(|rest| rest.strip_prefix('/'));
        let id = below.and_then(|rest| rest.strip_suffix("/cancel"));
        id.is_some_and(|id| !id.is_empty() && !id.contains(['/', '.', '%'])) && self.is_anthropic_post(call)
    }

    fn is_anthropic_post(&self, call: &Call<'_>) -> bool {
        call.head.method == "POST" && self.provider.api_format() == ApiFormat::Anthropic
    }
}

/// The body as it may go on. An error says why it may not.
pub async fn check_batch_models(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    body: Body,
    facts: &mut RequestLog,
) -> Result<Body> {
    let Some(models) = target.batch_line_allowlist(call) else { return Ok(body) };
    match call.route.operation {
        Operation::UploadFile => return check_upload(call, Arc::clone(models), gateway.body_limits.max_bytes, body),
        Operation::Proxy => return check_message_batch(Arc::clone(models), body).await,
        _ => (),
    }
    let head = file_request_head(call, target, body.complete_bytes())?;
    let (incoming, mut deadline) = fetch_file(gateway, (call, &head), target, facts).await?;
    deadline.enforce(check_lines(incoming, models, gateway.body_limits.max_bytes)).await?;
    Ok(body)
}

/// A batch of messages, all of which come in one body.
async fn check_message_batch(models: Arc<SavedModels>, body: Body) -> Result<Body> {
    let bytes = body.collect().await?;
    let (looked, whole) = (bytes.clone(), bytes);
    let look = move || batch_lines::check_message_batch(&looked, &|model| models.is_allowed(model));
    // Looking neither panics nor is cancelled, unless the process ends; here others would wait.
    tokio::task::spawn_blocking(look).await.map_err(|_| Error::Draining)?.map_err(fault_to_error)?;
    Ok(Body::Complete(whole))
}

/// A form whose lines are looked at on their way.
fn check_upload(call: &Call<'_>, models: Arc<SavedModels>, longest: usize, body: Body) -> Result<Body> {
    let kind = call.head.headers.get_str("content-type").unwrap_or_default();
    let unread = |message: &str| Error::BatchUnreadable { message: message.into() };
    let mut form = BatchUploadChecker::from_content_type(kind, longest)
        .ok_or_else(|| unread("a file comes in a form (multipart/form-data)"))?;
    let mut left = body.length();
    body.with_guard(Box::new(move |piece| {
        if let Some(piece) = piece {
            form.feed(piece, &|model| models.is_allowed(model)).map_err(fault_to_error)?;
            left = left.map(|left| left.saturating_sub(piece.len() as u64));
        }
        // With the last byte the provider would have all that it gets.
        let is_last = piece.is_none() || left == Some(0);
        if is_last && !form.is_finished() { Err(unread("the form does not end")) } else { Ok(()) }
    }))
}

fn fault_to_error(fault: BatchLineError) -> Error {
    match fault {
        BatchLineError::ModelNotAllowed(model) => Error::ModelNotAllowed { model },
        BatchLineError::Malformed(message) => Error::BatchUnreadable { message },
    }
}

/// The head of the question what is in the file that a batch is made of.
fn file_request_head(call: &Call<'_>, target: &Target<'_>, made: &[u8]) -> Result<RequestHead> {
    let invalid = |message: String| Error::BatchUnreadable { message };
    let made: CreateBatchBody<'_> = serde_json::from_slice(made).map_err(|error| invalid(error.to_string()))?;
    let id = &*made.input_file_id;
    if matches!(id, "" | "." | "..") {
        return Err(invalid("input_file_id must name a file".into()));
    }
    // Nothing that could ask for less than all of it.
    let version = call.head.query.split('&').filter(|pair| pair.starts_with("api-version="));
    let mut headers = call.head.headers.clone();
    let is_partial = |name: &[u8]| name == b"range" || name.starts_with(b"if-") || name == b"accept-encoding";
    headers.retain(|name| name.starts_with(b"openai-") || (target.forward_headers.contains(name) && !is_partial(name)));
    Ok(RequestHead {
        method: "GET".into(),
        path: format!("/v1/files/{}/content", utf8_percent_encode(id, PATH_SEGMENT_ENCODE_SET)),
        query: version.collect::<Vec<_>>().join("&"),
        headers,
        ..RequestHead::default()
    })
}

/// The file as the provider has it.
async fn fetch_file(
    gateway: &Gateway,
    (call, head): (&Call<'_>, &RequestHead),
    target: &Target<'_>,
    facts: &mut RequestLog,
) -> Result<(IncomingResponse, Deadline)> {
    let operation = Operation::RetrieveFileContent;
    let route = Route { operation, path: head.path.strip_prefix("/v1").unwrap_or_default(), ..call.route };
    if target.provider.provider_format(operation, "").is_some() || !target.provider.supports(operation) {
        return Err(Error::UnsupportedOperation { operation: operation.id(), provider: target.provider.slug() });
    }
    let look = Call { route, head, control: call.control };
    let (incoming, deadline) = gateway.send_to_target(&look, target, (Body::empty(), None), facts).await?;
    let is_plain = incoming.head.headers.get_str("content-encoding").is_none_or(|coding| coding == "identity");
    if incoming.head.status == 200 && is_plain {
        return Ok((incoming, deadline));
    }
    let message = format!("its provider does not show the file of this batch (status {})", incoming.head.status);
    Err(Error::BatchUnreadable { message })
}

/// Looks at all lines of a file.
async fn check_lines(mut incoming: IncomingResponse, models: &SavedModels, most: usize) -> Result<()> {
    let (mut lines, mut length) = (LineSplitter::new(most), 0);
    let each = |number: usize, line: &[u8]| batch_lines::check_line(number, line, &|model| models.is_allowed(model));
    while let Some(piece) = incoming.body.next_chunk().await.transpose()? {
        length += piece.len();
        if length > most {
            let message = format!("the file of this batch is larger than {most} bytes");
            return Err(Error::BatchUnreadable { message });
        }
        lines.feed(&piece, each).map_err(fault_to_error)?;
        // What is there at once may be much: others are let in between.
        tokio::task::yield_now().await;
    }
    lines.finish(each).map_err(fault_to_error)
}
