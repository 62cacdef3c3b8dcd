//! Change of a response on its last way to the client, which logs and caches do not see.

use bytes::Bytes;

/// Changes what a client gets.
pub trait RewriteForClient: Send {
    /// Returns a complete JSON body with all changes.
    fn rewrite_complete(&mut self, bytes: Bytes) -> Bytes;

    /// Adds a chunk of a stream, and returns what can be sent.
    fn rewrite_chunk(&mut self, chunk: Bytes) -> Bytes;

    /// Returns the rest after the last chunk.
    fn finish(&mut self) -> Bytes;
}
