//! The seam between a stream that broke off and the one that goes on in its place: the caller reads one answer.

mod chat;
mod messages;
mod responses;

use bytes::Bytes;
use serde_json::{Value, json};

use self::{chat::Chat, messages::Messages, responses::Responses};
use super::sse::{Event, Splitter};
use crate::stream::transcript::{Form, Said};

/// A longer event is not passed on, and nothing after it: the stream then ends as broken.
const MOST_HELD: usize = 1024 * 1024;

/// Tokens that the streams before have cost, which the caller and the record get to know in the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub input: u64,
    pub output: u64,
}

impl Spent {
    fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// To what the second stream has cost, under the names that its dialect has for it.
    fn add_to(self, usage: &mut Value, [input, output]: [&str; 2]) {
        add(&mut usage[input], self.input);
        add(&mut usage[output], self.output);
    }
}

/// How the events of a second stream become those of the first.
trait Joint: Send {
    /// An event, as the caller gets it.
    fn pass(&mut self, event: Value) -> Vec<u8>;
}

/// Makes the rest of one answer of what a provider sends that was asked to go on.
pub struct Seam {
    splitter: Splitter,
    joint: Box<dyn Joint>,
}

impl Seam {
    /// After this; `repeated` is what the second stream may say of it again.
    pub fn after(said: &Said, spent: Spent, repeated: String) -> Self {
        let overlap = Overlap::after(said, repeated);
        let joint: Box<dyn Joint> = match said.form() {
            Form::Chat | Form::Completions => Box::new(Chat::after(said, spent, overlap)),
            Form::Messages => Box::new(Messages::after(said, spent, overlap)),
            Form::Responses => Box::new(Responses::after(said, spent, overlap)),
        };
        Self { splitter: Splitter::new(MOST_HELD), joint }
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
            Some(value) if value.is_object() => self.joint.pass(value),
            _ => event.raw.to_vec(),
        }
    }
}

/// With what a second text begins that the caller has already: what some repeat of what they were given, and space.
#[derive(Debug)]
struct Overlap {
    repeated: String,
    /// How much of it was repeated so far; `None` when that is over.
    seen: Option<usize>,
    ends_in_space: bool,
    is_space_told: bool,
    /// So many characters were taken away.
    taken: i64,
}

impl Overlap {
    fn after(said: &Said, repeated: String) -> Self {
        let ends_in_space = said.ends_in_space();
        let seen = (!repeated.is_empty()).then_some(0);
        Self { repeated, seen, ends_in_space, is_space_told: ends_in_space, taken: 0 }
    }

    /// Takes it away from the next piece of the text.
    fn strip(&mut self, text: &mut String) {
        if self.seen.is_none() && !self.is_space_told {
            return;
        }
        let before = characters(text);
        self.strip_repeated(text);
        if self.is_space_told {
            text.replace_range(..text.len() - text.trim_start().len(), "");
            self.is_space_told = text.is_empty();
        }
        self.taken += before - characters(text);
    }

    /// Annotations say which characters of their text they are about: that begins so much before theirs.
    fn place(&self, annotations: &mut Value, before: i64) {
        let listed = annotations.as_array_mut().into_iter().flatten();
        listed.for_each(|annotation| self.place_one(annotation, before));
    }

    fn place_one(&self, annotation: &mut Value, before: i64) {
        let cited = if annotation["url_citation"].is_object() { &mut annotation["url_citation"] } else { annotation };
        for key in ["start_index", "end_index"] {
            if let Some(at) = cited[key].as_i64() {
                cited[key] = at.saturating_add(before - self.taken).max(0).into();
            }
        }
    }

    fn strip_repeated(&mut self, text: &mut String) {
        let Some(seen) = self.seen else { return };
        let expected = &self.repeated[seen..];
        if expected.len() > text.len() && expected.starts_with(&**text) {
            self.seen = Some(seen + text.len());
            return text.clear();
        }
        match text.strip_prefix(expected) {
            Some(rest) => *text = rest.to_owned(),
            // It was no repetition, although it began like one.
            None => text.insert_str(0, &self.repeated[..seen]),
        }
        self.seen = None;
    }

    /// Takes it away from the whole of the text.
    fn rest<'t>(&self, whole: &'t str) -> &'t str {
        let rest = Some(&*self.repeated).filter(|repeated| !repeated.is_empty());
        let rest = rest.and_then(|repeated| whole.strip_prefix(repeated)).unwrap_or(whole);
        if self.ends_in_space { rest.trim_start() } else { rest }
    }
}

fn characters(text: &str) -> i64 {
    text.chars().count().try_into().unwrap_or(i64::MAX)
}

fn add(count: &mut Value, more: u64) {
    if count.is_null() || count.is_u64() {
        *count = json!(count.as_u64().unwrap_or_default().saturating_add(more));
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

    fn said(form: Form, events: &str) -> Said {
        let mut said = Said::new(form);
        events.as_bytes().chunks(7).for_each(|piece| said.take(Bytes::copy_from_slice(piece)));
        said
    }

    /// What a seam makes of a second stream, however it is cut into pieces.
    fn joined(said: &Said, spent: Spent, second: &str) -> String {
        joined_repeating(said, spent, second, "")
    }

    fn joined_repeating(said: &Said, spent: Spent, second: &str, repeated: &str) -> String {
        let whole = |size: usize| {
            let mut seam = Seam::after(said, spent, repeated.to_owned());
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
        let said = said(Form::Chat, FIRST);
        assert_eq!((said.text(), said.obstacle()), ("One two ", None));
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

    #[test]
    fn what_is_cited_is_placed_in_the_whole_text() {
        let said = said(Form::Chat, &FIRST.replace("One two ", "Öne two "));
        let chunk = |delta: &str| format!("data: {{\"id\":\"a\",\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        let cited = |start: u32, end: u32| {
            let place = format!("{{\"url\":\"u\",\"start_index\":{start},\"end_index\":{end}}}");
            chunk(&format!("{{\"annotations\":[{{\"type\":\"url_citation\",\"url_citation\":{place}}}]}}"))
        };
        let text = |text: &str| chunk(&format!("{{\"content\":\"{text}\"}}"));
        // Some begin anew, with a space or with what was there.
        for (second, told, (start, end)) in
            [("three", "three", (0, 5)), (" three", "three", (1, 6)), ("Öne two three", "three", (8, 13))]
        {
            let repeated = if second.starts_with('Ö') { "Öne two" } else { "" };
            let joined = joined_repeating(&said, Spent::default(), &(text(second) + &cited(start, end)), repeated);
            assert_eq!(joined, text(told) + &cited(8, 13), "{second}");
        }
    }

    #[test]
    fn what_a_provider_repeats_of_what_it_was_given_is_not_told_again() {
        let chunk =
            |text: &str| format!("data: {{\"id\":\"a\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        let said = said(Form::Chat, FIRST);
        let second = |texts: &[&str]| texts.iter().map(|text| chunk(text)).collect::<String>();
        for (pieces, told) in [
            (&["One two", " three"][..], &["three"][..]),
            (&["One two three"], &["three"]),
            (&["One", " tw", "o", " ", "three"], &["three"]),
            (&["three"], &["three"]),
            (&["One", " more"], &["One more"]),
            (&["One two"], &[]),
        ] {
            let joined = joined_repeating(&said, Spent::default(), &second(pieces), "One two");
            assert_eq!(joined, second(told), "{pieces:?}");
        }
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
        assert_eq!(joined(&said(Form::Messages, &begun()), spent, &second), empty.clone() + &rest() + &usage);
        // The block has ended before the stream broke off.
        let closed = begun() + &message("content_block_stop", ",\"index\":0");
        let start = message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
        let moved = (start + &empty + &rest()).replace("\"index\":0", "\"index\":1");
        assert_eq!(joined(&said(Form::Messages, &closed), spent, &second), moved + &usage);
    }

    #[test]
    fn a_message_that_goes_on_with_something_else_ends_its_open_block_first() {
        let tool = message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"tool_use\"}");
        assert_eq!(
            joined(&said(Form::Messages, &begun()), Spent::default(), &tool),
            message("content_block_stop", ",\"index\":0") + &tool.replace("\"index\":0", "\"index\":1")
        );
    }

    #[test]
    fn only_text_that_has_not_ended_can_be_gone_on_from() {
        let chunk = |delta: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
        };
        for (more, because) in [
            (chunk("{\"tool_calls\":[{\"index\":0}]}"), "a tool was called"),
            (chunk("{\"reasoning_content\":\"hm\"}"), "it broke off within a thought"),
            (chunk("{\"content\":\"x\"}").replace("\"index\":0", "\"index\":1"), "it gives several choices"),
            (chunk("{\"audio\":{\"id\":\"a\"}}"), "it holds more than text"),
            (chunk("{}").replace("null", "\"length\""), "it has ended"),
            ("data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned(), "it told of an error"),
        ] {
            assert_eq!(said(Form::Chat, &(FIRST.to_owned() + &more)).obstacle(), Some(because), "{more}");
        }
        let block = |kind: &str| {
            message("content_block_start", &format!(",\"index\":1,\"content_block\":{{\"type\":\"{kind}\"}}"))
        };
        for (more, because) in [
            (block("thinking"), "it broke off within a thought"),
            (block("server_tool_use"), "a tool was called"),
            (block("image"), "it holds more than text"),
            (end("{}"), "it has ended"),
            (message("error", ",\"error\":{}"), "it told of an error"),
        ] {
            assert_eq!(said(Form::Messages, &(begun() + &more)).obstacle(), Some(because), "{more}");
        }
        for (more, because) in [
            (item(1, "reasoning"), "it broke off within a thought"),
            (item(1, "web_search_call"), "a tool was called"),
            (item(1, "compaction"), "it holds more than text"),
            (response("output_text.annotation.added", ""), "it holds more than text"),
            (response("incomplete", ",\"response\":{}"), "it has ended"),
            (response("failed", ",\"response\":{}"), "it told of an error"),
        ] {
            assert_eq!(said(Form::Responses, &(opened(0) + &more)).obstacle(), Some(because), "{more}");
        }
    }

    #[test]
    fn text_after_a_thought_is_gone_on_from() {
        let thought = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm.\"},\"finish_reason\":null}]}\n\n";
        let chat = said(Form::Chat, &(thought.to_owned() + FIRST));
        assert_eq!((chat.text(), chat.obstacle()), ("One two ", None));
        let thought =
            message("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}")
                + &message(
                    "content_block_delta",
                    ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm.\"}",
                )
                + &message(
                    "content_block_delta",
                    ",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"s\"}",
                )
                + &message("content_block_stop", ",\"index\":0");
        let spoken = said(Form::Messages, &(thought.clone() + &begun().replace("\"index\":0", "\"index\":1")));
        assert_eq!((spoken.text(), spoken.obstacle(), spoken.open_block()), ("One", None, Some(1)));
        // Who goes on may think, too: behind the text, which ends there.
        let told = joined(&spoken, Spent::default(), &thought);
        let moved = message("content_block_stop", ",\"index\":1") + &thought.replace("\"index\":0", "\"index\":2");
        assert_eq!(told, moved);
        let thought =
            item(0, "reasoning") + &response("output_item.done", ",\"output_index\":0,\"item\":{\"id\":\"r\"}");
        let response = said(Form::Responses, &(thought + &opened(1)));
        assert_eq!((response.text(), response.obstacle()), ("One ", None));
    }

    fn response(kind: &str, rest: &str) -> String {
        message(&format!("response.{kind}"), &format!("{rest},\"sequence_number\":0"))
    }

    fn item(index: u64, kind: &str) -> String {
        response(
            "output_item.added",
            &format!(",\"output_index\":{index},\"item\":{{\"id\":\"{kind}-{index}\",\"type\":\"{kind}\"}}"),
        )
    }

    fn in_part(index: u64, kind: &str, rest: &str) -> String {
        response(kind, &format!(",\"item_id\":\"message-{index}\",\"output_index\":{index},\"content_index\":0{rest}"))
    }

    /// A response with an open message that says `One `.
    fn opened(index: u64) -> String {
        response("created", ",\"response\":{\"id\":\"a\",\"created_at\":1}")
            + &item(index, "message")
            + &in_part(index, "content_part.added", ",\"part\":{\"type\":\"output_text\",\"text\":\"\"}")
            + &in_part(index, "output_text.delta", ",\"delta\":\"One \"")
    }

    /// The same that says something else, to its end.
    fn closed(index: u64, text: &str, before: &str) -> String {
        let part = format!("{{\"type\":\"output_text\",\"text\":\"{text}\"}}");
        let whole = format!("{{\"type\":\"message\",\"id\":\"b-{index}\",\"content\":[{part}]}}");
        let mut told = response("created", ",\"response\":{\"id\":\"b\",\"created_at\":2}");
        told += before;
        told += &opened(index).split_once("\n\n").unwrap().1.replace("One ", text);
        told += &in_part(index, "output_text.done", &format!(",\"text\":\"{text}\""));
        told += &in_part(index, "content_part.done", &format!(",\"part\":{part}"));
        told += &response("output_item.done", &format!(",\"output_index\":{index},\"item\":{whole}"));
        told += &response(
            "completed",
            &format!(
                ",\"response\":{{\"id\":\"b\",\"created_at\":2,\"output\":[{whole}],\"usage\":{{\"input_tokens\":3,\"output_tokens\":1,\"total_tokens\":4}}}}"
            ),
        );
        told.replace("message-", "b-")
    }

    fn events(told: &str) -> Vec<Value> {
        told.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
    }

    #[test]
    fn a_response_goes_on_within_its_open_message() {
        let first = said(Form::Responses, &opened(0));
        let told = events(&joined(&first, Spent { input: 7, output: 2 }, &closed(0, " two", "")));
        let short = |event: &Value| event["type"].as_str().unwrap().trim_start_matches("response.").to_owned();
        let kinds: Vec<_> = told.iter().map(short).collect();
        assert_eq!(
            kinds,
            ["output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"]
        );
        for (at, event) in told.iter().enumerate() {
            assert_eq!(event["sequence_number"], 1 + at, "{event}");
        }
        assert!(told[..3].iter().all(|event| event["item_id"] == "message-0" && event["output_index"] == 0));
        assert_eq!([&told[0]["delta"], &told[1]["text"], &told[2]["part"]["text"]], ["two", "One two", "One two"]);
        let item =
            json!({"type": "message", "id": "message-0", "content": [{"type": "output_text", "text": "One two"}]});
        assert_eq!(told[3]["item"], item);
        let usage = json!({"input_tokens": 10, "output_tokens": 3, "total_tokens": 13});
        assert_eq!(told[4]["response"], json!({"id": "a", "created_at": 1, "output": [item], "usage": usage}));
    }

    #[test]
    fn what_a_response_cites_is_placed_in_its_whole_text() {
        let first = said(Form::Responses, &opened(0));
        let cited =
            |start: u32| format!("{{\"type\":\"url_citation\",\"start_index\":{start},\"end_index\":{}}}", start + 3);
        let added = in_part(0, "output_text.annotation.added", &format!(",\"annotation\":{}", cited(1)));
        let done = "event: response.output_text.done";
        let second = closed(0, " two", "")
            .replace("\"text\":\" two\"}", &format!("\"text\":\" two\",\"annotations\":[{}]}}", cited(1)))
            .replace(done, &(added.replace("message-", "b-") + done));
        let told = events(&joined(&first, Spent::default(), &second));
        let expected: Value = serde_json::from_str(&cited(4)).unwrap();
        assert_eq!(told[1]["annotation"], expected);
        assert_eq!(told[3]["part"]["annotations"], json!([expected]));
        assert_eq!(told[4]["item"]["content"][0]["annotations"], json!([expected]));
        assert_eq!(told[5]["response"]["output"][0]["content"][0]["annotations"], json!([expected]));
    }

    #[test]
    fn a_response_that_goes_on_with_something_else_ends_its_open_message_first() {
        let first = said(Form::Responses, &opened(0));
        let thought =
            item(0, "reasoning") + &response("output_item.done", ",\"output_index\":0,\"item\":{\"id\":\"r\"}");
        let told = events(&joined(&first, Spent::default(), &closed(1, "two", &thought)));
        let places: Vec<_> = told
            .iter()
            .map(|event| {
                json!([event["type"].as_str().unwrap().trim_start_matches("response."), event["output_index"]])
            })
            .collect();
        assert_eq!(
            json!(places),
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
            [&told[0]["text"], &told[2]["item"]["content"][0]["text"], &told[8]["text"]],
            ["One ", "One ", "two"]
        );
        let output = told[11]["response"]["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["id"], &output[1]["id"]), (2, &json!("message-0"), &json!("b-1")));
    }

    #[test]
    fn what_was_said_becomes_the_beginning_of_the_answer() {
        let said = said(Form::Chat, FIRST);
        let asked = |messages: &str| {
            let body = format!("{{\"model\":\"m\",\"messages\":{messages},\"n\":1}}");
            said.ask_again(body.as_bytes()).map(|again| String::from_utf8(again.body).unwrap())
        };
        assert_eq!(
            asked("[{\"role\":\"user\",\"content\":\"q\"}]").unwrap(),
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"One two\"}],\"n\":1}"
        );
        let begun = asked("[{\"role\":\"assistant\",\"content\":\"Zero \"}]").unwrap();
        assert!(begun.contains("[{\"role\":\"assistant\",\"content\":\"Zero One two\"}]"), "{begun}");
        assert_eq!(asked("[{\"role\":\"assistant\",\"content\":[]}]"), None);
        let response = self::said(Form::Responses, &opened(0));
        let asked = |input: &str| {
            response
                .ask_again(format!("{{\"input\":{input}}}").as_bytes())
                .map(|again| String::from_utf8(again.body).unwrap())
        };
        let on = "{\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"One\"}]}";
        assert_eq!(asked("\"q\"").unwrap(), on);
        assert_eq!(asked("[{\"role\":\"user\",\"content\":\"q\"}]").unwrap(), on);
        assert_eq!(asked("3"), None);
        let begun = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"One \",\"finish_reason\":null}]}\n\n";
        let completion = self::said(Form::Completions, begun);
        assert_eq!((completion.text(), completion.obstacle(), completion.ends_in_space()), ("One ", None, false));
        let asked =
            |body: &str| completion.ask_again(body.as_bytes()).map(|again| String::from_utf8(again.body).unwrap());
        assert_eq!(asked("{\"prompt\":\"q \",\"n\":1}").unwrap(), "{\"prompt\":\"q One \",\"n\":1}");
        assert_eq!(asked("{\"prompt\":\"q \",\"echo\":true}"), None);
        assert_eq!(asked("{\"prompt\":[1,2]}"), None);
    }
}
