//! Translates requests to the provider's API format and responses back to the client's. Used only if the two formats
//! differ.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use penstock_llm::{
    api_format::gemini,
    operation::Operation,
    provider_format::ProviderFormat,
    translation::{ScopedSignatures, Translation},
    translation_input::{RequestHints, TranslationInput},
};
use penstock_net::{Deadline, IncomingResponse, ResponseBody, body::Body};

use crate::{
    accounting::record::{RequestLog, details::TranslationClock},
    error::{Error, Result},
    ingress::{client_sdk, message::RequestHead, route::Route},
    request::{translate_stream::StreamTranslator, usage_estimator::UsageEstimator},
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        normalise::{self, MAX_ERROR_BODY_BYTES},
        offload::{run_offloaded, with_content_type},
    },
    state::shared::{self, SharedState},
};

/// Maximum bytes of a complete response that is translated.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Translates a request body. Returns the new body and the translation for the response.
pub async fn translate_request(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    body: Body,
    provider_format: &'static ProviderFormat,
    shared: &SharedState,
    log: &mut RequestLog,
) -> Result<(Body, Translation)> {
    let body = body.collect().await?;
    let (provider, operation, strict) = (target.provider, client_request.route.operation, target.is_strict);
    let (length, model) = (body.len(), log.model.clone());
    let text = |key: &str| target.options.get(key).map(ToOwned::to_owned);
    let headers = &client_request.head.headers;
    let betas = text("anthropic_beta").or_else(|| headers.get_str("anthropic-beta").map(ToOwned::to_owned));
    let version = text("anthropic_version");
    let is_anthropic_client = headers.get_str("anthropic-version").is_some();
    let list_shape = client_sdk::model_list_shape(operation, headers);
    let effective_model = Some(provider.effective_model(&target.options, &model))
        .filter(|resolved| *resolved != model)
        .map(ToOwned::to_owned);
    // Query and options matter only for job operations; other requests have everything in body and path.
    let job = operation.is_provider_job().then(|| (client_request.head.query.clone(), target.options.clone()));
    let signatures = provider_format
        .signs_tool_calls(effective_model.as_deref().unwrap_or(&model))
        .then(|| signature_cache(shared, target, &model));
    let retry_signatures = signatures.clone().filter(|_| shared.redis.is_some());
    let translate = move || {
        let (betas, version) = (betas.as_deref(), version.as_deref());
        let (query, options) = job.as_ref().map_or(("", None), |(query, options)| (query.as_str(), Some(options)));
        let hints = RequestHints {
            anthropic_betas: betas,
            anthropic_version: version,
            is_anthropic_client,
            model_list_shape: list_shape,
            query,
            options,
            effective_model: effective_model.as_deref(),
            tool_call_signatures: signatures.as_ref(),
        };
        let input = TranslationInput {
            operation,
            provider: provider.row(),
            body: &body,
            model: &model,
            hints,
            strict,
            now_ms: unix_time_ms(),
            nonce: fastrand::u32(..),
        };
        Translation::translate_request(&input, provider_format)
    };
    let retry = retry_signatures.map(|retry_signatures| (retry_signatures, translate.clone()));
    let mut translated = run_offloaded(length, translate).await?;
    if let Some((retry_signatures, translate)) = retry
        && load_shared_signatures(shared, &retry_signatures).await
    {
        translated = run_offloaded(length, translate).await?;
    }
    let to_error = |refusal: penstock_llm::translation::RequestError| Error::Untranslatable {
        provider: provider.slug(),
        path: refusal.path,
        message: refusal.message,
    };
    let (translation, body) = translated.map_err(to_error)?;
    log.dropped_params.clone_from(&translation.dropped_params);
    log.response_report = Some(translation.response_context.report.clone());
    Ok((Body::Complete(body.into()), translation))
}

/// Returns the cached tool-call signatures of this caller, provider, credential and model.
fn signature_cache(shared: &SharedState, target: &Target<'_>, model: &str) -> ScopedSignatures {
    let caller = target.caller.key.map(|key| (&key.id, &key.workspace));
    let Target { provider, base_url: base, credential, authorization, .. } = target;
    let address = (provider.slug(), &base.origin);
    let owner = shared.keyed_hash((caller, address, credential, authorization, model));
    ScopedSignatures::new(Arc::clone(&shared.tool_call_signatures), owner, unix_time_ms())
}

/// Loads missing signatures that another worker stored in Redis. Returns true if there were any.
async fn load_shared_signatures(shared: &SharedState, signatures: &ScopedSignatures) -> bool {
    let missed = signatures.take_missed_calls();
    let (Some(redis), false) = (&shared.redis, missed.is_empty()) else { return false };
    let names: Vec<_> = missed.iter().map(|call| shared::signature_key(signatures.owner_hash, call)).collect();
    let stored_signatures = redis.get_many(&names).await;
    let signed = missed.iter().zip(stored_signatures).filter_map(|(call, signature)| Some((call, signature?)));
    signed.map(|(call, signature)| signatures.insert_shared(call, &signature)).count() > 0
}

/// Returns true if the stream must be one JSON array. Google's API sends that unless the client asks for events with
/// `alt=sse`.
fn wants_json_array(client_request: &ClientRequest<'_>) -> bool {
    let wants_events = client_request.head.query.split('&').any(|pair| pair == "alt=sse");
    client_request.route.operation == Operation::StreamGenerateContent && !wants_events
}

/// Returns the head of a status request for a cancelled job. The client expects the job's state, but providers with
/// another API format do not return it on cancel.
pub fn job_status_head(client_request: &ClientRequest<'_>) -> RequestHead {
    RequestHead { method: "GET".into(), ..client_request.head.clone() }
}

/// Returns the call that requests the status of a cancelled job.
pub fn job_status_request<'c>(client_request: &ClientRequest<'c>, head: &'c RequestHead) -> ClientRequest<'c> {
    let path = client_request.route.path.strip_suffix("/cancel").unwrap_or(client_request.route.path);
    let is_fine_tuning = client_request.route.operation.is_fine_tuning();
    let operation = if is_fine_tuning { Operation::RetrieveFinetune } else { Operation::RetrieveBatch };
    ClientRequest::new(Route { operation, path, ..client_request.route }, head, client_request.control)
}

/// Translates a response to the client's API format. Measures how long that takes.
pub async fn translate_response(
    client_request: &ClientRequest<'_>,
    translation: Translation,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
    log: &mut RequestLog,
) -> Result<IncomingResponse> {
    if incoming.head.status == normalise::BUDGET_EXHAUSTED_STATUS {
        return Ok(normalise::with_request_id(incoming));
    }
    let clock = TranslationClock::default();
    log.details.translation_clock = Some(clock.clone());
    let IncomingResponse { mut head, mut body } = incoming;
    let is_plain = head.headers.get_str("content-encoding").is_none_or(|coding| coding == "identity");
    if head.status == 200 && is_plain && head.headers.has_media_type(translation.provider_stream_type()) {
        let items = wants_json_array(client_request).then(gemini::JsonArrayStream::default);
        let kind = if items.is_some() { "application/json" } else { translation.client_stream_type() };
        head.headers = with_content_type(head.headers, kind.as_bytes());
        let translator = StreamTranslator { transcoder: translation.transcoder(), items, clock };
        let estimator = UsageEstimator::from_log(log).filter(|_| !translation.is_passthrough());
        body = translator.translate_body(body, estimator);
        return Ok(IncomingResponse { head, body });
    }
    // Some providers return a raw image, whatever format was requested.
    let is_image = translation.generates_images() && head.headers.is_image();
    let max_bytes = if head.status < 300 { MAX_RESPONSE_BYTES } else { MAX_ERROR_BODY_BYTES };
    let response = deadline.enforce(penstock_net::collect(&mut body, max_bytes)).await?.filter(|_| is_plain);
    if head.status >= 400 {
        normalise::add_request_id_header(&mut head.headers);
    }
    let start = Instant::now();
    let translated = match response {
        Some(response) if head.status < 300 && is_image => {
            run_offloaded(response.len(), move || translation.wrap_raw_image(&response)).await?
        }
        Some(response) if head.status < 300 => {
            let (status, translated) = translate_complete_response(translation, response, head.status, log).await?;
            head.status = status;
            translated
        }
        Some(response) => {
            let error_body = normalise::extract_error_body(&head.headers, response);
            translation.translate_error(head.status, &error_body, normalise::provider_request_id(&head.headers))
        }
        None if head.status < 300 => return Err(unreadable_response_error("it is too large, or compressed")),
        None => translation.translate_error(head.status, b"", normalise::provider_request_id(&head.headers)),
    };
    clock.add_since(start);
    head.headers = with_content_type(head.headers, b"application/json");
    // Other success codes, such as 201 and 204, become 200, as in the client's format.
    head.status = if head.status < 300 { 200 } else { head.status };
    Ok(IncomingResponse { head, body: ResponseBody::from_bytes(translated.into()) })
}

/// Returns the translated response with its status. It is an error status if the body contains an error. If the
/// provider reports no usage, translates the response again with an estimate.
async fn translate_complete_response(
    translation: Translation,
    response: Bytes,
    status: u16,
    log: &RequestLog,
) -> Result<(u16, Vec<u8>)> {
    let (provider, original) = (translation.response_context.provider, response.clone());
    let invalid = |_| Error::invalid_response(provider, status, &original);
    let translate = move || {
        let translated = translation.translate_response_or_failure(&response);
        (translation, translated)
    };
    let (translation, translated) = run_offloaded(original.len(), translate).await?;
    let (translated_status, translated) = translated.map_err(invalid)?;
    let is_unknown = translation.response_context.report.usage().is_none() && !translation.is_passthrough();
    if translated_status == 200
        && is_unknown
        && let Some(estimator) = UsageEstimator::from_log(log)
    {
        let estimated = Box::pin(estimator.translate_complete(translation, original.clone())).await?;
        return Ok((200, estimated.map_err(invalid)?));
    }
    Ok((translated_status, translated))
}

pub fn unreadable_response_error(cause: &str) -> Error {
    Error::UpstreamResponseBroken { cause: format!("it cannot be read: {cause}") }
}

/// Returns the Unix time in milliseconds.
pub fn unix_time_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
