//! Ends connections on which nothing is asked, or a request is begun and not finished, for too long. The server has one timer for
//! both and none for HTTP/2; so it gets the longer time, and what must end sooner is seen from what the kernel counted.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::process::edge::{
    process_sockets,
    sock_diag::{self, Open},
};
use crate::process::settings::Settings;

/// With so many bytes the server knows which HTTP it is: the length of HTTP/2's preface.
const SAID_ENOUGH: u64 = 24;

/// The callers whose requests take their time: their connections are not idle.
#[derive(Default)]
pub struct Callers(Mutex<HashMap<SocketAddr, Caller>>);

#[derive(Default)]
struct Caller {
    requests: usize,
    /// Streams that nobody reads and nothing more is done for.
    aside: usize,
    is_http2: bool,
}

/// So many streams of one connection may wait for a reader who may never come: each holds some pieces back.
const MOST_ASIDE: usize = 8;

/// A request that is under way.
pub struct UnderWay {
    callers: Arc<Callers>,
    caller: SocketAddr,
}

impl Callers {
    pub fn enter(self: &Arc<Self>, caller: SocketAddr, is_http2: bool) -> UnderWay {
        let mut callers = self.lock();
        let entry = callers.entry(caller).or_default();
        entry.requests += 1;
        entry.is_http2 = is_http2;
        UnderWay { callers: Arc::clone(self), caller }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Caller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    /// Says that nothing more is done for it, and that those beside it on its connection go on. `None` where nothing could be
    /// beside it, or too many were left like that.
    pub fn set_aside(self) -> Option<Aside> {
        let mut callers = self.callers.lock();
        let entry = callers.get_mut(&self.caller).filter(|entry| entry.is_http2 && entry.aside < MOST_ASIDE)?;
        entry.aside += 1;
        drop(callers);
        Some(Aside { callers: Arc::clone(&self.callers), caller: self.caller })
    }
}

/// A stream that waits for its reader, and holds its connection no more.
pub struct Aside {
    callers: Arc<Callers>,
    caller: SocketAddr,
}

/// How often is looked whether those beside a stream have come to their end.
const LOOK: Duration = Duration::from_millis(50);

impl Aside {
    /// Resolves when nothing is under way beside it on its connection.
    pub async fn alone(&self) {
        while self.callers.lock().get(&self.caller).is_some_and(|entry| entry.requests > 0) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(entry) = self.callers.lock().get_mut(&self.caller) {
            entry.aside = entry.aside.saturating_sub(1);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut callers = self.callers.lock();
        if let Some(entry) = callers.get_mut(&self.caller) {
            entry.requests -= 1;
            // What speaks HTTP/2 goes on doing so: it is forgotten with its connection.
            if entry.requests == 0 && !entry.is_http2 {
                callers.remove(&self.caller);
            }
        }
    }
}

/// How long a connection may be without a request, and a request without its whole head.
#[derive(Clone, Copy)]
pub struct Patience {
    pub idle: Duration,
    pub head: Duration,
}

impl Patience {
    pub fn of(settings: &Settings) -> Self {
        Self {
            idle: Duration::from_millis(settings.keep_alive_ms),
            head: Duration::from_millis(settings.header_timeout_ms),
        }
    }
}

/// What was seen of a connection when it last had nothing to say.
#[derive(Default)]
struct Seen {
    received: u64,
    sent: u64,
    /// When a request was under way, or an answer was, last.
    used: Option<Instant>,
    /// Since when more has come, and no answer left.
    begun: Option<Instant>,
}

/// Looks at the connections of a port again and again.
pub struct Watch {
    port: u16,
    patience: Patience,
    callers: Arc<Callers>,
    seen: HashMap<u32, Seen>,
}

impl Watch {
    pub fn new(port: u16, patience: Patience, callers: Arc<Callers>) -> Self {
        Self { port, patience, callers, seen: HashMap::new() }
    }

    /// How often to look: nobody stays for much longer than he may.
    pub fn every(&self) -> Duration {
        self.patience.head.min(self.patience.idle) / 4
    }

    /// Ends those connections of ours whose time is over; says how many.
    pub fn look(&mut self, now: Instant) -> io::Result<usize> {
        if self.port == 0 {
            return Ok(0);
        }
        let open = sock_diag::open_at(self.port)?;
        let over = self.over(&open, now);
        if over.is_empty() { Ok(0) } else { end(&over) }
    }

    fn over(&mut self, open: &[Open], now: Instant) -> HashSet<u32> {
        let callers = Arc::clone(&self.callers);
        let mut callers = callers.lock();
        let (known, there): (HashSet<_>, HashSet<_>) = open.iter().map(|one| (one.inode, one.remote)).unzip();
        self.seen.retain(|inode, _| known.contains(inode));
        callers.retain(|caller, entry| entry.requests > 0 || there.contains(caller));
        open.iter().filter(|one| self.is_over(one, callers.get(&one.remote), now)).map(|one| one.inode).collect()
    }

    fn is_over(&mut self, open: &Open, caller: Option<&Caller>, now: Instant) -> bool {
        let seen = self.seen.entry(open.inode).or_default();
        if caller.is_some_and(|caller| caller.requests > 0) || open.sent != seen.sent {
            *seen = Seen { received: open.received, sent: open.sent, used: Some(now), begun: None };
            return false;
        }
        if open.received < SAID_ENOUGH {
            return open.quiet > self.patience.head;
        }
        // Over HTTP/2 much comes that is no request.
        if open.received > seen.received && !caller.is_some_and(|caller| caller.is_http2) {
            let begun = *seen.begun.get_or_insert(now);
            return now - begun > self.patience.head;
        }
        open.quiet > self.patience.idle && seen.used.is_none_or(|used| now - used > self.patience.idle)
    }
}

fn end(over: &HashSet<u32>) -> io::Result<usize> {
    let over: HashSet<_> = over.iter().map(|inode| format!("socket:[{inode}]")).collect();
    // Other workers' connections at the same port are in the list too, but no files of ours.
    process_sockets::end(|link| over.contains(link), |_| true)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const PATIENCE: Patience = Patience { idle: Duration::from_secs(75), head: Duration::from_secs(10) };

    fn watch(port: u16, patience: Patience) -> Watch {
        Watch::new(port, patience, Arc::default())
    }

    #[test]
    fn who_says_nothing_is_sent_away_and_who_says_something_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        let mut talking = TcpStream::connect(address).unwrap();
        talking.write_all(&[b'x'; SAID_ENOUGH as usize]).unwrap();
        let mut accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(watch(address.port(), PATIENCE).look(Instant::now()).unwrap(), 0);
        let short = Patience { head: Duration::from_millis(50), ..PATIENCE };
        assert_eq!(watch(address.port(), short).look(Instant::now()).unwrap(), 1);
        assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
        accepted[1].write_all(b"y").unwrap();
        assert_eq!(talking.read(&mut [0; 8]).unwrap(), 1);
    }

    fn open(received: u64, sent: u64, quiet: u64) -> Open {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4000));
        Open { inode: 7, remote, received, sent, quiet: Duration::from_secs(quiet) }
    }

    #[test]
    fn a_head_must_be_whole_in_time_however_it_drips() {
        let (mut watch, start) = (watch(1, PATIENCE), Instant::now());
        let mut look = |seconds, one: Open| !watch.over(&[one], start + Duration::from_secs(seconds)).is_empty();
        assert!(!look(0, open(100, 0, 0)));
        assert!(!look(9, open(109, 0, 0)));
        assert!(look(11, open(111, 0, 0)));
    }

    #[test]
    fn an_answered_request_is_followed_by_idle_time_or_the_next_head() {
        let (mut watch, start) = (watch(1, PATIENCE), Instant::now());
        let mut look = |seconds, one: Open| !watch.over(&[one], start + Duration::from_secs(seconds)).is_empty();
        assert!(!look(0, open(100, 0, 0)) && !look(5, open(100, 500, 5)));
        assert!(!look(79, open(100, 500, 79)));
        assert!(look(81, open(100, 500, 81)));
        assert!(!look(82, open(110, 500, 0)));
        assert!(look(93, open(120, 500, 1)));
    }

    #[test]
    fn streams_that_nobody_reads_are_set_aside_up_to_a_number_and_hold_nothing() {
        let (callers, caller) = (Arc::<Callers>::default(), open(0, 0, 0).remote);
        assert!(callers.enter(caller, false).set_aside().is_none());
        let mut aside: Vec<_> = (0..MOST_ASIDE).map(|_| callers.enter(caller, true).set_aside().unwrap()).collect();
        assert!(callers.enter(caller, true).set_aside().is_none());
        aside.pop();
        aside.push(callers.enter(caller, true).set_aside().unwrap());
        assert_eq!(callers.lock()[&caller].requests, 0);
        drop(aside);
        assert_eq!(callers.lock()[&caller].aside, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_set_aside_is_alone_when_those_beside_have_come_to_their_end() {
        let (callers, caller) = (Arc::<Callers>::default(), open(0, 0, 0).remote);
        let aside = callers.enter(caller, true).set_aside().unwrap();
        let _another = callers.enter(caller, true).set_aside().unwrap();
        aside.alone().await;
        let beside = callers.enter(caller, true);
        assert!(tokio::time::timeout(LOOK * 9, aside.alone()).await.is_err());
        drop(beside);
        tokio::time::timeout(LOOK * 2, aside.alone()).await.unwrap();
    }

    #[test]
    fn a_request_that_is_under_way_holds_its_connection() {
        let (mut watch, start) = (watch(1, PATIENCE), Instant::now());
        let callers = Arc::clone(&watch.callers);
        for is_http2 in [false, true] {
            let under_way = callers.enter(open(0, 0, 0).remote, is_http2);
            assert!(watch.over(&[open(100, 0, 0)], start).is_empty());
            assert!(watch.over(&[open(100, 0, 200)], start + Duration::from_secs(200)).is_empty());
            drop(under_way);
            assert!(watch.over(&[open(100, 0, 270)], start + Duration::from_secs(270)).is_empty());
            assert!(!watch.over(&[open(100, 0, 276)], start + Duration::from_secs(276)).is_empty());
        }
        // What comes over HTTP/2 beside requests begins none.
        assert!(watch.over(&[open(200, 0, 0)], start + Duration::from_secs(277)).is_empty());
        assert!(watch.over(&[open(200, 0, 11)], start + Duration::from_secs(288)).is_empty());
        assert!(watch.over(&[], start).is_empty() && callers.lock().is_empty());
    }
}
