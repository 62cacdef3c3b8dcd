//! Forwards a request in the client's own API format, and adapts the little that differs.

use penstock_llm::{api_format::ApiFormat, operation::Operation};
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    endpoints::upload_url,
    error::Result,
    features::inspect_stream,
    gateway_state::GatewayState,
    request::{
        body_fields::MAX_INLINE_PEEK_BYTES,
        include_usage, param_map,
        send::{ResponseHandling, send_to_target},
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        delivery::{self, UpstreamResponse},
        normalise,
    },
};

/// Forwards a request and returns the response once its head arrived. Rare steps are boxed, because an inline future
/// would enlarge the future of every request.
pub(crate) async fn forward_request(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let body = match param_map::param_rules(client_request, target, &log.model) {
        Some(rules) => Box::pin(param_map::apply_param_rules(rules, body, log)).await?,
        None => body,
    };
    let body = if !log.is_streaming {
        body
    } else if body.complete_bytes().len() > MAX_INLINE_PEEK_BYTES {
        Box::pin(include_usage::request_usage_blocking(client_request, target, body, log)).await
    } else {
        include_usage::request_usage(client_request, target, body, log)
    };
    let normaliser = normalise::normaliser_for(client_request, target, body.complete_bytes());
    let handling = match normaliser {
        Some(normaliser) if normaliser.changes_responses() => ResponseHandling::Normalise,
        _ => ResponseHandling::PassThrough,
    };
    let (mut incoming, mut deadline) = send_to_target(state, client_request, target, body, handling, log).await?;
    let operation = client_request.route.operation;
    if normalise::may_hide_error(operation, &incoming) {
        incoming = Box::pin(normalise::expose_error_status(operation, incoming, &mut deadline)).await?;
    }
    log.bodies.is_forwarded = true;
    if let Some(normaliser) = normaliser.filter(|normaliser| normalise::needs_normalising(*normaliser, &incoming)) {
        log.bodies.is_forwarded = false;
        incoming.body = log.bodies.tap_response(incoming.body);
        incoming = Box::pin(normalise::normalise_response(normaliser, incoming, &mut deadline)).await?;
    }
    if operation == Operation::Proxy {
        upload_url::rewrite_upload_url(client_request, target, &state.settings.base_path, &mut incoming.head.headers);
    }
    let format = response_api_format(client_request, target);
    if target.inspects_stream && format == ApiFormat::Anthropic && delivery::can_inspect_events(&incoming) {
        incoming = Box::pin(deadline.enforce(inspect_stream::inspect_first_event(incoming))).await?;
    }
    Ok(UpstreamResponse::new(incoming, format, deadline))
}

/// Returns the API format of a response: the client's if the path determines it, else the provider's.
pub(crate) fn response_api_format(client_request: &ClientRequest<'_>, target: &Target<'_>) -> ApiFormat {
    match client_request.api_format {
        ApiFormat::OpenAi if client_request.requested_operation().api_format().is_none() => {
            target.provider.row().api_format
        }
        format => format,
    }
}
