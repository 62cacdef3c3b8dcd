//! Delivery of responses to the client. A small response is sent complete; any other is a stream that closes its record
//! when it ends.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Bytes;
use penstock_llm::{
    api_format::ApiFormat,
    operation::Operation,
    stream::{meter::SseMeter, skim::ResponseSkimmer},
    usage::Usage,
};
use penstock_net::{
    Deadline, IncomingResponse, ResponseBody, ResponseHead, UpstreamWebSocket,
    headers::{self, Headers},
};

use crate::{
    accounting::{
        compressed_response,
        record::{self, DeferredBilling, Outcome, Record, details::AttemptFailure},
        token_counting::CountableResponse,
    },
    error::{Error, ErrorOrigin, Result},
    gateway_state::GatewayState,
    ingress::{
        control_headers::{self, ControlHeaders},
        message::{CompleteResponse, RequestHead},
    },
    resolve::target_resolver::ClientRequest,
    response::{
        client_response::{ClientResponse, ClientResponseHead},
        client_rewriter::RewriteForClient,
        limit_headers, pretty_print,
        response_meter::ResponseMeter,
        response_stream::ResponseStream,
    },
};
use penstock_llm::stream::transcript::StreamFormat;
use std::sync::Arc;

/// Content type of SSE streams.
const SSE_CONTENT_TYPE: &str = "text/event-stream";
/// Content type of AWS event streams.
const AWS_EVENT_STREAM_CONTENT_TYPE: &str = "application/vnd.amazon.eventstream";

/// Responses up to this size are read completely before they are sent to the client.
pub const MAX_BUFFERED_RESPONSE_BYTES: usize = 256 * 1024;

/// Request body of a stream, and the target that responded, saved so that another target can continue the stream.
pub struct ResumePoint {
    pub(crate) request_body: Bytes,
    pub(crate) model: String,
    pub(crate) target_path: Arc<str>,
    /// Format from which the text of the stream is read; `None` if no other target can continue that text.
    pub(crate) transcript_format: Option<StreamFormat>,
}

/// Response of a target, before it is delivered to the client.
pub struct UpstreamResponse {
    pub incoming: IncomingResponse,
    pub api_format: ApiFormat,
    /// Deadline for the part of the response that must arrive before the client gets anything.
    pub deadline: Deadline,
    /// State with which another target can resume the stream if it breaks off.
    pub resume_point: Option<Box<ResumePoint>>,
    /// Connection that replaces the body after an upgrade to another protocol.
    pub upgraded: Option<Box<UpstreamWebSocket>>,
    /// Rewrites the body for the client only. The record and the cache get the original.
    pub client_rewriter: Option<Box<dyn RewriteForClient>>,
    /// Usage of the provider's response, if a guardrail denied it, so that this response replaces it.
    pub replaced_usage: Option<Box<Usage>>,
    /// True if this is the denial of a response that the provider bills, even if its usage is not known.
    pub is_replacement: bool,
}

impl UpstreamResponse {
    pub fn new(incoming: IncomingResponse, api_format: ApiFormat, deadline: Deadline) -> Self {
        Self {
            incoming,
            api_format,
            deadline,
            resume_point: None,
            upgraded: None,
            client_rewriter: None,
            replaced_usage: None,
            is_replacement: false,
        }
    }

    /// Takes the rewriter; `None` if the body is compressed, because no texts can be found in it.
    fn take_rewriter(&mut self) -> Option<Box<dyn RewriteForClient>> {
        self.client_rewriter.take().filter(|_| is_uncompressed(&self.incoming.head.headers))
    }

    /// Creates the response to a request that was upgraded from HTTP to another protocol (status 101).
    pub(crate) fn from_upgrade(opened: UpstreamWebSocket, deadline: Deadline) -> Self {
        let head = ResponseHead { status: 101, headers: Headers::default() };
        let incoming = IncomingResponse { head, body: ResponseBody::from_bytes(Bytes::new()) };
        Self { upgraded: Some(Box::new(opened)), ..Self::new(incoming, ApiFormat::OpenAi, deadline) }
    }
}

/// Keeps nginx and compatible proxies from buffering a stream.
fn forbid_proxy_buffering(framing: Option<StreamFraming>, reply: &mut ClientResponseHead) {
    if framing.is_some() {
        reply.headers.push(b"x-accel-buffering", b"no");
    }
}

/// Turns the provider's response into the response to the client.
pub async fn deliver_response(
    state: &GatewayState,
    mut response: UpstreamResponse,
    client_request: &ClientRequest<'_>,
    mut record: Record,
) -> ClientResponse {
    let rewriter = response.take_rewriter();
    let UpstreamResponse {
        incoming: IncomingResponse { head: response_head, mut body }, api_format, mut deadline, ..
    } = response;
    let (operation, status) = (client_request.requested_operation(), response_head.status);
    (record.log.status, record.log.time_to_first_byte) = (status, Some(record.elapsed()));
    let framing = StreamFraming::detect(operation, &response_head, body.content_length());
    let (is_events, is_frames) = (framing == Some(StreamFraming::SseEvents), framing == Some(StreamFraming::AwsFrames));
    let is_small = should_buffer(framing, &response_head, body.content_length());
    let encoding = BodyEncoding::from_headers(&response_head.headers);
    let BodyEncoding { is_uncompressed: is_plain, is_gzip, is_json } = encoding;
    if status < 300 && operation.returns_background_response() {
        // Boxed, because it would otherwise enlarge the future of every request.
        let pending = &state.shared.pending_charges;
        let billing = Box::pin(DeferredBilling::for_request(pending, client_request, record.log.provider));
        record.log.billing.deferred_billing = billing.await;
    }
    let is_unbilled = status < 300 && (is_plain || is_gzip) && has_unbilled_usage(client_request, &record);
    let declared = response_head.headers.get_str("content-length").and_then(|text| text.parse().ok());
    let header_usage = read_header_usage(api_format, &response_head.headers);
    record.record_response_headers(&response_head.headers);
    let client_headers = build_response_headers(response_head.headers, client_request, &record);
    let mut reply = ClientResponseHead::new(status, client_headers);
    forbid_proxy_buffering(framing, &mut reply);
    if is_small {
        // Pinned locally, because an async function stores a future that it takes by value twice.
        let collecting = pin!(penstock_net::collect(&mut body, MAX_BUFFERED_RESPONSE_BYTES));
        match run_unless_draining(state, pin!(deadline.enforce(collecting))).await {
            Ok(Some(bytes)) => {
                let is_bodiless = client_request.head.method == "HEAD" || matches!(status, 204 | 304);
                let is_pretty = is_json && is_plain && pretty_print::is_requested(client_request);
                let recorded = is_pretty.then(|| pretty_print::pretty_print(bytes.clone()));
                record.record_complete_response(&bytes, recorded.as_ref());
                let rewritten = rewrite_complete(rewriter, &bytes, is_pretty).or(recorded);
                let length = rewritten.as_ref().unwrap_or(&bytes).len();
                reply.set_content_length(if is_bodiless { declared } else { Some(length) });
                let billable = (is_unbilled && is_json).then_some(BillableBody { api_format, is_compressed: is_gzip });
                let response = finish_buffered_response(reply, bytes, billable, header_usage, record);
                return ClientResponse { body: rewritten.map_or(response.body, Into::into), ..response };
            }
            Ok(None) => (),
            Err(error) => return respond_with_error(&error, client_request, record),
        }
    }
    if (!(is_events || is_frames) || is_deadline_before_heartbeat(state, &deadline))
        && let Err(error) = wait_for_body_start(state, &mut body, &mut deadline).await
    {
        return respond_with_error(&error, client_request, record);
    }
    if is_json && framing.is_none() {
        // The response is too large to buffer, but it is no stream, so the deadline applies to its end.
        body.limit_by(&deadline);
    }
    // An error event may be appended to an event stream, so its length is unknown.
    reply.set_content_length(if is_events || rewriter.is_some() { None } else { body.content_length() });
    record.begin_stream();
    let meter = encoding.select_meter(framing, is_unbilled, api_format, operation, &record);
    let ends_with_event = client_request.route.ends_with_event(&client_request.head.method) && status < 300;
    let every = jitter_interval(Duration::from_millis(state.settings.heartbeat_ms), record.id);
    let stream = ResponseStream::new(body, meter, api_format, ends_with_event, record).with_rewriter(rewriter);
    let beats = is_events && is_plain && allows_heartbeat(client_request, api_format) && !every.is_zero();
    ClientResponse { head: reply, body: if beats { stream.with_heartbeat(every) } else { stream }.into() }
}

/// Returns a complete body with the changes that only the client sees; `None` if there are none.
fn rewrite_complete(rewriter: Option<Box<dyn RewriteForClient>>, bytes: &Bytes, is_pretty: bool) -> Option<Bytes> {
    let rewritten = rewriter?.rewrite_complete(bytes.clone());
    Some(if is_pretty { pretty_print::pretty_print(rewritten) } else { rewritten })
}

/// Waits for the first bytes of the body. Until they arrive, the status can still be chosen.
async fn wait_for_body_start(state: &GatewayState, body: &mut ResponseBody, deadline: &mut Deadline) -> Result<()> {
    let first_chunk = pin!(body.wait_for_first_chunk());
    run_unless_draining(state, pin!(deadline.enforce(first_chunk))).await
}

/// Returns true if the response reports usage that is not billed yet. The response to a POST does; a response that is
/// retrieved later has usually been billed already.
fn has_unbilled_usage(client_request: &ClientRequest<'_>, record: &Record) -> bool {
    let is_now = match &record.log.billing.deferred_billing {
        Some(later) => !later.is_already_charged(),
        None => client_request.head.method == "POST",
    };
    is_now && !record.log.is_from_cache()
}

/// Returns true if the deadline is shorter than the heartbeat interval, or than the idle timeout if heartbeats are off.
/// Then the stream's first byte must arrive before the response begins.
fn is_deadline_before_heartbeat(state: &GatewayState, deadline: &Deadline) -> bool {
    let settings = &state.settings;
    let silence = if settings.heartbeat_ms == 0 { settings.idle_timeout_ms } else { settings.heartbeat_ms };
    deadline.limit() < Duration::from_millis(silence)
}

/// Awaits the work; returns `Error::Draining` if the process shuts down first.
async fn run_unless_draining<T>(
    state: &GatewayState,
    future: Pin<&mut impl Future<Output = penstock_net::Result<T>>>,
) -> Result<T> {
    tokio::select! {
        biased;
        done = future => Ok(done?),
        () = state.wait_for_stream_shutdown() => Err(Error::Draining),
    }
}

/// Shortens an interval by up to a quarter, derived from the random part of an id. Streams that began together must not
/// send their heartbeats together.
fn jitter_interval(every: Duration, id: uuid::Uuid) -> Duration {
    every.saturating_sub(every / 4 * u32::from(id.as_bytes()[15]) / u32::from(u8::MAX))
}

/// Returns true if the stream may contain SSE comments. Google's own clients parse every line as JSON.
fn allows_heartbeat(client_request: &ClientRequest<'_>, api_format: ApiFormat) -> bool {
    client_request.route.operation != Operation::Proxy && api_format != ApiFormat::Gemini
}

/// Encoding of a response body.
#[derive(Clone, Copy)]
struct BodyEncoding {
    is_uncompressed: bool,
    is_gzip: bool,
    is_json: bool,
}

impl BodyEncoding {
    fn from_headers(headers: &Headers) -> Self {
        Self {
            is_uncompressed: is_uncompressed(headers),
            is_gzip: compressed_response::is_gzip(headers),
            is_json: headers.is_json(),
        }
    }

    /// Selects how the body is read for usage while it passes through.
    fn select_meter(
        self,
        framing: Option<StreamFraming>,
        is_unbilled: bool,
        api_format: ApiFormat,
        operation: Operation,
        record: &Record,
    ) -> ResponseMeter {
        let is_events = framing == Some(StreamFraming::SseEvents);
        match framing {
            _ if self.is_gzip && is_unbilled && (is_events || self.is_json) => {
                ResponseMeter::Compressed(record.compressed_buffer(api_format, is_events))
            }
            // Any other compressed body can be neither read nor extended; if it is truncated, the connection is closed.
            _ if !self.is_uncompressed => ResponseMeter::Unmetered,
            Some(StreamFraming::SseEvents) if is_unbilled && record.log.count_input.is_some() => {
                ResponseMeter::SseEvents(SseMeter::with_deltas(api_format, operation).into())
            }
            Some(StreamFraming::SseEvents) => {
                ResponseMeter::SseEvents(SseMeter::for_operation(api_format, operation).into())
            }
            Some(StreamFraming::AwsFrames) => ResponseMeter::AwsFrames(Box::default()),
            Some(StreamFraming::JsonArrayItems) => ResponseMeter::ArrayItems(Box::default()),
            None if self.is_json && is_unbilled => ResponseMeter::LargeBody(ResponseSkimmer::for_operation(operation)),
            None => ResponseMeter::Unmetered,
        }
    }
}

/// Returns true if the body is not compressed.
pub fn is_uncompressed(headers: &Headers) -> bool {
    headers.get_str("content-encoding").is_none_or(|coding| coding == "identity")
}

/// Returns true if the response is an event stream whose first event can be inspected.
pub fn can_inspect_events(incoming: &IncomingResponse) -> bool {
    let ResponseHead { status, headers, .. } = &incoming.head;
    *status == 200 && is_event_stream(headers) && is_uncompressed(headers)
}

/// Framing of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFraming {
    SseEvents,
    /// Binary frames of the AWS event stream format.
    AwsFrames,
    /// Items of one JSON array, which Google sends to clients that do not request SSE.
    JsonArrayItems,
}

impl StreamFraming {
    /// Detects the framing of a response to this operation. `expected` is its length in bytes, if known. Returns `None`
    /// if it is no stream.
    pub fn detect(operation: Operation, head: &ResponseHead, expected: Option<usize>) -> Option<Self> {
        let is_in_items = || operation == Operation::StreamGenerateContent && head.status == 200 && expected.is_none();
        match &head.headers {
            headers if is_event_stream(headers) => Some(Self::SseEvents),
            headers if headers.has_media_type(AWS_EVENT_STREAM_CONTENT_TYPE) => Some(Self::AwsFrames),
            _ => is_in_items().then_some(Self::JsonArrayItems),
        }
    }
}

/// Returns true if the response should be read completely before it is sent. If its length is unknown, JSON is buffered
/// tentatively.
pub fn should_buffer(framing: Option<StreamFraming>, head: &ResponseHead, expected: Option<usize>) -> bool {
    framing.is_none() && expected.map_or_else(|| head.headers.is_json(), |length| length <= MAX_BUFFERED_RESPONSE_BYTES)
}

pub fn is_event_stream(headers: &Headers) -> bool {
    headers.has_media_type(SSE_CONTENT_TYPE)
}

/// Returns the provider's header fields that the client gets, with the gateway's own fields.
fn build_response_headers(
    mut response_headers: Headers,
    client_request: &ClientRequest<'_>,
    record: &Record,
) -> Headers {
    let connection_options = response_headers.connection_options();
    response_headers.retain(|name| {
        let is_hop_by_hop = headers::is_hop_by_hop(name)
            || connection_options.iter().any(|connection_header| connection_header == name);
        let is_gateway_header = name.starts_with(control_headers::CONTROL_PREFIX)
            || client_request.control.prefix.is_some_and(|prefix| name.starts_with(prefix));
        !is_hop_by_hop
            && !matches!(name, b"content-length" | b"x-powered-by")
            && !is_gateway_header
            && !headers::acts_on_origin(name)
    });
    push_gateway_headers(&mut response_headers, client_request, record);
    response_headers
}

/// Reads the usage from response headers. Only Bedrock has it there; models of some vendors do not report it in the
/// body.
fn read_header_usage(api_format: ApiFormat, headers: &Headers) -> Option<Usage> {
    if api_format != ApiFormat::Bedrock {
        return None;
    }
    let [input, output] =
        ["input", "output"].map(|direction| headers.get_str(&format!("x-amzn-bedrock-{direction}-token-count")));
    Usage::from_headers(input, output)
}

/// Response body that may report usage.
#[derive(Clone, Copy)]
struct BillableBody {
    api_format: ApiFormat,
    is_compressed: bool,
}

/// Finishes a response that was read completely, and settles its record.
///
/// `billable_body` defines how to read the usage if the response may report it. `header_usage` is the usage from the
/// header fields.
fn finish_buffered_response(
    reply: ClientResponseHead,
    bytes: Bytes,
    billable_body: Option<BillableBody>,
    header_usage: Option<Usage>,
    mut record: Record,
) -> ClientResponse {
    record.log.bytes_out = bytes.len() as u64;
    record.log.append_to_cache_entry(&bytes);
    let (usage, countable_content) = match billable_body {
        Some(BillableBody { api_format, is_compressed: true }) => {
            let mut packed = record.compressed_buffer(api_format, false);
            packed.feed(&bytes);
            (None, Some(CountableResponse::Compressed(packed)))
        }
        Some(BillableBody { api_format, is_compressed: false }) => {
            record.log.count_images(&bytes);
            let usage = Usage::from_response(api_format, &bytes).or(header_usage);
            (usage, usage.is_none().then(|| CountableResponse::Complete(bytes.clone())))
        }
        None => (None, None),
    };
    record.finish(usage, countable_content, Outcome::Complete);
    ClientResponse { head: reply, body: bytes.into() }
}

/// Builds the response for an error of the gateway, and closes the record.
pub fn respond_with_error(error: &Error, client_request: &ClientRequest<'_>, mut record: Record) -> ClientResponse {
    let mut id = uuid::Uuid::encode_buffer();
    let id = record.id.hyphenated().encode_lower(&mut id);
    let CompleteResponse { head: mut response_head, mut body } = error.to_response(client_request.api_format, Some(id));
    if pretty_print::is_requested(client_request) {
        body = pretty_print::pretty_print(body);
    }
    record.log.status = response_head.status;
    record.log.error_code = Some(error.code());
    if matches!(error, Error::MemoryExhausted) {
        record.metrics().bodies_rejected.add(1);
    }
    push_gateway_headers(&mut response_head.headers, client_request, &record);
    record.log.bytes_out = body.len() as u64;
    record.record_own_response(&body);
    if matches!(error, Error::IncompleteBody) {
        // The client disconnected. If it closed only its sending side, it still receives the error.
        record.log.status = 0;
        drop(record);
    } else {
        let is_upstream = error.origin() == ErrorOrigin::Upstream;
        if is_upstream && !matches!(error, Error::CredentialUnavailable { .. }) {
            let reason = (!error.has_upstream_text()).then(|| error.message().into());
            record.log.details.fail_last_attempt(AttemptFailure { error_code: error.code(), reason });
        }
        let outcome = if is_upstream { Outcome::Failed } else { Outcome::Refused };
        if error.is_response_timeout() {
            record.finish_unanswered(outcome);
        } else {
            record.close(outcome);
        }
    }
    let mut reply = ClientResponseHead::new(response_head.status, response_head.headers);
    reply.set_content_length(Some(body.len()));
    ClientResponse { head: reply, body: body.into() }
}

/// Adds request ids to a response outside the data plane, which has no record: the id that the management API gave the
/// request, or a new one.
pub fn add_request_ids(mut response: ClientResponse, head: &RequestHead, aliases: &[String]) -> ClientResponse {
    let own_id = response.head.headers.get_str("x-request-id").map(ToOwned::to_owned);
    let id = own_id.unwrap_or_else(|| record::new_id(record::unix_time()).to_string());
    let control = ControlHeaders::parse(&head.headers, aliases);
    let prefix = control.prefix.unwrap_or(control_headers::CONTROL_PREFIX);
    push_id_headers(&mut response.head.headers, prefix, &id, control.trace_id.unwrap_or(&id));
    response
}

/// Adds the header fields with which clients identify a request.
pub fn push_id_headers(headers: &mut Headers, prefix: &[u8], id: &str, trace_id: &str) {
    for name in ["x-request-id", "request-id"] {
        if headers.get(name).is_none() {
            headers.push(name.as_bytes(), id.as_bytes());
        }
    }
    // The other header fields may contain the provider's request id.
    headers.push_joined(prefix, b"request-id", id.as_bytes());
    headers.push_joined(prefix, b"trace-id", trace_id.as_bytes());
}

/// Adds the gateway's own header fields, with the prefix that the client used.
fn push_gateway_headers(headers: &mut Headers, client_request: &ClientRequest<'_>, record: &Record) {
    let prefix = client_request.control.prefix.unwrap_or(control_headers::CONTROL_PREFIX);
    let mut id = uuid::Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    let trace_id = record.log.trace_id.as_deref().unwrap_or(id);
    headers.reserve(headers::MAX_ADDED_FIELDS, headers::MAX_ADDED_FIELDS * 48 + trace_id.len());
    push_id_headers(headers, prefix, id, trace_id);
    if record.log.has_exhausted_attempts() {
        headers.retain(|name| name != b"x-should-retry");
        headers.push(b"x-should-retry", b"false");
    }
    let mut push = |name: &[u8], value: &str| headers.push_joined(prefix, name, value.as_bytes());
    let decision = record.log.decision.as_deref();
    push(b"last-used-option-index", decision.map_or("config", |decision| &*decision.selected_target));
    push(b"retry-attempt-count", itoa::Buffer::new().format(decision.map_or(0, |decision| decision.retry_count)));
    push(b"cache-status", decision.map_or("DISABLED", |decision| decision.cache_status.header_value()));
    if let Some(dropped) = record.log.dropped_names() {
        push(b"not-translated", &dropped);
    }
    if client_request.control.should_explain() {
        push(b"explanation", &record.log.explain_decision());
    }
    if !record.log.provider.is_empty() {
        push(b"provider", record.log.provider);
    }
    if let Some(holds) = &record.log.limits {
        limit_headers::push_limit_headers(headers, prefix, holds);
    }
}
