//! Usage meter for WebSocket sessions, of the realtime API and the responses API. Reads usage event by event.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    api_format::format::ApiFormat,
    json::{scan::for_each_field, string_literal::unescape},
    usage::{Usage, UsageCounts},
};

static USAGE_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
/// Type of the event that reports the session settings. Also matches `transcription_session.updated`, which
/// transcription-only sessions send.
static SESSION_UPDATED_TYPE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"session.updated\""));
/// Key of an error. It cannot match text inside an event, because quotes are escaped there.
static ERROR_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
/// Types of the events that report the usage of one response.
const RESPONSE_END_TYPES: [&[u8]; 4] =
    [b"\"response.done\"", b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];
/// Type of the event that reports the usage of the model that transcribed the client's audio.
const TRANSCRIPTION_DONE_TYPE: &[u8] = b"\"conversation.item.input_audio_transcription.completed\"";

/// Types of the other events that are logged: session state and errors.
const LOGGED_TYPES: [&[u8]; 4] =
    [b"\"session.created\"", b"\"session.updated\"", b"\"transcription_session.updated\"", b"\"error\""];

/// Maximum length of a JSON literal that is accepted as a status or an error code.
const MAX_STATUS_BYTES: usize = 66;

/// Number of other models whose usage is tracked separately. The usage of further models is added to that of the first
/// one.
const MAX_OTHER_MODELS: usize = 32;

/// Usage of a session, by model.
#[derive(Debug, Default)]
pub struct SessionMeter {
    /// Usage of the first model that the session named, and of all events that name no other model.
    pub usage: Option<Usage>,
    /// First model of the session, as the provider names it.
    pub model: Option<String>,
    pub other_models: Vec<ModelUsage>,
    /// Model of responses that name none.
    current_model: Option<String>,
    transcription_model: Option<String>,
    has_started: bool,
}

/// Usage of a model other than the session's first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelUsage {
    pub model: String,
    pub usage: Usage,
    /// True if the model transcribed the client's audio.
    pub is_transcription: bool,
}

/// Session event that is written to the request log.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// Event type, such as `response.done`.
    pub event_type: String,
    /// Status of the response or code of the error, as the provider spells it.
    pub status: Option<String>,
    /// Usage of the response.
    pub usage: Option<Usage>,
}

/// Fields of one event.
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
    /// Reads the next event; ordinary deltas are searched for keys but not parsed. Returns the event if it belongs in
    /// the request log.
    pub fn read_event(&mut self, event: &[u8]) -> Option<SessionEvent> {
        let finders = [&USAGE_KEY, &SESSION_UPDATED_TYPE, &ERROR_KEY];
        if self.has_started && finders.iter().all(|finder| finder.find(event).is_none()) {
            return None;
        }
        self.has_started = true;
        let ParsedEvent {
            event_type: kind,
            status,
            is_response_end: is_end,
            is_transcription: is_written,
            response_counts: response,
            transcription_counts: writing,
            model,
        } = self.parse_event(event);
        if let Some(model) = model.as_ref().filter(|_| self.model.is_none()) {
            self.model = Some(model.clone());
        }
        let api_format = ApiFormat::OpenAi;
        let usage = if is_end { response.to_usage(api_format) } else { None };
        match (is_end, is_written) {
            (_, true) => self.add_usage(writing.to_usage(api_format), self.transcription_model.clone(), true),
            (true, _) => self.add_usage(usage, model.or_else(|| self.current_model.clone()), false),
            _ => (),
        }
        kind.map(|kind| SessionEvent { event_type: kind, status, usage })
    }

    fn parse_event(&mut self, event: &[u8]) -> ParsedEvent {
        let mut parsed = ParsedEvent::default();
        let (current, writer) = (&mut self.current_model, &mut self.transcription_model);
        // Invalid JSON is ignored.
        let _ = for_each_field(event, |key, at| {
            match key {
                b"type" => {
                    let kind = &event[at];
                    (parsed.is_response_end, parsed.is_transcription) =
                        (RESPONSE_END_TYPES.contains(&kind), kind == TRANSCRIPTION_DONE_TYPE);
                    parsed.event_type =
                        if parsed.is_response_end || LOGGED_TYPES.contains(&kind) { unescape(kind) } else { None };
                }
                b"usage" => parsed.transcription_counts.read_usage(&event[at]),
                b"response" | b"session" => {
                    let inner = &event[at];
                    let _ = for_each_field(inner, |key, at| {
                        match key {
                            b"usage" => parsed.response_counts.read_usage(&inner[at]),
                            b"output" => parsed.response_counts.read_output_items(&inner[at]),
                            b"model" => parsed.model = unescape(&inner[at]),
                            b"status" => parsed.status = parse_status(&inner[at]),
                            b"input_audio_transcription" => *writer = model_at_path(&inner[at], &[]).or(writer.take()),
                            b"audio" => {
                                *writer = model_at_path(&inner[at], &["input", "transcription"]).or(writer.take());
                            }
                            _ => (),
                        }
                        Ok(())
                    });
                    if let (b"session", Some(model)) = (key, &parsed.model) {
                        *current = Some(model.clone());
                    }
                }
                b"error" => {
                    let inner = &event[at];
                    let _ = for_each_field(inner, |key, at| {
                        match key {
                            b"code" => parsed.status = parse_status(&inner[at]).or(parsed.status.take()),
                            b"type" => parsed.status = parsed.status.take().or_else(|| parse_status(&inner[at])),
                            _ => (),
                        }
                        Ok(())
                    });
                }
                _ => (),
            }
            Ok(())
        });
        parsed
    }

    fn add_usage(&mut self, used: Option<Usage>, model: Option<String>, is_writing: bool) {
        let Some(used) = used else { return };
        let other_model = model.filter(|model| is_writing || self.model.as_ref() != Some(model));
        let is_known = |share: &ModelUsage, model: &str| share.model == model && share.is_transcription == is_writing;
        match other_model {
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

    /// Returns the usage of all models together.
    #[must_use]
    pub fn total_usage(&self) -> Option<Usage> {
        let all = self.usage.iter().chain(self.other_models.iter().map(|share| &share.usage));
        all.copied().reduce(|sum, used| sum.plus(&used))
    }
}

/// Parses a status or an error code; `None` if it is too long.
fn parse_status(literal: &[u8]) -> Option<String> {
    if literal.len() > MAX_STATUS_BYTES { None } else { unescape(literal) }
}

/// Returns the `model` field of the object at this path.
fn model_at_path(object: &[u8], path: &[&str]) -> Option<String> {
    let (name, rest) = path.split_first().map_or(("model", None), |(first, rest)| (*first, Some(rest)));
    let mut model = None;
    let _ = for_each_field(object, |key, at| {
        if key == name.as_bytes() {
            let value = &object[at];
            model = rest.map_or_else(|| unescape(value), |rest| model_at_path(value, rest));
        }
        Ok(())
    });
    model
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
        let completed_event = |model: &str| {
            done_event("response.completed", 10, 5).replace("\"id\"", &format!("\"model\":\"{model}\",\"id\""))
        };
        for model in ["small", "large", "small", "large"] {
            session.read_event(completed_event(model).as_bytes());
        }
        session.read_event(br#"{"type":"session.updated","session":{"model":"third"}}"#);
        session.read_event(done_event("response.done", 3, 2).as_bytes());
        let used = |input, output, audio_in| Usage { input, output, audio_in, ..Usage::default() };
        let share = |model: &str, usage| ModelUsage { model: model.into(), usage, is_transcription: false };
        assert_eq!((session.usage, session.model.as_deref()), (Some(used(18, 10, 2)), Some("small")));
        assert_eq!(session.other_models, [share("large", used(18, 10, 2)), share("third", used(2, 2, 1))]);
        assert_eq!(session.total_usage(), Some(used(38, 22, 5)));
        for at in 0..2 * MAX_OTHER_MODELS {
            session.read_event(completed_event(&format!("model-{at}")).as_bytes());
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
        // No event has named the transcription model yet.
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
        let mut summary = |event: &str| {
            session.read_event(event.as_bytes()).map(|mark| (mark.event_type, mark.status, mark.usage.is_some()))
        };
        let is = |kind: &str, status: Option<&str>, used| Some((kind.to_owned(), status.map(ToOwned::to_owned), used));
        assert_eq!(summary(r#"{"type":"session.created","session":{"id":"s"}}"#), is("session.created", None, false));
        assert_eq!(summary(r#"{"type":"session.updated","session":{}}"#), is("session.updated", None, false));
        for event in [r#"{"type":"response.created"}"#, r#"{"type":"x","delta":"\"error\" response.done"}"#, "{"] {
            assert_eq!(summary(event), None, "{event}");
        }
        let usage = r#""usage":{"input_tokens":1,"output_tokens":2}"#;
        let done = format!(r#"{{"type":"response.done","response":{{"status":"cancelled",{usage}}}}}"#);
        assert_eq!(summary(&done), is("response.done", Some("cancelled"), true));
        for (error, expected_status) in [
            (r#"{"type":"invalid_request_error","code":"unknown_event"}"#, Some("unknown_event")),
            (r#"{"code":null,"type":"server_error"}"#, Some("server_error")),
            (r#"{"message":"no"}"#, None),
        ] {
            assert_eq!(summary(&format!(r#"{{"type":"error","error":{error}}}"#)), is("error", expected_status, false));
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
