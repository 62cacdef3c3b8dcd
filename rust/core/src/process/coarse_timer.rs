//! A short wait that most requests never see the end of: it sets no timer, because setting one from another thread than
//! the runtime's wakes that.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use slab::Slab;

/// A grace takes from one to two of these.
const TICK: Duration = Duration::from_millis(4);
/// The longest that a grace takes.
pub const LONGEST: Duration = Duration::from_millis(8);
/// The clock goes on so long with nobody waiting: the next request is near.
const QUIET_TICKS: u32 = 25;

/// One clock for all who wait, running while somebody does.
#[derive(Debug, Clone, Default)]
pub struct Grace(Arc<Mutex<Clock>>);

#[derive(Debug, Default)]
struct Clock {
    now: u64,
    is_running: bool,
    waiting: Slab<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    since: u64,
    waker: Waker,
}

/// One wait; it begins when it is polled first.
#[derive(Debug)]
pub struct Wait<'g> {
    clock: &'g Mutex<Clock>,
    grace: &'g Grace,
    place: Option<(usize, u64)>,
}

impl Grace {
    /// Resolves a few milliseconds from now.
    pub fn over(&self) -> Wait<'_> {
        Wait { clock: &self.0, grace: self, place: None }
    }

    async fn run(self) {
        let mut quiet = 0;
        while quiet < QUIET_TICKS {
            tokio::time::sleep(TICK).await;
            let due = lock(&self.0).tick();
            quiet = if due.is_empty() { quiet + 1 } else { 0 };
            due.into_iter().for_each(Waker::wake);
        }
        let mut clock = lock(&self.0);
        clock.is_running = false;
        // Who came since the last tick would wait for ever.
        if !clock.waiting.is_empty() {
            clock.start(&self);
        }
    }
}

impl Clock {
    fn start(&mut self, grace: &Grace) {
        self.is_running = true;
        tokio::spawn(grace.clone().run());
    }

    fn tick(&mut self) -> Vec<Waker> {
        self.now += 1;
        let due = |waiter: &Waiter| is_over(waiter.since, self.now);
        let places: Vec<_> = self.waiting.iter().filter(|(_, waiter)| due(waiter)).map(|(place, _)| place).collect();
        places.into_iter().map(|place| self.waiting.remove(place).waker).collect()
    }
}

fn is_over(since: u64, now: u64) -> bool {
    now >= since + 2
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut clock = lock(self.clock);
        match self.place {
            Some((_, since)) if is_over(since, clock.now) => return Poll::Ready(()),
            Some((place, _)) => clock.waiting[place].waker.clone_from(context.waker()),
            None => {
                let since = clock.now;
                let place = clock.waiting.insert(Waiter { since, waker: context.waker().clone() });
                if !clock.is_running {
                    clock.start(self.grace);
                }
                drop(clock);
                self.place = Some((place, since));
            }
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some((place, since)) = self.place else { return };
        let mut clock = lock(self.clock);
        if !is_over(since, clock.now) {
            clock.waiting.remove(place);
        }
    }
}

fn lock(clock: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_takes_one_to_two_ticks() {
        let grace = Grace::default();
        for pause in [0, 1, 3, 4, 5, 500] {
            sleep(Duration::from_millis(pause)).await;
            let start = Instant::now();
            grace.over().await;
            assert!((TICK..=LONGEST).contains(&start.elapsed()), "{:?}", start.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_wait_to_the_end_leaves_nothing_behind() {
        let grace = Grace::default();
        for _ in 0..100 {
            assert!(timeout(Duration::from_millis(1), grace.over()).await.is_err());
        }
        assert!(lock(&grace.0).waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stops_when_nobody_waits_and_starts_again() {
        let grace = Grace::default();
        grace.over().await;
        sleep(TICK * (QUIET_TICKS + 2)).await;
        assert!(!lock(&grace.0).is_running);
        grace.over().await;
        assert!(lock(&grace.0).is_running);
    }
}
