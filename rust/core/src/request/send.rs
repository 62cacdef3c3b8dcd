//! Sends a request to its target: rewrites and signs it, renders its head, and waits for the response head.

use std::{pin::pin, time::Instant};

use penstock_llm::{catalog::PrefillSupport, translation::Translation};
use penstock_net::{BodyFraming, Deadline, IncomingResponse, OutgoingRequest, body::Body};

use crate::{
    accounting::record::RequestLog,
    credentials::{self, IssuedCredential, PayloadDigest},
    error::{Error, Result},
    gateway_state::GatewayState,
    request::{
        param_map,
        upstream_head::{self, BodyLength, RenderInput, TransformMode},
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    response::mask_secrets,
};

/// What the gateway does with the response to a request. It decides which headers of the client are forwarded.
#[derive(Clone, Copy)]
pub(crate) enum ResponseHandling<'t> {
    Translate(&'t Translation),
    /// Reads and changes the response.
    Normalise,
    PassThrough,
}

impl<'t> ResponseHandling<'t> {
    fn translation(self) -> Option<&'t Translation> {
        if let Self::Translate(translation) = self { Some(translation) } else { None }
    }
}

/// Sends a body to a target and waits for the response head. The returned deadline bounds the part of the response
/// that must arrive before delivery.
pub(crate) async fn send_to_target(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    handling: ResponseHandling<'_>,
    log: &mut RequestLog,
) -> Result<(IncomingResponse, Deadline)> {
    let operation = client_request.route.operation;
    let (body, payload) = prepare_body(client_request, target, body).await?;
    record_body(target, &body, log).await?;
    let length = body_length(client_request, &body);
    let issued = match &target.grant {
        None => None,
        Some(grant) => Some(Box::pin(credentials::fetch_credential(state, target, grant)).await?),
    };
    let mut deadline = Deadline::new(target.timeout, &body, &state.coarse_timer);
    let issued = issued.as_deref();
    let translation = handling.translation();
    let changes_response = matches!(handling, ResponseHandling::Normalise);
    let content_type = translation.and_then(Translation::request_content_type);
    let content = RenderInput {
        model: &log.model,
        user: log.user.as_deref().unwrap_or_default(),
        is_streaming: log.is_streaming,
        mode: TransformMode::from_translation(translation, log.hides_usage || changes_response),
        content_type: content_type.as_deref(),
        anthropic_betas: translation.and_then(|translation| translation.anthropic_betas.as_deref()),
        anthropic_version: translation.and_then(|translation| translation.anthropic_version.as_deref()),
        page_token: translation.and_then(|translation| translation.next_page_token.as_deref()),
        body_length: length,
        issued_credential: issued,
    };
    let mut head = upstream_head::render_head(client_request, target, content, &state.settings.header_aliases)?;
    if let Some(payload) = payload {
        credentials::sign_head(target, operation, issued, &mut head, &payload)?;
    }
    log.set_upstream_head(&target.base_url.origin, &head, &state.record_sink);
    let is_bodiless = client_request.head.method == "HEAD";
    let body_framing = BodyFraming { is_chunked: length == BodyLength::Chunked, is_bodiless };
    let outgoing = OutgoingRequest { head, body, body_framing, is_replayable: client_request.head.is_replayable() };
    log.set_target(target, operation);
    log.is_sent = true;
    let sent = Instant::now();
    // Pinned here because an async function stores its arguments twice, and this is the largest part of a request's
    // future.
    let sending = pin!(state.upstream.send(&target.base_url.origin, outgoing));
    let result = deadline.enforce(sending).await.map_err(Error::from);
    let duration = sent.elapsed();
    log.record_attempt(target, &result, duration);
    log.is_sent = match &result {
        Ok(incoming) => incoming.head.status < 300,
        Err(error) => error.is_response_timeout(),
    };
    let incoming = result?;
    log.upstream_latency = Some(duration);
    let fetched = issued.and_then(IssuedCredential::token);
    log.has_masked_failure = mask_secrets::may_repeat_secrets(&incoming);
    let incoming = if log.has_masked_failure {
        // Boxed, because an inline future would enlarge the future of every request.
        Box::pin(mask_secrets::mask_stored_secrets(target, fetched, incoming, &mut deadline)).await?
    } else {
        mask_secrets::mask_success(target, fetched, incoming)?
    };
    Ok((incoming, deadline.response_started()))
}

/// Stores the body that is sent to the target for the record, if it records bodies.
async fn record_body(target: &Target<'_>, body: &Body, log: &mut RequestLog) -> Result<()> {
    if let (true, Body::Complete(bytes)) = (log.bodies.is_recording(), body) {
        let masked = mask_secrets::mask_stored_parameters(target, bytes).await?;
        log.bodies.set_upstream_request(masked).await;
    }
    Ok(())
}

/// Returns the body in the form that the target accepts, and the signed hash if the target signs requests.
async fn prepare_body(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
) -> Result<(Body, Option<PayloadDigest>)> {
    let body = param_map::set_model_in_body(client_request, target, body).await?;
    let body = match target.prefill {
        Some(support) => mark_prefill(support, body),
        None => body,
    };
    if !target.signs_requests() {
        return Ok((body, None));
    }
    // Boxed because an inline future would enlarge the future of every request.
    let (body, payload) = Box::pin(credentials::prepare_payload(target, client_request.route.operation, body)).await?;
    Ok((body, Some(payload)))
}

fn body_length(client_request: &ClientRequest<'_>, body: &Body) -> BodyLength {
    match body {
        Body::Complete(bytes) if bytes.is_empty() && !client_request.head.has_body_method() => BodyLength::None,
        Body::Complete(bytes) => BodyLength::Known(bytes.len() as u64),
        Body::Streamed(_, Some(length)) => BodyLength::Known(*length),
        Body::Streamed(_, None) => BodyLength::Chunked,
    }
}

/// Marks the last message of a chat as an assistant prefill, for providers that need an explicit flag.
fn mark_prefill(support: &PrefillSupport, body: Body) -> Body {
    let Body::Complete(bytes) = &body else { return body };
    support.mark_prefill(bytes).map_or(body, |marked| Body::Complete(marked.into()))
}
