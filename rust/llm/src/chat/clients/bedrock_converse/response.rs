//! Builder of complete (not streamed) Converse responses.

use std::ops::Range;

use serde_json::{Value, json};

use super::encode_usage;
use crate::{
    chat::{
        clients::bedrock_converse::signature_blocks,
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    citations::{self, Citation, CitationSet},
    usage::Usage,
};

/// Key that holds the citations of a text block until the response is complete.
const CITATIONS_KEY: &str = "citations";

/// Parses the citations of a text block; `None` if the field is something else or has no equivalent in Converse.
pub(crate) fn parse_citations(scope: FieldScope, name: &str, json: &str) -> Option<Vec<Value>> {
    let list =
        (scope == FieldScope::Block && name == CITATIONS_KEY).then(|| serde_json::from_str(json).ok()).flatten()?;
    citations::to_converse(&list)
}

#[derive(Debug)]
pub struct ResponseBuilder {
    context: ResponseContext,
    content_blocks: Vec<Value>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    /// Block index of each tool call, and its arguments so far.
    tool_calls: Vec<(usize, String)>,
    /// Cited ranges of the concatenated text, with their sources.
    cited_ranges: Vec<(Range<usize>, Value)>,
    usage: Usage,
    finish_reason: String,
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            context,
            content_blocks: Vec::new(),
            should_start_block: false,
            tool_calls: Vec::new(),
            cited_ranges: Vec::new(),
            usage: Usage::default(),
            finish_reason: String::new(),
        }
    }

    fn append_text(&mut self, text: &str) {
        let is_apart = std::mem::take(&mut self.should_start_block);
        let last = self.content_blocks.last_mut().filter(|_| !is_apart);
        if let Some(Value::String(so_far)) = last.and_then(|last| last.get_mut("text")) {
            return so_far.push_str(text);
        }
        self.content_blocks.push(json!({"text": text}));
    }

    /// Attaches citations to the current text block; starts a text block if there is none.
    fn attach_citations(&mut self, citations: Vec<Value>) {
        if self.should_start_block || self.content_blocks.last().is_none_or(|last| last.get("text").is_none()) {
            self.append_text("");
        }
        if let Some(last) = self.content_blocks.last_mut() {
            match &mut last[CITATIONS_KEY] {
                Value::Array(existing) => existing.extend(citations),
                none => *none = citations.into(),
            }
        }
    }

    fn add_citations(&mut self, cites: &CitationSet<'_>) {
        let before = self.cited_ranges.len();
        let to_cited_range = |citation: &Citation| {
            Some((citation.claim_range.clone(), citation.to_converse(&self.context.document_names)?))
        };
        self.cited_ranges.extend(cites.citations.iter().filter_map(to_cited_range));
        self.context.record_dropped_citations(cites, self.cited_ranges.len() - before == cites.citations.len());
    }

    /// Returns the reasoning block that has no signature yet; starts a new one if there is none.
    fn unsigned_reasoning(&mut self) -> &mut Value {
        let is_open = |last: &Value| {
            let thought = &last["reasoningContent"]["reasoningText"];
            thought.is_object() && thought.get("signature").is_none()
        };
        if !self.content_blocks.last().is_some_and(is_open) {
            self.content_blocks.push(json!({"reasoningContent": {"reasoningText": {"text": ""}}}));
        }
        let last = self.content_blocks.len() - 1;
        &mut self.content_blocks[last]["reasoningContent"]["reasoningText"]
    }
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::TextBlockStart => self.should_start_block = true,
            ResponseEvent::Text("")
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("")
            | ResponseEvent::Start { .. }
            | ResponseEvent::Failed { .. }
            | ResponseEvent::End => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.append_text(text),
            ResponseEvent::Thinking(text) => {
                if let Value::String(so_far) = &mut self.unsigned_reasoning()["text"] {
                    so_far.push_str(text);
                }
            }
            ResponseEvent::ThinkingSignature(signature) => self.unsigned_reasoning()["signature"] = signature.into(),
            ResponseEvent::RedactedThinking(data) => {
                self.content_blocks.push(json!({"reasoningContent": {"redactedContent": data}}));
            }
            ResponseEvent::TextSignature(signature) => {
                self.content_blocks.push(signature_blocks::encode_text_signature(signature));
            }
            ResponseEvent::Image { mime, data } => {
                let format = mime.trim_start_matches("image/");
                self.content_blocks.push(json!({"image": {"format": format, "source": {"bytes": data}}}));
            }
            ResponseEvent::ExtraField { scope, name, json } => match parse_citations(scope, name, json) {
                Some(citations) => self.attach_citations(citations),
                None => self.context.record_dropped(name),
            },
            ResponseEvent::Citations(cites) => self.add_citations(&cites),
            ResponseEvent::NativeBlock { kind: name, .. } => self.context.record_dropped(name),
            ResponseEvent::ToolCall { id, name, signature } => {
                self.content_blocks.extend(signature.map(signature_blocks::encode_call_signature));
                self.tool_calls.push((self.content_blocks.len(), String::new()));
                self.content_blocks.push(json!({"toolUse": {"toolUseId": id, "name": name, "input": {}}}));
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some((_, arguments)) = self.tool_calls.get_mut(call) {
                    arguments.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = usage,
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
        }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        for (block, arguments) in std::mem::take(&mut self.tool_calls) {
            let input = self.context.parse_arguments(&arguments);
            self.content_blocks[block]["toolUse"]["input"] = input.into();
        }
        if !self.cited_ranges.is_empty() {
            self.content_blocks = citations::split_cited_blocks(
                std::mem::take(&mut self.content_blocks),
                std::mem::take(&mut self.cited_ranges),
            );
        }
        for block in &mut self.content_blocks {
            if let Some(citations) = block.as_object_mut().and_then(|block| block.shift_remove(CITATIONS_KEY)) {
                *block = json!({"citationsContent": {"content": [block.take()], "citations": citations}});
            }
        }
        let message = json!({"role": "assistant", "content": std::mem::take(&mut self.content_blocks)});
        let response = json!({"output": {"message": message}, "stopReason": finish_reason::to_bedrock(&self.finish_reason),
            "usage": encode_usage(&self.usage)});
        response.to_string().into_bytes()
    }
}
