//! Response cache lookup of a request: computes the cache key, finds a cached response, and prepares storing a new one.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::operation::Operation;
use penstock_net::{Origin, body::Body};
use sha2::{Digest, Sha256};

use crate::{
    accounting::routing_decision::CacheStatus,
    config::Node,
    features::cache::{CacheKey, Partition, is_ignored_header},
    resolve::target::Target,
    response::{
        delivery::UpstreamResponse,
        offload::{MAX_INLINE_BYTES, run_blocking},
    },
    routing::executor::RouteExecutor,
    state::shared::response_cache::PendingCacheEntry,
};

/// Part of the cache key before the digest of a large body.
const LARGE_BODY: &[u8] = b"digest of a large body";

/// Cache key of a request to one target, and how long its response may be cached.
pub struct CacheLookup {
    cache_key: CacheKey,
    max_age: Duration,
}

impl CacheLookup {
    /// Creates the lookup for a request to this target; `None` if its response must not be cached.
    pub async fn for_target(
        executor: &RouteExecutor<'_>,
        node: &Node,
        target: &Target<'_>,
        body: &Body,
    ) -> Option<Self> {
        let (client_request, caller) = (executor.client_request, executor.resolver.caller);
        let age = node.features.cache.max_age(
            client_request.route.operation,
            &client_request.head.method,
            client_request.route.path,
        )?;
        let (Body::Complete(bytes), Some(_)) = (body, executor.replay_body.as_json()) else { return None };
        let partition = match client_request.control.cache_namespace {
            Some(name) => Partition::Namespace(name),
            None => Partition::Headers(&client_request.head.headers, &executor.resolver.settings.header_aliases),
        };
        // Separates tenants: even with the same cache namespace, callers of different workspaces share no responses.
        let tenant = match caller.key {
            Some(key) => key.workspace.as_deref().unwrap_or(&key.id),
            None => target.credential.as_deref().or(target.authorization).unwrap_or_default(),
        };
        let Origin::Network { host, port, .. } = &target.base_url.origin else { return None };
        // These settings can select another model, deployment or API version, and need not appear in the request body.
        let options = target.options.canonical_string();
        let manner = [u8::from(target.is_strict), u8::from(target.is_passthrough)];
        let saved = target.header_fields.iter().copied();
        let fields = saved.chain(target.check_headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let fields: String = fields.map(|(name, value)| [name, ": ", value, "\n"].concat()).collect();
        let header_bytes = executor.cache_key_headers(target);
        let hooks = executor.hooks.as_ref().map(|hooks| hooks.cache_key()).unwrap_or_default();
        let parts = [
            tenant.as_bytes(),
            target.provider.slug().as_bytes(),
            host.as_bytes(),
            &port.to_le_bytes(),
            target.base_url.prefix.as_bytes(),
            client_request.head.path.as_bytes(),
            client_request.head.query.as_bytes(),
            options.as_bytes(),
            &manner,
            fields.as_bytes(),
            &header_bytes,
            &age.as_secs().to_le_bytes(),
            &hooks,
        ];
        // Boxed, because an inline future would enlarge the future of every request.
        let body = if bytes.len() <= MAX_INLINE_BYTES { None } else { Some(Box::pin(hash_large_body(bytes)).await?) };
        let body: &[&[u8]] = match &body {
            Some(digest) => &[LARGE_BODY, digest.as_slice()],
            None => &[bytes],
        };
        let parts = [&parts[..], body].concat();
        Some(Self { cache_key: CacheKey::compute(partition, &parts), max_age: age })
    }

    /// Returns the cache status that the request would have, without changing anything.
    pub async fn cache_status(&self, executor: &RouteExecutor<'_>) -> CacheStatus {
        match executor.state.shared.response_cache.find(&self.cache_key).await {
            _ if is_refresh_forced(executor) => CacheStatus::Refresh,
            Some(_) => CacheStatus::Hit,
            None => CacheStatus::Miss,
        }
    }

    /// Returns the cached response, unless there is none or the client forces a refresh. Sets the cache status of the
    /// request.
    pub async fn find_cached(&self, executor: &mut RouteExecutor<'_>, target: &Target<'_>) -> Option<UpstreamResponse> {
        if is_refresh_forced(executor) {
            executor.set_cache_status(CacheStatus::Refresh);
            return None;
        }
        let Some(cached) = executor.state.shared.response_cache.find(&self.cache_key).await else {
            executor.set_cache_status(CacheStatus::Miss);
            return None;
        };
        executor.set_cache_status(CacheStatus::Hit);
        Some(UpstreamResponse::from_cache(cached, executor.client_request, target, &executor.state.coarse_timer))
    }

    /// Prepares to cache this response once it is complete. Only status 200 without content encoding is cached.
    pub fn prepare_store(self, executor: &mut RouteExecutor<'_>, response: &UpstreamResponse) {
        let headers = response.headers();
        let is_plain = headers.get_str("content-encoding").is_none_or(|coding| coding == "identity");
        // Hook results in a stream belong to this request only. In JSON, each cache hit replaces them.
        let is_stream = response.chunk_format(executor.client_request.requested_operation()).is_some();
        let has_results = is_stream && executor.hooks.as_ref().is_some_and(|hooks| hooks.shows_results_in_streams());
        if let (200, true, Some(kind)) = (response.status(), is_plain && !has_results, headers.get_str("content-type"))
        {
            let responses = Arc::clone(&executor.state.shared.response_cache);
            executor.log.pending_cache_entry = Some(Box::new(PendingCacheEntry::new(
                responses,
                self.cache_key,
                is_refresh_forced(executor),
                self.max_age,
                kind,
            )));
        }
    }
}

impl RouteExecutor<'_> {
    /// Returns the request headers that reach the provider and can change its response, without those that only
    /// identify the client.
    fn cache_key_headers(&self, target: &Target<'_>) -> Vec<u8> {
        // A passthrough request may use `accept` to ask for an image, or for JSON that contains one.
        let is_passed_on = self.client_request.route.operation == Operation::Proxy;
        let affects_response = |name: &[u8]| match name {
            b"accept" | b"accept-language" => is_passed_on || target.forward_headers.contains(name),
            name => target.forward_headers.contains(name) && !is_ignored_header(name),
        };
        let relevant = self.client_request.head.headers.iter().filter(|(name, _)| affects_response(name));
        relevant.flat_map(|(name, value)| [name, b": ", value, b"\n"].concat()).collect()
    }
}

/// Returns true if the client forces a cache refresh.
fn is_refresh_forced(executor: &RouteExecutor<'_>) -> bool {
    executor.client_request.control.cache_force_refresh.is_some_and(|value| value != "false")
}

impl fmt::Display for CacheLookup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cache_key.fmt(formatter)
    }
}

/// Returns the digest of a large body; `None` if the process shuts down.
async fn hash_large_body(body: &Bytes) -> Option<Vec<u8>> {
    let body = body.clone();
    run_blocking(move || Sha256::digest(&body).to_vec()).await.ok()
}
