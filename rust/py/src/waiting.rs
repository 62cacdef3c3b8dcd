//! Where the readers of request bodies wait, so that the clock finds those that wait too long.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pyo3::{intern, prelude::*};

use crate::{
    reader::{Look, Reader},
    runtime::Job,
};

/// How often is looked. What is gathered is handed over at the second look.
pub const EVERY: Duration = Duration::from_millis(100);

/// The readers of one engine that wait for a piece, or to be asked for more.
/// Its lock may be waited for with the interpreter attached, never the other way round.
#[derive(Default)]
pub struct WaitingRoom {
    last_id: AtomicU64,
    readers: Mutex<BTreeMap<u64, Waiting>>,
}

struct Waiting {
    reader: Box<Reader>,
    /// The server's promise of a piece; none where the engine has enough for now.
    piece: Option<Py<PyAny>>,
}

impl WaitingRoom {
    pub fn new_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a piece.
    pub fn expect(&self, reader: Box<Reader>, piece: Py<PyAny>) {
        self.lock().insert(reader.id(), Waiting { reader, piece: Some(piece) });
    }

    /// Waits to be asked for more.
    pub fn park(&self, reader: Box<Reader>) {
        self.lock().insert(reader.id(), Waiting { reader, piece: None });
    }

    /// The reader whose piece has come.
    pub fn take(&self, id: u64) -> Option<Box<Reader>> {
        self.lock().remove(&id).map(|waiting| waiting.reader)
    }

    /// A reader that waits to be asked for more.
    pub fn take_parked(&self, id: u64) -> Option<Box<Reader>> {
        let mut readers = self.lock();
        if readers.get(&id)?.piece.is_some() {
            return None;
        }
        readers.remove(&id).map(|waiting| waiting.reader)
    }

    /// Lets go of the readers that wait in vain. What comes back has been waited for long enough to be handed over.
    pub fn look(&self) -> Vec<Job> {
        if self.lock().is_empty() {
            return Vec::new();
        }
        Python::attach(|py| {
            let (mut jobs, mut over) = (Vec::new(), Vec::new());
            let now = Instant::now();
            let mut readers = self.lock();
            for (id, waiting) in readers.iter_mut().filter(|(_, waiting)| waiting.piece.is_some()) {
                match waiting.reader.look(now) {
                    Look::Stays => (),
                    Look::Feeds(job) => jobs.push(*job),
                    Look::Ends => over.push(*id),
                }
            }
            let over: Vec<_> = over.into_iter().filter_map(|id| readers.remove(&id)).collect();
            drop(readers);
            for piece in over.into_iter().filter_map(|waiting| waiting.piece) {
                // The server gives the connection up once nobody waits for its body.
                drop(piece.call_method0(py, intern!(py, "cancel")));
            }
            jobs
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
