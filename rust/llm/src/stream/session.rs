//! Reads what a session over a WebSocket used, event by event: those of realtime sessions and of responses.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    api_format::ApiFormat,
    json::scan::{for_each_field, unescape},
    usage::{Usage, UsageCounts},
};

static USAGE_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
/// Of sessions that only write down, too: theirs are called `transcription_session`.
static SESSION_UPDATED_TYPE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"session.updated\""));
/// No text in an event is spelt so: its quotes are escaped.
static ERROR_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
/// The types of events that say what one response used.
const RESPONSE_END_TYPES: [&[u8]; 4] =
    [b"\"response.done\"", b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];
/// And of what another model used that wrote down what the caller said.
const TRANSCRIPTION_DONE_TYPE: &[u8] = b"\"conversation.item.input_audio_transcription.completed\"";

/// What else a session is told by: how it stands, and what went wrong in it.
const LOGGED_TYPES: [&[u8]; 4] =
    [b"\"session.created\"", b"\"session.updated\"", b"\"transcription_session.updated\"", b"\"error\""];

/// What is longer is none of the words for how something ended.
const MAX_STATUS_BYTES: usize = 66;

/// Models whose use is kept apart; what more of them use counts as the first one's.
const MAX_OTHER_MODELS: usize = 32;

/// What a session used, model by model.
#[derive(Debug, Default)]
pub struct SessionMeter {
    /// What the first model used that the session named, and whatever says of no model that it was another.
    pub usage: Option<Usage>,
    /// That model as the provider names it.
    pub model: Option<String>,
    pub other_models: Vec<ModelUsage>,
    /// The model of responses that name none.
    current_model: Option<String>,
    transcription_model: Option<String>,
    has_started: bool,
}

/// What another model used than the one that a session began with.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelUsage {
    pub model: String,
    pub usage: Usage,
    /// It wrote down what the caller said.
    pub is_transcription: bool,
}

/// An event by which a session is told afterwards.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// Its type, such as `response.done`.
    pub event_type: String,
    /// How a response ended, or what went wrong: in the provider's word.
    pub status: Option<String>,
    /// What the response used.
    pub usage: Option<Usage>,
}

/// What one event says.
#[derive(Default)]
struct ParsedEvent {
    event_type: Option<String>,
    status: Option<String>,
    is_response_end: bool,
    is_transcription: bool,
    response_counts: UsageCounts,
    transcription_counts: UsageCounts,
    model: Option<String>,
}

impl SessionMeter {
    /// Takes the next event; ordinary deltas are looked at, not parsed. Gives what the session is told by afterwards.
    pub fn read_event(&mut self, event: &[u8]) -> Option<SessionEvent> {
        let says = [&USAGE_KEY, &SESSION_UPDATED_TYPE, &ERROR_KEY];
        if self.has_started && says.iter().all(|finder| finder.find(event).is_none()) {
            return None;
        }
        self.has_started = true;
        let ParsedEvent {
            event_type: kind,
            status: word,
            is_response_end: is_end,
            is_transcription: is_written,
            response_counts: response,
            transcription_counts: writing,
            model,
        } = self.parse_event(event);
        if let Some(model) = model.as_ref().filter(|_| self.model.is_none()) {
            self.model = Some(model.clone());
        }
        let dialect = ApiFormat::OpenAi;
        let usage = if is_end { response.to_usage(dialect) } else { None };
        match (is_end, is_written) {
            (_, true) => self.add_usage(writing.to_usage(dialect), self.transcription_model.clone(), true),
            (true, _) => self.add_usage(usage, model.or_else(|| self.current_model.clone()), false),
            _ => (),
        }
        kind.map(|kind| SessionEvent { event_type: kind, status: word, usage })
    }

    fn parse_event(&mut self, event: &[u8]) -> ParsedEvent {
        let mut heard = ParsedEvent::default();
        let (current, writer) = (&mut self.current_model, &mut self.transcription_model);
        // What is no JSON says nothing.
        let _ = for_each_field(event, |key, at| {
            match key {
                b"type" => {
                    let kind = &event[at];
                    (heard.is_response_end, heard.is_transcription) =
                        (RESPONSE_END_TYPES.contains(&kind), kind == TRANSCRIPTION_DONE_TYPE);
                    heard.event_type =
                        if heard.is_response_end || LOGGED_TYPES.contains(&kind) { unescape(kind) } else { None };
                }
                b"usage" => heard.transcription_counts.read_usage(&event[at]),
                b"response" | b"session" => {
                    let inner = &event[at];
                    let _ = for_each_field(inner, |key, at| {
                        match key {
                            b"usage" => heard.response_counts.read_usage(&inner[at]),
                            b"output" => heard.response_counts.read_output_items(&inner[at]),
                            b"model" => heard.model = unescape(&inner[at]),
                            b"status" => heard.status = parse_status(&inner[at]),
                            b"input_audio_transcription" => *writer = model_at_path(&inner[at], &[]).or(writer.take()),
                            b"audio" => {
                                *writer = model_at_path(&inner[at], &["input", "transcription"]).or(writer.take())
                            }
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
                            b"code" => heard.status = parse_status(&inner[at]).or(heard.status.take()),
                            b"type" => heard.status = heard.status.take().or_else(|| parse_status(&inner[at])),
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

    fn add_usage(&mut self, used: Option<Usage>, model: Option<String>, is_writing: bool) {
        let Some(used) = used else { return };
        let another = model.filter(|model| is_writing || self.model.as_ref() != Some(model));
        let is_known = |share: &ModelUsage, model: &str| share.model == model && share.is_transcription == is_writing;
        match another {
            Some(model) if self.other_models.iter().any(|share| is_known(share, &model)) => {
                for share in self.other_models.iter_mut().filter(|share| is_known(share, &model)) {
                    share.usage = share.usage.plus(&used);
                }
            }
            Some(model) if self.other_models.len() < MAX_OTHER_MODELS => {
                self.other_models.push(ModelUsage { model, usage: used, is_transcription: is_writing });
            }
            _ => self.usage = Some(self.usage.map_or(used, |before| before.plus(&used))),
        }
    }

    /// What all of them used together.
    #[must_use]
    pub fn total_usage(&self) -> Option<Usage> {
        let all = self.usage.iter().chain(self.other_models.iter().map(|share| &share.usage));
        all.copied().reduce(|sum, used| sum.plus(&used))
    }
}

/// A word of the provider's, as long as one is.
fn parse_status(literal: &[u8]) -> Option<String> {
    if literal.len() > MAX_STATUS_BYTES { None } else { unescape(literal) }
}

/// The model that is named at the end of a way into an object.
fn model_at_path(object: &[u8], way: &[&str]) -> Option<String> {
    let (wanted, rest) = way.split_first().map_or(("model", None), |(first, rest)| (*first, Some(rest)));
    let mut found = None;
    let _ = for_each_field(object, |key, at| {
        if key == wanted.as_bytes() {
            let value = &object[at];
            found = rest.map_or_else(|| unescape(value), |rest| model_at_path(value, rest));
        }
        Ok(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done_event(kind: &str, input: u64, output: u64) -> String {
        format!(
            r#"{{"type":"{kind}","response":{{"id":"r","usage":{{"input_tokens":{input},"output_tokens":{output},
            "total_tokens":{},"input_token_details":{{"audio_tokens":1}}}}}}}}"#,
            input + output
        )
    }

    #[test]
    fn sums_the_usage_of_all_responses() {
        let mut session = SessionMeter::default();
        session.read_event(br#"{"type":"session.created","session":{"id":"s","model":"gpt-realtime"}}"#);
        session.read_event(done_event("response.done", 10, 5).as_bytes());
        session.read_event(br#"{"type":"response.output_text.delta","delta":"\"usage\": {\"input_tokens\": 7}"}"#);
        session.read_event(done_event("response.completed", 3, 2).as_bytes());
        let expected = Usage { input: 11, audio_in: 2, output: 7, ..Usage::default() };
        assert_eq!((session.usage, session.model.as_deref()), (Some(expected), Some("gpt-realtime")));
    }

    #[test]
    fn attributes_usage_to_the_model_of_the_response_or_the_session() {
        let mut session = SessionMeter::default();
        let of = |model: &str| {
            done_event("response.completed", 10, 5).replace("\"id\"", &format!("\"model\":\"{model}\",\"id\""))
        };
        for model in ["small", "large", "small", "large"] {
            session.read_event(of(model).as_bytes());
        }
        session.read_event(br#"{"type":"session.updated","session":{"model":"third"}}"#);
        session.read_event(done_event("response.done", 3, 2).as_bytes());
        let used = |input, output, audio_in| Usage { input, output, audio_in, ..Usage::default() };
        let share = |model: &str, usage| ModelUsage { model: model.into(), usage, is_transcription: false };
        assert_eq!((session.usage, session.model.as_deref()), (Some(used(18, 10, 2)), Some("small")));
        assert_eq!(session.other_models, [share("large", used(18, 10, 2)), share("third", used(2, 2, 1))]);
        assert_eq!(session.total_usage(), Some(used(38, 22, 5)));
        for at in 0..2 * MAX_OTHER_MODELS {
            session.read_event(of(&format!("model-{at}")).as_bytes());
        }
        assert_eq!(session.other_models.len(), MAX_OTHER_MODELS);
        let all = 2 * MAX_OTHER_MODELS as u64;
        assert_eq!(session.total_usage(), Some(used(38 + 9 * all, 22 + 5 * all, 5 + all)));
    }

    #[test]
    fn counts_the_usage_of_transcription() {
        const TRANSCRIPTION_EVENT: &str = r#"{"type":"conversation.item.input_audio_transcription.completed","item_id":"i","transcript":"Hi","usage":
            {"type":"tokens","total_tokens":22,"input_tokens":13,"input_token_details":{"text_tokens":1,"audio_tokens":12},"output_tokens":9}}"#;
        let mut session = SessionMeter::default();
        session.read_event(br#"{"type":"session.created","session":{"id":"s"}}"#);
        session.read_event(done_event("response.done", 10, 5).as_bytes());
        session.read_event(TRANSCRIPTION_EVENT.as_bytes());
        session.read_event(
            br#"{"type":"conversation.item.input_audio_transcription.completed","usage":{"type":"duration","seconds":3}}"#,
        );
        // Nobody said who wrote.
        let usage = Usage { input: 10, audio_in: 13, output: 14, ..Usage::default() };
        assert_eq!((session.usage, session.other_models.len()), (Some(usage), 0));
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
            session.read_event(event.as_bytes());
            session.read_event(TRANSCRIPTION_EVENT.as_bytes());
            assert_eq!(session.transcription_model.as_deref(), Some(writer), "{event}");
        }
        let written = |model: &str, times: u64| ModelUsage {
            model: model.into(),
            usage: Usage { input: times, audio_in: 12 * times, output: 9 * times, ..Usage::default() },
            is_transcription: true,
        };
        assert_eq!(session.other_models, [written("gpt-4o-transcribe", 3), written("whisper-1", 1)]);
    }

    #[test]
    fn returns_session_states_and_errors() {
        let mut session = SessionMeter::default();
        let mut told = |event: &str| {
            session.read_event(event.as_bytes()).map(|mark| (mark.event_type, mark.status, mark.usage.is_some()))
        };
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
    fn ignores_the_usage_of_other_events() {
        let mut session = SessionMeter::default();
        for event in [
            "",
            "[]",
            "{",
            r#"{"type":"response.done"}"#,
            &done_event("response.created", 1, 1),
            &done_event("other", 1, 1),
        ] {
            session.read_event(event.as_bytes());
        }
        assert_eq!(session.usage, None);
    }
}
