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

use crate::{
    answer::{Answer, Reply, Stream},
    body::Body,
    call::{Bases, Choice, Route, Target},
    caller,
    control,
    error::{Error, Problem, Result},
    headers::{self, Control, Head, Headers, Whole},
    metrics::Metrics,
    outbox::Outbox,
    record::{Facts, Outcome, Record, Sink},
    rendering::{self, Length},
    settings::Settings,
    snapshot::Snapshot,
    upstream::{self, Incoming, Outgoing, Upstream},
};

/// Answers up to this size are read whole before they are passed on.
const WHOLE: usize = 1024 * 1024;

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
}

impl Gateway {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases = Bases::new(settings.mock_host.as_deref())
            .map_err(|message| vec![Problem::new("$.mock_host", message)])?;
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

    /// Once per request.
    pub async fn handle(&self, request: Request) -> Answer {
        let Request { head, body } = request;
        let snapshot = self.snapshot.load_full();
        if let Some(path) = headers::odd_path(&head.path) {
            return Answer::error(&Error::HeaderInvalid { name: "path", message: path.into() }, Dialect::OpenAi);
        }
        if snapshot.is_management(&head.path) {
            return control::forward(self, head, body).await;
        }
        let Some(route) = Route::of(&head.method, &head.path) else {
            return self.own(&head);
        };
        let dialect = route.operation.dialect();
        let head = Arc::new(head);
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.sink));
        let route = Route::of(&head.method, &head.path).unwrap_or(Route { operation: Operation::Proxy, path: "/" });
        match self.serve(&snapshot, route, &head, body, &mut record.facts).await {
            Ok(served) => self.deliver(served, route, &head, record).await,
            Err(error) => refuse(&error, dialect, &head, record, &self.settings),
        }
    }

    /// Admits, finds the target, attempts it.
    async fn serve(&self, snapshot: &Snapshot, route: Route<'_>, head: &Head, body: Body, facts: &mut Facts) -> Result<Served> {
        let control = Control::read(&head.headers, &self.settings.header_aliases);
        facts.begin(route, &control);
        if self.sink.metrics.in_flight() > self.settings.max_in_flight as u64 {
            return Err(Error::Overloaded);
        }
        let caller = caller::admit(snapshot, self.settings.require_key, &head.headers, &control)?;
        facts.api_key_id = caller.key.map(|key| key.id.clone());
        let choice = Choice {
            settings: &self.settings,
            bases: &self.bases,
            snapshot,
            head,
            control: &control,
            caller: &caller,
        };
        let (target, config) = choice.target()?;
        facts.config = config.map(ToOwned::to_owned);
        facts.provider = target.provider.slug();
        let body = self.read(route.operation, head, body, facts).await?;
        self.attempt(route, &target, head, body, facts).await
    }

    /// Reads what must be known of a body before it is forwarded.
    async fn read(&self, operation: Operation, head: &Head, body: Body, facts: &mut Facts) -> Result<Body> {
        let limit = self.settings.max_body_bytes;
        if body.length().is_some_and(|length| length > limit as u64) {
            return Err(Error::BodyTooLarge { limit });
        }
        if !operation.takes_json() {
            return Ok(body);
        }
        if head.headers.text("content-type").is_some_and(|kind| !kind.to_ascii_lowercase().contains("json")) {
            let message = format!("{} takes application/json", operation.id());
            return Err(Error::HeaderInvalid { name: "content-type", message });
        }
        let bytes = body.collect(limit).await?;
        let peek = dialect::peek(&bytes).map_err(|found| Error::BodyInvalid { at: found.at, message: found.message })?;
        facts.stream = peek.streams();
        facts.model = peek.model.unwrap_or_default();
        Ok(Body::Whole(bytes))
    }

    /// Once per target.
    async fn attempt(&self, route: Route<'_>, target: &Target<'_>, head: &Head, body: Body, facts: &mut Facts) -> Result<Served> {
        if target.provider.path(route.operation).is_none() && route.operation != Operation::Proxy {
            return Err(Error::Unsupported { operation: route.operation.id(), provider: target.provider.slug() });
        }
        let length = match &body {
            Body::Whole(bytes) if bytes.is_empty() && !head.takes_body() => Length::None,
            Body::Whole(bytes) => Length::Known(bytes.len() as u64),
            Body::Fed(_, Some(length)) => Length::Known(*length),
            Body::Fed(_, None) => Length::Chunked,
        };
        let outgoing = Outgoing {
            head: rendering::head(route, target, head, &self.settings.header_aliases, length),
            body,
            is_head: head.method == "HEAD",
            replayable: head.is_replayable(),
            chunked: length == Length::Chunked,
        };
        let sent = Instant::now();
        let answered = tokio::time::timeout(target.timeout, self.upstream.send(&target.base.origin, outgoing)).await;
        let milliseconds = target.timeout.as_millis() as u64;
        let incoming = answered.map_err(|_| Error::Timeout { milliseconds })??;
        facts.upstream = Some(sent.elapsed());
        Ok(Served { incoming, dialect: dialect_of(route, target) })
    }

    /// Turns the provider's answer into ours: whole where it is small, else a stream that closes the record at its end.
    async fn deliver(&self, served: Served, route: Route<'_>, head: &Head, mut record: Record) -> Answer {
        let Served { incoming: Incoming { head: answered, mut body }, dialect } = served;
        record.facts.status = answered.status;
        record.facts.first_byte = Some(record.elapsed());
        let is_events = answered.headers.text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let length = if head.method == "HEAD" { answered.headers.text("content-length").and_then(|text| text.parse().ok()) } else { body.expected() };
        let mut reply = Reply::new(answered.status, self.passed_on(&answered.headers, &record, head));
        let is_small = if is_events { false } else { body.expected().map_or(is_json(&answered.headers), |length| length <= WHOLE) };
        if is_small {
            match upstream::collect(&mut body, WHOLE).await {
                Ok(Some(bytes)) => return finish_whole(reply, bytes, length, dialect, record),
                Ok(None) => (),
                Err(error) => return refuse(&error, route.operation.dialect(), head, record, &self.settings),
            }
        }
        reply.set_length(length);
        self.sink.metrics.streams.add(1);
        let ends_with_event = matches!(route.operation, Operation::ChatComplete | Operation::Complete | Operation::Messages);
        let meter = is_events.then_some(dialect);
        Answer { reply, body: Stream::new(body, meter, ends_with_event && answered.status < 300, record).into() }
    }

    /// The provider's header fields that the caller gets, and ours.
    fn passed_on(&self, answered: &Headers, record: &Record, head: &Head) -> Headers {
        let mut passed = Headers::with_capacity(answered.len() + 5);
        for (name, value) in answered.iter() {
            if !headers::is_hop_by_hop(name) && name != b"content-length" {
                passed.push(name, value);
            }
        }
        mark(&mut passed, record, head, &self.settings);
        passed
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
fn dialect_of(route: Route<'_>, target: &Target<'_>) -> Dialect {
    if route.operation == Operation::Proxy {
        return if route.path.ends_with("/messages") { Dialect::Anthropic } else { target.provider.dialect() };
    }
    route.operation.dialect()
}

fn is_json(headers: &Headers) -> bool {
    headers.text("content-type").is_some_and(|kind| kind.starts_with("application/json"))
}

fn finish_whole(mut reply: Reply, bytes: Bytes, length: Option<usize>, dialect: Dialect, mut record: Record) -> Answer {
    reply.set_length(Some(length.unwrap_or(bytes.len())));
    record.facts.bytes_out = bytes.len() as u64;
    if reply.status < 300 && record.facts.operation.is_some_and(Operation::takes_json) {
        record.facts.usage = Usage::from_answer(dialect, &bytes);
    }
    record.close(Outcome::Complete);
    Answer { reply, body: bytes.into() }
}

/// An error of ours: told to the caller, and the end of the record.
fn refuse(error: &Error, dialect: Dialect, head: &Head, mut record: Record, settings: &Settings) -> Answer {
    let Whole { mut answered, body } = error.answer(dialect);
    mark(&mut answered.headers, &record, head, settings);
    record.facts.status = answered.status;
    record.facts.error = Some(error.code());
    record.facts.bytes_out = body.len() as u64;
    record.close(Outcome::Refused);
    let mut reply = Reply::new(answered.status, answered.headers);
    reply.set_length(Some(body.len()));
    Answer { reply, body: body.into() }
}

/// Our own header fields, under the prefix that the caller used.
fn mark(headers: &mut Headers, record: &Record, head: &Head, settings: &Settings) {
    let prefix = Control::read(&head.headers, &settings.header_aliases).prefix.unwrap_or(headers::PREFIX);
    let facts = &record.facts;
    let mut id = uuid::Uuid::encode_buffer();
    let trace_id = facts.trace_id.as_deref().unwrap_or_else(|| record.id.hyphenated().encode_lower(&mut id));
    let mut name = [0_u8; 64];
    let mut push = |rest: &[u8], value: &[u8]| {
        let length = prefix.len() + rest.len();
        if let Some(name) = name.get_mut(..length) {
            name[..prefix.len()].copy_from_slice(prefix);
            name[prefix.len()..].copy_from_slice(rest);
            headers.push(name, value);
        }
    };
    push(b"trace-id", trace_id.as_bytes());
    push(b"last-used-option-index", b"config");
    push(b"retry-attempt-count", b"0");
    push(b"cache-status", b"DISABLED");
    if !facts.provider.is_empty() {
        push(b"provider", facts.provider.as_bytes());
    }
}
