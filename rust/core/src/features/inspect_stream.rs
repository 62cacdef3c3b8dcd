//! Inspection of the first event of a stream. Turns an overloaded error inside a streamed 200 into a real error status,
//! before anything is sent to the client.

use bytes::{Bytes, BytesMut};
use penstock_llm::{
    api_format::anthropic_messages,
    stream::sse::{Event, Splitter},
};
use penstock_net::{IncomingResponse, ResponseBody};
use serde_json::Value;

use crate::{error::Result, parse::document_reader::ConfigReader};

/// True if a stream is buffered until its first event is known. The config takes precedence over the saved provider;
/// the default is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InspectStream(Option<bool>);

impl From<Option<bool>> for InspectStream {
    fn from(saved: Option<bool>) -> Self {
        Self(saved)
    }
}

impl InspectStream {
    /// Parses a boolean from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        Self(reading.read_boolean(value))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// Returns true if the stream of this request is inspected.
    pub fn resolve(self, saved: Option<Self>) -> bool {
        self.0.or(saved.and_then(|saved| saved.0)).unwrap_or_default()
    }
}

/// Status for an overloaded provider.
const OVERLOADED_STATUS: u16 = 529;
/// Maximum length of a first event that is inspected. An overloaded error is never longer.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// Maximum number of comments and pings that are skipped. A stream that consists of them must still reach the client.
const MAX_SKIPPED_PINGS: usize = 4;

/// Reads up to the first event that is not a ping. Anything except an overloaded error is put back unchanged.
pub async fn inspect_first_event(mut incoming: IncomingResponse) -> Result<IncomingResponse> {
    let mut splitter = Splitter::new(MAX_BUFFERED_BYTES);
    let mut buffered = BytesMut::new();
    let mut pings = 0;
    // If the response ends here, nothing was sent yet, and the client still gets an error status.
    while let Some(chunk) = incoming.body.next_chunk().await.transpose()? {
        buffered.extend_from_slice(&chunk);
        let verdict = splitter.push(chunk).find_map(|event| match event {
            Ok(event) if is_ping(&event) && pings < MAX_SKIPPED_PINGS => {
                pings += 1;
                None
            }
            event_result => Some(event_result.ok().and_then(|event| extract_overloaded_error(&event))),
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
    if !buffered.is_empty() {
        incoming.body.put_back(buffered.freeze());
    }
    Ok(incoming)
}

fn is_ping(event: &Event) -> bool {
    event.data().is_none() || event.name() == Some(b"ping")
}

/// Returns the JSON of an overloaded error, as the provider sent it; `None` for any other event.
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
    use crate::parse::document_reader::Strictness;

    #[test]
    fn config_overrides_saved_provider() {
        let saved = |is_enabled| Some(InspectStream::from(Some(is_enabled)));
        assert!(!InspectStream::default().resolve(None));
        assert!(InspectStream::default().resolve(saved(true)));
        let mut reading = ConfigReader::new(Strictness::Strict);
        assert!(!InspectStream::parse(&json!(false), &mut reading).resolve(saved(true)));
        assert!(InspectStream::parse(&json!(true), &mut reading).resolve(saved(false)));
        InspectStream::parse(&json!("yes"), &mut reading);
        assert!(reading.finish().is_err());
    }
}
