//! Request pipeline of the gateway: the steps per request (`handle`) and per target (`attempt_target`). Read this file
//! first.

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
    api_format::{self, ApiFormat, FormScanner, ImageParams, Peek, ScanError},
    catalog::PrefillSupport,
    chat::providers::ProviderFormat,
    operation::Operation,
    translation::{Normaliser, Translation},
};
use tokio::sync::Notify;

use crate::{
    accounting::record::{Record, RecordSink, RequestLog},
    auth::caller::{self, Caller},
    credentials,
    endpoints::{
        batches::{self, BatchOutput, allowlist, azure_blob_output},
        count_tokens, files, management_proxy, model_list,
    },
    error::{Error, Problem, Result},
    features::{inspect_stream, timeout},
    ingress::{
        body::{Body, BodyLimits},
        headers::{self, ControlHeaders, RequestHead},
        route::{self, Route},
    },
    process::{coarse_timer::CoarseTimer, deadline::Deadline, settings::Settings},
    request::{
        include_usage, param_map,
        request_head::{self, BodyLength, RenderInput, TransformMode},
        translate,
    },
    resolve::{
        inference_profiles, models,
        target::Target,
        target_resolver::{BaseUrls, Call, TargetResolver},
    },
    response::{
        delivery::{self, UpstreamResponse},
        normalise,
        outgoing::ClientResponse,
    },
    routing::{self, Continuation},
    state::{
        shared::SharedState,
        snapshot::{self, Snapshot},
    },
    upstream::{BodyFraming, IncomingResponse, OutgoingRequest, Upstream},
};

/// Largest JSON body that is scanned on the async thread; larger ones go to a blocking thread. Scanning this much takes
/// less than a millisecond. It is also the most that crosses the Python boundary in one piece.
const MAX_INLINE_PEEK_BYTES: usize = 1024 * 1024;
/// Number of bytes of a form to wait for when looking for its model.
const MAX_FORM_PREFIX_BYTES: usize = 64 * 1024;

/// Request as received from the client.
#[derive(Debug)]
pub struct Request {
    pub head: RequestHead,
    pub body: Body,
}

/// State shared by all requests of a worker.
pub struct Gateway {
    pub settings: Settings,
    pub record_sink: Arc<RecordSink>,
    pub upstream: Arc<Upstream>,
    pub shared: SharedState,
    pub body_limits: BodyLimits,
    pub coarse_timer: CoarseTimer,
    pub(crate) snapshot: ArcSwap<Snapshot>,
    pub(crate) base_urls: BaseUrls,
    is_ready: AtomicBool,
    is_draining: AtomicBool,
    is_ending_streams: AtomicBool,
    end_streams_notify: Notify,
    drain_notify: Notify,
}

impl Gateway {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases = BaseUrls::new(settings.mock_host.as_deref())
            .map_err(|message| vec![Problem::new("$.mock_host", message)])?;
        credentials::check_identity_urls(&settings.identity)?;
        Ok(Self {
            upstream: Arc::new(Upstream::new(&settings)?),
            record_sink: Arc::new(RecordSink::new(&settings)),
            shared: SharedState::new(&settings).map_err(|problem| vec![problem])?,
            snapshot: ArcSwap::default(),
            base_urls: bases,
            body_limits: BodyLimits::from_settings(&settings),
            coarse_timer: CoarseTimer::default(),
            is_ready: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_ending_streams: AtomicBool::new(false),
            end_streams_notify: Notify::new(),
            drain_notify: Notify::new(),
            settings,
        })
    }

    /// Compiles a new snapshot and replaces the current one. Requests in flight keep the old snapshot.
    pub fn apply_snapshot(&self, json: &[u8]) -> std::result::Result<(), Vec<Problem>> {
        let next = self.snapshot.load().apply_update(json)?;
        let old = self.snapshot.swap(Arc::new(next));
        self.is_ready.store(true, Ordering::Release);
        snapshot::drop_in_background(old);
        Ok(())
    }

    pub fn snapshot_epoch(&self) -> String {
        self.snapshot.load().epoch.clone()
    }

    /// Starts draining: from now on `/ready` returns 503.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.drain_notify.notify_waiters();
    }

    /// Resolves when draining starts. WebSockets wait for it, because the server's shutdown does not wait for them.
    pub async fn wait_for_drain_start(&self) {
        // Creates the waiter before checking the flag, so that a concurrent `drain` is not missed.
        let told = self.drain_notify.notified();
        if !self.is_draining.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// Ends the streams that are still open.
    pub fn end_streams(&self) {
        self.is_ending_streams.store(true, Ordering::Release);
        self.end_streams_notify.notify_waiters();
    }

    /// Resolves when open streams must end.
    pub async fn wait_for_stream_shutdown(&self) {
        // Creates the waiter before checking the flag, so that a concurrent `end_streams` is not missed.
        let told = self.end_streams_notify.notified();
        if !self.is_ending_streams.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// Returns true if the control process serves this path.
    pub fn is_management_path(&self, path: &str) -> bool {
        self.snapshot.load().is_management_path(path)
    }

    /// Returns true if too many requests are in flight to accept another one.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.record_sink.metrics.in_flight() > self.settings.max_in_flight as u64
    }

    /// Handles one client request and returns its response.
    pub async fn handle(self: &Arc<Self>, request: Request) -> ClientResponse {
        let mut response = self.dispatch(request).await;
        if self.is_draining.load(Ordering::Acquire) {
            // Makes the client open a new connection for its next request, to a worker that is not draining.
            response.head.headers.push(b"connection", b"close");
        }
        response
    }

    async fn dispatch(self: &Arc<Self>, request: Request) -> ClientResponse {
        let Request { mut head, body } = request;
        let snapshot = self.snapshot.load_full();
        if let Some(message) = headers::find_path_error(&head.path) {
            // The path is ambiguous, so it must not select a destination. The request is rejected and recorded as a
            // provider request.
            let odd = Error::HeaderInvalid { name: "path", message: message.into() };
            return Box::pin(self.handle_provider_request(snapshot, Request { head, body }, Some(odd))).await;
        }
        let fault = self.find_head_error(&head);
        let of_listless = models::catalogue_query(&snapshot, &head, &self.settings.header_aliases);
        let is_of_listless = of_listless.is_some();
        if let Some(query) = of_listless {
            head.query = query;
        }
        if snapshot.is_management_path(&head.path)
            || is_of_listless
            || models::is_catalogue_request(&snapshot, &head, &self.settings.header_aliases)
            || batches::is_for_gateway_store(&snapshot, &head, &self.settings.header_aliases)
        {
            return match fault {
                Some(fault) => self.reject_without_record(&fault, &head),
                None => management_proxy::forward_management_request(self, head, body).await,
            };
        }
        if batches::needs_batch_handler(&snapshot, &head) && fault.is_none() {
            return Box::pin(batches::handle_request(self, snapshot, Request { head, body })).await;
        }
        if let Some(path) = route::rewrite_cancel_path(&head.method, &head.path) {
            head.path = path;
        }
        // Boxed so that the memory is freed when a stream begins: streams last long, and this future is large. The box
        // is created here because the enclosing futures would be as large, and each is copied once when created.
        Box::pin(self.handle_provider_request(snapshot, Request { head, body }, fault)).await
    }

    /// Handles a request that goes to a provider: opens its record, serves it and delivers the response.
    pub(crate) async fn handle_provider_request(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
        request: Request,
        fault: Option<Error>,
    ) -> ClientResponse {
        let Request { head, body } = request;
        // The record outlives this function if the response is a stream.
        let head = Arc::new(head);
        let Some(route) = Route::parse(&head.method, &head.path) else {
            return fault
                .map_or_else(|| self.builtin_response(&head), |fault| self.reject_without_record(&fault, &head));
        };
        let control = ControlHeaders::parse(&head.headers, &self.settings.header_aliases);
        let call = Call { route, head: &head, control };
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.record_sink));
        record.log.read_request(&call, &self.record_sink);
        record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
        let is_odd = || !route::is_forwarded_method(&call.head.method);
        if let Some(fault) = fault.or_else(|| is_odd().then_some(Error::MethodNotAllowed)) {
            return delivery::respond_with_error(&fault, &call, record);
        }
        let served = {
            // Pinned here because `select` would copy a future that it takes by value once more.
            let serving = pin!(self.admit_and_send(&snapshot, &call, body, &mut record.log));
            tokio::select! {
                biased;
                served = serving => served,
                () = self.wait_for_stream_shutdown() => Err(Error::Draining),
            }
        };
        match served {
            Ok(mut served) => {
                let place = served.resume_point.take();
                let answer = delivery::deliver_response(self, served, &call, record).await;
                Continuation::attach((self, snapshot, Arc::clone(&head)), place, answer)
            }
            Err(error) => delivery::respond_with_error(&error, &call, record),
        }
    }

    /// Admits the caller, resolves the target and attempts it.
    async fn admit_and_send(
        &self,
        snapshot: &Snapshot,
        call: &Call<'_>,
        body: Body,
        log: &mut RequestLog,
    ) -> Result<UpstreamResponse> {
        if self.is_overloaded() {
            return Err(Error::Overloaded);
        }
        let token_identity = caller::authenticate_token(snapshot, &call.head.headers, &call.control)?;
        let require = self.settings.require_key;
        let caller = caller::admit(token_identity.as_ref(), snapshot, require, &call.head.headers, &call.control)?;
        log.set_caller(&caller, snapshot);
        // Counts the body towards the memory budget only after admission, so that rejected clients cannot use it up.
        let body = body.with_memory_budget(&self.shared.body_memory)?;
        let resolver = self.target_resolver(snapshot, call, &caller);
        if routing::is_explain_request(call) {
            return Box::pin(routing::explain_routing(self, &resolver, body)).await;
        }
        let plan = resolver.build_plan()?;
        log.config_slug = plan.config_slug.map(ToOwned::to_owned);
        let is_special = call.control.should_explain() || call.control.is_nitro_mode();
        if !plan.config.is_plain || !plan.has_provider() || is_special {
            // Boxed because an inline future would enlarge the future of every request.
            return Box::pin(routing::route_request(self, &resolver, &plan, body, log)).await;
        }
        let (mut target, _) = resolver.resolve_target(&plan, &plan.config.root, "")?;
        let until = call.control.client_timeout.and_then(timeout::client_deadline);
        log.metadata.validate()?;
        log.provider = target.provider.slug();
        log.provider_source = Some(if plan.config.root.provider.is_some() { "config" } else { "headers" });
        count_tokens::check_supported(call.route.operation, &target)?;
        let body = self.read_body(call, body, log).await?;
        if let (true, Body::Complete(bytes)) = (call.requested_operation().has_countable_text(), &body) {
            log.count_input = Some(self.record_sink.token_counter.retain_body(call.requested_operation(), bytes));
        }
        if log.model.starts_with('@') {
            // The model may carry a provider prefix (`@slug/model`).
            return Box::pin(routing::resolve_model_prefix(self, &resolver, &plan, body, log)).await;
        }
        target.apply_model(call, &log.model, body.complete_bytes())?;
        target.cap_timeout(until);
        if let Some(lookup) = target.provider.model_lookup(&target.options, &log.model) {
            // Boxed because an inline future would enlarge the future of every request.
            Box::pin(inference_profiles::resolve_backing_model(self, call.route.operation, &mut target, lookup, log))
                .await;
        }
        self.attempt_target(call, &target, body, log).await
    }

    pub(crate) fn target_resolver<'c>(
        &'c self,
        snapshot: &'c Snapshot,
        call: &'c Call<'c>,
        caller: &'c Caller<'c>,
    ) -> TargetResolver<'c> {
        let (settings, bases, inline_configs) = (&self.settings, &self.base_urls, &self.shared.inline_configs);
        TargetResolver { settings, base_urls: bases, snapshot, inline_configs, call, caller }
    }

    /// Reads what must be known about a body before it is forwarded: its model, user and stream flag.
    pub(crate) async fn read_body(&self, call: &Call<'_>, body: Body, log: &mut RequestLog) -> Result<Body> {
        let operation = call.route.operation;
        let mut body = body.with_limits(self.body_limits)?;
        let fields = &call.head.headers;
        if !operation.has_json_body() {
            if let (true, Some(kind)) = (operation.has_model_in_form(), fields.get_str("content-type")) {
                // Boxed because an inline future would enlarge the future of every request.
                log.model = Box::pin(read_form_model(kind, &mut body)).await?;
            }
            return Ok(observe_body(call, body, log));
        }
        let bytes = body.collect().await?;
        let peek = peek_json(&bytes).await.map_err(|found| match fields.get_str("content-encoding") {
            None | Some("identity") => Error::BodyInvalid { offset: found.offset, message: found.message },
            Some(coding) => {
                let message = format!("`{coding}` is not supported; send uncompressed JSON");
                Error::HeaderInvalid { name: "content-encoding", message }
            }
        })?;
        if let Some(user) = &peek.user {
            log.metadata.add_user(user);
        }
        let streams = peek.is_streaming();
        (log.model, log.is_streaming) = match call.route.model() {
            Some(model) => (model.into_owned(), operation.is_always_streaming()),
            None => (peek.model.unwrap_or_default(), streams),
        };
        log.user = peek.user;
        Ok(Body::Complete(bytes))
    }

    /// Attempts one target.
    pub(crate) async fn attempt_target(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        body: Body,
        log: &mut RequestLog,
    ) -> Result<UpstreamResponse> {
        // Clears what a previous target set.
        (log.dropped_fields, log.hides_usage) = (None, false);
        if call.route.operation == Operation::ImageGenerate {
            log.billing.image_params = Some(Box::new(ImageParams::from_json(body.complete_bytes())));
        }
        let body = if target.batch_line_allowlist(call).is_some() {
            // Boxed because an inline future would enlarge the future of every request.
            Box::pin(allowlist::check_batch_models(self, call, target, body, log)).await?
        } else {
            body
        };
        let wire = target.provider_format(call.route.operation, &log.model);
        if let (Some(wire), false) = (wire, target.is_passthrough) {
            // Boxed because an inline future would enlarge the future of every request.
            return Box::pin(self.attempt_translated(call, target, (wire, body), log)).await;
        }
        if let (true, Some(keeper)) = (call.route.operation.is_file_operation(), target.provider.file_store()) {
            return Box::pin(files::handle_file_request(self, call, (target, keeper), body, log)).await;
        }
        if let Some(BatchOutput::Blob(url)) = call.head.batch_output.as_deref() {
            return Box::pin(azure_blob_output::fetch_output_blob(self, call, (target, url), log)).await;
        }
        if count_tokens::should_count_locally(call, target) {
            return Box::pin(count_tokens::count_locally(call, body, &log.model, &self.coarse_timer)).await;
        }
        let body = match param_map::param_rules(call, target, &log.model) {
            // Boxed because an inline future would enlarge the future of every request.
            Some(wording) => Box::pin(param_map::apply_param_rules(wording, body, log)).await?,
            None => body,
        };
        let body = if body.complete_bytes().len() > MAX_INLINE_PEEK_BYTES {
            // Boxed because an inline future would enlarge the future of every request.
            Box::pin(include_usage::request_usage_blocking(call, target, body, log)).await
        } else {
            include_usage::request_usage(call, target, body, log)
        };
        let counted = count_tokens::retain_for_local_count(call, target, &body);
        let (mut incoming, mut deadline) = self.send_to_target(call, target, (body, None), log).await?;
        if let Some(body) = counted.filter(|_| count_tokens::is_count_rejected(&incoming)) {
            let refused = UpstreamResponse::new(incoming, call.client_api_format(), deadline);
            return Box::pin(count_tokens::count_after_rejection(call, body, refused, (log, &self.coarse_timer))).await;
        }
        if let Some(mending) =
            normalise::normaliser_for(call, target).filter(|mending| normalise::needs_normalising(*mending, &incoming))
        {
            // Boxed because an inline future would enlarge the future of every request.
            incoming = Box::pin(normalise::normalise_response(mending, incoming, &mut deadline)).await?;
        }
        let dialect = response_api_format(call, target);
        if target.inspects_stream && dialect == ApiFormat::Anthropic && delivery::can_inspect_events(&incoming) {
            // Boxed because an inline future would enlarge the future of every request.
            let incoming = Box::pin(deadline.enforce(inspect_stream::inspect_first_event(incoming))).await?;
            return Ok(UpstreamResponse::new(incoming, dialect, deadline));
        }
        Ok(UpstreamResponse::new(incoming, dialect, deadline))
    }

    /// Attempts one target whose API format differs from the client's.
    async fn attempt_translated(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        (wire, body): (&'static dyn ProviderFormat, Body),
        log: &mut RequestLog,
    ) -> Result<UpstreamResponse> {
        self.record_sink.metrics.translated.add(1);
        let counted = count_tokens::retain_for_local_count(call, target, &body);
        let (body, translation) = translate::translate_request(call, target, body, (wire, &self.shared), log).await?;
        if call.route.operation == Operation::Models {
            return model_list::fetch_model_list(self, call, target, translation, log).await;
        }
        if translation.deletes_batch() {
            return batches::delete_batch(self, call, target, translation, log).await;
        }
        log.hides_usage = translation.should_hide_usage;
        let (mut incoming, mut deadline) = self.send_to_target(call, target, (body, Some(&translation)), log).await?;
        if let Some(body) = counted.filter(|_| count_tokens::is_count_rejected(&incoming)) {
            let refused = UpstreamResponse::new(incoming, call.client_api_format(), deadline);
            return Box::pin(count_tokens::count_after_rejection(call, body, refused, (log, &self.coarse_timer))).await;
        }
        if let (Some(head), true) = (translate::job_status_head(call), incoming.head.status < 300) {
            let look = translate::job_status_call(call, &head);
            let looking = self.send_to_target(&look, target, (Body::empty(), Some(&translation)), log);
            // Both upstream requests serve one client request and share its deadline.
            (incoming, _) = deadline.enforce(looking).await?;
        }
        // Applies to every provider: others host Anthropic's models too. For other streams the first event has no
        // effect here.
        if target.inspects_stream && delivery::can_inspect_events(&incoming) {
            incoming = deadline.enforce(inspect_stream::inspect_first_event(incoming)).await?;
        }
        let incoming = translate::translate_response(call, translation, incoming, &mut deadline).await?;
        Ok(UpstreamResponse::new(incoming, call.client_api_format(), deadline))
    }

    /// Sends a body to a target and waits for the response head. The returned deadline bounds the part of the response
    /// that must arrive before delivery.
    pub(crate) async fn send_to_target(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        (body, translation): (Body, Option<&Translation>),
        log: &mut RequestLog,
    ) -> Result<(IncomingResponse, Deadline)> {
        let operation = call.route.operation;
        let body = param_map::set_model_in_body(call, target, body).await?;
        let body = match target.prefill {
            Some(how) => mark_prefill(how, body),
            None => body,
        };
        let (body, payload) = if target.signs_requests() {
            // Boxed because an inline future would enlarge the future of every request.
            let (body, payload) = Box::pin(credentials::prepare_payload(target, operation, body)).await?;
            (body, Some(payload))
        } else {
            (body, None)
        };
        let length = match &body {
            Body::Complete(bytes) if bytes.is_empty() && !call.head.expects_body() => BodyLength::None,
            Body::Complete(bytes) => BodyLength::Known(bytes.len() as u64),
            Body::Streamed(_, Some(length)) => BodyLength::Known(*length),
            Body::Streamed(_, None) => BodyLength::Chunked,
        };
        let issued = match &target.grant {
            None => None,
            Some(grant) => Some(Box::pin(credentials::fetch_credential(self, target, grant)).await?),
        };
        let mut deadline = Deadline::new(target.timeout, &body, &self.coarse_timer);
        let issued = issued.as_deref();
        let mends =
            translation.is_none() && normalise::normaliser_for(call, target).is_some_and(Normaliser::changes_responses);
        let content_type = translation.and_then(Translation::request_content_type);
        let said = RenderInput {
            model: &log.model,
            user: log.user.as_deref().unwrap_or_default(),
            is_streaming: log.is_streaming,
            mode: TransformMode::from_translation(translation, log.hides_usage || mends),
            content_type: content_type.as_deref(),
            anthropic_betas: translation.and_then(|translation| translation.anthropic_betas.as_deref()),
            anthropic_version: translation.and_then(|translation| translation.anthropic_version.as_deref()),
            page_token: translation.and_then(|translation| translation.next_page_token.as_deref()),
            body_length: length,
            issued_credential: issued,
        };
        let mut head = request_head::render_head(call, target, said, &self.settings.header_aliases)?;
        if let Some(payload) = payload {
            credentials::sign_head(target, operation, issued, (&mut head, &payload))?;
        }
        let outgoing = OutgoingRequest {
            head,
            body,
            body_framing: BodyFraming {
                is_chunked: length == BodyLength::Chunked,
                is_bodiless: call.head.method == "HEAD",
            },
            is_replayable: call.head.is_replayable(),
        };
        log.set_target(target, operation);
        let sent = Instant::now();
        // Pinned here because an async function stores its arguments twice, and this is the largest part of a request's
        // future.
        let sending = pin!(self.upstream.send(&target.base_url.origin, outgoing));
        let incoming = deadline.enforce(sending).await?;
        log.upstream_latency = Some(sent.elapsed());
        Ok((incoming, deadline.response_started()))
    }

    /// Returns the response for a path that the gateway serves itself, else 404.
    fn builtin_response(&self, head: &RequestHead) -> ClientResponse {
        let is_ready = self.is_ready.load(Ordering::Acquire) && !self.is_draining.load(Ordering::Acquire);
        match (head.method.as_str(), head.path.as_str()) {
            ("GET" | "HEAD", "/live") => ClientResponse::plain_text(200, "live"),
            ("GET" | "HEAD", "/ready") if is_ready => ClientResponse::plain_text(200, "ready"),
            ("GET" | "HEAD", "/ready") => ClientResponse::plain_text(503, "not ready"),
            ("GET" | "HEAD", "/") => ClientResponse::plain_text(200, "Penstock says hey!"),
            _ => self.reject_without_record(&Error::NotFound, head),
        }
    }

    /// Validates a request head for any destination. Returns the error, or `None` if the head is valid.
    pub(crate) fn find_head_error(&self, head: &RequestHead) -> Option<Error> {
        let limit = self.settings.header_bytes;
        if head.size_bytes() > limit {
            return Some(Error::HeadersTooLarge { limit });
        }
        let fault = headers::find_header_error(&head.headers, &self.settings.header_aliases);
        fault.map(|(name, message)| Error::HeaderInvalid { name, message })
    }

    /// Returns a gateway error response for a request that has no record.
    pub(crate) fn reject_without_record(&self, error: &Error, head: &RequestHead) -> ClientResponse {
        delivery::add_request_ids(
            ClientResponse::from_error(error, ApiFormat::OpenAi),
            head,
            &self.settings.header_aliases,
        )
    }
}

/// Returns the model named in the first bytes of a form that is still arriving. The model may carry a provider prefix.
async fn read_form_model(kind: &str, body: &mut Body) -> Result<String> {
    let Some(mut form) = FormScanner::from_content_type(kind) else { return Ok(String::new()) };
    let is_enough = |piece: &[u8]| {
        form.feed(piece);
        form.model().is_some() || form.is_finished()
    };
    body.wait_for_prefix(MAX_FORM_PREFIX_BYTES, is_enough).await?;
    Ok(form.model().unwrap_or_default().to_owned())
}

/// Extracts the routing fields of a JSON body. Scans a large body on a blocking thread, so that other requests do not
/// wait.
async fn peek_json(body: &Bytes) -> std::result::Result<Peek, ScanError> {
    if body.len() <= MAX_INLINE_PEEK_BYTES {
        return api_format::peek(body);
    }
    let body = body.clone();
    let elsewhere = tokio::task::spawn_blocking(move || api_format::peek(&body)).await;
    // Scanning neither panics nor is cancelled, unless the process ends.
    elsewhere.unwrap_or(Err(ScanError { offset: 0, message: "the body could not be scanned" }))
}

/// Marks the last message of a chat as an assistant prefill, for providers that need an explicit flag.
fn mark_prefill(how: &PrefillSupport, body: Body) -> Body {
    match &body {
        Body::Complete(bytes) => how.mark_prefill(bytes).map_or(body, |marked| Body::Complete(marked.into())),
        Body::Streamed(..) => body,
    }
}

/// Extracts model, user and stream flag from a body that is forwarded as it arrives. Ignores errors, because the
/// provider validates the body.
fn observe_body(call: &Call<'_>, body: Body, log: &mut RequestLog) -> Body {
    let Some(kind) = call.head.headers.get_str("content-type") else { return body };
    if let Some(form) = FormScanner::from_content_type(kind) {
        let form = Arc::new(Mutex::new(form));
        log.form = Some(Arc::clone(&form));
        let body =
            body.with_watcher(Box::new(move |bytes| form.lock().unwrap_or_else(PoisonError::into_inner).feed(bytes)));
        log.apply_form_fields();
        return body;
    }
    if let Body::Complete(bytes) = &body
        && headers::is_json_media_type(kind.as_bytes())
        && let Ok(peek) = api_format::peek(bytes)
    {
        if let Some(user) = &peek.user {
            log.metadata.add_user(user);
        }
        log.is_streaming = peek.is_streaming();
        log.model = peek.model.unwrap_or_default();
    }
    body
}

/// Rejects a passthrough request that would need translation at this provider.
pub(crate) fn reject_untranslated_passthrough(call: &Call<'_>, target: &Target<'_>, model: &str) -> Result<()> {
    let (operation, provider) = (call.route.operation, target.provider);
    // These operations have native paths at the provider, which accept the provider's own format.
    let is_raw = matches!(operation, Operation::Models | Operation::Rerank);
    let has_wire = || !is_raw && target.provider_format(operation, model).is_some();
    let is_kept = || operation.is_file_operation() && provider.file_store().is_some();
    if target.is_passthrough && (has_wire() || is_kept()) {
        return Err(Error::UnsupportedOperation { operation: operation.id(), provider: provider.slug() });
    }
    Ok(())
}

/// Returns the API format of a response: the client's if the path determines it, else the provider's.
pub(crate) fn response_api_format(call: &Call<'_>, target: &Target<'_>) -> ApiFormat {
    match call.client_api_format() {
        ApiFormat::OpenAi if call.requested_operation().api_format().is_none() => target.provider.api_format(),
        dialect => dialect,
    }
}
