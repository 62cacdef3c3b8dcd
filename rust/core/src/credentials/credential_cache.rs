//! Credentials that were fetched, kept until shortly before they expire; each is fetched by one request at a time.

use std::{
    collections::HashMap,
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Issued;

/// So many are kept.
const MOST: usize = 10_000;
/// So long before the end, or after this part of its life where that is later, one is fetched anew.
const AHEAD: Duration = Duration::from_mins(5);
const PART: u32 = 4;
/// After a failure nobody asks again for so long: who waited gets the same answer.
const PAUSE: Duration = Duration::from_secs(1);

type Outcome = Result<Arc<Issued>, String>;

#[derive(Default)]
pub struct Wallet {
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
    /// The worker's own, never what nodes share: nobody outside may work out what falls together with another's credential.
    seed: RandomState,
    /// Who opens a sealed key has it: that takes a core for a while, and any caller may ask for it.
    pub(crate) opening: Arc<tokio::sync::Mutex<()>>,
}

/// One credential.
#[derive(Default)]
struct Slot {
    kept: Mutex<Option<Kept>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Kept {
    outcome: Outcome,
    renew: Instant,
    expires: Instant,
}

impl Wallet {
    /// The credential of whoever is described: the one that is kept, or a new one.
    pub async fn find<F, W>(&self, whose: impl Hash, fetch: F) -> Outcome
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<(Issued, Duration), String>>,
    {
        let slot = self.slot(self.seed.hash_one(whose));
        let kept = slot.look();
        let turn = match kept {
            Some(Kept { outcome, renew, .. }) if renew > Instant::now() => return outcome,
            // Still good: one request renews it, the others go on with it.
            Some(Kept { outcome: outcome @ Ok(_), .. }) => match slot.turn.try_lock() {
                Ok(turn) => turn,
                Err(_) => return outcome,
            },
            _ => slot.turn.lock().await,
        };
        // Whoever had the turn before may have fetched it.
        if let Some(Kept { outcome, renew, .. }) = slot.look()
            && renew > Instant::now()
        {
            return outcome;
        }
        let outcome = slot.keep(fetch().await);
        drop(turn);
        outcome
    }

    fn slot(&self, mark: u64) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MOST && !slots.contains_key(&mark) {
            slots.retain(|_, slot| slot.look().is_some());
            if slots.len() >= MOST {
                slots.clear();
            }
        }
        Arc::clone(slots.entry(mark).or_default())
    }
}

impl Slot {
    /// What is kept and has not expired.
    fn look(&self) -> Option<Kept> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|kept| kept.expires > Instant::now()).cloned()
    }

    fn keep(&self, fetched: Result<(Issued, Duration), String>) -> Outcome {
        let now = Instant::now();
        let made = match fetched {
            Ok((issued, life)) => {
                let ahead = AHEAD.min(life / PART);
                Kept { outcome: Ok(Arc::new(issued)), renew: now + life.saturating_sub(ahead), expires: now + life }
            }
            // What is still good is used while it is.
            Err(_) if let Some(old @ Kept { outcome: Ok(_), .. }) = self.look() => {
                Kept { renew: (now + PAUSE).min(old.expires), ..old }
            }
            Err(message) => Kept { outcome: Err(message), renew: now + PAUSE, expires: now + PAUSE },
        };
        let outcome = made.outcome.clone();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const LIFE: Duration = Duration::from_hours(1);

    struct Source {
        wallet: Wallet,
        fetched: AtomicUsize,
    }

    impl Source {
        fn new() -> Self {
            Self { wallet: Wallet::default(), fetched: AtomicUsize::new(0) }
        }

        /// Which one is used, counted from 1; fetching takes a tenth of a second.
        async fn ask(&self, works: bool) -> Result<String, String> {
            let fetch = || async {
                let number = self.fetched.fetch_add(1, Ordering::SeqCst) + 1;
                sleep(Duration::from_millis(100)).await;
                if works { Ok((Issued::Token(number.to_string()), LIFE)) } else { Err(format!("no {number}")) }
            };
            let issued = self.wallet.find(7, fetch).await?;
            let Issued::Token(token) = &*issued else { return Err("keys".into()) };
            Ok(token.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_at_once_fetch_it_once() {
        let source = Source::new();
        let asked = (0..50).map(|_| source.ask(true));
        let asked = futures_join(asked).await;
        assert!(asked.iter().all(|token| token.as_deref() == Ok("1")), "{asked:?}");
    }

    async fn futures_join<W: Future>(all: impl Iterator<Item = W>) -> Vec<W::Output> {
        let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
        std::future::poll_fn(|context| {
            for (work, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
                if let std::task::Poll::Ready(output) = work.as_mut().poll(context) {
                    *done = Some(output);
                }
            }
            if all.iter().all(|(_, done)| done.is_some()) {
                return std::task::Poll::Ready(all.iter_mut().filter_map(|(_, done)| done.take()).collect());
            }
            std::task::Poll::Pending
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_ahead_of_its_end_by_one_while_others_go_on_with_the_old() {
        let source = Source::new();
        assert_eq!(source.ask(true).await.as_deref(), Ok("1"));
        advance(Duration::from_mins(55).saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(source.ask(true).await.as_deref(), Ok("1"));
        advance(Duration::from_secs(2)).await;
        let both = futures_join([source.ask(true), source.ask(true)].into_iter()).await;
        assert_eq!(both, [Ok("2".to_owned()), Ok("1".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_still_good_serves_while_it_cannot_be_renewed_and_a_failure_is_asked_for_once() {
        let source = Source::new();
        assert!(source.ask(true).await.is_ok());
        advance(LIFE.saturating_sub(Duration::from_secs(30))).await;
        assert_eq!(source.ask(false).await.as_deref(), Ok("1"));
        assert_eq!(source.ask(false).await.as_deref(), Ok("1"));
        assert_eq!(source.fetched.load(Ordering::SeqCst), 2, "a failure is not repeated at once");
        advance(Duration::from_mins(1)).await;
        let failed = futures_join((0..5).map(|_| source.ask(false))).await;
        assert!(failed.iter().all(|one| *one == Err("no 3".to_owned())), "{failed:?}");
        advance(PAUSE * 2).await;
        assert_eq!(source.ask(true).await.as_deref(), Ok("4"));
    }
}
