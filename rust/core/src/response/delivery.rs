//! An answer on its way back: whole where it is small, else a stream that closes the record at its end.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Bytes;
use penstock_llm::{
    api_format::Dialect,
    operation::Operation,
    usage::{Meter, Skim, Usage},
};

use crate::{
    accounting::{
        record::{self, Later, Outcome, Record},
        token_counting::Answered,
    },
    endpoints::realtime::Opened,
    error::{Error, Result},
    gateway::Gateway,
    ingress::{
        headers::{self, Control, Head, Headers, Whole},
        route,
    },
    process::deadline::Deadline,
    resolve::target_resolver::Call,
    response::{
        compressed,
        outgoing::{Answer, Reading, Reply, Stream},
        pretty_print,
    },
    routing::Place,
    upstream::{self, AnswerBody, AnswerHead, Incoming},
};

/// The kinds of streams.
const EVENTS: &str = "text/event-stream";
const FRAMES: &str = "application/vnd.amazon.eventstream";

/// Where Google says that an upload goes on.
const UPLOAD_URL: &str = "x-goog-upload-url";

/// Answers up to this size are read whole before they are passed on.
pub const WHOLE: usize = 256 * 1024;

/// What came back from a target.
pub struct Served {
    pub incoming: Incoming,
    pub dialect: Dialect,
    /// For what of the answer must be there before the caller gets anything.
    pub deadline: Deadline,
    /// Where another target may go on, should it break off.
    pub place: Option<Box<Place>>,
    /// In the place of a body: the connection, where it speaks another protocol from here on.
    pub opened: Option<Box<Opened>>,
}

impl Served {
    pub fn new(incoming: Incoming, dialect: Dialect, deadline: Deadline) -> Self {
        Self { incoming, dialect, deadline, place: None, opened: None }
    }

    /// What is no longer HTTP.
    pub(crate) fn opened(opened: Opened, deadline: Deadline) -> Self {
        let head = AnswerHead { status: 101, headers: Headers::default() };
        let incoming = Incoming { head, body: AnswerBody::whole(Bytes::new()) };
        Self { opened: Some(Box::new(opened)), ..Self::new(incoming, Dialect::OpenAi, deadline) }
    }
}

/// Turns the provider's answer into ours.
pub async fn deliver(gateway: &Gateway, served: Served, call: &Call<'_>, mut record: Record) -> Answer {
    let Served { incoming: Incoming { head: answered, mut body }, dialect, mut deadline, .. } = served;
    let (asked, status) = (call.asked_for(), answered.status);
    (record.facts.status, record.facts.first_byte) = (status, Some(record.elapsed()));
    let pieces = Pieces::of(asked, &answered, body.expected());
    let (is_events, is_frames) = (pieces == Some(Pieces::Events), pieces == Some(Pieces::Frames));
    let is_small = is_small(pieces, &answered, body.expected());
    let coded = Coded::of(&answered.headers);
    let Coded { is_plain, is_packed, is_json } = coded;
    if status < 300 && asked.is_of_responses() {
        // In a box of its own: it would make the future of every request larger.
        record.facts.paid.later = Box::pin(Later::of(&gateway.shared.dues, call, record.facts.provider)).await;
    }
    let has_cost = status < 300 && (is_plain || is_packed) && is_paid_for(call, &record);
    let declared = answered.headers.text("content-length").and_then(|text| text.parse().ok());
    let beside = if dialect == Dialect::Bedrock { invocation(&answered.headers) } else { None };
    let mut reply = Reply::new(status, passed_on(answered.headers, call, &record));
    if is_small {
        // Pinned here and below: what an async function takes it keeps twice.
        let collected = {
            let collecting = pin!(upstream::collect(&mut body, WHOLE));
            unless_closing(gateway, pin!(deadline.bound(collecting))).await
        };
        match collected {
            Ok(Some(bytes)) => {
                let is_bodiless = call.head.method == "HEAD" || matches!(status, 204 | 304);
                let shown = (is_json && is_plain && pretty_print::is_asked(call))
                    .then(|| pretty_print::indented(bytes.clone()));
                let length = if is_bodiless { declared } else { Some(shown.as_ref().unwrap_or(&bytes).len()) };
                reply.set_length(length);
                let cost = (has_cost && is_json).then_some((dialect, is_packed));
                let Answer { reply, body } = whole(reply, bytes, (cost, beside), record);
                return Answer { reply, body: shown.map_or(body, Into::into) };
            }
            Ok(None) => (),
            Err(error) => return refuse(&error, call, record),
        }
    }
    if !(is_events || is_frames) || is_impatient(gateway, &deadline) {
        // The status is still ours to choose until something of the body is there.
        let first = {
            let beginning = pin!(body.begun());
            unless_closing(gateway, pin!(deadline.bound(beginning))).await
        };
        if let Err(error) = first {
            return refuse(&error, call, record);
        }
    }
    if is_json && pieces.is_none() {
        // Too large to be held, but whole all the same.
        body.ends_with(&deadline);
    }
    // An event may be added at the end of events: their length is open.
    reply.set_length(if is_events { None } else { body.expected() });
    gateway.sink.metrics.streams.add(1);
    let reading = coded.reading(pieces, has_cost, (dialect, asked), &record);
    let ends_with_event = call.route.ends_with_event(&call.head.method) && status < 300;
    let every = spread(Duration::from_millis(gateway.settings.heartbeat_ms), record.id);
    let stream = Stream::new(body, (reading, dialect), ends_with_event, record);
    let beats = is_events && is_plain && may_beat(call, dialect) && !every.is_zero();
    Answer { reply, body: if beats { stream.with_heartbeat(every) } else { stream }.into() }
}

/// A question is answered with what it cost; what is fetched later has been paid for, as a rule.
fn is_paid_for(call: &Call<'_>, record: &Record) -> bool {
    let is_now = match &record.facts.paid.later {
        Some(later) => !later.is_paid(),
        None => call.head.method == "POST",
    };
    is_now && !record.facts.is_from_cache()
}

/// Whether a stream's first byte must come before its caller would have to hear that it is still coming.
fn is_impatient(gateway: &Gateway, deadline: &Deadline) -> bool {
    let settings = &gateway.settings;
    let silence = if settings.heartbeat_ms == 0 { settings.idle_timeout_ms } else { settings.heartbeat_ms };
    deadline.limit() < Duration::from_millis(silence)
}

/// What becomes of this, unless the process ends before.
async fn unless_closing<T>(gateway: &Gateway, work: Pin<&mut impl Future<Output = Result<T>>>) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        () = gateway.closing() => Err(Error::Draining),
    }
}

/// Up to a quarter less, by the random part of an id: the heartbeats of streams that began together must not fall together.
fn spread(every: Duration, id: uuid::Uuid) -> Duration {
    every.saturating_sub(every / 4 * u32::from(id.as_bytes()[15]) / u32::from(u8::MAX))
}

/// Whether a comment may stand in a stream. Google's own clients take every line for JSON.
fn may_beat(call: &Call<'_>, dialect: Dialect) -> bool {
    call.route.operation != Operation::Proxy && dialect != Dialect::Gemini
}

/// What the bytes of an answer are.
#[derive(Clone, Copy)]
struct Coded {
    is_plain: bool,
    is_packed: bool,
    is_json: bool,
}

impl Coded {
    fn of(headers: &Headers) -> Self {
        Self { is_plain: is_plain(headers), is_packed: compressed::is_packed(headers), is_json: headers.is_json() }
    }

    /// How what is passed on is read meanwhile.
    fn reading(
        self,
        pieces: Option<Pieces>,
        has_cost: bool,
        (dialect, asked): (Dialect, Operation),
        record: &Record,
    ) -> Reading {
        let is_events = pieces == Some(Pieces::Events);
        match pieces {
            _ if self.is_packed && has_cost && (is_events || self.is_json) => {
                Reading::Packed(record.packed(dialect, is_events))
            }
            // What is compressed can be neither read nor added to: where it breaks off it is cut.
            _ if !self.is_plain => Reading::Nothing,
            Some(Pieces::Events) if has_cost && record.facts.asked.is_some() => {
                Reading::Events(Meter::counting(dialect, asked).into())
            }
            Some(Pieces::Events) => Reading::Events(Meter::of(dialect, asked).into()),
            Some(Pieces::Frames) => Reading::Frames(Box::default()),
            Some(Pieces::Items) => Reading::Items(Box::default()),
            None if self.is_json && has_cost => Reading::Body(Skim::of(asked)),
            None => Reading::Nothing,
        }
    }
}

/// Whether its bytes can be read as they are.
pub fn is_plain(headers: &Headers) -> bool {
    headers.text("content-encoding").is_none_or(|coding| coding == "identity")
}

/// Whether a first event can be looked for.
pub fn is_readable_stream(incoming: &Incoming) -> bool {
    let AnswerHead { status, headers, .. } = &incoming.head;
    *status == 200 && is_events(headers) && is_plain(headers)
}

/// What a stream consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    Events,
    /// Amazon's.
    Frames,
    /// Of one array: so Google tells its streams to who does not ask for events.
    Items,
}

impl Pieces {
    /// Of an answer to this operation of which so many bytes are expected; `None` where it is no stream.
    pub fn of(operation: Operation, head: &AnswerHead, expected: Option<usize>) -> Option<Self> {
        let is_in_items = || operation == Operation::StreamGenerateContent && head.status == 200 && expected.is_none();
        match &head.headers {
            headers if is_events(headers) => Some(Self::Events),
            headers if headers.is_kind(FRAMES) => Some(Self::Frames),
            _ => is_in_items().then_some(Self::Items),
        }
    }
}

/// Whether an answer is passed on whole: where its length is not said, JSON is tried.
pub fn is_small(pieces: Option<Pieces>, head: &AnswerHead, expected: Option<usize>) -> bool {
    pieces.is_none() && expected.map_or_else(|| head.headers.is_json(), |length| length <= WHOLE)
}

pub fn is_events(headers: &Headers) -> bool {
    headers.is_kind(EVENTS)
}

/// The provider's header fields that the caller gets, and ours.
fn passed_on(mut answered: Headers, call: &Call<'_>, record: &Record) -> Headers {
    let of_the_connection = answered.of_the_connection();
    answered.retain(|name| {
        let is_the_connections = headers::is_hop_by_hop(name) || of_the_connection.iter().any(|named| named == name);
        let is_ours =
            name.starts_with(headers::PREFIX) || call.control.prefix.is_some_and(|prefix| name.starts_with(prefix));
        !is_the_connections && !matches!(name, b"content-length" | b"x-powered-by") && !is_ours
    });
    lead_back(&mut answered, call);
    mark(&mut answered, call, record);
    answered
}

/// An upload that began here goes on here: the credential that it needs is not the caller's.
fn lead_back(answered: &mut Headers, call: &Call<'_>) {
    let Some(there) = answered.text(UPLOAD_URL) else { return };
    let fields = &call.head.headers;
    let scheme = if fields.text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    if let Some(here) = fields.text("host").and_then(|host| route::upload_here(there, scheme, host)) {
        answered.retain(|name| name != UPLOAD_URL.as_bytes());
        answered.push(UPLOAD_URL.as_bytes(), here.as_bytes());
    }
}

/// What Bedrock says beside an answer that it cost: models of some vendors do not say it themselves.
fn invocation(headers: &Headers) -> Option<Usage> {
    let [asked, answered] = ["input", "output"].map(|of| headers.text(&format!("x-amzn-bedrock-{of}-token-count")));
    Usage::from_header_fields(asked, answered)
}

/// `cost`: the dialect in which the answer says what it cost, if it may, and whether it is compressed; `beside`: what its header
/// fields say of that.
fn whole(
    reply: Reply,
    bytes: Bytes,
    (cost, beside): (Option<(Dialect, bool)>, Option<Usage>),
    mut record: Record,
) -> Answer {
    record.facts.bytes_out = bytes.len() as u64;
    record.facts.fill(&bytes);
    let (usage, untold) = match cost {
        Some((dialect, true)) => {
            let mut packed = record.packed(dialect, false);
            packed.feed(&bytes);
            (None, Some(Answered::Packed(packed)))
        }
        Some((dialect, false)) => {
            record.facts.count_drawn(&bytes);
            let usage = Usage::from_answer(dialect, &bytes).or(beside);
            (usage, usage.is_none().then(|| Answered::Whole(bytes.clone())))
        }
        None => (None, None),
    };
    record.settle(usage, untold, Outcome::Complete);
    Answer { reply, body: bytes.into() }
}

/// An error of ours: told to the caller, and the end of the record.
pub fn refuse(error: &Error, call: &Call<'_>, mut record: Record) -> Answer {
    let mut id = uuid::Uuid::encode_buffer();
    let id = record.id.hyphenated().encode_lower(&mut id);
    let Whole { mut answered, mut body } = error.answer(call.dialect(), Some(id));
    if pretty_print::is_asked(call) {
        body = pretty_print::indented(body);
    }
    record.facts.status = answered.status;
    record.facts.error = Some(error.code());
    if matches!(error, Error::NoRoom) {
        record.metrics().bodies_refused.add(1);
    }
    mark(&mut answered.headers, call, &record);
    record.facts.bytes_out = body.len() as u64;
    if matches!(error, Error::BrokenBody) {
        // The caller left. Whoever only closed its own direction still learns why.
        record.facts.status = 0;
        drop(record);
    } else {
        record.close(Outcome::Refused);
    }
    let mut reply = Reply::new(answered.status, answered.headers);
    reply.set_length(Some(body.len()));
    Answer { reply, body: body.into() }
}

/// The same with ids made for it, where it is no answer of the data plane and has no record.
pub fn labelled(mut answer: Answer, head: &Head, aliases: &[String]) -> Answer {
    let id = record::new_id(record::now()).to_string();
    let control = Control::read(&head.headers, aliases);
    let prefix = control.prefix.unwrap_or(headers::PREFIX);
    identify(&mut answer.reply.headers, prefix, (&id, control.trace_id.unwrap_or(&id)));
    answer
}

/// The ids by which clients speak of a request.
pub fn identify(headers: &mut Headers, prefix: &[u8], (id, trace_id): (&str, &str)) {
    for name in ["x-request-id", "request-id"] {
        if headers.get(name).is_none() {
            headers.push(name.as_bytes(), id.as_bytes());
        }
    }
    headers.push_joined(prefix, b"trace-id", trace_id.as_bytes());
}

/// Our own header fields, under the prefix that the caller used.
fn mark(headers: &mut Headers, call: &Call<'_>, record: &Record) {
    let prefix = call.control.prefix.unwrap_or(headers::PREFIX);
    let mut id = uuid::Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    let trace_id = record.facts.trace_id.as_deref().unwrap_or(id);
    headers.reserve(headers::OURS, headers::OURS * 48 + trace_id.len());
    identify(headers, prefix, (id, trace_id));
    if record.facts.is_spent() {
        headers.retain(|name| name != b"x-should-retry");
        headers.push(b"x-should-retry", b"false");
    }
    let mut push = |name: &[u8], value: &str| headers.push_joined(prefix, name, value.as_bytes());
    let decision = record.facts.decision.as_deref();
    push(b"last-used-option-index", decision.map_or("config", |decision| &*decision.option));
    push(b"retry-attempt-count", itoa::Buffer::new().format(decision.map_or(0, |decision| decision.retries)));
    push(b"cache-status", decision.map_or("DISABLED", |decision| decision.cache.header()));
    if let Some(lost) = record.facts.not_translated() {
        push(b"not-translated", &lost);
    }
    if call.control.is_to_be_explained() {
        push(b"explanation", &record.facts.explanation());
    }
    if !record.facts.provider.is_empty() {
        push(b"provider", record.facts.provider);
    }
}
