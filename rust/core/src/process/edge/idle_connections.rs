//! Closes idle connections and connections whose request head arrives too slowly. The HTTP server has a single timer
//! for both over HTTP/1.1, and none for HTTP/2. That timer gets the longer timeout; this module enforces the shorter
//! ones from the kernel's byte counters.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::process::edge::{
    process_sockets,
    sock_diag::{self, TcpConnection},
};
use crate::process::settings::Settings;

/// Bytes after which the server knows the HTTP version: the length of the HTTP/2 preface.
const HTTP2_PREFACE_BYTES: u64 = 24;

/// Requests in flight per connection, by remote address. A slow request leaves the kernel's counters unchanged,
/// although its connection is not idle.
#[derive(Default)]
pub struct ConnectionTracker(Mutex<HashMap<SocketAddr, ConnectionState>>);

#[derive(Default)]
struct ConnectionState {
    active_requests: usize,
    /// Streams that the client does not read and for which no further work is done.
    parked_streams: usize,
    is_http2: bool,
}

/// Maximum number of parked streams per connection. Each buffers some chunks for a client that may never read them.
const MAX_PARKED_STREAMS: usize = 8;

/// Counts one request of a connection as active until it is dropped.
pub struct RequestGuard {
    tracker: Arc<ConnectionTracker>,
    remote: SocketAddr,
}

impl ConnectionTracker {
    pub fn begin_request(self: &Arc<Self>, caller: SocketAddr, is_http2: bool) -> RequestGuard {
        let mut callers = self.lock();
        let entry = callers.entry(caller).or_default();
        entry.active_requests += 1;
        entry.is_http2 = is_http2;
        RequestGuard { tracker: Arc::clone(self), remote: caller }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, ConnectionState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestGuard {
    /// Parks the stream: it no longer counts as active, and other requests on its connection continue. Returns `None`
    /// if the connection is not HTTP/2 or already has the maximum number of parked streams.
    pub fn park(self) -> Option<ParkedStream> {
        let mut callers = self.tracker.lock();
        let entry = callers
            .get_mut(&self.remote)
            .filter(|entry| entry.is_http2 && entry.parked_streams < MAX_PARKED_STREAMS)?;
        entry.parked_streams += 1;
        drop(callers);
        Some(ParkedStream { tracker: Arc::clone(&self.tracker), remote: self.remote })
    }
}

/// A stream that waits for the client to read it. It does not keep its connection open.
pub struct ParkedStream {
    tracker: Arc<ConnectionTracker>,
    remote: SocketAddr,
}

/// Interval at which a parked stream checks whether other requests on its connection have ended.
const PARKED_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of polls after the last other request has ended. The server may still be writing its last bytes.
const FLUSH_POLLS: u32 = 6;

impl ParkedStream {
    /// Waits until no other request is active on the same connection. If one was, the server has some time to write its
    /// last bytes.
    pub async fn wait_for_other_requests(&self) {
        let mut polls_left = 0;
        loop {
            if self.tracker.lock().get(&self.remote).is_some_and(|entry| entry.active_requests > 0) {
                polls_left = FLUSH_POLLS;
            } else if polls_left == 0 {
                return;
            }
            polls_left = polls_left.saturating_sub(1);
            tokio::time::sleep(PARKED_POLL_INTERVAL).await;
        }
    }
}

impl Drop for ParkedStream {
    fn drop(&mut self) {
        if let Some(entry) = self.tracker.lock().get_mut(&self.remote) {
            entry.parked_streams = entry.parked_streams.saturating_sub(1);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut callers = self.tracker.lock();
        if let Some(entry) = callers.get_mut(&self.remote) {
            entry.active_requests -= 1;
            // An HTTP/2 connection stays HTTP/2: its entry is removed when the connection closes.
            if entry.active_requests == 0 && !entry.is_http2 {
                callers.remove(&self.remote);
            }
        }
    }
}

/// Timeouts of the connections of clients.
#[derive(Clone, Copy)]
pub struct IdleTimeouts {
    /// Maximum time without a request.
    pub idle: Duration,
    /// Maximum time until a request head is complete.
    pub head: Duration,
}

impl IdleTimeouts {
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            idle: Duration::from_millis(settings.keep_alive_ms),
            head: Duration::from_millis(settings.header_timeout_ms),
        }
    }
}

/// Counters and times of a connection when it was last active.
#[derive(Default)]
struct LastActivity {
    received_bytes: u64,
    acked_bytes: u64,
    /// Last time a request or a response was in progress.
    last_active: Option<Instant>,
    /// Start of a request head: when bytes first arrived with no response sent since.
    head_started: Option<Instant>,
}

/// Polls the connections of a port and closes those that exceed a timeout.
pub struct IdleConnectionReaper {
    port: u16,
    timeouts: IdleTimeouts,
    tracker: Arc<ConnectionTracker>,
    activity_by_inode: HashMap<u32, LastActivity>,
}

impl IdleConnectionReaper {
    pub fn new(port: u16, timeouts: IdleTimeouts, tracker: Arc<ConnectionTracker>) -> Self {
        Self { port, timeouts, tracker, activity_by_inode: HashMap::new() }
    }

    /// Returns the poll interval: a quarter of the shorter timeout, so that no connection exceeds its timeout by much.
    pub fn poll_interval(&self) -> Duration {
        self.timeouts.head.min(self.timeouts.idle) / 4
    }

    /// Closes this process's connections that exceed a timeout. Returns how many were closed.
    pub fn close_expired(&mut self, now: Instant) -> io::Result<usize> {
        if self.port == 0 {
            return Ok(0);
        }
        let open = sock_diag::list_open_connections(self.port)?;
        let over = self.find_expired_inodes(&open, now);
        if over.is_empty() { Ok(0) } else { shut_down_by_inode(&over) }
    }

    fn find_expired_inodes(&mut self, open: &[TcpConnection], now: Instant) -> HashSet<u32> {
        let callers = Arc::clone(&self.tracker);
        let mut callers = callers.lock();
        let (inodes, remotes): (HashSet<_>, HashSet<_>) =
            open.iter().map(|connection| (connection.inode, connection.remote)).unzip();
        self.activity_by_inode.retain(|inode, _| inodes.contains(inode));
        callers.retain(|caller, entry| entry.active_requests > 0 || remotes.contains(caller));
        open.iter()
            .filter(|item| self.is_expired(item, callers.get(&item.remote), now))
            .map(|item| item.inode)
            .collect()
    }

    fn is_expired(&mut self, open: &TcpConnection, caller: Option<&ConnectionState>, now: Instant) -> bool {
        let activity = self.activity_by_inode.entry(open.inode).or_default();
        if caller.is_some_and(|caller| caller.active_requests > 0) || open.acked_bytes != activity.acked_bytes {
            *activity = LastActivity {
                received_bytes: open.received_bytes,
                acked_bytes: open.acked_bytes,
                last_active: Some(now),
                head_started: None,
            };
            return false;
        }
        if open.received_bytes < HTTP2_PREFACE_BYTES {
            return open.since_last_received > self.timeouts.head;
        }
        // Over HTTP/2, many frames arrive that do not belong to a request.
        if open.received_bytes > activity.received_bytes && !caller.is_some_and(|caller| caller.is_http2) {
            let started = *activity.head_started.get_or_insert(now);
            return now - started > self.timeouts.head;
        }
        open.since_last_received > self.timeouts.idle
            && activity.last_active.is_none_or(|used| now - used > self.timeouts.idle)
    }
}

fn shut_down_by_inode(over: &HashSet<u32>) -> io::Result<usize> {
    let over: HashSet<_> = over.iter().map(|inode| format!("socket:[{inode}]")).collect();
    // The list also contains other workers' connections to the same port; their inodes are not among this process's
    // files.
    process_sockets::shut_down_matching(|link| over.contains(link), |_| true)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const TIMEOUTS: IdleTimeouts = IdleTimeouts { idle: Duration::from_secs(75), head: Duration::from_secs(10) };

    fn new_reaper(port: u16, max_wait: IdleTimeouts) -> IdleConnectionReaper {
        IdleConnectionReaper::new(port, max_wait, Arc::default())
    }

    #[test]
    fn closes_silent_connection_and_keeps_sending_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        let mut talking = TcpStream::connect(address).unwrap();
        talking.write_all(&[b'x'; HTTP2_PREFACE_BYTES as usize]).unwrap();
        let mut accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(new_reaper(address.port(), TIMEOUTS).close_expired(Instant::now()).unwrap(), 0);
        let short = IdleTimeouts { head: Duration::from_millis(50), ..TIMEOUTS };
        assert_eq!(new_reaper(address.port(), short).close_expired(Instant::now()).unwrap(), 1);
        assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
        accepted[1].write_all(b"y").unwrap();
        assert_eq!(talking.read(&mut [0; 8]).unwrap(), 1);
    }

    fn tcp_connection(received: u64, sent: u64, quiet: u64) -> TcpConnection {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4000));
        TcpConnection {
            inode: 7,
            remote,
            received_bytes: received,
            acked_bytes: sent,
            since_last_received: Duration::from_secs(quiet),
        }
    }

    #[test]
    fn closes_connection_whose_head_arrives_too_slowly() {
        let (mut watch, start) = (new_reaper(1, TIMEOUTS), Instant::now());
        let mut expires = |seconds, connection: TcpConnection| {
            !watch.find_expired_inodes(&[connection], start + Duration::from_secs(seconds)).is_empty()
        };
        assert!(!expires(0, tcp_connection(100, 0, 0)));
        assert!(!expires(9, tcp_connection(109, 0, 0)));
        assert!(expires(11, tcp_connection(111, 0, 0)));
    }

    #[test]
    fn applies_idle_or_head_timeout_after_a_response() {
        let (mut watch, start) = (new_reaper(1, TIMEOUTS), Instant::now());
        let mut expires = |seconds, connection: TcpConnection| {
            !watch.find_expired_inodes(&[connection], start + Duration::from_secs(seconds)).is_empty()
        };
        assert!(!expires(0, tcp_connection(100, 0, 0)) && !expires(5, tcp_connection(100, 500, 5)));
        assert!(!expires(79, tcp_connection(100, 500, 79)));
        assert!(expires(81, tcp_connection(100, 500, 81)));
        assert!(!expires(82, tcp_connection(110, 500, 0)));
        assert!(expires(93, tcp_connection(120, 500, 1)));
    }

    #[test]
    fn parks_a_limited_number_of_streams_per_http2_connection() {
        let (callers, caller) = (Arc::<ConnectionTracker>::default(), tcp_connection(0, 0, 0).remote);
        assert!(callers.begin_request(caller, false).park().is_none());
        let mut parked: Vec<_> =
            (0..MAX_PARKED_STREAMS).map(|_| callers.begin_request(caller, true).park().unwrap()).collect();
        assert!(callers.begin_request(caller, true).park().is_none());
        parked.pop();
        parked.push(callers.begin_request(caller, true).park().unwrap());
        assert_eq!(callers.lock()[&caller].active_requests, 0);
        drop(parked);
        assert_eq!(callers.lock()[&caller].parked_streams, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn parked_stream_waits_until_other_requests_end() {
        let (callers, caller) = (Arc::<ConnectionTracker>::default(), tcp_connection(0, 0, 0).remote);
        let parked = callers.begin_request(caller, true).park().unwrap();
        let _another = callers.begin_request(caller, true).park().unwrap();
        parked.wait_for_other_requests().await;
        let other_request = callers.begin_request(caller, true);
        assert!(tokio::time::timeout(PARKED_POLL_INTERVAL * 9, parked.wait_for_other_requests()).await.is_err());
        let end = async {
            tokio::time::sleep(PARKED_POLL_INTERVAL).await;
            drop(other_request);
            tokio::time::Instant::now()
        };
        let ((), ended_at) = tokio::join!(parked.wait_for_other_requests(), end);
        // The server has some time to write the last bytes of the other request.
        let waited = ended_at.elapsed();
        assert!((PARKED_POLL_INTERVAL * 4..PARKED_POLL_INTERVAL * 9).contains(&waited), "{waited:?}");
    }

    #[test]
    fn active_request_keeps_its_connection_open() {
        let (mut watch, start) = (new_reaper(1, TIMEOUTS), Instant::now());
        let callers = Arc::clone(&watch.tracker);
        for is_http2 in [false, true] {
            let under_way = callers.begin_request(tcp_connection(0, 0, 0).remote, is_http2);
            assert!(watch.find_expired_inodes(&[tcp_connection(100, 0, 0)], start).is_empty());
            assert!(
                watch.find_expired_inodes(&[tcp_connection(100, 0, 200)], start + Duration::from_secs(200)).is_empty()
            );
            drop(under_way);
            assert!(
                watch.find_expired_inodes(&[tcp_connection(100, 0, 270)], start + Duration::from_secs(270)).is_empty()
            );
            assert!(
                !watch.find_expired_inodes(&[tcp_connection(100, 0, 276)], start + Duration::from_secs(276)).is_empty()
            );
        }
        // HTTP/2 frames outside a request do not start a request head.
        assert!(watch.find_expired_inodes(&[tcp_connection(200, 0, 0)], start + Duration::from_secs(277)).is_empty());
        assert!(watch.find_expired_inodes(&[tcp_connection(200, 0, 11)], start + Duration::from_secs(288)).is_empty());
        assert!(watch.find_expired_inodes(&[], start).is_empty() && callers.lock().is_empty());
    }
}
