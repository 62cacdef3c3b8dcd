//! The walk of a request, once per request and once per target. Read this first.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use penstock_llm::{
    dialect::{self, Dialect, Form, Peek, PeekError},
    operation::Operation,
    usage::{Meter, Skim, Usage},
};
use tokio::sync::Notify;

use crate::{
    answer::{Answer, Reading, Reply, Stream},
    body::{Body, Limits},
    call::{Bases, Call, Choice, Target},
    caller::{self, Caller},
    control,
    counting::Answered,
    deadline::Deadline,
    error::{Error, Problem, Result},
    features::inspect_stream,
    headers::{self, Control, Head, Headers, Whole},
    record::{Facts, Outcome, Record, Sink},
    rendering::{self, Length},
    route::Route,
    settings::Settings,
    snapshot::Snapshot,
    upstream::{self, AnswerHead, Incoming, Outgoing, Shape, Upstream},
};

/// Answers up to this size are read whole before they are passed on.
const WHOLE: usize = 256 * 1024;

/// JSON up to this size takes far less than a millisecond to look through.
const PEEKED_HERE: usize = 256 * 1024;

/// A request as it arrived.
#[derive(Debug)]
pub struct Request {
    pub head: Head,
    pub body: Body,
}

/// Everything that requests share.
pub struct Gateway {
    pub settings: Settings,
    pub sink: Arc<Sink>,
    pub upstream: Upstream,
    pub body_limits: Limits,
    snapshot: ArcSwap<Snapshot>,
    bases: Bases,
    ready: AtomicBool,
    draining: AtomicBool,
    closing: AtomicBool,
    closed: Notify,
}

impl Gateway {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases =
            Bases::new(settings.mock_host.as_deref()).map_err(|message| vec![Problem::new("$.mock_host", message)])?;
        Ok(Self {
            upstream: Upstream::new(&settings)?,
            sink: Arc::new(Sink::new(&settings)),
            snapshot: ArcSwap::default(),
            bases,
            body_limits: Limits::of(&settings),
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            settings,
        })
    }

    /// Puts a new snapshot in the place of the old one; requests in flight keep theirs.
    pub fn apply(&self, json: &[u8]) -> std::result::Result<(), Vec<Problem>> {
        self.snapshot.store(Arc::new(Snapshot::compile(json)?));
        self.ready.store(true, Ordering::Release);
        Ok(())
    }

    pub fn epoch(&self) -> String {
        self.snapshot.load().epoch.clone()
    }

    /// From now on `/ready` says no.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ends the streams that are still open.
    pub fn end_streams(&self) {
        self.closing.store(true, Ordering::Release);
        self.closed.notify_waiters();
    }

    /// Resolves when streams must end.
    pub async fn closing(&self) {
        // In this order: who comes after the word was given finds it written.
        let told = self.closed.notified();
        if !self.closing.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// Once per request.
    pub async fn handle(&self, request: Request) -> Answer {
        let mut answer = self.walk(request).await;
        if self.draining.load(Ordering::Acquire) {
            // So that a caller's next request opens a connection to one who stays.
            answer.reply.headers.push(b"connection", b"close");
        }
        answer
    }

    async fn walk(&self, request: Request) -> Answer {
        let Request { head, body } = request;
        let snapshot = self.snapshot.load_full();
        if let Some(message) = headers::odd_path(&head.path) {
            let odd = Error::HeaderInvalid { name: "path", message: message.into() };
            return Answer::error(&odd, Dialect::OpenAi);
        }
        let fault = headers::fault(&head.headers, &self.settings.header_aliases)
            .map(|(name, message)| Error::HeaderInvalid { name, message });
        if snapshot.is_management(&head.path) {
            return match fault {
                Some(fault) => Answer::error(&fault, Dialect::OpenAi),
                None => control::forward(self, head, body).await,
            };
        }
        // The record outlives this walk where the answer is a stream.
        let head = Arc::new(head);
        let Some(route) = Route::of(&head.method, &head.path) else {
            return fault.map_or_else(|| self.own(&head), |fault| Answer::error(&fault, Dialect::OpenAi));
        };
        let control = Control::read(&head.headers, &self.settings.header_aliases);
        let call = Call { route, head: &head, control };
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.sink));
        record.facts.begin(&call, &self.sink);
        if let Some(fault) = fault {
            return refuse(&fault, &call, record);
        }
        let served = tokio::select! {
            biased;
            served = self.serve(&snapshot, &call, body, &mut record.facts) => served,
            () = self.closing() => Err(Error::Draining),
        };
        match served {
            Ok(served) => self.deliver(served, &call, record).await,
            Err(error) => refuse(&error, &call, record),
        }
    }

    /// Admits, finds the target, attempts it.
    async fn serve(&self, snapshot: &Snapshot, call: &Call<'_>, body: Body, facts: &mut Facts) -> Result<Served> {
        if self.sink.metrics.in_flight() > self.settings.max_in_flight as u64 {
            return Err(Error::Overloaded);
        }
        let passport = caller::passport(snapshot, &call.head.headers, &call.control)?;
        let caller = match &passport {
            Some((passport, text)) => Caller { key: Some(&passport.key), sent: Some(text) },
            None => caller::admit(snapshot, self.settings.require_key, &call.head.headers, &call.control)?,
        };
        facts.api_key_id = caller.key.map(|key| key.id.clone());
        let choice = Choice { settings: &self.settings, bases: &self.bases, snapshot, call, caller: &caller };
        let (target, config) = choice.target()?;
        facts.metadata.check()?;
        facts.config = config.map(ToOwned::to_owned);
        facts.provider = target.provider.slug();
        if !target.provider.serves(call.route.operation) {
            return Err(Error::Unsupported { operation: call.route.operation.id(), provider: target.provider.slug() });
        }
        let body = self.read(call, body, facts).await?;
        if let (true, Body::Whole(bytes)) = (call.route.operation.is_countable(), &body) {
            facts.asked = Some(self.sink.counting.keep(bytes));
        }
        self.attempt(call, &target, body, facts).await
    }

    /// Reads what must be known of a body before it is forwarded.
    async fn read(&self, call: &Call<'_>, body: Body, facts: &mut Facts) -> Result<Body> {
        let operation = call.route.operation;
        let body = body.limited(self.body_limits)?;
        if !operation.takes_json() {
            return Ok(watched(call, body, facts));
        }
        let fields = &call.head.headers;
        let bytes = body.collect().await?;
        let peek = peeked(&bytes).await.map_err(|found| match fields.text("content-encoding") {
            None | Some("identity") => Error::BodyInvalid { at: found.at, message: found.message },
            Some(coding) => {
                let message = format!("`{coding}` is not read: send JSON as it is");
                Error::HeaderInvalid { name: "content-encoding", message }
            }
        })?;
        facts.stream = peek.streams();
        if let Some(user) = &peek.user {
            facts.metadata.add_user(user);
        }
        facts.model = peek.model.unwrap_or_default();
        Ok(Body::Whole(bytes))
    }

    /// Once per target.
    async fn attempt(&self, call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut Facts) -> Result<Served> {
        let length = match &body {
            Body::Whole(bytes) if bytes.is_empty() && !call.head.takes_body() => Length::None,
            Body::Whole(bytes) => Length::Known(bytes.len() as u64),
            Body::Fed(_, Some(length)) => Length::Known(*length),
            Body::Fed(_, None) => Length::Chunked,
        };
        let mut deadline = Deadline::new(target.timeout, &body);
        let outgoing = Outgoing {
            head: rendering::head(call, target, &facts.model, &self.settings.header_aliases, length)?,
            body,
            shape: Shape { chunked: length == Length::Chunked, bodiless: call.head.method == "HEAD" },
            replayable: call.head.is_replayable(),
        };
        if let Some(model) = target.provider.model(&target.options) {
            model.clone_into(&mut facts.model);
        }
        let sent = Instant::now();
        let incoming = deadline.bound(self.upstream.send(&target.base.origin, outgoing)).await?;
        facts.upstream = Some(sent.elapsed());
        let dialect = dialect_of(call, target);
        let deadline = deadline.answered();
        if target.inspects && dialect == Dialect::Anthropic && is_readable_stream(&incoming) {
            // In a box of its own: it would make the future of every request larger.
            let incoming = Box::pin(inspect_stream::inspect(incoming)).await?;
            return Ok(Served { incoming, dialect, deadline });
        }
        Ok(Served { incoming, dialect, deadline })
    }

    /// Turns the provider's answer into ours: whole where it is small, else a stream that closes the record at its end.
    async fn deliver(&self, served: Served, call: &Call<'_>, mut record: Record) -> Answer {
        let Served { incoming: Incoming { head: answered, mut body }, dialect, mut deadline } = served;
        let status = answered.status;
        record.facts.status = status;
        record.facts.first_byte = Some(record.elapsed());
        let is_events = is_kind(&answered.headers, "text/event-stream");
        let is_small = !is_events
            && body.expected().map_or_else(|| is_kind(&answered.headers, "application/json"), |length| length <= WHOLE);
        let is_plain = is_plain(&answered.headers);
        // A question is answered with what it cost; what is fetched later has been paid for.
        let has_cost = call.head.method == "POST" && status < 300 && is_plain;
        let declared = answered.headers.text("content-length").and_then(|text| text.parse().ok());
        let is_json = is_kind(&answered.headers, "application/json");
        let mut reply = Reply::new(status, passed_on(answered.headers, call, &record));
        if is_small {
            let collected = tokio::select! {
                biased;
                collected = deadline.bound(upstream::collect(&mut body, WHOLE)) => collected,
                () = self.closing() => Err(Error::Draining),
            };
            match collected {
                Ok(Some(bytes)) => {
                    let is_bodiless = call.head.method == "HEAD" || matches!(status, 204 | 304);
                    let length = if is_bodiless { declared } else { Some(bytes.len()) };
                    reply.set_length(length);
                    return whole(reply, bytes, (has_cost && is_json).then_some(dialect), record);
                }
                Ok(None) => (),
                Err(error) => return refuse(&error, call, record),
            }
        }
        if !is_events {
            // The status is still ours to choose until something of the body is there.
            let first = tokio::select! {
                biased;
                first = deadline.bound(body.begun()) => first,
                () = self.closing() => Err(Error::Draining),
            };
            if let Err(error) = first {
                return refuse(&error, call, record);
            }
        }
        // An event may be added at the end of events: their length is open.
        reply.set_length(if is_events { None } else { body.expected() });
        self.sink.metrics.streams.add(1);
        let reading = match record.facts.asked {
            // What is compressed can be neither read nor added to: where it breaks off it is cut.
            _ if !is_plain => Reading::Nothing,
            Some(_) if is_events && has_cost => Reading::Events(Meter::counting(dialect, call.route.operation)),
            _ if is_events => Reading::Events(Meter::new(dialect)),
            _ if is_json && has_cost => Reading::Body(Skim::default()),
            _ => Reading::Nothing,
        };
        let ends_with_event = asked_for(call).ends_with_event() && status < 300;
        let stream = Stream::new(body, (reading, dialect), ends_with_event, record);
        let every = Duration::from_millis(self.settings.heartbeat_ms);
        let beats = is_events && is_plain && call.route.operation != Operation::Proxy && !every.is_zero();
        Answer { reply, body: if beats { stream.with_heartbeat(every) } else { stream }.into() }
    }

    /// Paths that the engine answers by itself.
    fn own(&self, head: &Head) -> Answer {
        let is_ready = self.ready.load(Ordering::Acquire) && !self.draining.load(Ordering::Acquire);
        match (head.method.as_str(), head.path.as_str()) {
            ("GET" | "HEAD", "/live") => Answer::text(200, "live"),
            ("GET" | "HEAD", "/ready") if is_ready => Answer::text(200, "ready"),
            ("GET" | "HEAD", "/ready") => Answer::text(503, "not ready"),
            ("GET" | "HEAD", "/") => Answer::text(200, "Penstock says hey!"),
            _ => Answer::error(&Error::NotFound, Dialect::OpenAi),
        }
    }
}

/// What must be known of a JSON body. A large one is looked through elsewhere: here others wait.
async fn peeked(body: &Bytes) -> std::result::Result<Peek, PeekError> {
    if body.len() <= PEEKED_HERE {
        return dialect::peek(body);
    }
    let body = body.clone();
    let elsewhere = tokio::task::spawn_blocking(move || dialect::peek(&body)).await;
    // Looking neither panics nor is cancelled, unless the process ends.
    elsewhere.unwrap_or(Err(PeekError { at: 0, message: "it could not be looked through" }))
}

/// What came back from a target.
struct Served {
    incoming: Incoming,
    dialect: Dialect,
    /// For what of the answer must be there before the caller gets anything.
    deadline: Deadline,
}

/// What can be known of a body that goes on as it comes; what is wrong with it is for the provider to say.
fn watched(call: &Call<'_>, body: Body, facts: &mut Facts) -> Body {
    let Some(kind) = call.head.headers.text("content-type") else { return body };
    if let Some(form) = Form::of(kind) {
        let form = Arc::new(Mutex::new(form));
        facts.form = Some(Arc::clone(&form));
        let body = body.watched(Box::new(move |bytes| form.lock().unwrap_or_else(PoisonError::into_inner).feed(bytes)));
        facts.read_form();
        return body;
    }
    if let Body::Whole(bytes) = &body
        && kind.starts_with("application/json")
        && let Ok(peek) = dialect::peek(bytes)
    {
        facts.stream = peek.streams();
        facts.model = peek.model.unwrap_or_default();
    }
    body
}

/// The dialect of an answer: the caller's where that is plain, else the provider's.
fn dialect_of(call: &Call<'_>, target: &Target<'_>) -> Dialect {
    match call.dialect() {
        Dialect::OpenAi if call.route.operation.dialect().is_none() => target.provider.dialect(),
        dialect => dialect,
    }
}

/// What a request asks for, also where it is forwarded as it came.
fn asked_for(call: &Call<'_>) -> Operation {
    match call.route {
        Route { operation: Operation::Proxy, path, .. } => Operation::of(&call.head.method, path),
        Route { operation, .. } => operation,
    }
}

fn is_plain(headers: &Headers) -> bool {
    headers.text("content-encoding").is_none_or(|coding| coding == "identity")
}

/// Whether a first event can be looked for.
fn is_readable_stream(incoming: &Incoming) -> bool {
    let AnswerHead { status, headers, .. } = &incoming.head;
    *status == 200 && is_kind(headers, "text/event-stream") && is_plain(headers)
}

fn is_kind(headers: &Headers, kind: &str) -> bool {
    headers.text("content-type").is_some_and(|value| value.starts_with(kind))
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
    mark(&mut answered, call, record);
    answered
}

/// `cost`: the dialect in which the answer says what it cost, if it may.
fn whole(reply: Reply, bytes: Bytes, cost: Option<Dialect>, mut record: Record) -> Answer {
    record.facts.bytes_out = bytes.len() as u64;
    let usage = cost.and_then(|dialect| Usage::from_answer(dialect, &bytes));
    let untold = (cost.is_some() && usage.is_none()).then(|| Answered::Whole(bytes.clone()));
    record.settle(usage, untold, Outcome::Complete);
    Answer { reply, body: bytes.into() }
}

/// An error of ours: told to the caller, and the end of the record.
fn refuse(error: &Error, call: &Call<'_>, mut record: Record) -> Answer {
    let mut id = uuid::Uuid::encode_buffer();
    let id = record.id.hyphenated().encode_lower(&mut id);
    let Whole { mut answered, body } = error.answer(call.dialect(), Some(id));
    mark(&mut answered.headers, call, &record);
    record.facts.status = answered.status;
    record.facts.error = Some(error.code());
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

/// How many header fields an answer gets from us.
const OURS: usize = 8;

/// Our own header fields, under the prefix that the caller used; and the ids by which clients speak of a request.
fn mark(headers: &mut Headers, call: &Call<'_>, record: &Record) {
    let prefix = call.control.prefix.unwrap_or(headers::PREFIX);
    let mut id = uuid::Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    let trace_id = record.facts.trace_id.as_deref().unwrap_or(id);
    headers.reserve(OURS, OURS * 48 + trace_id.len());
    for name in ["x-request-id", "request-id"] {
        if headers.get(name).is_none() {
            headers.push(name.as_bytes(), id.as_bytes());
        }
    }
    let mut push = |name: &[u8], value: &str| headers.push_joined(prefix, name, value.as_bytes());
    push(b"trace-id", trace_id);
    push(b"last-used-option-index", "config");
    push(b"retry-attempt-count", "0");
    push(b"cache-status", "DISABLED");
    if !record.facts.provider.is_empty() {
        push(b"provider", record.facts.provider);
    }
}
