//! Splicing of Anthropic message streams. Continues the open block or appends new blocks after the earlier ones, and
//! sums up usage.

use serde_json::{Value, json};

use super::{EventRewriter, OverlapFilter, PriorUsage, Transcript, add_to_count, format_event};

#[derive(Debug)]
pub(super) struct MessageRewriter {
    prior_usage: PriorUsage,
    has_started: bool,
    overlap: OverlapFilter,
    /// Index of the first stream's block that is still open.
    open_block: Option<u64>,
    /// Number added to the block indexes of the second stream.
    index_offset: u64,
    /// Usage from the `message_start` event of the second stream.
    start_usage: Value,
}

impl MessageRewriter {
    pub fn new(transcript: &Transcript, prior_usage: PriorUsage, overlap: OverlapFilter) -> Self {
        Self {
            prior_usage,
            has_started: transcript.has_started(),
            overlap,
            open_block: transcript.open_block(),
            index_offset: transcript.open_block().unwrap_or_else(|| transcript.block_count()),
            start_usage: Value::Null,
        }
    }

    /// Completes the final usage with the fields that only `message_start` of the second stream had, and adds the usage
    /// of the earlier streams.
    fn merge_usage(&self, usage: &mut Value) {
        if let (Some(start), Some(usage)) = (self.start_usage.as_object(), usage.as_object_mut()) {
            for (key, value) in start {
                usage.entry(key.as_str()).or_insert_with(|| value.clone());
            }
        }
        self.prior_usage.add_to_usage(usage, ["input_tokens", "output_tokens"]);
    }
}

impl EventRewriter for MessageRewriter {
    fn rewrite(&mut self, mut event: Value) -> Vec<u8> {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let mut before = Vec::new();
        match &*kind {
            "message_start" => {
                self.start_usage = event["message"]["usage"].take();
                if self.has_started {
                    return Vec::new();
                }
                event["message"]["usage"] = self.start_usage.clone();
                self.has_started = true;
            }
            "content_block_start" => match self.open_block.take() {
                Some(_) if event["content_block"]["type"] == "text" => return Vec::new(),
                Some(open) => {
                    before = format_event("content_block_stop", &json!({"type": "content_block_stop", "index": open}));
                    self.index_offset = open.saturating_add(1);
                }
                None => (),
            },
            "content_block_delta" => {
                if let Some(Value::String(text)) = event.pointer_mut("/delta/text") {
                    self.overlap.strip_chunk(text);
                }
            }
            "message_delta" if event["usage"].is_object() => self.merge_usage(&mut event["usage"]),
            _ => (),
        }
        if event["index"].is_u64() {
            add_to_count(&mut event["index"], self.index_offset);
        }
        before.extend(format_event(&kind, &event));
        before
    }
}
