//! Hosts that checks of guardrails call. A host that fails again and again is not called for a while, so that it
//! does not delay every request. Failures count for one hook of one workspace: a hook of another cannot stop it.

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
/// Maximum number of host states of one workspace.
const MAX_HOSTS_OF_WORKSPACE: usize = 500;
/// Maximum number of host states of all workspaces together.
const MAX_HOSTS: usize = 10_000;

/// Hook that calls a host, and its workspace.
#[derive(Debug, Clone, Copy)]
pub struct CallerOfHosts<'c> {
    pub workspace: &'c str,
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
    paused_until: Option<Instant>,
}

impl HostState {
    fn is_needed(&self, now: Instant) -> bool {
        self.calls > 0 || self.paused_until.is_some_and(|end| now < end)
    }
}

#[derive(Debug, Default)]
struct HostStates {
    by_workspace: HashMap<String, HashMap<HookHost, HostState>>,
    count: usize,
}

impl HostStates {
    /// Removes states that are not needed. If the workspace has too many hosts, also removes its pauses of hosts. Fails
    /// if too many states remain.
    fn make_room(&mut self, workspace: &str, now: Instant) -> Result<(), String> {
        let of_workspace = self.by_workspace.get_mut(workspace);
        if let Some(hosts) = of_workspace.filter(|hosts| hosts.len() >= MAX_HOSTS_OF_WORKSPACE) {
            hosts.retain(|_, state| state.calls > 0);
        }
        if self.count >= MAX_HOSTS {
            for hosts in self.by_workspace.values_mut() {
                hosts.retain(|_, state| state.is_needed(now));
            }
            self.by_workspace.retain(|_, hosts| !hosts.is_empty());
        }
        self.count = self.by_workspace.values().map(HashMap::len).sum();
        let of_workspace = self.by_workspace.get(workspace).map_or(0, HashMap::len);
        if of_workspace >= MAX_HOSTS_OF_WORKSPACE || self.count >= MAX_HOSTS {
            return Err("too many hosts are called at the same time".to_owned());
        }
        Ok(())
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
    pub fn begin_call(&self, caller: CallerOfHosts<'_>, host: String, now: Instant) -> Result<HostCall<'_>, String> {
        self.enter(caller, &host, now)?;
        Ok(HostCall {
            hosts: self,
            workspace: caller.workspace.to_owned(),
            key: HookHost { hook: caller.hook, host },
            has_failed: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HostStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, caller: CallerOfHosts<'_>, host: &str, now: Instant) -> Result<(), String> {
        let mut states = self.lock();
        let key = HookHost { hook: caller.hook, host: host.to_owned() };
        let is_known = states.by_workspace.get(caller.workspace).is_some_and(|hosts| hosts.contains_key(&key));
        if !is_known {
            let of_workspace = states.by_workspace.get(caller.workspace).map_or(0, HashMap::len);
            if of_workspace >= MAX_HOSTS_OF_WORKSPACE || states.count >= MAX_HOSTS {
                states.make_room(caller.workspace, now)?;
            }
            states.count += 1;
        }
        let state = states.by_workspace.entry(caller.workspace.to_owned()).or_default().entry(key).or_default();
        if state.paused_until.is_some_and(|end| now < end) {
            return Err(format!("{host} has failed {MAX_FAILURES} times in a row; it is not called for a while"));
        }
        if state.calls >= MAX_CALLS {
            return Err(format!("{host} is called {MAX_CALLS} times already"));
        }
        state.calls += 1;
        Ok(())
    }

    fn leave(&self, workspace: &str, key: &HookHost, has_failed: Option<bool>) {
        let mut states = self.lock();
        let Some(state) = states.by_workspace.get_mut(workspace).and_then(|hosts| hosts.get_mut(key)) else { return };
        state.calls = state.calls.saturating_sub(1);
        match has_failed {
            Some(true) => {
                state.failures += 1;
                if state.failures >= MAX_FAILURES {
                    (state.failures, state.paused_until) = (0, Some(Instant::now() + PAUSE));
                }
            }
            Some(false) => (state.failures, state.paused_until) = (0, None),
            None => (),
        }
    }
}

/// A call to a host. It ends when this is dropped.
#[derive(Debug)]
pub struct HostCall<'h> {
    hosts: &'h CheckHosts,
    workspace: String,
    key: HookHost,
    /// `None` while the call runs, and if the host did not cause its failure.
    pub has_failed: Option<bool>,
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        self.hosts.leave(&self.workspace, &self.key, self.has_failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: CallerOfHosts<'_> = CallerOfHosts { workspace: "w", hook: 1 };

    /// Begins and ends calls of a hook to a host, all of which fail.
    fn fail(hosts: &CheckHosts, caller: CallerOfHosts<'_>, host: &str, times: u32) {
        for _ in 0..times {
            hosts.begin_call(caller, host.to_owned(), Instant::now()).unwrap().has_failed = Some(true);
        }
    }

    #[test]
    fn a_host_that_fails_is_not_called_for_a_while() {
        let hosts = CheckHosts::default();
        let now = Instant::now();
        fail(&hosts, CALLER, "h", MAX_FAILURES);
        assert!(hosts.enter(CALLER, "h", now).unwrap_err().contains("not called"));
        assert!(hosts.enter(CALLER, "other", now).is_ok());
        assert!(hosts.begin_call(CALLER, "h".to_owned(), now + PAUSE * 2).is_ok());
    }

    #[test]
    fn another_hook_or_workspace_cannot_stop_calls() {
        let hosts = CheckHosts::default();
        fail(&hosts, CallerOfHosts { hook: 2, ..CALLER }, "h", MAX_FAILURES);
        fail(&hosts, CallerOfHosts { workspace: "x", ..CALLER }, "h", MAX_FAILURES);
        for hook in 10..1000 {
            fail(&hosts, CallerOfHosts { workspace: "x", hook }, "h", MAX_FAILURES);
        }
        assert!(hosts.enter(CALLER, "h", Instant::now()).is_ok());
        assert!(hosts.lock().count <= MAX_HOSTS_OF_WORKSPACE + 3, "{}", hosts.lock().count);
    }

    #[test]
    fn calls_to_a_host_are_bounded() {
        let hosts = CheckHosts::default();
        let now = Instant::now();
        let mut calls: Vec<_> =
            (0..MAX_CALLS).map(|_| hosts.begin_call(CALLER, "h".to_owned(), now).unwrap()).collect();
        assert!(hosts.enter(CALLER, "h", now).unwrap_err().contains("64"));
        calls.pop();
        assert!(hosts.enter(CALLER, "h", now).is_ok());
    }
}
