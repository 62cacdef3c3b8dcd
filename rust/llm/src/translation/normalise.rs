//! Normalisation of responses that are already in the client's API format. Converts provider-specific errors, finish
//! reasons and model lists, and adds the provider's name for clients that are not strict.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::{memchr, memchr2, memmem::Finder, memrchr2};

use crate::{api_format::format::ApiFormat, catalog::Provider, json::scan, operation::Operation, usage::value_start};
use crate::{
    chat::{
        finish_reason::{self, to_openai},
        providers::openai_chat,
    },
    model_list,
    translation::errors::{self, ErrorOrigin},
};

static FINISH_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static PROVIDER_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"provider\""));

/// Longest line of a stream that is buffered. A longer line is forwarded unchanged as it arrives.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Normalisation of the responses to one request.
#[derive(Debug, Clone, Copy)]
pub struct Normaliser {
    provider: &'static str,
    api_format: ApiFormat,
    /// True if finish reasons are mapped to `OpenAI`'s.
    should_map_finish_reasons: bool,
    /// True if the provider's name is added to responses.
    should_add_provider: bool,
    /// True if the response is a model list, which is converted to the same format for all providers.
    is_model_list: bool,
    operation: Operation,
}

impl Normaliser {
    /// Creates the normaliser for an operation. `dialect` is the API format of the client.
    pub fn new(provider: &dyn Provider, operation: Operation, api_format: ApiFormat, strict: bool) -> Self {
        let completes = matches!(operation, Operation::ChatComplete | Operation::Complete);
        let says_whose =
            completes || matches!(operation, Operation::Embed | Operation::ImageGenerate | Operation::Rerank);
        Self {
            provider: provider.slug(),
            api_format,
            should_map_finish_reasons: strict && completes && provider.has_custom_finish_reasons(),
            should_add_provider: !strict && says_whose,
            is_model_list: operation == Operation::Models
                && matches!(api_format, ApiFormat::OpenAi | ApiFormat::Anthropic),
            operation,
        }
    }

    pub fn provider(self) -> &'static str {
        self.provider
    }

    /// Returns true if successful responses are changed. Otherwise they are forwarded without being parsed.
    pub fn changes_responses(self) -> bool {
        self.should_map_finish_reasons || self.should_add_provider || self.is_model_list
    }

    /// Returns true if an HTML page can be a valid response, because files may have any content.
    pub fn may_return_html(self) -> bool {
        self.operation == Operation::RetrieveFileContent
    }

    /// Returns true if the response is a model list that is normalised.
    pub fn is_for_model_list(self) -> bool {
        self.is_model_list
    }

    /// Returns the error in the client's API format; `None` if it already has that format. `request_id` is the ID that
    /// the provider assigned.
    pub fn normalise_error(self, status: u16, response: &[u8], request_id: Option<&str>) -> Option<Vec<u8>> {
        let origin = ErrorOrigin { provider: self.provider, status, request_id };
        errors::complete_native_error(self.api_format, origin, response).unwrap_or_else(|()| {
            Some(errors::translate_error(self.api_format, origin, openai_chat::parse_error(response), response))
        })
    }

    /// Normalises a complete response body.
    pub fn normalise_body(self, response: Bytes) -> Bytes {
        self.normalise_json(&response).map_or(response, Bytes::from)
    }

    /// Returns a function that normalises an event stream. It takes the next chunk, or `None` at the end, and returns
    /// the bytes to send.
    pub fn stream_normaliser(self) -> impl FnMut(Option<Bytes>) -> Bytes + Send {
        let mut pending = Vec::new();
        // True within a long line whose beginning was already forwarded.
        let mut passes = false;
        move |chunk| {
            let Some(mut chunk) = chunk else { return self.normalise_lines(&std::mem::take(&mut pending)) };
            let mut out = Vec::new();
            if passes {
                let Some(end) = memchr2(b'\n', b'\r', &chunk) else { return chunk };
                passes = false;
                out.extend_from_slice(&chunk.split_to(end + 1));
            }
            let end = memrchr2(b'\n', b'\r', &chunk).map_or(0, |end| end + 1);
            pending.extend_from_slice(&chunk[..end]);
            if end > 0 {
                out.extend_from_slice(&self.normalise_lines(&std::mem::take(&mut pending)));
            }
            pending.extend_from_slice(&chunk[end..]);
            if pending.len() > MAX_LINE_BYTES {
                passes = true;
                out.append(&mut pending);
            }
            out.into()
        }
    }

    /// Normalises the JSON data of complete lines and copies all other lines.
    fn normalise_lines(self, lines: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(lines.len() + 32);
        for line in lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let data = line.strip_prefix(b"data:").filter(|data| data.trim_ascii_start().starts_with(b"{"));
            match data.and_then(|data| self.normalise_json(data)) {
                Some(mended) => {
                    out.extend_from_slice(b"data:");
                    out.extend_from_slice(&mended);
                }
                None => out.extend_from_slice(line),
            }
        }
        out.into()
    }

    fn normalise_json(self, json: &[u8]) -> Option<Vec<u8>> {
        if self.is_model_list {
            return model_list::normalise_list(json, self.provider, self.api_format);
        }
        if self.should_add_provider { self.add_provider_field(json) } else { map_finish_reasons(json) }
    }

    /// Adds the `provider` field to a JSON object; `None` if it already has one.
    fn add_provider_field(self, json: &[u8]) -> Option<Vec<u8>> {
        let mut has_provider = false;
        if PROVIDER_KEY.find(json).is_some() {
            let object = json.trim_ascii();
            scan::for_each_field(object, |key, _| {
                has_provider |= key == b"provider";
                Ok(())
            })
            .ok()?;
        }
        let end = json.trim_ascii_end().strip_suffix(b"}").filter(|_| !has_provider)?.len();
        let comma = if json[..end].trim_ascii().ends_with(b"{") { "" } else { "," };
        let provider_field = format!("{comma}\"provider\":\"{}\"", self.provider);
        Some([&json[..end], provider_field.as_bytes(), &json[end..]].concat())
    }
}

/// Maps finish reasons in JSON to `OpenAI`'s; `None` if there are no others. Quotes within strings are escaped, so the
/// search never matches inside a text.
fn map_finish_reasons(json: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut copied = 0;
    for at in FINISH_REASON_KEY.find_iter(json) {
        let Some((open, b'"')) = value_start(json, at + FINISH_REASON_KEY.needle().len()) else { continue };
        let Some(length) = memchr(b'"', &json[open + 1..]) else { continue };
        let range = open + 1..open + 1 + length;
        let Ok(reason) = std::str::from_utf8(&json[range.clone()]) else { continue };
        if finish_reason::is_openai_reason(reason) {
            continue;
        }
        out.extend_from_slice(&json[copied..range.start]);
        out.extend_from_slice(to_openai(reason).as_bytes());
        copied = range.end;
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&json[copied..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn normaliser(slug: &str, strict: bool) -> Normaliser {
        Normaliser::new(catalog::find_provider(slug).unwrap(), Operation::ChatComplete, ApiFormat::OpenAi, strict)
    }

    fn as_str(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn does_not_parse_responses_that_need_no_change() {
        for slug in ["openai", "mock", "groq", "cerebras", "azure-openai"] {
            assert!(
                !normaliser(slug, true).changes_responses() && normaliser(slug, false).changes_responses(),
                "{slug}"
            );
        }
        let deepseek = catalog::find_provider("deepseek").unwrap();
        for slug in ["deepseek", "ollama", "deepinfra", "fireworks-ai", "azure-ai", "workers-ai", "github"] {
            assert!(normaliser(slug, true).changes_responses(), "{slug}");
        }
        assert!(!Normaliser::new(deepseek, Operation::Embed, ApiFormat::OpenAi, true).changes_responses());
        assert!(!Normaliser::new(deepseek, Operation::Models, ApiFormat::Gemini, false).changes_responses());
    }

    #[test]
    fn maps_finish_reasons_to_openai_in_strict_mode() {
        let input = br#"{"a":"\"finish_reason\":\"eos\"","choices":[{"finish_reason": "eos"},{"finish_reason":null}]}"#;
        let output = normaliser("together-ai", true).normalise_body(Bytes::from_static(input));
        assert_eq!(
            as_str(&output),
            r#"{"a":"\"finish_reason\":\"eos\"","choices":[{"finish_reason": "stop"},{"finish_reason":null}]}"#
        );
        let good = Bytes::from_static(br#"{"choices":[{"finish_reason":"tool_calls"}]}"#);
        assert_eq!(normaliser("together-ai", true).normalise_body(good.clone()).as_ptr(), good.as_ptr());
    }

    #[test]
    fn adds_the_provider_once_and_keeps_its_finish_reason_if_not_strict() {
        let normalised =
            |input: &'static str| normaliser("together-ai", false).normalise_body(Bytes::from_static(input.as_bytes()));
        assert_eq!(
            normalised("{\"finish_reason\":\"eos\"}\n"),
            "{\"finish_reason\":\"eos\",\"provider\":\"together-ai\"}\n"
        );
        assert_eq!(normalised("{ }"), "{ \"provider\":\"together-ai\"}");
        for same in [r#"{"provider":"Novita"}"#, "[]", "", "{\"a\":\"provider\""] {
            assert_eq!(normalised(same), same);
        }
        assert_eq!(normalised(r#"{"a":{"provider":1}}"#), r#"{"a":{"provider":1},"provider":"together-ai"}"#);
    }

    #[test]
    fn normalises_model_lists_in_strict_and_non_strict_mode() {
        let openai = catalog::find_provider("openai").unwrap();
        for strict in [true, false] {
            let mending = Normaliser::new(openai, Operation::Models, ApiFormat::OpenAi, strict);
            let input =
                Bytes::from_static(br#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"o","x":1}]}"#);
            assert_eq!(
                as_str(&mending.normalise_body(input)),
                r#"{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"o"}],"provider":"openai"}"#
            );
            let other = Bytes::from_static(b"{\"voices\":[]}");
            assert_eq!(mending.normalise_body(other.clone()), other);
        }
    }

    #[test]
    fn normalises_a_stream_whatever_its_chunk_boundaries() {
        let input = b": x\n\ndata: {\"a\":1}\r\n\r\nid: 1\ndata:{\"choices\":[{\"finish_reason\":\"eos\"}]}\n\ndata: [DONE]\n\n";
        let strict = String::from_utf8_lossy(input).replace("\"eos\"", "\"stop\"");
        let loose = String::from_utf8_lossy(input)
            .replace("{\"a\":1}", "{\"a\":1,\"provider\":\"together-ai\"}")
            .replace("}]}", "}],\"provider\":\"together-ai\"}");
        for (is_strict, expected) in [(true, &strict), (false, &loose)] {
            for length in 1..input.len() {
                let mut stream = normaliser("together-ai", is_strict).stream_normaliser();
                let mut output = Vec::new();
                for chunk in input.chunks(length) {
                    output.extend_from_slice(&stream(Some(Bytes::copy_from_slice(chunk))));
                }
                output.extend_from_slice(&stream(None));
                assert_eq!(as_str(&output), expected, "in pieces of {length}");
            }
        }
    }

    #[test]
    fn forwards_a_long_line_unchanged_and_normalises_those_around_it() {
        let end = "data: {\"choices\":[{\"finish_reason\":\"eos\"}]}\n\n";
        // Where it is split, the rest looks like a line of its own.
        let long = format!("data: {{\"a\":\"{}", "data:{\"finish_reason\":\"eos\"}".repeat(80_000));
        let input = format!("{end}{long}\"}}\n\n{end}");
        let expected = format!("{0}{long}\"}}\n\n{0}", end.replace("eos", "stop"));
        for length in [999, 28 * 1024, input.len()] {
            let mut stream = normaliser("together-ai", true).stream_normaliser();
            let mut output = Vec::new();
            let mut buffered = 0;
            for chunk in input.as_bytes().chunks(length) {
                buffered += chunk.len();
                let given = stream(Some(Bytes::copy_from_slice(chunk)));
                buffered -= given.len().min(buffered);
                output.extend_from_slice(&given);
                assert!(buffered <= MAX_LINE_BYTES + 64, "{buffered}");
            }
            output.extend_from_slice(&stream(None));
            assert!(length == input.len() || as_str(&output) == expected, "in pieces of {length}");
        }
    }

    #[test]
    fn converts_errors_of_every_shape_and_keeps_their_content() {
        let converted = |body: &str| normaliser("mistral-ai", true).normalise_error(422, body.as_bytes(), None);
        let shaped = |message: &str, kind: &str, param: &str, code: &str| {
            let error = format!(
                "{{\"error\":{{\"message\":\"mistral-ai error: {message}\",\"type\":\"{kind}\",\"param\":{param},\"code\":{code}}},"
            );
            Some(format!("{error}\"provider\":\"mistral-ai\"}}"))
        };
        let text = |body: &str| converted(body).map(|body| String::from_utf8(body).unwrap());
        let usual = "invalid_request_error";
        assert_eq!(
            text(r#"{"object":"error","message":"m","type":"t","param":"n","code":3051}"#),
            shaped("m", "t", "\"n\"", "\"3051\"")
        );
        assert_eq!(text(r#"{"detail":[{"loc":["body","n"],"msg":"m"}]}"#), shaped("body.n: m", usual, "null", "null"));
        assert_eq!(text("busy\n"), shaped("busy", usual, "null", "null"));
        assert_eq!(text(""), shaped("status 422", usual, "null", "null"));
        let openais = r#"{"error":{"message":"m","type":"t","param":null,"code":null}}"#;
        assert_eq!(text(openais), shaped("m", "t", "null", "null"));
        assert_eq!(text(&text(openais).unwrap()), None, "what has been told so is not told again");
    }

    #[test]
    fn an_anthropic_error_contains_the_provider_request_id() {
        let provider = catalog::find_provider("azure-ai").unwrap();
        let mending = Normaliser::new(provider, Operation::Messages, ApiFormat::Anthropic, true);
        let converted =
            mending.normalise_error(529, br#"{"error":{"code":"busy","message":"m"}}"#, Some("req-1")).unwrap();
        assert_eq!(
            as_str(&converted),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"azure-ai error: m"},"request_id":"req-1"}"#
        );
    }
}
