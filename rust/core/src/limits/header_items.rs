//! Items of one limit in the header fields `RateLimit` and `RateLimit-Policy` of the IETF's draft. They are composed
//! once, because each response of a limited caller has them.

use std::fmt::Write;

use super::{
    rule::{LimitOwner, Measure},
    window::LimitWindow,
};

/// Constant parts of the header fields that describe one limit.
#[derive(Debug)]
pub struct HeaderItems {
    /// Name of the limit as a structured field's string: kind, slug and measure, in quotes.
    pub quoted_name: Box<str>,
    /// Item of `RateLimit-Policy`.
    pub policy: Box<str>,
}

impl HeaderItems {
    pub(super) fn new(owner: &LimitOwner, measure: Measure, limit: u64, window: LimitWindow) -> Self {
        let quoted_name = format!("\"{}\"", policy_name(owner, measure));
        let mut policy = format!("{quoted_name};q={limit}");
        // Writing to a `String` cannot fail.
        if measure != Measure::Requests {
            let _ = write!(policy, ";qu=\"{}\"", unit_name(measure));
        }
        if let Some(seconds) = window.seconds() {
            let _ = write!(policy, ";w={seconds}");
        }
        Self { quoted_name: quoted_name.into(), policy: policy.into() }
    }
}

fn unit_name(measure: Measure) -> &'static str {
    if measure == Measure::Cost { "nanodollars" } else { measure.name() }
}

fn policy_name(owner: &LimitOwner, measure: Measure) -> String {
    let kind = owner.kind.title().replace(' ', "-").to_ascii_lowercase();
    let name = format!("{kind}-{}-{}", owner.slug, measure.name());
    // A string of a structured field can contain no other characters.
    name.chars()
        .map(|letter| if matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\') { letter } else { '_' })
        .collect()
}
