//! Group commit of a spool: one write to the disk covers all records whose final frame was written before. A separate
//! thread makes these writes, so that they do not delay other requests.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use tokio::{sync::watch, time::timeout};

use super::Spool;

/// Maximum time that a response waits for the disk. A disk that does not respond must not stop the gateway.
const SYNC_TIMEOUT: Duration = Duration::from_secs(2);

/// Group commit of one spool.
pub struct GroupSync {
    /// Number of records whose final frame was written to the spool.
    ended: AtomicU64,
    /// Number of ended records that are on the disk, or whose write to the disk failed.
    done: watch::Sender<u64>,
    /// Channel that wakes the thread; `None` if the thread could not be created. One queued signal is enough, because
    /// the thread reads `ended` after it has received the signal.
    wake: OnceLock<Option<SyncSender<()>>>,
    syncs: AtomicU64,
    failures: AtomicU64,
}

impl Default for GroupSync {
    fn default() -> Self {
        let (ended, syncs, failures) = <(AtomicU64, AtomicU64, AtomicU64)>::default();
        Self { ended, done: watch::channel(0).0, wake: OnceLock::new(), syncs, failures }
    }
}

impl GroupSync {
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Increments the number of records whose final frame was written to the spool.
    pub fn add_record(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until every record whose final frame was written before this call is on the disk, at most `SYNC_TIMEOUT`.
    pub async fn wait(&self, spool: &Arc<Spool>) {
        let ended = self.ended.load(Ordering::Acquire);
        let mut done = self.done.subscribe();
        if *done.borrow_and_update() >= ended {
            return;
        }
        if let Some(wake) = self.wake.get_or_init(|| spawn_thread(Arc::downgrade(spool))) {
            // If the queue is full, the thread is about to read `ended`.
            let _ = wake.try_send(());
            if timeout(SYNC_TIMEOUT, done.wait_for(|done| *done >= ended)).await.is_ok_and(|waited| waited.is_ok()) {
                return;
            }
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn run(&self, spool: &Spool) {
        let ended = self.ended.load(Ordering::Acquire);
        if *self.done.borrow() >= ended {
            return;
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if spool.sync().is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.done.send_replace(ended);
    }
}

/// Starts the thread, which ends with the spool. Returns `None` if the system cannot create one.
fn spawn_thread(spool: Weak<Spool>) -> Option<SyncSender<()>> {
    let (wake, signals) = sync_channel(1);
    let spawned = std::thread::Builder::new().name("penstock-sync".into()).spawn(move || run_thread(&spool, &signals));
    spawned.ok().map(|_| wake)
}

fn run_thread(spool: &Weak<Spool>, signals: &Receiver<()>) {
    while signals.recv().is_ok() {
        let Some(spool) = spool.upgrade() else { return };
        if let Some(sync) = &spool.group_sync {
            sync.run(&spool);
        }
    }
}
