//! Connection pool: idle HTTP/1.1 connections and shared HTTP/2 connections per origin, bounded in number and age.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::http2::{Lease, SharedConnection};
use crate::{
    connect::{connection::Connection, origin::Origin},
    error::{Error, Result},
};

const MAX_IDLE_PER_ORIGIN: usize = 1024;
/// Maximum idle time of a pooled connection. Providers and their load balancers close connections after 60 s or more,
/// so this limit is shorter.
pub const MAX_IDLE_TIME: Duration = Duration::from_secs(50);

struct IdleConnection {
    connection: Connection,
    idle_since: Instant,
}

#[derive(Default)]
struct OriginConnections {
    idle: Mutex<Vec<IdleConnection>>,
    shared: Mutex<Vec<SharedConnection>>,
    /// True if the next connection may be HTTP/2. Then only one request at a time opens a connection, and the others
    /// wait to share it.
    is_shareable: AtomicBool,
    connect_lock: tokio::sync::Mutex<Option<ConnectFailure>>,
}

/// Last failure to open a connection that other requests waited to share.
struct ConnectFailure {
    error: Error,
    failed_at: Instant,
}

/// Exclusive right to open a connection to an origin. Other requests wait meanwhile, because they may be able to share
/// the connection.
pub struct ConnectGuard<'h>(tokio::sync::MutexGuard<'h, Option<ConnectFailure>>);

impl ConnectGuard<'_> {
    /// Records the failure for the requests that wait for this connection.
    pub fn record_failure(&mut self, error: &Error) {
        *self.0 = Some(ConnectFailure { error: error.clone(), failed_at: Instant::now() });
    }
}

pub struct Pool {
    origins: Mutex<HashMap<Origin, Arc<OriginConnections>>>,
    is_http2_enabled: bool,
}

/// Handle to the pooled connections of one origin. A connection returns to it when its response was read completely.
pub struct OriginPool(Arc<OriginConnections>);

impl std::fmt::Debug for OriginPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OriginPool")
    }
}

impl OriginPool {
    /// Returns the most recently used idle connection that is still open.
    pub fn take_idle(&self) -> Option<Connection> {
        loop {
            let mut idle = lock(&self.0.idle).pop()?;
            if idle.idle_since.elapsed() < MAX_IDLE_TIME && idle.connection.is_idle() {
                return Some(idle.connection);
            }
        }
    }

    pub fn put_idle(&self, connection: Connection) {
        let mut idle = lock(&self.0.idle);
        if idle.len() < MAX_IDLE_PER_ORIGIN {
            idle.push(IdleConnection { connection, idle_since: Instant::now() });
        }
    }

    /// Returns a lease on a shared connection that allows one more stream. Removes connections that are closing.
    pub fn lease(&self) -> Option<Lease> {
        if !self.is_shareable() {
            return None;
        }
        let mut shared = lock(&self.0.shared);
        shared.retain_mut(SharedConnection::is_open);
        shared.iter_mut().find_map(SharedConnection::lease)
    }

    pub fn add_shared(&self, shared: SharedConnection) {
        lock(&self.0.shared).push(shared);
    }

    /// Returns true if the last attempt to connect resulted in HTTP/2. Before the first attempt, returns true if HTTP/2
    /// is possible.
    pub fn is_shareable(&self) -> bool {
        self.0.is_shareable.load(Ordering::Relaxed)
    }

    pub fn set_shareable(&self, shares: bool) {
        self.0.is_shareable.store(shares, Ordering::Relaxed);
    }

    /// Waits for the exclusive right to open a connection to this origin. If the request that had the right recorded a
    /// failure meanwhile, returns its error: another attempt would take as long.
    pub async fn lock_connect(&self) -> Result<ConnectGuard<'_>> {
        let since = Instant::now();
        let turn = self.0.connect_lock.lock().await;
        match &*turn {
            Some(failure) if failure.failed_at >= since => Err(failure.error.clone()),
            _ => Ok(ConnectGuard(turn)),
        }
    }
}

impl Pool {
    pub fn new(is_http2_enabled: bool) -> Self {
        Self { origins: Mutex::default(), is_http2_enabled }
    }

    pub fn origin_pool(&self, origin: &Origin) -> OriginPool {
        let mut origins = lock(&self.origins);
        if let Some(existing) = origins.get(origin) {
            return OriginPool(Arc::clone(existing));
        }
        let shares = self.is_http2_enabled && matches!(origin, Origin::Network { is_secure: true, .. });
        let new = OriginConnections { is_shareable: shares.into(), ..OriginConnections::default() };
        OriginPool(Arc::clone(origins.entry(origin.clone()).or_insert(Arc::new(new))))
    }

    pub fn connection_count(&self) -> usize {
        let pooled = |shelf: &Arc<OriginConnections>| lock(&shelf.idle).len() + lock(&shelf.shared).len();
        lock(&self.origins).values().map(pooled).sum()
    }

    /// Closes expired connections and removes origins that have none left.
    pub fn close_expired(&self) {
        lock(&self.origins).retain(|_, shelf| {
            let (mut idle, mut shared) = (lock(&shelf.idle), lock(&shelf.shared));
            idle.retain(|idle| idle.idle_since.elapsed() < MAX_IDLE_TIME);
            shared.retain_mut(|shared| shared.is_open() && !shared.is_stale());
            !idle.is_empty() || !shared.is_empty() || Arc::strong_count(shelf) > 1
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
