//! Hosts that checks of guardrails call. A host that fails again and again is not called for a while, so that it does
//! not delay every request. After that, a single call finds out whether the host responds again. Failures count for one hook of one workspace, so that a hook of another workspace cannot
//! cause such a pause.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of calls of one hook to one host at the same time.
const MAX_CALLS: usize = 64;
/// Number of failures in a row after which a hook does not call a host for a while.
const MAX_FAILURES: u32 = 5;
/// Time for which a hook does not call a host that has failed `MAX_FAILURES` times in a row.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of host states of one owner.
const MAX_HOSTS_OF_OWNER: usize = 500;
/// Maximum number of host states of all owners together.
const MAX_HOSTS: usize = 10_000;

/// Owner of host states. Clients can write any number of guardrails into configs, so these have states of their own:
/// they cannot displace those of saved guardrails.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostOwner {
    pub workspace: String,
    /// True for saved guardrails, false for those that a config defines itself.
    pub is_saved: bool,
}

/// Hook that calls a host, and its owner.
#[derive(Debug, Clone)]
pub struct CallerOfHosts {
    pub owner: HostOwner,
    /// Fingerprint of the hook.
    pub hook: u64,
}

/// A host, as one hook calls it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct HookHost {
    hook: u64,
    host: String,
}

#[derive(Debug, Default)]
struct HostState {
    calls: usize,
    failures: u32,
    /// End of the last pause; `None` if a call has succeeded since.
    paused_until: Option<Instant>,
    /// True while the single call after a pause runs.
    is_probed: bool,
}

impl HostState {
    /// Returns true if the call that begins now is the single one after a pause.
    ///
    /// # Errors
    /// The reason, if the host may not be called now.
    fn begin_call(&mut self, host: &str, now: Instant) -> Result<bool, String> {
        if self.paused_until.is_some_and(|end| now < end) || self.is_probed {
            return Err(format!("{host} has failed {MAX_FAILURES} times in a row; it is not called for a while"));
        }
        if self.calls >= MAX_CALLS {
            return Err(format!("{host} is called {MAX_CALLS} times already"));
        }
        self.calls += 1;
        self.is_probed = self.paused_until.is_some();
        Ok(self.is_probed)
    }

    fn end_call(&mut self, is_probe: bool, has_failed: Option<bool>) {
        self.calls = self.calls.saturating_sub(1);
        self.is_probed &= !is_probe;
        match has_failed {
            Some(true) => {
                self.failures += 1;
                if is_probe || self.failures >= MAX_FAILURES {
                    (self.failures, self.paused_until) = (0, Some(Instant::now() + PAUSE));
                }
            }
            Some(false) => (self.failures, self.paused_until) = (0, None),
            None => (),
        }
    }

    fn is_needed(&self, now: Instant) -> bool {
        self.calls > 0 || self.paused_until.is_some_and(|end| now < end)
    }
}

type HostsOfOwner = HashMap<HookHost, HostState>;

#[derive(Debug, Default)]
struct HostStates {
    by_owner: HashMap<HostOwner, HostsOfOwner>,
    count: usize,
}

impl HostStates {
    /// Makes room for one more state of an owner. First removes states that are not needed. If the owner still has too
    /// many hosts, removes all pauses of the owner. If all owners together have too many, removes the pauses of the
    /// owner with the most hosts. Fails if too many calls are running.
    fn make_room(&mut self, owner: &HostOwner, now: Instant) -> Result<(), String> {
        let of_owner = |states: &Self| states.by_owner.get(owner).map_or(0, HashMap::len);
        if of_owner(self) < MAX_HOSTS_OF_OWNER && self.count < MAX_HOSTS {
            return Ok(());
        }
        self.retain(now);
        if of_owner(self) >= MAX_HOSTS_OF_OWNER
            && let Some(hosts) = self.by_owner.get_mut(owner)
        {
            hosts.retain(|_, state| state.calls > 0);
        }
        if self.recount() >= MAX_HOSTS
            && let Some(hosts) = self.by_owner.values_mut().max_by_key(|hosts| hosts.len())
        {
            hosts.retain(|_, state| state.calls > 0);
        }
        if self.recount() >= MAX_HOSTS || of_owner(self) >= MAX_HOSTS_OF_OWNER {
            return Err("too many hosts are called at the same time".to_owned());
        }
        Ok(())
    }

    /// Removes states that are not needed any more.
    fn retain(&mut self, now: Instant) {
        for hosts in self.by_owner.values_mut() {
            hosts.retain(|_, state| state.is_needed(now));
        }
        self.by_owner.retain(|_, hosts| !hosts.is_empty());
    }

    fn recount(&mut self) -> usize {
        self.count = self.by_owner.values().map(HashMap::len).sum();
        self.count
    }
}

/// State of the hosts that checks call.
#[derive(Debug, Default)]
pub struct CheckHosts(Mutex<HostStates>);

impl CheckHosts {
    /// Begins a call.
    ///
    /// # Errors
    /// The reason, if the host may not be called now.
    pub fn begin_call(&self, caller: CallerOfHosts, host: String, now: Instant) -> Result<HostCall<'_>, String> {
        let CallerOfHosts { owner, hook } = caller;
        let key = HookHost { hook, host };
        let is_probe = self.enter(&owner, &key, now)?;
        Ok(HostCall { hosts: self, owner, key, is_probe, has_failed: None })
    }

    fn lock(&self) -> MutexGuard<'_, HostStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, owner: &HostOwner, key: &HookHost, now: Instant) -> Result<bool, String> {
        let mut states = self.lock();
        if !states.by_owner.get(owner).is_some_and(|hosts| hosts.contains_key(key)) {
            states.make_room(owner, now)?;
            states.count += 1;
        }
        let state = states.by_owner.entry(owner.clone()).or_default().entry(key.clone()).or_default();
        state.begin_call(&key.host, now)
    }

    fn leave(&self, call: &HostCall<'_>) {
        let mut states = self.lock();
        if let Some(state) = states.by_owner.get_mut(&call.owner).and_then(|hosts| hosts.get_mut(&call.key)) {
            state.end_call(call.is_probe, call.has_failed);
        }
    }
}

/// A call to a host. It ends when this is dropped.
#[derive(Debug)]
pub struct HostCall<'h> {
    hosts: &'h CheckHosts,
    owner: HostOwner,
    key: HookHost,
    /// True if this is the single call after a pause.
    is_probe: bool,
    /// True if the call has failed. `None` while the call runs, and if the host did not cause its failure.
    pub has_failed: Option<bool>,
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        self.hosts.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(workspace: &str, is_saved: bool, hook: u64) -> CallerOfHosts {
        CallerOfHosts { owner: HostOwner { workspace: workspace.to_owned(), is_saved }, hook }
    }

    fn saved() -> CallerOfHosts {
        caller("w", true, 1)
    }

    fn call<'h>(hosts: &'h CheckHosts, caller: CallerOfHosts, host: &str) -> Result<HostCall<'h>, String> {
        hosts.begin_call(caller, host.to_owned(), Instant::now())
    }

    /// Begins and ends calls of a hook to a host, all of which fail.
    fn fail(hosts: &CheckHosts, caller: &CallerOfHosts, host: &str) {
        for _ in 0..MAX_FAILURES {
            call(hosts, caller.clone(), host).unwrap().has_failed = Some(true);
        }
    }

    #[test]
    fn a_host_that_fails_is_not_called_for_a_while() {
        let hosts = CheckHosts::default();
        fail(&hosts, &saved(), "h");
        assert!(call(&hosts, saved(), "h").unwrap_err().contains("not called"));
        assert!(call(&hosts, saved(), "other").is_ok());
        assert!(hosts.begin_call(saved(), "h".to_owned(), Instant::now() + PAUSE * 2).is_ok());
    }

    #[test]
    fn a_single_call_ends_or_renews_a_pause() {
        let hosts = CheckHosts::default();
        fail(&hosts, &saved(), "h");
        let begin = |after: Duration| hosts.begin_call(saved(), "h".to_owned(), Instant::now() + after);
        // A call without an outcome, such as one of a client that has disconnected, makes room for another one.
        drop(begin(PAUSE * 2).unwrap());
        let mut probe = begin(PAUSE * 2).unwrap();
        assert!(begin(PAUSE * 2).is_err());
        probe.has_failed = Some(true);
        drop(probe);
        assert!(begin(PAUSE / 2).is_err());
        let mut probe = begin(PAUSE * 2).unwrap();
        probe.has_failed = Some(false);
        drop(probe);
        let _calls = [begin(Duration::ZERO).unwrap(), begin(Duration::ZERO).unwrap()];
    }

    #[test]
    fn another_hook_or_workspace_cannot_stop_calls() {
        let hosts = CheckHosts::default();
        fail(&hosts, &caller("w", true, 2), "h");
        fail(&hosts, &caller("w", false, 1), "h");
        for hook in 10..1000 {
            fail(&hosts, &caller("x", true, hook), "h");
        }
        assert!(call(&hosts, saved(), "h").is_ok());
        assert!(hosts.lock().count <= MAX_HOSTS_OF_OWNER + 3, "{}", hosts.lock().count);
    }

    #[test]
    fn guardrails_of_configs_end_no_pause_of_a_saved_one() {
        let hosts = CheckHosts::default();
        fail(&hosts, &saved(), "h");
        for hook in 0..2 * MAX_HOSTS_OF_OWNER as u64 {
            fail(&hosts, &caller("w", false, hook), "h");
        }
        assert!(call(&hosts, saved(), "h").unwrap_err().contains("not called"));
    }

    #[test]
    fn a_tenant_with_many_workspaces_takes_no_room_of_others() {
        let hosts = CheckHosts::default();
        fail(&hosts, &saved(), "h");
        for hook in 0..2 * MAX_HOSTS as u64 {
            fail(&hosts, &caller(&format!("x{}", hook % 50), true, hook), "h");
        }
        assert!(hosts.lock().count <= MAX_HOSTS, "{}", hosts.lock().count);
        assert!(call(&hosts, saved(), "h").unwrap_err().contains("not called"));
        assert!(call(&hosts, caller("y", true, 1), "h").is_ok());
    }

    #[test]
    fn calls_to_a_host_are_bounded() {
        let hosts = CheckHosts::default();
        let mut calls: Vec<_> = (0..MAX_CALLS).map(|_| call(&hosts, saved(), "h").unwrap()).collect();
        assert!(call(&hosts, saved(), "h").unwrap_err().contains("64"));
        calls.pop();
        assert!(call(&hosts, saved(), "h").is_ok());
    }
}
