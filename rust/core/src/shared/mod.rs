//! What the requests of a worker share: breakers, budgets, kept answers, compiled configs. All of it bounded.

pub mod answers;
pub mod breakers;
pub mod budgets;
pub mod generations;
pub mod inline_configs;

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use answers::Answers;
use breakers::Breakers;
use budgets::{Allowance, Budgets};
use inline_configs::InlineConfigs;

use crate::{credentials::Wallet, settings::Settings};

pub struct Shared {
    pub answers: Arc<Answers>,
    pub breakers: Arc<Breakers>,
    pub budgets: Budgets,
    pub inline_configs: InlineConfigs,
    pub wallet: Wallet,
    started: Instant,
    seed: RandomState,
}

impl Shared {
    pub fn new(settings: &Settings) -> Self {
        let allowance = Allowance { percent: settings.retry_budget_percent, floor: settings.retry_budget_floor };
        Self {
            answers: Arc::new(Answers::new(settings.cache_bytes)),
            breakers: Arc::default(),
            budgets: Budgets::new(allowance),
            inline_configs: InlineConfigs::new(settings.inline_config_bytes),
            wallet: Wallet::default(),
            started: Instant::now(),
            seed: RandomState::new(),
        }
    }

    /// On a clock that nobody sets.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// A number that stands for something in this worker; nobody outside can choose what shares one.
    pub fn mark(&self, of: impl Hash) -> u64 {
        self.seed.hash_one(of)
    }
}

/// So many states of targets are kept.
const MOST: usize = 10_000;

/// A small state for each of many targets.
#[derive(Debug)]
struct Ledger<T>(Mutex<HashMap<u64, T>>);

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Ledger<T> {
    /// Does something with the state of a target. Where there are too many, those that say nothing any more go, then all.
    fn with<R>(&self, target: u64, is_idle: impl Fn(&T) -> bool, work: impl FnOnce(&mut T) -> R) -> R {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= MOST && !states.contains_key(&target) {
            states.retain(|_, state| !is_idle(state));
            if states.len() >= MOST {
                states.clear();
            }
        }
        work(states.entry(target).or_default())
    }

    fn look<R>(&self, target: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&target).map(look)
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
        assert!(ledger.0.lock().unwrap().len() <= MOST);
    }
}
