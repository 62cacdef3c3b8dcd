//! What the workers of a node tell each other where there is no Redis: short notes, which the control process keeps for them.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// What finds no room is dropped, and counted.
const MOST_ERRANDS: usize = 1024;
/// Longest wait for a note. Who is not told goes on as if there were none.
const PATIENCE: Duration = Duration::from_millis(250);

/// What is to be done at the control process, one after the other: who looks behind a note of its own finds it.
#[derive(Debug)]
pub enum Errand {
    /// Whoever wants to know is told what it takes the place of.
    Note {
        name: String,
        said: String,
        told: Option<oneshot::Sender<Option<String>>>,
    },
    Look {
        name: String,
        told: oneshot::Sender<Option<String>>,
    },
}

#[derive(Debug)]
pub struct Neighbours {
    errands: mpsc::Sender<Errand>,
    taken: Mutex<Option<mpsc::Receiver<Errand>>>,
    dropped: AtomicU64,
}

impl Default for Neighbours {
    fn default() -> Self {
        let (errands, taken) = mpsc::channel(MOST_ERRANDS);
        Self { errands, taken: Mutex::new(Some(taken)), dropped: AtomicU64::new(0) }
    }
}

impl Neighbours {
    /// Leaves a note for others.
    pub fn note(&self, name: String, said: String) {
        self.send(Errand::Note { name, said, told: None });
    }

    /// Likewise, and says what was noted there before; nothing where that is not said in time. A request waits for this.
    pub async fn swap(&self, name: String, said: String) -> Option<String> {
        self.ask(|told| Errand::Note { name, said, told: Some(told) }).await
    }

    /// What others noted; nothing where that is not said in time. A request waits for this.
    pub async fn noted(&self, name: String) -> Option<String> {
        self.ask(|told| Errand::Look { name, told }).await
    }

    async fn ask(&self, errand: impl FnOnce(oneshot::Sender<Option<String>>) -> Errand) -> Option<String> {
        let (told, hears) = oneshot::channel();
        if !self.send(errand(told)) {
            return None;
        }
        timeout(PATIENCE, hears).await.ok()?.ok()?
    }

    fn send(&self, errand: Errand) -> bool {
        let is_taken = self.errands.try_send(errand).is_ok();
        if !is_taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// What is to be done, for who does it.
    pub fn errands(&self) -> Option<mpsc::Receiver<Errand>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits_for_it() {
        let neighbours = Neighbours::default();
        for number in 0..MOST_ERRANDS + 2 {
            neighbours.note(number.to_string(), String::new());
        }
        assert_eq!((neighbours.noted("7".into()).await, neighbours.dropped()), (None, 3));
        let mut errands = neighbours.errands().unwrap();
        assert!(matches!(errands.recv().await, Some(Errand::Note { name, .. }) if name == "0"));
        assert!(neighbours.errands().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_nothing_in_time_goes_on() {
        let neighbours = Neighbours::default();
        assert_eq!(neighbours.noted("a".into()).await, None);
        assert_eq!(neighbours.dropped(), 0);
    }
}
