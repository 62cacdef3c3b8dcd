//! Names to addresses, on threads of their own: bounded in number, and a name that many ask for at once is looked up once.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Asks the system for the addresses of a name; blocks as long as the system likes. Where there is no such name the error is of
/// the kind `NotFound`.
pub type LookupFn = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The system's resolver may hang for half a minute. What it holds up then is only this many threads and who waits for one,
/// and everybody's wait is bounded.
const MAX_THREADS: usize = 128;
/// Who comes later than this asks anew: what has taken so long may have been lost.
const MAX_JOIN_AGE: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 512 * 1024;

/// Whose name is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameTrust {
    /// A provider's own.
    Trusted,
    /// Another, which whoever calls may have chosen: many such, however slow, leave threads for the others.
    Untrusted,
}

type LookupResult = Result<Arc<[IpAddr]>, (io::ErrorKind, Arc<str>)>;

/// A look-up under way.
#[derive(Clone)]
struct InFlightLookup {
    started_at: Instant,
    result: watch::Receiver<Option<LookupResult>>,
}

pub struct Resolver {
    lookup: LookupFn,
    in_flight: Arc<Mutex<HashMap<String, InFlightLookup>>>,
    thread_permits: Arc<Semaphore>,
    /// Of those threads, the ones for names that are no provider's.
    untrusted_permits: Arc<Semaphore>,
}

/// The system's own way: its files, its servers, its order.
pub fn system_lookup() -> LookupFn {
    Arc::new(|name| Ok((name, 0).to_socket_addrs().map_err(classify_error)?.map(|address| address.ip()).collect()))
}

/// How systems say that there is no such name: they say in words alone whether it is that, or that nobody could be asked.
const NAME_NOT_FOUND_TEXTS: &[&str] = &["not known", "No address associated", "does not resolve", "no usable address"];

fn classify_error(error: io::Error) -> io::Error {
    let words = error.to_string();
    if NAME_NOT_FOUND_TEXTS.iter().any(|known| words.contains(known)) {
        io::Error::new(io::ErrorKind::NotFound, words)
    } else {
        error
    }
}

impl Resolver {
    pub fn new(lookup: LookupFn) -> Self {
        let permits = |count| Arc::new(Semaphore::new(count));
        Self {
            lookup,
            in_flight: Arc::default(),
            thread_permits: permits(MAX_THREADS),
            untrusted_permits: permits(MAX_THREADS / 2),
        }
    }

    /// All addresses of a name. The caller bounds the wait.
    pub async fn resolve(&self, name: &str, whose: NameTrust) -> io::Result<Arc<[IpAddr]>> {
        let under_way = self.find_in_flight(name);
        let mut flight = match under_way {
            Some(flight) => flight,
            None => self.start_lookup(name, whose).await?,
        };
        let landed = flight.result.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        match landed.as_ref() {
            Some(Ok(addresses)) => Ok(Arc::clone(addresses)),
            Some(Err((kind, message))) => Err(io::Error::new(*kind, message.to_string())),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    fn find_in_flight(&self, name: &str) -> Option<InFlightLookup> {
        lock(&self.in_flight).get(name).filter(|flight| flight.started_at.elapsed() < MAX_JOIN_AGE).cloned()
    }

    async fn start_lookup(&self, name: &str, whose: NameTrust) -> io::Result<InFlightLookup> {
        let one = |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned();
        let share = if whose == NameTrust::Untrusted {
            Some(one(&self.untrusted_permits).await.map_err(io::Error::other)?)
        } else {
            None
        };
        let permit = one(&self.thread_permits).await.map_err(io::Error::other)?;
        // Somebody else may have begun while this one waited.
        if let Some(flight) = self.find_in_flight(name) {
            return Ok(flight);
        }
        let (sender, answer) = watch::channel(None);
        let flight = InFlightLookup { started_at: Instant::now(), result: answer };
        lock(&self.in_flight).insert(name.to_owned(), flight.clone());
        let started = self.spawn_thread(name.to_owned(), sender, (share, permit));
        if started.is_err() {
            lock(&self.in_flight).remove(name);
        }
        started.map(|()| flight)
    }

    fn spawn_thread(
        &self,
        name: String,
        answer: watch::Sender<Option<LookupResult>>,
        permits: (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit),
    ) -> io::Result<()> {
        let (look_up, flights) = (Arc::clone(&self.lookup), Arc::clone(&self.in_flight));
        let work = move || {
            let found = look_up(&name).map(Arc::from).map_err(|error| (error.kind(), error.to_string().into()));
            let own = answer.subscribe();
            let mut flights = lock(&flights);
            if flights.get(&name).is_some_and(|flight| flight.result.same_channel(&own)) {
                flights.remove(&name);
            }
            drop(flights);
            answer.send_replace(Some(found));
            drop(permits);
        };
        thread::Builder::new().name("penstock-dns".into()).stack_size(STACK_BYTES).spawn(work).map(drop)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Condvar,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Counts the look-ups; those of names that begin with `slow` wait for the gate.
    fn counting_resolver(gate: Arc<(Mutex<bool>, Condvar)>) -> (Resolver, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let look_up = move |name: &str| {
            count.fetch_add(1, Ordering::Relaxed);
            let mut open = lock(&gate.0);
            while name.starts_with("slow") && !*open {
                open = gate.1.wait(open).unwrap();
            }
            if name.ends_with("missing") {
                Err(io::ErrorKind::NotFound.into())
            } else {
                Ok(vec![[192, 0, 2, 1].into()])
            }
        };
        (Resolver::new(Arc::new(look_up)), asked)
    }

    async fn within_two_seconds<F: Future>(work: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_secs(2), work).await.ok()
    }

    #[test]
    fn distinguishes_unknown_names_from_unreachable_servers() {
        let kind = |words: &str| {
            classify_error(io::Error::other(format!("failed to lookup address information: {words}"))).kind()
        };
        for words in ["Name or service not known", "No address associated with hostname", "Name does not resolve"] {
            assert_eq!(kind(words), io::ErrorKind::NotFound, "{words}");
        }
        for words in ["Temporary failure in name resolution", "Try again", "Non-recoverable failure in name resolution"]
        {
            assert_eq!(kind(words), io::ErrorKind::Other, "{words}");
        }
    }

    #[tokio::test]
    async fn concurrent_lookups_of_a_name_share_one_query() {
        let gate = Arc::default();
        let (resolver, asked) = counting_resolver(Arc::clone(&gate));
        let opened = async {
            tokio::task::yield_now().await;
            *lock(&gate.0) = true;
            gate.1.notify_all();
        };
        let (one, two, ()) = tokio::join!(
            resolver.resolve("slow", NameTrust::Trusted),
            resolver.resolve("slow", NameTrust::Trusted),
            opened
        );
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        resolver.resolve("slow", NameTrust::Trusted).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "an answer is not kept");
    }

    #[tokio::test]
    async fn a_hanging_lookup_does_not_block_others() {
        let gate = Arc::default();
        let (resolver, asked) = counting_resolver(Arc::clone(&gate));
        for number in 1..MAX_THREADS {
            // Who gave up waiting has left a thread behind.
            drop(within_one_millisecond(resolver.resolve(&format!("slow-{number}"), NameTrust::Trusted)).await);
        }
        assert!(within_two_seconds(resolver.resolve("quick", NameTrust::Trusted)).await.unwrap().is_ok());
        assert!(within_two_seconds(resolver.resolve("missing", NameTrust::Trusted)).await.unwrap().is_err());
        drop(within_one_millisecond(resolver.resolve("slow-last", NameTrust::Trusted)).await);
        assert!(
            within_two_seconds(resolver.resolve("quick", NameTrust::Trusted)).await.is_none(),
            "the number of threads is bounded"
        );
        *lock(&gate.0) = true;
        gate.1.notify_all();
        assert!(resolver.resolve("quick", NameTrust::Trusted).await.is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), MAX_THREADS + 3);
    }

    #[tokio::test]
    async fn untrusted_names_leave_threads_for_trusted_names() {
        let gate = Arc::default();
        let (resolver, asked) = counting_resolver(Arc::clone(&gate));
        for number in 0..MAX_THREADS {
            drop(within_one_millisecond(resolver.resolve(&format!("slow-{number}"), NameTrust::Untrusted)).await);
        }
        // Threads begin when there is a core for them.
        let all = async {
            while asked.load(Ordering::Relaxed) < MAX_THREADS / 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within_two_seconds(all).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), MAX_THREADS / 2);
        assert!(within_two_seconds(resolver.resolve("quick", NameTrust::Trusted)).await.unwrap().is_ok());
        assert!(
            within_two_seconds(resolver.resolve("quick", NameTrust::Untrusted)).await.is_none(),
            "their own share is bounded"
        );
        *lock(&gate.0) = true;
        gate.1.notify_all();
    }

    async fn within_one_millisecond<F: Future>(work: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_millis(1), work).await.ok()
    }
}
