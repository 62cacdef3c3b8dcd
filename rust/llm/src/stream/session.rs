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
        let (mut is_end, mut counts) = (false, Counts::default());
        let model = &mut self.model;
        // What is no JSON says nothing.
        let _ = fields(event, |key, at| {
            match key {
                b"type" => is_end = ENDS.contains(&&event[at]),
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
        if let (true, Some(used)) = (is_end, counts.settle(Dialect::OpenAi)) {
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
