//! Checks that call another host: a webhook that decides, and one that only receives a log.

use std::time::Duration;

use penstock_net::BaseUrl;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::forwarded_headers::{find_forwarded, validate_names};
use crate::guardrails::check::{
    Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, ExternalCall, ReadReply, Stage,
    Stages, read_parameters,
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "default.webhook",
        alias: None,
        name: "Webhook",
        description: "posts request and response to a URL, whose reply decides and may replace the body",
        stages: Stages::Both,
        secrets: &["headers"],
        schema: r##"{"required":["webhookURL"],"properties":{"webhookURL":{"type":"string","pattern":"^https?://"},"headers":{"$ref":"#/$defs/headers"}},"$defs":{"headers":{"oneOf":[{"type":"object","additionalProperties":{"type":"string"}},{"type":"string","description":"a JSON object"}]}}}"##,
        shared: &["forwardHeaders", "timeout=3000"],
        compile: |parameters| Webhook::compile(parameters, true),
    },
    CheckRow {
        id: "default.log",
        alias: None,
        name: "Log",
        description: "posts request and response to a URL; always passes",
        stages: Stages::Both,
        secrets: &["headers"],
        schema: r#"{"required":["logURL"],"properties":{"logURL":{"type":"string","pattern":"^https?://"},"headers":{"oneOf":[{"type":"object","additionalProperties":{"type":"string"}},{"type":"string","description":"a JSON object"}]}}}"#,
        shared: &["timeout=3000"],
        compile: |parameters| Webhook::compile(parameters, false),
    },
];

/// Timeout of a call if the parameters contain none.
const DEFAULT_TIMEOUT_MS: u64 = 3000;

#[derive(Debug)]
struct Webhook {
    url: String,
    headers: Vec<(String, String)>,
    forward_headers: Vec<String>,
    timeout: Duration,
    decides: bool,
}

impl Webhook {
    fn compile(parameters: Value, decides: bool) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WebhookParameters {
            #[serde(alias = "webhookURL", alias = "logURL")]
            url: String,
            #[serde(default)]
            headers: Value,
            #[serde(default)]
            forward_headers: Vec<String>,
            #[serde(default)]
            timeout: Option<u64>,
        }
        let WebhookParameters { url, headers, forward_headers, timeout } = read_parameters(parameters)?;
        let name = if decides { ".webhookURL" } else { ".logURL" };
        let (address, query) = url.split_once('?').unwrap_or((&url, ""));
        BaseUrl::parse(address).map_err(|message| (name.to_owned(), message))?;
        if let Some(invalid) = query.chars().find(|letter| !letter.is_ascii_graphic() || *letter == '#') {
            return Err((name.to_owned(), format!("must not contain {invalid:?} in its query")));
        }
        let headers = read_headers(&headers).map_err(|message| (".headers".to_owned(), message))?;
        validate_names(&forward_headers).map_err(|message| (".forwardHeaders".to_owned(), message))?;
        let timeout = Duration::from_millis(timeout.unwrap_or(DEFAULT_TIMEOUT_MS));
        Ok(Box::new(Self { url, headers, forward_headers, timeout, decides }))
    }
}

/// Returns the header fields of an object, or of a string that encodes one.
fn read_headers(value: &Value) -> Result<Vec<(String, String)>, String> {
    let parsed;
    let fields: &Map<String, Value> = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(fields) => fields,
        Value::String(text) if text.trim().is_empty() => return Ok(Vec::new()),
        Value::String(text) => {
            parsed = serde_json::from_str::<Map<String, Value>>(text)
                .map_err(|_| "must be an object, or a string that encodes one".to_owned())?;
            &parsed
        }
        _ => return Err("must be an object, or a string that encodes one".to_owned()),
    };
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let mut headers = Vec::new();
    for (name, value) in fields {
        let text = value.as_str().unwrap_or_default();
        let is_text = value.is_string() && text.bytes().all(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
        let is_framing = matches!(
            name.to_ascii_lowercase().as_str(),
            "host" | "content-length" | "transfer-encoding" | "connection" | "content-type"
        );
        if !is_name(name) || !is_text || is_framing {
            return Err(format!(
                "has a header field `{}` that cannot be sent",
                name.chars().take(40).collect::<String>()
            ));
        }
        headers.push((name.to_ascii_lowercase(), text.to_owned()));
    }
    Ok(headers)
}

impl Check for Webhook {
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Err(CheckError::new("the host cannot be called here"))
    }

    fn external_call(&self, input: &CheckInput<'_>) -> Option<Result<ExternalCall, CheckError>> {
        let mut headers = self.headers.clone();
        headers.extend(find_forwarded(&self.forward_headers, input.headers, &headers));
        let (url, stage) = (self.url.clone(), input.stage);
        let read: ReadReply = if self.decides {
            Box::new(move |status, body| read_decision(status, body, stage, &url))
        } else {
            Box::new(|status, _| read_receipt(status))
        };
        Some(Ok(ExternalCall {
            url: self.url.clone(),
            headers,
            body: context(input).to_string(),
            timeout: self.timeout,
            signature: None,
            grant: None,
            read,
        }))
    }

    fn may_change(&self) -> bool {
        self.decides
    }
}

/// Returns the JSON about a request and its response that is sent to another host. It has no header fields of the
/// client.
fn context(input: &CheckInput<'_>) -> Value {
    let text_of = |texts: &[penstock_llm::texts::TextPart]| {
        let last = texts.iter().map(|part| part.group).max().unwrap_or_default();
        let is_shown = |part: &&penstock_llm::texts::TextPart| input.stage == Stage::Output || part.group == last;
        texts.iter().filter(is_shown).map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n")
    };
    let metadata: Map<String, Value> =
        input.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let is_output = input.stage == Stage::Output;
    let (request_text, response_text) = if is_output {
        (text_of(&penstock_llm::texts::request_texts(input.request)), text_of(input.texts))
    } else {
        (text_of(input.texts), String::new())
    };
    json!({
        "request": {"json": input.request, "text": request_text, "isStreamingRequest": input.is_streaming, "isTransformed": false},
        "response": {"json": input.response, "text": response_text,
            "statusCode": if is_output { Value::from(200) } else { Value::Null }, "isTransformed": false},
        "provider": input.provider, "requestType": input.operation.id(), "metadata": metadata,
        "eventType": if is_output { "afterRequestHook" } else { "beforeRequestHook" },
    })
}

fn read_decision(status: u16, body: &[u8], stage: Stage, url: &str) -> Result<CheckOutcome, CheckError> {
    if !(200..300).contains(&status) {
        return Err(CheckError::new(format!("the webhook returned status {status}")));
    }
    let reply: Value =
        serde_json::from_slice(body).map_err(|_| CheckError::new("the webhook returned no valid JSON"))?;
    let Some(verdict) = reply["verdict"].as_bool() else {
        return Err(CheckError::new("the webhook returned no `verdict` of true or false"));
    };
    let location = if stage == Stage::Input { "request" } else { "response" };
    let body = &reply["transformedData"][location]["json"];
    let change = body.is_object().then(|| Change::Body(body.clone()));
    let explanation = format!("the webhook {} the {location}", if verdict { "accepted" } else { "rejected" });
    // The query may hold a credential.
    let shown_url = url.split(['?', '#']).next().unwrap_or_default();
    let data =
        json!({"verdict": verdict, "explanation": explanation, "webhookUrl": shown_url, "responseData": reply["data"]});
    Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
}

fn read_receipt(status: u16) -> Result<CheckOutcome, CheckError> {
    if (200..300).contains(&status) {
        Ok(CheckOutcome::new(true, json!({"message": "the log was sent"})))
    } else {
        Err(CheckError::new(format!("the log host returned status {status}")))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::compile_check, *};
    use crate::parse::document_reader::Strictness;

    #[allow(clippy::needless_pass_by_value, reason = "the tests pass literals")]
    fn problem(parameters: Value) -> String {
        compile_check("default.webhook", &parameters, "$", Strictness::StrictWithLints).unwrap_err()[0].path.clone()
    }

    #[test]
    fn parameters_are_validated() {
        let url = "https://hooks.example/check";
        assert_eq!(problem(json!({"webhookURL": "ftp://x"})), "$.parameters.webhookURL");
        assert_eq!(problem(json!({"webhookURL": "https://hooks.example/a?b=\r\nc"})), "$.parameters.webhookURL");
        assert_eq!(problem(json!({"webhookURL": url, "headers": "no json"})), "$.parameters.headers");
        assert_eq!(problem(json!({"webhookURL": url, "headers": {"a": "b\r\nc: d"}})), "$.parameters.headers");
        assert_eq!(problem(json!({"webhookURL": url, "headers": {"Host": "x"}})), "$.parameters.headers");
        for name in ["authorization", "x-gateway-api-key", "metadata-flavor", "cookie"] {
            assert_eq!(problem(json!({"webhookURL": url, "forwardHeaders": [name]})), "$.parameters.forwardHeaders");
        }
        let good = json!({"webhookURL": format!("{url}?key=k"), "headers": "{\"x-key\": \"k\"}", "forwardHeaders": ["x-gateway-trace-id", "x-team"]});
        assert!(compile_check("default.webhook", &good, "$", Strictness::StrictWithLints).is_ok());
    }

    #[test]
    fn replies_decide() {
        let read = |status, body: &str| read_decision(status, body.as_bytes(), Stage::Input, "u");
        assert!(read(200, r#"{"verdict": true}"#).unwrap().verdict);
        let outcome =
            read(200, r#"{"verdict": false, "transformedData": {"request": {"json": {"model": "x"}}}}"#).unwrap();
        assert_eq!((outcome.verdict, outcome.change), (false, Some(Change::Body(json!({"model": "x"})))));
        for (status, body) in [(500, r#"{"verdict": true}"#), (200, "x"), (200, "{}"), (200, r#"{"verdict": "yes"}"#)] {
            assert!(read(status, body).is_err(), "{status} {body}");
        }
    }
}
