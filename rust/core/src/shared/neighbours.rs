//! What the workers of a node tell each other where there is no Redis: short notes, which the control process keeps for them.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// What finds no room is dropped.
const MOST_ERRANDS: usize = 1024;
/// Longest wait for a note. Who is not told goes on as if there were none.
const PATIENCE: Duration = Duration::from_millis(250);

/// What is to be done at the control process, one after the other: who looks behind a note of its own finds it.
#[derive(Debug)]
pub enum Errand {
    Note { name: String, said: String },
    Look { name: String, told: oneshot::Sender<Option<String>> },
}

#[derive(Debug)]
pub struct Neighbours {
    errands: mpsc::Sender<Errand>,
    taken: Mutex<Option<mpsc::Receiver<Errand>>>,
}

impl Default for Neighbours {
    fn default() -> Self {
        let (errands, taken) = mpsc::channel(MOST_ERRANDS);
        Self { errands, taken: Mutex::new(Some(taken)) }
    }
}

impl Neighbours {
    /// Leaves a note for others.
    pub fn note(&self, name: String, said: String) {
        drop(self.errands.try_send(Errand::Note { name, said }));
    }

    /// What others noted; nothing where that is not said in time. A request waits for this.
    pub async fn noted(&self, name: String) -> Option<String> {
        let (told, hears) = oneshot::channel();
        self.errands.try_send(Errand::Look { name, told }).ok()?;
        timeout(PATIENCE, hears).await.ok()?.ok()?
    }

    /// What is to be done, for who does it.
    pub fn errands(&self) -> Option<mpsc::Receiver<Errand>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
