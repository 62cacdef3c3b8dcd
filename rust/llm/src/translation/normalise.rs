//! Normalisation of responses that are already in the client's API format. Converts provider-specific errors, finish
//! reasons and model lists, and adds the provider's name for clients that are not strict.

use std::{collections::BTreeSet, ops::Range, sync::LazyLock};

use bytes::Bytes;
use memchr::{memchr2, memmem::Finder, memrchr2};
use serde_json::Value;

use crate::{
    api_format::format::ApiFormat,
    catalog::row::ProviderRow,
    chat::finish_reason::{self, to_openai},
    embeddings,
    error_details::parse_error,
    error_response::{self, ErrorFallback, ErrorOrigin, begins_with_error_field},
    json::{keys::value_start, lenient, scan},
    model_list::{self, ModelListShape},
    operation::Operation,
    usage::parse_count,
};

static FINISH_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static TOOL_CALLS_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"tool_calls\""));
static CONTENT_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"content\""));
static ERROR_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
static PROVIDER_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"provider\""));

/// Maximum length of a stream line that is buffered. A longer line is forwarded unchanged as it arrives.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Minimum length of a response whose beginning decides if it is an error. A shorter one may still get an error field.
const MIN_DECISIVE_BYTES: usize = 256;

/// Normalisation of the responses to one request.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct Normaliser {
    provider: &'static str,
    error_fallback: ErrorFallback,
    api_format: ApiFormat,
    /// True if finish reasons are mapped to `OpenAI`'s.
    should_map_finish_reasons: bool,
    /// True if the provider's name is added to responses.
    should_add_provider: bool,
    /// Format to which a model list is converted, for all providers; `None` for other responses.
    list_shape: Option<ModelListShape>,
    /// True if the client requests vectors in base64, which not every provider returns.
    encodes_vectors: bool,
    operation: Operation,
}

/// Returns true if a successful JSON response must be read, because it may be an error. Requests that are forwarded
/// unchanged, and stored data, may get a response in any format.
pub fn may_hide_errors(operation: Operation) -> bool {
    operation != Operation::Proxy && !operation.returns_stored_data()
}

/// Returns true if a response that begins like this may be an error.
pub fn may_begin_error(first_bytes: &[u8]) -> bool {
    let start = first_bytes.trim_ascii_start();
    let is_short = start.len() < MIN_DECISIVE_BYTES;
    let is_object = || start.starts_with(b"{") && (ERROR_KEY.find(start).is_some() || begins_with_error_field(start));
    let is_list = || start.starts_with(b"[") && ERROR_KEY.find(start).is_some();
    is_short && matches!(start.first(), None | Some(b'{' | b'[')) || is_object() || is_list()
}

/// Returns the status of a response that is an error although its status is a success.
pub fn hidden_error_status(operation: Operation, response: &[u8]) -> Option<u16> {
    error_response::error_status(operation, response)
}

/// Returns the message of an error in the format of any provider.
pub fn error_message(response: &[u8]) -> Option<String> {
    parse_error(response).message
}

impl Normaliser {
    /// Creates the normaliser for an operation. `api_format` is the API format of the client.
    pub fn new(provider: &ProviderRow, operation: Operation, api_format: ApiFormat, strict: bool) -> Self {
        let completes = matches!(operation, Operation::ChatComplete | Operation::Complete);
        let names_provider =
            completes || matches!(operation, Operation::Embed | Operation::ImageGenerate | Operation::Rerank);
        Self {
            provider: provider.slug,
            error_fallback: provider.error_fallback,
            api_format,
            should_map_finish_reasons: strict && completes && provider.has_custom_finish_reasons,
            should_add_provider: !strict && names_provider,
            list_shape: (operation == Operation::Models).then_some(match api_format {
                ApiFormat::Anthropic => ModelListShape::Anthropic,
                ApiFormat::Gemini => ModelListShape::Gemini,
                ApiFormat::OpenAi | ApiFormat::Bedrock => ModelListShape::OpenAi,
            }),
            encodes_vectors: false,
            operation,
        }
    }

    /// Returns the normaliser for this request body, on which the form of the response depends.
    #[must_use]
    pub fn for_request(self, body: &[u8]) -> Self {
        let encodes_vectors = self.operation == Operation::Embed && embeddings::request::wants_base64(body);
        Self { encodes_vectors, ..self }
    }

    /// Returns the normaliser for a client that expects model lists in this format.
    #[must_use]
    pub fn for_list_shape(self, shape: ModelListShape) -> Self {
        Self { list_shape: self.list_shape.map(|_| shape), ..self }
    }

    pub fn provider(self) -> &'static str {
        self.provider
    }

    /// Returns true if successful responses are changed. Otherwise they are forwarded without being parsed.
    pub fn changes_responses(self) -> bool {
        self.should_map_finish_reasons || self.should_add_provider || self.list_shape.is_some() || self.encodes_vectors
    }

    /// Returns true if an HTML page can be a valid response, because files may have any content.
    pub fn may_return_html(self) -> bool {
        self.operation == Operation::RetrieveFileContent
    }

    /// Returns true if the response is a model list that is normalised.
    pub fn is_for_model_list(self) -> bool {
        self.list_shape.is_some()
    }

    /// Returns the error in the client's API format; `None` if it already has that format. `request_id` is the ID that
    /// the provider assigned.
    pub fn normalise_error(self, status: u16, response: &[u8], request_id: Option<&str>) -> Option<Vec<u8>> {
        let origin = ErrorOrigin { provider: self.provider, status, fallback: self.error_fallback, request_id };
        error_response::complete_native_error(self.api_format, origin, response).unwrap_or_else(|()| {
            Some(error_response::translate_error(self.api_format, origin, parse_error(response), response))
        })
    }

    /// Normalises a complete response body.
    pub fn normalise_body(self, response: Bytes) -> Bytes {
        self.normalise_json(&response, &mut CallingChoices::new()).map_or(response, Bytes::from)
    }

    /// Returns a function that normalises an event stream. It takes the next chunk, or `None` at the end, and returns
    /// the bytes to send.
    pub fn stream_normaliser(self) -> impl FnMut(Option<Bytes>) -> Bytes + Send {
        let mut pending = Vec::new();
        // True in the middle of a long line whose beginning was already forwarded.
        let mut passes = false;
        let mut calls = CallingChoices::new();
        move |chunk| {
            let Some(mut chunk) = chunk else {
                return self.normalise_lines(&std::mem::take(&mut pending), &mut calls);
            };
            let mut out = Vec::new();
            if passes {
                let Some(end) = memchr2(b'\n', b'\r', &chunk) else { return chunk };
                passes = false;
                out.extend_from_slice(&chunk.split_to(end + 1));
            }
            let end = memrchr2(b'\n', b'\r', &chunk).map_or(0, |end| end + 1);
            pending.extend_from_slice(&chunk[..end]);
            if end > 0 {
                out.extend_from_slice(&self.normalise_lines(&std::mem::take(&mut pending), &mut calls));
            }
            pending.extend_from_slice(&chunk[end..]);
            if pending.len() > MAX_LINE_BYTES {
                passes = true;
                out.append(&mut pending);
            }
            out.into()
        }
    }

    /// Normalises the JSON data of complete lines and copies all other lines. `calls` are the choices
    /// that have called a tool.
    fn normalise_lines(self, lines: &[u8], calls: &mut CallingChoices) -> Bytes {
        let mut out = Vec::with_capacity(lines.len() + 32);
        for line in lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let data = line.strip_prefix(b"data:").filter(|data| data.trim_ascii_start().starts_with(b"{"));
            match data.and_then(|data| self.normalise_json(data, calls)) {
                Some(normalised) => {
                    out.extend_from_slice(b"data:");
                    out.extend_from_slice(&normalised);
                }
                None => out.extend_from_slice(line),
            }
        }
        out.into()
    }

    fn normalise_json(self, json: &[u8], calls: &mut CallingChoices) -> Option<Vec<u8>> {
        if let Some(shape) = self.list_shape {
            return model_list::normalise_list(json, self.provider, shape);
        }
        if self.encodes_vectors {
            let encoded = embeddings::request::encode_response_vectors(json);
            let with_provider =
                self.should_add_provider.then(|| self.add_provider_field(encoded.as_deref().unwrap_or(json)));
            return with_provider.flatten().or(encoded);
        }
        if self.should_add_provider {
            return self.add_provider_field(json);
        }
        let plain = flatten_content(json);
        let typed = add_call_types(plain.as_deref().unwrap_or(json)).or(plain);
        let json = typed.as_deref().unwrap_or(json);
        map_finish_reasons(json, calls).or(typed)
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

/// Converts content that is a list of parts, as Mistral's reasoning models send it, to a string. The parts with
/// thinking become `reasoning_content`. A list with other parts stays, because a string would lose them.
fn flatten_content(json: &[u8]) -> Option<Vec<u8>> {
    let is_list = |at: usize| matches!(value_start(json, at + CONTENT_KEY.needle().len()), Some((_, b'[')));
    CONTENT_KEY.find_iter(json).find(|at| is_list(*at))?;
    let mut response: Value = serde_json::from_slice(json).ok()?;
    let mut is_changed = false;
    for choice in response.get_mut("choices")?.as_array_mut()? {
        for key in ["message", "delta"] {
            let Some(message) = choice.get_mut(key).and_then(Value::as_object_mut) else { continue };
            let Some(Value::Array(parts)) = message.get("content") else { continue };
            let Some((content, thoughts)) = join_parts(parts) else { continue };
            message.insert("content".into(), content.into());
            if !thoughts.is_empty() {
                message.insert("reasoning_content".into(), thoughts.into());
            }
            is_changed = true;
        }
    }
    is_changed.then(|| response.to_string().into_bytes())
}

/// Returns the text and the thinking of content parts; `None` if one of them is something else.
fn join_parts(parts: &[Value]) -> Option<(String, String)> {
    let (mut content, mut thoughts) = (String::new(), String::new());
    for part in parts {
        match (part.get("thinking"), part.get("text")) {
            (Some(thought), _) => thoughts.push_str(&lenient::value_text(thought).ok()?),
            (None, Some(text)) => content.push_str(&lenient::value_text(text).ok()?),
            (None, None) => content.push_str(part.as_str()?),
        }
    }
    Some((content, thoughts))
}

/// Numbers of the choices that have called a tool.
type CallingChoices = BTreeSet<u64>;

/// Maximum number of choices whose tool calls are remembered, to bound memory.
const MAX_CALLING_CHOICES: usize = 128;

/// Adds the type to tool calls that lack it, at their start, and replaces a null type. Mistral omits it, and clients
/// skip calls without it.
fn add_call_types(json: &[u8]) -> Option<Vec<u8>> {
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    for at in TOOL_CALLS_KEY.find_iter(json) {
        let Some((open, b'[')) = value_start(json, at + TOOL_CALLS_KEY.needle().len()) else { continue };
        let visited = scan::for_each_element_from(json, open, |item| {
            let (mut kind, mut is_start, mut is_function) = (None, false, false);
            scan::for_each_field_from(json, item.start, |key, at| {
                match key {
                    b"type" => kind = Some(at),
                    b"id" => is_start = !matches!(&json[at], b"null" | b"\"\""),
                    b"function" => is_function = true,
                    _ => (),
                }
                Ok(())
            })?;
            if is_start && is_function {
                match kind {
                    None => edits.push((item.start + 1..item.start + 1, "\"type\":\"function\",")),
                    Some(at) if &json[at.clone()] == b"null" => edits.push((at, "\"function\"")),
                    Some(_) => (),
                }
            }
            Ok(())
        });
        visited.ok()?;
    }
    apply_edits(json, &edits)
}

/// Maps the finish reasons of all choices to `OpenAI`'s; `None` if nothing changes. A choice with tool calls ends
/// because of them, whatever the provider reports.
fn map_finish_reasons(json: &[u8], calls: &mut CallingChoices) -> Option<Vec<u8>> {
    let has_reason = |at: usize| matches!(value_start(json, at + FINISH_REASON_KEY.needle().len()), Some((_, b'"')));
    if TOOL_CALLS_KEY.find(json).is_none() && !FINISH_REASON_KEY.find_iter(json).any(has_reason) {
        return None;
    }
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    scan::for_each_field_from(json, 0, |key, at| {
        if key != b"choices" || json[at.start] != b'[' {
            return Ok(());
        }
        scan::for_each_element_from(json, at.start, |choice| {
            edits.extend(map_finish_reason(json, choice.start, calls)?);
            Ok(())
        })?;
        Ok(())
    })
    .ok()?;
    apply_edits(json, &edits)
}

/// Returns the range of a choice's finish reason, and the reason that replaces it. Records if the choice calls a tool.
fn map_finish_reason(
    json: &[u8],
    choice: usize,
    calls: &mut CallingChoices,
) -> Result<Option<(Range<usize>, &'static str)>, scan::ScanError> {
    if json[choice] != b'{' {
        return Ok(None);
    }
    let (mut index, mut is_calling, mut reason_range) = (0, false, None);
    scan::for_each_field_from(json, choice, |key, at| {
        match key {
            b"index" => index = parse_count(&json[at]).unwrap_or_default(),
            b"message" | b"delta" if json[at.start] == b'{' => {
                scan::for_each_field_from(json, at.start, |key, at| {
                    let is_list = key == b"tool_calls" && json[at.start] == b'[';
                    is_calling |= is_list && json[at.start + 1..].trim_ascii_start().starts_with(b"{");
                    Ok(())
                })?;
            }
            b"finish_reason" if json[at.start] == b'"' => reason_range = Some(at.start + 1..at.end - 1),
            _ => (),
        }
        Ok(())
    })?;
    if is_calling && calls.len() < MAX_CALLING_CHOICES {
        calls.insert(index);
    }
    let has_calls = is_calling || calls.contains(&index);
    let reason_and_range =
        reason_range.and_then(|range| Some((std::str::from_utf8(&json[range.clone()]).ok()?, range)));
    // A failed generation must not look like a complete one.
    let is_kept =
        |reason: &str| finish_reason::is_openai_reason(reason) || finish_reason::is_failure(reason, has_calls);
    Ok(reason_and_range.filter(|(reason, _)| !is_kept(reason)).map(|(reason, range)| match to_openai(reason) {
        "stop" if has_calls => (range, "tool_calls"),
        mapped => (range, mapped),
    }))
}

/// Replaces ranges of JSON, which are in order; `None` if there are none.
fn apply_edits(json: &[u8], edits: &[(Range<usize>, &str)]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len() + 32);
    let mut copied = 0;
    for (range, by) in edits {
        out.extend_from_slice(&json[copied..range.start]);
        out.extend_from_slice(by.as_bytes());
        copied = range.end;
    }
    (!edits.is_empty()).then(|| [&out, &json[copied..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn normaliser(slug: &str, strict: bool) -> Normaliser {
        Normaliser::new(catalog::find_provider(slug).unwrap().row(), Operation::ChatComplete, ApiFormat::OpenAi, strict)
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
        assert!(!Normaliser::new(deepseek.row(), Operation::Embed, ApiFormat::OpenAi, true).changes_responses());
        assert!(!Normaliser::new(deepseek.row(), Operation::ListFiles, ApiFormat::OpenAi, false).changes_responses());
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
    fn a_response_with_tool_calls_ends_because_of_them() {
        let call = r#"{"id":"c","function":{"name":"f","arguments":"{}"}}"#;
        let typed = r#"{"type":"function","id":"c","function":{"name":"f","arguments":"{}"}}"#;
        let body = |call: &str, reason: &str| {
            format!(r#"{{"choices":[{{"message":{{"tool_calls":[{call}]}},"finish_reason":"{reason}"}}]}}"#)
        };
        let mistral = normaliser("mistral-ai", true);
        for (reason, expected) in
            [("", "tool_calls"), ("eos", "tool_calls"), ("stop", "stop"), ("model_length", "length")]
        {
            assert_eq!(as_str(&mistral.normalise_body(body(call, reason).into())), body(typed, expected));
        }
        let events = |reason: &str, call: &str| {
            format!(
                "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\ndata: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n"
            )
        };
        let mut stream = mistral.stream_normaliser();
        assert_eq!(as_str(&stream(Some(events("eos", call).into()))), events("tool_calls", typed));
        let null_type = call.replace(r#""id""#, r#""type":null,"id""#);
        assert_eq!(
            as_str(&mistral.normalise_body(body(&null_type, "stop").into())),
            body(&null_type.replace("null", r#""function""#), "stop")
        );
        // Each choice ends for its own reason.
        let choice = |index: u8, calls: &str, reason: &str| {
            format!(r#"{{"index":{index},"message":{{"tool_calls":[{calls}]}},"finish_reason":"{reason}"}}"#)
        };
        let both = |first: &str, second: &str| {
            format!(r#"{{"choices":[{},{}]}}"#, choice(0, typed, first), choice(1, "", second))
        };
        assert_eq!(as_str(&mistral.normalise_body(both("eos", "eos").into())), both("tool_calls", "stop"));
        // Later parts of the arguments carry neither id nor type.
        let part = r#"{"index":0,"function":{"arguments":"{}"}}"#;
        assert_eq!(as_str(&stream(Some(events("stop", part).into()))), events("stop", part));
    }

    #[test]
    fn a_list_of_parts_becomes_text_and_reasoning() {
        let input = br#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]},{"type":"text","text":"x"}]}}]}"#;
        let output = normaliser("mistral-ai", true).normalise_body(Bytes::from_static(input));
        assert_eq!(as_str(&output), r#"{"choices":[{"delta":{"content":"x","reasoning_content":"t"}}]}"#);
        let plain = br#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":"t"},"x"]}}]}"#;
        assert_eq!(normaliser("mistral-ai", true).normalise_body(Bytes::from_static(plain)), output);
        let other =
            Bytes::from_static(br#"{"choices":[{"delta":{"content":[{"type":"reference","reference_ids":[1]}]}}]}"#);
        assert_eq!(normaliser("mistral-ai", true).normalise_body(other.clone()), other);
    }

    #[test]
    fn encodes_vectors_if_the_client_asked_for_base64() {
        let ollama = catalog::find_provider("ollama").unwrap();
        let plain = Normaliser::new(ollama.row(), Operation::Embed, ApiFormat::OpenAi, true);
        let request = plain.for_request(br#"{"input":"x","encoding_format":"base64"}"#);
        let response =
            Bytes::from_static(br#"{"data":[{"embedding":[0.5,-0.25],"index":0}],"usage":{"total_tokens":1}}"#);
        assert_eq!(
            as_str(&request.normalise_body(response.clone())),
            r#"{"data":[{"embedding":"AAAAPwAAgL4=","index":0}],"usage":{"total_tokens":1}}"#
        );
        assert!(!plain.for_request(br#"{"input":"x"}"#).changes_responses());
        let encoded = Bytes::from_static(br#"{"data":[{"embedding":"AAAAPw==","index":0}]}"#);
        assert_eq!(request.normalise_body(encoded.clone()), encoded);
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
            let normaliser = Normaliser::new(openai.row(), Operation::Models, ApiFormat::OpenAi, strict);
            let input =
                Bytes::from_static(br#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"o","x":1}]}"#);
            assert_eq!(
                as_str(&normaliser.normalise_body(input)),
                r#"{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"o","type":"model"}],"provider":"openai"}"#
            );
            let other = Bytes::from_static(b"{\"voices\":[]}");
            assert_eq!(normaliser.normalise_body(other.clone()), other);
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
                assert_eq!(as_str(&output), expected, "in chunks of {length}");
            }
        }
    }

    #[test]
    fn forwards_a_long_line_unchanged_and_normalises_those_around_it() {
        let end = "data: {\"choices\":[{\"finish_reason\":\"eos\"}]}\n\n";
        // After a split at this position, the remainder looks like a line of its own.
        let long = format!("data: {{\"a\":\"{}", "data:{\"finish_reason\":\"eos\"}".repeat(80_000));
        let input = format!("{end}{long}\"}}\n\n{end}");
        let expected = format!("{0}{long}\"}}\n\n{0}", end.replace("eos", "stop"));
        for length in [999, 28 * 1024, input.len()] {
            let mut stream = normaliser("together-ai", true).stream_normaliser();
            let mut output = Vec::new();
            let mut buffered = 0;
            for chunk in input.as_bytes().chunks(length) {
                buffered += chunk.len();
                let emitted = stream(Some(Bytes::copy_from_slice(chunk)));
                buffered -= emitted.len().min(buffered);
                output.extend_from_slice(&emitted);
                assert!(buffered <= MAX_LINE_BYTES + 64, "{buffered}");
            }
            output.extend_from_slice(&stream(None));
            assert!(length == input.len() || as_str(&output) == expected, "in chunks of {length}");
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
        assert_eq!(text(&text(openais).unwrap()), None, "a normalised body is not normalised again");
    }

    #[test]
    fn an_anthropic_error_contains_the_provider_request_id() {
        let provider = catalog::find_provider("azure-ai").unwrap();
        let normaliser = Normaliser::new(provider.row(), Operation::Messages, ApiFormat::Anthropic, true);
        let converted =
            normaliser.normalise_error(529, br#"{"error":{"code":"busy","message":"m"}}"#, Some("req-1")).unwrap();
        assert_eq!(
            as_str(&converted),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"azure-ai error: m"},"request_id":"req-1"}"#
        );
    }
}
