//! Reads what Cohere answers, whole and streamed.

use serde_json::{Value, json};

use super::citations::Citing;
use crate::{
    api_format::ApiFormat,
    chat::{
        event::{Piece, Place, Taker},
        providers::{Broken, Listener},
    },
    usage::Counts,
};

pub fn read(answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
    let answer: Value = serde_json::from_slice(answer)?;
    let Some(message) = answer["message"].as_object() else { return Err(Broken("it has no message".into())) };
    taker.take(Piece::Start { id: text(&answer["id"]), model: "" });
    if let Some(plan) = message.get("tool_plan").map(text).filter(|plan| !plan.is_empty()) {
        taker.take(Piece::Thinking(plan));
    }
    let mut citing = Citing::default();
    for (at, part) in (0..).zip(items(message.get("content"))) {
        citing.hear(at, text(&part["text"]));
        say(part, taker);
    }
    for (at, call) in items(message.get("tool_calls")).iter().enumerate() {
        begin(call, taker);
        let arguments = text(&call["function"]["arguments"]);
        taker.take(Piece::Arguments { call: at, json: if arguments.is_empty() { "{}" } else { arguments } });
    }
    citing.tell(message.get("citations").unwrap_or(&Value::Null), taker);
    beside("logprobs", &answer["logprobs"], Place::Choice, taker);
    end(&answer, taker);
    Ok(())
}

fn beside(name: &str, value: &Value, place: Place, taker: &mut dyn Taker) {
    if value.as_array().is_some_and(|items| !items.is_empty()) {
        taker.take(Piece::Aside { place, name, json: &value.to_string() });
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn say(part: &Value, taker: &mut dyn Taker) {
    match (text(&part["text"]), text(&part["thinking"])) {
        ("", "") => (),
        ("", thought) => taker.take(Piece::Thinking(thought)),
        (said, _) => taker.take(Piece::Text(said)),
    }
}

fn begin(call: &Value, taker: &mut dyn Taker) {
    taker.take(Piece::Call { id: text(&call["id"]), name: text(&call["function"]["name"]), signature: None });
}

fn end(answer: &Value, taker: &mut dyn Taker) {
    let mut counts = Counts::default();
    counts.read(answer["usage"].to_string().as_bytes());
    if let Some(usage) = counts.settle(ApiFormat::OpenAi) {
        taker.take(Piece::Usage(usage));
    }
    taker.take(Piece::Finish { reason: text(&answer["finish_reason"]), stop_sequence: None });
    taker.take(Piece::End);
}

/// Hears a streamed answer.
#[derive(Default)]
pub struct Hearing {
    /// Whether something of the arguments of each call came.
    calls: Vec<bool>,
    citing: Citing,
}

impl Listener for Hearing {
    fn hear(&mut self, data: &[u8], taker: &mut dyn Taker) {
        // What is no event of this kind says nothing.
        let Ok(event) = serde_json::from_slice::<Value>(data) else { return };
        let message = &event["delta"]["message"];
        match text(&event["type"]) {
            "message-start" => taker.take(Piece::Start { id: text(&event["id"]), model: "" }),
            "content-start" | "content-delta" => {
                self.citing.hear(event["index"].as_u64().unwrap_or_default(), text(&message["content"]["text"]));
                say(&message["content"], taker);
                if event["logprobs"].is_object() {
                    beside("logprobs", &json!([event["logprobs"]]), Place::Choice, taker);
                }
            }
            "citation-start" => self.citing.tell(&message["citations"], taker),
            "tool-plan-delta" => taker.take(Piece::Thinking(text(&message["tool_plan"]))),
            "tool-call-start" => {
                begin(&message["tool_calls"], taker);
                self.calls.push(false);
                self.argue(text(&message["tool_calls"]["function"]["arguments"]), taker);
            }
            "tool-call-delta" => self.argue(text(&message["tool_calls"]["function"]["arguments"]), taker),
            "tool-call-end" if self.calls.last() == Some(&false) => self.argue("{}", taker),
            "message-end" if event["delta"]["error"].is_string() => {
                taker.take(Piece::Failed { kind: None, message: text(&event["delta"]["error"]), code: None });
            }
            "message-end" => end(&event["delta"], taker),
            _ => (),
        }
    }
}

impl Hearing {
    /// One call is told after the other.
    fn argue(&mut self, json: &str, taker: &mut dyn Taker) {
        let call = self.calls.len().saturating_sub(1);
        if let (Some(said), false) = (self.calls.last_mut(), json.is_empty()) {
            *said = true;
            taker.take(Piece::Arguments { call, json });
        }
    }
}
