//! Registry of waiting body readers. A periodic check finds readers that wait too long.

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
    reader::{BodyReader, PollOutcome},
    runtime::Job,
};

/// Interval between two checks of all readers. A buffered body that is incomplete at its second check is slow: the
/// engine then gets the request.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Readers of one engine that wait for a chunk, or until the engine requests more.
///
/// Lock order: a thread that is attached to the interpreter may wait for the lock. A thread that holds the lock must
/// not wait for the interpreter.
#[derive(Default)]
pub struct BodyReaders {
    last_id: AtomicU64,
    readers: Mutex<BTreeMap<u64, WaitingReader>>,
}

struct WaitingReader {
    reader: Box<BodyReader>,
    /// The server's future for the next chunk; `None` if the engine has enough for now.
    chunk_future: Option<Py<PyAny>>,
}

impl BodyReaders {
    pub fn new_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a reader that waits for a chunk.
    pub fn wait_for_chunk(&self, reader: Box<BodyReader>, chunk_future: Py<PyAny>) {
        self.lock().insert(reader.id(), WaitingReader { reader, chunk_future: Some(chunk_future) });
    }

    /// Registers a reader that waits until the engine requests more.
    pub fn park(&self, reader: Box<BodyReader>) {
        self.lock().insert(reader.id(), WaitingReader { reader, chunk_future: None });
    }

    /// Removes and returns the reader whose chunk has arrived.
    pub fn take_reader(&self, id: u64) -> Option<Box<BodyReader>> {
        self.lock().remove(&id).map(|waiting| waiting.reader)
    }

    /// Removes and returns a reader that waits until the engine requests more.
    pub fn take_parked(&self, id: u64) -> Option<Box<BodyReader>> {
        let mut readers = self.lock();
        if readers.get(&id)?.chunk_future.is_some() {
            return None;
        }
        readers.remove(&id).map(|waiting| waiting.reader)
    }

    /// Removes readers whose wait has timed out. Returns the jobs of slow bodies for the engine.
    pub fn poll_readers(&self) -> Vec<Job> {
        if self.lock().is_empty() {
            return Vec::new();
        }
        Python::attach(|py| {
            let (mut jobs, mut finished) = (Vec::new(), Vec::new());
            let now = Instant::now();
            let mut readers = self.lock();
            for (id, waiting) in readers.iter_mut().filter(|(_, waiting)| waiting.chunk_future.is_some()) {
                match waiting.reader.check_timeouts(now) {
                    PollOutcome::Waiting => (),
                    PollOutcome::HandOver(job) => jobs.push(*job),
                    PollOutcome::Finished => finished.push(*id),
                }
            }
            let finished: Vec<_> = finished.into_iter().filter_map(|id| readers.remove(&id)).collect();
            drop(readers);
            for future in finished.into_iter().filter_map(|waiting| waiting.chunk_future) {
                // The server closes the connection when no reader waits for its body.
                drop(future.call_method0(py, intern!(py, "cancel")));
            }
            jobs
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, WaitingReader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
