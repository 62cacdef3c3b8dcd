//! Tests of the limits of one worker, and of the workers of one node.

use serde_json::{Value, json};

use super::*;
use crate::{
    accounting::record::metadata::Metadata,
    limits::{
        hold::Remaining,
        request_holds::{ExhaustedLimits, HoldRequest, LimitStage, RequestHolds},
        rule::{LimitSubject, ObjectNames, WorkspaceLimits},
    },
};

const NOW: u64 = 1_795_612_440_000;

fn rule(fields: &Value) -> RuleRef {
    rule_of("o", fields)
}

fn rule_of(organisation: &str, fields: &Value) -> RuleRef {
    let mut row = json!({"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests",
        "limit": 10});
    row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut problems = Vec::new();
    let limits =
        WorkspaceLimits::compile(serde_json::from_value(json!([row])).unwrap(), organisation, "$", &mut problems);
    assert_eq!(problems, []);
    RuleRef { rules: limits.all.unwrap(), index: 0 }
}

fn limiter() -> Limiter {
    Limiter::new(NodeCounters::new(None), 1, 1)
}

#[test]
fn admits_exactly_the_limit_in_each_window() {
    let (limiter, rule) = (limiter(), rule(&json!({"window": {"unit": "second"}})));
    let admitted = |now| (0..20).filter(|_| limiter.take(rule.clone(), "", 1, now).is_ok()).count();
    assert_eq!((admitted(NOW), admitted(NOW + 999), admitted(NOW + 1000)), (10, 0, 10));
    let remaining = limiter.take(rule.clone(), "", 1, NOW + 1500).unwrap_err();
    assert_eq!(remaining, Remaining { amount: 0, reserved: 10, reset_ms: Some(NOW + 2000), is_share: false });
}

#[test]
fn groups_do_not_share_a_limit() {
    let (limiter, rule) = (limiter(), rule(&json!({"window": {"unit": "minute"}, "limit": 1})));
    assert!(limiter.take(rule.clone(), "a", 1, NOW).is_ok() && limiter.take(rule.clone(), "b", 1, NOW).is_ok());
    assert!(limiter.take(rule.clone(), "a", 1, NOW).is_err());
}

#[test]
fn what_a_request_does_not_use_is_left_for_others() {
    let (limiter, rule) = (limiter(), rule(&json!({"period": {"start": 1}, "type": "tokens", "limit": 100})));
    let (hold, _) = limiter.take(rule.clone(), "", 90, NOW).unwrap();
    // The next request gets what is left, and a third one nothing.
    let (rest, _) = limiter.take(rule.clone(), "", 20, NOW).unwrap();
    assert_eq!(rest.amount, 10);
    assert!(limiter.take(rule.clone(), "", 1, NOW).is_err());
    limiter.settle(&rest, 0, NOW + 4);
    limiter.settle(&hold, 30, NOW + 5);
    let (second, remaining) = limiter.take(rule.clone(), "", 70, NOW + 10).unwrap();
    assert_eq!(remaining.amount, 0);
    limiter.settle(&second, 75, NOW + 20);
    limiter.report_all(NOW + 30);
    assert_eq!(limiter.remaining(&rule, "", NOW + 40).amount, 0);
    assert_eq!(limiter.estimate(&rule, ""), Some(75));
}

#[test]
fn requests_that_cost_nothing_are_rejected_too_when_nothing_is_left() {
    let (limiter, rule) = (limiter(), rule(&json!({"period": {"start": 1}, "type": "cost", "limit": 5})));
    let (hold, _) = limiter.take(rule.clone(), "", 0, NOW).unwrap();
    limiter.settle(&hold, 0, NOW);
    let (all, _) = limiter.take(rule.clone(), "", 5, NOW).unwrap();
    assert_eq!(all.amount, 5);
    assert!(limiter.take(rule, "", 0, NOW).is_err());
}

#[test]
fn a_changed_window_starts_from_zero() {
    let limiter = limiter();
    let with = |unit| rule(&json!({"window": {"unit": unit}, "limit": 1}));
    assert!(limiter.take(with("minute"), "", 1, NOW).is_ok() && limiter.take(with("minute"), "", 1, NOW).is_err());
    assert!(limiter.take(with("day"), "", 1, NOW).is_ok() && limiter.take(with("day"), "", 1, NOW).is_err());
}

#[test]
fn full_node_counts_new_groups_together_and_known_ones_as_before() {
    let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
    let grouped = rule(&json!({"id": "g", "period": {"start": 1}, "limit": 1, "group_by": ["metadata.team"]}));
    let embedded = rule(&json!({"id": "e", "period": {"start": 1}, "limit": 1}));
    let before = Limiter::new(NodeCounters::new(Some(&folder)), 1, 1);
    for (rule, group) in [(&grouped, "ann"), (&embedded, "")] {
        let (hold, _) = before.take(rule.clone(), group, 1, NOW).unwrap();
        before.settle(&hold, 1, NOW);
    }
    before.return_all(NOW);
    // After a restart, the worker knows only the files of counters.
    let mut full_limit = Limiter::new(NodeCounters::new(Some(&folder)), 1, 1);
    full_limit.leases.get_mut().unwrap().group_counts.fill_limit("g");
    for limiter in [Limiter::new(NodeCounters::full(&folder, "o"), 1, 1), full_limit] {
        assert!(limiter.take(grouped.clone(), "ann", 1, NOW).is_err());
        assert!(limiter.take(embedded.clone(), "", 1, NOW).is_err());
        let other = limiter.take(grouped.clone(), "bob", 1, NOW).map(|(hold, _)| hold.group);
        assert!(other.is_err() || other.is_ok_and(|group| &*group == OTHER_GROUPS));
        assert!(limiter.take(grouped.clone(), "eve", 1, NOW).is_err());
        assert_eq!(limiter.metrics.shared_groups.get(), 2);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn full_organisation_leaves_counters_to_others() {
    let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
    let fields = json!({"window": {"unit": "minute"}, "group_by": ["metadata.team"]});
    let limiter = Limiter::new(NodeCounters::full(&folder, "o"), 1, 1);
    for (organisation, expected) in [("o", OTHER_GROUPS), ("another", "eve")] {
        let (hold, _) = limiter.take(rule_of(organisation, &fields), "eve", 1, NOW).unwrap();
        assert_eq!(&*hold.group, expected, "{organisation}");
        limiter.forget_unused(NOW + 3_600_000);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn reading_what_is_left_gives_a_group_no_counter() {
    let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
    let grouped = rule(&json!({"id": "g", "period": {"start": 1}, "limit": 3, "group_by": ["metadata.team"]}));
    let limiter = Limiter::new(NodeCounters::full(&folder, "o"), 1, 1);
    let remaining = |group: &str| {
        let [remaining, known] =
            [limiter.remaining(&grouped, group, NOW), limiter.known_remaining(&grouped, group, NOW)];
        assert_eq!(remaining, known);
        remaining.amount
    };
    assert_eq!(remaining("eve"), 3);
    assert!(!limiter.counters.has_counter("g", "eve") && !folder.exists());
    let (hold, _) = limiter.take(grouped.clone(), "eve", 1, NOW).unwrap();
    assert_eq!(&*hold.group, OTHER_GROUPS);
    // Groups that share a counter see what it leaves.
    assert_eq!((remaining("eve"), remaining("bob"), remaining(OTHER_GROUPS)), (2, 2, 2));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Takes one unit of a limit as a request with this API key does.
fn hold_for_key(limiter: &Arc<Limiter>, rule: &RuleRef, key: &str, uses_nothing: bool) -> RequestHolds {
    let mut holds = RequestHolds::new(Arc::clone(limiter));
    let subject = LimitSubject {
        api_key: Some(ObjectNames { slug: key, id: key }),
        workspace: None,
        metadata: &Metadata::default(),
        config: None,
        prompt: None,
        endpoint_type: "chatComplete",
        target: None,
    };
    let request = HoldRequest {
        stage: LimitStage::for_rule(rule),
        subject: &subject,
        amount: &|_, _, _| 1,
        uses_nothing,
        exhausted: &ExhaustedLimits::all(),
    };
    holds.take_all([&rule.rules], &request, NOW).unwrap();
    holds
}

#[test]
fn requests_without_a_hold_are_charged_to_the_group_that_counts_them() {
    let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
    for measure in ["requests", "tokens"] {
        let rule = rule(&json!({"id": format!("g-{measure}"), "period": {"start": 1}, "limit": 1, "type": measure,
            "group_by": ["api_key"], "dry_run": true}));
        for (counters, expected) in
            [(NodeCounters::full(&folder, "o"), [OTHER_GROUPS; 3]), (NodeCounters::new(None), ["eve", "bob", "bob"])]
        {
            let limiter = Arc::new(Limiter::new(counters, 1, 1));
            // The second one gets nothing of the counter that both share, and the third one only reads data.
            let groups = [("eve", false), ("bob", false), ("bob", true)].map(|(key, uses_nothing)| {
                let holds = hold_for_key(&limiter, &rule, key, uses_nothing);
                holds.budget_uses().map(|budget| budget.group.to_owned()).collect::<Vec<_>>()
            });
            assert_eq!(groups, expected.map(|group| vec![group.to_owned()]), "{measure}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn workers_share_what_others_return() {
    let counters = || NodeCounters::new(Some(&std::env::temp_dir().join("penstock-limiter-test")));
    let id = format!("{:x}", fastrand::u128(..));
    let rule =
        rule(&json!({"id": id, "period": {"start": 1}, "type": "tokens", "limit": 10_000, "enforcement": "hard"}));
    let (first, other) = (Limiter::new(counters(), 1, 2), Limiter::new(counters(), 2, 2));
    let (hold, _) = first.take(rule.clone(), "", 10, NOW).unwrap();
    // The first worker has taken a hundredth in advance.
    let remaining = other.take(rule.clone(), "", 9_901, NOW).unwrap_err();
    assert_eq!((remaining.amount, remaining.reserved), (9_900, 100));
    first.settle(&hold, 10, NOW);
    first.report_all(NOW + 1500);
    assert!(other.take(rule.clone(), "", 9_990, NOW + 1600).is_ok());
    assert!(other.take(rule.clone(), "", 1, NOW + 1600).is_err());
}

#[test]
fn a_worker_that_cannot_reach_the_counters_admits_its_share() {
    let limiter = Limiter::new(NodeCounters::new(Some("/proc/penstock".as_ref())), 1, 2);
    let rule = rule(&json!({"window": {"unit": "minute"}}));
    let admitted = (0..20).filter(|_| limiter.take(rule.clone(), "", 1, NOW).is_ok()).count();
    assert_eq!(admitted, 5);
    assert!(limiter.take(rule, "", 1, NOW).unwrap_err().is_share);
    assert!(limiter.metrics.counter_failures.get() > 0);
}

#[test]
fn amounts_that_were_taken_without_the_counters_count_once_they_are_reached() {
    let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
    // A file in the place of the folder makes it unreachable.
    std::fs::write(&folder, "").unwrap();
    let limiter = Limiter::new(NodeCounters::new(Some(&folder)), 1, 2);
    let rule = rule(&json!({"window": {"unit": "minute"}}));
    let admit = |count: usize| (0..count).filter(|_| limiter.take(rule.clone(), "", 1, NOW).is_ok()).count();
    assert_eq!(admit(3), 3);
    let (hold, _) = limiter.take(rule.clone(), "", 1, NOW).unwrap();
    limiter.settle(&hold, 2, NOW);
    limiter.report_all(NOW);
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(limiter.remaining(&rule, "", NOW).amount, 10);
    limiter.report_all(NOW);
    assert_eq!(limiter.remaining(&rule, "", NOW).amount, 5);
    assert_eq!(admit(20), 5);
    std::fs::remove_dir_all(&folder).unwrap();
}
