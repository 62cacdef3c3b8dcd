//! Responses that a provider stored, in which names stand for values of an earlier request. The gateway does not store
//! the values, so it denies such a response instead of delivering the names.

use std::sync::Arc;

use serde_json::json;

use crate::guardrails::{
    checks::{Check, CheckError, CheckInput, CheckOutcome, CompiledCheck, Stages},
    hook::{Hook, HookCheck},
};

/// Maximum length of the category and number in a name.
const MAX_NAME_BYTES: usize = 64;
const UNRESTORABLE: &str = "the response has names of values that only its own request could return";

/// Returns hooks that deny a stored response with placeholder names of the hooks in `before` that return values.
pub fn hooks_for_stored_output(before: &[Arc<Hook>]) -> impl Iterator<Item = Arc<Hook>> + '_ {
    before.iter().filter(|hook| !hook.is_async && hook.restores()).map(|hook| {
        let checks = hook.checks.iter().filter_map(|item| {
            let tag = item.check.check.effects().restoring_tag?;
            let check = Box::new(StoredNamesCheck { name_end: format!("{tag}}}}}") });
            let id = item.check.id.clone();
            let check = CompiledCheck { id, stages: Stages::Output, check, fails_on_error: true, memory_bytes: 0 };
            Some(HookCheck { check, is_soft: item.is_soft })
        });
        Arc::new(Hook { id: hook.id.clone(), checks: checks.collect(), denies: true, ..Hook::default() })
    })
}

/// Fails if a response contains a placeholder name of one check.
#[derive(Debug)]
struct StoredNamesCheck {
    /// End of each placeholder name of the check, with the tag of the check.
    name_end: String,
}

impl StoredNamesCheck {
    fn has_name(&self, text: &str) -> bool {
        text.match_indices(&self.name_end).any(|(at, _)| {
            let before = &text.as_bytes()[..at];
            // Looks back a bounded number of bytes, so that a text with many such ends takes linear time.
            let is_of_name = |byte: &&u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || **byte == b'_';
            let length = before.iter().rev().take(MAX_NAME_BYTES).take_while(is_of_name).count();
            before[..at - length].ends_with(b"{{")
        })
    }
}

impl Check for StoredNamesCheck {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if input.texts.iter().any(|part| self.has_name(&part.text)) {
            return Err(CheckError::not_replaced(UNRESTORABLE));
        }
        Ok(CheckOutcome::new(true, json!({"verdict": true, "explanation": "the response has no names"})))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_check_are_found() {
        let check = StoredNamesCheck { name_end: "_3f0a}}".into() };
        assert!(check.has_name("to {{EMAIL_ADDRESS_1_3f0a}}."));
        for text in ["", "to {{EMAIL_ADDRESS_1_3f0b}}", "_3f0a}}", "{{ x _3f0a}}", "EMAIL_ADDRESS_1_3f0a}}"] {
            assert!(!check.has_name(text), "{text}");
        }
        assert!(!check.has_name(&"A_3f0a}}".repeat(100_000)));
    }
}
