//! Writer of streamed Converse responses, as AWS frames.

use serde_json::{Value, json};

use super::encode_usage;
use crate::{
    api_format::{bedrock, format::ApiFormat},
    chat::{
        clients::bedrock_converse::{response::parse_citations, signature_blocks},
        event::{EventSink, ResponseEvent},
        finish_reason,
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    citations::{Citation, CitationSet},
    error_response,
    stream::aws_event_stream::encode_frame,
    usage::Usage,
};

#[derive(Debug)]
pub struct StreamWriter {
    context: ResponseContext,
    output: Vec<u8>,
    has_started: bool,
    block_count: usize,
    open_block: Option<ConverseBlockKind>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    /// Citations already sent for the open text block. They follow the text of the block, so more text starts a new
    /// block.
    block_citations: Vec<Value>,
    /// Block index of each tool call.
    tool_call_blocks: Vec<usize>,
    usage: Usage,
    finish_reason: String,
    is_finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConverseBlockKind {
    Text,
    Thinking,
    ToolCall,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            context,
            output: Vec::new(),
            has_started: false,
            block_count: 0,
            open_block: None,
            should_start_block: false,
            block_citations: Vec::new(),
            tool_call_blocks: Vec::new(),
            usage: Usage::default(),
            finish_reason: String::new(),
            is_finished: false,
        }
    }

    fn write_frame(&mut self, name: &str, payload: &Value) {
        self.output.extend_from_slice(&encode_frame("event", name, payload.to_string().as_bytes()));
    }

    fn write_message_start(&mut self) {
        if !std::mem::replace(&mut self.has_started, true) {
            self.write_frame("messageStart", &json!({"role": "assistant"}));
        }
    }

    /// Returns the index of the open block if it has this kind; otherwise opens a new block.
    fn ensure_block_open(&mut self, kind: ConverseBlockKind) -> usize {
        let is_apart = kind == ConverseBlockKind::Text && std::mem::take(&mut self.should_start_block);
        if self.open_block != Some(kind) || kind == ConverseBlockKind::ToolCall || is_apart {
            self.write_message_start();
            self.close_block();
            self.open_block = Some(kind);
            self.block_count += 1;
        }
        self.block_count - 1
    }

    fn close_block(&mut self) {
        self.block_citations.clear();
        if self.open_block.take().is_some() {
            let index = self.block_count - 1;
            self.write_frame("contentBlockStop", &json!({"contentBlockIndex": index}));
        }
    }

    fn write_delta(&mut self, index: usize, delta: &Value) {
        self.write_frame("contentBlockDelta", &json!({"contentBlockIndex": index, "delta": delta}));
    }

    fn write_block_delta(&mut self, kind: ConverseBlockKind, delta: &Value) {
        let index = self.ensure_block_open(kind);
        self.write_delta(index, delta);
    }

    /// Writes citations for the open text block. Text that is already sent stays in its block, which gets all of the
    /// citations.
    fn write_citations(&mut self, cites: &CitationSet<'_>) {
        let is_open = self.open_block == Some(ConverseBlockKind::Text) && !self.should_start_block;
        let encode = |citation: &Citation| citation.to_converse(&self.context.document_names).filter(|_| is_open);
        let sources: Vec<_> = cites.citations.iter().filter_map(encode).collect();
        self.context.record_dropped_citations(cites, sources.len() == cites.citations.len());
        for source in sources {
            if !self.block_citations.contains(&source) {
                self.write_block_delta(ConverseBlockKind::Text, &json!({"citation": source}));
                self.block_citations.push(source);
            }
        }
    }

    /// Writes a redacted reasoning block.
    fn write_redacted_block(&mut self, delta: &Value) {
        self.close_block();
        self.write_block_delta(ConverseBlockKind::Thinking, delta);
        self.close_block();
    }

    fn write_tool_call_start(&mut self, id: &str, name: &str) {
        let index = self.ensure_block_open(ConverseBlockKind::ToolCall);
        let start = json!({"toolUse": {"toolUseId": id, "name": name}});
        self.write_frame("contentBlockStart", &json!({"contentBlockIndex": index, "start": start}));
        self.tool_call_blocks.push(index);
    }

    fn write_end(&mut self) {
        self.write_message_start();
        self.close_block();
        self.is_finished = true;
        let reason = finish_reason::to_bedrock(&self.finish_reason);
        self.write_frame("messageStop", &json!({"stopReason": reason}));
        let usage = encode_usage(&self.usage);
        self.write_frame("metadata", &json!({"usage": usage}));
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        match event {
            ResponseEvent::Start { .. } => self.write_message_start(),
            ResponseEvent::TextBlockStart => self.should_start_block = true,
            ResponseEvent::Text("") | ResponseEvent::Refusal("") | ResponseEvent::Thinking("") => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => {
                self.should_start_block |= !self.block_citations.is_empty();
                self.write_block_delta(ConverseBlockKind::Text, &json!({"text": text}));
            }
            ResponseEvent::Thinking(text) => {
                self.write_block_delta(ConverseBlockKind::Thinking, &json!({"reasoningContent": {"text": text}}));
            }
            ResponseEvent::ThinkingSignature(text) => {
                if self.open_block != Some(ConverseBlockKind::Thinking) {
                    // AWS clients do not return a signature without a text.
                    self.write_block_delta(ConverseBlockKind::Thinking, &json!({"reasoningContent": {"text": ""}}));
                }
                self.write_block_delta(ConverseBlockKind::Thinking, &json!({"reasoningContent": {"signature": text}}));
                self.close_block();
            }
            ResponseEvent::RedactedThinking(data) => {
                self.write_redacted_block(&json!({"reasoningContent": {"redactedContent": data}}));
            }
            ResponseEvent::TextSignature(signature) => {
                self.write_redacted_block(&signature_blocks::encode_text_signature(signature));
            }
            // A dropped image cannot be reported in the stream, because AWS frames cannot carry comments.
            ResponseEvent::Image { .. } => self.context.record_dropped("image"),
            ResponseEvent::ExtraField { scope, name, json } => match parse_citations(scope, name, json) {
                Some(citations) => {
                    for citation in citations {
                        self.write_block_delta(ConverseBlockKind::Text, &json!({"citation": citation}));
                    }
                }
                None => self.context.record_dropped(name),
            },
            ResponseEvent::Citations(cites) => self.write_citations(&cites),
            ResponseEvent::NativeBlock { kind: name, .. } => self.context.record_dropped(name),
            ResponseEvent::ToolCall { id, name, signature } => {
                if let Some(signature) = signature {
                    self.write_redacted_block(&signature_blocks::encode_call_signature(signature));
                }
                self.write_tool_call_start(id, name);
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let (Some(block), false) = (self.tool_call_blocks.get(call), json.is_empty()) {
                    self.write_delta(*block, &json!({"toolUse": {"input": json}}));
                }
            }
            ResponseEvent::Usage(usage) => self.usage = usage,
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
            ResponseEvent::Failed { kind, message, code } => {
                self.is_finished = true;
                let failure = error_response::stream_failure(ApiFormat::Bedrock, kind, message, code);
                self.output.extend_from_slice(&bedrock::error_event(&failure));
            }
            ResponseEvent::End => self.write_end(),
        }
    }
}

impl ResponseWriter for StreamWriter {
    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}
