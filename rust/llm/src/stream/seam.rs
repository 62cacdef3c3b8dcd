//! The seam between a stream that broke off and the one that goes on in its place: the caller reads one answer.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    said::Said,
    sse::{Event, Splitter},
};
use crate::dialect::Dialect;

/// A longer event is not passed on, and nothing after it: the stream then ends as broken.
const MOST_HELD: usize = 1024 * 1024;

/// Tokens that the streams before have cost, which the caller and the record get to know in the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub input: u64,
    pub output: u64,
}

/// Makes the rest of one answer of what a provider sends that was asked to go on.
#[derive(Debug)]
pub struct Seam {
    dialect: Dialect,
    splitter: Splitter,
    spent: Spent,
    /// Of the first stream.
    id: String,
    has_begun: bool,
    /// The caller has the space at the seam already.
    strips: bool,
    /// Of messages: the block that is open, and how many there were.
    open: Option<u64>,
    offset: u64,
    /// What the second stream said at its start of its cost.
    at_start: Value,
}

impl Seam {
    /// After this.
    pub fn after(said: &Said, spent: Spent) -> Self {
        Self {
            dialect: said.dialect(),
            splitter: Splitter::new(MOST_HELD),
            spent,
            id: said.id().to_owned(),
            has_begun: said.has_begun(),
            strips: said.ends_in_space(),
            open: said.open_block(),
            offset: said.open_block().unwrap_or_else(|| said.blocks()),
            at_start: Value::Null,
        }
    }

    /// The next bytes of the second stream, or `None` at its end, as the caller gets them.
    pub fn push(&mut self, piece: Option<Bytes>) -> Bytes {
        let Some(piece) = piece else {
            return self.splitter.finish().map(|event| self.passed(&event)).unwrap_or_default().into();
        };
        let events: Vec<_> = self.splitter.push(piece.clone()).collect();
        let mut out = Vec::with_capacity(piece.len() + 64);
        for event in events {
            match event {
                Ok(event) => out.extend_from_slice(&self.passed(&event)),
                // From here on nothing is read.
                Err(_) => return out.into(),
            }
        }
        out.into()
    }

    fn passed(&mut self, event: &Event) -> Vec<u8> {
        let read = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok());
        match read {
            Some(value) if value.is_object() => match self.dialect {
                Dialect::OpenAi => self.chunk(value),
                Dialect::Anthropic => self.message_event(value),
                Dialect::Gemini | Dialect::Bedrock => event.raw.to_vec(),
            },
            _ => event.raw.to_vec(),
        }
    }

    fn chunk(&mut self, mut chunk: Value) -> Vec<u8> {
        if !self.id.is_empty() {
            chunk["id"] = json!(self.id);
        }
        let mut says_something = chunk["choices"].as_array().is_none_or(Vec::is_empty);
        for choice in chunk["choices"].as_array_mut().into_iter().flatten() {
            says_something |= choice["finish_reason"].is_string();
            let Some(delta) = choice["delta"].as_object_mut() else { continue };
            if self.has_begun {
                delta.remove("role");
            }
            if let Some(Value::String(text)) = delta.get_mut("content") {
                self.strip(text);
            }
            says_something |= delta.values().any(|value| !value.is_null() && value != "");
        }
        if !says_something && self.has_begun {
            return Vec::new();
        }
        self.has_begun = true;
        if chunk["usage"].is_object() {
            let Spent { input, output } = self.spent;
            add(&mut chunk["usage"]["prompt_tokens"], input);
            add(&mut chunk["usage"]["completion_tokens"], output);
            add(&mut chunk["usage"]["total_tokens"], input + output);
        }
        format!("data: {chunk}\n\n").into_bytes()
    }

    fn message_event(&mut self, mut event: Value) -> Vec<u8> {
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
                    self.offset = open + 1;
                }
                None => (),
            },
            "content_block_delta" => {
                if let Value::String(text) = &mut event["delta"]["text"] {
                    self.strip(text);
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

    /// The last word on what it cost, in which the first word of the second stream was not told.
    fn add_up(&self, usage: &mut Value) {
        if let (Some(start), Some(usage)) = (self.at_start.as_object(), usage.as_object_mut()) {
            for (key, value) in start {
                usage.entry(key.as_str()).or_insert_with(|| value.clone());
            }
        }
        add(&mut usage["input_tokens"], self.spent.input);
        add(&mut usage["output_tokens"], self.spent.output);
    }

    /// Takes away the space with which a text begins, where the caller has it already.
    fn strip(&mut self, text: &mut String) {
        if self.strips {
            text.replace_range(..text.len() - text.trim_start().len(), "");
            self.strips = text.is_empty();
        }
    }
}

fn add(count: &mut Value, more: u64) {
    if count.is_null() || count.is_u64() {
        *count = json!(count.as_u64().unwrap_or_default() + more);
    }
}

fn written(name: &str, data: &Value) -> Vec<u8> {
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
        data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"One two \"},\"finish_reason\":null}]}\n\n";

    fn said(dialect: Dialect, events: &str) -> Said {
        let mut said = Said::new(dialect);
        events.as_bytes().chunks(7).for_each(|piece| said.take(Bytes::copy_from_slice(piece)));
        said
    }

    /// What a seam makes of a second stream, however it is cut into pieces.
    fn joined(said: &Said, spent: Spent, second: &str) -> String {
        let whole = |size: usize| {
            let mut seam = Seam::after(said, spent);
            let mut out = Vec::new();
            second.as_bytes().chunks(size).for_each(|piece| out.extend(seam.push(Some(Bytes::copy_from_slice(piece)))));
            out.extend(seam.push(None));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(whole(3), whole(10_000));
        whole(64)
    }

    #[test]
    fn a_chat_keeps_its_id_its_role_and_one_space_and_its_usage_adds_up() {
        let said = said(Dialect::OpenAi, FIRST);
        assert_eq!((said.text(), said.is_unfinished_text()), ("One two ", true));
        let second = "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" three\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n\
            data: [DONE]\n\n";
        assert_eq!(
            joined(&said, Spent { input: 7, output: 2 }, second),
            "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"three\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":3,\"total_tokens\":19}}\n\n\
            data: [DONE]\n\n"
        );
    }

    fn message(kind: &str, rest: &str) -> String {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n")
    }

    fn begun() -> String {
        message("message_start", ",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}")
            + &message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
            + &message("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"One\"}")
    }

    fn rest() -> String {
        message("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" two\"}")
            + &message("content_block_stop", ",\"index\":0")
    }

    fn end(usage: &str) -> String {
        message("message_delta", &format!(",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{usage}"))
            + &message("message_stop", "")
    }

    #[test]
    fn a_message_goes_on_within_its_open_block_or_with_a_new_one() {
        let second = begun().replace("One", "") + &rest() + &end("{\"output_tokens\":3}");
        let spent = Spent { input: 4, output: 1 };
        let empty = message("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}");
        let usage = end("{\"output_tokens\":4,\"input_tokens\":9}");
        assert_eq!(joined(&said(Dialect::Anthropic, &begun()), spent, &second), empty.clone() + &rest() + &usage);
        // The block has ended before the stream broke off.
        let closed = begun() + &message("content_block_stop", ",\"index\":0");
        let start = message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
        let moved = (start + &empty + &rest()).replace("\"index\":0", "\"index\":1");
        assert_eq!(joined(&said(Dialect::Anthropic, &closed), spent, &second), moved + &usage);
    }

    #[test]
    fn a_message_that_goes_on_with_something_else_ends_its_open_block_first() {
        let tool = message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"tool_use\"}");
        assert_eq!(
            joined(&said(Dialect::Anthropic, &begun()), Spent::default(), &tool),
            message("content_block_stop", ",\"index\":0") + &tool.replace("\"index\":0", "\"index\":1")
        );
    }

    #[test]
    fn only_text_that_has_not_ended_can_be_gone_on_from() {
        let chunk = |delta: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
        };
        for more in [
            chunk("{\"tool_calls\":[{\"index\":0}]}"),
            chunk("{\"reasoning_content\":\"hm\"}"),
            chunk("{\"content\":\"x\"}").replace("\"index\":0", "\"index\":1"),
            chunk("{}").replace("null", "\"length\""),
            "data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned(),
        ] {
            assert!(!said(Dialect::OpenAi, &(FIRST.to_owned() + &more)).is_unfinished_text(), "{more}");
        }
        let thought =
            message("content_block_start", ",\"index\":1,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}");
        for more in [thought, end("{}"), message("error", ",\"error\":{}")] {
            assert!(!said(Dialect::Anthropic, &(begun() + &more)).is_unfinished_text(), "{more}");
        }
        assert!(said(Dialect::Anthropic, &begun()).is_unfinished_text());
    }

    #[test]
    fn what_was_said_becomes_the_beginning_of_the_answer() {
        let said = said(Dialect::OpenAi, FIRST);
        let asked = |messages: &str| {
            let body = format!("{{\"model\":\"m\",\"messages\":{messages},\"n\":1}}");
            said.ask_again(body.as_bytes()).map(|asked| String::from_utf8(asked).unwrap())
        };
        assert_eq!(
            asked("[{\"role\":\"user\",\"content\":\"q\"}]").unwrap(),
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"One two\"}],\"n\":1}"
        );
        let begun = asked("[{\"role\":\"assistant\",\"content\":\"Zero \"}]").unwrap();
        assert!(begun.contains("[{\"role\":\"assistant\",\"content\":\"Zero One two\"}]"), "{begun}");
        assert_eq!(asked("[{\"role\":\"assistant\",\"content\":[]}]"), None);
        assert_eq!(asked("3"), None);
    }
}
