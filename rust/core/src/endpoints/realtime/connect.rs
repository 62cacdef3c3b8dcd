//! Upstream WebSocket handshake: upgrades a connection to the provider.

use std::{borrow::Cow, time::Instant};

use penstock_llm::api_format::ApiFormat;
use penstock_net::{Deadline, Handshake, UpgradeResult, UpstreamWebSocket, body::Body};
use percent_encoding::percent_decode_str;

use super::offered_protocols;
use crate::{
    accounting::record::RequestLog,
    credentials::{self, IssuedCredential, PayloadDigest},
    endpoints::limit_admission::{self, AttemptKind},
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::message::RequestHead,
    request::upstream_head::{self, BodyLength, RenderInput, TransformMode},
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{delivery::UpstreamResponse, mask_secrets},
};

/// Sends the upgrade request to one target. `requested_model` is the model in the query of the client's request.
pub(crate) async fn upgrade_target(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    requested_model: &str,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let operation = client_request.route.operation;
    if !target.provider.supports(operation) || target.provider.provider_format(operation, &log.model).is_some() {
        return Err(Error::UnsupportedOperation { operation: operation.id(), provider: target.provider.slug() });
    }
    target.guard_models(client_request, &state.settings.header_aliases, Body::empty())?;
    if limit_admission::is_limited(target, log) {
        let admitted =
            limit_admission::admit_attempt(state, client_request, target, AttemptKind::WebSocket, Body::empty(), log);
        drop(Box::pin(admitted).await?);
    }
    log.details.mark_sending();
    log.set_saved_provider(target);
    log.billing.tariff.provider_pricing.clone_from(&target.price_overrides);
    log.billing.tariff.saved_models = target.saved_provider.and_then(|saved| saved.models.clone());
    let issued = match &target.grant {
        None => None,
        Some(grant) => Some(Box::pin(credentials::fetch_credential(state, target, grant)).await?),
    };
    let model_override = Some(&*log.model).filter(|model| *model != requested_model);
    let head = render_upgrade_head(state, client_request, target, model_override, issued.as_deref())?;
    log.set_upstream_head(&target.base_url.origin, &head, &state.record_sink);
    let handshake = Handshake::new(&offered_protocols(&client_request.head.headers));
    let mut deadline = Deadline::new(target.timeout, &Body::empty(), &state.coarse_timer);
    let sent = Instant::now();
    let upgraded = deadline.enforce(state.upstream.open_websocket(&target.base_url.origin, head, &handshake)).await?;
    log.upstream_latency = Some(sent.elapsed());
    match upgraded {
        UpgradeResult::Open(socket, fields) => {
            let protocol = fields.get_str("sec-websocket-protocol").map(|name| name.trim().to_owned());
            Ok(UpstreamResponse::from_upgrade(UpstreamWebSocket { socket, protocol }, deadline.response_started()))
        }
        UpgradeResult::Rejected(incoming) if incoming.head.status < 400 => {
            let cause = format!("status {} instead of a WebSocket upgrade", incoming.head.status);
            Err(Error::UpstreamResponseBroken { cause })
        }
        UpgradeResult::Rejected(incoming) => {
            let fetched = issued.as_deref().and_then(IssuedCredential::token);
            let incoming =
                Box::pin(mask_secrets::mask_stored_secrets(target, fetched, *incoming, &mut deadline)).await?;
            Ok(UpstreamResponse::new(incoming, ApiFormat::OpenAi, deadline.response_started()))
        }
    }
}

/// Renders the head of the upgrade request. If set, `model_override` replaces the model in the query, for example to
/// remove a provider prefix.
fn render_upgrade_head(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    model_override: Option<&str>,
    issued: Option<&IssuedCredential>,
) -> Result<Vec<u8>> {
    let query = match model_override {
        Some(model) => replace_query_model(&client_request.head.query, model),
        None => client_request.head.query.clone(),
    };
    let model = model_override.map_or_else(|| model_from_query(&query), ToOwned::to_owned);
    let head = RequestHead { query, ..client_request.head.clone() };
    let client_request = ClientRequest::new(client_request.route, &head, client_request.control);
    let input = RenderInput {
        model: &model,
        user: "",
        is_streaming: true,
        mode: TransformMode::Unchanged,
        content_type: None,
        anthropic_betas: None,
        anthropic_version: None,
        page_token: None,
        body_length: BodyLength::None,
        issued_credential: issued,
    };
    let mut bytes = upstream_head::render_head(&client_request, target, input, &state.settings.header_aliases)?;
    credentials::sign_head(target, client_request.route.operation, issued, &mut bytes, &PayloadDigest::compute(b""))?;
    Ok(bytes)
}

/// Returns the `model` parameter of a query, or else its `deployment` parameter. Empty if it has neither.
pub(crate) fn model_from_query(query: &str) -> String {
    let model = query_values(query, "model").next();
    model.or_else(|| query_values(query, "deployment").next()).unwrap_or_default()
}

fn query_values<'q>(query: &'q str, searched_name: &'q str) -> impl Iterator<Item = String> + 'q {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.filter(move |(name, _)| name == searched_name).map(|(_, value)| value.into_owned())
}

/// Replaces the model or deployment in a query and leaves all other parameters unchanged.
fn replace_query_model(query: &str, model: &str) -> String {
    let escaped: String = url::form_urlencoded::byte_serialize(model.as_bytes()).collect();
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        // The provider decodes names, so `mod%65l` names the model too.
        Some((key, _)) => match &*percent_decode_str(key).decode_utf8_lossy() {
            key @ ("model" | "deployment") => Cow::Owned(format!("{key}={escaped}")),
            _ => Cow::Borrowed(pair),
        },
        None => Cow::Borrowed(pair),
    });
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_replaces_only_the_model_of_a_query() {
        let query = "a=1&model=%40mine%2Fgpt-realtime&b=%20";
        assert_eq!((model_from_query(query).as_str(), model_from_query("a=1").as_str()), ("@mine/gpt-realtime", ""));
        assert_eq!(
            (model_from_query("deployment=d").as_str(), model_from_query("deployment=d&mod%65l=m").as_str()),
            ("d", "m")
        );
        assert_eq!(replace_query_model(query, "gpt realtime"), "a=1&model=gpt+realtime&b=%20");
        assert_eq!(replace_query_model("deployment=%40az%2Fgood", "good"), "deployment=good");
        assert_eq!(replace_query_model("mod%65l=%40az%2Fgood&x", "good"), "model=good&x");
    }
}
