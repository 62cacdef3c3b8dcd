//! A process that computes for long lets others in on time, where they share a core.
//!
//! The kernel looks whether a thread's turn is over when another thread is woken on its core; else with its clock, every
//! 4 ms or so. A caller's thread that was woken in the midst of a turn waits for the next look: beside a busy interpreter
//! one request in a hundred waited 2 ms. So somebody is woken often, as long as there is much to do.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rustix::{
    thread::{NanosleepRelativeResult, clock_nanosleep_relative},
    time::{ClockId, Timespec, clock_gettime},
};

/// For which it is seen how busy the process is; short work is over before it is noticed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Has the kernel look whenever one turn of that length is over and another has begun, for as long as the process lives
/// and whenever it is busy. Costs nothing while it does nothing.
///
/// # Errors
/// Where no thread can be started.
pub fn start_preemption_ticker(turn: Duration) -> io::Result<()> {
    thread::Builder::new().name("penstock-turns".into()).stack_size(64 * 1024).spawn(move || {
        loop {
            while !is_busy_during(wait_for_cpu_use) {}
            while is_busy_during(|| sleep_in_steps(turn * 2)) {}
        }
    })?;
    Ok(())
}

/// Whether the process was busy while this thread waited.
fn is_busy_during(wait: impl FnOnce()) -> bool {
    let (began, spent) = (Instant::now(), process_cpu_time());
    wait();
    is_busy(process_cpu_time().saturating_sub(spent), began.elapsed())
}

/// Waits in such steps.
fn sleep_in_steps(step: Duration) {
    let began = Instant::now();
    while began.elapsed() < SAMPLE_INTERVAL {
        thread::sleep(step);
    }
}

/// Waits until the process has computed for as long as makes it busy, were it at once; the kernel says so with its clock.
fn wait_for_cpu_use() {
    let half = Timespec { tv_sec: 0, tv_nsec: i64::from(SAMPLE_INTERVAL.subsec_nanos() / 2) };
    if let NanosleepRelativeResult::Err(_) = clock_nanosleep_relative(ClockId::ProcessCPUTime, &half) {
        // Not every kernel that says it is Linux can.
        thread::sleep(SAMPLE_INTERVAL);
    }
}

fn is_busy(used: Duration, passed: Duration) -> bool {
    used * 2 > passed
}

/// What all threads of the process took so far.
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
