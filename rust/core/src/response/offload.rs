//! Work on large bodies that runs on a blocking thread, and the headers of bodies that were changed.

use penstock_net::headers::Headers;

use crate::error::{Error, Result};

/// Maximum bytes of a body that is processed inline. That takes far less than a millisecond.
pub const MAX_INLINE_BYTES: usize = 128 * 1024;

/// Runs work on a body of this length. Large bodies go to a blocking thread, so that other requests are not delayed.
pub async fn run_offloaded<T: Send + 'static>(length: usize, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if length <= MAX_INLINE_BYTES { Ok(job()) } else { run_blocking(job).await }
}

/// Runs work that may take milliseconds on a blocking thread.
pub async fn run_blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    // The task neither panics nor is cancelled, unless the process shuts down.
    tokio::task::spawn_blocking(job).await.map_err(|_| Error::Draining)
}

/// Sets the content type. Removes header fields that describe the provider's bytes, and `location`, which the client
/// cannot request.
pub fn with_content_type(mut headers: Headers, kind: &[u8]) -> Headers {
    headers.retain(|name| !matches!(name, b"content-type" | b"content-length" | b"content-encoding" | b"location"));
    headers.push(b"content-type", kind);
    headers
}
