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
    is_begun: bool,
}

impl Session {
    /// Takes the next event; ordinary deltas are looked at, not parsed.
    pub fn hear(&mut self, event: &[u8]) {
        if self.is_begun && USAGE.find(event).is_none() {
            return;
        }
        self.is_begun = true;
        let (mut is_end, mut is_written) = (false, false);
        let (mut counts, mut counts_of_writing) = (Counts::default(), Counts::default());
        let model = &mut self.model;
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
                            _ => (),
                        }
                        Ok(())
                    });
                }
                _ => (),
            }
            Ok(())
        });
        let counts = if is_written { counts_of_writing } else { counts };
        if let (true, Some(used)) = (is_end || is_written, counts.settle(Dialect::OpenAi)) {
            self.usage = Some(self.usage.map_or(used, |before| before.plus(&used)));
        }
    }
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
        let expected = Usage { input: 10, audio_in: 13, output: 14, ..Usage::default() };
        assert_eq!(session.usage, Some(expected));
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
