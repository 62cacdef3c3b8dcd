//! DNS resolver on a bounded number of threads of its own. Concurrent lookups of one name share one query.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Function that resolves a name with the system's resolver and may block. Returns an error of kind `NotFound` if the
/// name does not exist.
pub type LookupFn = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// Maximum number of resolver threads. The system's resolver may hang for half a minute. Then it blocks only these
/// threads and the lookups that wait for one. Every wait has a timeout.
const MAX_THREADS: usize = 128;
/// Maximum age of a running lookup that other requests for the name join. The query of an older one may have been lost.
const MAX_JOIN_AGE: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 512 * 1024;

/// Trust in a name that is looked up. It decides how many threads such lookups may occupy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameTrust {
    /// The name belongs to a provider, a cloud or the operator.
    Trusted,
    /// A client may have chosen the host name. Lookups of such names use at most half of the threads, so that threads
    /// remain for trusted names.
    Untrusted,
}

type LookupResult = Result<Arc<[IpAddr]>, (io::ErrorKind, Arc<str>)>;

/// A lookup in progress.
#[derive(Clone)]
struct InFlightLookup {
    started_at: Instant,
    result: watch::Receiver<Option<LookupResult>>,
}

pub struct Resolver {
    lookup: LookupFn,
    in_flight: Arc<Mutex<HashMap<String, InFlightLookup>>>,
    thread_permits: Arc<Semaphore>,
    /// The permits among `thread_permits` that lookups of untrusted names may use.
    untrusted_permits: Arc<Semaphore>,
}

/// Returns the system's resolver, with its hosts file, servers and address order.
pub fn system_lookup() -> LookupFn {
    Arc::new(|name| Ok((name, 0).to_socket_addrs().map_err(classify_error)?.map(|address| address.ip()).collect()))
}

/// Parts of error messages by which systems report that a name does not exist. Only the message distinguishes this from
/// an unreachable DNS server.
const NAME_NOT_FOUND_TEXTS: &[&str] = &["not known", "No address associated", "does not resolve", "no usable address"];

fn classify_error(error: io::Error) -> io::Error {
    let message = error.to_string();
    if NAME_NOT_FOUND_TEXTS.iter().any(|known_text| message.contains(known_text)) {
        io::Error::new(io::ErrorKind::NotFound, message)
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

    /// Returns all addresses of a name. Has no timeout of its own.
    pub async fn resolve(&self, name: &str, trust: NameTrust) -> io::Result<Arc<[IpAddr]>> {
        let under_way = self.find_in_flight(name);
        let mut flight = match under_way {
            Some(flight) => flight,
            None => self.start_lookup(name, trust).await?,
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

    async fn start_lookup(&self, name: &str, trust: NameTrust) -> io::Result<InFlightLookup> {
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        let untrusted_permit = if trust == NameTrust::Untrusted {
            Some(acquire(&self.untrusted_permits).await.map_err(io::Error::other)?)
        } else {
            None
        };
        let permit = acquire(&self.thread_permits).await.map_err(io::Error::other)?;
        // Another task may have started the lookup while this one waited for a permit.
        if let Some(flight) = self.find_in_flight(name) {
            return Ok(flight);
        }
        let (sender, response) = watch::channel(None);
        let flight = InFlightLookup { started_at: Instant::now(), result: response };
        lock(&self.in_flight).insert(name.to_owned(), flight.clone());
        let started = self.spawn_thread(name.to_owned(), sender, untrusted_permit, permit);
        if started.is_err() {
            lock(&self.in_flight).remove(name);
        }
        started.map(|()| flight)
    }

    fn spawn_thread(
        &self,
        name: String,
        response: watch::Sender<Option<LookupResult>>,
        untrusted_permit: Option<OwnedSemaphorePermit>,
        thread_permit: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        let (look_up, flights) = (Arc::clone(&self.lookup), Arc::clone(&self.in_flight));
        let job = move || {
            let result = look_up(&name).map(Arc::from).map_err(|error| (error.kind(), error.to_string().into()));
            let receiver = response.subscribe();
            let mut flights = lock(&flights);
            if flights.get(&name).is_some_and(|flight| flight.result.same_channel(&receiver)) {
                flights.remove(&name);
            }
            drop(flights);
            response.send_replace(Some(result));
            drop((untrusted_permit, thread_permit));
        };
        thread::Builder::new().name("penstock-dns".into()).stack_size(STACK_BYTES).spawn(job).map(drop)
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

    /// Returns a resolver that counts lookups. Lookups of names that begin with `slow` wait for the gate.
    fn counting_resolver(gate: Arc<(Mutex<bool>, Condvar)>) -> (Resolver, Arc<AtomicUsize>) {
        let query_count = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&query_count);
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
        (Resolver::new(Arc::new(look_up)), query_count)
    }

    async fn within_two_seconds<F: Future>(future: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_secs(2), future).await.ok()
    }

    #[test]
    fn distinguishes_unknown_names_from_unreachable_servers() {
        let kind = |message: &str| {
            classify_error(io::Error::other(format!("failed to lookup address information: {message}"))).kind()
        };
        for message in ["Name or service not known", "No address associated with hostname", "Name does not resolve"] {
            assert_eq!(kind(message), io::ErrorKind::NotFound, "{message}");
        }
        for message in
            ["Temporary failure in name resolution", "Try again", "Non-recoverable failure in name resolution"]
        {
            assert_eq!(kind(message), io::ErrorKind::Other, "{message}");
        }
    }

    #[tokio::test]
    async fn concurrent_lookups_of_a_name_share_one_query() {
        let gate = Arc::default();
        let (resolver, query_count) = counting_resolver(Arc::clone(&gate));
        let opened = async {
            tokio::task::yield_now().await;
            *lock(&gate.0) = true;
            gate.1.notify_all();
        };
        let (first, two, ()) = tokio::join!(
            resolver.resolve("slow", NameTrust::Trusted),
            resolver.resolve("slow", NameTrust::Trusted),
            opened
        );
        assert_eq!(first.unwrap(), two.unwrap());
        assert_eq!(query_count.load(Ordering::Relaxed), 1);
        resolver.resolve("slow", NameTrust::Trusted).await.unwrap();
        assert_eq!(query_count.load(Ordering::Relaxed), 2, "an answer is not kept");
    }

    #[tokio::test]
    async fn a_hanging_lookup_does_not_block_others() {
        let gate = Arc::default();
        let (resolver, query_count) = counting_resolver(Arc::clone(&gate));
        for number in 1..MAX_THREADS {
            // The abandoned lookup still occupies its thread.
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
        assert_eq!(query_count.load(Ordering::Relaxed), MAX_THREADS + 3);
    }

    #[tokio::test]
    async fn untrusted_names_leave_threads_for_trusted_names() {
        let gate = Arc::default();
        let (resolver, query_count) = counting_resolver(Arc::clone(&gate));
        for number in 0..MAX_THREADS {
            drop(within_one_millisecond(resolver.resolve(&format!("slow-{number}"), NameTrust::Untrusted)).await);
        }
        // Threads start only when a core is free.
        let all = async {
            while query_count.load(Ordering::Relaxed) < MAX_THREADS / 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within_two_seconds(all).await.unwrap();
        assert_eq!(query_count.load(Ordering::Relaxed), MAX_THREADS / 2);
        assert!(within_two_seconds(resolver.resolve("quick", NameTrust::Trusted)).await.unwrap().is_ok());
        assert!(
            within_two_seconds(resolver.resolve("quick", NameTrust::Untrusted)).await.is_none(),
            "their own share is bounded"
        );
        *lock(&gate.0) = true;
        gate.1.notify_all();
    }

    async fn within_one_millisecond<F: Future>(future: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_millis(1), future).await.ok()
    }
}
