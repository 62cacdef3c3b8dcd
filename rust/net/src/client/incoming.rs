//! Response whose head has arrived, and a function that collects its body.

use bytes::Bytes;

use super::{message::ResponseHead, response_body::ResponseBody};
use crate::error::Result;

/// Number of bytes after which `collect` yields to other tasks.
const YIELD_INTERVAL_BYTES: usize = 256 * 1024;
/// Maximum number of bytes that are reserved for a declared length. The provider may send less than it declares.
const MAX_RESERVED_BYTES: usize = 1024 * 1024;

/// Response whose head has arrived and whose body is still to be read.
#[derive(Debug)]
pub struct IncomingResponse {
    pub head: ResponseHead,
    pub body: ResponseBody,
}

/// Reads a body to its end. If it is longer than `limit` bytes, puts back what it has read and returns `None`.
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
            // A snapshot from the control process is large and can arrive without waits. Yields, so that other tasks
            // run in between.
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
