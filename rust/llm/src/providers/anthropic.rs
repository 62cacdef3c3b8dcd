//! Anthropic: its own dialect, its key in `x-api-key`, a version header that must be there.

use super::{Credential, FILES, Group, Known, MESSAGES, Provider, is_in, options::sent};
use crate::{
    dialect::Dialect,
    operation::Operation,
    translation::{
        self,
        wires::{Wire, messages},
    },
};

pub(super) struct Anthropic;

/// OAuth access tokens begin so; the API takes them as a bearer token only.
const OAUTH_PREFIX: &str = "sk-ant-oat";

const OPTIONS: &[Known] = &[sent("anthropic_version", "anthropic-version"), sent("anthropic_beta", "anthropic-beta")];

impl Provider for Anthropic {
    fn slug(&self) -> &'static str {
        "anthropic"
    }

    fn base_url(&self) -> &'static str {
        "https://api.anthropic.com/v1"
    }

    fn offers(&self) -> &'static [Group] {
        &[MESSAGES, FILES]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        self.wire(operation, "").map(|_| path(operation))
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        is_translated(operation).then_some(&messages::ANTHROPIC)
    }

    fn credential(&self, key: &str, _prefix: &str) -> Credential {
        if key.starts_with(OAUTH_PREFIX) {
            return Credential::Bearer;
        }
        Credential::Header("x-api-key")
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    fn dialect(&self) -> Dialect {
        Dialect::Anthropic
    }
}

/// What callers ask in other dialects; its own pass as they are.
pub(super) fn is_translated(operation: Operation) -> bool {
    let is_asked = translation::is_talk(operation) || operation.counts_tokens();
    is_asked && !is_in(&[MESSAGES], operation)
}

/// The path of what is asked in another dialect.
pub(super) fn path(operation: Operation) -> &'static str {
    if operation.counts_tokens() { "/messages/count_tokens" } else { "/messages" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oauth_token_stays_a_bearer() {
        assert_eq!(Anthropic.credential("sk-ant-oat01-abc", ""), Credential::Bearer);
        assert_eq!(Anthropic.credential("sk-ant-api03-abc", ""), Credential::Header("x-api-key"));
    }
}
