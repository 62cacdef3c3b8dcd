//! The strategy that shares requests out by weight; with sticky fields the same always go to the same target.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::Reading;
use crate::routing::condition_input::{Asked, Source};

const DEFAULT_TTL: u64 = 3600;

#[derive(Debug, Clone, Default)]
pub struct LoadBalance {
    /// Of the targets in their order: the sum of the weights up to and with each.
    sums: Vec<f64>,
    /// What each target is known by, whatever its place.
    marks: Vec<u64>,
    sticky: Option<Sticky>,
    /// What the group is known by: groups within groups give sessions to their targets each in its own way.
    own: u64,
}

/// Requests that agree in these fields belong together. Which target is theirs follows from the fields, the group and its targets
/// alone: no worker or node has to remember it, and no clock moves it. Where workers share through Redis they remember it
/// together for as long as was asked for, whatever becomes of the weights.
#[derive(Debug, Clone)]
pub struct Sticky {
    fields: Vec<Source>,
    /// Seconds.
    ttl: u64,
}

/// Requests that belong together, by what stands for them, and how long a target is theirs.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    pub mark: u64,
    pub ttl: Duration,
}

impl Sticky {
    /// From a config: `{"enabled", "hash_fields", "ttl"}`.
    pub fn parse(value: &Value, reading: &mut Reading) -> Option<Self> {
        let (mut enabled, mut fields, mut ttl) = (None, Vec::new(), DEFAULT_TTL);
        reading.keys(value, |reading, key, value| {
            match key {
                "enabled" => enabled = reading.boolean(value),
                "hash_fields" => {
                    fields = reading.items(value, "an array of fields", |reading, item| {
                        let text = reading.text(item)?;
                        Source::parse(&text, reading)
                    });
                }
                "ttl" => ttl = reading.whole(value, &(1..=u64::MAX)).unwrap_or(DEFAULT_TTL),
                _ => return false,
            }
            true
        });
        let enabled = enabled.unwrap_or(true);
        if enabled && fields.is_empty() && value.is_object() {
            reading.refuse("needs `hash_fields`, such as `metadata.user_id`");
        }
        enabled.then_some(Self { fields, ttl })
    }

    /// What stands for the fields of a request; `None` where it has none of them.
    fn mark(&self, asked: &Asked<'_>) -> Option<u64> {
        let found: Vec<_> = self.fields.iter().map(|field| field.find(asked).text()).collect();
        let is_said = found.iter().any(Option::is_some);
        is_said.then(|| mark(found.iter().map(|text| text.as_deref().unwrap_or_default())))
    }
}

/// The same on every machine and for ever.
fn mark<'t>(texts: impl Iterator<Item = &'t str>) -> u64 {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    let digest = digest.finalize();
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Mixes two numbers well (the finaliser of `SplitMix64`).
fn mixed(one: u64, other: u64) -> u64 {
    let mut mix = (one ^ other.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

impl LoadBalance {
    /// Of a group at this place with targets of these names and weights.
    pub fn new<'t>(path: &str, targets: impl Iterator<Item = (Option<&'t str>, f64)>, sticky: Option<Sticky>) -> Self {
        let own = mark([path].into_iter());
        let mut balance = Self { sums: Vec::new(), marks: Vec::new(), sticky, own };
        let mut sum = 0.0;
        for (place, (name, weight)) in targets.enumerate() {
            sum += weight;
            balance.sums.push(sum);
            // Two of one name are two targets.
            let mut own = name.map_or(place as u64, |name| mark([name].into_iter()));
            while balance.marks.contains(&own) {
                own = mixed(own, 1);
            }
            balance.marks.push(own);
        }
        balance
    }

    pub fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or_default()
    }

    /// Which requests this one belongs to, where some stay together and it has what they are known by.
    pub fn session(&self, asked: &Asked<'_>) -> Option<Session> {
        let sticky = self.sticky.as_ref()?;
        Some(Session { mark: mixed(sticky.mark(asked)?, self.own), ttl: Duration::from_secs(sticky.ttl) })
    }

    /// What stands for the target of a session that nobody remembers.
    pub fn first_of(&self, session: &Session) -> u64 {
        self.marks[self.nearest(session.mark, None)]
    }

    /// The place of the target that this stands for, unless it is gone or nobody is sent there any more.
    pub fn place_of(&self, mark: u64) -> Option<usize> {
        self.marks.iter().position(|own| *own == mark).filter(|place| self.weight(*place) > 0.0)
    }

    /// By chance.
    pub fn pick(&self, chance: f64, is_open: Option<&dyn Fn(usize) -> bool>) -> usize {
        let Some(is_open) = is_open else {
            let point = chance * self.total();
            return self.sums.partition_point(|sum| *sum <= point).min(self.last());
        };
        let places = || (0..self.sums.len()).filter(|place| is_open(*place));
        let mut point = chance * places().map(|place| self.weight(place)).sum::<f64>();
        for place in places() {
            if point < self.weight(place) {
                return place;
            }
            point -= self.weight(place);
        }
        self.last()
    }

    /// The one whose draw for this mark is best: each wins as often as its weight says, and where one is closed or comes
    /// only its own marks move (weighted rendezvous hashing).
    pub fn nearest(&self, of: u64, is_open: Option<&dyn Fn(usize) -> bool>) -> usize {
        let draw = |place: usize| {
            let unit = ((mixed(of, self.marks[place]) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            -unit.ln() / self.weight(place)
        };
        let places = (0..self.sums.len()).filter(|place| self.weight(*place) > 0.0);
        let open = places.filter(|place| is_open.is_none_or(|is_open| is_open(*place)));
        open.min_by(|one, other| draw(*one).total_cmp(&draw(*other))).unwrap_or_else(|| self.last())
    }

    fn weight(&self, place: usize) -> f64 {
        self.sums[place] - if place == 0 { 0.0 } else { self.sums[place - 1] }
    }

    /// The last that is ever chosen.
    fn last(&self) -> usize {
        (0..self.sums.len()).rev().find(|place| self.weight(*place) > 0.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{accounting::record::metadata::Metadata, config::Unknown};

    fn balance(weights: &[f64], sticky: Option<&Value>) -> LoadBalance {
        let mut reading = Reading::new(Unknown::Refused);
        let sticky = sticky.and_then(|value| Sticky::parse(value, &mut reading));
        reading.end().unwrap();
        LoadBalance::new("config", weights.iter().map(|weight| (None, *weight)), sticky)
    }

    fn choose(
        balance: &LoadBalance,
        metadata: &Metadata,
        chance: f64,
        is_open: Option<&dyn Fn(usize) -> bool>,
    ) -> usize {
        match balance.session(&Asked { metadata, params: &[], path: "/" }) {
            Some(session) => balance.nearest(session.mark, is_open),
            None => balance.pick(chance, is_open),
        }
    }

    #[test]
    fn a_million_picks_are_shared_out_by_weight() {
        let weights = [0.5, 0.0, 3.0, 1.5];
        let balance = balance(&weights, None);
        let mut random = fastrand::Rng::with_seed(7);
        let mut picks = [0_u32; 4];
        for _ in 0..1_000_000 {
            picks[balance.pick(random.f64(), None)] += 1;
        }
        for (weight, picks) in weights.iter().zip(picks) {
            assert!((f64::from(picks) / 1e6 - weight / 5.0).abs() < 0.002, "{weight}: {picks}");
        }
        assert_eq!(picks[1], 0);
    }

    #[test]
    fn the_ends_of_chance_are_targets_with_a_weight() {
        let balance = balance(&[0.0, 1.0, 0.0], None);
        assert_eq!([0.0, 0.5, 0.999_999_999].map(|chance| balance.pick(chance, None)), [1; 3]);
        assert_eq!(balance.pick(1.0, None), 1);
    }

    #[test]
    fn what_is_closed_is_left_out_and_the_others_share() {
        let balance = balance(&[1.0, 1.0, 2.0], None);
        let open = |place: usize| place != 1;
        assert_eq!([0.0, 0.3, 0.34, 0.99].map(|chance| balance.pick(chance, Some(&open))), [0, 0, 2, 2]);
    }

    fn user(number: u32) -> Metadata {
        Metadata::read(&json!({"user": format!("u-{number}")}).to_string())
    }

    #[test]
    fn the_same_fields_always_go_to_the_same_target_and_all_together_by_weight() {
        let sticky = json!({"enabled": true, "hash_fields": ["metadata.user"], "ttl": 60});
        let (balance, again) = (balance(&[1.0, 3.0], Some(&sticky)), balance(&[1.0, 3.0], Some(&sticky)));
        let mut first = 0;
        for number in 0..20_000 {
            let metadata = user(number);
            let place = choose(&balance, &metadata, 0.0, None);
            assert_eq!(choose(&again, &metadata, 0.99, None), place);
            first += u32::from(place == 0);
        }
        assert!((f64::from(first) / 20_000.0 - 0.25).abs() < 0.01, "{first}");
    }

    #[test]
    fn groups_give_the_same_session_to_their_targets_each_in_its_own_way() {
        let sticky = || Sticky { fields: vec![Source::Metadata("user".into())], ttl: 60 };
        let group = |path| LoadBalance::new(path, [(None, 1.0), (None, 1.0)].into_iter(), Some(sticky()));
        let (outer, inner) = (group("config"), group("config.targets[0]"));
        let alike =
            |number: &u32| choose(&outer, &user(*number), 0.0, None) == choose(&inner, &user(*number), 0.0, None);
        let alike = (0..1000).filter(alike).count();
        assert!((400..600).contains(&alike), "{alike}");
    }

    #[test]
    fn a_target_is_found_by_its_mark_while_anybody_is_sent_there() {
        let sticky = || Sticky { fields: vec![Source::Metadata("user".into())], ttl: 60 };
        let of = |targets: &[(Option<&'static str>, f64)]| {
            LoadBalance::new("config", targets.iter().copied(), Some(sticky()))
        };
        let (before, after) = (of(&[(Some("a"), 1.0)]), of(&[(Some("b"), 1.0), (Some("a"), 0.5)]));
        let metadata = user(1);
        let session = before.session(&Asked { metadata: &metadata, params: &[], path: "/" }).unwrap();
        let given = before.first_of(&session);
        assert_eq!((before.place_of(given), after.place_of(given)), (Some(0), Some(1)));
        assert_eq!(of(&[(Some("b"), 1.0), (Some("a"), 0.0)]).place_of(given), None);
        assert_eq!(of(&[(Some("b"), 1.0)]).place_of(given), None);
    }

    #[test]
    fn two_targets_of_one_name_are_two() {
        let sticky = Sticky { fields: vec![Source::Metadata("user".into())], ttl: 60 };
        let balance = LoadBalance::new("config", [(Some("same"), 1.0), (Some("same"), 1.0)].into_iter(), Some(sticky));
        let first = (0..1000).filter(|number| choose(&balance, &user(*number), 0.0, None) == 0).count();
        assert!((400..600).contains(&first), "{first}");
    }

    #[test]
    fn only_those_of_a_closed_target_move() {
        let sticky = json!({"hash_fields": ["metadata.user"]});
        let balance = balance(&[1.0, 1.0, 1.0], Some(&sticky));
        let open = |place: usize| place != 2;
        for number in 0..1_000 {
            let metadata = user(number);
            let (before, after) =
                (choose(&balance, &metadata, 0.0, None), choose(&balance, &metadata, 0.0, Some(&open)));
            assert!(after != 2 && (before == 2 || before == after));
        }
    }

    #[test]
    fn who_has_none_of_the_fields_goes_by_chance() {
        let balance = balance(&[1.0, 1.0], Some(&json!({"hash_fields": ["metadata.user"]})));
        let nobody = Metadata::default();
        assert_eq!((choose(&balance, &nobody, 0.1, None), choose(&balance, &nobody, 0.9, None)), (0, 1));
    }
}
