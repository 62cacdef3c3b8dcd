//! Hosts that checks of guardrails call. A host that fails again and again is not called for a while, so that it
//! does not delay every request.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Calls to one host at the same time.
const MAX_CALLS: usize = 64;
/// Failures in a row after which a host is not called, and for how long.
const MAX_FAILURES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(10);
/// Hosts whose state is kept.
const MAX_HOSTS: usize = 1000;

#[derive(Debug, Default)]
struct HostState {
    calls: usize,
    failures: u32,
    paused_until: Option<Instant>,
}

/// State of the hosts that checks call.
#[derive(Debug, Default)]
pub struct CheckHosts(Mutex<HashMap<String, HostState>>);

impl CheckHosts {
    /// Begins a call.
    ///
    /// # Errors
    /// Why the host may not be called now.
    pub fn begin_call(&self, host: String, now: Instant) -> Result<HostCall<'_>, String> {
        self.enter(&host, now)?;
        Ok(HostCall { hosts: self, host, has_failed: None })
    }

    fn enter(&self, host: &str, now: Instant) -> Result<(), String> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= MAX_HOSTS && !hosts.contains_key(host) {
            hosts.retain(|_, state| state.calls > 0 || state.paused_until.is_some_and(|end| now < end));
            if hosts.len() >= MAX_HOSTS {
                return Err("too many hosts are called at the same time".to_owned());
            }
        }
        let state = hosts.entry(host.to_owned()).or_default();
        if state.paused_until.is_some_and(|end| now < end) {
            return Err(format!("{host} has failed {MAX_FAILURES} times in a row; it is not called for a while"));
        }
        if state.calls >= MAX_CALLS {
            return Err(format!("{host} is called {MAX_CALLS} times already"));
        }
        state.calls += 1;
        Ok(())
    }

    fn leave(&self, host: &str, has_failed: Option<bool>) {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = hosts.get_mut(host) else { return };
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
    pub host: String,
    /// `None` while the call runs.
    pub has_failed: Option<bool>,
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        self.hosts.leave(&self.host, self.has_failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_fails_is_not_called_for_a_while() {
        let hosts = CheckHosts::default();
        let now = Instant::now();
        for _ in 0..MAX_FAILURES {
            hosts.enter("h", now).unwrap();
            hosts.leave("h", Some(true));
        }
        assert!(hosts.enter("h", now).unwrap_err().contains("not called"));
        assert!(hosts.enter("other", now).is_ok());
        assert!(hosts.enter("h", now + PAUSE * 2).is_ok());
        hosts.leave("h", Some(false));
        assert!(hosts.enter("h", now).is_ok());
    }

    #[test]
    fn calls_to_a_host_are_bounded() {
        let hosts = CheckHosts::default();
        let now = Instant::now();
        for _ in 0..MAX_CALLS {
            hosts.enter("h", now).unwrap();
        }
        assert!(hosts.enter("h", now).unwrap_err().contains("64"));
        hosts.leave("h", None);
        assert!(hosts.enter("h", now).is_ok());
    }
}
