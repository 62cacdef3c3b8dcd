//! Response writer that puts parallel tool calls in sequence, for client formats that need one call after the other.
//! Buffers later calls, and text that arrives within the arguments of a call.

use crate::chat::{
    event::{EventSink, ResponseEvent},
    response_writer::ResponseWriter,
};

/// Maximum size of the buffered calls and texts.
const MAX_BUFFERED_BYTES: usize = 1024 * 1024;

pub struct SequentialToolCallWriter<T> {
    writer: T,
    call_count: usize,
    open_call: Option<OpenCall>,
    queued_calls: Vec<QueuedCall>,
    /// Text events that arrived within the arguments of the open call.
    deferred_texts: Vec<(TextEventConstructor, String)>,
    buffered_bytes: usize,
    has_failed: bool,
}

/// Constructor of an event that consists of text only.
type TextEventConstructor = for<'a> fn(&'a str) -> ResponseEvent<'a>;

/// Tool call that is being written.
struct OpenCall {
    call_index: usize,
    nesting: JsonNesting,
}

/// Tool call that began while another one was incomplete.
struct QueuedCall {
    call_index: usize,
    id: String,
    name: String,
    signature: Option<String>,
    arguments: String,
}

/// Nesting state of a JSON object that arrives in chunks. Shows when the object is complete.
#[derive(Default)]
struct JsonNesting {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    is_closed: bool,
}

impl JsonNesting {
    fn scan(&mut self, json: &str) {
        for byte in json.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_string => self.is_escaped = true,
                b'"' => self.is_in_string = !self.is_in_string,
                _ if self.is_in_string => (),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed = self.depth == 0;
                }
                _ => (),
            }
        }
    }
}

impl<T: ResponseWriter> SequentialToolCallWriter<T> {
    pub fn new(writer: T) -> Self {
        Self {
            writer,
            call_count: 0,
            open_call: None,
            queued_calls: Vec::new(),
            deferred_texts: Vec::new(),
            buffered_bytes: 0,
            has_failed: false,
        }
    }

    fn begin_call(&mut self, call: usize, event: ResponseEvent<'_>) {
        self.open_call = Some(OpenCall { call_index: call, nesting: JsonNesting::default() });
        self.writer.push_event(event);
    }

    fn write_arguments(&mut self, call: usize, json: &str) {
        if json.is_empty() {
            return;
        }
        if let Some(open) = self.open_call.as_mut().filter(|open| open.call_index == call) {
            open.nesting.scan(json);
            self.writer.push_event(ResponseEvent::ToolCallArguments { call_index: call, json });
        } else if let Some(waiting) = self.queued_calls.iter_mut().find(|waiting| waiting.call_index == call) {
            waiting.arguments.push_str(json);
            self.add_buffered_bytes(json.len());
        } else {
            // The call was already written without arguments. Clients that match arguments by index still accept them.
            self.writer.push_event(ResponseEvent::ToolCallArguments { call_index: call, json });
        }
    }

    fn add_buffered_bytes(&mut self, length: usize) {
        self.buffered_bytes += length;
        if self.buffered_bytes > MAX_BUFFERED_BYTES {
            self.has_failed = true;
            let message = "the model sent too many parallel tool calls at once";
            self.writer.push_event(ResponseEvent::Failed { kind: None, message, code: None });
        }
    }

    /// Writes queued calls as long as the call before is complete. `is_last` means that no more arguments follow, so
    /// all queued calls are written.
    fn write_queued_calls(&mut self, is_last: bool) {
        if is_last || !self.is_within_arguments() {
            self.flush_deferred_texts();
        }
        let is_ready = |open: &OpenCall| is_last || open.nesting.is_closed;
        while self.open_call.as_ref().is_none_or(is_ready) && !self.queued_calls.is_empty() {
            let QueuedCall { call_index: call, id, name, signature, arguments: json } = self.queued_calls.remove(0);
            self.buffered_bytes -= id.len() + name.len() + json.len();
            self.begin_call(call, ResponseEvent::ToolCall { id: &id, name: &name, signature: signature.as_deref() });
            self.write_arguments(call, &json);
        }
        if is_last {
            self.open_call = None;
        }
    }

    /// Returns true if the arguments of the open call are incomplete.
    fn is_within_arguments(&self) -> bool {
        self.open_call.as_ref().is_some_and(|open| open.nesting.depth > 0)
    }

    /// Writes the texts that arrived within the arguments, which are complete now. A text ends its call.
    fn flush_deferred_texts(&mut self) {
        for (make_event, text) in std::mem::take(&mut self.deferred_texts) {
            self.open_call = None;
            self.buffered_bytes -= text.len();
            self.writer.push_event(make_event(&text));
        }
    }
}

/// Splits an event that consists of text only into constructor and text; `None` for other events, which cannot be
/// deferred.
fn split_text_event(event: ResponseEvent<'_>) -> Option<(TextEventConstructor, &str)> {
    Some(match event {
        ResponseEvent::Text(text) => (|text| ResponseEvent::Text(text), text),
        ResponseEvent::Refusal(text) => (|text| ResponseEvent::Refusal(text), text),
        ResponseEvent::Thinking(text) => (|text| ResponseEvent::Thinking(text), text),
        ResponseEvent::ThinkingSignature(text) => (|text| ResponseEvent::ThinkingSignature(text), text),
        ResponseEvent::RedactedThinking(text) => (|text| ResponseEvent::RedactedThinking(text), text),
        ResponseEvent::TextSignature(text) => (|text| ResponseEvent::TextSignature(text), text),
        _ => return None,
    })
}

impl<T: ResponseWriter> EventSink for SequentialToolCallWriter<T> {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.has_failed {
            return;
        }
        match event {
            ResponseEvent::ToolCall { id, name, signature } => {
                let call = self.call_count;
                self.call_count += 1;
                if self.open_call.as_ref().is_none_or(|open| open.nesting.is_closed) {
                    return self.begin_call(call, event);
                }
                let (id, name, signature) = (id.to_owned(), name.to_owned(), signature.map(ToOwned::to_owned));
                let length = id.len() + name.len();
                self.queued_calls.push(QueuedCall { call_index: call, id, name, signature, arguments: String::new() });
                self.add_buffered_bytes(length);
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                self.write_arguments(call, json);
                self.write_queued_calls(false);
            }
            // An empty text does not begin a block, so it does not end a call.
            ResponseEvent::Text("") | ResponseEvent::Refusal("") | ResponseEvent::Thinking("") => (),
            ResponseEvent::Start { .. }
            | ResponseEvent::Usage(_)
            | ResponseEvent::Finish { .. }
            | ResponseEvent::ExtraField { .. }
            | ResponseEvent::Citations(_)
            | ResponseEvent::Failed { .. } => {
                self.writer.push_event(event);
            }
            other => {
                if let Some((make_event, text)) = split_text_event(other).filter(|_| self.is_within_arguments()) {
                    self.deferred_texts.push((make_event, text.to_owned()));
                    return self.add_buffered_bytes(text.len());
                }
                self.write_queued_calls(true);
                self.writer.push_event(other);
            }
        }
    }
}

impl<T: ResponseWriter> ResponseWriter for SequentialToolCallWriter<T> {
    fn take_output(&mut self) -> Vec<u8> {
        self.writer.take_output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writer that records the events of tool calls.
    #[derive(Default)]
    struct EventRecorder(String);

    impl EventSink for EventRecorder {
        fn push_event(&mut self, event: ResponseEvent<'_>) {
            match event {
                ResponseEvent::ToolCall { name, .. } => self.0.push_str(name),
                ResponseEvent::ToolCallArguments { call_index: call, json } => {
                    self.0.extend([" ", &call.to_string(), ":", json, " "]);
                }
                ResponseEvent::Text(text) => self.0.push_str(text),
                ResponseEvent::Failed { .. } => self.0.push('!'),
                ResponseEvent::End => self.0.push('.'),
                _ => (),
            }
        }
    }

    impl ResponseWriter for EventRecorder {
        fn take_output(&mut self) -> Vec<u8> {
            std::mem::take(&mut self.0).into_bytes()
        }
    }

    fn write_events(events: &[ResponseEvent<'_>]) -> String {
        let mut in_turn = SequentialToolCallWriter::new(EventRecorder::default());
        for event in events {
            in_turn.push_event(*event);
        }
        String::from_utf8(in_turn.take_output()).unwrap()
    }

    fn tool_call(name: &str) -> ResponseEvent<'_> {
        ResponseEvent::ToolCall { id: "i", name, signature: None }
    }

    fn arguments(call: usize, json: &str) -> ResponseEvent<'_> {
        ResponseEvent::ToolCallArguments { call_index: call, json }
    }

    #[test]
    fn writes_parallel_calls_one_after_the_other() {
        let mixed = [
            tool_call("a"),
            tool_call("b"),
            arguments(1, "{\"y\""),
            arguments(0, "{\"x\":\"}"),
            arguments(1, ":2}"),
            arguments(0, "\"}"),
        ];
        assert_eq!(write_events(&mixed), "a 0:{\"x\":\"}  0:\"} b 1:{\"y\":2} ");
        let three = [
            tool_call("a"),
            tool_call("b"),
            tool_call("c"),
            arguments(2, "{}"),
            arguments(0, "{}"),
            arguments(1, "{}"),
            ResponseEvent::End,
        ];
        assert_eq!(write_events(&three), "a 0:{} b 1:{} c 2:{} .");
    }

    #[test]
    fn does_not_delay_sequential_calls() {
        assert_eq!(
            write_events(&[tool_call("a"), arguments(0, "{}"), tool_call("b"), arguments(1, "{")]),
            "a 0:{} b 1:{ "
        );
    }

    #[test]
    fn a_call_without_arguments_ends_with_the_next_block_or_the_response() {
        assert_eq!(write_events(&[tool_call("a"), tool_call("b"), arguments(1, "{}")]), "a");
        assert_eq!(
            write_events(&[tool_call("a"), tool_call("b"), arguments(1, "{}"), ResponseEvent::End]),
            "ab 1:{} ."
        );
        let late = [tool_call("a"), tool_call("b"), arguments(1, "{}"), ResponseEvent::Text("t"), arguments(0, "{}")];
        assert_eq!(write_events(&late), "ab 1:{} t 0:{} ");
    }

    #[test]
    fn defers_text_within_arguments_until_they_are_complete() {
        let between = [
            tool_call("a"),
            arguments(0, "{\"x\":"),
            ResponseEvent::Text("t"),
            ResponseEvent::Text("u"),
            arguments(0, "1}"),
            ResponseEvent::End,
        ];
        assert_eq!(write_events(&between), "a 0:{\"x\":  0:1} tu.");
        let several = [
            tool_call("a"),
            arguments(0, "{"),
            ResponseEvent::Text("t"),
            tool_call("b"),
            arguments(0, "}"),
            arguments(1, "{}"),
        ];
        assert_eq!(write_events(&several), "a 0:{  0:} tb 1:{} ");
        // The arguments of some calls are cut off.
        assert_eq!(
            write_events(&[
                tool_call("a"),
                arguments(0, "{"),
                tool_call("b"),
                ResponseEvent::Text("t"),
                ResponseEvent::End
            ]),
            "a 0:{ tb."
        );
    }

    #[test]
    fn fails_if_the_buffer_exceeds_its_limit() {
        let long = "x".repeat(MAX_BUFFERED_BYTES);
        assert_eq!(
            write_events(&[
                tool_call("a"),
                tool_call("b"),
                arguments(1, &long),
                arguments(0, "{}"),
                ResponseEvent::End
            ]),
            "a!"
        );
    }
}
