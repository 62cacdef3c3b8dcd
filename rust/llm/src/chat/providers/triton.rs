//! Text completion on Nvidia's Triton, a self-hosted inference server.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    chat::{
        event::{self, EventSink, ResponseEvent},
        request::{ChatRequest, join_text},
    },
    errors::{MalformedResponse, RequestError},
    fields::Fields,
    json::lenient,
    provider_format::{ChatFormat, ProviderFormat, StreamDecoder},
};

struct TritonFormat;

pub static TRITON: ProviderFormat = ProviderFormat::of_chat(&TritonFormat);

/// Returns the required parameters with their default values.
fn required_params() -> [(&'static str, Value); 4] {
    [("max_tokens", 100.into()), ("temperature", json!(0.7)), ("top_p", json!(0.7)), ("top_k", 50.into())]
}

impl ChatFormat for TritonFormat {
    fn write_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        request.reject_several_choices()?;
        let parts = std::mem::take(&mut request.messages).into_iter().flat_map(|message| message.parts).collect();
        let mut out = Fields::new();
        out.insert("text_input".into(), join_text(parts).into());
        request.clamp_param("temperature", &(0..=1));
        for (key, usual) in required_params() {
            let value = request.take_param(key).unwrap_or(usual);
            out.insert(key.into(), value);
        }
        match request.take_param("stop") {
            Some(Value::String(stop)) => drop(out.insert("stop_words".into(), json!([stop]))),
            Some(stop) => drop(out.insert("stop_words".into(), stop)),
            None => (),
        }
        for (key, name) in [
            ("bad_words", "bad_words"),
            ("seed", "random_seed"),
            ("presence_penalty", "presence_penalty"),
            ("frequency_penalty", "frequency_penalty"),
        ] {
            request.move_param(key, &mut out, name);
        }
        if request.stream {
            out.insert("stream".into(), true.into());
        }
        // The URL states the model.
        request.model.clear();
        Ok(Value::Object(out).to_string().into_bytes())
    }

    fn read_response(&self, response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        let response: GenerateResponse<'_> = serde_json::from_slice(response)?;
        let text = response.text_output.ok_or_else(|| MalformedResponse("it has no text_output".into()))?;
        sink.push_event(ResponseEvent::Start { id: "", model: "" });
        sink.push_event(ResponseEvent::Text(&text));
        emit_end(sink);
        Ok(())
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(TextStreamDecoder::default())
    }
}

#[derive(Deserialize)]
struct GenerateResponse<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::content")]
    text_output: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    error: Option<Cow<'a, str>>,
}

/// Emits the end of the response. Triton reports no finish reason, so `stop` is assumed.
fn emit_end(sink: &mut dyn EventSink) {
    sink.push_event(ResponseEvent::Finish { reason: "stop", stop_sequence: None });
    sink.push_event(ResponseEvent::End);
}

/// Stream decoder for Triton's generated text.
#[derive(Default)]
struct TextStreamDecoder {
    has_started: bool,
    has_failed: bool,
}

impl StreamDecoder for TextStreamDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        let Ok(response) = serde_json::from_slice::<GenerateResponse<'_>>(data) else {
            self.has_failed = true;
            return event::report_unreadable_event(data, sink);
        };
        if !std::mem::replace(&mut self.has_started, true) {
            sink.push_event(ResponseEvent::Start { id: "", model: "" });
        }
        if let Some(message) = &response.error {
            self.has_failed = true;
            return sink.push_event(ResponseEvent::Failed { kind: None, message, code: None });
        }
        if let Some(text) = &response.text_output {
            sink.push_event(ResponseEvent::Text(text));
        }
    }

    /// Emits the end of the response, because Triton sends no event for it.
    fn finish_stream(&mut self, sink: &mut dyn EventSink) {
        if self.has_started && !self.has_failed {
            emit_end(sink);
        }
    }
}
