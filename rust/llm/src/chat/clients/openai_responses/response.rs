//! Builder of a complete response of the `OpenAI` Responses API. A streamed response ends with the same object.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{EventSink, ResponseEvent},
        finish_reason,
        response_context::{ResponseContext, merge_field},
        response_writer::ResponseWriter,
    },
    citations::CitationSet,
    error_response,
    fields::Fields,
    usage::Usage,
};

#[derive(Debug)]
pub struct ResponseBuilder {
    pub(crate) context: ResponseContext,
    pub(crate) id: String,
    model: String,
    pub(crate) items: Vec<OutputItem>,
    usage: Usage,
    finish_reason: String,
    error: Option<Value>,
    /// The provider's own fields, which are added to the response.
    extra_fields: Fields,
}

/// Prefix of `encrypted_content` for redacted thinking, so that it is restored as such when the client sends it back.
pub(crate) const REDACTED_PREFIX: &str = "redacted:";
/// Prefix of `encrypted_content` for the signature of the preceding text.
pub(crate) const TEXT_SIGNATURE_PREFIX: &str = "seal:";

/// Item of the response's `output` array.
#[derive(Debug)]
pub(crate) struct OutputItem {
    pub kind: ItemKind,
    pub id: String,
    /// Message text, reasoning text, tool call arguments, or base64 data of an image.
    pub text: String,
    call_id: String,
    name: String,
    /// Namespace of the tool that is called.
    namespace: Option<String>,
    /// Signature of a tool call, or encrypted content of a reasoning item.
    signature: Option<String>,
    /// Number of characters in `text`; counted for message text only.
    char_count: usize,
    /// Citations of the text, as annotations of the Responses API.
    pub annotations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Text,
    Refusal,
    Reasoning,
    FunctionCall,
    /// Call of a custom tool, whose input is free text. The field `text` holds that input.
    CustomCall,
    Image,
}

impl ItemKind {
    pub fn is_tool_call(self) -> bool {
        matches!(self, Self::FunctionCall | Self::CustomCall)
    }

    fn id_prefix(self) -> &'static str {
        match self {
            Self::Text | Self::Refusal => "msg",
            Self::Reasoning => "rs",
            Self::FunctionCall => "fc",
            Self::CustomCall => "ctc",
            Self::Image => "ig",
        }
    }
}

impl OutputItem {
    pub fn to_json(&self, status: &str) -> Value {
        let Self { id, text, .. } = self;
        match self.kind {
            ItemKind::Text | ItemKind::Refusal => {
                let content = if status == "in_progress" { json!([]) } else { json!([self.content_part()]) };
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            ItemKind::Reasoning => {
                let summary = if text.is_empty() { json!([]) } else { json!([self.content_part()]) };
                let mut item = json!({"type": "reasoning", "id": id, "summary": summary});
                if let Some(sealed) = &self.signature {
                    item["encrypted_content"] = sealed.clone().into();
                }
                item
            }
            // The `name` of an image item holds the image format.
            ItemKind::Image => json!({"type": "image_generation_call", "id": id, "status": status,
                "result": if status == "in_progress" { Value::Null } else { text.as_str().into() },
                "output_format": self.name}),
            ItemKind::FunctionCall => {
                let mut item = json!({"type": "function_call", "id": id, "call_id": self.call_id, "name": self.name,
                    "arguments": text, "status": status});
                self.add_call_fields(&mut item);
                item
            }
            ItemKind::CustomCall => {
                let mut item = json!({"type": "custom_tool_call", "id": id, "call_id": self.call_id, "name": self.name,
                    "input": text, "status": status});
                self.add_call_fields(&mut item);
                item
            }
        }
    }

    /// Adds the fields that only some tool calls have.
    fn add_call_fields(&self, item: &mut Value) {
        if let Some(namespace) = &self.namespace {
            item["namespace"] = namespace.as_str().into();
        }
        if let Some(signature) = &self.signature {
            item["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
    }

    /// Returns the content part that holds the item's text.
    pub fn content_part(&self) -> Value {
        match self.kind {
            ItemKind::Refusal => json!({"type": "refusal", "refusal": self.text}),
            ItemKind::Reasoning => json!({"type": "summary_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": self.annotations, "logprobs": []}),
        }
    }
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            id: format!("resp_{}", context.id_suffix),
            model: context.model.clone(),
            context,
            items: Vec::new(),
            usage: Usage::default(),
            finish_reason: String::new(),
            error: None,
            extra_fields: Fields::new(),
        }
    }

    /// Sets the ID and the model that the provider reports; ignores empty values.
    fn set_identity(&mut self, id: &str, model: &str) {
        if !id.is_empty() {
            self.id = format!("resp_{id}");
        }
        if !model.is_empty() {
            model.clone_into(&mut self.model);
        }
    }

    fn push_item(&mut self, kind: ItemKind) -> &mut OutputItem {
        let id = format!("{}_{}_{}", kind.id_prefix(), self.id.trim_start_matches("resp_"), self.items.len());
        self.items.push(OutputItem {
            kind,
            id,
            text: String::new(),
            char_count: 0,
            call_id: String::new(),
            name: String::new(),
            namespace: None,
            signature: None,
            annotations: Vec::new(),
        });
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    /// Returns the item that more content of this kind is appended to. Adds an item if the last one has another kind or
    /// is signed.
    fn open_item(&mut self, kind: ItemKind) -> &mut OutputItem {
        let is_open = self.items.last().is_some_and(|last| last.kind == kind && last.signature.is_none());
        if !is_open || kind.is_tool_call() {
            return self.push_item(kind);
        }
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    fn add_annotations(&mut self, cites: &CitationSet<'_>) {
        if !cites.citations.is_empty() && !self.items.iter().any(|item| item.kind == ItemKind::Text) {
            self.push_item(ItemKind::Text);
        }
        for citation in cites.citations {
            let mut before = 0;
            let mut texts = self.items.iter_mut().filter(|item| item.kind == ItemKind::Text).peekable();
            while let Some(item) = texts.next() {
                // A citation that ends after all texts belongs to the last one.
                if citation.marker_range.end <= before + item.char_count || texts.peek().is_none() {
                    item.annotations.extend(citation.to_response_annotation(before));
                    break;
                }
                before += item.char_count;
            }
        }
        if self.context.is_strict {
            self.context.record_dropped_citations(cites, has_annotation_for_all(cites));
        } else if let Some((_, name, json)) = cites.non_annotation_field()
            && let Some(value) = self.context.parse_extra(name, json)
        {
            merge_field(&mut self.extra_fields, name, value);
        }
    }

    /// Returns the index in `items` of the tool call with this number.
    pub(crate) fn tool_call_index(&self, number: usize) -> Option<usize> {
        let mut calls = self.items.iter().enumerate().filter(|(_, item)| item.kind.is_tool_call());
        calls.nth(number).map(|(at, _)| at)
    }

    pub(crate) fn status(&self) -> &'static str {
        match finish_reason::to_openai(&self.finish_reason) {
            _ if self.error.is_some() => "failed",
            "length" | "content_filter" => "incomplete",
            _ => "completed",
        }
    }

    /// Returns the response object with this status. While it is `in_progress`, output and usage are empty.
    pub(crate) fn response_json(&self, status: &str) -> Value {
        let is_over = status != "in_progress";
        let reason = if finish_reason::to_openai(&self.finish_reason) == "length" {
            "max_output_tokens"
        } else {
            "content_filter"
        };
        let items = self.items.iter().filter(|_| is_over).map(|item| item.to_json("completed"));
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.context.created, "status": status,
            "error": self.error, "incomplete_details": null, "model": self.model, "provider": self.context.provider,
            "output": items.collect::<Vec<_>>(), "instructions": null, "max_output_tokens": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null, "reasoning": {"effort": null, "summary": null},
            "store": false, "temperature": null, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
            "tools": [], "top_p": null, "truncation": "disabled", "usage": null, "user": null,
        });
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": reason});
        }
        for (key, value) in self.context.echoed_fields.iter().filter(|(_, value)| !value.is_null()) {
            response[key] = value.clone();
        }
        if is_over {
            response["usage"] = usage_json(&self.usage);
            for (name, value) in &self.extra_fields {
                response[name] = value.clone();
            }
        }
        response
    }
}

/// Returns true if the Responses API has an annotation type for each of the citations.
pub(crate) fn has_annotation_for_all(cites: &CitationSet<'_>) -> bool {
    cites.citations.iter().all(|citation| citation.to_response_annotation(0).is_some())
}

fn usage_json(token_usage: &Usage) -> Value {
    let written = token_usage.cache_write_5m.saturating_add(token_usage.cache_write_1h);
    let mut usage = json!({
        "input_tokens": token_usage.total_input(), "input_tokens_details": {"cached_tokens": token_usage.total_cache_read()},
        "output_tokens": token_usage.total_output(), "output_tokens_details": {"reasoning_tokens": token_usage.reasoning},
        "total_tokens": token_usage.total(),
    });
    if written > 0 {
        // Uses Anthropic's field names, as chat completions do too.
        usage["cache_creation_input_tokens"] = written.into();
        usage["cache_creation"] = json!({"ephemeral_5m_input_tokens": token_usage.cache_write_5m, "ephemeral_1h_input_tokens": token_usage.cache_write_1h});
    }
    usage
}

/// Returns the `error` object of a failed response.
fn stream_error(kind: Option<&str>, message: &str, code: Option<&str>) -> Value {
    let code = match error_response::stream_failure(ApiFormat::OpenAi, kind, message, code).status {
        429 => "rate_limit_exceeded",
        // Keeps codes in OpenAI's snake case; AWS exception names are replaced.
        _ => code.filter(|code| code.contains('_')).unwrap_or("server_error"),
    };
    json!({"code": code, "message": message})
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Start { id, model } => self.set_identity(id, model),
            ResponseEvent::Text("")
            | ResponseEvent::TextBlockStart
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("")
            | ResponseEvent::End => (),
            ResponseEvent::Text(text) => {
                let item = self.open_item(ItemKind::Text);
                item.char_count += text.chars().count();
                item.text.push_str(text);
            }
            ResponseEvent::Refusal(text) => self.open_item(ItemKind::Refusal).text.push_str(text),
            ResponseEvent::Thinking(text) => self.open_item(ItemKind::Reasoning).text.push_str(text),
            ResponseEvent::ThinkingSignature(signature) => {
                self.open_item(ItemKind::Reasoning).signature = Some(signature.to_owned());
            }
            ResponseEvent::RedactedThinking(data) => {
                self.push_item(ItemKind::Reasoning).signature = Some(format!("{REDACTED_PREFIX}{data}"));
            }
            ResponseEvent::TextSignature(signature) => {
                self.push_item(ItemKind::Reasoning).signature = Some(format!("{TEXT_SIGNATURE_PREFIX}{signature}"));
            }
            ResponseEvent::Image { mime, data } => {
                let item = self.push_item(ItemKind::Image);
                data.clone_into(&mut item.text);
                mime.trim_start_matches("image/").clone_into(&mut item.name);
            }
            ResponseEvent::Citations(cites) => self.add_annotations(&cites),
            ResponseEvent::ExtraField { name, json, .. } => {
                if let Some(value) = self.context.parse_extra(name, json) {
                    merge_field(&mut self.extra_fields, name, value);
                }
            }
            ResponseEvent::NativeBlock { kind, json } => {
                if let Some(block) = self.context.parse_extra(kind, json) {
                    merge_field(&mut self.extra_fields, "content_blocks", vec![block].into());
                }
            }
            ResponseEvent::ToolCall { id, name, signature } => {
                let tools = Arc::clone(&self.context.client_tools);
                let kind = if tools.is_custom(name) { ItemKind::CustomCall } else { ItemKind::FunctionCall };
                let (namespace, name) = tools.namespace_and_name(name);
                let item = self.open_item(kind);
                (item.call_id, item.name) = (id.to_owned(), name.to_owned());
                item.namespace = namespace.map(ToOwned::to_owned);
                item.signature = signature.map(ToOwned::to_owned);
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some(at) = self.tool_call_index(call) {
                    self.items[at].text.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = usage,
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
            ResponseEvent::Failed { kind, message, code } => {
                self.error = Some(stream_error(kind, message, code));
            }
        }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        self.response_json(self.status()).to_string().into_bytes()
    }
}
