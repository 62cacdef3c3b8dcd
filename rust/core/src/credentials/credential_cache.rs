//! Cache of fetched credentials, which are stored until shortly before they expire. Each credential is fetched by only
//! one request at a time.

use std::{
    collections::HashMap,
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::credentials::issued::IssuedCredential;

/// Maximum number of cached credentials.
const MAX_ENTRIES: usize = 10_000;
/// A credential is renewed this long before it expires.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_mins(5);
/// A short-lived credential is renewed only in the last quarter of its lifetime.
const RENEW_LIFETIME_DIVISOR: u32 = 4;
/// After a failed fetch, waiting requests get the same error for this long; then the next one tries again.
const FAILURE_BACKOFF: Duration = Duration::from_secs(1);

type FetchOutcome = Result<Arc<IssuedCredential>, String>;

#[derive(Default)]
pub struct CredentialCache {
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
    /// Hash seed of this worker, never shared between nodes. Nobody outside can compute a key that collides with
    /// another credential's.
    hash_seed: RandomState,
    /// Held while an encrypted key is decrypted. Decryption occupies a core for a while, and any caller may request it.
    pub(crate) decryption_lock: Arc<tokio::sync::Mutex<()>>,
}

/// Cache slot of one credential.
#[derive(Default)]
struct Slot {
    cached: Mutex<Option<CachedCredential>>,
    fetch_lock: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct CachedCredential {
    outcome: FetchOutcome,
    renew_at: Instant,
    expires_at: Instant,
}

impl CredentialCache {
    /// Returns the cached credential for `key`, or fetches a new one.
    pub async fn get_or_fetch<F, W>(&self, key: impl Hash, fetch: F) -> FetchOutcome
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<(IssuedCredential, Duration), String>>,
    {
        let slot = self.slot_for(self.hash_seed.hash_one(key));
        let cached = slot.get_unexpired();
        let turn = match cached {
            Some(CachedCredential { outcome, renew_at: renew, .. }) if renew > Instant::now() => return outcome,
            // The credential is still valid: one request renews it while the other requests use it.
            Some(CachedCredential { outcome: outcome @ Ok(_), .. }) => match slot.fetch_lock.try_lock() {
                Ok(turn) => turn,
                Err(_) => return outcome,
            },
            _ => slot.fetch_lock.lock().await,
        };
        // The previous holder of the lock may have fetched the credential.
        if let Some(CachedCredential { outcome, renew_at: renew, .. }) = slot.get_unexpired()
            && renew > Instant::now()
        {
            return outcome;
        }
        let outcome = slot.store(fetch().await);
        drop(turn);
        outcome
    }

    /// Returns the cached credential for `key` if it has not expired.
    pub fn find_cached(&self, key: impl Hash) -> Option<Arc<IssuedCredential>> {
        self.slot_for(self.hash_seed.hash_one(key)).get_unexpired()?.outcome.ok()
    }

    fn slot_for(&self, mark: u64) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MAX_ENTRIES && !slots.contains_key(&mark) {
            slots.retain(|_, slot| slot.get_unexpired().is_some());
            if slots.len() >= MAX_ENTRIES {
                slots.clear();
            }
        }
        Arc::clone(slots.entry(mark).or_default())
    }
}

impl Slot {
    /// Returns the cached outcome if it has not expired.
    fn get_unexpired(&self) -> Option<CachedCredential> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|credential| credential.expires_at > Instant::now()).cloned()
    }

    fn store(&self, fetched: Result<(IssuedCredential, Duration), String>) -> FetchOutcome {
        let now = Instant::now();
        let credential = match fetched {
            Ok((issued, life)) => {
                let renew_margin = RENEW_BEFORE_EXPIRY.min(life / RENEW_LIFETIME_DIVISOR);
                CachedCredential {
                    outcome: Ok(Arc::new(issued)),
                    renew_at: now + life.saturating_sub(renew_margin),
                    expires_at: now + life,
                }
            }
            // A credential that is still valid stays in use after a failed renewal.
            Err(_) if let Some(old @ CachedCredential { outcome: Ok(_), .. }) = self.get_unexpired() => {
                CachedCredential { renew_at: (now + FAILURE_BACKOFF).min(old.expires_at), ..old }
            }
            Err(message) => CachedCredential {
                outcome: Err(message),
                renew_at: now + FAILURE_BACKOFF,
                expires_at: now + FAILURE_BACKOFF,
            },
        };
        let outcome = credential.outcome.clone();
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(credential);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const TOKEN_LIFETIME: Duration = Duration::from_hours(1);

    struct TestSource {
        cache: CredentialCache,
        fetch_count: AtomicUsize,
    }

    impl TestSource {
        fn new() -> Self {
            Self { cache: CredentialCache::default(), fetch_count: AtomicUsize::new(0) }
        }

        /// Returns the number of the credential in use, counted from 1; a fetch takes a tenth of a second.
        async fn get_token(&self, succeeds: bool) -> Result<String, String> {
            let fetch = || async {
                let number = self.fetch_count.fetch_add(1, Ordering::SeqCst) + 1;
                sleep(Duration::from_millis(100)).await;
                if succeeds {
                    Ok((IssuedCredential::Token(number.to_string()), TOKEN_LIFETIME))
                } else {
                    Err(format!("no {number}"))
                }
            };
            let issued = self.cache.get_or_fetch(7, fetch).await?;
            let IssuedCredential::Token(token) = &*issued else { return Err("keys".into()) };
            Ok(token.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_fetch_once() {
        let source = TestSource::new();
        let requests = (0..50).map(|_| source.get_token(true));
        let results = join_all(requests).await;
        assert!(results.iter().all(|token| token.as_deref() == Ok("1")), "{results:?}");
    }

    async fn join_all<W: Future>(all: impl Iterator<Item = W>) -> Vec<W::Output> {
        let mut all: Vec<_> = all.map(|fetch| (Box::pin(fetch), None)).collect();
        std::future::poll_fn(|context| {
            for (pinned, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
                if let std::task::Poll::Ready(output) = pinned.as_mut().poll(context) {
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
    async fn one_request_renews_early_while_others_use_the_old_credential() {
        let source = TestSource::new();
        assert_eq!(source.get_token(true).await.as_deref(), Ok("1"));
        advance(Duration::from_mins(55).saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(source.get_token(true).await.as_deref(), Ok("1"));
        advance(Duration::from_secs(2)).await;
        let both = join_all([source.get_token(true), source.get_token(true)].into_iter()).await;
        assert_eq!(both, [Ok("2".to_owned()), Ok("1".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn serves_valid_credential_while_renewal_fails_and_backs_off() {
        let source = TestSource::new();
        assert!(source.get_token(true).await.is_ok());
        advance(TOKEN_LIFETIME.saturating_sub(Duration::from_secs(30))).await;
        assert_eq!(source.get_token(false).await.as_deref(), Ok("1"));
        assert_eq!(source.get_token(false).await.as_deref(), Ok("1"));
        assert_eq!(source.fetch_count.load(Ordering::SeqCst), 2, "a failure is not repeated at once");
        advance(Duration::from_mins(1)).await;
        let failed = join_all((0..5).map(|_| source.get_token(false))).await;
        assert!(failed.iter().all(|one| *one == Err("no 3".to_owned())), "{failed:?}");
        advance(FAILURE_BACKOFF * 2).await;
        assert_eq!(source.get_token(true).await.as_deref(), Ok("4"));
    }
}
