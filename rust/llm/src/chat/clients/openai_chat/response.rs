//! Builder of complete (not streamed) chat completions.

use serde_json::{Value, json};

use super::encode_usage;
use crate::{
    chat::{
        client_tools::ClientTools,
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        response_context::{ResponseContext, merge_field, move_fields},
        response_writer::ResponseWriter,
    },
    citations::{ANNOTATIONS_FIELD, Citation, CitationSet},
    fields::Fields,
    usage::Usage,
};

#[derive(Debug)]
pub struct ResponseBuilder {
    context: ResponseContext,
    id: String,
    model: String,
    text: Option<String>,
    refusal: Option<String>,
    content_blocks: Vec<Value>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    tool_calls: Vec<CollectedToolCall>,
    thought_signature: Option<String>,
    extra_fields: ExtraFields,
    usage: Option<Usage>,
    finish_reason: String,
}

/// The provider's own fields, which are added to the response, grouped by the JSON object that they belong to.
#[derive(Debug, Default)]
struct ExtraFields {
    response: Fields,
    choice: Fields,
    message: Fields,
}

/// Tool call, collected from its events.
#[derive(Debug)]
struct CollectedToolCall {
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            model: context.model.clone(),
            id: context.generate_id(),
            context,
            text: None,
            refusal: None,
            content_blocks: Vec::new(),
            should_start_block: false,
            tool_calls: Vec::new(),
            thought_signature: None,
            extra_fields: ExtraFields::default(),
            usage: None,
            finish_reason: String::new(),
        }
    }

    /// Sets the ID and the model that the provider reports; ignores empty values.
    fn set_identity(&mut self, id: &str, model: &str) {
        if !id.is_empty() {
            id.clone_into(&mut self.id);
        }
        if !model.is_empty() {
            model.clone_into(&mut self.model);
        }
    }

    /// Appends text to the last block if that has this kind; otherwise starts a new block.
    fn append_block_text(&mut self, kind: &'static str, key: &'static str, text: &str) {
        if !self.context.should_show_thinking {
            return;
        }
        let is_apart = kind == "text" && std::mem::take(&mut self.should_start_block);
        let is_open = |last: &&mut Value| !is_apart && last["type"] == kind && last.get("signature").is_none();
        if let Some(last) = self.content_blocks.last_mut().filter(is_open)
            && let Some(Value::String(so_far)) = last.get_mut(key)
        {
            so_far.push_str(text);
            return;
        }
        self.content_blocks.push(json!({"type": kind, key: text}));
    }

    fn set_thinking_signature(&mut self, signature: &str) {
        if let Some(last) = self.content_blocks.last_mut().filter(|last| last["type"] == "thinking") {
            last["signature"] = signature.into();
        } else if self.context.should_show_thinking {
            self.content_blocks.push(json!({"type": "thinking", "thinking": "", "signature": signature}));
        }
    }

    /// Adds a block that is not text. Records it as dropped if the client does not receive such blocks.
    fn add_block_or_drop(&mut self, is_shown: bool, kind: &str, block: Value) {
        if is_shown {
            self.content_blocks.push(block);
        } else {
            self.context.report.add(kind);
        }
    }

    fn add_extra_field(&mut self, scope: FieldScope, name: &str, json: &str) {
        let parsed = match scope {
            FieldScope::Choice => self.context.parse_choice_extra(name, json),
            _ => self.context.parse_extra(name, json),
        };
        let Some(value) = parsed else { return };
        if scope == FieldScope::Block && self.should_start_block {
            // Some providers send citations before the text that they belong to.
            self.append_block_text("text", "text", "");
        }
        let last = self.content_blocks.last_mut().filter(|last| last["type"] == "text");
        let fields = match (scope, last.and_then(Value::as_object_mut)) {
            (FieldScope::Block, Some(block)) => block,
            (FieldScope::Choice, _) => &mut self.extra_fields.choice,
            (FieldScope::Response, _) => &mut self.extra_fields.response,
            (FieldScope::Block | FieldScope::Message, _) => &mut self.extra_fields.message,
        };
        merge_field(fields, name, value);
    }

    fn add_citations(&mut self, cites: &CitationSet<'_>) {
        let annotations: Vec<_> = cites.citations.iter().filter_map(Citation::to_chat_annotation).collect();
        let is_translated = annotations.len() == cites.citations.len();
        if !annotations.is_empty() {
            merge_field(&mut self.extra_fields.message, ANNOTATIONS_FIELD, annotations.into());
        }
        if self.context.is_strict {
            self.context.record_dropped_citations(cites, is_translated);
        } else if let Some((scope, name, json)) = cites.non_annotation_field() {
            self.add_extra_field(scope, name, json);
        }
    }

    fn build_message(&mut self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text.take(), "refusal": self.refusal.take()});
        if !self.content_blocks.is_empty() {
            message["content_blocks"] = std::mem::take(&mut self.content_blocks).into();
        }
        if !self.tool_calls.is_empty() {
            let tools = &self.context.client_tools;
            let calls = std::mem::take(&mut self.tool_calls).into_iter();
            message["tool_calls"] = calls.map(|call| call.into_json(tools)).collect();
        }
        if let Some(signature) = self.thought_signature.take() {
            message["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        move_fields(&mut message, &mut self.extra_fields.message);
        message
    }
}

impl CollectedToolCall {
    fn into_json(self, tools: &ClientTools) -> Value {
        let Self { id, name, arguments, signature } = self;
        let mut call = if tools.is_custom(&name) {
            json!({"id": id, "type": "custom", "custom": {"name": name, "input": arguments}})
        } else {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        };
        if let Some(signature) = signature {
            call["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        call
    }
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Start { id, model } => self.set_identity(id, model),
            ResponseEvent::Text(text) => {
                self.text.get_or_insert_default().push_str(text);
                self.append_block_text("text", "text", text);
            }
            ResponseEvent::TextBlockStart => self.should_start_block = !self.context.is_strict,
            ResponseEvent::Refusal(text) => self.refusal.get_or_insert_default().push_str(text),
            ResponseEvent::Thinking(text) if !self.context.should_show_thinking && !text.is_empty() => {
                self.context.record_dropped("thinking");
            }
            ResponseEvent::Thinking(text) => self.append_block_text("thinking", "thinking", text),
            ResponseEvent::ThinkingSignature(signature) => self.set_thinking_signature(signature),
            ResponseEvent::RedactedThinking(data) => {
                let block = json!({"type": "redacted_thinking", "data": data});
                self.add_block_or_drop(self.context.should_show_thinking, "thinking", block);
            }
            ResponseEvent::Image { mime, data } => {
                let url = format!("data:{mime};base64,{data}");
                self.add_block_or_drop(
                    self.context.should_show_images,
                    "image",
                    json!({"type": "image_url", "image_url": {"url": url}}),
                );
            }
            ResponseEvent::TextSignature(signature) => {
                if self.thought_signature.replace(signature.to_owned()).is_some() {
                    self.context.report.add("thought_signature");
                }
            }
            ResponseEvent::ExtraField { scope, name, json } => self.add_extra_field(scope, name, json),
            ResponseEvent::Citations(cites) => self.add_citations(&cites),
            ResponseEvent::NativeBlock { kind, json } => {
                if let Some(block) = self.context.parse_extra(kind, json) {
                    self.content_blocks.push(block);
                }
            }
            ResponseEvent::ToolCall { id, name, signature } => self.tool_calls.push(CollectedToolCall {
                id: id.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
                signature: signature.map(ToOwned::to_owned),
            }),
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some(tool_call) = self.tool_calls.get_mut(call) {
                    tool_call.arguments.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
            ResponseEvent::Failed { .. } | ResponseEvent::End => (),
        }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        let message = self.build_message();
        let reason =
            if self.context.is_strict { finish_reason::to_openai(&self.finish_reason) } else { &self.finish_reason };
        let mut choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason});
        move_fields(&mut choice, &mut self.extra_fields.choice);
        let mut response = json!({"id": self.id, "object": "chat.completion", "created": self.context.created,
            "model": self.model, "provider": self.context.provider, "choices": [choice]});
        if let Some(usage) = &self.usage {
            response["usage"] = encode_usage(usage);
        }
        move_fields(&mut response, &mut self.extra_fields.response);
        response.to_string().into_bytes()
    }
}
