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
pub type LookUp = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The system's resolver may hang for half a minute. What it holds up then is only this many threads and who waits for one,
/// and everybody's wait is bounded.
const MOST_THREADS: usize = 128;
/// Who comes later than this asks anew: what has taken so long may have been lost.
const JOINED: Duration = Duration::from_secs(1);
const STACK: usize = 512 * 1024;

/// Whose name is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A provider's own.
    Provider,
    /// Another, which whoever calls may have chosen: many such, however slow, leave threads for the others.
    Other,
}

type Answer = Result<Arc<[IpAddr]>, (io::ErrorKind, Arc<str>)>;

/// A look-up under way.
#[derive(Clone)]
struct Flight {
    began: Instant,
    answer: watch::Receiver<Option<Answer>>,
}

pub struct Resolver {
    look_up: LookUp,
    flights: Arc<Mutex<HashMap<String, Flight>>>,
    threads: Arc<Semaphore>,
    /// Of those threads, the ones for names that are no provider's.
    others: Arc<Semaphore>,
}

/// The system's own way: its files, its servers, its order.
pub fn system() -> LookUp {
    Arc::new(|name| Ok((name, 0).to_socket_addrs().map_err(told)?.map(|address| address.ip()).collect()))
}

/// How systems say that there is no such name: they say in words alone whether it is that, or that nobody could be asked.
const NO_SUCH_NAME: &[&str] = &["not known", "No address associated", "does not resolve", "no usable address"];

fn told(error: io::Error) -> io::Error {
    let words = error.to_string();
    if NO_SUCH_NAME.iter().any(|known| words.contains(known)) {
        io::Error::new(io::ErrorKind::NotFound, words)
    } else {
        error
    }
}

impl Resolver {
    pub fn new(look_up: LookUp) -> Self {
        let permits = |count| Arc::new(Semaphore::new(count));
        Self { look_up, flights: Arc::default(), threads: permits(MOST_THREADS), others: permits(MOST_THREADS / 2) }
    }

    /// All addresses of a name. The caller bounds the wait.
    pub async fn resolve(&self, name: &str, whose: Whose) -> io::Result<Arc<[IpAddr]>> {
        let under_way = self.under_way(name);
        let mut flight = match under_way {
            Some(flight) => flight,
            None => self.begin(name, whose).await?,
        };
        let landed = flight.answer.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        match landed.as_ref() {
            Some(Ok(addresses)) => Ok(Arc::clone(addresses)),
            Some(Err((kind, message))) => Err(io::Error::new(*kind, message.to_string())),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    fn under_way(&self, name: &str) -> Option<Flight> {
        lock(&self.flights).get(name).filter(|flight| flight.began.elapsed() < JOINED).cloned()
    }

    async fn begin(&self, name: &str, whose: Whose) -> io::Result<Flight> {
        let one = |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned();
        let share = if whose == Whose::Other { Some(one(&self.others).await.map_err(io::Error::other)?) } else { None };
        let permit = one(&self.threads).await.map_err(io::Error::other)?;
        // Somebody else may have begun while this one waited.
        if let Some(flight) = self.under_way(name) {
            return Ok(flight);
        }
        let (sender, answer) = watch::channel(None);
        let flight = Flight { began: Instant::now(), answer };
        lock(&self.flights).insert(name.to_owned(), flight.clone());
        let started = self.start(name.to_owned(), sender, (share, permit));
        if started.is_err() {
            lock(&self.flights).remove(name);
        }
        started.map(|()| flight)
    }

    fn start(
        &self,
        name: String,
        answer: watch::Sender<Option<Answer>>,
        permits: (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit),
    ) -> io::Result<()> {
        let (look_up, flights) = (Arc::clone(&self.look_up), Arc::clone(&self.flights));
        let work = move || {
            let found = look_up(&name).map(Arc::from).map_err(|error| (error.kind(), error.to_string().into()));
            let own = answer.subscribe();
            let mut flights = lock(&flights);
            if flights.get(&name).is_some_and(|flight| flight.answer.same_channel(&own)) {
                flights.remove(&name);
            }
            drop(flights);
            answer.send_replace(Some(found));
            drop(permits);
        };
        thread::Builder::new().name("penstock-dns".into()).stack_size(STACK).spawn(work).map(drop)
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
    fn counting(gate: Arc<(Mutex<bool>, Condvar)>) -> (Resolver, Arc<AtomicUsize>) {
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

    async fn within<F: Future>(work: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_secs(2), work).await.ok()
    }

    #[test]
    fn that_there_is_no_such_name_is_told_apart_from_that_nobody_could_be_asked() {
        let kind =
            |words: &str| told(io::Error::other(format!("failed to lookup address information: {words}"))).kind();
        for words in ["Name or service not known", "No address associated with hostname", "Name does not resolve"] {
            assert_eq!(kind(words), io::ErrorKind::NotFound, "{words}");
        }
        for words in ["Temporary failure in name resolution", "Try again", "Non-recoverable failure in name resolution"]
        {
            assert_eq!(kind(words), io::ErrorKind::Other, "{words}");
        }
    }

    #[tokio::test]
    async fn many_who_ask_for_a_name_at_once_cost_one_look_up() {
        let gate = Arc::default();
        let (resolver, asked) = counting(Arc::clone(&gate));
        let opened = async {
            tokio::task::yield_now().await;
            *lock(&gate.0) = true;
            gate.1.notify_all();
        };
        let (one, two, ()) =
            tokio::join!(resolver.resolve("slow", Whose::Provider), resolver.resolve("slow", Whose::Provider), opened);
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        resolver.resolve("slow", Whose::Provider).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "an answer is not kept");
    }

    #[tokio::test]
    async fn a_look_up_that_hangs_holds_up_no_other() {
        let gate = Arc::default();
        let (resolver, asked) = counting(Arc::clone(&gate));
        for number in 1..MOST_THREADS {
            // Who gave up waiting has left a thread behind.
            drop(within_a_moment(resolver.resolve(&format!("slow-{number}"), Whose::Provider)).await);
        }
        assert!(within(resolver.resolve("quick", Whose::Provider)).await.unwrap().is_ok());
        assert!(within(resolver.resolve("missing", Whose::Provider)).await.unwrap().is_err());
        drop(within_a_moment(resolver.resolve("slow-last", Whose::Provider)).await);
        assert!(within(resolver.resolve("quick", Whose::Provider)).await.is_none(), "the number of threads is bounded");
        *lock(&gate.0) = true;
        gate.1.notify_all();
        assert!(resolver.resolve("quick", Whose::Provider).await.is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), MOST_THREADS + 3);
    }

    #[tokio::test]
    async fn names_that_callers_choose_leave_threads_for_those_of_providers() {
        let gate = Arc::default();
        let (resolver, asked) = counting(Arc::clone(&gate));
        for number in 0..MOST_THREADS {
            drop(within_a_moment(resolver.resolve(&format!("slow-{number}"), Whose::Other)).await);
        }
        // Threads begin when there is a core for them.
        let all = async {
            while asked.load(Ordering::Relaxed) < MOST_THREADS / 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(all).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), MOST_THREADS / 2);
        assert!(within(resolver.resolve("quick", Whose::Provider)).await.unwrap().is_ok());
        assert!(within(resolver.resolve("quick", Whose::Other)).await.is_none(), "their own share is bounded");
        *lock(&gate.0) = true;
        gate.1.notify_all();
    }

    async fn within_a_moment<F: Future>(work: F) -> Option<F::Output> {
        tokio::time::timeout(Duration::from_millis(1), work).await.ok()
    }
}
