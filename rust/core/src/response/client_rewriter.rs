//! Last change of a response before it is sent to the client. Logs and caches contain the response without it.

use bytes::Bytes;

/// Changes the body that a client receives.
pub trait RewriteForClient: Send {
    /// Returns a complete JSON body with all changes.
    fn rewrite_complete(&mut self, bytes: Bytes) -> Bytes;

    /// Takes a chunk of a stream, and returns the bytes that can be sent now.
    fn rewrite_chunk(&mut self, chunk: Bytes) -> Bytes;

    /// Returns the remaining bytes after the last chunk.
    fn finish(&mut self) -> Bytes;
}
