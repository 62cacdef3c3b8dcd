//! The walk of a request, once per request and once per target. Read this first.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use penstock_llm::{
    api_format::{self, Dialect, Drawing, Form, Peek, PeekError},
    catalog::Continuing,
    chat::providers::Wire,
    operation::Operation,
    translation::{Mending, Translation},
};
use tokio::sync::Notify;

use crate::{
    accounting::record::{Facts, Record, Sink},
    auth::caller::{self, Caller},
    credentials,
    endpoints::{
        batches::{self, Output, allowlist, azure_blob_output},
        count_tokens, files, management_proxy, model_list,
    },
    error::{Error, Problem, Result},
    features::{inspect_stream, timeout},
    ingress::{
        body::{Body, Limits},
        headers::{self, Control, Head},
        route::{self, Route},
    },
    process::{coarse_timer::Grace, deadline::Deadline, settings::Settings},
    request::{
        include_usage, param_map,
        request_head::{self, Length, Manner, Said},
        translate,
    },
    resolve::{
        inference_profiles, models,
        target::Target,
        target_resolver::{Bases, Call, Choice},
    },
    response::{
        delivery::{self, Served},
        normalise,
        outgoing::Answer,
    },
    routing::{self, Continuation},
    state::{
        shared::Shared,
        snapshot::{self, Snapshot},
    },
    upstream::{Incoming, Outgoing, Shape, Upstream},
};

/// JSON up to this size, which is what crosses the border in one piece, takes less than a millisecond to look through.
const PEEKED_HERE: usize = 1024 * 1024;
/// So much of a form is waited for to learn its model.
const BEGINNING: usize = 64 * 1024;

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
    pub upstream: Arc<Upstream>,
    pub shared: Shared,
    pub body_limits: Limits,
    pub grace: Grace,
    pub(crate) snapshot: ArcSwap<Snapshot>,
    pub(crate) bases: Bases,
    ready: AtomicBool,
    draining: AtomicBool,
    closing: AtomicBool,
    closed: Notify,
    left: Notify,
}

impl Gateway {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases =
            Bases::new(settings.mock_host.as_deref()).map_err(|message| vec![Problem::new("$.mock_host", message)])?;
        credentials::check(&settings.identity)?;
        Ok(Self {
            upstream: Arc::new(Upstream::new(&settings)?),
            sink: Arc::new(Sink::new(&settings)),
            shared: Shared::new(&settings).map_err(|problem| vec![problem])?,
            snapshot: ArcSwap::default(),
            bases,
            body_limits: Limits::of(&settings),
            grace: Grace::default(),
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            left: Notify::new(),
            settings,
        })
    }

    /// Puts a new snapshot in the place of the old one; requests in flight keep theirs.
    pub fn apply(&self, json: &[u8]) -> std::result::Result<(), Vec<Problem>> {
        let next = self.snapshot.load().after(json)?;
        let old = self.snapshot.swap(Arc::new(next));
        self.ready.store(true, Ordering::Release);
        snapshot::bury(old);
        Ok(())
    }

    pub fn epoch(&self) -> String {
        self.snapshot.load().epoch.clone()
    }

    /// From now on `/ready` says no.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.left.notify_waiters();
    }

    /// Resolves when `/ready` begins to say no: the server's end waits for no WebSocket.
    pub async fn leaving(&self) {
        // In this order, as below.
        let told = self.left.notified();
        if !self.draining.load(Ordering::Acquire) {
            told.await;
        }
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

    /// Whether a path is the control process's to answer.
    pub fn is_management(&self, path: &str) -> bool {
        self.snapshot.load().is_management(path)
    }

    /// Whether no further request is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.sink.metrics.in_flight() > self.settings.max_in_flight as u64
    }

    /// Once per request.
    pub async fn handle(self: &Arc<Self>, request: Request) -> Answer {
        let mut answer = self.walk(request).await;
        if self.draining.load(Ordering::Acquire) {
            // So that a caller's next request opens a connection to one who stays.
            answer.reply.headers.push(b"connection", b"close");
        }
        answer
    }

    async fn walk(self: &Arc<Self>, request: Request) -> Answer {
        let Request { mut head, body } = request;
        let snapshot = self.snapshot.load_full();
        if let Some(message) = headers::odd_path(&head.path) {
            // Where it leads is for nobody to decide: it is nobody's but a refused request.
            let odd = Error::HeaderInvalid { name: "path", message: message.into() };
            return Box::pin(self.walk_on(snapshot, Request { head, body }, Some(odd))).await;
        }
        let fault = self.fault(&head);
        let of_listless = models::of_listless(&snapshot, &head, &self.settings.header_aliases);
        let is_of_listless = of_listless.is_some();
        if let Some(query) = of_listless {
            head.query = query;
        }
        if snapshot.is_management(&head.path)
            || is_of_listless
            || models::asks_for_catalogue(&snapshot, &head, &self.settings.header_aliases)
            || batches::asks_for_ours(&snapshot, &head, &self.settings.header_aliases)
        {
            return match fault {
                Some(fault) => self.turned_away(&fault, &head),
                None => management_proxy::forward(self, head, body).await,
            };
        }
        if batches::is_apart(&snapshot, &head) && fault.is_none() {
            return Box::pin(batches::walk(self, snapshot, Request { head, body })).await;
        }
        if let Some(path) = route::meant(&head.method, &head.path) {
            head.path = path;
        }
        // In a box of its own, which is gone when a stream begins: streams last, and the walk takes room. Made here, where it
        // is begun: the futures around it would be as large, and each is copied once when it is made.
        Box::pin(self.walk_on(snapshot, Request { head, body }, fault)).await
    }

    /// The rest of the walk of what goes to a provider.
    pub(crate) async fn walk_on(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
        request: Request,
        fault: Option<Error>,
    ) -> Answer {
        let Request { head, body } = request;
        // The record outlives this walk where the answer is a stream.
        let head = Arc::new(head);
        let Some(route) = Route::of(&head.method, &head.path) else {
            return fault.map_or_else(|| self.own(&head), |fault| self.turned_away(&fault, &head));
        };
        let control = Control::read(&head.headers, &self.settings.header_aliases);
        let call = Call { route, head: &head, control };
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.sink));
        record.facts.begin(&call, &self.sink);
        record.facts.paid.tariff.prices = Arc::clone(&snapshot.prices);
        let is_odd = || !route::is_passed(&call.head.method);
        if let Some(fault) = fault.or_else(|| is_odd().then_some(Error::MethodUnknown)) {
            return delivery::refuse(&fault, &call, record);
        }
        let served = {
            // Pinned here: what is given to `select` is copied once more.
            let serving = pin!(self.serve(&snapshot, &call, body, &mut record.facts));
            tokio::select! {
                biased;
                served = serving => served,
                () = self.closing() => Err(Error::Draining),
            }
        };
        match served {
            Ok(mut served) => {
                let place = served.place.take();
                let answer = delivery::deliver(self, served, &call, record).await;
                Continuation::follow((self, snapshot, Arc::clone(&head)), place, answer)
            }
            Err(error) => delivery::refuse(&error, &call, record),
        }
    }

    /// Admits, finds the target, attempts it.
    async fn serve(&self, snapshot: &Snapshot, call: &Call<'_>, body: Body, facts: &mut Facts) -> Result<Served> {
        if self.is_full() {
            return Err(Error::Overloaded);
        }
        let passport = caller::passport(snapshot, &call.head.headers, &call.control)?;
        let require = self.settings.require_key;
        let caller = caller::admit(passport.as_ref(), snapshot, require, &call.head.headers, &call.control)?;
        facts.called_by(&caller, snapshot);
        // Of who may call at all.
        let body = body.in_room(&self.shared.bodies)?;
        let choice = self.choice(snapshot, call, &caller);
        if routing::is_asked(call) {
            return Box::pin(routing::explain(self, &choice, body)).await;
        }
        let plan = choice.plan()?;
        facts.config = plan.slug.map(ToOwned::to_owned);
        let is_special = call.control.is_to_be_explained() || call.control.is_nitro();
        if !plan.config.is_plain || !plan.names_provider() || is_special {
            // In a box of its own: it would make the future of every request larger.
            return Box::pin(routing::route(self, &choice, &plan, body, facts)).await;
        }
        let (mut target, _) = choice.target(&plan, &plan.config.root, "")?;
        let until = call.control.patience.and_then(timeout::until);
        facts.metadata.check()?;
        facts.provider = target.provider.slug();
        facts.named_by = Some(if plan.config.root.provider.is_some() { "config" } else { "headers" });
        count_tokens::refuse_unserved(call.route.operation, &target)?;
        let body = self.read(call, body, facts).await?;
        if let (true, Body::Whole(bytes)) = (call.asked_for().is_countable(), &body) {
            facts.asked = Some(self.sink.counting.keep(call.asked_for(), bytes));
        }
        if facts.model.starts_with('@') {
            // It may name a provider before the model.
            return Box::pin(routing::readdress(self, &choice, &plan, body, facts)).await;
        }
        target.adopt(call, &facts.model, body.whole())?;
        target.end_by(until);
        if let Some(nameless) = target.provider.nameless(&target.options, &facts.model) {
            // In a box of its own: it would make the future of every request larger.
            Box::pin(inference_profiles::learn(self, call.route.operation, &mut target, nameless, facts)).await;
        }
        self.attempt(call, &target, body, facts).await
    }

    pub(crate) fn choice<'c>(
        &'c self,
        snapshot: &'c Snapshot,
        call: &'c Call<'c>,
        caller: &'c Caller<'c>,
    ) -> Choice<'c> {
        let (settings, bases, inline_configs) = (&self.settings, &self.bases, &self.shared.inline_configs);
        Choice { settings, bases, snapshot, inline_configs, call, caller }
    }

    /// Reads what must be known of a body before it is forwarded.
    pub(crate) async fn read(&self, call: &Call<'_>, body: Body, facts: &mut Facts) -> Result<Body> {
        let operation = call.route.operation;
        let mut body = body.limited(self.body_limits)?;
        let fields = &call.head.headers;
        if !operation.takes_json() {
            if let (true, Some(kind)) = (operation.takes_model_in_form(), fields.text("content-type")) {
                // In a box of its own: it would make the future of every request larger.
                facts.model = Box::pin(model_in_form(kind, &mut body)).await?;
            }
            return Ok(watched(call, body, facts));
        }
        let bytes = body.collect().await?;
        let peek = peeked(&bytes).await.map_err(|found| match fields.text("content-encoding") {
            None | Some("identity") => Error::BodyInvalid { at: found.at, message: found.message },
            Some(coding) => {
                let message = format!("`{coding}` is not read: send JSON as it is");
                Error::HeaderInvalid { name: "content-encoding", message }
            }
        })?;
        if let Some(user) = &peek.user {
            facts.metadata.add_user(user);
        }
        let streams = peek.streams();
        (facts.model, facts.stream) = match call.route.model() {
            Some(model) => (model.into_owned(), operation.streams()),
            None => (peek.model.unwrap_or_default(), streams),
        };
        facts.user = peek.user;
        Ok(Body::Whole(bytes))
    }

    /// Once per target.
    pub(crate) async fn attempt(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        body: Body,
        facts: &mut Facts,
    ) -> Result<Served> {
        // Of a target before.
        (facts.unsaid, facts.hides_usage) = (None, false);
        if call.route.operation == Operation::ImageGenerate {
            facts.paid.drawing = Some(Box::new(Drawing::of(body.whole())));
        }
        let body = if target.reads_lines(call).is_some() {
            // In a box of its own: it would make the future of every request larger.
            Box::pin(allowlist::admitted(self, call, target, body, facts)).await?
        } else {
            body
        };
        let wire = target.wire(call.route.operation, &facts.model);
        if let (Some(wire), false) = (wire, target.passthrough) {
            // In a box of its own: it would make the future of every request larger.
            return Box::pin(self.attempt_translated(call, target, (wire, body), facts)).await;
        }
        if let (true, Some(keeper)) = (call.route.operation.is_of_files(), target.provider.keeper()) {
            return Box::pin(files::answer(self, call, (target, keeper), body, facts)).await;
        }
        if let Some(Output::Blob(url)) = call.head.output.as_deref() {
            return Box::pin(azure_blob_output::read(self, call, (target, url), facts)).await;
        }
        if count_tokens::is_ours(call, target) {
            return Box::pin(count_tokens::answer(call, body, &facts.model, &self.grace)).await;
        }
        let body = match param_map::of(call, target, &facts.model) {
            // In a box of its own: it would make the future of every request larger.
            Some(wording) => Box::pin(param_map::put(wording, body, facts)).await?,
            None => body,
        };
        let body = if body.whole().len() > PEEKED_HERE {
            // In a box of its own: it would make the future of every request larger.
            Box::pin(include_usage::ask_elsewhere(call, target, body, facts)).await
        } else {
            include_usage::ask(call, target, body, facts)
        };
        let counted = count_tokens::kept(call, target, &body);
        let (mut incoming, mut deadline) = self.exchange(call, target, (body, None), facts).await?;
        if let Some(body) = counted.filter(|_| count_tokens::is_refused(&incoming)) {
            let refused = Served::new(incoming, call.dialect(), deadline);
            return Box::pin(count_tokens::estimate(call, body, refused, (facts, &self.grace))).await;
        }
        if let Some(mending) = normalise::of(call, target).filter(|mending| normalise::is_due(*mending, &incoming)) {
            // In a box of its own: it would make the future of every request larger.
            incoming = Box::pin(normalise::mend(mending, incoming, &mut deadline)).await?;
        }
        let dialect = dialect_of(call, target);
        if target.inspects && dialect == Dialect::Anthropic && delivery::is_readable_stream(&incoming) {
            // In a box of its own too.
            let incoming = Box::pin(deadline.bound(inspect_stream::inspect(incoming))).await?;
            return Ok(Served::new(incoming, dialect, deadline));
        }
        Ok(Served::new(incoming, dialect, deadline))
    }

    /// Once per target that is asked in another way than the caller asks.
    async fn attempt_translated(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        (wire, body): (&'static dyn Wire, Body),
        facts: &mut Facts,
    ) -> Result<Served> {
        self.sink.metrics.translated.add(1);
        let counted = count_tokens::kept(call, target, &body);
        let (body, translation) = translate::say(call, target, body, (wire, &self.shared), facts).await?;
        if call.route.operation == Operation::Models {
            return model_list::ask(self, call, target, translation, facts).await;
        }
        if translation.deletes() {
            return batches::delete(self, call, target, translation, facts).await;
        }
        facts.hides_usage = translation.hides_usage;
        let (mut incoming, mut deadline) = self.exchange(call, target, (body, Some(&translation)), facts).await?;
        if let Some(body) = counted.filter(|_| count_tokens::is_refused(&incoming)) {
            let refused = Served::new(incoming, call.dialect(), deadline);
            return Box::pin(count_tokens::estimate(call, body, refused, (facts, &self.grace))).await;
        }
        if let (Some(head), true) = (translate::head_of_look(call), incoming.head.status < 300) {
            let look = translate::look(call, &head);
            let looking = self.exchange(&look, target, (Body::empty(), Some(&translation)), facts);
            // Both questions are one to the caller, and have the time of one.
            (incoming, _) = deadline.bound(looking).await?;
        }
        // Whoever it comes from: others host Anthropic's models too, and the first event of other streams says nothing here.
        if target.inspects && delivery::is_readable_stream(&incoming) {
            incoming = deadline.bound(inspect_stream::inspect(incoming)).await?;
        }
        let incoming = translate::tell(call, translation, incoming, &mut deadline).await?;
        Ok(Served::new(incoming, call.dialect(), deadline))
    }

    /// Sends a body and waits for the head of the answer; the deadline is for what of the answer must be there first.
    pub(crate) async fn exchange(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        (body, translation): (Body, Option<&Translation>),
        facts: &mut Facts,
    ) -> Result<(Incoming, Deadline)> {
        let operation = call.route.operation;
        let body = param_map::named(call, target, body).await?;
        let body = match target.goes_on {
            Some(how) => marked(how, body),
            None => body,
        };
        let (body, payload) = if target.is_signed() {
            // In a box of its own: it would make the future of every request larger.
            let (body, payload) = Box::pin(credentials::payload(target, operation, body)).await?;
            (body, Some(payload))
        } else {
            (body, None)
        };
        let length = match &body {
            Body::Whole(bytes) if bytes.is_empty() && !call.head.takes_body() => Length::None,
            Body::Whole(bytes) => Length::Known(bytes.len() as u64),
            Body::Fed(_, Some(length)) => Length::Known(*length),
            Body::Fed(_, None) => Length::Chunked,
        };
        let issued = match &target.grant {
            None => None,
            Some(grant) => Some(Box::pin(credentials::fetch(self, target, grant)).await?),
        };
        let mut deadline = Deadline::new(target.timeout, &body, &self.grace);
        let issued = issued.as_deref();
        let mends = translation.is_none() && normalise::of(call, target).is_some_and(Mending::mends);
        let content_type = translation.and_then(Translation::content_type);
        let said = Said {
            model: &facts.model,
            user: facts.user.as_deref().unwrap_or_default(),
            streams: facts.stream,
            manner: Manner::of(translation, facts.hides_usage || mends),
            content_type: content_type.as_deref(),
            betas: translation.and_then(|translation| translation.betas.as_deref()),
            version: translation.and_then(|translation| translation.version.as_deref()),
            next: translation.and_then(|translation| translation.next.as_deref()),
            length,
            issued,
        };
        let mut head = request_head::head(call, target, said, &self.settings.header_aliases)?;
        if let Some(payload) = payload {
            credentials::sign(target, operation, issued, (&mut head, &payload))?;
        }
        let outgoing = Outgoing {
            head,
            body,
            shape: Shape { chunked: length == Length::Chunked, bodiless: call.head.method == "HEAD" },
            replayable: call.head.is_replayable(),
        };
        facts.asked_of(target, operation);
        let sent = Instant::now();
        // Pinned here: what an async function takes it keeps twice, and this is the largest part of a request's future.
        let sending = pin!(self.upstream.send(&target.base.origin, outgoing));
        let incoming = deadline.bound(sending).await?;
        facts.upstream = Some(sent.elapsed());
        Ok((incoming, deadline.answered()))
    }

    /// Paths that the engine answers by itself.
    fn own(&self, head: &Head) -> Answer {
        let is_ready = self.ready.load(Ordering::Acquire) && !self.draining.load(Ordering::Acquire);
        match (head.method.as_str(), head.path.as_str()) {
            ("GET" | "HEAD", "/live") => Answer::text(200, "live"),
            ("GET" | "HEAD", "/ready") if is_ready => Answer::text(200, "ready"),
            ("GET" | "HEAD", "/ready") => Answer::text(503, "not ready"),
            ("GET" | "HEAD", "/") => Answer::text(200, "Penstock says hey!"),
            _ => self.turned_away(&Error::NotFound, head),
        }
    }

    /// What is wrong with a head, wherever it leads.
    pub(crate) fn fault(&self, head: &Head) -> Option<Error> {
        let limit = self.settings.header_bytes;
        if head.size() > limit {
            return Some(Error::HeadTooLarge { limit });
        }
        let fault = headers::fault(&head.headers, &self.settings.header_aliases);
        fault.map(|(name, message)| Error::HeaderInvalid { name, message })
    }

    /// An error of ours of which there is no record.
    pub(crate) fn turned_away(&self, error: &Error, head: &Head) -> Answer {
        delivery::labelled(Answer::error(error, Dialect::OpenAi), head, &self.settings.header_aliases)
    }
}

/// The model that a form which is still coming names in its beginning: it may say which provider is meant.
async fn model_in_form(kind: &str, body: &mut Body) -> Result<String> {
    let Some(mut form) = Form::of(kind) else { return Ok(String::new()) };
    let is_enough = |piece: &[u8]| {
        form.feed(piece);
        form.model().is_some() || form.is_over()
    };
    body.begun(BEGINNING, is_enough).await?;
    Ok(form.model().unwrap_or_default().to_owned())
}

/// What must be known of a JSON body. A large one is looked through elsewhere: here others wait.
async fn peeked(body: &Bytes) -> std::result::Result<Peek, PeekError> {
    if body.len() <= PEEKED_HERE {
        return api_format::peek(body);
    }
    let body = body.clone();
    let elsewhere = tokio::task::spawn_blocking(move || api_format::peek(&body)).await;
    // Looking neither panics nor is cancelled, unless the process ends.
    elsewhere.unwrap_or(Err(PeekError { at: 0, message: "it could not be looked through" }))
}

/// A chat whose last message its provider must be told is the beginning of the answer.
fn marked(how: &Continuing, body: Body) -> Body {
    match &body {
        Body::Whole(bytes) => how.marked(bytes).map_or(body, |marked| Body::Whole(marked.into())),
        Body::Fed(..) => body,
    }
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
        && headers::is_json(kind.as_bytes())
        && let Ok(peek) = api_format::peek(bytes)
    {
        if let Some(user) = &peek.user {
            facts.metadata.add_user(user);
        }
        facts.stream = peek.streams();
        facts.model = peek.model.unwrap_or_default();
    }
    body
}

/// Refuses what would have to be told in other words where it is to stay as it is.
pub(crate) fn refuse_other_words(call: &Call<'_>, target: &Target<'_>, model: &str) -> Result<()> {
    let (operation, provider) = (call.route.operation, target.provider);
    // These have paths of the provider's own that take what is meant for it.
    let is_raw = matches!(operation, Operation::Models | Operation::Rerank);
    let has_wire = || !is_raw && target.wire(operation, model).is_some();
    let is_kept = || operation.is_of_files() && provider.keeper().is_some();
    if target.passthrough && (has_wire() || is_kept()) {
        return Err(Error::Unsupported { operation: operation.id(), provider: provider.slug() });
    }
    Ok(())
}

/// The dialect of an answer: the caller's where that is plain, else the provider's.
pub(crate) fn dialect_of(call: &Call<'_>, target: &Target<'_>) -> Dialect {
    match call.dialect() {
        Dialect::OpenAi if call.asked_for().dialect().is_none() => target.provider.dialect(),
        dialect => dialect,
    }
}
