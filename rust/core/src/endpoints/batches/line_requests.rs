//! Translation of batch lines and their responses, without a connection, for batches that a provider runs in its own
//! API format.

use penstock_llm::{
    api_format, catalog,
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};

use crate::{error::Problem, request::translate};

/// Line of a batch, as the client wrote it.
#[derive(Debug, Clone, Copy)]
pub struct BatchLine<'l> {
    /// Slug of the provider that runs the line.
    pub provider: &'l str,
    /// Path of the endpoint, with `/v1`.
    pub path: &'l str,
    pub body: &'l [u8],
}

/// Batch line in the provider's format.
#[derive(Debug)]
pub struct TranslatedLine {
    pub body: Vec<u8>,
    /// Dropped parameters, separated by commas; may be empty.
    pub dropped_params: String,
}

/// Translates a line to the provider's format.
pub fn translate_line(line: BatchLine<'_>) -> Result<TranslatedLine, Problem> {
    let (mut translation, body) = build_translation(line)?;
    // These are sent as header fields, which a batch line does not have.
    if translation.anthropic_betas.is_some_and(|betas| !betas.is_empty()) {
        translation.dropped_params.add("anthropic_beta");
    }
    if translation.anthropic_version.is_some() {
        translation.dropped_params.add("anthropic_version");
    }
    Ok(TranslatedLine { body, dropped_params: translation.dropped_params.header_value() })
}

/// Translates the response to a line, or its error, to the client's format. Also returns its status: that of the
/// provider, or that of the error if the provider reported an error as a success.
pub fn translate_line_response(line: BatchLine<'_>, status: u16, body: &[u8]) -> Result<(u16, Vec<u8>), Problem> {
    let (translation, _) = build_translation(line)?;
    if status >= 300 {
        return Ok((status, translation.translate_error(status, body, None)));
    }
    translation
        .translate_response_or_failure(body)
        .map_err(|broken| Problem::new("$", format!("the response could not be parsed: {}", broken.0)))
}

fn build_translation(line: BatchLine<'_>) -> Result<(Translation, Vec<u8>), Problem> {
    let BatchLine { provider: slug, path, body } = line;
    let unknown = || Problem::new("provider", format!("unknown provider `{slug}`"));
    let provider = catalog::find_provider(slug).ok_or_else(unknown)?;
    let operation = Operation::from_method_and_path("POST", path.strip_prefix("/v1").unwrap_or(path));
    let peek = api_format::peek(body).map_err(|error| Problem::new("body", error.message))?;
    let model = peek.model.unwrap_or_default();
    let unsupported = || Problem::new("url", format!("{} is not supported by {slug}", operation.id()));
    let provider_format = provider.provider_format(operation, &model).ok_or_else(unsupported)?;
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body,
        model: &model,
        hints: RequestHints::default(),
        strict: true,
        now_ms: translate::unix_time_ms(),
        nonce: fastrand::u32(..),
    };
    Translation::translate_request(&input, provider_format)
        .map_err(|refusal| Problem::new(format!("body.{}", refusal.path), refusal.message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CHAT_PATH: &str = "/v1/chat/completions";

    fn chat_line(body: &'static str) -> BatchLine<'static> {
        BatchLine { provider: "anthropic", path: CHAT_PATH, body: body.as_bytes() }
    }

    #[test]
    fn translates_a_chat_line_and_its_response_for_anthropic() {
        let line = chat_line(r#"{"model":"claude-x","seed":1,"messages":[{"role":"user","content":"hi"}]}"#);
        let TranslatedLine { body, dropped_params: dropped } = translate_line(line).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&body["model"], &body["messages"][0]["role"]), (&json!("claude-x"), &json!("user")));
        assert!(body["max_tokens"].is_u64() && body.get("stream").is_none_or(|stream| stream == false));
        assert_eq!(dropped, "seed");
        let response =
            br#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","stop_reason":"end_turn",
            "content":[{"type":"text","text":"hello"}],"usage":{"input_tokens":3,"output_tokens":1}}"#;
        let chat: Value = serde_json::from_slice(&translate_line_response(line, 200, response).unwrap().1).unwrap();
        assert_eq!(chat["choices"][0]["message"]["content"], "hello");
        assert_eq!(chat["usage"]["total_tokens"], 4);
        let error = br#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#;
        // Some providers report the error of a line with a success status.
        for reported in [529, 200] {
            let (status, error) = translate_line_response(line, reported, error).unwrap();
            let error: Value = serde_json::from_slice(&error).unwrap();
            assert!(status == 529 && error["error"]["message"].as_str().unwrap().contains("busy"), "{error}");
        }
    }

    #[test]
    fn reports_the_path_of_untranslatable_fields() {
        let error_path = |line| translate_line(line).unwrap_err().path;
        let chat = chat_line(r#"{"model":"m","messages":[]}"#);
        assert_eq!(error_path(BatchLine { provider: "nobody", ..chat }), "provider");
        assert_eq!(error_path(BatchLine { path: "/v1/embeddings", ..chat }), "url");
        assert_eq!(error_path(chat_line("[")), "body");
        assert_eq!(translate_line_response(chat, 200, b"no").unwrap_err().path, "$");
        let beta = chat_line(r#"{"model":"m","anthropic_beta":["one"],"messages":[{"role":"user","content":"hi"}]}"#);
        assert_eq!(translate_line(beta).unwrap().dropped_params, "anthropic_beta");
    }
}
