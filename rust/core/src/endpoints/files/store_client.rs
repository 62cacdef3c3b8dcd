//! Client for a provider's file store. Each of its requests has its own credential, signature and timeout.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use penstock_llm::{
    api_format::ApiFormat,
    files::{self, FileStore},
    operation::Operation,
};
use penstock_net::{
    Deadline, IncomingResponse, Origin, OutgoingRequest, ResponseBody, Upstream, body::Body, coarse_timer::CoarseTimer,
};

use crate::{
    endpoints::batches::azure_blob_output::BlobUrl,
    error::{Error, Result},
    gateway_state::GatewayState,
    request::internal_request::InternalRequest,
    resolve::target::Target,
    response::{delivery::UpstreamResponse, mask_secrets, offload::with_content_type},
};

/// Maximum size of an error body that is read; a larger one is reported by its status alone.
const MAX_ERROR_BODY_BYTES: usize = 1024 * 1024;
/// Content type of all file contents. The stored type is ignored, because the gateway does not interpret the content.
const FILE_CONTENT_TYPE: &[u8] = b"application/octet-stream";

/// Failure of a file request: an error of the gateway, or the file store's own error response.
pub enum FileStoreError {
    Gateway(Error),
    Upstream(Box<UpstreamResponse>),
}

impl From<Error> for FileStoreError {
    fn from(error: Error) -> Self {
        Self::Gateway(error)
    }
}

impl From<penstock_net::Error> for FileStoreError {
    fn from(error: penstock_net::Error) -> Self {
        Self::Gateway(error.into())
    }
}

pub type FileStoreResult<T = UpstreamResponse> = std::result::Result<T, FileStoreError>;

/// Sends requests to the file store of one target.
pub struct FileStoreClient<'t> {
    pub state: &'t GatewayState,
    pub target: &'t Target<'t>,
    pub operation: Operation,
    pub file_store: FileStore,
    /// Total time spent waiting for response heads, in nanoseconds.
    pub upstream_nanos: AtomicU64,
}

/// A prepared request to another host that is not sent yet.
pub struct PreparedFetch {
    upstream: Arc<Upstream>,
    timer: CoarseTimer,
    timeout: Duration,
    origin: Origin,
    outgoing: OutgoingRequest,
}

impl PreparedFetch {
    pub async fn send(self) -> Result<(IncomingResponse, Deadline)> {
        let mut deadline = Deadline::new(self.timeout, &Body::empty(), &self.timer);
        let sending = pin!(self.upstream.send(&self.origin, self.outgoing));
        let incoming = deadline.enforce(sending).await?;
        Ok((incoming, deadline))
    }
}

impl FileStoreClient<'_> {
    /// Sends a request. A status of 300 or above is an error.
    pub async fn send(&self, request: InternalRequest<'_>) -> FileStoreResult<(IncomingResponse, Deadline)> {
        let (mut incoming, mut deadline) = self.exchange(request).await?;
        if incoming.head.status < 300 {
            return Ok((incoming, deadline));
        }
        let response = self.read_text(&mut incoming, &mut deadline, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        Err(self.upstream_error(incoming, &response))
    }

    /// Converts the file store's error response to `OpenAI`'s shape.
    pub fn upstream_error(&self, incoming: IncomingResponse, response: &str) -> FileStoreError {
        let IncomingResponse { head, .. } = &incoming;
        let request_id = head.headers.get_str(self.file_store.request_id_header());
        let body = files::translate_error(self.target.provider.slug(), head.status, response.as_bytes(), request_id);
        FileStoreError::Upstream(Box::new(self.json_response(incoming, body)))
    }

    async fn exchange(&self, request: InternalRequest<'_>) -> Result<(IncomingResponse, Deadline)> {
        let (state, target) = (self.state, self.target);
        let outgoing = request.into_outgoing(state, target, self.operation).await?;
        let mut deadline = Deadline::new(target.timeout, &outgoing.body, &state.coarse_timer);
        let started_at = Instant::now();
        let sending = pin!(state.upstream.send(&target.base_url.origin, outgoing));
        let incoming = deadline.enforce(sending).await?;
        self.upstream_nanos.fetch_add(started_at.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok((incoming, deadline.response_started()))
    }

    /// Downloads from a signed URL at another host. A status other than 200 is an error.
    pub async fn fetch(&self, url: &str) -> FileStoreResult<(IncomingResponse, Deadline)> {
        let (mut incoming, mut deadline) = self.prepare_fetch(url)?.send().await?;
        if incoming.head.status == 200 {
            return Ok((incoming, deadline.response_started()));
        }
        let response = self.read_text(&mut incoming, &mut deadline, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        let masked = mask_secrets::mask_url_secrets(url, response.as_bytes());
        Err(self.upstream_error(incoming, &String::from_utf8_lossy(&masked)))
    }

    /// Prepares a download from a signed URL, to be sent later. No credential is sent, because the URL is signed.
    pub fn prepare_fetch(&self, url: &str) -> Result<PreparedFetch> {
        let wrong = |reason: &str| {
            self.option_error(format!("the content of this file is at an address that cannot be read: {reason}"))
        };
        let blob = BlobUrl::parse(url).map_err(|reason| wrong(&reason))?;
        if !blob.has_trusted_transport(&self.state.upstream) {
            return Err(wrong("it is not https"));
        }
        let (upstream, timer) = (Arc::clone(&self.state.upstream), self.state.coarse_timer.clone());
        Ok(PreparedFetch {
            outgoing: blob.build_request(""),
            origin: blob.base.origin,
            upstream,
            timer,
            timeout: self.target.timeout,
        })
    }

    /// Reads a response body of at most `max_bytes` bytes as text. A longer one is an error.
    pub async fn read_text(
        &self,
        incoming: &mut IncomingResponse,
        deadline: &mut Deadline,
        max_bytes: usize,
    ) -> Result<String> {
        let collecting = pin!(penstock_net::collect(&mut incoming.body, max_bytes));
        let bytes = deadline.enforce(collecting).await?;
        let bytes = bytes.ok_or_else(|| Error::UpstreamResponseBroken { cause: "it is too large".into() })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Builds a 200 response with a body in `OpenAI`'s format.
    pub fn success_response(&self, mut incoming: IncomingResponse, json: Vec<u8>) -> UpstreamResponse {
        // Deletions, for example, return 204.
        incoming.head.status = 200;
        self.json_response(incoming, json)
    }

    pub fn json_response(&self, incoming: IncomingResponse, json: Vec<u8>) -> UpstreamResponse {
        let mut head = incoming.head;
        head.headers = with_content_type(head.headers, b"application/json");
        let incoming = IncomingResponse { head, body: ResponseBody::from_bytes(json.into()) };
        let deadline = Deadline::new(self.target.timeout, &Body::empty(), &self.state.coarse_timer);
        UpstreamResponse::new(incoming, ApiFormat::OpenAi, deadline)
    }

    /// Returns the error for a provider option that is missing or not allowed.
    pub fn option_error(&self, message: String) -> Error {
        Error::ProviderOptionInvalid { provider: self.target.provider.slug(), message }
    }

    /// Returns the error for a request field that the file store cannot accept.
    pub fn untranslatable_error(&self, path: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Untranslatable { provider: self.target.provider.slug(), path: path.into(), message: message.into() }
    }
}

/// Returns the error for an upstream response that cannot be used.
pub fn broken_response(cause: &str) -> Error {
    Error::UpstreamResponseBroken { cause: cause.into() }
}

/// Streams the bytes of a file unchanged.
pub fn passthrough_response(incoming: IncomingResponse, deadline: Deadline) -> UpstreamResponse {
    let IncomingResponse { mut head, body } = incoming;
    head.headers.retain(|name| name != b"content-type");
    head.headers.push(b"content-type", FILE_CONTENT_TYPE);
    UpstreamResponse::new(IncomingResponse { head, body }, ApiFormat::OpenAi, deadline)
}
