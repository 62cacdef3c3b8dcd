//! Time of limits: admission by three policies with warm leases, matching of 200 policies, and a locked counter.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use penstock_core::{
    accounting::record::metadata::Metadata,
    limits::{
        hold::{RuleRef, TakeError, TakeTurn},
        limiter::Limiter,
        node_counters::NodeCounters,
        request_holds::{ExhaustedLimits, HoldRequest, LimitStage, RequestHolds, RequestUsage},
        rule::{LimitRule, LimitSubject, ObjectNames, TargetSubject, WorkspaceLimits},
    },
};
use serde_json::{Value, json};

const MAX_ADMISSION_TIME: Duration = Duration::from_micros(2);
const MAX_MATCHING_TIME: Duration = Duration::from_micros(3);
const MAX_LOCKED_TIME: Duration = Duration::from_millis(1);
const NOW_MS: u64 = 1_795_612_440_000;
const ROUNDS: usize = 50;

fn compile(policies: impl Iterator<Item = Value>) -> Arc<[LimitRule]> {
    let rows: Vec<Value> = policies.collect();
    let mut problems = Vec::new();
    let limits = WorkspaceLimits::compile(serde_json::from_value(rows.into()).unwrap(), "o", "$", &mut problems);
    assert_eq!(problems, []);
    limits.all.unwrap()
}

fn policy(number: usize, condition: &Value) -> Value {
    json!({"id": format!("p{number}"), "owner": {"kind": "policy", "id": format!("p{number}"), "slug": "p"},
        "type": "requests", "limit": 1_000_000_000, "window": {"unit": "day"}, "conditions": [condition],
        "group_by": ["api_key"]})
}

fn subject(metadata: &Metadata) -> LimitSubject<'_> {
    let target = TargetSubject {
        provider: "openai",
        saved: Some(ObjectNames { slug: "my-openai", id: "11111111-1111-4111-8111-111111111111" }),
        model: "gpt-4o-mini",
    };
    LimitSubject {
        api_key: Some(ObjectNames { slug: "app", id: "22222222-2222-4222-8222-222222222222" }),
        workspace: Some(ObjectNames { slug: "here", id: "33333333-3333-4333-8333-333333333333" }),
        metadata,
        config: None,
        prompt: None,
        endpoint_type: "chatComplete",
        target: Some(target),
    }
}

/// Returns the time of one call in the fastest of several rounds, because other load only makes rounds longer.
fn shortest(calls: u32, mut call: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed() / calls
    });
    rounds.min().unwrap()
}

#[test]
fn three_policies_with_warm_leases_take_two_microseconds() {
    let rules = compile((0..3).map(|number| policy(number, &json!({"key": "model", "values": ["gpt-4o*"]}))));
    let limiter = Arc::new(Limiter::new(NodeCounters::new(None), 1, 1));
    let metadata = Metadata::default();
    let subject = subject(&metadata);
    let elapsed = shortest(2000, || {
        let mut holds = RequestHolds::new(Arc::clone(&limiter));
        let request = HoldRequest {
            stage: LimitStage::Attempt,
            subject: &subject,
            amount: &|_, _, _| 1,
            uses_nothing: false,
            exhausted: &ExhaustedLimits::all(),
        };
        holds.take_all([&rules], &request, NOW_MS).unwrap();
        holds.settle(RequestUsage { requests: 1, ..RequestUsage::default() }, NOW_MS);
        black_box(&holds);
    });
    println!("three policies with warm leases: {elapsed:?}");
    assert!(elapsed <= MAX_ADMISSION_TIME, "{elapsed:?}");
}

#[test]
fn matching_two_hundred_policies_takes_three_microseconds() {
    let conditions = [
        json!({"key": "model", "values": ["claude-*", "o3"]}),
        json!({"key": "api_key", "values": ["44444444-4444-4444-8444-444444444444"]}),
        json!({"key": "endpoint_type", "values": ["embed"]}),
        json!({"key": "virtual_key", "values": ["other"]}),
    ];
    let rules = compile((0..200).map(|number| policy(number, &conditions[number % conditions.len()])));
    let metadata = Metadata::default();
    let subject = subject(&metadata);
    let elapsed = shortest(500, || {
        let count = black_box(&rules).iter().filter(|rule| rule.group_of(&subject).is_some()).count();
        assert_eq!(black_box(count), 0);
    });
    println!("matching 200 policies: {elapsed:?}");
    assert!(elapsed <= MAX_MATCHING_TIME, "{elapsed:?}");
}

#[test]
fn locked_counter_blocks_the_worker_for_less_than_a_millisecond() {
    let folder = std::env::temp_dir().join(format!("penstock-figures-{:x}", fastrand::u128(..)));
    // A hundredth of the limit is less than one request, so that each request needs the counter.
    let row = json!({"id": "p", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests", "limit": 50,
        "window": {"unit": "day"}});
    let rule = RuleRef { rules: compile([row].into_iter()), index: 0 };
    let limiter = Limiter::new(NodeCounters::new(Some(&folder)), 1, 1);
    let turn = TakeTurn { is_last: true, can_wait: true };
    let take = || limiter.take_once(rule.clone(), "", 1, turn, NOW_MS);
    assert!(take().is_ok());
    let files =
        || std::fs::read_dir(&folder).unwrap().flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    let counter = std::fs::File::open(files().next().unwrap().unwrap().path()).unwrap();
    counter.lock().unwrap();
    let took = shortest(20, || assert!(matches!(take(), Err(TakeError::Locked(_)))));
    println!("a locked counter: {took:?}");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(took < MAX_LOCKED_TIME, "{took:?}");
}
