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
const LOOK: Duration = Duration::from_millis(10);

/// Has the kernel look whenever one turn of that length is over and another has begun, for as long as the process lives
/// and whenever it is busy. Costs nothing while it does nothing.
///
/// # Errors
/// Where no thread can be started.
pub fn end_in_time(turn: Duration) -> io::Result<()> {
    thread::Builder::new().name("penstock-turns".into()).stack_size(64 * 1024).spawn(move || {
        loop {
            while !is_busy_during(work) {}
            while is_busy_during(|| rest(turn * 2)) {}
        }
    })?;
    Ok(())
}

/// Whether the process was busy while this thread waited.
fn is_busy_during(wait: impl FnOnce()) -> bool {
    let (began, spent) = (Instant::now(), used());
    wait();
    is_busy(used().saturating_sub(spent), began.elapsed())
}

/// Waits in such steps.
fn rest(step: Duration) {
    let began = Instant::now();
    while began.elapsed() < LOOK {
        thread::sleep(step);
    }
}

/// Waits until the process has computed for as long as makes it busy, were it at once; the kernel says so with its clock.
fn work() {
    let half = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos() / 2) };
    if let NanosleepRelativeResult::Err(_) = clock_nanosleep_relative(ClockId::ProcessCPUTime, &half) {
        // Not every kernel that says it is Linux can.
        thread::sleep(LOOK);
    }
}

fn is_busy(used: Duration, passed: Duration) -> bool {
    used * 2 > passed
}

/// What all threads of the process took so far.
fn used() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_half_of_the_time_is_busy() {
        let passed = Duration::from_millis(10);
        assert!(is_busy(Duration::from_millis(6), passed));
        assert!(!is_busy(Duration::from_millis(4), passed));
    }

    #[test]
    fn who_waits_for_work_is_woken_when_there_was_some() {
        let before = used();
        let waits = thread::spawn(work);
        while !waits.is_finished() {
            std::hint::black_box(used());
        }
        let more = used().checked_sub(before).unwrap();
        assert!(more >= LOOK / 2, "{more:?}");
    }
}
