//! Anthropic: its own dialect, its key in `x-api-key`, a version header that must be there.

use super::{Credential, FILES, Group, Known, MESSAGES, Provider, options::sent};
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
        self.wire(operation, "").map(|_| "/messages")
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        let is_its_own = operation == Operation::Messages;
        (translation::is_talk(operation) && !is_its_own).then_some(&messages::ANTHROPIC)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oauth_token_stays_a_bearer() {
        assert_eq!(Anthropic.credential("sk-ant-oat01-abc", ""), Credential::Bearer);
        assert_eq!(Anthropic.credential("sk-ant-api03-abc", ""), Credential::Header("x-api-key"));
    }
}
