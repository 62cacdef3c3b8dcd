//! Responses to requests that a guardrail denies.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_llm::{
    api_format::ApiFormat,
    operation::Operation,
    stream::aws_event_stream::encode_frame,
    texts::frames::StreamEncoding,
    translation::{SyntheticResponse, write_synthetic_response},
};
use penstock_net::ResponseBody;
use serde_json::{Value, json};

use super::subject::HookSubject;
use crate::{
    gateway_state::GatewayState,
    response::{delivery::UpstreamResponse, offload::with_content_type},
};

/// Status of a denial.
pub(crate) const DENIED_STATUS: u16 = 446;
/// End of the message of a denial, after the reason.
const HINT: &str = "see hook_results";

/// Returns a denial with status 446, for a reason that names the guardrail.
pub(super) fn denial(state: &GatewayState, results: &Value, reason: &str, api_format: ApiFormat) -> UpstreamResponse {
    let message = format!("{reason}; {HINT}");
    let error = match api_format {
        ApiFormat::OpenAi => json!({"message": message, "type": "hooks_failed", "param": null, "code": null}),
        ApiFormat::Gemini => json!({"code": DENIED_STATUS, "message": message, "status": "FAILED_PRECONDITION"}),
        ApiFormat::Anthropic | ApiFormat::Bedrock => json!({"type": "hooks_failed", "message": message}),
    };
    let mut body = json!({"error": error, "hook_results": results});
    match api_format {
        ApiFormat::Anthropic => body["type"] = "error".into(),
        ApiFormat::Bedrock => body["message"] = message.into(),
        ApiFormat::OpenAi | ApiFormat::Gemini => (),
    }
    let bytes = body.to_string().into_bytes().into();
    let mut response = UpstreamResponse::from_gateway(bytes, api_format, &state.coarse_timer);
    response.incoming.head.status = DENIED_STATUS;
    response
}

/// Returns the events that end a stream which was denied after a part of it was delivered.
pub(super) fn stream_denial(
    operation: Operation,
    api_format: ApiFormat,
    encoding: StreamEncoding,
    results: &Value,
    reason: &str,
) -> Vec<u8> {
    let message = format!("{reason}; {HINT}");
    let error = json!({"message": message, "type": "hooks_failed", "param": null, "code": null});
    match (api_format, encoding) {
        (_, StreamEncoding::AwsFrames) => {
            let payload = json!({"message": message, "hook_results": results}).to_string();
            encode_frame("exception", "validationException", payload.as_bytes())
        }
        (ApiFormat::Anthropic | ApiFormat::Bedrock, _) => {
            let error = json!({"type": "hooks_failed", "message": message});
            let data = json!({"type": "error", "error": error, "hook_results": results});
            format!("event: error\ndata: {data}\n\n").into_bytes()
        }
        (ApiFormat::Gemini, _) => {
            let error = json!({"code": DENIED_STATUS, "message": message, "status": "FAILED_PRECONDITION"});
            format!("data: {}\n\n", json!({"error": error, "hook_results": results})).into_bytes()
        }
        (ApiFormat::OpenAi, _) if operation == Operation::CreateModelResponse => {
            let data = json!({"type": "error", "code": "hooks_failed", "message": message, "param": null,
                "hook_results": results});
            format!("event: error\ndata: {data}\n\n").into_bytes()
        }
        (ApiFormat::OpenAi, _) => {
            format!("data: {}\n\ndata: [DONE]\n\n", json!({"error": error, "hook_results": results})).into_bytes()
        }
    }
}

/// Returns a denial with status 200, which has its message in place of the model's text. In API formats that cannot
/// express it, returns a denial with status 446.
pub(super) fn soft_denial(
    state: &GatewayState,
    subject: &HookSubject,
    results: &Value,
    reason: &str,
    api_format: ApiFormat,
) -> UpstreamResponse {
    let text = format!("{reason}; {HINT}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let notice = SyntheticResponse {
        operation: subject.operation,
        model: &subject.model,
        is_streaming: subject.is_streaming,
        text: &text,
        created: now.as_secs(),
        id_suffix: &format!("{:x}{:08x}", now.as_millis(), fastrand::u32(..)),
    };
    let Some((kind, bytes)) = write_synthetic_response(&notice) else {
        return denial(state, results, reason, api_format);
    };
    let mut response = UpstreamResponse::from_gateway(bytes::Bytes::new(), api_format, &state.coarse_timer);
    let headers = std::mem::take(&mut response.incoming.head.headers);
    response.incoming.head.headers = with_content_type(headers, kind.as_bytes());
    let bytes = match serde_json::from_slice::<Value>(&bytes) {
        Ok(Value::Object(mut fields)) => {
            fields.insert("hook_results".to_owned(), results.clone());
            Value::Object(fields).to_string().into_bytes()
        }
        _ => bytes,
    };
    response.incoming.body = ResponseBody::from_bytes(bytes.into());
    response
}
