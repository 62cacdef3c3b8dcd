//! Windows of limits under a simulated clock, compared with a naive log of what was admitted. For every start of a
//! window, all workers of a node together admit at most the limit.

use std::path::PathBuf;

use penstock_core::limits::{
    hold::{Hold, RuleRef},
    limiter::Limiter,
    node_counters::NodeCounters,
    rule::WorkspaceLimits,
};
use serde_json::json;

use crate::harness::limited_nodes;

const START_MS: u64 = 1_795_612_440_000;
const WORKERS: u64 = 3;
const LIMIT: u64 = 40;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn rule(measure: &str, unit: &str, is_sliding: bool) -> RuleRef {
    let row = json!([{"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": measure, "limit": LIMIT,
        "window": {"unit": unit, "sliding": is_sliding}}]);
    let mut problems = Vec::new();
    let limits = WorkspaceLimits::compile(serde_json::from_value(row).unwrap(), "o", "$", &mut problems);
    assert_eq!(problems, []);
    RuleRef { rules: limits.all.unwrap(), index: 0 }
}

/// An admission: its time, and the amount that it counts now.
struct Admission {
    at_ms: u64,
    amount: u64,
}

struct Simulation {
    workers: Vec<Limiter>,
    rule: RuleRef,
    length_ms: u64,
    is_sliding: bool,
    log: Vec<Admission>,
    open: Vec<(usize, usize, Hold)>,
    _folder: Folder,
}

impl Simulation {
    fn new(measure: &str, unit: &str, length_ms: u64, is_sliding: bool) -> Self {
        let folder = Folder(std::env::temp_dir().join(format!("penstock-windows-{:x}", fastrand::u128(..))));
        std::fs::create_dir(&folder.0).unwrap();
        let workers = (1..=WORKERS).map(|id| Limiter::new(NodeCounters::new(Some(&folder.0)), id, WORKERS)).collect();
        let rule = rule(measure, unit, is_sliding);
        Self { workers, rule, length_ms, is_sliding, log: Vec::new(), open: Vec::new(), _folder: folder }
    }

    fn send(&mut self, random: &mut fastrand::Rng, amount: u64, now_ms: u64) {
        let worker = random.usize(..self.workers.len());
        let Ok((hold, _)) = self.workers[worker].take(self.rule.clone(), "", amount, now_ms) else { return };
        self.log.push(Admission { at_ms: now_ms, amount: hold.amount });
        self.open.push((worker, self.log.len() - 1, hold));
        self.check(now_ms);
    }

    /// Settles a request that may have used less than it reserved.
    fn end_one(&mut self, random: &mut fastrand::Rng, now_ms: u64) {
        if self.open.is_empty() {
            return;
        }
        let (worker, entry, hold) = self.open.swap_remove(random.usize(..self.open.len()));
        let used = random.u64(1..=hold.amount);
        self.workers[worker].settle(&hold, used, now_ms);
        self.log[entry].amount = used;
    }

    /// Compares with the log. The fullest window ends with the newest admission.
    fn check(&self, now_ms: u64) {
        let start = if self.is_sliding {
            (now_ms + 1).saturating_sub(self.length_ms)
        } else {
            now_ms - now_ms % self.length_ms
        };
        let sum: u64 = self.log.iter().rev().take_while(|one| one.at_ms >= start).map(|one| one.amount).sum();
        assert!(sum <= LIMIT, "{sum} in the window from {start} to {now_ms}");
    }
}

/// Runs requests at twice the limit for many windows. Returns the admitted amount as a fraction of what the limit
/// allows.
fn run(seed: u64, measure: &str, (unit, length_ms): (&str, u64), is_sliding: bool) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut simulation = Simulation::new(measure, unit, length_ms, is_sliding);
    let windows = 30;
    let mut now = START_MS - START_MS % length_ms;
    let end = now + windows * length_ms;
    let mean_amount = if measure == "requests" { 1 } else { 3 };
    let pause = (length_ms * mean_amount / (2 * LIMIT)).max(1);
    while now < end {
        now += random.u64(0..=2 * pause);
        let amount = if measure == "requests" { 1 } else { random.u64(1..=5) };
        simulation.send(&mut random, amount, now);
        if measure == "tokens" && random.bool() {
            simulation.end_one(&mut random, now);
        }
        if random.u8(..10) == 0 {
            let worker = random.usize(..simulation.workers.len());
            simulation.workers[worker].report_all(now);
        }
        // The clock of a machine may be set back a little.
        if random.u8(..100) == 0 {
            let back = now - random.u64(..5);
            simulation.workers.iter().for_each(|worker| worker.report_all(back));
        }
    }
    let admitted: u64 = simulation.log.iter().map(|one| one.amount).sum();
    admitted as f64 / (LIMIT * windows) as f64
}

#[test]
fn limit_that_is_lowered_holds_at_once() {
    let folder = Folder(std::env::temp_dir().join(format!("penstock-lowered-{:x}", fastrand::u128(..))));
    std::fs::create_dir(&folder.0).unwrap();
    let workers: Vec<_> =
        (1..=WORKERS).map(|id| Limiter::new(NodeCounters::new(Some(&folder.0)), id, WORKERS)).collect();
    let limited = |limit: u64| limited_nodes::rule(&json!({"id": "lowered", "limit": limit, "period": {"start": 1}}));
    let count_admitted = |limit: u64, requests: usize| {
        let requests = workers.iter().cycle().take(requests);
        requests.filter(|worker| worker.take(limited(limit), "", 1, START_MS).is_ok()).count()
    };
    // Each worker takes a hundredth of the limit in advance.
    assert_eq!(count_admitted(10_000, 3), 3);
    assert!(count_admitted(5, 30) <= 2);
    for worker in &workers {
        worker.report_all(START_MS + 2000);
    }
    let admitted: usize = (0..20).map(|_| count_admitted(8, 3)).sum();
    assert!((1..=5).contains(&admitted), "{admitted}");
}

#[test]
fn no_window_of_a_node_holds_more_than_the_limit() {
    for seed in 0..8 {
        for measure in ["requests", "tokens"] {
            for unit in [("second", 1000), ("minute", 60_000)] {
                for is_sliding in [false, true] {
                    let part = run(seed, measure, unit, is_sliding);
                    assert!(part > 0.5, "{part} of the limit with {measure} per {unit:?}, sliding: {is_sliding}");
                }
            }
        }
    }
}
