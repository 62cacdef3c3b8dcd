//! Answers that are kept for the next who asks the same, bounded in bytes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::generations::Generations;
use crate::features::cache::Key;

/// Beside its bytes an entry needs about this.
const ROOM: usize = 256;

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Kept {
    pub kind: Arc<str>,
    pub body: Bytes,
    until: Instant,
}

#[derive(Debug)]
pub struct Answers {
    kept: Mutex<Generations<Key, Kept>>,
    /// Of one answer.
    most: usize,
}

impl Answers {
    /// For about so many bytes in all.
    pub fn new(bytes: usize) -> Self {
        Self { kept: Mutex::new(Generations::new(bytes)), most: bytes / 8 }
    }

    pub fn get(&self, key: &Key) -> Option<Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get(key)?;
        if found.until <= Instant::now() {
            kept.remove(key);
            return None;
        }
        Some(found)
    }

    fn put(&self, key: Key, kept: Kept) {
        let bytes = kept.body.len() + kept.kind.len() + ROOM;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(key, kept, bytes);
    }
}

/// An answer that is on its way to the caller and will be kept when it is complete.
#[derive(Debug)]
pub struct Filling {
    answers: Arc<Answers>,
    key: Key,
    age: Duration,
    kind: Arc<str>,
    body: Vec<u8>,
    is_too_large: bool,
}

impl Filling {
    pub fn new(answers: Arc<Answers>, key: Key, age: Duration, kind: &str) -> Self {
        Self { answers, key, age, kind: kind.into(), body: Vec::new(), is_too_large: false }
    }

    /// A part of it.
    pub fn add(&mut self, piece: &[u8]) {
        self.is_too_large |= self.body.len() + piece.len() > self.answers.most;
        if self.is_too_large {
            self.body = Vec::new();
        } else {
            self.body.extend_from_slice(piece);
        }
    }

    /// It is complete.
    pub fn keep(self) {
        let Self { answers, key, age, kind, body, is_too_large } = self;
        if !is_too_large {
            // An age that no clock reaches is for ever.
            let until = Instant::now().checked_add(age).unwrap_or_else(|| Instant::now() + Duration::from_hours(24));
            answers.put(key, Kept { kind, body: body.into(), until });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::cache::Partition;

    fn fill(answers: &Arc<Answers>, key: Key, age: Duration, body: &[u8]) {
        let mut filling = Filling::new(Arc::clone(answers), key, age, "text/plain");
        body.chunks(3).for_each(|piece| filling.add(piece));
        filling.keep();
    }

    #[test]
    fn what_is_complete_is_kept_as_long_as_it_may() {
        let answers = Arc::new(Answers::new(64 * 1024));
        let key = |name: &str| Key::of(Partition::Namespace(name), &[]);
        fill(&answers, key("a"), Duration::from_mins(1), b"answer");
        fill(&answers, key("old"), Duration::ZERO, b"answer");
        fill(&answers, key("large"), Duration::from_mins(1), &[0; 9000]);
        let kept = answers.get(&key("a")).unwrap();
        assert_eq!((&*kept.kind, &kept.body[..]), ("text/plain", &b"answer"[..]));
        assert!(answers.get(&key("old")).is_none() && answers.get(&key("large")).is_none());
    }
}
