//! Parser of batch result lines in a provider's own format. Each line yields a `custom_id`, a status and a response
//! body.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::BatchLineFormat;
use crate::errors::MalformedResponse;

/// Result of one batch line.
#[derive(Debug)]
pub struct LineResult<'r> {
    pub custom_id: Cow<'r, str>,
    pub status: u16,
    pub body: Cow<'r, str>,
    /// True if `body` is already in `OpenAI`'s format.
    pub is_openai_format: bool,
}

/// Result line with the fields of all providers; each provider sets only some of them.
#[derive(Debug, Deserialize)]
struct RawResultLine<'r> {
    #[serde(borrow, rename = "recordId")]
    record_id: Option<Cow<'r, str>>,
    #[serde(borrow)]
    custom_id: Option<Cow<'r, str>>,
    #[serde(borrow, rename = "modelOutput")]
    model_output: Option<&'r RawValue>,
    #[serde(borrow)]
    response: Option<&'r RawValue>,
    request: Option<EchoedRequest>,
    status: Option<String>,
    error: Option<Value>,
    #[serde(borrow)]
    text: Option<&'r RawValue>,
    #[serde(borrow)]
    embeddings: Option<&'r RawValue>,
}

/// Request that Vertex AI repeats next to its response.
#[derive(Debug, Deserialize)]
struct EchoedRequest {
    labels: Option<RequestLabels>,
}

#[derive(Debug, Deserialize)]
struct RequestLabels {
    custom_id: Option<String>,
}

/// HTTP statuses that are accepted as error codes of a line.
const ERROR_STATUSES: std::ops::RangeInclusive<u64> = 400..=599;
const DEFAULT_ERROR_STATUS: u16 = 500;

impl BatchLineFormat {
    /// Parses one result line. Fails if the line is not valid JSON of this format.
    pub fn parse_result_line(self, line: &[u8]) -> Result<LineResult<'_>, MalformedResponse> {
        let line: RawResultLine<'_> = serde_json::from_slice(line)?;
        match self {
            Self::Bedrock => Ok(parse_bedrock_line(line)),
            Self::Vertex => Ok(parse_vertex_line(line)),
            Self::Fireworks => Ok(parse_fireworks_line(line)),
            Self::Cohere => parse_cohere_line(line),
        }
    }
}

fn parse_bedrock_line(line: RawResultLine<'_>) -> LineResult<'_> {
    let custom_id = line.record_id.unwrap_or_default();
    if let Some(output) = line.model_output {
        return LineResult { custom_id, status: 200, body: output.get().into(), is_openai_format: false };
    }
    let error = line.error.unwrap_or_default();
    let message = error["errorMessage"].as_str().unwrap_or("the model returned no response");
    let body = serde_json::json!({"message": message}).to_string().into();
    LineResult { custom_id, status: error_status(&error["errorCode"]), body, is_openai_format: false }
}

fn parse_vertex_line(line: RawResultLine<'_>) -> LineResult<'_> {
    let label = || line.request.and_then(|request| request.labels?.custom_id).map(Cow::Owned);
    let custom_id = line.custom_id.or_else(label).unwrap_or_default();
    let status = line.status.unwrap_or_default();
    if let Some(response) = line.response.filter(|_| status.is_empty()) {
        return LineResult { custom_id, status: 200, body: response.get().into(), is_openai_format: false };
    }
    // The status is plain text, often followed by an error object in JSON.
    let error_body = status.find('{').and_then(|at| serde_json::from_str::<Value>(&status[at..]).ok());
    let parsed_error = error_body.filter(|error| error["error"].is_object()).unwrap_or_else(|| {
        let message = if status.is_empty() { "the model returned no response" } else { &status };
        serde_json::json!({"error": {"code": DEFAULT_ERROR_STATUS, "message": message}})
    });
    LineResult {
        custom_id,
        status: error_status(&parsed_error["error"]["code"]),
        body: parsed_error.to_string().into(),
        is_openai_format: false,
    }
}

fn parse_fireworks_line(line: RawResultLine<'_>) -> LineResult<'_> {
    let custom_id = line.custom_id.unwrap_or_default();
    let error = line.error.filter(|error| !error.is_null());
    if let (Some(response), None) = (line.response, &error) {
        return LineResult { custom_id, status: 200, body: response.get().into(), is_openai_format: true };
    }
    let error = error.unwrap_or_else(|| serde_json::json!({"message": "the model returned no response"}));
    let status = error_status(&error["code"]);
    LineResult {
        custom_id,
        status,
        body: serde_json::json!({"error": error}).to_string().into(),
        is_openai_format: true,
    }
}

/// Parses a record of an embed job and rebuilds an embed response for its text. If the record has several embedding
/// types, `float` is preferred.
fn parse_cohere_line(line: RawResultLine<'_>) -> Result<LineResult<'_>, MalformedResponse> {
    let custom_id = line.custom_id.unwrap_or_default();
    let Some(embeddings) = line.embeddings else {
        let message = line.error.as_ref().and_then(Value::as_str).unwrap_or("the model returned no response");
        let body = serde_json::json!({"message": message}).to_string().into();
        return Ok(LineResult { custom_id, status: DEFAULT_ERROR_STATUS, body, is_openai_format: false });
    };
    let vector = if embeddings.get().starts_with('[') {
        embeddings
    } else {
        let mut types: BTreeMap<Cow<'_, str>, Option<&RawValue>> = serde_json::from_str(embeddings.get())?;
        let float = types.remove("float").flatten();
        let vector = float.or_else(|| types.into_values().flatten().next());
        vector.ok_or_else(|| MalformedResponse("the line has no embeddings".into()))?
    };
    let (text, vector) = (line.text.map_or("\"\"", RawValue::get), vector.get());
    let body =
        format!("{{\"id\":\"\",\"texts\":[{text}],\"embeddings\":{{\"float\":[{vector}]}},\"meta\":{{}}}}").into();
    Ok(LineResult { custom_id, status: 200, body, is_openai_format: false })
}

fn error_status(code: &Value) -> u16 {
    code.as_u64()
        .filter(|code| ERROR_STATUSES.contains(code))
        .and_then(|code| code.try_into().ok())
        .unwrap_or(DEFAULT_ERROR_STATUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line_format: BatchLineFormat, line: &str) -> (String, u16, String) {
        let result_line = line_format.parse_result_line(line.as_bytes()).unwrap();
        (result_line.custom_id.into_owned(), result_line.status, result_line.body.into_owned())
    }

    fn expected_result(id: &str, status: u16, body: &str) -> (String, u16, String) {
        (id.to_owned(), status, body.to_owned())
    }

    #[test]
    fn result_line_has_custom_id_status_and_body() {
        let good = r#"{"recordId":"a\"1","modelInput":{"x":1},"modelOutput":{"y": 2}}"#;
        assert_eq!(parse_line(BatchLineFormat::Bedrock, good), expected_result("a\"1", 200, r#"{"y": 2}"#));
        let bad = r#"{"recordId":"b","error":{"errorCode":429,"errorMessage":"too busy"}}"#;
        assert_eq!(parse_line(BatchLineFormat::Bedrock, bad), expected_result("b", 429, r#"{"message":"too busy"}"#));
        let gemini = r#"{"status":"","request":{"contents":[],"labels":{"custom_id":"a","x":"y"}},"response":{"y":2}}"#;
        assert_eq!(parse_line(BatchLineFormat::Vertex, gemini), expected_result("a", 200, r#"{"y":2}"#));
        let claude = r#"{"custom_id":"A","request":{},"response":{"y":2}}"#;
        assert_eq!(parse_line(BatchLineFormat::Vertex, claude), expected_result("A", 200, r#"{"y":2}"#));
        let busy =
            r#"{"custom_id":"A","status":"Busy: {\"error\": {\"code\": 429, \"message\": \"m\"}}","response":{}}"#;
        assert_eq!(
            parse_line(BatchLineFormat::Vertex, busy),
            expected_result("A", 429, r#"{"error":{"code":429,"message":"m"}}"#)
        );
        let plain_text = r#"{"custom_id":"A","status":"no","response":{}}"#;
        assert_eq!(parse_line(BatchLineFormat::Vertex, plain_text).1, 500);
        let chat = r#"{"custom_id":"a","response":{"id":"c"}}"#;
        assert_eq!(parse_line(BatchLineFormat::Fireworks, chat), expected_result("a", 200, r#"{"id":"c"}"#));
        let bad = r#"{"custom_id":"a","error":{"code":12,"message":"m"}}"#;
        assert_eq!(
            parse_line(BatchLineFormat::Fireworks, bad),
            expected_result("a", 500, r#"{"error":{"code":12,"message":"m"}}"#)
        );
        assert!(BatchLineFormat::Bedrock.parse_result_line(b"<html>").is_err());
    }

    #[test]
    fn prefers_float_embeddings() {
        let expected = |vector: &str| {
            expected_result(
                "a",
                200,
                &format!(r#"{{"id":"","texts":["x"],"embeddings":{{"float":[{vector}]}},"meta":{{}}}}"#),
            )
        };
        for (embeddings, vector) in [
            (r#"{"int8":[1],"float":[0.5,2]}"#, "[0.5,2]"),
            (r#"{"float":null,"int8":null,"uint8":[7]}"#, "[7]"),
            ("[0.25]", "[0.25]"),
        ] {
            let line = format!(r#"{{"text":"x","custom_id":"a","embeddings":{embeddings}}}"#);
            assert_eq!(parse_line(BatchLineFormat::Cohere, &line), expected(vector));
        }
        let bad = r#"{"text":"x","custom_id":"a","embeddings":null,"error":"too long"}"#;
        assert_eq!(parse_line(BatchLineFormat::Cohere, bad), expected_result("a", 500, r#"{"message":"too long"}"#));
        assert!(BatchLineFormat::Cohere.parse_result_line(br#"{"custom_id":"a","embeddings":{}}"#).is_err());
    }
}
