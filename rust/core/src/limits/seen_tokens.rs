//! Tokens with limits that this worker has seen. The control process stores their limits, because nobody else knows
//! them: so they can be listed and reset, and send alerts.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{rule::LimitRule, window::LimitWindow};

/// Maximum number of users whose limits are known at a time. Those of further users are not reported.
const MAX_TOKENS: usize = 20_000;
/// Maximum number of users in one report.
const MAX_REPORTED: usize = 500;
/// Interval at which the limits of a user who sends requests are reported again.
const REPORT_INTERVAL_MS: u64 = 5 * 60 * 1000;

#[derive(Debug)]
struct SeenToken {
    rules: Arc<[LimitRule]>,
    organisation_id: Arc<str>,
    workspace_id: Arc<str>,
    /// True if a request came since the last report.
    is_used: bool,
    /// Time of the next report, unless no further request comes.
    due_ms: u64,
}

/// Limits of tokens, by user and workspace.
#[derive(Default)]
pub struct SeenTokens {
    hasher: RandomState,
    by_hash: Mutex<HashMap<u64, SeenToken>>,
}

impl SeenTokens {
    /// Adds the limits of the token of a request.
    pub fn add(&self, rules: &Arc<[LimitRule]>, organisation_id: &Arc<str>, workspace_id: &Arc<str>) {
        let Some(first) = rules.first() else { return };
        let hash = self.hasher.hash_one((&*first.owner.id, &**workspace_id));
        let mut tokens = self.lock();
        if let Some(known) = tokens.get_mut(&hash) {
            known.is_used = true;
            if !Arc::ptr_eq(&known.rules, rules) {
                if !has_same_limits(&known.rules, rules) {
                    known.due_ms = 0;
                }
                known.rules = Arc::clone(rules);
            }
        } else if tokens.len() < MAX_TOKENS {
            let token = SeenToken {
                rules: Arc::clone(rules),
                organisation_id: Arc::clone(organisation_id),
                workspace_id: Arc::clone(workspace_id),
                is_used: true,
                due_ms: 0,
            };
            tokens.insert(hash, token);
        }
    }

    /// Returns the limits that the control process may not know, as JSON: those of users whose limits are new or have
    /// changed, whose period has begun, or that were reported a while ago. Forgets users without requests.
    pub fn take_report(&self, now_ms: u64) -> Vec<Value> {
        let mut report = Vec::new();
        self.lock().retain(|_, token| {
            if now_ms < token.due_ms || report.len() >= MAX_REPORTED {
                return true;
            }
            if std::mem::take(&mut token.is_used) {
                let ends = token.rules.iter().filter(|rule| rule.is_budget());
                let first_end = ends.filter_map(|rule| rule.window.part_at(now_ms).reset_ms).min();
                token.due_ms = first_end.unwrap_or(u64::MAX).min(now_ms + REPORT_INTERVAL_MS);
                report.push(describe_token(token, now_ms));
                return true;
            }
            false
        });
        report
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, SeenToken>> {
        self.by_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if two tokens of a user have equal limits. Each renewal of a token brings new objects.
fn has_same_limits(rules: &[LimitRule], others: &[LimitRule]) -> bool {
    let fields = |rule: &LimitRule| (rule.limit, rule.alert, rule.window);
    rules.len() == others.len()
        && rules.iter().zip(others).all(|(rule, other)| rule.id == other.id && fields(rule) == fields(other))
}

fn describe_token(token: &SeenToken, now_ms: u64) -> Value {
    let user = token.rules.first().map_or("", |rule| &*rule.owner.id);
    json!({
        "organisation_id": &*token.organisation_id,
        "workspace_id": &*token.workspace_id,
        "user": user,
        "limits": token.rules.iter().map(|rule| describe_limit(rule, now_ms)).collect::<Vec<_>>(),
    })
}

fn describe_limit(rule: &LimitRule, now_ms: u64) -> Value {
    let part = rule.window.part_at(now_ms);
    let unit = match rule.window {
        LimitWindow::Fixed(unit) | LimitWindow::Sliding(unit) => Some(unit.name()),
        LimitWindow::Period { .. } | LimitWindow::Recurring(_) => None,
    };
    json!({
        "limit_id": rule.id,
        "type": rule.measure.name(),
        "limit": rule.limit.min(i64::MAX.unsigned_abs()),
        "alert": rule.alert.map(|alert| alert.min(i64::MAX.unsigned_abs())),
        "unit": unit,
        "period_start": unit.is_none().then_some(part.start_ms),
        "period_end": part.reset_ms.filter(|_| unit.is_none()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::claims::compile_claims;

    const NOW: u64 = 1_795_612_440_000;

    fn add(tokens: &SeenTokens, rules: &Arc<[LimitRule]>, workspace_id: &str) {
        tokens.add(rules, &"o".into(), &workspace_id.into());
    }

    fn limits(user: &str, most: u64) -> Arc<[LimitRule]> {
        let usage = json!([{"credit_limit": most, "alert_threshold": 1, "periodic_reset": "weekly"}]);
        let rates = json!([{"type": "tokens", "unit": "rpm", "value": 9}]);
        compile_claims("o", user, Some(&usage), Some(&rates)).unwrap().unwrap()
    }

    fn users(report: &[Value]) -> Vec<&str> {
        let mut users: Vec<_> = report.iter().map(|token| token["user"].as_str().unwrap()).collect();
        users.sort_unstable();
        users
    }

    #[test]
    fn reports_limits_of_users_once_and_when_they_change() {
        let tokens = SeenTokens::default();
        add(&tokens, &limits("ann", 2), "w");
        add(&tokens, &limits("bob", 2), "w");
        let report = tokens.take_report(NOW);
        assert_eq!(users(&report), ["ann", "bob"]);
        let ann = report.iter().find(|token| token["user"] == "ann").unwrap();
        let budget = json!({"limit_id": "token:o:ann:usage:cost:", "type": "cost", "limit": 2_000_000_000,
            "alert": 1_000_000_000, "unit": null, "period_start": 1_795_392_000_000_u64,
            "period_end": 1_795_996_800_000_u64});
        let rate = json!({"limit_id": "token:o:ann:rate:tokens:minute", "type": "tokens", "limit": 9, "alert": null,
            "unit": "minute", "period_start": null, "period_end": null});
        let expected = json!({"organisation_id": "o", "workspace_id": "w", "user": "ann", "limits": [budget, rate]});
        assert_eq!(*ann, expected);
        // A renewed token with the same limits is not reported again soon; one with other limits is.
        add(&tokens, &limits("ann", 2), "w");
        assert!(tokens.take_report(NOW + 1000).is_empty());
        add(&tokens, &limits("ann", 3), "w");
        add(&tokens, &limits("ann", 3), "v");
        assert_eq!(users(&tokens.take_report(NOW + 2000)), ["ann", "ann"]);
        // Later, only those with requests are reported; the others are forgotten.
        add(&tokens, &limits("ann", 3), "w");
        assert_eq!(users(&tokens.take_report(NOW + 2000 + REPORT_INTERVAL_MS)), ["ann"]);
        assert_eq!(tokens.lock().len(), 1);
    }

    #[test]
    fn new_period_is_reported_at_once() {
        let (tokens, monday) = (SeenTokens::default(), 1_795_996_800_000);
        add(&tokens, &limits("ann", 2), "w");
        assert_eq!(tokens.take_report(monday - 1000).len(), 1);
        add(&tokens, &limits("ann", 2), "w");
        assert_eq!(tokens.take_report(monday)[0]["limits"][0]["period_start"], monday);
    }

    #[test]
    fn number_of_users_is_bounded() {
        let (tokens, rules) = (SeenTokens::default(), limits("ann", 2));
        for number in 0..=MAX_TOKENS {
            add(&tokens, &rules, &number.to_string());
        }
        let known = tokens.lock().len();
        assert_eq!((known, tokens.take_report(NOW).len()), (MAX_TOKENS, MAX_REPORTED));
    }
}
