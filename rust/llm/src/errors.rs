//! Errors of a translation: a request that a provider's API cannot express, and a response in another format than
//! expected.

use crate::json::lines::LineTooLong;

/// Reason why a request cannot be translated for a provider, and the path of the field in the client's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    pub path: String,
    pub message: String,
}

impl RequestError {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)
    }
}

impl From<LineTooLong> for RequestError {
    fn from(fault: LineTooLong) -> Self {
        Self::new("file", fault.to_string())
    }
}

/// A response that does not match the provider's format, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedResponse(pub String);

impl From<serde_json::Error> for MalformedResponse {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}
