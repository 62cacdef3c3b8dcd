//! Backing models of inference profiles whose names do not reveal their vendor. The gateway must know the model,
//! because it decides the API format. It queries the provider once and caches the result.

use std::{pin::pin, time::Duration};

use penstock_llm::{
    catalog::{BACKING_MODEL, ModelLookup},
    operation::Operation,
};
use penstock_net::BaseUrl;

use crate::{
    accounting::record::RequestLog, credentials::IssuedCredential, error::Result, gateway_state::GatewayState,
    request::internal_request::InternalRequest, resolve::target::Target,
};

/// Lifetime of a resolved name in the cache.
const NAME_TTL: Duration = Duration::from_hours(1);
/// Lifetime of a failed lookup in the cache.
const RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// Maximum wait for a lookup. After that the request proceeds without the name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

/// Resolves the backing model and stores it in the target's options. If the lookup fails, the request proceeds without
/// it.
pub async fn resolve_backing_model(
    state: &GatewayState,
    operation: Operation,
    target: &mut Target<'_>,
    lookup: ModelLookup,
    log: &mut RequestLog,
) {
    if operation == Operation::Proxy {
        return;
    }
    let base = lookup_base_url(target, operation, &lookup);
    let original_base = std::mem::replace(&mut target.base_url, base);
    let name = find_backing_model(state, target, &lookup).await;
    target.base_url = original_base;
    if let Some(name) = name {
        target.options.insert_if_absent(BACKING_MODEL, name.clone());
        log.billing.backing_model = Some(name);
    }
}

async fn find_backing_model(state: &GatewayState, target: &Target<'_>, lookup: &ModelLookup) -> Option<String> {
    let Target { credential, authorization, caller, options, provider, base_url: base, .. } = target;
    let credential_options = ["aws_access_key_id", "aws_role_arn"].map(|key| options.get(key).map(ToOwned::to_owned));
    let workspace = caller.key.map(|key| (key.id.clone(), key.workspace.clone()));
    let cache_key = ((provider.slug(), base.origin.clone(), lookup.path.clone()), (credential_options, workspace));
    let cache_key = (cache_key, credential.as_deref().map(ToOwned::to_owned), *authorization);
    let lookup_future = state.credential_cache.get_or_fetch(cache_key, || async {
        let fetching =
            tokio::time::timeout(LOOKUP_TIMEOUT.min(target.timeout), fetch_backing_model(state, target, lookup));
        Ok(match fetching.await {
            Ok(Ok(Some(name))) => (IssuedCredential::ModelName(name), NAME_TTL),
            _ => (IssuedCredential::ModelName(String::new()), RETRY_INTERVAL),
        })
    });
    match &*lookup_future.await.ok()? {
        IssuedCredential::ModelName(name) if !name.is_empty() => Some(name.clone()),
        _ => None,
    }
}

async fn fetch_backing_model(
    state: &GatewayState,
    target: &Target<'_>,
    lookup: &ModelLookup,
) -> Result<Option<String>> {
    let outgoing = InternalRequest::new("GET", &lookup.path).into_outgoing(state, target, Operation::Proxy).await?;
    let sending = pin!(state.upstream.send(&target.base_url.origin, outgoing));
    let mut incoming = sending.await?;
    let response = penstock_net::collect(&mut incoming.body, MAX_RESPONSE_BYTES).await?;
    Ok(response.filter(|_| incoming.head.status < 300).and_then(|response| (lookup.parse_model)(&response)))
}

/// Returns the base URL of the lookup API: the provider's own one, or the target's if that has a custom host.
fn lookup_base_url(target: &Target<'_>, operation: Operation, lookup: &ModelLookup) -> BaseUrl {
    let usual = target.provider.resolve_base_url(operation, &target.options).ok().flatten();
    let is_usual = usual.and_then(|url| BaseUrl::parse(&url).ok()).is_some_and(|usual| usual == target.base_url);
    let lookup_base = is_usual.then(|| BaseUrl::parse(&lookup.base_url).ok()).flatten();
    lookup_base.unwrap_or_else(|| target.base_url.clone())
}
