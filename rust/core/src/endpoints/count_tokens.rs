//! Local token counting, for requests whose provider has no endpoint for it.

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    provider_format::ProviderFormat,
    tokens,
    translation::{self, DroppedParams, RequestError, ResponseReport},
};
use penstock_net::{body::Body, coarse_timer::CoarseTimer};

use crate::{
    accounting::record::RequestLog,
    endpoints::{forward, translated},
    error::{Error, Result},
    gateway_state::GatewayState,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::delivery::UpstreamResponse,
};

/// Rejects an operation that the provider does not offer, unless the gateway performs it locally.
pub fn check_supported(operation: Operation, target: &Target<'_>) -> Result<()> {
    if target.provider.supports(operation) || operation.counts_tokens() {
        return Ok(());
    }
    Err(Error::UnsupportedOperation { operation: operation.id(), provider: target.provider.slug() })
}

/// Counts the tokens of a request: at the provider if it has an endpoint for that, else locally. Counts locally too if
/// the provider rejects the request, because not every model supports counting. If the provider counts in another API
/// format, the request is translated to `format`.
pub(crate) async fn count_tokens(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    format: Option<&'static ProviderFormat>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let row = target.provider.row();
    let can_reject = !row.counts_tokens_with_every_model && !target.is_passthrough;
    let countable = match &body {
        Body::Complete(body) if can_reject => Some(body.clone()),
        _ => None,
    };
    let counted = match format {
        Some(format) => translated::send_translated(state, client_request, target, format, body, log).await?,
        None if target.is_passthrough || target.provider.supports_natively(client_request.route.operation) => {
            forward::forward_request(state, client_request, target, body, log).await?
        }
        None => return count_locally(client_request, body, &log.model, &state.coarse_timer).await,
    };
    match countable {
        Some(body) if counted.incoming.head.status == 400 => {
            count_after_rejection(client_request, body, counted, log, &state.coarse_timer).await
        }
        _ => Ok(counted),
    }
}

/// Counts the tokens locally after the provider rejected the count request. Reports the operation as not translated.
async fn count_after_rejection(
    client_request: &ClientRequest<'_>,
    body: Bytes,
    refused: UpstreamResponse,
    log: &mut RequestLog,
    coarse_timer: &CoarseTimer,
) -> Result<UpstreamResponse> {
    refused.discard().await;
    let response = count_locally(client_request, Body::Complete(body), &log.model, coarse_timer).await?;
    if log.response_report.is_none() {
        (log.dropped_params, log.response_report) = (DroppedParams::default(), Some(ResponseReport::default()));
    }
    log.dropped_params.add(client_request.route.operation.id());
    Ok(response)
}

/// Counts the request's tokens and returns the response. The count is approximate; it uses the model's vocabulary if
/// that is known.
async fn count_locally(
    client_request: &ClientRequest<'_>,
    body: Body,
    model: &str,
    coarse_timer: &CoarseTimer,
) -> Result<UpstreamResponse> {
    let body = body.collect().await?;
    let (api_format, encoding) = (client_request.api_format, tokens::encoding_for_model(model));
    // The first use of an encoding unpacks its vocabulary, so this runs on a blocking thread. Joining fails only during
    // shutdown: counting neither panics nor is cancelled.
    let counting = tokio::task::spawn_blocking(move || tokens::count_request(api_format, encoding, &body));
    let count = counting.await.map_err(|_| Error::Draining)?;
    let count = count.map_err(|RequestError { path, message }| Error::TokensUncountable { path, message })?;
    let encoded = translation::encode_token_count(client_request.route.operation, count as u64);
    Ok(UpstreamResponse::from_gateway(encoded.into(), api_format, coarse_timer))
}
