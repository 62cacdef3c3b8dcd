//! The walk of a request, once per request and once per target. Read this first.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use penstock_llm::{
    dialect::{self, Dialect},
    operation::Operation,
    usage::Usage,
};
use tokio::sync::{Notify, futures::Notified};

use crate::{
    answer::{Answer, Reply, Stream},
    body::Body,
    call::{Bases, Call, Choice, Route, Target},
    caller, control,
    error::{Error, Problem, Result},
    headers::{self, Control, Head, Headers, Whole},
    metrics::Metrics,
    outbox::Outbox,
    record::{Facts, Outcome, Record, Sink},
    rendering::{self, Length},
    settings::Settings,
    snapshot::Snapshot,
    upstream::{self, Incoming, Outgoing, Shape, Upstream},
};

/// Answers up to this size are read whole before they are passed on.
const WHOLE: usize = 256 * 1024;

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
    snapshot: ArcSwap<Snapshot>,
    bases: Bases,
    ready: AtomicBool,
    draining: AtomicBool,
    closing: Notify,
}

impl Gateway {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases =
            Bases::new(settings.mock_host.as_deref()).map_err(|message| vec![Problem::new("$.mock_host", message)])?;
        let sink = Sink {
            outbox: Outbox::new(settings.outbox_bytes),
            metrics: Metrics::default(),
            worker: settings.worker,
            records: settings.records && settings.control_socket.is_some(),
            sensitive: settings.sensitive_headers.iter().map(|name| name.to_ascii_lowercase()).collect(),
        };
        Ok(Self {
            upstream: Upstream::new(&settings)?,
            sink: Arc::new(sink),
            snapshot: ArcSwap::default(),
            bases,
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: Notify::new(),
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
        self.closing.notify_waiters();
    }

    /// Resolves when streams must end.
    pub fn closing(&self) -> Notified<'_> {
        self.closing.notified()
    }

    /// Once per request.
    pub async fn handle(&self, request: Request) -> Answer {
        let Request { head, body } = request;
        let snapshot = self.snapshot.load_full();
        if let Some(message) = headers::odd_path(&head.path) {
            let odd = Error::HeaderInvalid { name: "path", message: message.into() };
            return Answer::error(&odd, Dialect::OpenAi);
        }
        if snapshot.is_management(&head.path) {
            return control::forward(self, head, body).await;
        }
        // The record outlives this walk where the answer is a stream.
        let head = Arc::new(head);
        let Some(route) = Route::of(&head.method, &head.path) else { return self.own(&head) };
        let control = Control::read(&head.headers, &self.settings.header_aliases);
        let call = Call { route, head: &head, control };
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.sink));
        record.facts.begin(&call);
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
        let caller = caller::admit(snapshot, self.settings.require_key, &call.head.headers, &call.control)?;
        facts.api_key_id = caller.key.map(|key| key.id.clone());
        let choice = Choice { settings: &self.settings, bases: &self.bases, snapshot, call, caller: &caller };
        let (target, config) = choice.target()?;
        facts.config = config.map(ToOwned::to_owned);
        facts.provider = target.provider.slug();
        let body = self.read(call, body, facts).await?;
        self.attempt(call, &target, body, facts).await
    }

    /// Reads what must be known of a body before it is forwarded.
    async fn read(&self, call: &Call<'_>, body: Body, facts: &mut Facts) -> Result<Body> {
        let (operation, limit) = (call.route.operation, self.settings.max_body_bytes);
        if body.length().is_some_and(|length| length > limit as u64) {
            return Err(Error::BodyTooLarge { limit });
        }
        if !operation.takes_json() {
            return Ok(body.limited(limit));
        }
        let kind = call.head.headers.text("content-type");
        if kind.is_some_and(|kind| !kind.to_ascii_lowercase().contains("json")) {
            let message = format!("{} takes application/json", operation.id());
            return Err(Error::HeaderInvalid { name: "content-type", message });
        }
        let bytes = body.collect(limit).await?;
        let peek =
            dialect::peek(&bytes).map_err(|found| Error::BodyInvalid { at: found.at, message: found.message })?;
        facts.stream = peek.streams();
        facts.model = peek.model.unwrap_or_default();
        Ok(Body::Whole(bytes))
    }

    /// Once per target.
    async fn attempt(&self, call: &Call<'_>, target: &Target<'_>, body: Body, facts: &mut Facts) -> Result<Served> {
        let operation = call.route.operation;
        if operation != Operation::Proxy && target.provider.path(operation).is_none() {
            return Err(Error::Unsupported { operation: operation.id(), provider: target.provider.slug() });
        }
        let length = match &body {
            Body::Whole(bytes) if bytes.is_empty() && !call.head.takes_body() => Length::None,
            Body::Whole(bytes) => Length::Known(bytes.len() as u64),
            Body::Fed(_, Some(length)) => Length::Known(*length),
            Body::Fed(_, None) => Length::Chunked,
        };
        let outgoing = Outgoing {
            head: rendering::head(call, target, &self.settings.header_aliases, length),
            body,
            shape: Shape { chunked: length == Length::Chunked, bodiless: call.head.method == "HEAD" },
            replayable: call.head.is_replayable(),
        };
        let sent = Instant::now();
        let answered = tokio::time::timeout(target.timeout, self.upstream.send(&target.base.origin, outgoing)).await;
        let milliseconds = target.timeout.as_millis() as u64;
        let incoming = answered.map_err(|_| Error::Timeout { milliseconds })??;
        facts.upstream = Some(sent.elapsed());
        Ok(Served { incoming, dialect: dialect_of(call, target) })
    }

    /// Turns the provider's answer into ours: whole where it is small, else a stream that closes the record at its end.
    async fn deliver(&self, served: Served, call: &Call<'_>, mut record: Record) -> Answer {
        let Served { incoming: Incoming { head: answered, mut body }, dialect } = served;
        record.facts.status = answered.status;
        record.facts.first_byte = Some(record.elapsed());
        let is_events = is_kind(&answered.headers, "text/event-stream");
        let is_small = !is_events
            && body.expected().map_or_else(|| is_kind(&answered.headers, "application/json"), |length| length <= WHOLE);
        // What is compressed can be neither read nor added to: where it breaks off it is cut.
        let is_plain = answered.headers.text("content-encoding").is_none_or(|coding| coding == "identity");
        let declared = answered.headers.text("content-length").and_then(|text| text.parse().ok());
        let status = answered.status;
        let mut reply = Reply::new(status, passed_on(answered.headers, call, &record));
        if is_small {
            let collected = tokio::select! {
                biased;
                collected = upstream::collect(&mut body, WHOLE) => collected,
                () = self.closing() => Err(Error::Draining),
            };
            match collected {
                Ok(Some(bytes)) => {
                    let is_bodiless = call.head.method == "HEAD" || matches!(status, 204 | 304);
                    let length = if is_bodiless { declared } else { Some(bytes.len()) };
                    reply.set_length(length);
                    return whole(reply, bytes, dialect, record);
                }
                Ok(None) => (),
                Err(error) => return refuse(&error, call, record),
            }
        }
        if !is_events {
            // The status is still ours to choose until something of the body is there.
            let first = tokio::select! {
                biased;
                first = body.begun() => first,
                () = self.closing() => Err(Error::Draining),
            };
            if let Err(error) = first {
                return refuse(&error, call, record);
            }
        }
        // An event may be added at the end of events: their length is open.
        reply.set_length(if is_events { None } else { body.expected() });
        self.sink.metrics.streams.add(1);
        let operation = call.route.operation;
        let ends_with_event =
            matches!(operation, Operation::ChatComplete | Operation::Complete | Operation::Messages) && status < 300;
        let stream = Stream::new(body, (is_events && is_plain).then_some(dialect), ends_with_event, record);
        Answer { reply, body: stream.into() }
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

/// What came back from a target.
struct Served {
    incoming: Incoming,
    dialect: Dialect,
}

/// The dialect of an answer: its operation's, or the provider's where the path has no operation of its own.
fn dialect_of(call: &Call<'_>, target: &Target<'_>) -> Dialect {
    match call.route {
        Route { operation: Operation::Proxy, path } if path.ends_with("/messages") => Dialect::Anthropic,
        Route { operation: Operation::Proxy, .. } => target.provider.dialect(),
        Route { operation, .. } => operation.dialect(),
    }
}

fn is_kind(headers: &Headers, kind: &str) -> bool {
    headers.text("content-type").is_some_and(|value| value.starts_with(kind))
}

/// The provider's header fields that the caller gets, and ours.
fn passed_on(mut answered: Headers, call: &Call<'_>, record: &Record) -> Headers {
    answered.retain(|name| {
        let is_ours =
            name.starts_with(headers::PREFIX) || call.control.prefix.is_some_and(|prefix| name.starts_with(prefix));
        !headers::is_hop_by_hop(name) && name != b"content-length" && !is_ours
    });
    mark(&mut answered, call, record);
    answered
}

fn whole(reply: Reply, bytes: Bytes, dialect: Dialect, mut record: Record) -> Answer {
    record.facts.bytes_out = bytes.len() as u64;
    if reply.status < 300 && record.facts.operation.is_some_and(Operation::takes_json) {
        record.facts.usage = Usage::from_answer(dialect, &bytes);
    }
    record.close(Outcome::Complete);
    Answer { reply, body: bytes.into() }
}

/// An error of ours: told to the caller, and the end of the record.
fn refuse(error: &Error, call: &Call<'_>, mut record: Record) -> Answer {
    let Whole { mut answered, body } = error.answer(call.route.operation.dialect());
    mark(&mut answered.headers, call, &record);
    record.facts.status = answered.status;
    record.facts.error = Some(error.code());
    record.facts.bytes_out = body.len() as u64;
    let left = matches!(error, Error::BrokenBody);
    record.close(if left { Outcome::Aborted } else { Outcome::Refused });
    let mut reply = Reply::new(answered.status, answered.headers);
    reply.set_length(Some(body.len()));
    Answer { reply, body: body.into() }
}

/// Our own header fields, under the prefix that the caller used.
fn mark(headers: &mut Headers, call: &Call<'_>, record: &Record) {
    let prefix = call.control.prefix.unwrap_or(headers::PREFIX);
    let mut id = uuid::Uuid::encode_buffer();
    let trace_id = call.control.trace_id.unwrap_or_else(|| record.id.hyphenated().encode_lower(&mut id));
    let mut push = |name: &[u8], value: &str| headers.push_joined(prefix, name, value.as_bytes());
    push(b"trace-id", trace_id);
    push(b"last-used-option-index", "config");
    push(b"retry-attempt-count", "0");
    push(b"cache-status", "DISABLED");
    if !record.facts.provider.is_empty() {
        push(b"provider", record.facts.provider);
    }
}
