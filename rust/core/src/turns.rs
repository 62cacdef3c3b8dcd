//! A process that computes for long lets others in on time, where they share a core.
//!
//! The kernel looks whether a thread's turn is over when another thread is woken on its core; else with its clock, every
//! 4 ms or so. A caller's thread that was woken in the midst of a turn waits for the next look: beside a busy interpreter
//! one request in a hundred waited 2 ms. So somebody is woken often, as long as there is much to do.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// Between two looks at how busy the process is; short work is over before it is noticed.
const LOOK: Duration = Duration::from_millis(10);

/// Has the kernel look whenever one turn of that length is over and another has begun, for as long as the process lives
/// and whenever it is busy. Costs a hundred wake-ups a second while it is not.
///
/// # Errors
/// Where no thread can be started.
pub fn end_in_time(turn: Duration) -> io::Result<()> {
    thread::Builder::new().name("penstock-turns".into()).stack_size(64 * 1024).spawn(move || {
        let mut busy = false;
        loop {
            busy = look(if busy { turn * 2 } else { LOOK });
        }
    })?;
    Ok(())
}

/// Waits in steps, and says whether the process was busy meanwhile.
fn look(step: Duration) -> bool {
    let (began, spent) = (Instant::now(), used());
    while began.elapsed() < LOOK {
        thread::sleep(step);
    }
    is_busy(used().saturating_sub(spent), began.elapsed())
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
    fn what_this_process_computes_is_seen() {
        let (began, before) = (Instant::now(), used());
        while began.elapsed() < Duration::from_millis(30) {
            std::hint::black_box(used());
        }
        let more = used().checked_sub(before).unwrap();
        assert!(more > Duration::from_millis(5), "{more:?}");
    }
}
