//! Serves a request at a provider with another API format: translates the request, and the response back.

use penstock_llm::{operation::Operation, provider_format::ProviderFormat};
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    endpoints::{batches::delete, model_list},
    error::Result,
    features::inspect_stream,
    gateway_state::GatewayState,
    request::{
        send::{ResponseHandling, send_to_target},
        translate,
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    response::delivery::{self, UpstreamResponse},
};

/// Translates and sends a request, and returns the translated response once its head arrived.
pub(crate) async fn send_translated(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    format: &'static ProviderFormat,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    state.record_sink.metrics.translated.add(1);
    let operation = client_request.route.operation;
    if let (None, true, Body::Complete(bytes)) = (&log.count_input, operation.is_chat(), &body) {
        // The response must have usage in the client's format, even if the provider reports none.
        log.count_input = Some(state.record_sink.token_counter.retain_body(operation, bytes));
    }
    let (body, translation) =
        translate::translate_request(client_request, target, body, format, &state.shared, log).await?;
    if operation == Operation::Models {
        return model_list::fetch_model_list(state, client_request, target, translation, log).await;
    }
    if translation.deletes_batch() {
        return delete::delete_batch(state, client_request, target, translation, log).await;
    }
    log.hides_usage = translation.should_hide_usage;
    let (mut incoming, mut deadline) =
        send_to_target(state, client_request, target, body, ResponseHandling::Translate(&translation), log).await?;
    if incoming.head.status < 300 && matches!(operation, Operation::CancelFinetune | Operation::CancelBatch) {
        let head = translate::job_status_head(client_request);
        let status_call = translate::job_status_request(client_request, &head);
        let sending =
            send_to_target(state, &status_call, target, Body::empty(), ResponseHandling::Translate(&translation), log);
        // Both upstream requests serve one client request and share its deadline.
        (incoming, _) = deadline.enforce(sending).await?;
    }
    // Applies to every provider, because others host Anthropic's models too. Streams in other API formats are not
    // changed.
    if target.inspects_stream && delivery::can_inspect_events(&incoming) {
        incoming = deadline.enforce(inspect_stream::inspect_first_event(incoming)).await?;
    }
    incoming.body = log.bodies.tap_response(incoming.body);
    let incoming = translate::translate_response(client_request, translation, incoming, &mut deadline, log).await?;
    Ok(UpstreamResponse::new(incoming, client_request.api_format, deadline))
}
