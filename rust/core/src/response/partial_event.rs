//! Buffer for an incomplete SSE event. Holds back the start of an event until its end arrives, so that a truncated
//! stream never leaves the client with half an event.

use bytes::Bytes;

/// Maximum bytes of an incomplete event that is held back. Longer events are passed through in chunks, because many
/// chunks may queue for a client that reads slowly.
const MAX_HELD_BYTES: usize = 16 * 1024;

#[derive(Default)]
pub struct PartialEventBuffer {
    held_bytes: Vec<u8>,
    /// True if part of an event has already been sent.
    is_mid_event: bool,
}

impl PartialEventBuffer {
    /// Adds `bytes` and returns those that can be sent now. The last `incomplete` bytes received so far belong to an
    /// incomplete event.
    pub fn hold_incomplete(&mut self, mut bytes: Bytes, incomplete: usize) -> Bytes {
        if self.is_mid_event && incomplete >= bytes.len() {
            return bytes;
        }
        self.is_mid_event = incomplete > MAX_HELD_BYTES;
        if self.is_mid_event || (incomplete == 0 && self.held_bytes.is_empty()) {
            return self.prepend_held(bytes);
        }
        if incomplete > bytes.len() {
            self.held_bytes.extend_from_slice(&bytes);
            return Bytes::new();
        }
        let rest = bytes.split_off(bytes.len() - incomplete);
        let passed = if bytes.is_empty() { bytes } else { self.prepend_held(bytes) };
        self.held_bytes.extend_from_slice(&rest);
        passed
    }

    /// Removes and returns the held start of an event that will not be completed.
    pub fn take_held(&mut self) -> Bytes {
        std::mem::take(&mut self.held_bytes).into()
    }

    /// Returns true if the start of an event is held back.
    pub fn has_held(&self) -> bool {
        !self.held_bytes.is_empty()
    }

    /// Returns true if the client has received only part of an event.
    pub fn is_mid_event(&self) -> bool {
        self.is_mid_event
    }

    fn prepend_held(&mut self, bytes: Bytes) -> Bytes {
        if self.held_bytes.is_empty() {
            return bytes;
        }
        let mut joined = std::mem::take(&mut self.held_bytes);
        joined.extend_from_slice(&bytes);
        joined.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_complete_events_without_copying() {
        let event = Bytes::from_static(b"data: 1\n\n");
        let passed = PartialEventBuffer::default().hold_incomplete(event.clone(), 0);
        assert_eq!(passed.as_ptr(), event.as_ptr());
    }

    #[test]
    fn holds_an_incomplete_event_until_its_end() {
        let mut buffer = PartialEventBuffer::default();
        assert_eq!(buffer.hold_incomplete("data: 1\n\nda".into(), 2), "data: 1\n\n");
        assert_eq!(buffer.hold_incomplete("ta: ".into(), 6), "");
        assert_eq!(buffer.hold_incomplete("2\n\nd".into(), 1), "data: 2\n\n");
        assert_eq!(buffer.hold_incomplete("ata: 3\n\n".into(), 0), "data: 3\n\n");
        assert!(buffer.take_held().is_empty() && !buffer.is_mid_event());
    }

    #[test]
    fn passes_a_long_event_through_in_chunks() {
        let mut buffer = PartialEventBuffer::default();
        let chunk = Bytes::from(vec![b'x'; MAX_HELD_BYTES]);
        assert_eq!(buffer.hold_incomplete(chunk.clone(), MAX_HELD_BYTES), "");
        assert_eq!(buffer.hold_incomplete(chunk.clone(), 2 * MAX_HELD_BYTES).len(), 2 * MAX_HELD_BYTES);
        assert_eq!(buffer.hold_incomplete(chunk, 3 * MAX_HELD_BYTES).len(), MAX_HELD_BYTES);
        assert!(buffer.is_mid_event());
        assert_eq!(buffer.hold_incomplete("x\n\nda".into(), 2), "x\n\n");
        assert!(!buffer.is_mid_event());
        assert_eq!(buffer.take_held(), "da");
    }
}
