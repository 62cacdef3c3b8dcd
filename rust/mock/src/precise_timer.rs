//! Precise timer based on `timerfd`. Tokio's timer fires only on full milliseconds, so the timers of many streams would
//! fire together.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

pub struct PreciseTimer(AsyncFd<OwnedFd>);

impl PreciseTimer {
    #[expect(
        deprecated,
        reason = "its replacement is unsafe because a file may be closed too early; this file is owned"
    )]
    pub fn new() -> io::Result<Self> {
        let file = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self(AsyncFd::with_interest(file, Interest::READABLE)?))
    }

    /// Waits until `due`; returns at once if it has passed.
    pub async fn wait_until(&self, due: Instant) -> io::Result<()> {
        let remaining = due.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(());
        }
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &one_shot(remaining))?;
        let mut rings = [0; 8];
        self.0.async_io(Interest::READABLE, |file| Ok(rustix::io::read(file, &mut rings)?)).await.map(drop)
    }
}

fn one_shot(after: Duration) -> Itimerspec {
    let it_value = Timespec { tv_sec: after.as_secs().cast_signed(), tv_nsec: i64::from(after.subsec_nanos()) };
    Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fires_when_due_and_not_before() {
        let alarm = PreciseTimer::new().unwrap();
        for microseconds in [0, 150, 2_300] {
            let due = Instant::now() + Duration::from_micros(microseconds);
            alarm.wait_until(due).await.unwrap();
            assert!(Instant::now() >= due);
        }
    }
}
