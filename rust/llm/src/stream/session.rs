//! Reads what a session over a WebSocket used, event by event: those of realtime sessions and of responses.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    api_format::ApiFormat,
    json::scan::{for_each_field, unescape},
    usage::{Counts, Usage},
};

static USAGE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
/// Of sessions that only write down, too: theirs are called `transcription_session`.
static UPDATED: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"session.updated\""));
/// No text in an event is spelt so: its quotes are escaped.
static ERROR: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
/// The types of events that say what one response used.
const ENDS: [&[u8]; 4] =
    [b"\"response.done\"", b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];
/// And of what another model used that wrote down what the caller said.
const WRITTEN: &[u8] = b"\"conversation.item.input_audio_transcription.completed\"";

/// What else a session is told by: how it stands, and what went wrong in it.
const STANDS: [&[u8]; 4] =
    [b"\"session.created\"", b"\"session.updated\"", b"\"transcription_session.updated\"", b"\"error\""];

/// What is longer is none of the words for how something ended.
const LONGEST_WORD: usize = 66;

/// Models whose use is kept apart; what more of them use counts as the first one's.
const MOST_OTHERS: usize = 32;

/// What a session used, model by model.
#[derive(Debug, Default)]
pub struct Session {
    /// What the first model used that the session named, and whatever says of no model that it was another.
    pub usage: Option<Usage>,
    /// That model as the provider names it.
    pub model: Option<String>,
    pub others: Vec<Share>,
    /// The model of responses that name none.
    current: Option<String>,
    writer: Option<String>,
    is_begun: bool,
}

/// What another model used than the one that a session began with.
#[derive(Debug, PartialEq, Eq)]
pub struct Share {
    pub model: String,
    pub usage: Usage,
    /// It wrote down what the caller said.
    pub is_writing: bool,
}

/// An event by which a session is told afterwards.
#[derive(Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its type, such as `response.done`.
    pub kind: String,
    /// How a response ended, or what went wrong: in the provider's word.
    pub word: Option<String>,
    /// What the response used.
    pub usage: Option<Usage>,
}

/// What one event says.
#[derive(Default)]
struct Heard {
    kind: Option<String>,
    word: Option<String>,
    is_end: bool,
    is_written: bool,
    response: Counts,
    writing: Counts,
    model: Option<String>,
}

impl Session {
    /// Takes the next event; ordinary deltas are looked at, not parsed. Gives what the session is told by afterwards.
    pub fn hear(&mut self, event: &[u8]) -> Option<Mark> {
        let says = [&USAGE, &UPDATED, &ERROR];
        if self.is_begun && says.iter().all(|finder| finder.find(event).is_none()) {
            return None;
        }
        self.is_begun = true;
        let Heard { kind, word, is_end, is_written, response, writing, model } = self.read(event);
        if let Some(model) = model.as_ref().filter(|_| self.model.is_none()) {
            self.model = Some(model.clone());
        }
        let dialect = ApiFormat::OpenAi;
        let usage = if is_end { response.settle(dialect) } else { None };
        match (is_end, is_written) {
            (_, true) => self.add(writing.settle(dialect), self.writer.clone(), true),
            (true, _) => self.add(usage, model.or_else(|| self.current.clone()), false),
            _ => (),
        }
        kind.map(|kind| Mark { kind, word, usage })
    }

    fn read(&mut self, event: &[u8]) -> Heard {
        let mut heard = Heard::default();
        let (current, writer) = (&mut self.current, &mut self.writer);
        // What is no JSON says nothing.
        let _ = for_each_field(event, |key, at| {
            match key {
                b"type" => {
                    let kind = &event[at];
                    (heard.is_end, heard.is_written) = (ENDS.contains(&kind), kind == WRITTEN);
                    heard.kind = if heard.is_end || STANDS.contains(&kind) { unescape(kind) } else { None };
                }
                b"usage" => heard.writing.read(&event[at]),
                b"response" | b"session" => {
                    let inner = &event[at];
                    let _ = for_each_field(inner, |key, at| {
                        match key {
                            b"usage" => heard.response.read(&inner[at]),
                            b"output" => heard.response.read_items(&inner[at]),
                            b"model" => heard.model = unescape(&inner[at]),
                            b"status" => heard.word = word(&inner[at]),
                            b"input_audio_transcription" => *writer = writer_in(&inner[at], &[]).or(writer.take()),
                            b"audio" => *writer = writer_in(&inner[at], &["input", "transcription"]).or(writer.take()),
                            _ => (),
                        }
                        Ok(())
                    });
                    if let (b"session", Some(model)) = (key, &heard.model) {
                        *current = Some(model.clone());
                    }
                }
                b"error" => {
                    let inner = &event[at];
                    let _ = for_each_field(inner, |key, at| {
                        match key {
                            b"code" => heard.word = word(&inner[at]).or(heard.word.take()),
                            b"type" => heard.word = heard.word.take().or_else(|| word(&inner[at])),
                            _ => (),
                        }
                        Ok(())
                    });
                }
                _ => (),
            }
            Ok(())
        });
        heard
    }

    fn add(&mut self, used: Option<Usage>, model: Option<String>, is_writing: bool) {
        let Some(used) = used else { return };
        let another = model.filter(|model| is_writing || self.model.as_ref() != Some(model));
        let is_known = |share: &Share, model: &str| share.model == model && share.is_writing == is_writing;
        match another {
            Some(model) if self.others.iter().any(|share| is_known(share, &model)) => {
                for share in self.others.iter_mut().filter(|share| is_known(share, &model)) {
                    share.usage = share.usage.plus(&used);
                }
            }
            Some(model) if self.others.len() < MOST_OTHERS => {
                self.others.push(Share { model, usage: used, is_writing });
            }
            _ => self.usage = Some(self.usage.map_or(used, |before| before.plus(&used))),
        }
    }

    /// What all of them used together.
    #[must_use]
    pub fn total(&self) -> Option<Usage> {
        let all = self.usage.iter().chain(self.others.iter().map(|share| &share.usage));
        all.copied().reduce(|sum, used| sum.plus(&used))
    }
}

/// A word of the provider's, as long as one is.
fn word(literal: &[u8]) -> Option<String> {
    if literal.len() > LONGEST_WORD { None } else { unescape(literal) }
}

/// The model that is named at the end of a way into an object.
fn writer_in(object: &[u8], way: &[&str]) -> Option<String> {
    let (wanted, rest) = way.split_first().map_or(("model", None), |(first, rest)| (*first, Some(rest)));
    let mut found = None;
    let _ = for_each_field(object, |key, at| {
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
    fn each_response_counts_for_the_model_that_it_names_or_for_that_of_its_session() {
        let mut session = Session::default();
        let of =
            |model: &str| done("response.completed", 10, 5).replace("\"id\"", &format!("\"model\":\"{model}\",\"id\""));
        for model in ["small", "large", "small", "large"] {
            session.hear(of(model).as_bytes());
        }
        session.hear(br#"{"type":"session.updated","session":{"model":"third"}}"#);
        session.hear(done("response.done", 3, 2).as_bytes());
        let used = |input, output, audio_in| Usage { input, output, audio_in, ..Usage::default() };
        let share = |model: &str, usage| Share { model: model.into(), usage, is_writing: false };
        assert_eq!((session.usage, session.model.as_deref()), (Some(used(18, 10, 2)), Some("small")));
        assert_eq!(session.others, [share("large", used(18, 10, 2)), share("third", used(2, 2, 1))]);
        assert_eq!(session.total(), Some(used(38, 22, 5)));
        for at in 0..2 * MOST_OTHERS {
            session.hear(of(&format!("model-{at}")).as_bytes());
        }
        assert_eq!(session.others.len(), MOST_OTHERS);
        let all = 2 * MOST_OTHERS as u64;
        assert_eq!(session.total(), Some(used(38 + 9 * all, 22 + 5 * all, 5 + all)));
    }

    #[test]
    fn what_it_cost_to_write_down_what_was_said_is_counted() {
        const SAID: &str = r#"{"type":"conversation.item.input_audio_transcription.completed","item_id":"i","transcript":"Hi","usage":
            {"type":"tokens","total_tokens":22,"input_tokens":13,"input_token_details":{"text_tokens":1,"audio_tokens":12},"output_tokens":9}}"#;
        let mut session = Session::default();
        session.hear(br#"{"type":"session.created","session":{"id":"s"}}"#);
        session.hear(done("response.done", 10, 5).as_bytes());
        session.hear(SAID.as_bytes());
        session.hear(
            br#"{"type":"conversation.item.input_audio_transcription.completed","usage":{"type":"duration","seconds":3}}"#,
        );
        // Nobody said who wrote.
        let usage = Usage { input: 10, audio_in: 13, output: 14, ..Usage::default() };
        assert_eq!((session.usage, session.others.len()), (Some(usage), 0));
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
            session.hear(SAID.as_bytes());
            assert_eq!(session.writer.as_deref(), Some(writer), "{event}");
        }
        let written = |model: &str, times: u64| Share {
            model: model.into(),
            usage: Usage { input: times, audio_in: 12 * times, output: 9 * times, ..Usage::default() },
            is_writing: true,
        };
        assert_eq!(session.others, [written("gpt-4o-transcribe", 3), written("whisper-1", 1)]);
    }

    #[test]
    fn how_a_session_stood_and_what_went_wrong_in_it_is_told() {
        let mut session = Session::default();
        let mut told =
            |event: &str| session.hear(event.as_bytes()).map(|mark| (mark.kind, mark.word, mark.usage.is_some()));
        let is = |kind: &str, word: Option<&str>, used| Some((kind.to_owned(), word.map(ToOwned::to_owned), used));
        assert_eq!(told(r#"{"type":"session.created","session":{"id":"s"}}"#), is("session.created", None, false));
        assert_eq!(told(r#"{"type":"session.updated","session":{}}"#), is("session.updated", None, false));
        for event in [r#"{"type":"response.created"}"#, r#"{"type":"x","delta":"\"error\" response.done"}"#, "{"] {
            assert_eq!(told(event), None, "{event}");
        }
        let usage = r#""usage":{"input_tokens":1,"output_tokens":2}"#;
        let done = format!(r#"{{"type":"response.done","response":{{"status":"cancelled",{usage}}}}}"#);
        assert_eq!(told(&done), is("response.done", Some("cancelled"), true));
        for (error, word) in [
            (r#"{"type":"invalid_request_error","code":"unknown_event"}"#, Some("unknown_event")),
            (r#"{"code":null,"type":"server_error"}"#, Some("server_error")),
            (r#"{"message":"no"}"#, None),
        ] {
            assert_eq!(told(&format!(r#"{{"type":"error","error":{error}}}"#)), is("error", word, false));
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
