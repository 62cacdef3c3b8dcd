//! An overloaded error as the first event of a streamed 200 becomes the status it means, before anything was sent.

use bytes::{Bytes, BytesMut};
use penstock_llm::{
    api_format::anthropic_messages,
    stream::sse::{Event, Splitter},
};
use serde_json::Value;

use crate::{
    config::Reading,
    error::Result,
    upstream::{AnswerBody, Incoming},
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
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        Self(reading.boolean(value))
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
const OVERLOADED: u16 = 529;
/// A first event that is longer is none of the errors that are looked for.
const MOST_HELD: usize = 64 * 1024;
/// Comments and pings say nothing about the answer, but a stream of them must reach the caller.
const MOST_PINGS: usize = 4;

/// Reads up to the first event that says something. Whatever that is but an overloaded error is put back untouched.
pub async fn inspect(mut incoming: Incoming) -> Result<Incoming> {
    let mut splitter = Splitter::new(MOST_HELD);
    let mut held = BytesMut::new();
    let mut pings = 0;
    // An answer that breaks off here may still be refused: its error is ours to tell with a status.
    while let Some(piece) = incoming.body.next().await.transpose()? {
        held.extend_from_slice(&piece);
        let verdict = splitter.push(piece).find_map(|event| match event {
            Ok(event) if is_ping(&event) && pings < MOST_PINGS => {
                pings += 1;
                None
            }
            found => Some(found.ok().and_then(|event| overloaded(&event))),
        });
        match verdict {
            Some(Some(error)) => return Ok(refused(incoming, error)),
            Some(None) => break,
            None => (),
        }
    }
    if let Some(error) = splitter.finish().and_then(|event| overloaded(&event)) {
        return Ok(refused(incoming, error));
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
fn overloaded(event: &Event) -> Option<Bytes> {
    let data = event.data()?;
    anthropic_messages::is_overloaded(&data).then(|| Bytes::copy_from_slice(&data))
}

fn refused(incoming: Incoming, error: Bytes) -> Incoming {
    let Incoming { mut head, .. } = incoming;
    head.status = OVERLOADED;
    head.headers.retain(|name| name != b"content-type");
    head.headers.push(b"content-type", b"application/json");
    Incoming { head, body: AnswerBody::whole(error) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    #[test]
    fn the_config_wins_over_the_saved_provider() {
        let saved = |wanted| Some(InspectStream::from(Some(wanted)));
        assert!(!InspectStream::default().resolve(None));
        assert!(InspectStream::default().resolve(saved(true)));
        let mut reading = Reading::new(Unknown::Refused);
        assert!(!InspectStream::parse(&json!(false), &mut reading).resolve(saved(true)));
        assert!(InspectStream::parse(&json!(true), &mut reading).resolve(saved(false)));
        InspectStream::parse(&json!("yes"), &mut reading);
        assert!(reading.end().is_err());
    }
}
