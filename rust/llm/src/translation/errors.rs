//! Translation of a provider's error to the client's API format.

use serde_json::Value;

use crate::api_format::{Failure, error_body, format::ApiFormat, openai_chat};
use crate::chat::providers::ErrorDetails;

/// Origin of an error: provider and HTTP status. Translation changes neither.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorOrigin<'a> {
    pub provider: &'a str,
    pub status: u16,
    /// Request ID from the provider's response header.
    pub request_id: Option<&'a str>,
}

/// Translates an error to the client's API format. Uses the raw body as message if none was parsed from it.
pub(crate) fn translate_error(
    dialect: ApiFormat,
    origin: ErrorOrigin<'_>,
    found: ErrorDetails,
    response: &[u8],
) -> Vec<u8> {
    let ErrorOrigin { provider, status, request_id } = origin;
    let found = fill_missing_type_or_code(origin, found, response);
    let text = found.message.unwrap_or_else(|| String::from_utf8_lossy(response).trim().to_owned());
    let text = if text.is_empty() { format!("status {status}") } else { text };
    let message = prefix_provider_name(provider, &text);
    let failure = Failure {
        status,
        error_type: found.kind.as_deref(),
        message: &message,
        code: found.code.as_deref(),
        request_id,
    };
    // Error types differ between API formats, so the type is derived from the status.
    let plain = Failure { error_type: None, code: None, ..failure };
    match dialect {
        ApiFormat::OpenAi => {
            add_provider_field(openai_chat::error_body_with_param(&failure, found.param.as_deref()), provider)
        }
        dialect => error_body(dialect, &plain),
    }
}

/// Fills in an error type or code that the provider omits. Bytez and Hugging Face use the status if the error is a
/// plain string; Oracle uses its code as type.
fn fill_missing_type_or_code(origin: ErrorOrigin<'_>, mut found: ErrorDetails, response: &[u8]) -> ErrorDetails {
    let status = || {
        let body: Value = serde_json::from_slice(response).unwrap_or_default();
        body["error"].is_string().then(|| origin.status.to_string())
    };
    match origin.provider {
        "bytez" => found.kind = found.kind.or_else(status),
        "huggingface" => found.code = found.code.or_else(status),
        "oracle" if found.kind.is_none() => found.kind.clone_from(&found.code),
        _ => (),
    }
    found
}

/// Keywords in the error types and codes of all providers, without punctuation, and the HTTP status for each.
const STATUS_KEYWORDS: [(&str, u16); 22] = [
    ("throttl", 429),
    ("ratelimit", 429),
    ("toomanyrequests", 429),
    ("resourceexhausted", 429),
    ("quota", 429),
    ("overloaded", 529),
    ("unavailable", 503),
    ("timeout", 504),
    ("deadline", 504),
    ("apikey", 401),
    ("unauth", 401),
    ("authentication", 401),
    ("billing", 402),
    ("permission", 403),
    ("accessdenied", 403),
    ("notfound", 404),
    ("toolarge", 413),
    ("contextlength", 400),
    ("content", 400),
    ("validation", 400),
    ("invalid", 400),
    ("badrequest", 400),
];

/// Returns a failure in the middle of a stream. Its status is derived from code and type, because no other status is
/// known then.
pub(crate) fn stream_failure<'a>(
    dialect: ApiFormat,
    kind: Option<&'a str>,
    message: &'a str,
    code: Option<&'a str>,
) -> Failure<'a> {
    let status = [code, kind].into_iter().flatten().find_map(infer_status).unwrap_or(500);
    let (kind, code) = if dialect == ApiFormat::OpenAi { (kind, code) } else { (None, None) };
    Failure { status, error_type: kind, message, code, request_id: None }
}

fn infer_status(code: &str) -> Option<u16> {
    if let Ok(status @ 400..600) = code.parse() {
        return Some(status);
    }
    let letters = code.chars().filter(char::is_ascii_alphanumeric);
    let plain: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    STATUS_KEYWORDS.iter().find(|(part, _)| plain.contains(part)).map(|(_, status)| *status)
}

/// Completes an error that is already in the client's API format. Returns `None` if nothing is missing, and `Err` if
/// the body is not an error of that format.
pub(crate) fn complete_native_error(
    dialect: ApiFormat,
    origin: ErrorOrigin<'_>,
    response: &[u8],
) -> Result<Option<Vec<u8>>, ()> {
    let mut error_json: Value = serde_json::from_slice(response).map_err(|_| ())?;
    let is_whole = match dialect {
        ApiFormat::OpenAi => {
            return complete_openai_error(&mut error_json, origin)
                .map(|is_new| is_new.then(|| error_json.to_string().into()));
        }
        ApiFormat::Anthropic => error_json["type"] == "error" && error_json["error"]["message"].is_string(),
        ApiFormat::Gemini => error_json["error"].is_object() || error_json[0]["error"].is_object(),
        ApiFormat::Bedrock => ["message", "Message", "__type"].iter().any(|key| error_json[key].is_string()),
    };
    if is_whole { Ok(None) } else { Err(()) }
}

/// Adds missing fields to an `OpenAI` error and names the provider in its message. Returns true if anything changed. All
/// other fields are kept.
fn complete_openai_error(error_json: &mut Value, origin: ErrorOrigin<'_>) -> Result<bool, ()> {
    let before = error_json.clone();
    let error = error_json.get_mut("error").and_then(Value::as_object_mut).ok_or(())?;
    let Some(Value::String(message)) = error.get_mut("message") else { return Err(()) };
    *message = prefix_provider_name(origin.provider, message);
    // Google reports the error type as `status`, also in its OpenAI-compatible APIs.
    let status_name = error.get("status").filter(|status| status.is_string()).cloned();
    error
        .entry("type")
        .or_insert_with(|| status_name.unwrap_or_else(|| openai_chat::error_type_for_status(origin.status).into()));
    error.entry("param").or_insert(Value::Null);
    let code = error.entry("code").or_insert(Value::Null);
    if code.is_number() {
        *code = code.to_string().into();
    }
    if let Some(body) = error_json.as_object_mut() {
        body.entry("provider").or_insert_with(|| origin.provider.into());
    }
    Ok(*error_json != before)
}

/// Prefixes an error message with the provider's name, unless another Penstock gateway has already done so.
fn prefix_provider_name(provider: &str, text: &str) -> String {
    let name = format!("{provider} error: ");
    if text.starts_with(&name) { text.to_owned() } else { name + text }
}

/// Adds the `provider` field to a JSON body that the gateway wrote.
pub(crate) fn add_provider_field(mut body: Vec<u8>, provider: &str) -> Vec<u8> {
    if body.pop() == Some(b'}') {
        body.extend_from_slice(format!(",\"provider\":\"{provider}\"}}").as_bytes());
    }
    body
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ORIGIN: ErrorOrigin<'static> = ErrorOrigin { provider: "p", status: 401, request_id: None };

    #[test]
    fn keeps_all_fields_of_an_openai_error_and_adds_missing_ones() {
        let done = |error_json: &Value| {
            let completed = complete_native_error(ApiFormat::OpenAi, ORIGIN, error_json.to_string().as_bytes());
            completed.map(|new| new.map(|new| serde_json::from_slice::<Value>(&new).unwrap()))
        };
        let complete =
            json!({"error": {"message": "p error: m", "type": "t", "param": null, "code": "c"}, "provider": "p"});
        assert_eq!(done(&complete), Ok(None));
        assert_eq!(
            done(&json!({"error": {"message": "m", "type": "t", "param": null, "code": "c"}})),
            Ok(Some(complete))
        );
        assert_eq!(
            done(&json!({"error": {"code": 401, "message": "m", "innererror": {"code": "x"}}, "provider": "Novita"})),
            Ok(Some(json!({"error": {"code": "401", "message": "p error: m", "innererror": {"code": "x"},
                "type": "authentication_error", "param": null}, "provider": "Novita"})))
        );
        assert_eq!(
            done(&json!({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}})),
            Ok(Some(json!({"error": {"code": "429", "message": "p error: m", "status": "RESOURCE_EXHAUSTED",
                "type": "RESOURCE_EXHAUSTED", "param": null}, "provider": "p"})))
        );
        for none in [json!({"error": "m"}), json!({"message": "m"}), json!({"error": {}}), json!([]), json!("m")] {
            assert_eq!(done(&none), Err(()), "{none}");
        }
    }

    #[test]
    fn fills_in_what_single_providers_omit() {
        for (provider, response, message, kind, code) in [
            ("huggingface", r#"{"error":"no"}"#, "huggingface error: no", json!("invalid_request_error"), json!("400")),
            ("huggingface", r#"{"detail":"no"}"#, "huggingface error: no", json!("invalid_request_error"), Value::Null),
            ("bytez", r#"{"error":"no","output":null}"#, "bytez error: no", json!("400"), Value::Null),
            ("x-ai", r#"{"code":"c","error":"no"}"#, "x-ai error: no", json!("invalid_request_error"), json!("c")),
            ("oracle", r#"{"code":"c","message":"no"}"#, "oracle error: no", json!("c"), json!("c")),
        ] {
            let origin = ErrorOrigin { provider, status: 400, request_id: None };
            let found = crate::chat::providers::openai_chat::parse_error(response.as_bytes());
            let translated = translate_error(ApiFormat::OpenAi, origin, found, response.as_bytes());
            let parsed: Value = serde_json::from_slice(&translated).unwrap();
            let error = &parsed["error"];
            assert_eq!(
                (&error["message"], &error["type"], &error["code"]),
                (&message.into(), &kind, &code),
                "{parsed}"
            );
        }
    }

    #[test]
    fn infers_the_status_of_a_stream_failure_and_drops_types_of_other_formats() {
        for (kind, code, status) in [
            (None, Some("throttlingException"), 429),
            (Some("RESOURCE_EXHAUSTED"), Some("429"), 429),
            (Some("server_error"), Some("rate_limit_exceeded"), 429),
            (Some("overloaded_error"), None, 529),
            (Some("UNAVAILABLE"), None, 503),
            (None, Some("serviceUnavailableException"), 503),
            (None, Some("modelTimeoutException"), 504),
            (Some("authentication_error"), None, 401),
            (Some("invalid_request_error"), Some("invalid_api_key"), 401),
            (None, Some("validationException"), 400),
            (None, Some("modelStreamErrorException"), 500),
            (Some("api_error"), None, 500),
            (None, Some("7"), 500),
            (None, None, 500),
        ] {
            let failure = |dialect| stream_failure(dialect, kind, "m", code);
            assert_eq!(failure(ApiFormat::OpenAi).status, status, "{kind:?} {code:?}");
            assert_eq!((failure(ApiFormat::OpenAi).error_type, failure(ApiFormat::OpenAi).code), (kind, code));
            assert_eq!((failure(ApiFormat::Gemini).error_type, failure(ApiFormat::Gemini).code), (None, None));
        }
    }

    #[test]
    fn an_error_of_another_api_format_is_not_native() {
        let native_errors = [
            (ApiFormat::Anthropic, json!({"type": "error", "error": {"type": "t", "message": "m"}})),
            (ApiFormat::Gemini, json!({"error": {"code": 400, "message": "m", "status": "S"}})),
            (ApiFormat::Bedrock, json!({"message": "m"})),
        ];
        for (dialect, error_json) in &native_errors {
            for (other, _) in &native_errors {
                let found = complete_native_error(*other, ORIGIN, error_json.to_string().as_bytes());
                // An Anthropic error also passes as one of Gemini's, because it has all of the required fields.
                let reads = other == dialect || (*dialect, *other) == (ApiFormat::Anthropic, ApiFormat::Gemini);
                assert_eq!(found.is_ok(), reads, "{dialect:?} read as {other:?}");
            }
        }
        assert!(complete_native_error(ApiFormat::Anthropic, ORIGIN, b"<html>").is_err());
    }
}
