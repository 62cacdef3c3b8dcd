//! Limits that a token carries in its claims `usage_limits` and `rate_limits`.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    group_counts::tenant_id,
    rule::{LimitOwner, LimitRule, Measure, OwnerKind, digest_text},
    window::{LimitWindow, RateUnit, Recurrence},
};

/// Maximum number of limits of each kind in a token.
const MAX_LIMITS: usize = 16;
/// Maximum number of characters of a user in the id of a limit, of which the store accepts 255. A longer user is
/// replaced by its digest.
const MAX_USER_CHARS: usize = 196;
/// Limit of a budget that has only an alert threshold, as for keys.
const NO_LIMIT: u64 = i64::MAX.unsigned_abs();
const NANODOLLARS_PER_DOLLAR: f64 = 1e9;

#[derive(Deserialize)]
struct UsageClaim {
    #[serde(default, rename = "type")]
    measure: Option<Measure>,
    #[serde(default)]
    credit_limit: Option<f64>,
    #[serde(default)]
    alert_threshold: Option<f64>,
    #[serde(default)]
    periodic_reset: Option<ResetName>,
    #[serde(default)]
    periodic_reset_days: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResetName {
    Weekly,
    Monthly,
}

#[derive(Deserialize)]
struct RateClaim {
    #[serde(rename = "type")]
    measure: Measure,
    unit: UnitName,
    value: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum UnitName {
    Rps,
    Rpm,
    Rph,
    Rpd,
    Rpw,
}

impl UnitName {
    fn unit(&self) -> RateUnit {
        match self {
            Self::Rps => RateUnit::Second,
            Self::Rpm => RateUnit::Minute,
            Self::Rph => RateUnit::Hour,
            Self::Rpd => RateUnit::Day,
            Self::Rpw => RateUnit::Week,
        }
    }
}

/// Compiles the limits of a token. All tokens of a user in an organisation share their counters.
///
/// # Errors
/// If a claim is invalid.
pub fn compile_claims(
    organisation: &str,
    user: &str,
    usage: Option<&Value>,
    rates: Option<&Value>,
) -> Result<Option<Arc<[LimitRule]>>, InvalidClaim> {
    let owner = || LimitOwner { kind: OwnerKind::Token, id: user.into(), slug: user.into() };
    // PostgreSQL cannot store U+0000.
    let is_stored = user.chars().count() <= MAX_USER_CHARS && !user.contains('\0');
    let shown_user = if is_stored { Cow::Borrowed(user) } else { Cow::Owned(digest_text(user)) };
    let name = format!("token:{organisation}:{shown_user}");
    let tenant = tenant_id(organisation);
    let mut rules = Vec::new();
    for claim in list_claims::<UsageClaim>(usage)? {
        let measure = claim.measure.unwrap_or(Measure::Cost);
        let convert = |amount: f64| match measure {
            _ if !(0.0..1e15).contains(&amount) => Err(InvalidClaim),
            Measure::Cost => Ok(to_units(amount * NANODOLLARS_PER_DOLLAR)),
            Measure::Tokens | Measure::Requests => Ok(to_units(amount)),
        };
        let limit = claim.credit_limit.map(convert).transpose()?;
        let alert = claim.alert_threshold.map(convert).transpose()?;
        if limit.is_none() && alert.is_none() {
            continue;
        }
        let window = match (claim.periodic_reset, claim.periodic_reset_days) {
            (None, None) => LimitWindow::Period { start_ms: 1, end_ms: None },
            (Some(ResetName::Weekly), None) => LimitWindow::Recurring(Recurrence::Week),
            (Some(ResetName::Monthly), None) => LimitWindow::Recurring(Recurrence::Month),
            (None, Some(days @ 1..=365)) => LimitWindow::Recurring(Recurrence::Days(days)),
            _ => return Err(InvalidClaim),
        };
        let id = format!("{name}:usage:{}:", measure.name()).into();
        let limit = limit.unwrap_or(NO_LIMIT);
        let mut rule = LimitRule::for_all_requests(owner(), tenant, measure, limit, window, id);
        rule.alert = alert;
        rules.push(rule);
    }
    for claim in list_claims::<RateClaim>(rates)? {
        if claim.measure == Measure::Cost {
            return Err(InvalidClaim);
        }
        let window = LimitWindow::Fixed(claim.unit.unit());
        let id = format!("{name}:rate:{}:{}", claim.measure.name(), claim.unit.unit().name()).into();
        rules.push(LimitRule::for_all_requests(owner(), tenant, claim.measure, claim.value, window, id));
    }
    Ok((!rules.is_empty()).then(|| rules.into()))
}

/// Rounds an amount, which must not be negative.
#[allow(clippy::cast_sign_loss, reason = "the caller has checked that it is not negative")]
fn to_units(amount: f64) -> u64 {
    amount.round() as u64
}

/// A claim that is no list of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidClaim;

/// Returns the limits of a claim: a list, or a single one.
fn list_claims<T: DeserializeOwned>(claim: Option<&Value>) -> Result<Vec<T>, InvalidClaim> {
    let listed = match claim {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(listed)) if listed.len() <= MAX_LIMITS => listed.as_slice(),
        Some(single @ Value::Object(_)) => std::slice::from_ref(single),
        Some(_) => return Err(InvalidClaim),
    };
    listed.iter().map(|limit| T::deserialize(limit).map_err(|_| InvalidClaim)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compile(usage: &Value, rates: &Value) -> Result<Vec<(String, u64, LimitWindow)>, InvalidClaim> {
        let rules = compile_claims("o", "ann", Some(usage), Some(rates))?;
        let rules = rules.iter().flat_map(|rules| rules.iter());
        Ok(rules.map(|rule| (rule.id.to_string(), rule.limit, rule.window)).collect())
    }

    #[test]
    fn reads_lists_and_single_limits() {
        let usage = json!({"credit_limit": 1.5, "periodic_reset": "monthly", "alert_threshold": 1});
        let rates = json!([{"type": "tokens", "unit": "rpm", "value": 9}]);
        let expected = [
            ("token:o:ann:usage:cost:".to_owned(), 1_500_000_000, LimitWindow::Recurring(Recurrence::Month)),
            ("token:o:ann:rate:tokens:minute".to_owned(), 9, LimitWindow::Fixed(RateUnit::Minute)),
        ];
        assert_eq!(compile(&usage, &rates).unwrap(), expected);
        assert_eq!(compile(&json!([]), &Value::Null), Ok(Vec::new()));
        // Without a limit, usage is only counted for the alert.
        let only_alert = compile(&json!({"alert_threshold": 1}), &Value::Null).unwrap();
        assert_eq!(only_alert[0].1, NO_LIMIT);
        assert_eq!(compile(&json!({"type": "cost"}), &Value::Null), Ok(Vec::new()));
    }

    #[test]
    fn the_store_accepts_the_id_of_each_user() {
        let organisation = "0".repeat(36);
        let usage = json!([{"credit_limit": 1, "type": "requests"}]);
        let id_of = |user: &str| {
            let rules = compile_claims(&organisation, user, Some(&usage), None).unwrap().unwrap();
            rules[0].id.to_string()
        };
        let (longest, longer) = ("é".repeat(196), "é".repeat(197));
        assert!(id_of(&longest).contains(&longest));
        for user in [&*longer, &"u".repeat(300), "a\0b"] {
            let id = id_of(user);
            assert!(id.chars().count() <= 255 && !id.contains('\0') && id.contains(":sha256:"), "{id:?}");
        }
        assert_ne!(id_of(&longer), id_of(&format!("{longer}x")));
    }

    #[test]
    fn rejects_what_is_no_limit() {
        for usage in [
            json!("5"),
            json!([5]),
            json!([{"credit_limit": -1}]),
            json!([{"credit_limit": 1, "alert_threshold": -1}]),
            json!([{"credit_limit": 1, "periodic_reset": "daily"}]),
            json!([{"credit_limit": 1, "periodic_reset": "weekly", "periodic_reset_days": 3}]),
            json!([{"credit_limit": 1, "periodic_reset_days": 366}]),
        ] {
            assert_eq!(compile(&usage, &Value::Null), Err(InvalidClaim), "{usage}");
        }
        for rates in [json!([{"value": 5}]), json!({}), json!([{"type": "cost", "unit": "rpm", "value": 5}])] {
            assert_eq!(compile(&Value::Null, &rates), Err(InvalidClaim), "{rates}");
        }
    }
}
