//! Reads what those answer who are compatible with `OpenAI`, whole and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Thoughts, citations::Citing};
use crate::chat::providers::openai_chat::reasoning_details::Details;
use crate::{
    api_format::ApiFormat,
    chat::{
        call_ids,
        event::{Piece, Place, Taker},
        providers::{Broken, Found, Listener},
        request::Source,
    },
    citations::Spoken,
    usage::Counts,
};

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    service_tier: Option<&'a RawValue>,
    #[serde(default, borrow)]
    x_groq: Option<Groq<'a>>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    search_results: Option<&'a RawValue>,
}

/// Where Groq puts what a stream cost.
#[derive(Deserialize)]
struct Groq<'a> {
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(default, borrow)]
    delta: Option<Said<'a>>,
    /// Of a whole answer. Who sends both in a stream repeats itself here.
    #[serde(default, borrow)]
    message: Option<Said<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct Said<'a> {
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
    #[serde(default, borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    audio: Option<&'a RawValue>,
    #[serde(default)]
    images: Option<Vec<Value>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function: Option<Function<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    arguments: Option<Cow<'a, str>>,
}

impl Call<'_> {
    /// Its id and its name, where they are said.
    fn named(&self) -> (&str, &str) {
        let name = self.function.as_ref().and_then(|function| function.name.as_deref());
        (self.id.as_deref().unwrap_or_default(), name.unwrap_or_default())
    }
}

pub fn read(answer: &[u8], thoughts: Thoughts, taker: &mut dyn Taker) -> Result<(), Broken> {
    let answer: Answer<'_> = serde_json::from_slice(answer)?;
    if answer.choices.is_empty() {
        return Err(Broken("it has no choices".into()));
    }
    let mut hearing = Hearing { is_whole: true, ..Hearing::new(thoughts) };
    hearing.take(&answer, taker);
    hearing.over(taker);
    Ok(())
}

/// Hears a streamed chat completion; a whole one is the same in one chunk.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each says yes or no to something of its own")]
pub struct Hearing {
    /// All of it is in one chunk.
    is_whole: bool,
    is_begun: bool,
    is_finished: bool,
    is_over: bool,
    id: String,
    counts: Counts,
    calls: Vec<Known>,
    citing: Citing,
    /// What is to come back of its thoughts, where they are said in more than words.
    details: Option<Details>,
}

/// A call that was begun, as its provider tells it from others.
struct Known {
    index: Option<u64>,
    id: String,
    name: String,
}

impl Listener for Hearing {
    fn hear(&mut self, data: &[u8], taker: &mut dyn Taker) {
        if data.trim_ascii() == b"[DONE]" {
            return self.end(taker);
        }
        // What is no chunk says nothing.
        let Ok(answer) = serde_json::from_slice::<Answer<'_>>(data) else { return };
        match answer.error {
            Some(error) if error.get() != "null" => self.fail(error.get().as_bytes(), taker),
            _ => self.take(&answer, taker),
        }
    }

    /// Some close where `OpenAI` says that it is done.
    fn over(&mut self, taker: &mut dyn Taker) {
        if self.is_finished {
            self.end(taker);
        }
    }
}

impl Hearing {
    pub fn new(thoughts: Thoughts) -> Self {
        Self { details: (thoughts == Thoughts::Details).then(Details::default), ..Self::default() }
    }

    fn take(&mut self, answer: &Answer<'_>, taker: &mut dyn Taker) {
        let id = answer.id.as_deref().unwrap_or_default();
        let says_nothing = id.is_empty() && answer.choices.is_empty();
        if !self.is_begun && !says_nothing {
            self.is_begun = true;
            id.clone_into(&mut self.id);
            taker.take(Piece::Start { id, model: answer.model.as_deref().unwrap_or_default() });
        }
        if let Some(choice) = answer.choices.iter().find(|choice| choice.index == 0) {
            if let Some(said) = choice.delta.as_ref().or(choice.message.as_ref()) {
                self.said(said, taker);
            }
            if let Some(json) = choice.logprobs.filter(|json| says_something(json)) {
                taker.take(Piece::Aside { place: Place::Choice, name: "logprobs", json: json.get() });
            }
            if let Some(reason) = &choice.finish_reason {
                self.is_finished = true;
                taker.take(Piece::Finish { reason, stop_sequence: None });
            }
        }
        let beside = answer.x_groq.as_ref().and_then(|groq| groq.usage);
        if let Some(usage) = answer.usage.or(beside) {
            self.counts.read(usage.get().as_bytes());
        }
        if let Some(tier) = answer.service_tier {
            self.counts.serve(b"service_tier", tier.get().as_bytes());
        }
        for (name, json) in [("citations", answer.citations), ("search_results", answer.search_results)] {
            let Some(json) = json.filter(|json| says_something(json)) else { continue };
            self.citing.keep(name, json);
        }
    }

    fn said(&mut self, said: &Said<'_>, taker: &mut dyn Taker) {
        let more = self.details.as_mut().zip(said.reasoning_details);
        let words = more.map(|(details, more)| details.add(more, self.is_whole)).filter(|words| !words.is_empty());
        let thought = said.reasoning_content.or(said.reasoning).and_then(text);
        if let Some(thought) = thought.or(words.map(Cow::Owned)) {
            taker.take(Piece::Thinking(&thought));
        }
        self.seal(said, taker);
        if let Some(content) = said.content {
            speak(content, &mut self.citing.said, taker);
        }
        if let Some(refusal) = said.refusal.as_deref().filter(|text| !text.is_empty()) {
            taker.take(Piece::Refusal(refusal));
        }
        for call in said.tool_calls.iter().flatten() {
            self.call(call, taker);
        }
        if let Some(json) = said.annotations.filter(|json| says_something(json)) {
            self.citing.annotate(json.get(), taker);
        }
        if let Some(json) = said.audio.filter(|json| says_something(json)) {
            taker.take(Piece::Aside { place: Place::Message, name: "audio", json: json.get() });
        }
        for image in said.images.iter().flatten() {
            show(image, taker);
        }
        let seal = said.extra_content.as_ref().and_then(|extra| extra.pointer("/google/thought_signature")?.as_str());
        if let Some(seal) = seal {
            taker.take(Piece::Seal(seal));
        }
    }

    /// Thoughts are over where something else begins.
    fn seal(&mut self, said: &Said<'_>, taker: &mut dyn Taker) {
        if self.details.is_none() {
            return;
        }
        // More of a call that was begun is nothing else.
        let is_new = |call: &Call<'_>| self.find(call).is_none();
        let is_over = said.content.is_some_and(says_something) || said.tool_calls.iter().flatten().any(is_new);
        if let Some(details) = self.details.as_mut().filter(|_| is_over) {
            details.tell(taker);
        }
    }

    fn call(&mut self, call: &Call<'_>, taker: &mut dyn Taker) {
        let at = self.find(call).unwrap_or_else(|| {
            let (id, name) = call.named();
            let signature = call.extra_content.as_ref();
            let signature = signature.and_then(|extra| extra.pointer("/google/thought_signature")?.as_str());
            // Who gives no ids has them made; theirs must be the same however often the answer is read.
            let own = format!("call_{}_{}", self.id, self.calls.len());
            // It may come back without being written anew.
            let own = call_ids::OPENAI.fit(&own);
            taker.take(Piece::Call { id: if id.is_empty() { &own } else { id }, name, signature });
            self.calls.push(Known { index: call.index, id: id.to_owned(), name: name.to_owned() });
            self.calls.len() - 1
        });
        let arguments = call.function.as_ref().and_then(|function| function.arguments.as_deref());
        if let Some(json) = arguments.filter(|json| !json.is_empty()) {
            taker.take(Piece::Arguments { call: at, json });
        }
    }

    /// Some number every call 0, and tell them apart by their ids; who has no ids either begins each with its name. In a whole
    /// answer each is another.
    fn find(&self, call: &Call<'_>) -> Option<usize> {
        let (index, (id, name)) = (call.index, call.named());
        let is_it = |known: &Known| {
            let is_more = match (id, name) {
                ("", "") => true,
                ("", name) => index.is_some() && known.name == name,
                (id, _) => known.id == id,
            };
            !self.is_whole && is_more && (index.is_none() || known.index == index)
        };
        self.calls.iter().rposition(is_it)
    }

    fn end(&mut self, taker: &mut dyn Taker) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if let Some(details) = &mut self.details {
            details.tell(taker);
        }
        self.citing.tell(taker);
        if let Some(usage) = self.counts.settle(ApiFormat::OpenAi) {
            taker.take(Piece::Usage(usage));
        }
        taker.take(Piece::End);
    }

    fn fail(&mut self, error: &[u8], taker: &mut dyn Taker) {
        self.is_over = true;
        let found = of_object(error);
        let message = found.message.unwrap_or_else(|| String::from_utf8_lossy(error).into_owned());
        taker.take(Piece::Failed { kind: found.kind.as_deref(), message: &message, code: found.code.as_deref() });
    }
}

fn says_something(json: &RawValue) -> bool {
    !matches!(json.get(), "null" | "[]" | "{}" | "\"\"")
}

/// An image that was made: its bytes, or where it is.
fn show(image: &Value, taker: &mut dyn Taker) {
    let url = image["image_url"]["url"].as_str().or_else(|| image["url"].as_str()).unwrap_or_default();
    if let Source::Data { mime, data } = Source::of_url(url.to_owned(), None) {
        taker.take(Piece::Image { mime: &mime, data: &data });
    } else {
        let json = json!([image]).to_string();
        taker.take(Piece::Aside { place: Place::Message, name: "images", json: &json });
    }
}

/// What is said: a text, or parts of which some may be thoughts.
fn speak(content: &RawValue, spoken: &mut Spoken, taker: &mut dyn Taker) {
    if !content.get().contains("\"thinking\"") || content.get().starts_with('"') {
        if let Some(said) = text(content) {
            spoken.push(&said);
            taker.take(Piece::Text(&said));
        }
        return;
    }
    for part in serde_json::from_str::<Vec<Value>>(content.get()).unwrap_or_default() {
        let thought: String = match &part["thinking"] {
            Value::String(text) => text.clone(),
            Value::Array(inner) => inner.iter().filter_map(|one| one["text"].as_str()).collect(),
            _ => String::new(),
        };
        if !thought.is_empty() {
            taker.take(Piece::Thinking(&thought));
        }
        if let Some(said) = part["text"].as_str().filter(|text| !text.is_empty()) {
            spoken.push(said);
            taker.take(Piece::Text(said));
        }
    }
}

/// Text, or the text of an array of parts; nothing where there is none.
fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    if json.starts_with('"') {
        // Without an escape it is what stands there.
        let inner = json.get(1..json.len() - 1).filter(|inner| !inner.contains('\\'));
        let text = inner.map(Cow::Borrowed).or_else(|| serde_json::from_str(json).ok().map(Cow::Owned))?;
        return Some(text).filter(|text| !text.is_empty());
    }
    let parts: Vec<Value> = serde_json::from_str(json).ok()?;
    let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    (!text.is_empty()).then_some(Cow::Owned(text))
}

/// The error in whichever place a compatible provider has it.
pub fn error(answer: &[u8]) -> Found {
    // Some put it into an array.
    let body = match serde_json::from_slice(answer) {
        Ok(Value::Array(mut items)) if !items.is_empty() => items.swap_remove(0),
        Ok(Value::String(message)) => return Found { message: Some(message), ..Found::default() },
        Ok(body) => body,
        Err(_) => return Found::default(),
    };
    match &body["error"] {
        // What else is said of it stands beside it.
        Value::String(message) => Found { message: Some(message.clone()), ..found(&body) },
        Value::Object(_) => found(&body["error"]),
        _ => found(&body),
    }
}

fn of_object(error: &[u8]) -> Found {
    match serde_json::from_slice::<Value>(error) {
        Ok(Value::String(message)) => Found { message: Some(message), ..Found::default() },
        Ok(error) => found(&error),
        Err(_) => Found::default(),
    }
}

fn found(error: &Value) -> Found {
    let fault = &error["fault"];
    let detail = match &error["detail"] {
        Value::Array(items) => items.first().map(located),
        detail => text_of(detail),
    };
    Found {
        message: text_of(&error["message"])
            .or(detail)
            .or_else(|| text_of(&fault["faultstring"]))
            .or_else(|| text_of(&error["err_msg"]))
            .or_else(|| several(&error["errors"])),
        kind: text_of(&error["type"])
            // As a number it is no kind.
            .or_else(|| error["status"].as_str().map(ToOwned::to_owned))
            .or_else(|| text_of(&error["detail"][0]["type"]))
            .or_else(|| text_of(&error["name"])),
        // Stability's names stand beside an id, which says which error it was.
        param: text_of(&error["param"]).or_else(|| {
            let is_stabilitys = error["errors"].is_array() && error["name"].is_string();
            text_of(&error["id"]).filter(|_| is_stabilitys)
        }),
        code: text_of(&error["code"])
            .or_else(|| text_of(&fault["detail"]["errorcode"]))
            .or_else(|| text_of(&error["err_code"])),
    }
}

/// Errors in a list: texts, or a code and a message each.
fn several(errors: &Value) -> Option<String> {
    let one = |error: &Value| match (error, text_of(&error["code"]), text_of(&error["message"])) {
        (Value::String(text), ..) => Some(text.clone()),
        (_, Some(code), Some(message)) => Some(format!("Error {code}:{message}")),
        (_, _, message) => message,
    };
    let all: Vec<_> = errors.as_array()?.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What is wrong, and where in the request.
fn located(item: &Value) -> String {
    let place: Vec<_> = item["loc"].as_array().into_iter().flatten().filter_map(text_of).collect();
    let message = item["msg"].as_str().unwrap_or_default();
    if place.is_empty() { message.to_owned() } else { format!("{}: {message}", place.join(".")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Ids(Vec<String>);

    impl Taker for Ids {
        fn take(&mut self, piece: Piece<'_>) {
            if let Piece::Call { id, .. } = piece {
                self.0.push(id.to_owned());
            }
        }
    }

    #[test]
    fn an_id_that_is_made_here_fits_wherever_it_comes_back() {
        let ids = |id: &str| {
            let calls = json!([{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]);
            let answer = json!({"id": id, "choices": [{"message": {"tool_calls": calls}}]});
            let mut ids = Ids::default();
            read(answer.to_string().as_bytes(), Thoughts::Stay, &mut ids).unwrap();
            ids.0
        };
        assert_eq!(ids("c-1"), ["call_c-1_0", "call_c-1_1"]);
        let long = ids("chatcmpl-9b0f6c5e-5d0e-4a5c-9e5b-0d7a3f1c2b4e");
        assert!(long.iter().all(|id| id.len() <= 40) && long[0] != long[1], "{long:?}");
        assert_eq!(long, ids("chatcmpl-9b0f6c5e-5d0e-4a5c-9e5b-0d7a3f1c2b4e"));
    }

    #[test]
    fn an_error_is_found_in_whichever_shape_a_provider_has_for_it() {
        for (body, message, kind, code) in [
            (json!({"error": {"message": "m", "type": "t", "code": "c"}}), "m", Some("t"), Some("c")),
            (json!({"object": "error", "message": "m", "type": "t", "code": 3051}), "m", Some("t"), Some("3051")),
            (json!({"error": {"code": 400, "message": "m", "status": "S"}}), "m", Some("S"), Some("400")),
            (json!([{"error": {"code": 400, "message": "m", "status": "S"}}]), "m", Some("S"), Some("400")),
            (json!({"error": "m"}), "m", None, None),
            (json!({"code": "c", "error": "m"}), "m", None, Some("c")),
            (json!("m"), "m", None, None),
            (json!({"message": "m"}), "m", None, None),
            (json!({"detail": "m"}), "m", None, None),
            (json!({"detail": [{"loc": ["body", 0], "msg": "m", "type": "t"}]}), "body.0: m", Some("t"), None),
            (json!({"success": false, "errors": [{"code": 7003, "message": "m"}]}), "Error 7003:m", None, None),
            (json!({"id": "e1", "name": "bad_request", "errors": ["a", "b"]}), "a; b", Some("bad_request"), None),
            (json!({"fault": {"faultstring": "m", "detail": {"errorcode": "c"}}}), "m", None, Some("c")),
        ] {
            let found = error(body.to_string().as_bytes());
            assert_eq!(found.message.as_deref(), Some(message), "{body}");
            assert_eq!((found.kind.as_deref(), found.code.as_deref()), (kind, code), "{body}");
        }
        assert_eq!(error(b"<html>"), Found::default());
        assert_eq!(error(b"{\"unknown\":1}").message, None);
    }
}
