//! Answers that are kept for the next who asks the same, bounded in bytes; through Redis for other workers too.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use super::redis::{Found, Order, Redis};
use crate::features::cache::Key;
use crate::state::shared::{bounded_cache::Generations, monotonic_clock::Clock};

/// Beside its bytes an entry needs about this.
const ROOM: usize = 256;
/// For so long Redis is not asked whether it still has what is here too.
const AGREED: Duration = Duration::from_mins(1);

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Kept {
    pub kind: Arc<str>,
    pub body: Bytes,
    until: Duration,
    /// When Redis is asked again; `Duration::MAX` where it does not have it.
    agreed: Duration,
}

#[derive(Debug)]
pub struct Answers {
    kept: Mutex<Generations<Key, Kept>>,
    /// Of one answer.
    most: usize,
    clock: Arc<Clock>,
    redis: Option<Arc<Redis>>,
}

impl Answers {
    /// For about so many bytes in all.
    pub fn new(bytes: usize, clock: Arc<Clock>, redis: Option<Arc<Redis>>) -> Self {
        Self { kept: Mutex::new(Generations::new(bytes)), most: bytes / 8, clock, redis }
    }

    /// The answer to this question: from here, else from Redis where that is quick.
    pub async fn find(&self, key: &Key) -> Option<Kept> {
        let here = self.look(key);
        let Some(redis) = self.redis.as_ref().filter(|redis| redis.is_there()) else { return here };
        let now = self.clock.now();
        if here.as_ref().is_some_and(|kept| kept.agreed > now) {
            return here;
        }
        // In a box: few wait there, and all walks would be larger.
        match Box::pin(redis.find(key)).await {
            Found::Answer { kind, body, left } => {
                let kept = Kept { kind, body, until: now.saturating_add(left), agreed: now + AGREED };
                self.put(*key, kept.clone());
                Some(kept)
            }
            Found::Nothing => {
                self.forget(key);
                None
            }
            Found::Unknown => here,
        }
    }

    fn look(&self, key: &Key) -> Option<Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get(key)?;
        if found.until <= self.clock.now() {
            kept.remove(key);
            return None;
        }
        Some(found)
    }

    fn put(&self, key: Key, kept: Kept) {
        let bytes = kept.body.len() + kept.kind.len() + ROOM;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(key, kept, bytes);
    }

    /// Another worker has a newer one.
    pub fn forget(&self, key: &Key) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
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
    /// It takes the place of an older one.
    refreshes: bool,
}

impl Filling {
    pub fn new(answers: Arc<Answers>, (key, refreshes): (Key, bool), age: Duration, kind: &str) -> Self {
        Self { answers, key, age, kind: kind.into(), body: Vec::new(), is_too_large: false, refreshes }
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
        let Self { answers, key, age, kind, body, is_too_large, refreshes } = self;
        if is_too_large {
            return;
        }
        let (now, body) = (answers.clock.now(), Bytes::from(body));
        let order = || Order::Keep { key, kind: Arc::clone(&kind), body: body.clone(), age, refreshes };
        let is_shared = answers.redis.as_ref().is_some_and(|redis| redis.order(order()));
        let agreed = if is_shared { now + AGREED } else { Duration::MAX };
        answers.put(key, Kept { kind, body, until: now.saturating_add(age), agreed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::cache::Partition;

    fn fill(answers: &Arc<Answers>, key: Key, age: Duration, body: &[u8]) {
        let mut filling = Filling::new(Arc::clone(answers), (key, false), age, "text/plain");
        body.chunks(3).for_each(|piece| filling.add(piece));
        filling.keep();
    }

    #[test]
    fn what_is_complete_is_kept_as_long_as_it_may() {
        let clock = Arc::<Clock>::default();
        let answers = Arc::new(Answers::new(64 * 1024, Arc::clone(&clock), None));
        let key = |name: &str| Key::of(Partition::Namespace(name), &[]);
        fill(&answers, key("a"), Duration::from_mins(1), b"answer");
        fill(&answers, key("long"), Duration::from_mins(2), b"answer");
        fill(&answers, key("ever"), Duration::MAX, b"answer");
        fill(&answers, key("large"), Duration::from_mins(1), &[0; 9000]);
        let kept = answers.look(&key("a")).unwrap();
        assert_eq!((&*kept.kind, &kept.body[..]), ("text/plain", &b"answer"[..]));
        assert!(answers.look(&key("large")).is_none());
        clock.jump(Duration::from_mins(1));
        assert!(answers.look(&key("a")).is_none() && answers.look(&key("long")).is_some());
        clock.jump(Duration::from_hours(24 * 365));
        assert!(answers.look(&key("long")).is_none() && answers.look(&key("ever")).is_some());
    }
}
