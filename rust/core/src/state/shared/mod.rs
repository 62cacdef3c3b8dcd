//! State that the requests of a worker share: circuit breakers, retry budgets, cached responses, compiled configs. All
//! of it is bounded. With Redis, breakers and cached responses are shared with other workers and nodes.

pub mod bounded_cache;
pub mod check_hosts;
pub mod circuit_breakers;
pub mod fair_permits;
pub mod inline_configs;
pub mod latency;
pub mod monotonic_clock;
pub mod node_store;
pub mod pending_charges;
pub mod prompt_versions;
pub mod pubsub;
pub mod redis;
pub mod redis_counters;
pub mod response_cache;
pub mod retry_budgets;
pub mod sticky_sessions;
mod target_states;

use std::{
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use penstock_llm::translation::SignatureCache;
use penstock_net::memory_budget::MemoryBudget;

use crate::{
    error::Problem,
    process::settings::Settings,
    state::shared::{
        check_hosts::CheckHosts,
        circuit_breakers::CircuitBreakers,
        latency::LatencyTracker,
        monotonic_clock::MonotonicClock,
        node_store::NodeStoreClient,
        pending_charges::{PendingCharges, SharedStore},
        prompt_versions::PromptVersionCache,
        pubsub::PubSubHandler,
        response_cache::ResponseCache,
        retry_budgets::{RetryAllowance, RetryBudgets},
        sticky_sessions::StickySessionStore,
    },
};
use inline_configs::InlineConfigCache;
use redis::RedisClient;
use target_states::SAVED_CONFIG_BIT;

/// Maximum bytes of tool call signatures.
const MAX_SIGNATURES_BYTES: usize = 16 * 1024 * 1024;

/// Maximum bytes of all concurrent bodies of management requests, unless twice the largest allowed body is more.
const MAX_MANAGEMENT_BODIES_BYTES: usize = 64 * 1024 * 1024;

pub struct SharedState {
    pub response_cache: Arc<ResponseCache>,
    pub breakers: Arc<CircuitBreakers>,
    pub retry_budgets: RetryBudgets,
    pub inline_configs: InlineConfigCache,
    pub latency_histograms: LatencyTracker,
    /// Memory budget of buffered streams, and of the transcripts of streams that may be continued.
    pub recovery_memory: MemoryBudget,
    /// Memory budget of management request bodies on their way to the control process.
    pub management_memory: MemoryBudget,
    /// Memory budget of buffered request bodies on their way to providers.
    pub body_memory: MemoryBudget,
    pub sticky_sessions: StickySessionStore,
    /// Pending charges of background responses.
    pub pending_charges: Arc<PendingCharges>,
    /// Store shared with the other workers of this node; `None` with a single worker or with Redis.
    pub node_store: Option<Arc<NodeStoreClient>>,
    /// Signatures of tool calls.
    pub tool_call_signatures: Arc<SignatureCache>,
    /// Versions of prompts that are not in the snapshot.
    pub prompt_versions: PromptVersionCache,
    /// Hosts that checks of guardrails call.
    pub check_hosts: Arc<CheckHosts>,
    pub clock: Arc<MonotonicClock>,
    pub redis: Option<Arc<RedisClient>>,
    hash_seed: DefaultHasher,
}

impl SharedState {
    pub fn new(settings: &Settings) -> Result<Self, Problem> {
        let allowance = RetryAllowance {
            percent_of_requests: settings.retry_budget_percent,
            min_per_second: settings.retry_budget_min,
        };
        let (clock, redis) = (Arc::<MonotonicClock>::default(), RedisClient::from_settings(settings)?);
        let node_store_client = (settings.workers > 1 && redis.is_none()).then(Arc::default);
        let seed = match &settings.redis_url {
            // The seed is the same for all workers that share this Redis.
            Some(url) => {
                let mut seed = DefaultHasher::new();
                (url.expose(), &settings.redis_prefix).hash(&mut seed);
                seed
            }
            None => RandomState::new().build_hasher(),
        };
        Ok(Self {
            response_cache: Arc::new(ResponseCache::new(settings.cache_bytes, Arc::clone(&clock), redis.clone())),
            breakers: Arc::new(CircuitBreakers::new(redis.clone())),
            retry_budgets: RetryBudgets::new(allowance),
            inline_configs: InlineConfigCache::new(settings.inline_config_bytes),
            latency_histograms: LatencyTracker::default(),
            recovery_memory: MemoryBudget::new(settings.recovery_bytes, settings.recovery_stream_bytes),
            management_memory: MemoryBudget::new(
                MAX_MANAGEMENT_BODIES_BYTES.max(settings.max_body_bytes * 2),
                settings.max_body_bytes,
            ),
            // The budget admits at least one body of the maximum size.
            body_memory: MemoryBudget::new(settings.buffered_body_bytes.max(settings.max_body_bytes), usize::MAX),
            sticky_sessions: StickySessionStore::new(redis.clone()),
            pending_charges: Arc::new(PendingCharges::new(select_charge_store(
                redis.as_ref(),
                node_store_client.as_ref(),
            ))),
            node_store: node_store_client,
            tool_call_signatures: Arc::new(build_signatures(redis.clone())),
            prompt_versions: PromptVersionCache::default(),
            check_hosts: Arc::default(),
            clock,
            redis,
            hash_seed: seed,
        })
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Keeps state that is shared through Redis up to date; runs until the worker ends.
    pub async fn sync_with_redis(&self) {
        let (responses, breakers, clock) = (&self.response_cache, &self.breakers, &self.clock);
        let handler = PubSubHandler {
            response_cache: Arc::clone(responses),
            breakers: Arc::clone(breakers),
            clock: Arc::clone(clock),
        };
        if let Some(redis) = &self.redis {
            redis.run(&handler).await;
        }
    }

    /// Returns the keyed hash of a part of a config. Its lowest bit is set for saved configs and clear for inline
    /// configs.
    pub fn keyed_hash_in_config(&self, is_saved: bool, value: impl Hash) -> u64 {
        let hash = self.keyed_hash(value);
        if is_saved { hash | SAVED_CONFIG_BIT } else { hash & !SAVED_CONFIG_BIT }
    }

    /// Returns a hash that is equal among workers that share state. The secret seed keeps clients from choosing values
    /// that collide.
    pub fn keyed_hash(&self, value: impl Hash) -> u64 {
        let mut hasher = self.hash_seed.clone();
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns the store through which pending charges are shared with other workers.
fn select_charge_store(redis: Option<&Arc<RedisClient>>, node_store: Option<&Arc<NodeStoreClient>>) -> SharedStore {
    match (redis, node_store) {
        (Some(redis), _) => SharedStore::Redis(Arc::clone(redis)),
        (None, Some(node_store)) => SharedStore::NodeStore(Arc::clone(node_store)),
        (None, None) => SharedStore::None,
    }
}

/// Creates the store of tool call signatures. With Redis, new signatures are also stored there for other workers.
fn build_signatures(redis: Option<Arc<RedisClient>>) -> SignatureCache {
    let Some(redis) = redis else { return SignatureCache::new(MAX_SIGNATURES_BYTES) };
    let store = move |owner, call: &str, signature: &str| redis.put(signature_key(owner, call), signature);
    SignatureCache::with_callback(MAX_SIGNATURES_BYTES, Box::new(store))
}

/// Returns the Redis key of a tool call's signature.
pub fn signature_key(owner: u64, call: &str) -> String {
    format!("signature:{owner}:{call}")
}
