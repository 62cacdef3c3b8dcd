//! Model allow-list for batches that providers run. Checks the models of all lines when a file is uploaded. Checks them
//! again in the stored file when a batch is created, because the file may have been uploaded by other means.

use std::{borrow::Cow, sync::Arc};

use penstock_llm::{
    api_format::{ApiFormat, LineSplitter},
    http_form::batch_lines::{self, BatchLineError, BatchUploadChecker},
    operation::Operation,
};
use penstock_net::{Deadline, IncomingResponse, body::Body};
use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    accounting::{record::RequestLog, saved_models::SavedModels},
    endpoints::batches::PATH_SEGMENT_ENCODE_SET,
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::{message::RequestHead, route::Route},
    request::send::{ResponseHandling, send_to_target},
    resolve::{target::Target, target_resolver::ClientRequest},
};

/// Path of Anthropic's message batches.
const MESSAGE_BATCHES_PATH: &str = "/messages/batches";

/// Body that creates a batch whose lines are all in one file. Unknown fields are rejected, because they could name
/// further lines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "`deny_unknown_fields` needs the field names; their values are not read")]
struct SingleFileBatchBody<'b> {
    #[serde(borrow)]
    input_file_id: Cow<'b, str>,
    endpoint: Option<IgnoredAny>,
    completion_window: Option<IgnoredAny>,
    metadata: Option<IgnoredAny>,
    output_expires_after: Option<IgnoredAny>,
    model: Option<IgnoredAny>,
}

impl Target<'_> {
    /// Returns true if this request uploads or names the lines of a batch that the provider runs.
    pub fn has_batch_lines(&self, client_request: &ClientRequest<'_>) -> bool {
        match client_request.route.operation {
            // At other providers files do not become batches, or the job names one model for all lines.
            Operation::UploadFile | Operation::CreateBatch => self.provider.supports_natively(Operation::CreateBatch),
            Operation::Proxy => {
                client_request.route.path == MESSAGE_BATCHES_PATH && self.is_anthropic_post(client_request)
            }
            _ => false,
        }
    }

    /// Returns true if the request cancels a message batch, which needs no model.
    pub fn is_message_batch_cancel(&self, client_request: &ClientRequest<'_>) -> bool {
        let below =
            client_request.route.path.strip_prefix(MESSAGE_BATCHES_PATH).and_then(|rest| rest.strip_prefix('/'));
        let id = below.and_then(|rest| rest.strip_suffix("/cancel"));
        id.is_some_and(|id| !id.is_empty() && !id.contains(['/', '.', '%'])) && self.is_anthropic_post(client_request)
    }

    fn is_anthropic_post(&self, client_request: &ClientRequest<'_>) -> bool {
        client_request.head.method == "POST" && self.provider.row().api_format == ApiFormat::Anthropic
    }
}

/// Checks the models that a request names, at a provider where only some are allowed. Returns the body if no model is
/// rejected; the parts that are still arriving are checked as they pass.
pub async fn guard_models(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    models: &Arc<SavedModels>,
    body: Body,
    log: &mut RequestLog,
) -> Result<Body> {
    let aliases = &state.settings.header_aliases;
    if !target.has_batch_lines(client_request) {
        return target.guard_models(client_request, aliases, body);
    }
    target.guard_batch_head(client_request, aliases)?;
    match client_request.route.operation {
        Operation::UploadFile => {
            return check_upload(client_request, Arc::clone(models), state.body_limits.max_bytes, body);
        }
        Operation::Proxy => return check_message_batch(Arc::clone(models), body).await,
        _ => (),
    }
    let head = file_request_head(client_request, target, body.complete_bytes())?;
    let (incoming, mut deadline) = fetch_file(state, client_request, &head, target, log).await?;
    deadline.enforce(check_lines(incoming, models, state.body_limits.max_bytes)).await?;
    Ok(body)
}

/// Checks a message batch, which carries all its lines in one body.
async fn check_message_batch(models: Arc<SavedModels>, body: Body) -> Result<Body> {
    let bytes = body.collect().await?;
    let (checked, forwarded) = (bytes.clone(), bytes);
    let check = move || batch_lines::check_message_batch(&checked, &|model| models.is_allowed(model));
    // Runs on a blocking thread, because other requests would wait here. The check neither panics nor is cancelled,
    // unless the process is shutting down.
    tokio::task::spawn_blocking(check).await.map_err(|_| Error::Draining)?.map_err(fault_to_error)?;
    Ok(Body::Complete(forwarded))
}

/// Checks the lines of an uploaded form as they pass through.
fn check_upload(
    client_request: &ClientRequest<'_>,
    models: Arc<SavedModels>,
    longest: usize,
    body: Body,
) -> Result<Body> {
    let kind = client_request.head.headers.get_str("content-type").unwrap_or_default();
    let unread = |message: &str| Error::BatchUnreadable { message: message.into() };
    let mut form = BatchUploadChecker::from_content_type(kind, longest)
        .ok_or_else(|| unread("a file must be uploaded as a form (multipart/form-data)"))?;
    let mut unread_bytes = body.length();
    let guarded = body.with_guard(Box::new(move |chunk| {
        if let Some(chunk) = chunk {
            form.feed(chunk, &|model| models.is_allowed(model)).map_err(fault_to_error)?;
            unread_bytes = unread_bytes.map(|unread_bytes| unread_bytes.saturating_sub(chunk.len() as u64));
        }
        // Checks before the last byte is sent, because after it the provider has the complete file.
        let is_last = chunk.is_none() || unread_bytes == Some(0);
        if is_last && !form.is_finished() {
            Err(unread("the form is incomplete; its closing boundary is missing").into())
        } else {
            Ok(())
        }
    }));
    Ok(guarded?)
}

fn fault_to_error(fault: BatchLineError) -> Error {
    match fault {
        BatchLineError::ModelNotAllowed(model) => Error::model_not_allowed(model),
        BatchLineError::Malformed(message) => Error::BatchUnreadable { message },
    }
}

/// Builds the head of the request for the file from which a batch is created.
fn file_request_head(client_request: &ClientRequest<'_>, target: &Target<'_>, body: &[u8]) -> Result<RequestHead> {
    let invalid = |message: String| Error::BatchUnreadable { message };
    let batch: SingleFileBatchBody<'_> = serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    let id = &*batch.input_file_id;
    if matches!(id, "" | "." | "..") {
        return Err(invalid("input_file_id must name a file".into()));
    }
    // Drops the parameters and headers that could request less than the complete file.
    let version = client_request.head.query.split('&').filter(|pair| pair.starts_with("api-version="));
    let mut headers = client_request.head.headers.clone();
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

/// Requests the file from the provider.
async fn fetch_file(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    head: &RequestHead,
    target: &Target<'_>,
    log: &mut RequestLog,
) -> Result<(IncomingResponse, Deadline)> {
    let operation = Operation::RetrieveFileContent;
    let route = Route { operation, path: head.path.strip_prefix("/v1").unwrap_or_default(), ..client_request.route };
    if target.provider.provider_format(operation, "").is_some() || !target.provider.supports(operation) {
        return Err(Error::UnsupportedOperation { operation: operation.id(), provider: target.provider.slug() });
    }
    let file_call = ClientRequest::new(route, head, client_request.control);
    let (incoming, deadline) =
        send_to_target(state, &file_call, target, Body::empty(), ResponseHandling::Normalise, log).await?;
    let is_plain = incoming.head.headers.get_str("content-encoding").is_none_or(|coding| coding == "identity");
    if incoming.head.status == 200 && is_plain {
        return Ok((incoming, deadline));
    }
    let message = format!("the provider did not return the file of this batch (status {})", incoming.head.status);
    Err(Error::BatchUnreadable { message })
}

/// Checks all lines of a file.
async fn check_lines(mut incoming: IncomingResponse, models: &SavedModels, most: usize) -> Result<()> {
    let (mut lines, mut length) = (LineSplitter::new(most), 0);
    let each = |number: usize, line: &[u8]| batch_lines::check_line(number, line, &|model| models.is_allowed(model));
    while let Some(chunk) = incoming.body.next_chunk().await.transpose()? {
        length += chunk.len();
        if length > most {
            let message = format!("the file of this batch is larger than {most} bytes");
            return Err(Error::BatchUnreadable { message });
        }
        lines.feed(&chunk, each).map_err(fault_to_error)?;
        // Much data may be ready at once; yielding lets other tasks run in between.
        tokio::task::yield_now().await;
    }
    lines.finish(each).map_err(fault_to_error)
}
