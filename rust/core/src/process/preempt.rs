//! Ticker that makes the kernel preempt a busy process in time, for other threads that share its core.
//!
//! The kernel checks whether a thread's time slice is over when another thread is woken on its core. Otherwise it
//! checks at its clock tick, about every 4 ms. A client's thread that is woken during a slice waits for the next check:
//! next to a busy interpreter one request in a hundred waited 2 ms. So this ticker wakes a thread often while the
//! process is busy.

use std::{
    io,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    thread::{NanosleepRelativeResult, clock_nanosleep_relative},
    time::{ClockId, Timespec, clock_gettime},
};

/// Interval over which CPU load is measured. Shorter work ends before it is noticed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Starts a thread that wakes periodically while the process is busy. At each wake-up, the kernel checks for time
/// slices of length `turn` that are over. The thread runs until the process ends and costs nothing while the process is
/// idle.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn start_preemption_ticker(turn: Duration) -> io::Result<()> {
    thread::Builder::new().name("penstock-preempt".into()).stack_size(64 * 1024).spawn(move || {
        loop {
            while !is_busy_during(wait_for_cpu_use) {}
            while is_busy_during(|| sleep_in_steps(turn * 2)) {}
        }
    })?;
    Ok(())
}

/// Ticker for bursts of work that are known in advance. `start_preemption_ticker` notices work only after some
/// milliseconds, because the kernel's CPU clock has the interval of its clock tick.
pub struct BurstTicker(SyncSender<()>);

impl BurstTicker {
    /// Starts the thread of the ticker, for time slices of length `turn`. It ends when the ticker is dropped.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(turn: Duration) -> io::Result<Self> {
        let (sender, bursts) = sync_channel(1);
        thread::Builder::new().name("penstock-bursts".into()).stack_size(64 * 1024).spawn(move || {
            while let Ok(()) = bursts.recv() {
                while is_busy_during(|| sleep_in_steps(turn * 2)) {}
            }
        })?;
        Ok(Self(sender))
    }

    /// Ticks until the process is no longer busy.
    pub fn announce_burst(&self) {
        // If the channel is full, the ticker has not begun with the last burst yet.
        let _ = self.0.try_send(());
    }
}

/// Returns true if the process was busy while `wait` ran.
fn is_busy_during(wait: impl FnOnce()) -> bool {
    let (started_at, spent) = (Instant::now(), process_cpu_time());
    wait();
    is_busy(process_cpu_time().saturating_sub(spent), started_at.elapsed())
}

/// Sleeps for `SAMPLE_INTERVAL` in steps of this length.
fn sleep_in_steps(step: Duration) {
    let started_at = Instant::now();
    while started_at.elapsed() < SAMPLE_INTERVAL {
        thread::sleep(step);
    }
}

/// Waits until the process has used half of `SAMPLE_INTERVAL` in CPU time. Uses the kernel's process CPU clock.
fn wait_for_cpu_use() {
    let half = Timespec { tv_sec: 0, tv_nsec: i64::from(SAMPLE_INTERVAL.subsec_nanos() / 2) };
    if let NanosleepRelativeResult::Err(_) = clock_nanosleep_relative(ClockId::ProcessCPUTime, &half) {
        // Some kernels that present themselves as Linux do not support this clock.
        thread::sleep(SAMPLE_INTERVAL);
    }
}

fn is_busy(used: Duration, passed: Duration) -> bool {
    used * 2 > passed
}

/// Returns the CPU time of all threads of the process.
fn process_cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_busy_above_half_of_the_time() {
        let passed = Duration::from_millis(10);
        assert!(is_busy(Duration::from_millis(6), passed));
        assert!(!is_busy(Duration::from_millis(4), passed));
    }

    #[test]
    fn announcing_a_burst_never_waits() {
        let ticker = BurstTicker::start(Duration::from_micros(250)).unwrap();
        (0..1000).for_each(|_| ticker.announce_burst());
    }

    #[test]
    fn wakes_after_the_process_has_used_cpu_time() {
        let before = process_cpu_time();
        let waits = thread::spawn(wait_for_cpu_use);
        while !waits.is_finished() {
            std::hint::black_box(process_cpu_time());
        }
        let more = process_cpu_time().checked_sub(before).unwrap();
        assert!(more >= SAMPLE_INTERVAL / 2, "{more:?}");
    }
}
