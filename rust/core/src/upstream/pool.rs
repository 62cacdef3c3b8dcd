//! Connections that wait to be used again: per origin, newest first, bounded in number and age.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Origin, connection::Connection};

const MOST_IDLE_PER_ORIGIN: usize = 1024;
/// Providers and the balancers before them close at 60 s and later: leave before they do.
const LONGEST_IDLE: Duration = Duration::from_secs(50);

struct Idle {
    connection: Connection,
    since: Instant,
}

type Shelf = Arc<Mutex<Vec<Idle>>>;

#[derive(Default)]
pub struct Pool {
    shelves: Mutex<HashMap<Origin, Shelf>>,
}

/// The place of an origin's connections: to which one returns when its answer was read to the end.
pub struct Home(Shelf);

impl std::fmt::Debug for Home {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Home")
    }
}

impl Home {
    /// The connection that was used last, if one is still open.
    pub fn take(&self) -> Option<Connection> {
        loop {
            let mut idle = lock(&self.0).pop()?;
            if idle.since.elapsed() < LONGEST_IDLE && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
    }

    pub fn put(&self, connection: Connection) {
        let mut idle = lock(&self.0);
        if idle.len() < MOST_IDLE_PER_ORIGIN {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }
}

impl Pool {
    pub fn home(&self, origin: &Origin) -> Home {
        let mut shelves = lock(&self.shelves);
        if let Some(known) = shelves.get(origin) {
            return Home(Arc::clone(known));
        }
        Home(Arc::clone(shelves.entry(origin.clone()).or_default()))
    }

    pub fn len(&self) -> usize {
        lock(&self.shelves).values().map(|shelf| lock(shelf).len()).sum()
    }

    /// Drops what is too old, and the shelves that stay empty.
    pub fn reap(&self) {
        lock(&self.shelves).retain(|_, shelf| {
            let mut idle = lock(shelf);
            idle.retain(|idle| idle.since.elapsed() < LONGEST_IDLE);
            !idle.is_empty() || Arc::strong_count(shelf) > 1
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
