//! Memory that many requests share: each takes of it what it needs, as long as there is some, and gives it back.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Clone)]
pub struct Room {
    used: Arc<AtomicUsize>,
    most: usize,
    /// Of one share.
    most_each: usize,
}

impl Room {
    pub fn new(most: usize, most_each: usize) -> Self {
        Self { used: Arc::default(), most, most_each }
    }

    pub fn share(&self) -> Share {
        Share { room: self.clone(), taken: 0 }
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one request has of it.
#[derive(Debug)]
pub struct Share {
    room: Room,
    taken: usize,
}

impl Share {
    /// Takes so many bytes more, unless that is too much for one, or for all.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let used = self.room.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.room.most || self.taken + bytes > self.room.most_each {
            self.room.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.taken += bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

/// Bytes with the share that they stand on.
#[derive(Debug)]
pub struct Stored<B = Vec<u8>> {
    pub bytes: B,
    pub share: Share,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Stored<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn nobody_takes_too_much_and_all_is_given_back() {
        let room = Room::new(10, 6);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.grow(6) && !one.grow(1) && other.grow(4) && !other.grow(1));
        drop(one);
        assert!(other.grow(2) && room.used() == 6);
        let bytes = Bytes::from_owner(Stored { bytes: b"abc".to_vec(), share: other });
        let slice = bytes.slice(1..);
        drop(bytes);
        assert_eq!((&slice[..], room.used()), (&b"bc"[..], 6));
        drop(slice);
        assert_eq!(room.used(), 0);
    }
}
