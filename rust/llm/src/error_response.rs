//! Translation of a provider's error to the client's API format.

use std::ops::Range;

use serde_json::Value;

use crate::{
    api_format::{Failure, error_body, format::ApiFormat, openai_chat},
    error_details::{ErrorDetails, parse_error},
    json::scan::{for_each_element_from, for_each_field},
    operation::Operation,
};

/// Origin of an error: provider and HTTP status. Translation changes neither.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorOrigin<'a> {
    pub provider: &'a str,
    pub status: u16,
    pub fallback: ErrorFallback,
    /// Request ID from the provider's response header.
    pub request_id: Option<&'a str>,
}

/// Translates an error to the client's API format. Uses the raw body as message if none was parsed from it.
pub(crate) fn translate_error(
    api_format: ApiFormat,
    origin: ErrorOrigin<'_>,
    details: ErrorDetails,
    response: &[u8],
) -> Vec<u8> {
    let ErrorOrigin { provider, status, request_id, .. } = origin;
    let mut details = fill_missing_type_or_code(origin, details, response);
    if details.message.as_deref().is_some_and(|message| exceeds_context(status, message)) {
        details.code = Some(CONTEXT_LENGTH_CODE.to_owned());
        details.kind = Some(openai_chat::error_type_for_status(400).to_owned());
    }
    let text = details.message.unwrap_or_else(|| String::from_utf8_lossy(response).trim().to_owned());
    let text = if text.is_empty() { format!("status {status}") } else { text };
    let message = prefix_provider_name(provider, &text);
    let failure = Failure {
        status,
        error_type: details.kind.as_deref(),
        message: &message,
        code: details.code.as_deref(),
        request_id,
    };
    // Error types differ between API formats, so the type is derived from the status.
    let plain = Failure { error_type: None, code: None, ..failure };
    match api_format {
        ApiFormat::OpenAi => {
            add_provider_field(openai_chat::error_body_with_param(&failure, details.param.as_deref()), provider)
        }
        api_format => error_body(api_format, &plain),
    }
}

/// Source of an error type or code that a provider omits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorFallback {
    None,
    /// Uses the status as the type if the error is a plain string.
    StatusAsType,
    /// Uses the status as the code if the error is a plain string.
    StatusAsCode,
    /// Uses the code as the type.
    CodeAsType,
}

/// Fills in an error type or code that the provider omits.
fn fill_missing_type_or_code(origin: ErrorOrigin<'_>, mut details: ErrorDetails, response: &[u8]) -> ErrorDetails {
    let status = || {
        let body: Value = serde_json::from_slice(response).unwrap_or_default();
        body["error"].is_string().then(|| origin.status.to_string())
    };
    match origin.fallback {
        ErrorFallback::StatusAsType => details.kind = details.kind.or_else(status),
        ErrorFallback::StatusAsCode => details.code = details.code.or_else(status),
        ErrorFallback::CodeAsType if details.kind.is_none() => details.kind.clone_from(&details.code),
        ErrorFallback::CodeAsType | ErrorFallback::None => (),
    }
    details
}

/// Status of an error that a provider sent with a success status, if its body indicates no other status.
pub(crate) const FAILED_GENERATION_STATUS: u16 = 502;

/// Fields that only a response with content has. A response object of the Responses API has a null `error` beside them.
const CONTENT_FIELDS: [&[u8]; 9] =
    [b"choices", b"content", b"candidates", b"output", b"data", b"embeddings", b"message", b"results", b"text"];

/// Fields that an error body may have. A body without any other field is an error if one of `ERROR_TEXT_FIELDS` is not
/// empty.
const ERROR_FIELDS: &[&[u8]] = &[
    b"error",
    b"errors",
    b"message",
    b"Message",
    b"msg",
    b"detail",
    b"details",
    b"code",
    b"type",
    b"__type",
    b"status",
    b"status_code",
    b"statusCode",
    b"success",
    b"param",
    b"fault",
    b"object",
    b"id",
    b"name",
    b"path",
    b"timestamp",
    b"request_id",
    b"requestId",
    b"event_id",
    b"trace_id",
    b"raw_response",
    b"messages",
];

/// Fields that hold the text of an error.
const ERROR_TEXT_FIELDS: [&[u8]; 10] =
    [b"error", b"errors", b"message", b"Message", b"msg", b"detail", b"details", b"__type", b"code", b"fault"];

/// Returns true if a body that begins like this may be an error. Its first field is then one that has the text or the
/// status of an error.
pub(crate) fn begins_with_error_field(body: &[u8]) -> bool {
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"{") else { return false };
    let Some(key) = rest.trim_ascii_start().strip_prefix(b"\"") else { return false };
    let is_first = |name: &[u8]| key.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"\""));
    // Other error fields may also begin successful responses.
    ERROR_TEXT_FIELDS.into_iter().chain([b"success".as_slice(), b"status_code", b"statusCode"]).any(is_first)
}

/// Returns true for a JSON value that is null, false, zero or empty, such as the `error` of a successful response.
pub(crate) fn is_empty_value(value: &[u8]) -> bool {
    matches!(value, b"null" | b"false" | b"\"\"" | b"{}" | b"[]" | b"0")
}

/// Returns the status of an error that the provider sent with a success status; `None` if the body is no error. Jobs
/// and stored objects may have an `error` of their own.
pub(crate) fn error_status(operation: Operation, body: &[u8]) -> Option<u16> {
    let item = first_array_item(body);
    let body = &body[item];
    let is_generation = operation.is_inference();
    let (mut has_error, mut has_content, mut has_text) = (false, false, false);
    let mut has_only_error_fields = true;
    for_each_field(body, |key, at| {
        let value = &body[at];
        let is_empty = is_empty_value(value);
        match key {
            b"error" => has_error |= !is_empty,
            b"type" => has_error |= value == b"\"error\"",
            b"object" if is_generation => has_content |= value == b"\"response\"",
            b"object" | b"id" => has_content |= !is_generation && !is_empty && value != b"\"error\"",
            // Google names stored objects by their path.
            b"name" => has_content |= !is_generation && value.contains(&b'/'),
            // An error may have its message in this field, as a string. An object is a message of a model.
            b"message" => has_content |= value.starts_with(b"{"),
            // MiniMax reports success and failure in this field.
            b"base_resp" => has_error |= has_failure_code(value),
            key => has_content |= CONTENT_FIELDS.contains(&key) && !is_empty,
        }
        has_only_error_fields &= ERROR_FIELDS.contains(&key) || is_empty;
        has_text |= ERROR_TEXT_FIELDS.contains(&key) && !is_empty;
        Ok(())
    })
    .ok()?;
    has_error |= has_text && has_only_error_fields && !operation.ends_something();
    if !has_error || has_content {
        return None;
    }
    let details = parse_error(body);
    let status = [&details.code, &details.kind].into_iter().flatten().find_map(|text| infer_status(text));
    Some(status.or_else(|| status_field(body)).unwrap_or(FAILED_GENERATION_STATUS))
}

/// Returns true if the data of a stream event is an error, in a format in which events have no type.
pub(crate) fn is_error_event(data: &[u8]) -> bool {
    (begins_with_error_field(data) || data.trim_ascii_start().starts_with(b"["))
        && error_status(Operation::ChatComplete, data).is_some()
}

/// Returns the range of the first item if the body is an array of objects, such as Google's list of errors. Otherwise
/// returns the range of the whole body.
fn first_array_item(body: &[u8]) -> Range<usize> {
    let mut first = None;
    let start = body.len() - body.trim_ascii_start().len();
    if body[start..].strip_prefix(b"[").is_some_and(|items| items.trim_ascii_start().starts_with(b"{")) {
        let _ = for_each_element_from(body, start, |item| {
            first.get_or_insert(item);
            Ok(())
        });
    }
    first.unwrap_or(0..body.len())
}

/// Returns true if the object has a `status_code` other than zero.
fn has_failure_code(object: &[u8]) -> bool {
    let mut has_failed = false;
    let _ = for_each_field(object, |key, at| {
        has_failed |= key == b"status_code" && &object[at] != b"0";
        Ok(())
    });
    has_failed
}

/// Returns the HTTP status that an error body names in a field of its own.
fn status_field(body: &[u8]) -> Option<u16> {
    let mut status = None;
    let _ = for_each_field(body, |key, at| {
        if matches!(key, b"status" | b"status_code" | b"statusCode" | b"__type") {
            let text = String::from_utf8_lossy(&body[at]);
            status = status.or_else(|| infer_status(text.trim_matches('"')));
        }
        Ok(())
    });
    status
}

/// Code by which clients of chat completions notice that the conversation is too long, and shorten it.
const CONTEXT_LENGTH_CODE: &str = "context_length_exceeded";

/// Parts of the messages with which providers reject a request that is longer than the context of the model. All parts
/// of one entry must occur.
const CONTEXT_LENGTH_MESSAGES: [&[&str]; 22] = [
    &["prompt is too long"],
    &["input is too long"],
    &["input tokens exceeded"],
    &["too many tokens", "cannot exceed"],
    &["exceed context limit"],
    &["exceeds the maximum number of tokens"],
    &["maximum context length"],
    &["exceed", "context window"],
    &["exceed", "context length"],
    // xAI, Moonshot, Groq and Cerebras, llama.cpp, LM Studio.
    &["maximum prompt length"],
    &["exceeded model token limit"],
    &["reduce the length of the messages"],
    &["exceed", "available context size"],
    &["keep the first", "context length"],
    &["cannot truncate prompt", "n_ctx"],
    // Servers with TGI, such as Together's and Hugging Face's.
    &["`inputs` tokens"],
    &["`inputs` must have less than", "tokens"],
    // Vertex AI, Databricks, DashScope, Z.ai, GitHub Models.
    &["input token count", "only supports up to"],
    &["prompt token count", "cannot exceed"],
    &["range of input length should be"],
    &["prompt exceeds max length"],
    &["request body too large", "tokens"],
];

/// Returns true if the error reports that the request is longer than the context of the model.
fn exceeds_context(status: u16, message: &str) -> bool {
    // Some servers, such as llama.cpp before September 2025, report this as their own failure.
    if !matches!(status, 400 | 413 | 422 | 500) {
        return false;
    }
    let message = message.to_ascii_lowercase();
    CONTEXT_LENGTH_MESSAGES.iter().any(|parts| parts.iter().all(|part| message.contains(part)))
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
    api_format: ApiFormat,
    kind: Option<&'a str>,
    message: &'a str,
    code: Option<&'a str>,
) -> Failure<'a> {
    let status = [code, kind].into_iter().flatten().find_map(infer_status).unwrap_or(500);
    let (kind, code) = if api_format == ApiFormat::OpenAi { (kind, code) } else { (None, None) };
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
    api_format: ApiFormat,
    origin: ErrorOrigin<'_>,
    response: &[u8],
) -> Result<Option<Vec<u8>>, ()> {
    let mut error_json: Value = serde_json::from_slice(response).map_err(|_| ())?;
    let is_whole = match api_format {
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

/// Adds missing fields to an `OpenAI` error and names the provider in its message. Returns true if anything changed.
/// All other fields stay unchanged.
fn complete_openai_error(error_json: &mut Value, origin: ErrorOrigin<'_>) -> Result<bool, ()> {
    let before = error_json.clone();
    let error = error_json.get_mut("error").and_then(Value::as_object_mut).ok_or(())?;
    let Some(Value::String(message)) = error.get_mut("message") else { return Err(()) };
    let is_too_long = exceeds_context(origin.status, message);
    *message = prefix_provider_name(origin.provider, message);
    // Google reports the error type as `status`, also in its OpenAI-compatible APIs.
    let status_name = error.get("status").filter(|status| status.is_string()).cloned();
    error
        .entry("type")
        .or_insert_with(|| status_name.unwrap_or_else(|| openai_chat::error_type_for_status(origin.status).into()));
    error.entry("param").or_insert(Value::Null);
    let code = error.entry("code").or_insert(Value::Null);
    if is_too_long {
        *code = CONTEXT_LENGTH_CODE.into();
    } else if code.is_number() {
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

    const ORIGIN: ErrorOrigin<'static> =
        ErrorOrigin { provider: "p", status: 401, fallback: ErrorFallback::None, request_id: None };

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
            let fallback = crate::catalog::find_provider(provider).unwrap().row().error_fallback;
            let origin = ErrorOrigin { provider, status: 400, fallback, request_id: None };
            let details = crate::error_details::parse_error(response.as_bytes());
            let translated = translate_error(ApiFormat::OpenAi, origin, details, response.as_bytes());
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
            let failure = |api_format| stream_failure(api_format, kind, "m", code);
            assert_eq!(failure(ApiFormat::OpenAi).status, status, "{kind:?} {code:?}");
            assert_eq!((failure(ApiFormat::OpenAi).error_type, failure(ApiFormat::OpenAi).code), (kind, code));
            assert_eq!((failure(ApiFormat::Gemini).error_type, failure(ApiFormat::Gemini).code), (None, None));
        }
    }

    #[test]
    fn an_error_with_a_success_status_has_a_status_of_its_own() {
        for (body, status) in [
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, Some(529)),
            (r#"{"error":{"message":"m","code":429}}"#, Some(429)),
            (r#"{"error":{"code":"rate_limit_exceeded","message":"m"},"choices":[]}"#, Some(429)),
            (r#"{"error":"m"}"#, Some(502)),
            (r#"{"error":{"message":"m","code":null},"message":"m"}"#, Some(502)),
            (r#"{"error":null,"choices":[{"message":{"content":"\"error\""}}]}"#, None),
            (r#"{"object":"response","status":"failed","error":{"code":"x"},"output":[]}"#, None),
            (r#"{"choices":[{"message":{}}],"error":{"message":"m"}}"#, None),
            (r#"{"id":"error"}"#, None),
            (r#"{"error":{"code":200}}"#, Some(502)),
            (r#"{"error":{"status":"503"}}"#, Some(503)),
            (r#"{"error":{}"#, None),
            ("<html>\"error\"", None),
        ] {
            assert_eq!(error_status(Operation::ChatComplete, body.as_bytes()), status, "{body}");
        }
    }

    #[test]
    fn the_error_of_a_failed_job_is_no_failure_of_the_request() {
        for (operation, body, status) in [
            (Operation::RetrieveFinetune, r#"{"object":"fine_tuning.job","error":{"code":"x"}}"#, None),
            (Operation::RetrieveBatch, r#"{"id":"b","error":{"code":429}}"#, None),
            (Operation::ImageGenerate, r#"{"error":{"message":"m","code":429}}"#, Some(429)),
            (Operation::Rerank, r#"{"error":"m","results":[{}]}"#, None),
            (Operation::ChatComplete, r#"{"id":"c","object":"chat.completion","error":{"code":429}}"#, Some(429)),
        ] {
            assert_eq!(error_status(operation, body.as_bytes()), status, "{body}");
        }
    }

    #[test]
    fn a_request_that_exceeds_the_context_gets_the_code_of_chat_completions() {
        for (message, is_too_long) in [
            ("prompt is too long: 208310 tokens > 200000 maximum", true),
            ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", true),
            ("Input is too long for requested model.", true),
            ("Input Tokens Exceeded: Number of input tokens exceeds maximum length.", true),
            ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", true),
            ("too many tokens: total number of tokens in the prompt cannot exceed 4081", true),
            ("This model's maximum context length is 8192 tokens.", true),
            ("This model's maximum prompt length is 131072 but the request contains 136973 tokens.", true),
            ("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)", true),
            ("Please reduce the length of the messages or completion.", true),
            (
                "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
                true,
            ),
            ("the request exceeds the available context size. try increasing the context size", true),
            ("request (1407 tokens) exceeds the available context size (256 tokens), try increasing it", true),
            (
                "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with \
                context length of only 32768 tokens, which is not enough.",
                true,
            ),
            ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", true),
            ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000", true),
            ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", true),
            (
                "Unable to submit request because the input token count is 50000 but model only supports up to 32768.",
                true,
            ),
            ("Bad request: prompt token count (9000) cannot exceed 8192", true),
            ("Range of input length should be [1, 30720]", true),
            ("Prompt exceeds max length", true),
            ("Request body too large for gpt-4o model. Max size: 8000 tokens.", true),
            ("max_tokens must be at most 8192", false),
            ("too many tokens per minute", false),
        ] {
            let details = ErrorDetails {
                message: Some(message.into()),
                kind: Some("INVALID_ARGUMENT".into()),
                code: Some("400".into()),
                ..ErrorDetails::default()
            };
            let origin = ErrorOrigin { status: 400, ..ORIGIN };
            let translated = translate_error(ApiFormat::OpenAi, origin, details, b"");
            let error = serde_json::from_slice::<Value>(&translated).unwrap()["error"].take();
            let expected =
                if is_too_long { (CONTEXT_LENGTH_CODE, "invalid_request_error") } else { ("400", "INVALID_ARGUMENT") };
            assert_eq!((&error["code"], &error["type"]), (&json!(expected.0), &json!(expected.1)), "{message}");
        }
        assert!(!exceeds_context(429, "prompt is too long"));
        // In the client's own API format, the provider's code is replaced.
        let native = json!({"error": {"message": "Prompt exceeds max length", "code": "1261"}}).to_string();
        let completed =
            complete_native_error(ApiFormat::OpenAi, ErrorOrigin { status: 400, ..ORIGIN }, native.as_bytes())
                .unwrap()
                .unwrap();
        let error = serde_json::from_slice::<Value>(&completed).unwrap()["error"].take();
        assert_eq!(error["code"], CONTEXT_LENGTH_CODE);
    }

    #[test]
    fn an_error_of_another_api_format_is_not_native() {
        let native_errors = [
            (ApiFormat::Anthropic, json!({"type": "error", "error": {"type": "t", "message": "m"}})),
            (ApiFormat::Gemini, json!({"error": {"code": 400, "message": "m", "status": "S"}})),
            (ApiFormat::Bedrock, json!({"message": "m"})),
        ];
        for (api_format, error_json) in &native_errors {
            for (other, _) in &native_errors {
                let completed = complete_native_error(*other, ORIGIN, error_json.to_string().as_bytes());
                // An Anthropic error also passes as one of Gemini's, because it has all of the required fields.
                let reads = other == api_format || (*api_format, *other) == (ApiFormat::Anthropic, ApiFormat::Gemini);
                assert_eq!(completed.is_ok(), reads, "{api_format:?} read as {other:?}");
            }
        }
        assert!(complete_native_error(ApiFormat::Anthropic, ORIGIN, b"<html>").is_err());
    }
}
