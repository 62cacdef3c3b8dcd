//! Splicing of a broken stream and the stream that resumes it, so that the client reads a single response.

mod chat;
mod messages;
mod responses;

use bytes::Bytes;
use serde_json::{Value, json};

use self::{chat::ChatRewriter, messages::MessageRewriter, responses::ResponseRewriter};
use super::sse::{Event, Splitter};
use crate::stream::transcript::{StreamFormat, Transcript};

/// Maximum size of one event. A longer event and everything after it is dropped, and the stream ends as broken.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Tokens used by the earlier streams of a response. They are added to the usage that the client and the request log
/// see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PriorUsage {
    pub input: u64,
    pub output: u64,
}

impl PriorUsage {
    fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Adds these tokens to the usage of the second stream, under the field names of its API format.
    fn add_to_usage(self, usage: &mut Value, [input, output]: [&str; 2]) {
        add_to_count(&mut usage[input], self.input);
        add_to_count(&mut usage[output], self.output);
    }
}

/// Rewrites the events of a resumed stream so that they continue the first stream.
trait EventRewriter: Send {
    /// Returns the bytes to send to the client for this event; empty if the event is dropped.
    fn rewrite(&mut self, event: Value) -> Vec<u8>;
}

/// Rewrites the stream of the target that resumes a response so that it continues the response that the client has
/// begun to read.
pub struct StreamSplicer {
    splitter: Splitter,
    rewriter: Box<dyn EventRewriter>,
}

impl StreamSplicer {
    /// Creates a splicer that continues this transcript. `repeated` is the text that the second stream may repeat.
    pub fn new(transcript: &Transcript, spent: PriorUsage, repeated: String) -> Self {
        let overlap = OverlapFilter::new(transcript, repeated);
        let rewriter: Box<dyn EventRewriter> = match transcript.format() {
            StreamFormat::Chat | StreamFormat::Completions => Box::new(ChatRewriter::new(transcript, spent, overlap)),
            StreamFormat::Messages => Box::new(MessageRewriter::new(transcript, spent, overlap)),
            StreamFormat::Responses => Box::new(ResponseRewriter::new(transcript, spent, overlap)),
        };
        Self { splitter: Splitter::new(MAX_EVENT_BYTES), rewriter }
    }

    /// Reads the next bytes of the second stream, or `None` at its end. Returns the bytes to send to the client.
    pub fn push(&mut self, chunk: Option<Bytes>) -> Bytes {
        let Some(chunk) = chunk else {
            return self.splitter.finish().map(|event| self.rewrite_event(&event)).unwrap_or_default().into();
        };
        let events: Vec<_> = self.splitter.push(chunk.clone()).collect();
        let mut out = Vec::with_capacity(chunk.len() + 64);
        for event in events {
            match event {
                Ok(event) => out.extend_from_slice(&self.rewrite_event(&event)),
                // The splitter yields nothing after an error.
                Err(_) => return out.into(),
            }
        }
        out.into()
    }

    fn rewrite_event(&mut self, event: &Event) -> Vec<u8> {
        let read = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok());
        match read {
            Some(value) if value.is_object() => self.rewriter.rewrite(value),
            _ => event.raw.to_vec(),
        }
    }
}

/// Removes text at the start of the second stream that the client already has. Some providers repeat the prefill, or
/// the whitespace at its end.
#[derive(Debug)]
struct OverlapFilter {
    repeated: String,
    /// Number of bytes of `repeated` that matched so far; `None` once matching is over.
    matched_bytes: Option<usize>,
    ends_in_space: bool,
    should_strip_space: bool,
    /// Number of characters removed.
    removed_chars: i64,
}

impl OverlapFilter {
    fn new(transcript: &Transcript, repeated: String) -> Self {
        let ends_in_space = transcript.ends_in_space();
        let matched_bytes = (!repeated.is_empty()).then_some(0);
        Self { repeated, matched_bytes, ends_in_space, should_strip_space: ends_in_space, removed_chars: 0 }
    }

    /// Removes the repeated text from the next chunk of text.
    fn strip_chunk(&mut self, text: &mut String) {
        if self.matched_bytes.is_none() && !self.should_strip_space {
            return;
        }
        let before = count_chars(text);
        self.strip_repeated(text);
        if self.should_strip_space {
            text.replace_range(..text.len() - text.trim_start().len(), "");
            self.should_strip_space = text.is_empty();
        }
        self.removed_chars += before - count_chars(text);
    }

    /// Shifts the character positions of annotations. They count from the start of the second stream's text; `before`
    /// is the number of characters in front of it.
    fn shift_annotations(&self, annotations: &mut Value, before: i64) {
        let listed = annotations.as_array_mut().into_iter().flatten();
        listed.for_each(|annotation| self.shift_annotation(annotation, before));
    }

    fn shift_annotation(&self, annotation: &mut Value, before: i64) {
        let cited = if annotation["url_citation"].is_object() { &mut annotation["url_citation"] } else { annotation };
        for key in ["start_index", "end_index"] {
            if let Some(at) = cited[key].as_i64() {
                cited[key] = at.saturating_add(before - self.removed_chars).max(0).into();
            }
        }
    }

    fn strip_repeated(&mut self, text: &mut String) {
        let Some(matched) = self.matched_bytes else { return };
        let expected = &self.repeated[matched..];
        if expected.len() > text.len() && expected.starts_with(&**text) {
            self.matched_bytes = Some(matched + text.len());
            return text.clear();
        }
        match text.strip_prefix(expected) {
            Some(rest) => *text = rest.to_owned(),
            // The text only began like a repetition: restores the matched prefix.
            None => text.insert_str(0, &self.repeated[..matched]),
        }
        self.matched_bytes = None;
    }

    /// Removes the repeated text from the complete text of the second stream.
    fn strip_complete<'t>(&self, text: &'t str) -> &'t str {
        let rest = Some(&*self.repeated).filter(|repeated| !repeated.is_empty());
        let rest = rest.and_then(|repeated| text.strip_prefix(repeated)).unwrap_or(text);
        if self.ends_in_space { rest.trim_start() } else { rest }
    }
}

fn count_chars(text: &str) -> i64 {
    text.chars().count().try_into().unwrap_or(i64::MAX)
}

fn add_to_count(count: &mut Value, more: u64) {
    if count.is_null() || count.is_u64() {
        *count = json!(count.as_u64().unwrap_or_default().saturating_add(more));
    }
}

fn format_event(name: &str, data: &Value) -> Vec<u8> {
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_STREAM: &str = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
        data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"One two \"},\"finish_reason\":null}]}\n\n";

    fn record_transcript(form: StreamFormat, events: &str) -> Transcript {
        let mut transcript = Transcript::new(form);
        events.as_bytes().chunks(7).for_each(|chunk| transcript.record_events(Bytes::copy_from_slice(chunk)));
        transcript
    }

    /// Splices a second stream and asserts that the result does not depend on how the bytes are split into chunks.
    fn splice(transcript: &Transcript, spent: PriorUsage, second: &str) -> String {
        splice_repeating(transcript, spent, second, "")
    }

    fn splice_repeating(transcript: &Transcript, spent: PriorUsage, second: &str, repeated: &str) -> String {
        let splice_by = |size: usize| {
            let mut seam = StreamSplicer::new(transcript, spent, repeated.to_owned());
            let mut out = Vec::new();
            second.as_bytes().chunks(size).for_each(|chunk| out.extend(seam.push(Some(Bytes::copy_from_slice(chunk)))));
            out.extend(seam.push(None));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(splice_by(3), splice_by(10_000));
        splice_by(64)
    }

    #[test]
    fn chat_splice_keeps_first_id_and_role_and_sums_usage() {
        let transcript = record_transcript(StreamFormat::Chat, FIRST_STREAM);
        assert_eq!((transcript.text(), transcript.resume_obstacle()), ("One two ", None));
        let second = "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" three\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"id\":\"b\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n\
            data: [DONE]\n\n";
        assert_eq!(
            splice(&transcript, PriorUsage { input: 7, output: 2 }, second),
            "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"three\"},\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":3,\"total_tokens\":19}}\n\n\
            data: [DONE]\n\n"
        );
    }

    #[test]
    fn shifts_chat_citations_to_the_complete_text() {
        let transcript = record_transcript(StreamFormat::Chat, &FIRST_STREAM.replace("One two ", "Öne two "));
        let chunk = |delta: &str| format!("data: {{\"id\":\"a\",\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        let cited = |start: u32, end: u32| {
            let annotation = format!("{{\"url\":\"u\",\"start_index\":{start},\"end_index\":{end}}}");
            chunk(&format!("{{\"annotations\":[{{\"type\":\"url_citation\",\"url_citation\":{annotation}}}]}}"))
        };
        let text = |text: &str| chunk(&format!("{{\"content\":\"{text}\"}}"));
        // Some providers start over, with a space or with the earlier text.
        for (second, expected, (start, end)) in
            [("three", "three", (0, 5)), (" three", "three", (1, 6)), ("Öne two three", "three", (8, 13))]
        {
            let repeated = if second.starts_with('Ö') { "Öne two" } else { "" };
            let joined =
                splice_repeating(&transcript, PriorUsage::default(), &(text(second) + &cited(start, end)), repeated);
            assert_eq!(joined, text(expected) + &cited(8, 13), "{second}");
        }
    }

    #[test]
    fn strips_text_that_the_provider_repeats() {
        let chunk =
            |text: &str| format!("data: {{\"id\":\"a\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        let transcript = record_transcript(StreamFormat::Chat, FIRST_STREAM);
        let second = |texts: &[&str]| texts.iter().map(|text| chunk(text)).collect::<String>();
        for (parts, expected) in [
            (&["One two", " three"][..], &["three"][..]),
            (&["One two three"], &["three"]),
            (&["One", " tw", "o", " ", "three"], &["three"]),
            (&["three"], &["three"]),
            (&["One", " more"], &["One more"]),
            (&["One two"], &[]),
        ] {
            let joined = splice_repeating(&transcript, PriorUsage::default(), &second(parts), "One two");
            assert_eq!(joined, second(expected), "{parts:?}");
        }
    }

    fn message_event(kind: &str, rest: &str) -> String {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n")
    }

    fn first_message_events() -> String {
        message_event("message_start", ",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}")
            + &message_event("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
            + &message_event("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"One\"}")
    }

    fn remaining_events() -> String {
        message_event("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" two\"}")
            + &message_event("content_block_stop", ",\"index\":0")
    }

    fn end_events(usage: &str) -> String {
        message_event("message_delta", &format!(",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{usage}"))
            + &message_event("message_stop", "")
    }

    #[test]
    fn message_continues_in_its_open_block_or_in_a_new_one() {
        let second =
            first_message_events().replace("One", "") + &remaining_events() + &end_events("{\"output_tokens\":3}");
        let spent = PriorUsage { input: 4, output: 1 };
        let empty =
            message_event("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}");
        let usage = end_events("{\"output_tokens\":4,\"input_tokens\":9}");
        assert_eq!(
            splice(&record_transcript(StreamFormat::Messages, &first_message_events()), spent, &second),
            empty.clone() + &remaining_events() + &usage
        );
        // The block ended before the stream broke off.
        let closed = first_message_events() + &message_event("content_block_stop", ",\"index\":0");
        let start =
            message_event("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
        let moved = (start + &empty + &remaining_events()).replace("\"index\":0", "\"index\":1");
        assert_eq!(splice(&record_transcript(StreamFormat::Messages, &closed), spent, &second), moved + &usage);
    }

    #[test]
    fn closes_the_open_block_before_other_content() {
        let tool = message_event("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"tool_use\"}");
        assert_eq!(
            splice(&record_transcript(StreamFormat::Messages, &first_message_events()), PriorUsage::default(), &tool),
            message_event("content_block_stop", ",\"index\":0") + &tool.replace("\"index\":0", "\"index\":1")
        );
    }

    #[test]
    fn resumes_only_text_that_has_not_ended() {
        let chunk = |delta: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
        };
        for (more, because) in [
            (chunk("{\"tool_calls\":[{\"index\":0}]}"), "a tool was called"),
            (chunk("{\"reasoning_content\":\"hm\"}"), "it broke off during reasoning"),
            (chunk("{\"content\":\"x\"}").replace("\"index\":0", "\"index\":1"), "it has several choices"),
            (chunk("{\"audio\":{\"id\":\"a\"}}"), "it contains more than text"),
            (chunk("{}").replace("null", "\"length\""), "it has ended"),
            ("data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned(), "it reported an error"),
        ] {
            assert_eq!(
                record_transcript(StreamFormat::Chat, &(FIRST_STREAM.to_owned() + &more)).resume_obstacle(),
                Some(because),
                "{more}"
            );
        }
        let block = |kind: &str| {
            message_event("content_block_start", &format!(",\"index\":1,\"content_block\":{{\"type\":\"{kind}\"}}"))
        };
        for (more, because) in [
            (block("thinking"), "it broke off during reasoning"),
            (block("server_tool_use"), "a tool was called"),
            (block("image"), "it contains more than text"),
            (end_events("{}"), "it has ended"),
            (message_event("error", ",\"error\":{}"), "it reported an error"),
        ] {
            assert_eq!(
                record_transcript(StreamFormat::Messages, &(first_message_events() + &more)).resume_obstacle(),
                Some(because),
                "{more}"
            );
        }
        for (more, because) in [
            (item_added_event(1, "reasoning"), "it broke off during reasoning"),
            (item_added_event(1, "web_search_call"), "a tool was called"),
            (item_added_event(1, "compaction"), "it contains more than text"),
            (response_event("output_text.annotation.added", ""), "it contains more than text"),
            (response_event("incomplete", ",\"response\":{}"), "it has ended"),
            (response_event("failed", ",\"response\":{}"), "it reported an error"),
        ] {
            assert_eq!(
                record_transcript(StreamFormat::Responses, &(open_response(0) + &more)).resume_obstacle(),
                Some(because),
                "{more}"
            );
        }
    }

    #[test]
    fn resumes_text_after_reasoning() {
        let thought = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm.\"},\"finish_reason\":null}]}\n\n";
        let chat = record_transcript(StreamFormat::Chat, &(thought.to_owned() + FIRST_STREAM));
        assert_eq!((chat.text(), chat.resume_obstacle()), ("One two ", None));
        let thought = message_event(
            "content_block_start",
            ",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}",
        ) + &message_event(
            "content_block_delta",
            ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm.\"}",
        ) + &message_event(
            "content_block_delta",
            ",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"s\"}",
        ) + &message_event("content_block_stop", ",\"index\":0");
        let transcript = record_transcript(
            StreamFormat::Messages,
            &(thought.clone() + &first_message_events().replace("\"index\":0", "\"index\":1")),
        );
        assert_eq!((transcript.text(), transcript.resume_obstacle(), transcript.open_block()), ("One", None, Some(1)));
        // The second target may reason too: its thinking block follows the text block, which ends first.
        let spliced = splice(&transcript, PriorUsage::default(), &thought);
        let moved =
            message_event("content_block_stop", ",\"index\":1") + &thought.replace("\"index\":0", "\"index\":2");
        assert_eq!(spliced, moved);
        let thought = item_added_event(0, "reasoning")
            + &response_event("output_item.done", ",\"output_index\":0,\"item\":{\"id\":\"r\"}");
        let response = record_transcript(StreamFormat::Responses, &(thought + &open_response(1)));
        assert_eq!((response.text(), response.resume_obstacle()), ("One ", None));
    }

    fn response_event(kind: &str, rest: &str) -> String {
        message_event(&format!("response.{kind}"), &format!("{rest},\"sequence_number\":0"))
    }

    fn item_added_event(index: u64, kind: &str) -> String {
        response_event(
            "output_item.added",
            &format!(",\"output_index\":{index},\"item\":{{\"id\":\"{kind}-{index}\",\"type\":\"{kind}\"}}"),
        )
    }

    fn part_event(index: u64, kind: &str, rest: &str) -> String {
        response_event(
            kind,
            &format!(",\"item_id\":\"message-{index}\",\"output_index\":{index},\"content_index\":0{rest}"),
        )
    }

    /// Returns the events of a response with an open message that contains `One `.
    fn open_response(index: u64) -> String {
        response_event("created", ",\"response\":{\"id\":\"a\",\"created_at\":1}")
            + &item_added_event(index, "message")
            + &part_event(index, "content_part.added", ",\"part\":{\"type\":\"output_text\",\"text\":\"\"}")
            + &part_event(index, "output_text.delta", ",\"delta\":\"One \"")
    }

    /// Returns the events of a complete response with a different text.
    fn complete_response(index: u64, text: &str, before: &str) -> String {
        let part = format!("{{\"type\":\"output_text\",\"text\":\"{text}\"}}");
        let item = format!("{{\"type\":\"message\",\"id\":\"b-{index}\",\"content\":[{part}]}}");
        let mut events = response_event("created", ",\"response\":{\"id\":\"b\",\"created_at\":2}");
        events += before;
        events += &open_response(index).split_once("\n\n").unwrap().1.replace("One ", text);
        events += &part_event(index, "output_text.done", &format!(",\"text\":\"{text}\""));
        events += &part_event(index, "content_part.done", &format!(",\"part\":{part}"));
        events += &response_event("output_item.done", &format!(",\"output_index\":{index},\"item\":{item}"));
        events += &response_event(
            "completed",
            &format!(
                ",\"response\":{{\"id\":\"b\",\"created_at\":2,\"output\":[{item}],\"usage\":{{\"input_tokens\":3,\"output_tokens\":1,\"total_tokens\":4}}}}"
            ),
        );
        events.replace("message-", "b-")
    }

    fn parse_events(text: &str) -> Vec<Value> {
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
    }

    #[test]
    fn response_continues_in_its_open_message() {
        let first = record_transcript(StreamFormat::Responses, &open_response(0));
        let events =
            parse_events(&splice(&first, PriorUsage { input: 7, output: 2 }, &complete_response(0, " two", "")));
        let short = |event: &Value| event["type"].as_str().unwrap().trim_start_matches("response.").to_owned();
        let kinds: Vec<_> = events.iter().map(short).collect();
        assert_eq!(
            kinds,
            ["output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"]
        );
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], 1 + at, "{event}");
        }
        assert!(events[..3].iter().all(|event| event["item_id"] == "message-0" && event["output_index"] == 0));
        assert_eq!(
            [&events[0]["delta"], &events[1]["text"], &events[2]["part"]["text"]],
            ["two", "One two", "One two"]
        );
        let item =
            json!({"type": "message", "id": "message-0", "content": [{"type": "output_text", "text": "One two"}]});
        assert_eq!(events[3]["item"], item);
        let usage = json!({"input_tokens": 10, "output_tokens": 3, "total_tokens": 13});
        assert_eq!(events[4]["response"], json!({"id": "a", "created_at": 1, "output": [item], "usage": usage}));
    }

    #[test]
    fn shifts_response_citations_to_the_complete_text() {
        let first = record_transcript(StreamFormat::Responses, &open_response(0));
        let cited =
            |start: u32| format!("{{\"type\":\"url_citation\",\"start_index\":{start},\"end_index\":{}}}", start + 3);
        let added = part_event(0, "output_text.annotation.added", &format!(",\"annotation\":{}", cited(1)));
        let done = "event: response.output_text.done";
        let second = complete_response(0, " two", "")
            .replace("\"text\":\" two\"}", &format!("\"text\":\" two\",\"annotations\":[{}]}}", cited(1)))
            .replace(done, &(added.replace("message-", "b-") + done));
        let events = parse_events(&splice(&first, PriorUsage::default(), &second));
        let expected: Value = serde_json::from_str(&cited(4)).unwrap();
        assert_eq!(events[1]["annotation"], expected);
        assert_eq!(events[3]["part"]["annotations"], json!([expected]));
        assert_eq!(events[4]["item"]["content"][0]["annotations"], json!([expected]));
        assert_eq!(events[5]["response"]["output"][0]["content"][0]["annotations"], json!([expected]));
    }

    #[test]
    fn closes_the_open_message_before_other_items() {
        let first = record_transcript(StreamFormat::Responses, &open_response(0));
        let thought = item_added_event(0, "reasoning")
            + &response_event("output_item.done", ",\"output_index\":0,\"item\":{\"id\":\"r\"}");
        let events = parse_events(&splice(&first, PriorUsage::default(), &complete_response(1, "two", &thought)));
        let actual: Vec<_> = events
            .iter()
            .map(|event| {
                json!([event["type"].as_str().unwrap().trim_start_matches("response."), event["output_index"]])
            })
            .collect();
        assert_eq!(
            json!(actual),
            json!([
                ["output_text.done", 0],
                ["content_part.done", 0],
                ["output_item.done", 0],
                ["output_item.added", 1],
                ["output_item.done", 1],
                ["output_item.added", 2],
                ["content_part.added", 2],
                ["output_text.delta", 2],
                ["output_text.done", 2],
                ["content_part.done", 2],
                ["output_item.done", 2],
                ["completed", null]
            ])
        );
        assert_eq!(
            [&events[0]["text"], &events[2]["item"]["content"][0]["text"], &events[8]["text"]],
            ["One ", "One ", "two"]
        );
        let output = events[11]["response"]["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["id"], &output[1]["id"]), (2, &json!("message-0"), &json!("b-1")));
    }

    #[test]
    fn resume_request_ends_with_the_received_text() {
        let transcript = record_transcript(StreamFormat::Chat, FIRST_STREAM);
        let resume_chat = |messages: &str| {
            let body = format!("{{\"model\":\"m\",\"messages\":{messages},\"n\":1}}");
            transcript.build_resume_request(body.as_bytes()).map(|again| String::from_utf8(again.body).unwrap())
        };
        assert_eq!(
            resume_chat("[{\"role\":\"user\",\"content\":\"q\"}]").unwrap(),
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"One two\"}],\"n\":1}"
        );
        let resumed = resume_chat("[{\"role\":\"assistant\",\"content\":\"Zero \"}]").unwrap();
        assert!(resumed.contains("[{\"role\":\"assistant\",\"content\":\"Zero One two\"}]"), "{resumed}");
        assert_eq!(resume_chat("[{\"role\":\"assistant\",\"content\":[]}]"), None);
        let response = self::record_transcript(StreamFormat::Responses, &open_response(0));
        let resume_response = |input: &str| {
            response
                .build_resume_request(format!("{{\"input\":{input}}}").as_bytes())
                .map(|again| String::from_utf8(again.body).unwrap())
        };
        let on = "{\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"One\"}]}";
        assert_eq!(resume_response("\"q\"").unwrap(), on);
        assert_eq!(resume_response("[{\"role\":\"user\",\"content\":\"q\"}]").unwrap(), on);
        assert_eq!(resume_response("3"), None);
        let first_event =
            "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"One \",\"finish_reason\":null}]}\n\n";
        let completion = self::record_transcript(StreamFormat::Completions, first_event);
        assert_eq!(
            (completion.text(), completion.resume_obstacle(), completion.ends_in_space()),
            ("One ", None, false)
        );
        let resume_completion = |body: &str| {
            completion.build_resume_request(body.as_bytes()).map(|again| String::from_utf8(again.body).unwrap())
        };
        assert_eq!(resume_completion("{\"prompt\":\"q \",\"n\":1}").unwrap(), "{\"prompt\":\"q One \",\"n\":1}");
        assert_eq!(resume_completion("{\"prompt\":\"q \",\"echo\":true}"), None);
        assert_eq!(resume_completion("{\"prompt\":[1,2]}"), None);
    }
}
