//! State that all requests of a worker share, and the worker's lifecycle: snapshots, draining, ending streams.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use penstock_net::{Upstream, body::BodyLimits, coarse_timer::CoarseTimer};
use tokio::sync::Notify;

use crate::{
    accounting::record::RecordSink,
    auth::caller::Caller,
    credentials::{aws_instance::check_identity_urls, credential_cache::CredentialCache},
    error::Problem,
    limits::{limiter::Limiter, node_counters::NodeCounters},
    process::{net_settings, settings::Settings},
    resolve::{
        base_urls::BaseUrls,
        target_resolver::{ClientRequest, TargetResolver},
    },
    state::{
        shared::SharedState,
        snapshot::{self, Snapshot},
    },
};

/// State shared by all requests of a worker.
pub struct GatewayState {
    pub settings: Settings,
    pub record_sink: Arc<RecordSink>,
    pub upstream: Arc<Upstream>,
    pub shared: SharedState,
    /// Credentials that were fetched for targets, until shortly before they expire.
    pub credential_cache: CredentialCache,
    pub body_limits: BodyLimits,
    pub coarse_timer: CoarseTimer,
    pub limiter: Arc<Limiter>,
    pub(crate) snapshot: ArcSwap<Snapshot>,
    pub(crate) base_urls: BaseUrls,
    is_ready: AtomicBool,
    is_draining: AtomicBool,
    is_ending_streams: AtomicBool,
    end_streams_notify: Notify,
    drain_notify: Notify,
    /// Reference to this state, for work that outlives a request.
    weak_reference: OnceLock<Weak<Self>>,
}

impl GatewayState {
    pub fn new(settings: Settings) -> std::result::Result<Self, Vec<Problem>> {
        let bases = BaseUrls::new(settings.mock_host.as_deref())
            .map_err(|message| vec![Problem::new("$.mock_host", message)])?;
        check_identity_urls(&settings.identity)?;
        let upstream = Upstream::new(&net_settings::client_settings(&settings)).map_err(|error| vec![error.into()])?;
        let shared = SharedState::new(&settings).map_err(|problem| vec![problem])?;
        let counters = NodeCounters::new(settings.limits_path.as_deref().map(Path::new));
        let limiter = Limiter::new(counters, fastrand::u64(..), settings.workers.into());
        Ok(Self {
            limiter: Arc::new(limiter.with_redis(shared.redis.as_ref(), settings.worker)),
            upstream: Arc::new(upstream),
            record_sink: Arc::new(RecordSink::new(&settings)),
            shared,
            credential_cache: CredentialCache::default(),
            snapshot: ArcSwap::default(),
            base_urls: bases,
            body_limits: net_settings::body_limits(&settings),
            coarse_timer: CoarseTimer::default(),
            is_ready: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_ending_streams: AtomicBool::new(false),
            end_streams_notify: Notify::new(),
            drain_notify: Notify::new(),
            weak_reference: OnceLock::new(),
            settings,
        })
    }

    /// Stores a weak reference to this state, so that background work can obtain it.
    pub(crate) fn store_weak_reference(self: &Arc<Self>) {
        self.weak_reference.get_or_init(|| Arc::downgrade(self));
    }

    /// Returns this state for work that continues after a request; `None` before `store_weak_reference` was called.
    pub(crate) fn upgrade_weak_reference(&self) -> Option<Arc<Self>> {
        self.weak_reference.get()?.upgrade()
    }

    /// Compiles a new snapshot and replaces the current one. Requests in flight keep the old snapshot.
    pub fn apply_snapshot(&self, json: &[u8]) -> std::result::Result<(), Vec<Problem>> {
        let next = self.snapshot.load().apply_update(json)?;
        let old = self.snapshot.swap(Arc::new(next));
        self.is_ready.store(true, Ordering::Release);
        snapshot::drop_in_background(old);
        Ok(())
    }

    pub(crate) fn load_snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub fn snapshot_epoch(&self) -> String {
        self.snapshot.load().epoch.clone()
    }

    /// Starts draining: from now on `/ready` returns 503.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.drain_notify.notify_waiters();
    }

    /// Resolves when draining starts. `WebSockets` wait for it, because the server's shutdown does not wait for them.
    pub async fn wait_for_drain_start(&self) {
        // Creates the waiter before checking the flag, so that a concurrent `drain` is not missed.
        let notified = self.drain_notify.notified();
        if !self.is_draining.load(Ordering::Acquire) {
            notified.await;
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
        let notified = self.end_streams_notify.notified();
        if !self.is_ending_streams.load(Ordering::Acquire) {
            notified.await;
        }
    }

    /// Returns true if the address of the connection's peer is needed for a request with this path.
    pub fn needs_peer(&self, path: &str) -> bool {
        self.settings.record_peers || self.is_management_path(path)
    }

    /// Returns true if the control process serves this path.
    pub fn is_management_path(&self, path: &str) -> bool {
        self.snapshot.load().is_management_path(path)
    }

    /// Returns true if too many requests are in flight to accept another one.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.record_sink.metrics.in_flight() > self.settings.max_in_flight as u64
    }

    /// Returns true if `/ready` returns 200: a snapshot was applied and the worker does not drain.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire) && !self.is_draining()
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    pub(crate) fn target_resolver<'c>(
        &'c self,
        snapshot: &'c Snapshot,
        client_request: &'c ClientRequest<'c>,
        caller: &'c Caller<'c>,
    ) -> TargetResolver<'c> {
        let (settings, bases, inline_configs) = (&self.settings, &self.base_urls, &self.shared.inline_configs);
        TargetResolver { settings, base_urls: bases, snapshot, inline_configs, client_request, caller }
    }
}
