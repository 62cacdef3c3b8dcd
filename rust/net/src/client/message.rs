//! Requests and response heads in a form that does not depend on the HTTP version.

use std::io;

use bytes::Bytes;

use crate::{
    body::Body,
    error::{Error, Result},
    headers::Headers,
};

/// A request ready to send: its rendered head and its body.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Request line and header fields, including the blank line.
    pub head: Vec<u8>,
    pub body: Body,
    pub body_framing: BodyFraming,
    /// True if the request may be sent twice: its method is idempotent (RFC 9110 §9.2.2) or it has an idempotency key.
    pub is_replayable: bool,
}

/// How the body of a request ends, and whether its response has a body. The request determines both.
#[derive(Debug, Clone, Copy, Default)]
pub struct BodyFraming {
    /// True if the length of the request body is unknown, so that it is sent chunked.
    pub is_chunked: bool,
    /// True if the response has no body, whatever its header fields declare. Set for `HEAD` requests.
    pub is_bodiless: bool,
}

/// Response without its body.
#[derive(Debug, Default, Clone)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: Headers,
}

/// Status and complete body of a small response.
#[derive(Debug)]
pub struct BufferedResponse {
    pub status: u16,
    pub body: Bytes,
}

/// Bytes that a streamed request body must still send to match its `content-length`. After a mismatch, the provider
/// would read the next request as part of this body, or the rest of this body as a request.
pub(crate) struct RemainingLength(pub(crate) Option<u64>);

impl RemainingLength {
    pub(crate) fn subtract(&mut self, chunk: &[u8]) -> Result<()> {
        let Some(remaining) = &mut self.0 else { return Ok(()) };
        *remaining = remaining.checked_sub(chunk.len() as u64).ok_or(Error::InvalidFraming)?;
        Ok(())
    }

    pub(crate) fn check_complete(&self) -> Result<()> {
        if self.0.is_none_or(|remaining| remaining == 0) { Ok(()) } else { Err(Error::IncompleteBody) }
    }
}

pub(crate) fn upstream_error(error: &io::Error) -> Error {
    Error::ResponseBroken { cause: error.to_string() }
}
