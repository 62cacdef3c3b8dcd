//! Holds back the beginning of an event until its end is there: where a stream breaks off in between, no reader is left with half of one.

use bytes::Bytes;

/// An event that is longer is passed on as it comes: several pieces may wait for a caller who reads slowly.
const MOST: usize = 16 * 1024;

#[derive(Default)]
pub struct Held {
    begun: Vec<u8>,
    /// Part of an event has left already.
    is_open: bool,
}

impl Held {
    /// What may leave now that these bytes have come, which end with so many of an event that is not complete.
    pub fn pass(&mut self, mut bytes: Bytes, incomplete: usize) -> Bytes {
        if self.is_open && incomplete >= bytes.len() {
            return bytes;
        }
        self.is_open = incomplete > MOST;
        if self.is_open || (incomplete == 0 && self.begun.is_empty()) {
            return self.with(bytes);
        }
        if incomplete > bytes.len() {
            self.begun.extend_from_slice(&bytes);
            return Bytes::new();
        }
        let rest = bytes.split_off(bytes.len() - incomplete);
        let passed = if bytes.is_empty() { bytes } else { self.with(bytes) };
        self.begun.extend_from_slice(&rest);
        passed
    }

    /// What was begun and will have no end.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.begun).into()
    }

    /// Whether a reader stands in the middle of an event.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    fn with(&mut self, bytes: Bytes) -> Bytes {
        if self.begun.is_empty() {
            return bytes;
        }
        let mut joined = std::mem::take(&mut self.begun);
        joined.extend_from_slice(&bytes);
        joined.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_events_pass_as_they_are() {
        let event = Bytes::from_static(b"data: 1\n\n");
        let passed = Held::default().pass(event.clone(), 0);
        assert_eq!(passed.as_ptr(), event.as_ptr());
    }

    #[test]
    fn the_beginning_of_an_event_waits_for_its_end() {
        let mut held = Held::default();
        assert_eq!(held.pass("data: 1\n\nda".into(), 2), "data: 1\n\n");
        assert_eq!(held.pass("ta: ".into(), 6), "");
        assert_eq!(held.pass("2\n\nd".into(), 1), "data: 2\n\n");
        assert_eq!(held.pass("ata: 3\n\n".into(), 0), "data: 3\n\n");
        assert!(held.rest().is_empty() && !held.is_open());
    }

    #[test]
    fn a_long_event_leaves_as_it_comes() {
        let mut held = Held::default();
        let piece = Bytes::from(vec![b'x'; MOST]);
        assert_eq!(held.pass(piece.clone(), MOST), "");
        assert_eq!(held.pass(piece.clone(), 2 * MOST).len(), 2 * MOST);
        assert_eq!(held.pass(piece, 3 * MOST).len(), MOST);
        assert!(held.is_open());
        assert_eq!(held.pass("x\n\nda".into(), 2), "x\n\n");
        assert!(!held.is_open());
        assert_eq!(held.rest(), "da");
    }
}
