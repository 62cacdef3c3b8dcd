//! Coarse shared timer for short waits, most of which are dropped before they end. A runtime timer for each wait would
//! cost more: setting one from another thread wakes the runtime's thread.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use slab::Slab;

/// Interval between two ticks of the shared clock. A wait takes one to two intervals.
const TICK_INTERVAL: Duration = Duration::from_millis(4);
/// Maximum duration of a wait.
pub const MAX_WAIT: Duration = Duration::from_millis(8);
/// Number of successive ticks without an expired wait after which the clock stops. It does not stop at once, because
/// the next request is probably near.
const MAX_IDLE_TICKS: u32 = 25;

/// Clock that all waiters share. It stops some ticks after the last wait and starts with the next one.
#[derive(Debug, Clone, Default)]
pub struct CoarseTimer(Arc<Mutex<TickClock>>);

#[derive(Debug, Default)]
struct TickClock {
    current_tick: u64,
    is_running: bool,
    waiters: Slab<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    start_tick: u64,
    waker: Waker,
}

/// Future of one wait. The wait begins when the future is first polled.
#[derive(Debug)]
pub struct CoarseWait<'g> {
    clock: &'g Mutex<TickClock>,
    timer: &'g CoarseTimer,
    registration: Option<(usize, u64)>,
}

impl CoarseTimer {
    /// Returns a future that resolves after a few milliseconds.
    pub fn wait_briefly(&self) -> CoarseWait<'_> {
        CoarseWait { clock: &self.0, timer: self, registration: None }
    }

    async fn run_clock(self) {
        let mut idle_ticks = 0;
        while idle_ticks < MAX_IDLE_TICKS {
            tokio::time::sleep(TICK_INTERVAL).await;
            let due = lock_clock(&self.0).advance();
            idle_ticks = if due.is_empty() { idle_ticks + 1 } else { 0 };
            due.into_iter().for_each(Waker::wake);
        }
        let mut clock = lock_clock(&self.0);
        clock.is_running = false;
        // Restarts the clock for waiters that arrived after the last tick. Otherwise they would wait forever.
        if !clock.waiters.is_empty() {
            clock.start_running(&self);
        }
    }
}

impl TickClock {
    fn start_running(&mut self, timer: &CoarseTimer) {
        self.is_running = true;
        tokio::spawn(timer.clone().run_clock());
    }

    fn advance(&mut self) -> Vec<Waker> {
        self.current_tick += 1;
        let due = |waiter: &Waiter| has_elapsed(waiter.start_tick, self.current_tick);
        let expired: Vec<_> = self.waiters.iter().filter(|(_, waiter)| due(waiter)).map(|(key, _)| key).collect();
        expired.into_iter().map(|key| self.waiters.remove(key).waker).collect()
    }
}

fn has_elapsed(since: u64, now: u64) -> bool {
    now >= since + 2
}

impl Future for CoarseWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut clock = lock_clock(self.clock);
        match self.registration {
            Some((_, since)) if has_elapsed(since, clock.current_tick) => return Poll::Ready(()),
            Some((key, _)) => clock.waiters[key].waker.clone_from(context.waker()),
            None => {
                let since = clock.current_tick;
                let key = clock.waiters.insert(Waiter { start_tick: since, waker: context.waker().clone() });
                if !clock.is_running {
                    clock.start_running(self.timer);
                }
                drop(clock);
                self.registration = Some((key, since));
            }
        }
        Poll::Pending
    }
}

impl Drop for CoarseWait<'_> {
    fn drop(&mut self) {
        let Some((key, since)) = self.registration else { return };
        let mut clock = lock_clock(self.clock);
        if !has_elapsed(since, clock.current_tick) {
            clock.waiters.remove(key);
        }
    }
}

fn lock_clock(clock: &Mutex<TickClock>) -> MutexGuard<'_, TickClock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_takes_one_to_two_ticks() {
        let timer = CoarseTimer::default();
        for pause in [0, 1, 3, 4, 5, 500] {
            sleep(Duration::from_millis(pause)).await;
            let start = Instant::now();
            timer.wait_briefly().await;
            assert!((TICK_INTERVAL..=MAX_WAIT).contains(&start.elapsed()), "{:?}", start.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_waits_leave_no_waiter() {
        let timer = CoarseTimer::default();
        for _ in 0..100 {
            assert!(timeout(Duration::from_millis(1), timer.wait_briefly()).await.is_err());
        }
        assert!(lock_clock(&timer.0).waiters.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn clock_stops_when_idle_and_restarts() {
        let timer = CoarseTimer::default();
        timer.wait_briefly().await;
        sleep(TICK_INTERVAL * (MAX_IDLE_TICKS + 2)).await;
        assert!(!lock_clock(&timer.0).is_running);
        timer.wait_briefly().await;
        assert!(lock_clock(&timer.0).is_running);
    }
}
