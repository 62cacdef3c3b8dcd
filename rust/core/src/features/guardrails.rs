//! Guardrails of a config: hooks that run before the request and after the response. A target that has hooks of its own
//! does not inherit those of its parent.

use serde_json::Value;

use crate::{
    guardrails::hook::{HookForm, HookKind, HookReference, parse_hooks},
    parse::document_reader::ConfigReader,
};

/// Hooks before the request or after the response, by the kind of config key that contains them.
#[derive(Debug, Clone, Default, PartialEq)]
struct HookLists {
    /// Hooks of `before_request_hooks` or `after_request_hooks`, which contain them in full form.
    full: Vec<HookReference>,
    guardrails: Vec<HookReference>,
    mutators: Vec<HookReference>,
}

impl HookLists {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.guardrails.is_empty() && self.mutators.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &HookReference> {
        self.full.iter().chain(&self.guardrails).chain(&self.mutators)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Guardrails {
    before: HookLists,
    after: HookLists,
}

/// Keys of a config that hold hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardrailConfigKey {
    BeforeRequestHooks,
    AfterRequestHooks,
    InputGuardrails,
    OutputGuardrails,
    InputMutators,
    OutputMutators,
}

impl Guardrails {
    /// Parses the list of hooks of one config key.
    pub fn set(&mut self, key: GuardrailConfigKey, value: &Value, reading: &mut ConfigReader) {
        let (list, form) = match key {
            GuardrailConfigKey::BeforeRequestHooks => (&mut self.before.full, HookForm::Full),
            GuardrailConfigKey::AfterRequestHooks => (&mut self.after.full, HookForm::Full),
            GuardrailConfigKey::InputGuardrails => (&mut self.before.guardrails, HookForm::Short(HookKind::Guardrail)),
            GuardrailConfigKey::OutputGuardrails => (&mut self.after.guardrails, HookForm::Short(HookKind::Guardrail)),
            GuardrailConfigKey::InputMutators => (&mut self.before.mutators, HookForm::Short(HookKind::Mutator)),
            GuardrailConfigKey::OutputMutators => (&mut self.after.mutators, HookForm::Short(HookKind::Mutator)),
        };
        *list = parse_hooks(value, form, reading);
    }

    pub fn inherit(&mut self, parent: &Self) {
        for (own, parent) in [(&mut self.before, &parent.before), (&mut self.after, &parent.after)] {
            if own.is_empty() {
                own.clone_from(parent);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    /// Returns the heap memory in bytes. Hooks that several targets share count once for each target.
    pub fn heap_bytes(&self) -> usize {
        let hooks = self.before().chain(self.after());
        hooks
            .map(|hook| match hook {
                HookReference::Inline(hook) => hook.memory_bytes(),
                HookReference::Saved(name) => name.len(),
            })
            .sum()
    }

    pub fn has_after(&self) -> bool {
        !self.after.is_empty()
    }

    /// Returns the hooks that run before the request.
    pub fn before(&self) -> impl Iterator<Item = &HookReference> {
        self.before.iter()
    }

    /// Returns the hooks that run after the response.
    pub fn after(&self) -> impl Iterator<Item = &HookReference> {
        self.after.iter()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn names(hooks: impl Iterator<Item = impl std::borrow::Borrow<HookReference>>) -> Vec<String> {
        hooks
            .map(|hook| match hook.borrow() {
                HookReference::Saved(name) => name.to_string(),
                HookReference::Inline(hook) => hook.id.clone(),
            })
            .collect()
    }

    #[test]
    fn a_target_with_hooks_does_not_inherit() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let mut parent = Guardrails::default();
        parent.set(GuardrailConfigKey::InputGuardrails, &json!(["short"]), &mut reading);
        parent.set(GuardrailConfigKey::BeforeRequestHooks, &json!([{"id": "full", "checks": []}]), &mut reading);
        parent.set(GuardrailConfigKey::OutputGuardrails, &json!(["after"]), &mut reading);
        let mut child = Guardrails::default();
        child.set(GuardrailConfigKey::InputMutators, &json!(["own"]), &mut reading);
        reading.finish().unwrap();
        child.inherit(&parent);
        assert_eq!(names(parent.before()), ["full", "short"]);
        assert_eq!((names(child.before()), names(child.after())), (vec!["own".to_owned()], vec!["after".to_owned()]));
    }
}
