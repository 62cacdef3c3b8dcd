//! Parameter mapping for chat, completion and embedding requests to providers whose API differs from `OpenAI`'s only in
//! parameter names or values. Requests without a mapping are forwarded unread.

use penstock_llm::{
    catalog::ParamRules, http_form::form, json::edit, operation::Operation, translation::ResponseReport,
};
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    resolve::{target::Target, target_resolver::ClientRequest},
};

/// Bodies up to this size are mapped inline. That takes far less than a millisecond.
const MAX_INLINE_BYTES: usize = 128 * 1024;

/// Returns the parameter mapping for this target; `None` if the request is forwarded unchanged.
pub fn param_rules(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    model: &str,
) -> Option<&'static ParamRules> {
    let operation = client_request.route.operation;
    let is_mappable = matches!(
        operation,
        Operation::ChatComplete
            | Operation::Complete
            | Operation::Embed
            | Operation::Messages
            | Operation::MessagesCountTokens
            | Operation::Converse
            | Operation::ConverseStream
            | Operation::InvokeModel
            | Operation::InvokeModelStream
    ) && !target.is_passthrough;
    is_mappable
        .then(|| target.provider.row().param_rules_for_model(operation, model))
        .filter(|rules| !rules.is_identity())
}

/// Writes the effective model or deployment into the body, if the provider reads it only from there.
pub async fn set_model_in_body(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    mut body: Body,
) -> Result<Body> {
    let operation = client_request.route.operation;
    let model_override =
        target.provider.body_model_override(operation, &target.options, client_request.route.path_params);
    if let Some(model) = model_override.filter(|_| !target.is_passthrough) {
        body.rewrite_buffered(model_setter(client_request, model.into_owned())).await?;
    }
    Ok(body)
}

/// Returns a function that sets the model in the bodies of a call, in a form or in JSON.
pub fn model_setter(
    client_request: &ClientRequest<'_>,
    model: String,
) -> impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static {
    let kind = client_request
        .head
        .headers
        .get_str("content-type")
        .filter(|_| client_request.route.operation.has_model_in_form());
    let kind = kind.map(ToOwned::to_owned);
    move |bytes| match kind {
        Some(kind) => form::replace_model(&kind, bytes, &model),
        None => edit::set_fields(bytes, &[], &[edit::json_field("model", &model.into())]).ok(),
    }
}

/// Applies the parameter mapping to a body and records dropped parameters for the client.
pub async fn apply_param_rules(rules: &'static ParamRules, body: Body, log: &mut RequestLog) -> Result<Body> {
    let Body::Complete(bytes) = &body else { return Ok(body) };
    let mapped = if bytes.len() > MAX_INLINE_BYTES {
        let bytes = bytes.clone();
        // The mapping neither panics nor is cancelled, unless the process shuts down.
        tokio::task::spawn_blocking(move || rules.apply(&bytes)).await.map_err(|_| Error::Draining)?
    } else {
        rules.apply(bytes)
    };
    let Some((mapped, dropped)) = mapped else { return Ok(body) };
    if !dropped.is_empty() {
        (log.dropped_params, log.response_report) = (dropped, Some(ResponseReport::default()));
    }
    Ok(Body::Complete(mapped.into()))
}
