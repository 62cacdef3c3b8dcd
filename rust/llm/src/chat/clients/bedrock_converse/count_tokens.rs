//! Parser of Bedrock's `CountTokens` requests, which wrap a Converse request or an `InvokeModel` body.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::invoke;
use crate::{
    chat::request::ChatRequest,
    errors::RequestError,
    fields::{into_object, parse_body, take_required_string},
};

/// Returns the wrapped request, and true if it is an `InvokeModel` body in a vendor's own format.
pub fn extract_inner_request(json: &[u8]) -> Result<(Vec<u8>, bool), RequestError> {
    let mut fields = parse_body(json)?;
    let mut input = into_object(fields.shift_remove("input").unwrap_or_default(), "input")?;
    match (input.shift_remove("converse"), input.shift_remove("invokeModel")) {
        (Some(Value::Object(request)), None) => Ok((Value::Object(request).to_string().into_bytes(), false)),
        (None, Some(request)) => {
            let text =
                take_required_string(&mut into_object(request, "input.invokeModel")?, "body", "input.invokeModel")?;
            let bytes =
                STANDARD.decode(text).map_err(|_| RequestError::new("input.invokeModel.body", "must be base64"))?;
            Ok((bytes, true))
        }
        _ => Err(RequestError::new("input", "must have either `converse`, an object, or `invokeModel`")),
    }
}

pub fn parse_request(json: &[u8], model: &str) -> Result<ChatRequest, RequestError> {
    let (request, is_vendors) = extract_inner_request(json)?;
    let read = if is_vendors { invoke::parse_request } else { super::parse_request };
    let below = if is_vendors { "input.invokeModel.body" } else { "input.converse" };
    let chat_request = read(&request, model, false).map_err(|refusal| RequestError {
        path: if refusal.path == "$" { below.to_owned() } else { format!("{below}.{}", refusal.path) },
        ..refusal
    })?;
    if chat_request.messages.is_empty() {
        return Err(RequestError::new(format!("{below}.messages"), "must be an array of at least one message"));
    }
    Ok(chat_request)
}

/// Validates a token count request and returns the body of the request that is to be counted.
pub(crate) fn extract_counted_body(body: &[u8]) -> Result<Vec<u8>, RequestError> {
    parse_request(body, "")?;
    Ok(extract_inner_request(body)?.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_converse_requests_and_invoke_model_bodies() {
        let converse = json!({"input": {"converse": {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}}});
        let request = parse_request(converse.to_string().as_bytes(), "m").unwrap();
        assert_eq!((request.model.as_str(), request.messages.len()), ("m", 1));
        let body = json!({"anthropic_version": "v", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
        let invoke = json!({"input": {"invokeModel": {"body": STANDARD.encode(body.to_string())}}});
        assert_eq!(parse_request(invoke.to_string().as_bytes(), "m").unwrap().messages.len(), 1);
    }

    #[test]
    fn rejects_invalid_requests_with_their_path() {
        for (wrong, path) in [
            (json!({}), "input"),
            (json!({"input": {}}), "input"),
            (json!({"input": {"converse": {}, "invokeModel": {}}}), "input"),
            (json!({"input": {"converse": {"messages": []}}}), "input.converse.messages"),
            (json!({"input": {"converse": {"messages": [7]}}}), "input.converse.messages[0]"),
            (json!({"input": {"invokeModel": {"body": "%"}}}), "input.invokeModel.body"),
            (json!({"input": {"invokeModel": {"body": STANDARD.encode("{}")}}}), "input.invokeModel.body"),
        ] {
            assert_eq!(parse_request(wrong.to_string().as_bytes(), "m").unwrap_err().path, path, "{wrong}");
        }
    }
}
