//! Local token counting, for requests whose provider has no endpoint for it.

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    tokens,
    translation::{self, DroppedFields, DroppedParams, RequestError},
};
use penstock_net::{IncomingResponse, body::Body, coarse_timer::CoarseTimer};

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    resolve::{target::Target, target_resolver::Call},
    response::delivery::UpstreamResponse,
};

/// Rejects an operation that the provider does not offer, unless the gateway performs it locally.
pub fn check_supported(operation: Operation, target: &Target<'_>) -> Result<()> {
    if target.provider.supports(operation) || operation.counts_tokens() {
        return Ok(());
    }
    Err(Error::UnsupportedOperation { operation: operation.id(), provider: target.provider.slug() })
}

/// Returns true if only the gateway can count the tokens. If the provider counts in another API format, the request is
/// translated instead.
pub fn should_count_locally(call: &Call<'_>, target: &Target<'_>) -> bool {
    let operation = call.route.operation;
    operation.counts_tokens() && !target.is_passthrough && !target.provider.supports_natively(operation)
}

/// Returns a copy of a count request that the provider may reject, so that it can be counted locally. Not every model
/// supports counting.
pub fn retain_for_local_count(call: &Call<'_>, target: &Target<'_>, body: &Body) -> Option<Bytes> {
    let may_be_refused = call.route.operation.counts_tokens() && !target.provider.row().counts_tokens_with_every_model;
    match body {
        Body::Complete(body) if may_be_refused && !target.is_passthrough => Some(body.clone()),
        _ => None,
    }
}

/// Returns true if the provider rejected the count request.
pub fn is_count_rejected(incoming: &IncomingResponse) -> bool {
    incoming.head.status == 400
}

/// Counts the tokens locally after the provider rejected the count request. Reports the operation as not translated.
pub async fn count_after_rejection(
    call: &Call<'_>,
    body: Bytes,
    refused: UpstreamResponse,
    log: &mut RequestLog,
    coarse_timer: &CoarseTimer,
) -> Result<UpstreamResponse> {
    refused.discard().await;
    let response = count_locally(call, Body::Complete(body), &log.model, coarse_timer).await?;
    if log.dropped_fields.is_none() {
        (log.dropped_params, log.dropped_fields) = (DroppedParams::default(), Some(DroppedFields::default()));
    }
    log.dropped_params.add(call.route.operation.id());
    Ok(response)
}

/// Counts the request's tokens and returns the response. The count is approximate; it uses the model's vocabulary if
/// that is known.
pub async fn count_locally(
    call: &Call<'_>,
    body: Body,
    model: &str,
    coarse_timer: &CoarseTimer,
) -> Result<UpstreamResponse> {
    let body = body.collect().await?;
    let (dialect, encoding) = (call.client_api_format(), tokens::encoding_for_model(model));
    // The first use of an encoding unpacks its vocabulary, so this runs on a blocking thread. Joining fails only during
    // shutdown: counting neither panics nor is cancelled.
    let counting = tokio::task::spawn_blocking(move || tokens::count_request(dialect, encoding, &body));
    let count = counting.await.map_err(|_| Error::Draining)?;
    let count = count.map_err(|RequestError { path, message }| Error::TokensUncountable { path, message })?;
    let encoded = translation::encode_token_count(call.route.operation, count as u64);
    Ok(UpstreamResponse::from_gateway(encoded.into(), dialect, coarse_timer))
}
