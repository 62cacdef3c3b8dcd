//! Reads what Gemini answers; a stream is a row of whole answers, each with the next words.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{grounding::Grounding, logprobs, request::OWN_PARTS};
use crate::{
    api_format::ApiFormat,
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        providers::{Broken, Found, Listener, anthropic_messages::compact, openai_chat},
    },
    usage::Counts,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(default, borrow)]
    candidates: Vec<Candidate<'a>>,
    #[serde(default, borrow)]
    usage_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    model_version: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    response_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    prompt_feedback: Option<Feedback<'a>>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default, borrow)]
    content: Option<Content<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    grounding_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    url_context_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    citation_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    safety_ratings: Option<&'a RawValue>,
    #[serde(default, borrow)]
    logprobs_result: Option<&'a RawValue>,
}

impl<'a> Candidate<'a> {
    /// What stands beside the words, under the names that it has there.
    fn beside(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let all = [
            ("groundingMetadata", self.grounding_metadata),
            ("urlContextMetadata", self.url_context_metadata),
            ("citationMetadata", self.citation_metadata),
            ("safetyRatings", self.safety_ratings),
        ];
        all.into_iter().filter_map(|(name, json)| Some((name, json?.get())))
    }
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(default, borrow)]
    parts: Vec<Part<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default)]
    thought: bool,
    #[serde(default, borrow)]
    thought_signature: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function_call: Option<Call<'a>>,
    #[serde(default, borrow)]
    inline_data: Option<Blob<'a>>,
    #[serde(default, borrow)]
    executable_code: Option<&'a RawValue>,
    #[serde(default, borrow)]
    code_execution_result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Blob<'a> {
    #[serde(default, borrow)]
    mime_type: Cow<'a, str>,
    #[serde(default, borrow)]
    data: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    args: Option<&'a RawValue>,
}

/// Why a prompt was refused.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback<'a> {
    #[serde(default, borrow)]
    block_reason: Option<Cow<'a, str>>,
}

pub fn read(answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
    let answer: Answer<'_> = serde_json::from_slice(answer)?;
    if answer.candidates.is_empty() && answer.prompt_feedback.is_none() {
        return Err(Broken("it has no candidates".into()));
    }
    let mut hearing = Hearing::default();
    hearing.take(&answer, taker);
    hearing.finish.get_or_insert_default();
    hearing.over(taker);
    Ok(())
}

/// Hears streamed content.
#[derive(Default)]
pub struct Hearing {
    is_begun: bool,
    calls: usize,
    id: String,
    counts: Counts,
    finish: Option<String>,
    grounding: Grounding,
}

impl Listener for Hearing {
    fn hear(&mut self, data: &[u8], taker: &mut dyn Taker) {
        // What is no chunk says nothing.
        let Ok(answer) = serde_json::from_slice::<Answer<'_>>(data) else { return };
        if answer.error.is_some() {
            self.finish = None;
            let Found { message, kind, code, .. } = openai_chat::error(data);
            let message = message.as_deref().unwrap_or("the provider failed");
            return taker.take(Piece::Failed { kind: kind.as_deref(), message, code: code.as_deref() });
        }
        self.take(&answer, taker);
    }

    /// Nothing says the end but the end; without a reason it was cut.
    fn over(&mut self, taker: &mut dyn Taker) {
        let Some(reason) = self.finish.take() else { return };
        if let Some(usage) = self.counts.settle(ApiFormat::Gemini) {
            taker.take(Piece::Usage(usage));
        }
        // A call of a function ends with the same word as everything else.
        let is_call = self.calls > 0 && matches!(reason.as_str(), "STOP" | "FUNCTION_CALL");
        taker.take(Piece::Finish { reason: if is_call { "tool_calls" } else { &reason }, stop_sequence: None });
        taker.take(Piece::End);
    }
}

impl Hearing {
    fn take(&mut self, answer: &Answer<'_>, taker: &mut dyn Taker) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let id = answer.response_id.as_deref().unwrap_or_default();
            id.clone_into(&mut self.id);
            let model = answer.model_version.as_deref().unwrap_or_default();
            self.counts.answers_as(model.as_bytes());
            taker.take(Piece::Start { id, model });
        }
        for metadata in answer.candidates.iter().filter_map(|candidate| candidate.grounding_metadata) {
            self.counts.read_grounding(metadata.get().as_bytes());
        }
        if let Some(candidate) = answer.candidates.first() {
            self.grounding.begin();
            let parts = candidate.content.iter().flat_map(|content| &content.parts);
            let mut seal = None;
            for part in parts {
                if let Some(seal) = seal {
                    taker.take(Piece::Seal(seal));
                }
                self.part(part, taker);
                // That of a call is told with the call.
                seal = part.thought_signature.as_deref().filter(|_| part.function_call.is_none());
            }
            for (name, json) in candidate.beside() {
                if !self.grounding.tell(name, json, taker) {
                    taker.take(Piece::Aside { place: Place::Choice, name, json });
                }
            }
            // It ends the text, and what that is from is told with it.
            if let Some(seal) = seal {
                taker.take(Piece::Seal(seal));
            }
            if let Some(json) = candidate.logprobs_result.and_then(|json| logprobs::told(json.get())) {
                taker.take(Piece::Aside { place: Place::Choice, name: "logprobs", json: &json });
            }
            if let Some(reason) = &candidate.finish_reason {
                self.finish = Some(reason.clone().into_owned());
            }
        }
        if let Some(reason) = answer.prompt_feedback.as_ref().and_then(|feedback| feedback.block_reason.as_deref()) {
            // Whatever it is called, the prompt was refused.
            let is_known = finish_reason::to_openai(reason) == "content_filter";
            self.finish = Some(if is_known { reason } else { "SAFETY" }.to_owned());
        }
        // Each says what it was so far.
        if let Some(usage) = answer.usage_metadata {
            self.counts.read(usage.get().as_bytes());
        }
    }

    fn part(&mut self, part: &Part<'_>, taker: &mut dyn Taker) {
        if let Some(call) = &part.function_call {
            self.call(call, part.thought_signature.as_deref(), taker);
        }
        self.grounding.hear(part.text.as_deref().filter(|_| !part.thought).unwrap_or_default());
        match part.text.as_deref() {
            None | Some("") => (),
            Some(text) if part.thought => taker.take(Piece::Thinking(text)),
            Some(text) => taker.take(Piece::Text(text)),
        }
        if let Some(Blob { mime_type, data }) = &part.inline_data {
            taker.take(Piece::Image { mime: mime_type, data });
        }
        for (kind, json) in OWN_PARTS.into_iter().zip([part.executable_code, part.code_execution_result]) {
            if let Some(json) = json {
                taker.take(Piece::Native { kind, json: &format!("{{\"type\":\"{kind}\",\"{kind}\":{}}}", json.get()) });
            }
        }
    }

    fn call(&mut self, call: &Call<'_>, signature: Option<&str>, taker: &mut dyn Taker) {
        // Calls have no ids here as a rule; theirs must be the same however often the answer is read.
        let own = format!("call_{}_{}", self.id, self.calls);
        let id = call.id.as_deref().filter(|id| !id.is_empty()).unwrap_or(&own);
        taker.take(Piece::Call { id, name: &call.name, signature });
        taker.take(Piece::Arguments { call: self.calls, json: &compact(call.args.map_or("{}", RawValue::get)) });
        self.calls += 1;
    }
}
