//! Bounded table of the state of each target. The least recently used targets are dropped first.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Maximum number of targets with stored state.
const MAX_TARGET_STATES: usize = 10_000;

/// Bit that is set in hashes for saved configs and clear in hashes for inline configs.
pub(crate) const SAVED_CONFIG_BIT: u64 = 1;

/// Bounded map from target keys to a small state per target.
#[derive(Debug)]
pub(crate) struct TargetStates<T>(Mutex<StateMap<T>>);

#[derive(Debug)]
struct StateMap<T> {
    entries: HashMap<u64, StateEntry<T>>,
    /// Number of accesses so far, used as the time of an access.
    access_count: u64,
}

#[derive(Debug, Default)]
struct StateEntry<T> {
    value: T,
    /// Access count at the last access to this entry.
    last_access: u64,
}

impl<T> Default for TargetStates<T> {
    fn default() -> Self {
        Self(Mutex::new(StateMap { entries: HashMap::new(), access_count: 0 }))
    }
}

impl<T> StateMap<T> {
    /// Evicts half of the entries. Keeps states of saved configs before those of inline configs, which clients can
    /// create without limit. Within each group, keeps states that are not idle, then those accessed most recently.
    fn evict_half(&mut self, is_idle: impl Fn(&T) -> bool) {
        let rank = |target: u64, state: &StateEntry<T>| {
            (target & SAVED_CONFIG_BIT != SAVED_CONFIG_BIT, is_idle(&state.value), u64::MAX - state.last_access)
        };
        let mut ranks: Vec<_> = self.entries.iter().map(|(target, state)| rank(*target, state)).collect();
        let (_, first_to_go, _) = ranks.select_nth_unstable(MAX_TARGET_STATES / 2);
        let first_to_go = *first_to_go;
        self.entries.retain(|target, state| rank(*target, state) < first_to_go);
    }
}

impl<T: Default> TargetStates<T> {
    /// Runs a function on the state of a target, which is created if missing. Evicts half of the entries first if the
    /// map is full.
    pub(crate) fn with_entry<R>(
        &self,
        target: u64,
        is_idle: impl Fn(&T) -> bool,
        action: impl FnOnce(&mut T) -> R,
    ) -> R {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.entries.len() >= MAX_TARGET_STATES && !states.entries.contains_key(&target) {
            states.evict_half(is_idle);
        }
        states.access_count += 1;
        let touched = states.access_count;
        let state = states.entries.entry(target).or_default();
        state.last_access = touched;
        action(&mut state.value)
    }

    /// Runs a function on the state of a target if it exists; `None` otherwise.
    pub(crate) fn with_existing<R>(&self, target: u64, action: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.entries.get_mut(&target).map(|state| action(&mut state.value))
    }

    pub(crate) fn count_matching(&self, is_counted: impl Fn(&T) -> bool) -> usize {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.entries.values().filter(|state| is_counted(&state.value)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_states_are_bounded_and_active_states_stay_longest() {
        let ledger = TargetStates::<u64>::default();
        ledger.with_entry(u64::MAX, |_| true, |state| *state = 7);
        for target in 0..MAX_TARGET_STATES as u64 * 3 {
            ledger.with_entry(target, |state| *state == 0, |_| ());
        }
        assert_eq!(ledger.with_existing(u64::MAX, |state| *state), Some(7));
        assert!(ledger.0.lock().unwrap().entries.len() <= MAX_TARGET_STATES);
    }

    #[test]
    fn inline_configs_do_not_evict_saved_configs_or_recently_used_states() {
        let ledger = TargetStates::<u64>::default();
        let saved = |number: u64| (number << 1) | SAVED_CONFIG_BIT;
        (0..MAX_TARGET_STATES as u64 / 4)
            .for_each(|number| ledger.with_entry(saved(number), |_| true, |state| *state = number));
        let used = u64::MAX - 1;
        for number in 0..MAX_TARGET_STATES as u64 * 3 {
            // All of these states are active; one of them belongs to another client that still sends requests.
            ledger.with_entry(number << 1, |_| false, |state| *state = 1);
            ledger.with_entry(used, |_| false, |state| *state += 1);
        }
        assert!(
            (0..MAX_TARGET_STATES as u64 / 4)
                .all(|number| ledger.with_existing(saved(number), |state| *state) == Some(number))
        );
        assert_eq!(ledger.with_existing(used, |state| *state), Some(MAX_TARGET_STATES as u64 * 3));
        assert!(ledger.0.lock().unwrap().entries.len() <= MAX_TARGET_STATES);
    }
}
