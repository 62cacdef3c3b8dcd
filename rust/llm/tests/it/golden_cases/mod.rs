//! Golden files of translation: reading, comparison and assembly of streams.
// Each test binary uses only some of these helpers, and Clippy does not recognise this module as test code.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod files;
pub mod required;

use std::{collections::BTreeMap, env, fs};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use penstock_llm::{
    api_format::ApiFormat,
    catalog::{self, Options, Provider},
    model_list::ModelListShape,
    operation::Operation,
    stream::{aws_event_stream::FrameDecoder, include_usage},
    translation::{DroppedParams, Normaliser, RequestError, Translation},
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

use files::{CaseFiles, golden_root};

/// Current time in all cases. It is constant, so that the golden files do not change.
const NOW_MS: u64 = 1_700_000_000_000;

#[derive(Clone)]
pub struct Case {
    pub provider: String,
    pub operation: String,
    pub label: String,
    files: CaseFiles,
}

pub enum UpstreamBody {
    Complete(Bytes),
    Stream(Bytes),
    Error(Bytes),
}

/// Compares `actual` with a file in the provider's folder; returns a description of the difference, if any.
pub fn compare_provider_file(slug: &str, file: &str, actual: &str) -> Option<String> {
    let path = golden_root().join(slug).join(file);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, actual).unwrap();
        return None;
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    (stored != actual).then(|| format!("{}:\nexpected: {stored}\nactual: {actual}", path.display()))
}

/// Returns the cases that are translated.
pub fn translated_cases() -> Vec<Case> {
    all_cases().into_iter().filter(Case::is_translated).collect()
}

/// Returns the cases that pass through, except for normalisation.
pub fn pass_through_cases() -> Vec<Case> {
    all_cases().into_iter().filter(|case| !case.is_translated()).collect()
}

pub fn all_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for provider in files::list_providers() {
        for operation in files::list_folders(&golden_root().join(&provider)) {
            for (label, files) in files::list_cases(&provider, &operation) {
                cases.push(Case { provider: provider.clone(), operation: operation.clone(), label, files });
            }
        }
    }
    cases
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.provider, self.operation, self.label)
    }

    pub fn has_file(&self, file: &str) -> bool {
        self.files.path(file).exists()
    }

    fn read_file(&self, file: &str) -> Vec<u8> {
        fs::read(self.files.path(file)).unwrap_or_else(|error| panic!("{}/{file}: {error}", self.name()))
    }

    /// Returns the client request; empty if it is not JSON.
    pub fn client_request(&self) -> Vec<u8> {
        if self.has_file("request.json") { self.read_file("request.json") } else { Vec::new() }
    }

    fn is_translated(&self) -> bool {
        self.provider().provider_format(self.operation(), &self.model()).is_some()
    }

    pub fn provider(&self) -> &'static dyn Provider {
        catalog::find_provider(&self.provider).expect("a provider's slug")
    }

    /// Cases whose name begins with `non_strict` are not strict.
    fn is_strict(&self) -> bool {
        !self.label.starts_with("non_strict")
    }

    pub fn model(&self) -> String {
        let request: Value = serde_json::from_slice(&self.client_request()).unwrap_or_default();
        request["model"].as_str().unwrap_or_default().to_owned()
    }

    pub fn operation(&self) -> Operation {
        *Operation::ALL.iter().find(|operation| operation.id() == self.operation).expect("an operation's id")
    }

    /// Returns the client response if it is complete, not streamed.
    pub fn client_response(&self) -> Option<Vec<u8>> {
        self.has_file("client_response.json").then(|| self.read_file("client_response.json"))
    }

    /// Returns the request of a pass-through case after parameter mapping, and the dropped parameters.
    pub fn map_parameters(&self) -> (Vec<u8>, DroppedParams) {
        let (operation, body) = (self.operation(), self.client_request());
        let is_worded =
            matches!(operation, Operation::ChatComplete | Operation::Complete | Operation::Embed | Operation::Messages);
        let worded = is_worded
            .then(|| self.provider().row().param_rules_for_model(operation, &self.model()).apply(&body))
            .flatten();
        worded.unwrap_or_else(|| (body, DroppedParams::default()))
    }

    /// Returns the upstream request of a pass-through case, the normaliser of its response, and true if usage is hidden
    /// from the client.
    pub fn prepare_pass_through(&self) -> (Vec<u8>, Normaliser, bool) {
        let (provider, operation, (body, _)) = (self.provider(), self.operation(), self.map_parameters());
        let api_format = operation.api_format().unwrap_or(ApiFormat::OpenAi);
        let normaliser = Normaliser::new(provider.row(), operation, api_format, self.is_strict()).for_request(&body);
        let streams = matches!(self.upstream_body(), UpstreamBody::Stream(_));
        let version = self.provider_options(provider).get("api_version").map(ToOwned::to_owned);
        let says = include_usage::supports_include_usage(provider, operation, version.as_deref(), &Options::default());
        match include_usage::request_usage(&body).filter(|_| streams && says) {
            Some(provider_request) => (provider_request, normaliser, true),
            None => (body, normaliser, false),
        }
    }

    /// Compares with a golden file, which must exist only if the bytes differ from the input.
    pub fn expect_if_changed(&self, file: &str, input: &[u8], actual: &[u8]) {
        if input != actual {
            if file == "client_response.sse" {
                self.expect_file(file, actual);
            } else {
                self.expect_json(file, actual);
            }
            return;
        }
        if env::var_os("UPDATE_GOLDEN").is_some() {
            let path = self.files.path(file);
            fs::remove_file(&path).ok();
            // `remove_dir` removes only an empty folder.
            fs::remove_dir(path.parent().unwrap()).ok();
        }
        assert!(!self.has_file(file), "{}/{file} is there, but nothing is changed", self.name());
    }

    /// Translates the client request of the case.
    pub fn translate_request(&self) -> Result<(Translation, Vec<u8>), RequestError> {
        let (provider, strict) = (self.provider(), self.is_strict());
        let body = self.client_request();
        let model = self.model();
        let betas = self.label.contains("betas").then_some("one-1, two-2");
        let operation = self.operation();
        let (query, options) = (self.files.query.clone(), self.provider_options(provider));
        let provider_format = provider
            .provider_format_for_target(operation, &model, &options, "")
            .expect("an operation that is translated");
        let is_anthropic = self.label.contains("anthropic_client");
        let meant = Some(provider.effective_model(&options, &model)).filter(|meant| *meant != model);
        let hints = RequestHints {
            anthropic_betas: betas,
            anthropic_version: None,
            is_anthropic_client: is_anthropic,
            model_list_shape: if is_anthropic { ModelListShape::Anthropic } else { ModelListShape::OpenAi },
            query: &query,
            options: Some(&options),
            effective_model: meant,
            tool_call_signatures: None,
        };
        Translation::translate_request(
            &TranslationInput {
                operation,
                provider: provider.row(),
                body: &body,
                model: &model,
                hints,
                strict,
                now_ms: NOW_MS,
                nonce: 7,
            },
            provider_format,
        )
    }

    /// Returns the provider options to which the manifest gives values.
    fn provider_options(&self, provider: &dyn Provider) -> Options {
        let mut options = Options::default();
        for (option, value) in
            provider.row().options.iter().filter_map(|option| Some((option, self.files.options[option.key].as_str()?)))
        {
            options.insert_if_absent(*option, value.to_owned());
        }
        options
    }

    pub fn upstream_body(&self) -> UpstreamBody {
        if self.has_file("response.sse") {
            return UpstreamBody::Stream(self.read_file("response.sse").into());
        }
        if self.has_file("response.hex") {
            let text = String::from_utf8(self.read_file("response.hex")).unwrap();
            // A comment line above each frame states its content.
            let frames = text.lines().filter(|line| !line.starts_with('#')).collect::<String>();
            let digits: Vec<_> = frames.bytes().filter(u8::is_ascii_hexdigit).collect();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            return UpstreamBody::Stream(digits.chunks(2).map(byte).collect::<Vec<_>>().into());
        }
        if self.has_file("response.txt") {
            return UpstreamBody::Complete(self.read_file("response.txt").into());
        }
        let bytes = if self.has_file("response.json") { self.read_file("response.json") } else { b"{}".to_vec() };
        if self.label.starts_with("error") {
            UpstreamBody::Error(bytes.into())
        } else {
            UpstreamBody::Complete(bytes.into())
        }
    }

    /// Returns the case of the same name with a complete response.
    pub fn complete_counterpart(&self) -> Option<Self> {
        let case =
            if self.label == "stream" { "complete".to_owned() } else { self.label.strip_suffix("_stream")?.to_owned() };
        // Some operations stream under another name.
        let operation = match self.operation.as_str() {
            "streamGenerateContent" => "generateContent",
            "converseStream" => "converse",
            "invokeModelStream" => "invokeModel",
            same => same,
        };
        let files = files::find_case(&format!("{}/{operation}/{case}", self.provider))?;
        Some(Self { label: case, files, operation: operation.to_owned(), ..self.clone() })
    }

    pub fn expect_file(&self, file: &str, content: &[u8]) {
        if env::var_os("UPDATE_GOLDEN").is_some() {
            let end: &[u8] = if content.ends_with(b"\n") { b"" } else { b"\n" };
            let path = self.files.path(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [content, end].concat()).unwrap();
            return;
        }
        let expected = String::from_utf8(self.read_file(file)).unwrap();
        let actual = String::from_utf8_lossy(content);
        assert_eq!(actual.trim_end(), expected.trim_end(), "{}/{file}", self.name());
    }

    /// Compares SSE streams as they are, and AWS event streams as one line per frame with its name and payload.
    pub fn expect_stream(&self, actual: &[u8]) {
        if self.operation().api_format() != Some(ApiFormat::Bedrock) {
            return self.expect_file("client_response.sse", actual);
        }
        let lines: Vec<_> = decode_frames(actual).iter().map(|(name, payload)| format!("{name} {payload}")).collect();
        self.expect_file("client_response.txt", lines.join("\n").as_bytes());
    }

    /// Compares with a golden file as text, so that the order of keys counts.
    pub fn expect_json(&self, file: &str, actual: &[u8]) {
        let value: Value = serde_json::from_slice(actual).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        self.expect_file(file, format!("{value:#}\n").as_bytes());
    }
}

/// Decodes the frames of an AWS event stream to names and payloads. The base64 content of a `bytes` field replaces its
/// payload.
pub fn decode_frames(stream: &[u8]) -> Vec<(String, Value)> {
    let mut frames = FrameDecoder::new(1 << 20);
    frames.push_chunk(stream);
    let read = std::iter::from_fn(|| frames.next_frame()).map(|frame| {
        let frame = frame.unwrap();
        let mut payload: Value = serde_json::from_slice(&frame.payload).unwrap();
        if let Some(bytes) = payload["bytes"].as_str() {
            payload = serde_json::from_slice(&STANDARD.decode(bytes).unwrap()).unwrap();
        }
        (frame.event_name, payload)
    });
    let read = read.collect();
    assert!(!frames.has_partial_frame(), "half a frame is left");
    read
}

/// Assembles a stream into the shape of a complete response, as a client does.
pub fn assemble_stream(operation: &str, stream: &[u8]) -> Value {
    match operation {
        "converseStream" => return assemble_converse_response(&decode_frames(stream)),
        "invokeModelStream" => {
            return assemble_anthropic_message(
                &decode_frames(stream).into_iter().map(|(_, event)| event).collect::<Vec<_>>(),
            );
        }
        _ => (),
    }
    let text = std::str::from_utf8(stream).unwrap();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    match operation {
        "messages" => assemble_anthropic_message(&events),
        "streamGenerateContent" => assemble_gemini_response(&events),
        // The last event contains the complete response.
        "createModelResponse" => events.last().unwrap()["response"].clone(),
        "complete" => assemble_text_completion(&events),
        _ => assemble_chat_completion(&events),
    }
}

/// Merges adjacent text blocks into one block with all their citations.
pub fn merge_text_blocks(mut response: Value) -> Value {
    let at = if response["content"].is_array() { "/content" } else { "/output/message/content" };
    let blocks = response.pointer_mut(at).unwrap();
    let mut joined: Vec<Value> = Vec::new();
    for mut block in std::mem::take(blocks.as_array_mut().unwrap()) {
        let cited = block["citationsContent"].take();
        if cited.is_object() {
            block = json!({"text": cited["content"][0]["text"], "citations": cited["citations"]});
        }
        block.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let is_text = block["text"].is_string();
        let Some(last) = joined.last_mut().filter(|last| is_text && last["text"].is_string()) else {
            joined.push(block);
            continue;
        };
        last["text"] = format!("{}{}", last["text"].as_str().unwrap(), block["text"].as_str().unwrap()).into();
        for citation in block["citations"].as_array().into_iter().flatten() {
            if last["citations"].is_null() {
                last["citations"] = json!([]);
            }
            let existing = last["citations"].as_array_mut().unwrap();
            if !existing.contains(citation) {
                existing.push(citation.clone());
            }
        }
    }
    for block in &mut joined {
        if let Some(citations) = block["citations"].as_array_mut() {
            citations.sort_by_key(ToString::to_string);
        }
        block.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    }
    *blocks = joined.into();
    response
}

fn assemble_text_completion(events: &[Value]) -> Value {
    let mut result = events.iter().filter(|event| event["choices"][0].is_object());
    let mut complete = result.next().unwrap().clone();
    for event in result {
        append_value(&mut complete["choices"][0]["text"], &event["choices"][0]["text"]);
        complete["choices"][0]["finish_reason"] = event["choices"][0]["finish_reason"].clone();
    }
    if let Some(usage) = events.last().and_then(|last| last.get("usage")) {
        complete["usage"] = usage.clone();
    }
    complete
}

fn assemble_gemini_response(events: &[Value]) -> Value {
    let mut complete = events.last().unwrap().clone();
    let mut parts: Vec<Value> = Vec::new();
    for part in events.iter().flat_map(|event| event["candidates"][0]["content"]["parts"].as_array().unwrap()) {
        let is_open = |last: &&mut Value| {
            part["text"].is_string()
                && last["text"].is_string()
                && last["thought"] == part["thought"]
                && last["thoughtSignature"].is_null()
        };
        match parts.last_mut().filter(is_open) {
            Some(last) => {
                append_value(&mut last["text"], &part["text"]);
                if part["thoughtSignature"].is_string() {
                    last["thoughtSignature"] = part["thoughtSignature"].clone();
                }
                last.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            }
            None if part["text"] == "" && part["thoughtSignature"].is_null() => (),
            None => parts.push(part.clone()),
        }
    }
    complete["candidates"][0]["content"]["parts"] = parts.into();
    complete
}

fn assemble_converse_response(frames: &[(String, Value)]) -> Value {
    let mut blocks: BTreeMap<u64, Value> = BTreeMap::new();
    let mut arguments: BTreeMap<u64, Value> = BTreeMap::new();
    let (mut stop, mut usage) = (Value::Null, Value::Null);
    for (name, payload) in frames {
        let index = payload["contentBlockIndex"].as_u64().unwrap_or_default();
        match name.as_str() {
            "contentBlockStart" => {
                blocks.insert(index, payload["start"].clone());
                arguments.insert(index, "".into());
            }
            "contentBlockDelta" => {
                let delta = &payload["delta"];
                let block = blocks.entry(index).or_insert_with(|| json!({}));
                if delta["text"].is_string() {
                    append_value(&mut block["text"], &delta["text"]);
                }
                if delta["citation"].is_object() {
                    append_value(&mut block["citations"], &json!([delta["citation"]]));
                }
                for key in ["text", "signature"] {
                    if delta["reasoningContent"][key].is_string() {
                        append_value(
                            &mut block["reasoningContent"]["reasoningText"][key],
                            &delta["reasoningContent"][key],
                        );
                    }
                }
                if delta["reasoningContent"]["redactedContent"].is_string() {
                    *block = delta.clone();
                }
                if delta["toolUse"]["input"].is_string() {
                    append_value(arguments.get_mut(&index).unwrap(), &delta["toolUse"]["input"]);
                }
            }
            "messageStop" => stop = payload["stopReason"].clone(),
            "metadata" => usage = payload["usage"].clone(),
            _ => (),
        }
    }
    for (index, json) in arguments {
        blocks.get_mut(&index).unwrap()["toolUse"]["input"] = serde_json::from_str(json.as_str().unwrap()).unwrap();
    }
    let cited = |mut block: Value| match block.as_object_mut().and_then(|block| block.shift_remove("citations")) {
        Some(citations) => json!({"citationsContent": {"content": [block], "citations": citations}}),
        None => block,
    };
    let message = json!({"role": "assistant", "content": blocks.into_values().map(cited).collect::<Value>()});
    json!({"output": {"message": message}, "stopReason": stop, "usage": usage})
}

fn assemble_chat_completion(events: &[Value]) -> Value {
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let mut calls: BTreeMap<u64, Value> = BTreeMap::new();
    let mut blocks: BTreeMap<u64, Value> = BTreeMap::new();
    let mut finish = Value::Null;
    let mut usage = Value::Null;
    let (mut top_level_fields, mut choice_fields) = (json!({}), json!({}));
    for event in events {
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
        let choice = &event["choices"][0];
        merge_fields(&mut message, &choice["delta"], &["role", "content_blocks", "tool_calls"]);
        merge_fields(&mut choice_fields, choice, &["index", "delta", "logprobs", "finish_reason"]);
        merge_fields(
            &mut top_level_fields,
            event,
            &["id", "object", "created", "model", "provider", "choices", "usage"],
        );
        choice["delta"]["content_blocks"]
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|block| append_block_delta(&mut blocks, block));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let mut call = call.clone();
            let index = call.as_object_mut().unwrap().shift_remove("index").unwrap().as_u64().unwrap();
            match calls.get_mut(&index) {
                None => drop(calls.insert(index, call)),
                Some(existing) => append_value(&mut existing["function"]["arguments"], &call["function"]["arguments"]),
            }
        }
        if choice["finish_reason"].is_string() {
            finish = choice["finish_reason"].clone();
        }
    }
    if message["content"] == "" {
        message["content"] = Value::Null;
    }
    for (at, item) in message.get_mut("annotations").and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        assert_eq!(item.as_object_mut().unwrap().shift_remove("index"), Some(at.into()));
    }
    if !blocks.is_empty() {
        message["content_blocks"] = blocks.into_values().collect();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into_values().collect();
    }
    let first = &events[0];
    let mut choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish});
    choice.as_object_mut().unwrap().extend(choice_fields.as_object().cloned().unwrap());
    let mut complete = json!({"id": first["id"], "created": first["created"], "model": first["model"],
        "provider": first["provider"], "choices": [choice], "usage": usage});
    complete.as_object_mut().unwrap().extend(top_level_fields.as_object().cloned().unwrap());
    complete
}

/// Merges the fields of a stream chunk into `to`, except the keys in `elsewhere`, which the caller merges.
fn merge_fields(to: &mut Value, content: &Value, elsewhere: &[&str]) {
    for (key, content) in content.as_object().into_iter().flatten() {
        if !elsewhere.contains(&key.as_str()) {
            append_value(&mut to[key], content);
        }
    }
}

/// Appends a delta to the content block that it names.
fn append_block_delta(blocks: &mut BTreeMap<u64, Value>, block: &Value) {
    let index = block["index"].as_u64().unwrap();
    for (key, text) in block["delta"].as_object().unwrap() {
        let kind = match key.as_str() {
            "data" => "redacted_thinking",
            "signature" => "thinking",
            "citations" => "text",
            kind => kind,
        };
        let block = blocks.entry(index).or_insert_with(|| json!({"type": kind}));
        if key == "type" {
            block[key] = text.clone();
        } else {
            append_value(&mut block[key], text);
        }
    }
}

fn append_value(to: &mut Value, more: &Value) {
    match (&mut *to, more) {
        (_, Value::String(more)) => *to = format!("{}{more}", to.as_str().unwrap_or_default()).into(),
        (Value::Array(items), Value::Array(more)) => items.extend(more.iter().cloned()),
        (_, Value::Array(_) | Value::Object(_)) => *to = more.clone(),
        _ => (),
    }
}

fn assemble_anthropic_message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut blocks: Vec<Value> = Vec::new();
    let mut arguments: BTreeMap<usize, String> = BTreeMap::new();
    for event in &events[1..] {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => blocks.push(event["content_block"].clone()),
            "content_block_delta" => {
                let delta = &event["delta"];
                for key in ["text", "thinking", "signature"] {
                    append_value(&mut blocks[index][key], &delta[key]);
                }
                if delta["citation"].is_object() {
                    append_value(&mut blocks[index]["citations"], &json!([delta["citation"]]));
                }
                blocks[index].as_object_mut().unwrap().retain(|_, value| !value.is_null());
                if let Some(json) = delta["partial_json"].as_str() {
                    arguments.entry(index).or_default().push_str(json);
                }
            }
            "message_delta" => {
                for key in ["stop_reason", "stop_sequence"] {
                    message[key] = event["delta"][key].clone();
                }
                for (key, value) in event.as_object().unwrap() {
                    if key != "type" && key != "delta" {
                        message[key] = value.clone();
                    }
                }
            }
            _ => (),
        }
    }
    for (index, json) in arguments {
        blocks[index]["input"] = serde_json::from_str(&json).unwrap();
    }
    message["content"] = blocks.into();
    message
}
