//! Chooses how a request is served at its target, and serves it. The one place where target-specific cases branch.

use penstock_llm::{api_format::ImageParams, files::FileStore, operation::Operation, provider_format::ProviderFormat};
use penstock_net::body::Body;

use crate::{
    accounting::record::RequestLog,
    endpoints::{
        batches::{allowlist, azure_blob_output},
        count_tokens, files, forward,
        limit_admission::{self, AttemptKind},
        translated,
    },
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::message::BatchOutput,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{delivery::UpstreamResponse, mask_secrets},
};

/// How a request is served at its target.
pub(crate) enum TargetEndpoint<'r> {
    /// Translates the request to the provider's API format and the response back.
    Translate(&'static ProviderFormat),
    /// Files of a provider whose file API differs from `OpenAI`'s.
    Files(FileStore),
    /// Output of a batch that lies in the customer's own Azure storage, at this URL.
    BatchOutput(&'r str),
    /// Counts tokens at the provider or locally. If there is a format, the request to the provider is translated to it.
    CountTokens(Option<&'static ProviderFormat>),
    /// Forwards the request in the client's own API format.
    Forward,
}

impl<'r> TargetEndpoint<'r> {
    fn choose(client_request: &ClientRequest<'r>, target: &Target<'_>, model: &str) -> Self {
        let operation = client_request.route.operation;
        let format = target.provider_format(operation, model).filter(|_| !target.is_passthrough);
        match (format, target.provider.row().file_store, client_request.head.batch_output.as_deref()) {
            (format, ..) if operation.counts_tokens() => Self::CountTokens(format),
            (Some(format), ..) => Self::Translate(format),
            (None, Some(store), _) if operation.is_file_operation() => Self::Files(store),
            (None, _, Some(BatchOutput::Blob(url))) => Self::BatchOutput(url),
            _ => Self::Forward,
        }
    }
}

/// Serves a request at one target and waits for the head of the response. Futures other than that of `Forward` are
/// boxed, because an inline future would enlarge the future of every request.
pub(crate) async fn serve_at_target(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    // Clears the fields that a previous target set.
    (log.response_report, log.hides_usage, log.has_masked_failure, log.is_sent) = (None, false, false, false);
    log.bodies.clear_target();
    let body = if limit_admission::is_limited(target, log) {
        Box::pin(limit_admission::admit_attempt(state, client_request, target, AttemptKind::Http, body, log)).await?
    } else {
        body
    };
    if client_request.route.operation == Operation::ImageGenerate {
        log.billing.image_params = Some(Box::new(ImageParams::from_json(body.complete_bytes())));
    }
    let body = match target.restricted_models() {
        Some(models) => Box::pin(allowlist::guard_models(state, client_request, target, models, body, log)).await?,
        None => body,
    };
    let endpoint = TargetEndpoint::choose(client_request, target, &log.model);
    // For these endpoints, `result` comes from the last request that was sent, to which `has_masked_failure` refers.
    let returns_last_response = matches!(endpoint, TargetEndpoint::Forward | TargetEndpoint::Translate(_));
    let result = match endpoint {
        TargetEndpoint::Translate(format) => {
            Box::pin(translated::send_translated(state, client_request, target, format, body, log)).await
        }
        TargetEndpoint::Files(store) => {
            Box::pin(files::handle_file_request(state, client_request, target, store, body, log)).await
        }
        TargetEndpoint::BatchOutput(url) => {
            Box::pin(azure_blob_output::fetch_output_blob(state, client_request, target, url, log)).await
        }
        TargetEndpoint::CountTokens(format) => {
            Box::pin(count_tokens::count_tokens(state, client_request, target, format, body, log)).await
        }
        TargetEndpoint::Forward => forward::forward_request(state, client_request, target, body, log).await,
    };
    let is_masked = returns_last_response && log.has_masked_failure;
    if !is_masked && mask_secrets::may_failure_repeat_secrets(&result) {
        return Box::pin(mask_secrets::mask_failure(state, target, result)).await;
    }
    result
}

/// Rejects a passthrough request that would need translation at this provider.
pub(crate) fn reject_untranslated_passthrough(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    model: &str,
) -> Result<()> {
    let (operation, provider) = (client_request.route.operation, target.provider);
    // These operations have native paths at the provider, which accept the provider's own format.
    let has_native_path = matches!(operation, Operation::Models | Operation::Rerank);
    let needs_translation = || !has_native_path && target.provider_format(operation, model).is_some();
    let has_file_store = || operation.is_file_operation() && provider.row().file_store.is_some();
    if target.is_passthrough && (needs_translation() || has_file_store()) {
        return Err(Error::UnsupportedOperation { operation: operation.id(), provider: provider.slug() });
    }
    Ok(())
}
