//! An overloaded error as the first event of a streamed 200 becomes the status it means, before anything was sent.

use bytes::{Bytes, BytesMut};
use penstock_llm::{
    api_format::anthropic_messages,
    stream::sse::{Event, Splitter},
};
use serde_json::Value;

use crate::{
    config::ConfigReader,
    error::Result,
    upstream::{IncomingResponse, ResponseBody},
};

/// Whether a stream is held back until its first event is known. The config wins over the saved provider; off is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InspectStream(Option<bool>);

impl From<Option<bool>> for InspectStream {
    fn from(saved: Option<bool>) -> Self {
        Self(saved)
    }
}

impl InspectStream {
    /// From a config: true or false.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        Self(reading.read_boolean(value))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// What holds for one request.
    pub fn resolve(self, saved: Option<Self>) -> bool {
        self.0.or(saved.and_then(|saved| saved.0)).unwrap_or_default()
    }
}

/// The status that stands for an overloaded provider.
const OVERLOADED_STATUS: u16 = 529;
/// A first event that is longer is none of the errors that are looked for.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// Comments and pings say nothing about the answer, but a stream of them must reach the caller.
const MAX_SKIPPED_PINGS: usize = 4;

/// Reads up to the first event that says something. Whatever that is but an overloaded error is put back untouched.
pub async fn inspect_first_event(mut incoming: IncomingResponse) -> Result<IncomingResponse> {
    let mut splitter = Splitter::new(MAX_BUFFERED_BYTES);
    let mut held = BytesMut::new();
    let mut pings = 0;
    // An answer that breaks off here may still be refused: its error is ours to tell with a status.
    while let Some(piece) = incoming.body.next_chunk().await.transpose()? {
        held.extend_from_slice(&piece);
        let verdict = splitter.push(piece).find_map(|event| match event {
            Ok(event) if is_ping(&event) && pings < MAX_SKIPPED_PINGS => {
                pings += 1;
                None
            }
            found => Some(found.ok().and_then(|event| extract_overloaded_error(&event))),
        });
        match verdict {
            Some(Some(error)) => return Ok(build_overloaded_response(incoming, error)),
            Some(None) => break,
            None => (),
        }
    }
    if let Some(error) = splitter.finish().and_then(|event| extract_overloaded_error(&event)) {
        return Ok(build_overloaded_response(incoming, error));
    }
    if !held.is_empty() {
        incoming.body.put_back(held.freeze());
    }
    Ok(incoming)
}

fn is_ping(event: &Event) -> bool {
    event.data().is_none() || event.name() == Some(b"ping")
}

/// The error's own words.
fn extract_overloaded_error(event: &Event) -> Option<Bytes> {
    let data = event.data()?;
    anthropic_messages::is_overloaded_error(&data).then(|| Bytes::copy_from_slice(&data))
}

fn build_overloaded_response(incoming: IncomingResponse, error: Bytes) -> IncomingResponse {
    let IncomingResponse { mut head, .. } = incoming;
    head.status = OVERLOADED_STATUS;
    head.headers.retain(|name| name != b"content-type");
    head.headers.push(b"content-type", b"application/json");
    IncomingResponse { head, body: ResponseBody::from_bytes(error) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Strictness;

    #[test]
    fn config_overrides_saved_provider() {
        let saved = |wanted| Some(InspectStream::from(Some(wanted)));
        assert!(!InspectStream::default().resolve(None));
        assert!(InspectStream::default().resolve(saved(true)));
        let mut reading = ConfigReader::new(Strictness::Strict);
        assert!(!InspectStream::parse(&json!(false), &mut reading).resolve(saved(true)));
        assert!(InspectStream::parse(&json!(true), &mut reading).resolve(saved(false)));
        InspectStream::parse(&json!("yes"), &mut reading);
        assert!(reading.finish().is_err());
    }
}
