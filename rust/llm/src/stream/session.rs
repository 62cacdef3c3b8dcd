//! Reads what a session over a WebSocket used, event by event: those of realtime sessions and of responses.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    dialect::{
        Dialect,
        scan::{fields, unescape},
    },
    usage::{Counts, Usage},
};

static USAGE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
/// Of sessions that only write down, too: theirs are called `transcription_session`.
static UPDATED: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"session.updated\""));
/// The types of events that say what one response used.
const ENDS: [&[u8]; 4] =
    [b"\"response.done\"", b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];
/// And of what another model used that wrote down what the caller said.
const WRITTEN: &[u8] = b"\"conversation.item.input_audio_transcription.completed\"";

/// What the responses of a session used together.
#[derive(Debug, Default)]
pub struct Session {
    pub usage: Option<Usage>,
    /// The model as the provider names it.
    pub model: Option<String>,
    /// What another model used that wrote down what the caller said, and that model, where the provider says which it is.
    pub written: Option<Usage>,
    pub writer: Option<String>,
    is_begun: bool,
}

impl Session {
    /// Takes the next event; ordinary deltas are looked at, not parsed.
    pub fn hear(&mut self, event: &[u8]) {
        if self.is_begun && USAGE.find(event).is_none() && UPDATED.find(event).is_none() {
            return;
        }
        self.is_begun = true;
        let (mut is_end, mut is_written) = (false, false);
        let (mut counts, mut counts_of_writing) = (Counts::default(), Counts::default());
        let (model, writer) = (&mut self.model, &mut self.writer);
        // What is no JSON says nothing.
        let _ = fields(event, |key, at| {
            match key {
                b"type" => {
                    let kind = &event[at];
                    (is_end, is_written) = (ENDS.contains(&kind), kind == WRITTEN);
                }
                b"usage" => counts_of_writing.read(&event[at]),
                b"response" | b"session" => {
                    let inner = &event[at];
                    let _ = fields(inner, |key, at| {
                        match key {
                            b"usage" => counts.read(&inner[at]),
                            b"model" if model.is_none() => *model = unescape(&inner[at]),
                            b"input_audio_transcription" => *writer = writer_in(&inner[at], &[]).or(writer.take()),
                            b"audio" => *writer = writer_in(&inner[at], &["input", "transcription"]).or(writer.take()),
                            _ => (),
                        }
                        Ok(())
                    });
                }
                _ => (),
            }
            Ok(())
        });
        let (counts, sum) = match (is_end, is_written) {
            (_, true) => (counts_of_writing, &mut self.written),
            (true, _) => (counts, &mut self.usage),
            _ => return,
        };
        if let Some(used) = counts.settle(Dialect::OpenAi) {
            *sum = Some(sum.map_or(used, |before| before.plus(&used)));
        }
    }
}

/// The model that is named at the end of a way into an object.
fn writer_in(object: &[u8], way: &[&str]) -> Option<String> {
    let (wanted, rest) = way.split_first().map_or(("model", None), |(first, rest)| (*first, Some(rest)));
    let mut found = None;
    let _ = fields(object, |key, at| {
        if key == wanted.as_bytes() {
            let value = &object[at];
            found = rest.map_or_else(|| unescape(value), |rest| writer_in(value, rest));
        }
        Ok(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(kind: &str, input: u64, output: u64) -> String {
        format!(
            r#"{{"type":"{kind}","response":{{"id":"r","usage":{{"input_tokens":{input},"output_tokens":{output},
            "total_tokens":{},"input_token_details":{{"audio_tokens":1}}}}}}}}"#,
            input + output
        )
    }

    #[test]
    fn what_the_responses_of_a_session_used_is_summed_up() {
        let mut session = Session::default();
        session.hear(br#"{"type":"session.created","session":{"id":"s","model":"gpt-realtime"}}"#);
        session.hear(done("response.done", 10, 5).as_bytes());
        session.hear(br#"{"type":"response.output_text.delta","delta":"\"usage\": {\"input_tokens\": 7}"}"#);
        session.hear(done("response.completed", 3, 2).as_bytes());
        let expected = Usage { input: 11, audio_in: 2, output: 7, ..Usage::default() };
        assert_eq!((session.usage, session.model.as_deref()), (Some(expected), Some("gpt-realtime")));
    }

    #[test]
    fn what_it_cost_to_write_down_what_was_said_is_counted() {
        let mut session = Session::default();
        session.hear(br#"{"type":"session.created","session":{"id":"s"}}"#);
        session.hear(done("response.done", 10, 5).as_bytes());
        session.hear(
            br#"{"type":"conversation.item.input_audio_transcription.completed","item_id":"i","transcript":"Hi","usage":
            {"type":"tokens","total_tokens":22,"input_tokens":13,"input_token_details":{"text_tokens":1,"audio_tokens":12},"output_tokens":9}}"#,
        );
        session.hear(
            br#"{"type":"conversation.item.input_audio_transcription.completed","usage":{"type":"duration","seconds":3}}"#,
        );
        let usage = Usage { input: 9, audio_in: 1, output: 5, ..Usage::default() };
        let written = Usage { input: 1, audio_in: 12, output: 9, ..Usage::default() };
        assert_eq!((session.usage, session.written, session.writer.take()), (Some(usage), Some(written), None));
        for (event, writer) in [
            (
                r#"{"type":"session.updated","session":{"audio":{"input":{"transcription":{"model":"gpt-4o-transcribe"}}}}}"#,
                "gpt-4o-transcribe",
            ),
            (
                r#"{"type":"session.updated","session":{"audio":{"input":{"transcription":null}},"voice":"ash"}}"#,
                "gpt-4o-transcribe",
            ),
            (
                r#"{"type":"session.updated","session":{"input_audio_transcription":{"language":"en","model":"whisper-1"}}}"#,
                "whisper-1",
            ),
            (
                r#"{"type":"transcription_session.updated","session":{"input_audio_transcription":{"model":"gpt-4o-transcribe"}}}"#,
                "gpt-4o-transcribe",
            ),
        ] {
            session.hear(event.as_bytes());
            assert_eq!(session.writer.as_deref(), Some(writer), "{event}");
        }
    }

    #[test]
    fn what_is_no_end_of_a_response_says_nothing_of_its_use() {
        let mut session = Session::default();
        for event in
            ["", "[]", "{", r#"{"type":"response.done"}"#, &done("response.created", 1, 1), &done("other", 1, 1)]
        {
            session.hear(event.as_bytes());
        }
        assert_eq!(session.usage, None);
    }
}
