//! Coalescer for chunks of a stream that arrive in quick succession, so that each does not cost a call and a write.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Coalesces chunks that arrive in quick succession. A provider may send a hundred events one by one within a
/// millisecond. Without coalescing, each of them would cost a call into Python and two system calls.
#[derive(Default)]
pub(super) struct ChunkCoalescer {
    last_chunk_at: Option<Instant>,
    /// Number of consecutive small chunks that arrived quickly.
    quick_chunk_count: u8,
}

/// Maximum gap between chunks that count as quick. Timers have millisecond resolution.
const COALESCE_INTERVAL: Duration = Duration::from_millis(1);
/// Number of quick chunks that are sent at once, so that the first tokens of a response are not delayed.
const MAX_UNCOALESCED_CHUNKS: u8 = 4;
/// Chunks of at least this size are not coalesced; the sender has done that already.
const SMALL_CHUNK_BYTES: usize = 4 * 1024;

impl ChunkCoalescer {
    /// Waits briefly for more data if chunks are arriving in quick succession.
    pub(super) async fn wait_for_more(&self) {
        if let Some(last) = self.last_chunk_at
            && self.quick_chunk_count >= MAX_UNCOALESCED_CHUNKS
        {
            sleep_until(last + COALESCE_INTERVAL).await;
        }
    }

    pub(super) fn record_chunk(&mut self, bytes: usize) {
        let now = Instant::now();
        // A chunk that was waited for arrives slightly later than `COALESCE_INTERVAL`, hence the factor.
        let is_quick =
            self.last_chunk_at.is_some_and(|last| now - last < COALESCE_INTERVAL * 3) && bytes < SMALL_CHUNK_BYTES;
        self.quick_chunk_count = if is_quick { self.quick_chunk_count.saturating_add(1) } else { 0 };
        self.last_chunk_at = Some(now);
    }
}
