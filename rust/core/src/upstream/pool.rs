//! Connections that wait to be used again, and those that many requests share: per origin, bounded in number and age.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    Origin,
    connection::Connection,
    http2::{Lease, Shared},
};
use crate::error::{Error, Result};

const MOST_IDLE_PER_ORIGIN: usize = 1024;
/// Providers and the balancers before them close at 60 s and later: leave before they do.
pub const LONGEST_IDLE: Duration = Duration::from_secs(50);

struct Idle {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Shelf {
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Vec<Shared>>,
    /// The next connection may be one to share: who needs one waits for whoever is just making it.
    shares: AtomicBool,
    turn: tokio::sync::Mutex<Option<Failure>>,
}

/// What came of the last connection that was to be shared, where that is none.
struct Failure {
    error: Error,
    at: Instant,
}

/// The turn to make a connection that others will want to share.
pub struct Turn<'h>(tokio::sync::MutexGuard<'h, Option<Failure>>);

impl Turn<'_> {
    /// Says to those who wait that there will be none.
    pub fn fail(&mut self, error: &Error) {
        *self.0 = Some(Failure { error: error.clone(), at: Instant::now() });
    }
}

pub struct Pool {
    shelves: Mutex<HashMap<Origin, Arc<Shelf>>>,
    http2: bool,
}

/// The place of an origin's connections: to which one returns when its answer was read to the end.
pub struct Home(Arc<Shelf>);

impl std::fmt::Debug for Home {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Home")
    }
}

impl Home {
    /// The connection that was used last, if one is still open.
    pub fn take(&self) -> Option<Connection> {
        loop {
            let mut idle = lock(&self.0.idle).pop()?;
            if idle.since.elapsed() < LONGEST_IDLE && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
    }

    pub fn put(&self, connection: Connection) {
        let mut idle = lock(&self.0.idle);
        if idle.len() < MOST_IDLE_PER_ORIGIN {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// A place on a shared connection that has one left. Those that are going away are forgotten.
    pub fn lease(&self) -> Option<Lease> {
        if !self.shares() {
            return None;
        }
        let mut shared = lock(&self.0.shared);
        shared.retain_mut(Shared::is_open);
        shared.iter_mut().find_map(Shared::lease)
    }

    pub fn share(&self, shared: Shared) {
        lock(&self.0.shared).push(shared);
    }

    /// Whether the last connection was one to share; before there was any, whether it might be.
    pub fn shares(&self) -> bool {
        self.0.shares.load(Ordering::Relaxed)
    }

    pub fn set_shares(&self, shares: bool) {
        self.0.shares.store(shares, Ordering::Relaxed);
    }

    /// Waits for the turn to make a connection that others will want to share. Whoever waited for one that
    /// came to nothing in its time does not try the same once more: that would take as long again.
    pub async fn turn(&self) -> Result<Turn<'_>> {
        let since = Instant::now();
        let turn = self.0.turn.lock().await;
        match &*turn {
            Some(failure) if failure.at >= since => Err(failure.error.clone()),
            _ => Ok(Turn(turn)),
        }
    }
}

impl Pool {
    pub fn new(http2: bool) -> Self {
        Self { shelves: Mutex::default(), http2 }
    }

    pub fn home(&self, origin: &Origin) -> Home {
        let mut shelves = lock(&self.shelves);
        if let Some(known) = shelves.get(origin) {
            return Home(Arc::clone(known));
        }
        let shares = self.http2 && matches!(origin, Origin::Network { secure: true, .. });
        let new = Shelf { shares: shares.into(), ..Shelf::default() };
        Home(Arc::clone(shelves.entry(origin.clone()).or_insert(Arc::new(new))))
    }

    pub fn len(&self) -> usize {
        let kept = |shelf: &Arc<Shelf>| lock(&shelf.idle).len() + lock(&shelf.shared).len();
        lock(&self.shelves).values().map(kept).sum()
    }

    /// Drops what is too old, and the shelves that stay empty.
    pub fn reap(&self) {
        lock(&self.shelves).retain(|_, shelf| {
            let (mut idle, mut shared) = (lock(&shelf.idle), lock(&shelf.shared));
            idle.retain(|idle| idle.since.elapsed() < LONGEST_IDLE);
            shared.retain_mut(|shared| shared.is_open() && !shared.is_stale());
            !idle.is_empty() || !shared.is_empty() || Arc::strong_count(shelf) > 1
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
