//! Responses to the client: a status, header fields, and a complete body or a stream.

use bytes::Bytes;
use penstock_llm::api_format::ApiFormat;
use penstock_net::headers::Headers;

use crate::{
    error::Error,
    ingress::message::CompleteResponse,
    response::{delivery, response_stream::ResponseStream},
};

/// Status and header fields of a client response.
#[derive(Debug)]
pub struct ClientResponseHead {
    pub status: u16,
    pub headers: Headers,
}

impl ClientResponseHead {
    pub fn new(status: u16, headers: Headers) -> Self {
        Self { status, headers }
    }

    /// Returns true if the body is an event stream.
    pub fn is_event_stream(&self) -> bool {
        delivery::is_event_stream(&self.headers)
    }

    pub fn set_content_length(&mut self, length: Option<usize>) {
        if let Some(length) = length {
            self.headers.push(b"content-length", itoa::Buffer::new().format(length).as_bytes());
        }
    }
}

pub struct ClientResponse {
    pub head: ClientResponseHead,
    pub body: ClientResponseBody,
}

/// Body of a client response.
pub enum ClientResponseBody {
    Complete(Bytes),
    Stream(Box<ResponseStream>),
}

impl From<Bytes> for ClientResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Complete(bytes)
    }
}

impl From<ResponseStream> for ClientResponseBody {
    fn from(stream: ResponseStream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl ClientResponse {
    pub fn plain_text(status: u16, text: &'static str) -> Self {
        let mut head = ClientResponseHead::new(status, Headers::with_capacity(2));
        head.headers.push(b"content-type", b"text/plain; charset=utf-8");
        head.set_content_length(Some(text.len()));
        Self { head, body: Bytes::from_static(text.as_bytes()).into() }
    }

    /// Returns the response for a panic in request handling.
    pub fn internal_error() -> Self {
        Self::from_error(&Error::Panicked, ApiFormat::OpenAi)
    }

    /// Builds an error response outside request handling; it has no record.
    pub fn from_error(error: &Error, api_format: ApiFormat) -> Self {
        let CompleteResponse { head: response_head, body } = error.to_response(api_format, None);
        let mut head = ClientResponseHead::new(response_head.status, response_head.headers);
        head.set_content_length(Some(body.len()));
        Self { head, body: body.into() }
    }
}
