//! How long targets took to answer lately, and how many second attempts may be made of their requests.

use std::time::Duration;

use super::Ledger;

/// Bounds between these many spans double every four: from a millisecond to a minute.
const SPANS: usize = 64;
/// Answers after which the older half of what is known is forgotten.
const TURN: u32 = 512;
/// From fewer answers nothing is concluded.
const LEAST: u32 = 20;
/// Second attempts that may be saved up for a slow moment.
const MOST_SAVED: f64 = 10.0;

/// The answers of one target: those since the last turn, and those of the one before.
#[derive(Debug, Clone)]
pub struct Pace {
    now: [u32; SPANS],
    before: [u32; SPANS],
    count: u32,
    /// Second attempts that may be made.
    saved: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { now: [0; SPANS], before: [0; SPANS], count: 0, saved: 1.0 }
    }
}

fn span(took: Duration) -> usize {
    let milliseconds = took.as_secs_f64() * 1000.0;
    // Below a millisecond the cast saturates at 0.
    #[allow(clippy::cast_sign_loss, reason = "below zero is zero")]
    let span = (milliseconds.log2() * 4.0).ceil() as usize;
    span.min(SPANS - 1)
}

/// What is at most so long.
fn bound(span: usize) -> Duration {
    Duration::from_secs_f64((span as f64 / 4.0).exp2() / 1000.0)
}

impl Pace {
    fn answered(&mut self, took: Duration) {
        if self.count == TURN {
            self.before = std::mem::replace(&mut self.now, [0; SPANS]);
            self.count = 0;
        }
        self.now[span(took)] += 1;
        self.count += 1;
    }

    /// What so many percent of the answers did not exceed.
    fn percentile(&self, percent: f64) -> Option<Duration> {
        let each = || self.now.iter().zip(&self.before).map(|(now, before)| now + before);
        let total: u32 = each().sum();
        let wanted = f64::from(total) * percent / 100.0;
        let mut seen = 0;
        let reaches = |count| {
            seen += count;
            f64::from(seen) >= wanted
        };
        each().map(reaches).position(|reaches| reaches).filter(|_| total >= LEAST).map(bound)
    }

    /// Whether a second attempt may be made now; each request adds this share of one.
    fn admit(&mut self) -> bool {
        let is_within = self.saved >= 1.0;
        self.saved -= f64::from(u8::from(is_within));
        is_within
    }
}

#[derive(Debug, Default)]
pub struct Paces(Ledger<Pace>);

impl Paces {
    /// A request comes, of whose kind this share may be made twice.
    pub fn request(&self, target: u64, share: f64) {
        self.with(target, |pace| pace.saved = (pace.saved + share).min(MOST_SAVED));
    }

    pub fn answered(&self, target: u64, took: Duration) {
        self.with(target, |pace| pace.answered(took));
    }

    pub fn percentile(&self, target: u64, percent: f64) -> Option<Duration> {
        self.0.look(target, |pace| pace.percentile(percent)).flatten()
    }

    pub fn admit(&self, target: u64) -> bool {
        self.with(target, Pace::admit)
    }

    fn with<R>(&self, target: u64, work: impl FnOnce(&mut Pace) -> R) -> R {
        self.0.with(target, |pace| pace.count == 0, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_percentile_is_known_within_a_fifth_once_there_are_enough_answers() {
        let mut pace = Pace::default();
        for count in 1..=19 {
            pace.answered(milliseconds(count));
        }
        assert_eq!(pace.percentile(50.0), None);
        for count in 20..=200 {
            pace.answered(milliseconds(count));
        }
        for (percent, exact) in [(50.0, 100.0), (95.0, 190.0), (99.0, 198.0)] {
            let found = pace.percentile(percent).unwrap().as_secs_f64() * 1000.0;
            assert!(found >= exact && found <= exact * 1.2, "{percent}: {found}");
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut pace = Pace::default();
        (0..TURN).for_each(|_| pace.answered(milliseconds(1000)));
        (0..TURN * 2).for_each(|_| pace.answered(milliseconds(10)));
        assert!(pace.percentile(99.0).unwrap() < milliseconds(13));
        assert!(pace.count <= TURN);
    }

    #[test]
    fn any_time_has_its_place() {
        assert_eq!((span(Duration::ZERO), span(Duration::MAX)), (0, SPANS - 1));
    }

    #[test]
    fn second_attempts_keep_to_their_share() {
        let paces = Paces::default();
        let made = (0..1000).filter(|_| {
            paces.request(1, 0.05);
            paces.admit(1)
        });
        assert!((50..=52).contains(&made.count()));
        (0..10_000).for_each(|_| paces.request(1, 1.0));
        assert_eq!((0..100).filter(|_| paces.admit(1)).count(), 10);
    }
}
