//! What the requests of a worker share: breakers, budgets, kept answers, compiled configs. All of it bounded. Breakers and
//! answers are shared with other workers and nodes where there is a Redis.

pub mod bounded_cache;
pub mod circuit_breakers;
pub mod inline_configs;
pub mod latency;
pub mod memory_budget;
pub mod monotonic_clock;
pub mod node_store;
pub mod pending_charges;
pub mod pubsub;
pub mod redis;
pub mod response_cache;
pub mod retry_budgets;
pub mod sticky_sessions;

use std::{
    collections::HashMap,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use penstock_llm::translation::Signatures;

use crate::state::shared::circuit_breakers::Breakers;
use crate::state::shared::latency::Paces;
use crate::state::shared::memory_budget::Room;
use crate::state::shared::monotonic_clock::Clock;
use crate::state::shared::node_store::Neighbours;
use crate::state::shared::pending_charges::{Dues, Others};
use crate::state::shared::pubsub::Ears;
use crate::state::shared::response_cache::Answers;
use crate::state::shared::retry_budgets::{Allowance, Budgets};
use crate::state::shared::sticky_sessions::Sessions;
use inline_configs::InlineConfigs;
use redis::Redis;

use crate::{credentials::Wallet, error::Problem, process::settings::Settings};

/// What signatures of calls take at most.
const SIGNATURES: usize = 16 * 1024 * 1024;

/// Bodies of management requests that are there at once take no more than this together, or twice the largest.
const MANAGEMENT_BODIES: usize = 64 * 1024 * 1024;

pub struct Shared {
    pub answers: Arc<Answers>,
    pub breakers: Arc<Breakers>,
    pub budgets: Budgets,
    pub inline_configs: InlineConfigs,
    pub wallet: Wallet,
    pub paces: Paces,
    /// For streams that are held, and what was said of those that may be continued.
    pub recovery: Room,
    /// For bodies of management requests on their way to the control process.
    pub management: Room,
    /// For bodies that are held whole on their way to providers.
    pub bodies: Room,
    pub sessions: Sessions,
    /// Of responses in the background.
    pub dues: Arc<Dues>,
    /// The other workers of this node, where there are any and no Redis.
    pub neighbours: Option<Arc<Neighbours>>,
    /// Of calls of tools.
    pub signatures: Arc<Signatures>,
    pub clock: Arc<Clock>,
    pub redis: Option<Arc<Redis>>,
    seed: DefaultHasher,
}

impl Shared {
    pub fn new(settings: &Settings) -> Result<Self, Problem> {
        let allowance = Allowance { percent: settings.retry_budget_percent, floor: settings.retry_budget_floor };
        let (clock, redis) = (Arc::<Clock>::default(), Redis::of(settings)?);
        let neighbours = (settings.workers > 1 && redis.is_none()).then(Arc::default);
        let seed = match &settings.redis_url {
            // The same for all who share.
            Some(url) => {
                let mut seed = DefaultHasher::new();
                (url.expose(), &settings.redis_prefix).hash(&mut seed);
                seed
            }
            None => RandomState::new().build_hasher(),
        };
        Ok(Self {
            answers: Arc::new(Answers::new(settings.cache_bytes, Arc::clone(&clock), redis.clone())),
            breakers: Arc::new(Breakers::new(redis.clone())),
            budgets: Budgets::new(allowance),
            inline_configs: InlineConfigs::new(settings.inline_config_bytes),
            wallet: Wallet::default(),
            paces: Paces::default(),
            recovery: Room::new(settings.recovery_bytes, settings.recovery_stream_bytes),
            management: Room::new(MANAGEMENT_BODIES.max(settings.max_body_bytes * 2), settings.max_body_bytes),
            // The largest has room where it is alone.
            bodies: Room::new(settings.gathered_bytes.max(settings.max_body_bytes), usize::MAX),
            sessions: Sessions::new(redis.clone()),
            dues: Arc::new(Dues::new(others(redis.as_ref(), neighbours.as_ref()))),
            neighbours,
            signatures: Arc::new(signatures(redis.clone())),
            clock,
            redis,
            seed,
        })
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Looks after what is shared with others, for ever.
    pub async fn tend(&self) {
        let (answers, breakers, clock) = (&self.answers, &self.breakers, &self.clock);
        let ears = Ears { answers: Arc::clone(answers), breakers: Arc::clone(breakers), clock: Arc::clone(clock) };
        if let Some(redis) = &self.redis {
            redis.tend(&ears).await;
        }
    }

    /// The same, for something of a config: one that is saved, or one that a request brought.
    pub fn mark_within(&self, is_saved: bool, of: impl Hash) -> u64 {
        let mark = self.mark(of);
        if is_saved { mark | SAVED } else { mark & !SAVED }
    }

    /// A number that stands for something among those who share; nobody outside can choose what has the same.
    pub fn mark(&self, of: impl Hash) -> u64 {
        let mut hasher = self.seed.clone();
        of.hash(&mut hasher);
        hasher.finish()
    }
}

/// Who else knows of responses in the background.
fn others(redis: Option<&Arc<Redis>>, neighbours: Option<&Arc<Neighbours>>) -> Others {
    match (redis, neighbours) {
        (Some(redis), _) => Others::Redis(Arc::clone(redis)),
        (None, Some(neighbours)) => Others::Neighbours(Arc::clone(neighbours)),
        (None, None) => Others::None,
    }
}

/// Those that come are noted for others, where there is somebody to note them.
fn signatures(redis: Option<Arc<Redis>>) -> Signatures {
    let Some(redis) = redis else { return Signatures::new(SIGNATURES) };
    let hear = move |owner, call: &str, signature: &str| redis.note(signature_of(owner, call), signature);
    Signatures::shared(SIGNATURES, Box::new(hear))
}

/// By what the signature of a call is noted.
pub fn signature_of(owner: u64, call: &str) -> String {
    format!("signature:{owner}:{call}")
}

/// So many states of targets are kept.
const MOST: usize = 10_000;

/// A number with this bit stands for something of a saved config, one without it for something of a request's own.
const SAVED: u64 = 1;

/// A small state for each of many targets.
#[derive(Debug)]
struct Ledger<T>(Mutex<States<T>>);

#[derive(Debug)]
struct States<T> {
    kept: HashMap<u64, State<T>>,
    /// Counts all that is done with any of them.
    turn: u64,
}

#[derive(Debug, Default)]
struct State<T> {
    own: T,
    /// When something was last done with it.
    touched: u64,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self(Mutex::new(States { kept: HashMap::new(), turn: 0 }))
    }
}

impl<T> States<T> {
    /// Leaves one half. What saved configs made stays before what requests brought, of which there can be any number; then
    /// what still says something; then what was used last.
    fn shrink(&mut self, is_idle: impl Fn(&T) -> bool) {
        let rank =
            |target: u64, state: &State<T>| (target & SAVED != SAVED, is_idle(&state.own), u64::MAX - state.touched);
        let mut ranks: Vec<_> = self.kept.iter().map(|(target, state)| rank(*target, state)).collect();
        let (_, first_to_go, _) = ranks.select_nth_unstable(MOST / 2);
        let first_to_go = *first_to_go;
        self.kept.retain(|target, state| rank(*target, state) < first_to_go);
    }
}

impl<T: Default> Ledger<T> {
    /// Does something with the state of a target. Where there are too many, one half goes.
    fn with<R>(&self, target: u64, is_idle: impl Fn(&T) -> bool, work: impl FnOnce(&mut T) -> R) -> R {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.kept.len() >= MOST && !states.kept.contains_key(&target) {
            states.shrink(is_idle);
        }
        states.turn += 1;
        let touched = states.turn;
        let state = states.kept.entry(target).or_default();
        state.touched = touched;
        work(&mut state.own)
    }

    /// The same with a state that is there.
    fn look<R>(&self, target: u64, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.kept.get_mut(&target).map(|state| work(&mut state.own))
    }

    fn count(&self, is_counted: impl Fn(&T) -> bool) -> usize {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.kept.values().filter(|state| is_counted(&state.own)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_targets_are_bounded_and_what_says_something_stays_longest() {
        let ledger = Ledger::<u64>::default();
        ledger.with(u64::MAX, |_| true, |state| *state = 7);
        for target in 0..MOST as u64 * 3 {
            ledger.with(target, |state| *state == 0, |_| ());
        }
        assert_eq!(ledger.look(u64::MAX, |state| *state), Some(7));
        assert!(ledger.0.lock().unwrap().kept.len() <= MOST);
    }

    #[test]
    fn what_requests_bring_takes_no_room_from_saved_configs_nor_from_what_is_in_use() {
        let ledger = Ledger::<u64>::default();
        let saved = |number: u64| (number << 1) | SAVED;
        (0..MOST as u64 / 4).for_each(|number| ledger.with(saved(number), |_| true, |state| *state = number));
        let used = u64::MAX - 1;
        for number in 0..MOST as u64 * 3 {
            // All of them say something, and one of them is somebody else's who goes on.
            ledger.with(number << 1, |_| false, |state| *state = 1);
            ledger.with(used, |_| false, |state| *state += 1);
        }
        assert!((0..MOST as u64 / 4).all(|number| ledger.look(saved(number), |state| *state) == Some(number)));
        assert_eq!(ledger.look(used, |state| *state), Some(MOST as u64 * 3));
        assert!(ledger.0.lock().unwrap().kept.len() <= MOST);
    }
}
