//! Limit that a request exceeds, as it is reported to the client.

use std::fmt;

use penstock_net::headers::Headers;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceededLimit {
    /// Describes the object that has the limit, the limit itself, and the time until its count starts again.
    pub description: String,
    /// Slug of the object that has the limit.
    pub param: Box<str>,
    /// True if another target may have enough left of its own limit.
    pub is_target: bool,
    /// Milliseconds until the count starts again. `None`: never.
    pub wait_ms: Option<u64>,
    /// True if clients should not repeat the request by themselves.
    pub forbids_retry: bool,
}

impl ExceededLimit {
    /// Adds the header fields by which clients decide when to repeat the request.
    pub fn push_headers(&self, headers: &mut Headers) {
        if let Some(wait_ms) = self.wait_ms {
            headers.push(b"retry-after", wait_ms.div_ceil(1000).to_string().as_bytes());
            headers.push(b"retry-after-ms", wait_ms.to_string().as_bytes());
        }
        if self.forbids_retry {
            headers.push(b"x-should-retry", b"false");
        }
    }
}

impl fmt::Display for ExceededLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.description)
    }
}
