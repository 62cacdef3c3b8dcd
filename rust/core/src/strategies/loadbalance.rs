//! Load-balancing strategy. Distributes requests by weight; with sticky fields, requests with equal values go to the
//! same target.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    parse::document_reader::ConfigReader,
    strategies::condition_input::{ConditionInput, ValueSource},
};

const DEFAULT_TTL_SECONDS: u64 = 3600;

#[derive(Debug, Clone, Default)]
pub struct LoadBalancer {
    /// Sums of weights: for each target in config order, the sum up to and including its own weight.
    cumulative_weights: Vec<f64>,
    /// Hash that identifies each target by its name, independent of its position.
    target_hashes: Vec<u64>,
    sticky_policy: Option<StickyPolicy>,
    /// Hash of the group's config path. Lets nested groups assign the same session to targets independently of each
    /// other.
    group_hash: u64,
}

/// Sticky session policy: requests with equal values in these fields belong to one session.
///
/// The target of a session follows only from the field values, the group and its targets. No worker or node has to
/// store it, and time does not change it. Workers that share a Redis also store the assignment there for the TTL, so
/// that it survives weight changes.
#[derive(Debug, Clone)]
pub struct StickyPolicy {
    hash_fields: Vec<ValueSource>,
    /// Lifetime of an assignment in Redis, in seconds.
    ttl_seconds: u64,
}

/// Sticky session of a request: the hash of its field values, and how long the assignment to a target lasts.
#[derive(Debug, Clone, Copy)]
pub struct StickySession {
    pub hash: u64,
    pub ttl: Duration,
}

impl StickyPolicy {
    /// Parses `{"enabled", "hash_fields", "ttl"}` of a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Option<Self> {
        let (mut enabled, mut fields, mut ttl) = (None, Vec::new(), DEFAULT_TTL_SECONDS);
        reading.read_keys(value, |reading, key, value| {
            match key {
                "enabled" => enabled = reading.read_boolean(value),
                "hash_fields" => {
                    fields = reading.read_items(value, "an array of fields", |reading, item| {
                        let text = reading.read_string(item)?;
                        ValueSource::parse(&text, reading)
                    });
                }
                "ttl" => ttl = reading.read_integer(value, &(1..=u64::MAX)).unwrap_or(DEFAULT_TTL_SECONDS),
                _ => return false,
            }
            true
        });
        let enabled = enabled.unwrap_or(true);
        if enabled && fields.is_empty() && value.is_object() {
            reading.report_problem("needs `hash_fields`, such as `metadata.user_id`");
        }
        enabled.then_some(Self { hash_fields: fields, ttl_seconds: ttl })
    }

    /// Returns the hash of the sticky fields of a request; `None` if it has none of them.
    fn hash_request(&self, input: &ConditionInput<'_>) -> Option<u64> {
        let values: Vec<_> = self.hash_fields.iter().map(|field| field.resolve(input).to_scalar_string()).collect();
        let is_set = values.iter().any(Option::is_some);
        is_set.then(|| stable_hash(values.iter().map(|text| text.as_deref().unwrap_or_default())))
    }
}

/// Hashes texts to a number that is the same on every machine and in every version.
fn stable_hash<'t>(texts: impl Iterator<Item = &'t str>) -> u64 {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    let digest = digest.finalize();
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Combines two hashes (with the finaliser of `SplitMix64`).
fn mix_hashes(left: u64, other: u64) -> u64 {
    let mut mix = (left ^ other.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

impl LoadBalancer {
    /// Creates the balancer of the group at this config path, from the names and weights of its targets.
    pub fn new<'t>(
        path: &str,
        targets: impl Iterator<Item = (Option<&'t str>, f64)>,
        sticky: Option<StickyPolicy>,
    ) -> Self {
        let group_hash = stable_hash([path].into_iter());
        let mut balance =
            Self { cumulative_weights: Vec::new(), target_hashes: Vec::new(), sticky_policy: sticky, group_hash };
        let mut sum = 0.0;
        for (index, (name, weight)) in targets.enumerate() {
            sum += weight;
            balance.cumulative_weights.push(sum);
            // Targets with the same name get different hashes.
            let mut target_hash = name.map_or(index as u64, |name| stable_hash([name].into_iter()));
            while balance.target_hashes.contains(&target_hash) {
                target_hash = mix_hashes(target_hash, 1);
            }
            balance.target_hashes.push(target_hash);
        }
        balance
    }

    pub fn total_weight(&self) -> f64 {
        self.cumulative_weights.last().copied().unwrap_or_default()
    }

    /// Returns the sticky session of a request; `None` without a sticky policy or if the request has none of the
    /// fields.
    pub fn sticky_session(&self, input: &ConditionInput<'_>) -> Option<StickySession> {
        let sticky = self.sticky_policy.as_ref()?;
        Some(StickySession {
            hash: mix_hashes(sticky.hash_request(input)?, self.group_hash),
            ttl: Duration::from_secs(sticky.ttl_seconds),
        })
    }

    /// Returns the hash of the target to assign to a session that has no stored assignment.
    pub fn default_target_hash(&self, session: &StickySession) -> u64 {
        self.target_hashes[self.pick_by_hash(session.hash, None)]
    }

    /// Returns the index of the target with this hash; `None` if it was removed or its weight is 0.
    pub fn find_target_index(&self, mark: u64) -> Option<usize> {
        self.target_hashes.iter().position(|hash| *hash == mark).filter(|index| self.target_weight(*index) > 0.0)
    }

    /// Picks a target at random by weight. `chance` is a random number from 0 to 1.
    pub fn pick_random(&self, chance: f64, is_open: Option<&dyn Fn(usize) -> bool>) -> usize {
        let Some(is_open) = is_open else {
            let point = chance * self.total_weight();
            return self.cumulative_weights.partition_point(|sum| *sum <= point).min(self.last_weighted_index());
        };
        let open_indices = || (0..self.cumulative_weights.len()).filter(|index| is_open(*index));
        let mut point = chance * open_indices().map(|index| self.target_weight(index)).sum::<f64>();
        for index in open_indices() {
            if point < self.target_weight(index) {
                return index;
            }
            point -= self.target_weight(index);
        }
        self.last_weighted_index()
    }

    /// Picks the target with the best score for a session hash (weighted rendezvous hashing). Each target wins in
    /// proportion to its weight. If a target becomes unavailable or is added, only its own sessions move.
    pub fn pick_by_hash(&self, session_hash: u64, is_open: Option<&dyn Fn(usize) -> bool>) -> usize {
        let draw = |index: usize| {
            let unit =
                ((mix_hashes(session_hash, self.target_hashes[index]) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            -unit.ln() / self.target_weight(index)
        };
        let weighted = (0..self.cumulative_weights.len()).filter(|index| self.target_weight(*index) > 0.0);
        let open = weighted.filter(|index| is_open.is_none_or(|is_open| is_open(*index)));
        open.min_by(|left, other| draw(*left).total_cmp(&draw(*other))).unwrap_or_else(|| self.last_weighted_index())
    }

    fn target_weight(&self, index: usize) -> f64 {
        self.cumulative_weights[index] - if index == 0 { 0.0 } else { self.cumulative_weights[index - 1] }
    }

    /// Returns the index of the last target with a positive weight.
    fn last_weighted_index(&self) -> usize {
        (0..self.cumulative_weights.len()).rev().find(|index| self.target_weight(*index) > 0.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{accounting::record::metadata::Metadata, parse::document_reader::Strictness};

    fn build_balancer(weights: &[f64], sticky: Option<&Value>) -> LoadBalancer {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let sticky = sticky.and_then(|value| StickyPolicy::parse(value, &mut reading));
        reading.finish().unwrap();
        LoadBalancer::new("config", weights.iter().map(|weight| (None, *weight)), sticky)
    }

    fn choose_target(
        balance: &LoadBalancer,
        metadata: &Metadata,
        chance: f64,
        is_open: Option<&dyn Fn(usize) -> bool>,
    ) -> usize {
        match balance.sticky_session(&ConditionInput { metadata, params: &[], path: "/", pattern_results: None }) {
            Some(session) => balance.pick_by_hash(session.hash, is_open),
            None => balance.pick_random(chance, is_open),
        }
    }

    #[test]
    fn picks_targets_in_proportion_to_weight() {
        let weights = [0.5, 0.0, 3.0, 1.5];
        let balance = build_balancer(&weights, None);
        let mut random = fastrand::Rng::with_seed(7);
        let mut picks = [0_u32; 4];
        for _ in 0..1_000_000 {
            picks[balance.pick_random(random.f64(), None)] += 1;
        }
        for (weight, picks) in weights.iter().zip(picks) {
            assert!((f64::from(picks) / 1e6 - weight / 5.0).abs() < 0.002, "{weight}: {picks}");
        }
        assert_eq!(picks[1], 0);
    }

    #[test]
    fn never_picks_zero_weight_at_the_ends_of_the_range() {
        let balance = build_balancer(&[0.0, 1.0, 0.0], None);
        assert_eq!([0.0, 0.5, 0.999_999_999].map(|chance| balance.pick_random(chance, None)), [1; 3]);
        assert_eq!(balance.pick_random(1.0, None), 1);
    }

    #[test]
    fn skips_unavailable_targets_and_redistributes_by_weight() {
        let balance = build_balancer(&[1.0, 1.0, 2.0], None);
        let open = |index: usize| index != 1;
        assert_eq!([0.0, 0.3, 0.34, 0.99].map(|chance| balance.pick_random(chance, Some(&open))), [0, 0, 2, 2]);
    }

    fn user_metadata(number: u32) -> Metadata {
        Metadata::parse(&json!({"user": format!("u-{number}")}).to_string())
    }

    #[test]
    fn equal_fields_go_to_the_same_target_and_all_sessions_follow_the_weights() {
        let sticky = json!({"enabled": true, "hash_fields": ["metadata.user"], "ttl": 60});
        let (balance, again) = (build_balancer(&[1.0, 3.0], Some(&sticky)), build_balancer(&[1.0, 3.0], Some(&sticky)));
        let mut first = 0;
        for number in 0..20_000 {
            let metadata = user_metadata(number);
            let index = choose_target(&balance, &metadata, 0.0, None);
            assert_eq!(choose_target(&again, &metadata, 0.99, None), index);
            first += u32::from(index == 0);
        }
        assert!((f64::from(first) / 20_000.0 - 0.25).abs() < 0.01, "{first}");
    }

    #[test]
    fn nested_groups_assign_sessions_independently() {
        let sticky = || StickyPolicy { hash_fields: vec![ValueSource::Metadata("user".into())], ttl_seconds: 60 };
        let group = |path| LoadBalancer::new(path, [(None, 1.0), (None, 1.0)].into_iter(), Some(sticky()));
        let (outer, inner) = (group("config"), group("config.targets[0]"));
        let alike = |number: &u32| {
            choose_target(&outer, &user_metadata(*number), 0.0, None)
                == choose_target(&inner, &user_metadata(*number), 0.0, None)
        };
        let alike = (0..1000).filter(alike).count();
        assert!((400..600).contains(&alike), "{alike}");
    }

    #[test]
    fn finds_target_by_hash_while_its_weight_is_positive() {
        let sticky = || StickyPolicy { hash_fields: vec![ValueSource::Metadata("user".into())], ttl_seconds: 60 };
        let balancer = |targets: &[(Option<&'static str>, f64)]| {
            LoadBalancer::new("config", targets.iter().copied(), Some(sticky()))
        };
        let (before, after) = (balancer(&[(Some("a"), 1.0)]), balancer(&[(Some("b"), 1.0), (Some("a"), 0.5)]));
        let metadata = user_metadata(1);
        let session = before
            .sticky_session(&ConditionInput { metadata: &metadata, params: &[], path: "/", pattern_results: None })
            .unwrap();
        let target_hash = before.default_target_hash(&session);
        assert_eq!((before.find_target_index(target_hash), after.find_target_index(target_hash)), (Some(0), Some(1)));
        assert_eq!(balancer(&[(Some("b"), 1.0), (Some("a"), 0.0)]).find_target_index(target_hash), None);
        assert_eq!(balancer(&[(Some("b"), 1.0)]).find_target_index(target_hash), None);
    }

    #[test]
    fn targets_with_the_same_name_are_distinct() {
        let sticky = StickyPolicy { hash_fields: vec![ValueSource::Metadata("user".into())], ttl_seconds: 60 };
        let balance = LoadBalancer::new("config", [(Some("same"), 1.0), (Some("same"), 1.0)].into_iter(), Some(sticky));
        let first = (0..1000).filter(|number| choose_target(&balance, &user_metadata(*number), 0.0, None) == 0).count();
        assert!((400..600).contains(&first), "{first}");
    }

    #[test]
    fn only_sessions_of_an_unavailable_target_move() {
        let sticky = json!({"hash_fields": ["metadata.user"]});
        let balance = build_balancer(&[1.0, 1.0, 1.0], Some(&sticky));
        let open = |index: usize| index != 2;
        for number in 0..1_000 {
            let metadata = user_metadata(number);
            let (before, after) =
                (choose_target(&balance, &metadata, 0.0, None), choose_target(&balance, &metadata, 0.0, Some(&open)));
            assert!(after != 2 && (before == 2 || before == after));
        }
    }

    #[test]
    fn requests_without_sticky_fields_are_balanced_at_random() {
        let balance = build_balancer(&[1.0, 1.0], Some(&json!({"hash_fields": ["metadata.user"]})));
        let no_metadata = Metadata::default();
        assert_eq!(
            (choose_target(&balance, &no_metadata, 0.1, None), choose_target(&balance, &no_metadata, 0.9, None)),
            (0, 1)
        );
    }
}
