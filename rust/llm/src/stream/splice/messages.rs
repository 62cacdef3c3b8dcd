//! Events of a second message: within the block that is open, or in blocks behind those that were, usage added up.

use serde_json::{Value, json};

use super::{Joint, Overlap, Said, Spent, add, written};

#[derive(Debug)]
pub(super) struct Messages {
    spent: Spent,
    has_begun: bool,
    overlap: Overlap,
    /// The block that is open.
    open: Option<u64>,
    /// How many blocks there were.
    offset: u64,
    /// What the second stream said at its start of its cost.
    at_start: Value,
}

impl Messages {
    pub fn after(said: &Said, spent: Spent, overlap: Overlap) -> Self {
        Self {
            spent,
            has_begun: said.has_begun(),
            overlap,
            open: said.open_block(),
            offset: said.open_block().unwrap_or_else(|| said.blocks()),
            at_start: Value::Null,
        }
    }

    /// The last word on what it cost, in which the first word of the second stream was not told.
    fn add_up(&self, usage: &mut Value) {
        if let (Some(start), Some(usage)) = (self.at_start.as_object(), usage.as_object_mut()) {
            for (key, value) in start {
                usage.entry(key.as_str()).or_insert_with(|| value.clone());
            }
        }
        self.spent.add_to(usage, ["input_tokens", "output_tokens"]);
    }
}

impl Joint for Messages {
    fn pass(&mut self, mut event: Value) -> Vec<u8> {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let mut before = Vec::new();
        match &*kind {
            "message_start" => {
                self.at_start = event["message"]["usage"].take();
                if self.has_begun {
                    return Vec::new();
                }
                event["message"]["usage"] = self.at_start.clone();
                self.has_begun = true;
            }
            "content_block_start" => match self.open.take() {
                Some(_) if event["content_block"]["type"] == "text" => return Vec::new(),
                Some(open) => {
                    before = written("content_block_stop", &json!({"type": "content_block_stop", "index": open}));
                    self.offset = open.saturating_add(1);
                }
                None => (),
            },
            "content_block_delta" => {
                if let Some(Value::String(text)) = event.pointer_mut("/delta/text") {
                    self.overlap.strip(text);
                }
            }
            "message_delta" if event["usage"].is_object() => self.add_up(&mut event["usage"]),
            _ => (),
        }
        if event["index"].is_u64() {
            add(&mut event["index"], self.offset);
        }
        before.extend(written(&kind, &event));
        before
    }
}
