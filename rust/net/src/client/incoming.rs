//! Response whose head was received, and the collection of its body.

use bytes::Bytes;

use super::{message::ResponseHead, response_body::ResponseBody};
use crate::error::Result;

/// Number of bytes after which `collect` yields to other tasks.
const YIELD_INTERVAL_BYTES: usize = 256 * 1024;
/// Most memory that is reserved for a declared length, because the provider may not send that much.
const MAX_RESERVED_BYTES: usize = 1024 * 1024;

/// A response whose head was received.
#[derive(Debug)]
pub struct IncomingResponse {
    pub head: ResponseHead,
    pub body: ResponseBody,
}

/// Reads a body to its end. `None` if it is longer than `limit` bytes; what was read is then put back.
pub async fn collect(body: &mut ResponseBody, limit: usize) -> Result<Option<Bytes>> {
    let Some(first) = body.next_chunk().await.transpose()? else { return Ok(Some(Bytes::new())) };
    if first.len() > limit {
        body.put_back(first);
        return Ok(None);
    }
    if body.is_done() {
        return Ok(Some(first));
    }
    let mut buffer =
        Vec::with_capacity(body.content_length().unwrap_or(first.len() * 2).min(limit).min(MAX_RESERVED_BYTES));
    buffer.extend_from_slice(&first);
    let mut turn = 0;
    while let Some(chunk) = body.next_chunk().await.transpose()? {
        buffer.extend_from_slice(&chunk);
        if buffer.len() - turn > YIELD_INTERVAL_BYTES {
            // A snapshot is large and arrives without waits, so other tasks get to run in between.
            turn = buffer.len();
            tokio::task::yield_now().await;
        }
        if buffer.len() > limit {
            body.put_back(Bytes::from(buffer));
            return Ok(None);
        }
    }
    Ok(Some(Bytes::from(buffer)))
}
