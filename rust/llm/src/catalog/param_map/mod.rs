//! Parameter mapping for `OpenAI`-compatible providers: tables of renamed, unsupported and restricted parameters. It
//! edits the bytes of a request, so that all other bytes stay as received.

mod rules;

pub(crate) use rules::{
    CEREBRAS, CLAUDE_MESSAGES, DEEPSEEK, FIREWORKS, FIREWORKS_COMPLETIONS, GROQ, LEGACY_MAX_TOKENS, LEMONFOX, MISTRAL,
    MISTRAL_EMBEDDINGS, NSCALE, OLLAMA, OPENAI_COMPATIBLE, OPENAI_COMPLETIONS, OPENROUTER, PERPLEXITY, PREDIBASE,
    REPETITION_PENALTY, REPETITION_PENALTY_COMPLETIONS, SAMBANOVA, SINGLE_CHOICE, TEMPERATURE_UP_TO_ONE,
    VOYAGE_EMBEDDINGS,
};
pub use rules::{IDENTITY, ParamRules};

use std::borrow::Cow;

use memchr::memmem;

use crate::{
    api_format::peek,
    chat::{
        call_ids::{self, CallIdFormat},
        foreign_history,
    },
    json::{
        edit::{self, FieldChange},
        scan::for_each_field,
    },
    operation::Operation,
    reports::DroppedParams,
};
use rules::{MISTRAL_HOSTED, PARALLEL_TOOL_CALLS};

const MESSAGES_KEY: &[u8] = b"messages";
const TOOLS_KEY: &[u8] = b"tools";

/// Renamed fields that a body contains: one bit per index in `renames`.
#[derive(Default)]
struct PresentFields {
    /// Parameters that the request has under `OpenAI`'s name, as bits.
    openai_names: u32,
    /// Parameters that the request has under the provider's name, as bits.
    provider_names: u32,
}

impl ParamRules {
    /// Returns true if no rule can change a request.
    pub fn is_identity(&self) -> bool {
        self.role_map.is_empty() && self.leaves_fields_unchanged() && !self.drops_unsigned_thinking
    }

    pub(crate) fn accepts_field(&self, name: &str) -> bool {
        !self.dropped_fields.contains(&name) && !self.ignored_fields.contains(&name)
    }

    fn leaves_fields_unchanged(&self) -> bool {
        let keeps_all =
            self.dropped_fields.is_empty() && self.ignored_fields.is_empty() && self.leaves_messages_unchanged();
        keeps_all && self.renames.is_empty() && self.value_map.is_empty() && self.ranges.is_empty()
    }

    /// Applies the rules to a request body. Returns the new body and the dropped parameters; `None` if nothing changes.
    pub fn apply(&self, body: &[u8]) -> Option<(Vec<u8>, DroppedParams)> {
        if self.drops_unsigned_thinking {
            let model = peek(body).ok().and_then(|peek| peek.model).unwrap_or_default();
            return foreign_history::adapt_history(body, &model);
        }
        let has_role = self.role_map.iter().any(|(from, _)| memmem::find(body, from.as_bytes()).is_some());
        if !has_role && self.leaves_fields_unchanged() {
            return None;
        }
        let (mut present, mut is_due) = (PresentFields::default(), has_role);
        for_each_field(body, |key, at| {
            is_due |= self.affects_field(key) || self.find_exceeded_limit(key, &body[at.clone()]).is_some();
            if body[at] != *b"null" {
                for (index, (from, to)) in self.renames.iter().enumerate() {
                    present.openai_names |= u32::from(from.as_bytes() == key) << index;
                    present.provider_names |= u32::from(top_level_name(to).as_bytes() == key) << index;
                }
            }
            Ok(())
        })
        .ok()?;
        if !is_due {
            return None;
        }
        let mut dropped = DroppedParams::default();
        let mapped = edit::map_fields(body, |key, value| self.change_field(key, value, &present, &mut dropped)).ok()?;
        (mapped != body).then_some((mapped, dropped))
    }

    /// Returns the name of a numeric field and the limit that its value exceeds.
    fn find_exceeded_limit(&self, key: &[u8], value: &[u8]) -> Option<(&'static str, &'static str)> {
        let (name, minimum, maximum) = self.ranges.iter().find(|(name, ..)| name.as_bytes() == key)?;
        exceeded_limit(value, minimum, maximum).map(|end| (*name, end))
    }

    fn affects_field(&self, key: &[u8]) -> bool {
        self.renames.iter().any(|(from, _)| from.as_bytes() == key)
            || self.value_map.iter().any(|(name, ..)| name.as_bytes() == key)
            || self.dropped_fields.iter().chain(self.ignored_fields).any(|name| name.as_bytes() == key)
            || !self.leaves_messages_unchanged() && key == MESSAGES_KEY
            || self.dropped_nested_field.is_some() && key == TOOLS_KEY
    }

    fn change_field(
        &self,
        key: &[u8],
        value: &[u8],
        present: &PresentFields,
        dropped: &mut DroppedParams,
    ) -> FieldChange {
        if let Some(name) = self.dropped_fields.iter().find(|name| name.as_bytes() == key) {
            report_dropped(name, value, dropped);
            return FieldChange::Removed;
        }
        let is_among = |names: &[&str]| names.iter().any(|name| name.as_bytes() == key);
        if is_among(self.ignored_fields) || is_among(self.zero_is_default) && is_zero(value) {
            return FieldChange::Removed;
        }
        if let Some((name, end)) = self.find_exceeded_limit(key, value) {
            dropped.add(name);
            return FieldChange::Replaced { key: None, value: Some(end.as_bytes().to_vec()) };
        }
        for (index, (from, to)) in self.renames.iter().enumerate() {
            let (is_usual, is_own) =
                ((present.openai_names >> index) & 1 == 1, (present.provider_names >> index) & 1 == 1);
            if from.as_bytes() == key {
                if is_own {
                    report_dropped(from, value, dropped);
                    return FieldChange::Removed;
                }
                return rename_field(to, value);
            }
            if is_usual && !is_own && top_level_name(to).as_bytes() == key {
                // The provider's field is null. Keeping it would duplicate the key of the renamed field.
                return FieldChange::Removed;
            }
        }
        let is_set = |(name, from, _): &&(&str, &str, &str)| name.as_bytes() == key && from.as_bytes() == value;
        if let Some((_, _, to)) = self.value_map.iter().find(is_set) {
            return FieldChange::Replaced { key: None, value: Some(to.as_bytes().to_vec()) };
        }
        if key == TOOLS_KEY
            && let Some(stripped) = self.strip_nested_field(value, dropped)
        {
            return FieldChange::Replaced { key: None, value: Some(stripped) };
        }
        if key == MESSAGES_KEY && !(self.role_map.is_empty() && self.leaves_messages_unchanged()) {
            let changed = edit::map_item_fields(value, |message, key, field_value| {
                self.change_message_field(message, key, field_value, dropped)
            });
            let with_roles = edit::replace_values(&changed, "role", self.role_map);
            return FieldChange::Replaced { key: None, value: Some(self.insert_bridge_messages(with_roles, dropped)) };
        }
        FieldChange::Unchanged
    }

    /// Returns true if no rule changes messages or inserts one.
    fn leaves_messages_unchanged(&self) -> bool {
        self.dropped_message_fields.is_empty()
            && self.dropped_nested_field.is_none()
            && self.call_id_format.is_none()
            && self.bridge_message.is_none()
    }

    /// Returns a list of objects without the field `dropped_nested_field`; `None` if no object has it.
    fn strip_nested_field(&self, items: &[u8], dropped: &mut DroppedParams) -> Option<Vec<u8>> {
        let hint = self.dropped_nested_field?.as_bytes();
        memmem::find(items, hint)?;
        Some(edit::map_item_fields(items, |_, key, field_value| {
            if key == hint { self.drop_nested_field(field_value, dropped) } else { FieldChange::Unchanged }
        }))
    }

    fn drop_nested_field(&self, value: &[u8], dropped: &mut DroppedParams) -> FieldChange {
        if let Some(hint) = self.dropped_nested_field.filter(|_| !is_empty_value(value)) {
            dropped.add(hint);
        }
        FieldChange::Removed
    }

    /// Returns how to change one field of a message.
    fn change_message_field(
        &self,
        message: &[u8],
        key: &[u8],
        value: &[u8],
        dropped: &mut DroppedParams,
    ) -> FieldChange {
        if self.drops_message_field(message, key, value, dropped) {
            return FieldChange::Removed;
        }
        match (self.call_id_format, key) {
            (_, b"content") => match self.strip_nested_field(value, dropped) {
                Some(stripped) => FieldChange::Replaced { key: None, value: Some(stripped) },
                None => FieldChange::Unchanged,
            },
            _ if self.dropped_nested_field.is_some_and(|hint| hint.as_bytes() == key) => {
                self.drop_nested_field(value, dropped)
            }
            (Some(form), b"tool_call_id") => fit_call_id(form, value),
            (Some(form), b"tool_calls") => {
                let calls = edit::map_item_fields(value, |_, key, id| {
                    if key == b"id" { fit_call_id(form, id) } else { FieldChange::Unchanged }
                });
                FieldChange::Replaced { key: None, value: Some(calls) }
            }
            _ => FieldChange::Unchanged,
        }
    }

    /// Inserts the bridge message between each tool result and a user message that follows it.
    fn insert_bridge_messages(&self, messages: Vec<u8>, dropped: &mut DroppedParams) -> Vec<u8> {
        let Some(bridge) = self.bridge_message else { return messages };
        edit::insert_between(&messages, bridge, |before, after| {
            let meets = message_has_role(before, r#""tool""#) && message_has_role(after, r#""user""#);
            if meets {
                dropped.add("messages.assistant");
            }
            meets
        })
    }

    /// Returns true if a field of a message is dropped, and reports it unless it is empty.
    fn drops_message_field(&self, message: &[u8], key: &[u8], value: &[u8], dropped: &mut DroppedParams) -> bool {
        let Some((name, role)) = self.dropped_message_fields.iter().find(|(name, _)| name.as_bytes() == key) else {
            return false;
        };
        if !role.is_empty() && message_has_role(message, role) {
            return false;
        }
        if !is_empty_value(value) {
            dropped.add(&format!("messages.{name}"));
        }
        true
    }
}

/// Returns the rules for a host of many vendors' models, such as Azure. Mistral models have their own rules; all others
/// use the rules in `usual`.
pub(crate) fn multi_vendor_rules(usual: &'static ParamRules, operation: Operation, model: &str) -> &'static ParamRules {
    let is_mistral = operation == Operation::ChatComplete && call_ids::for_chat_model(model) == call_ids::MISTRAL;
    if is_mistral { &MISTRAL_HOSTED } else { usual }
}

/// Returns the replacement of a tool call id that does not fit the format. `id` is a JSON string.
fn fit_call_id(form: CallIdFormat, id: &[u8]) -> FieldChange {
    let Ok(id) = serde_json::from_slice::<String>(id) else { return FieldChange::Unchanged };
    match form.normalise_id(&id) {
        Cow::Borrowed(_) => FieldChange::Unchanged,
        Cow::Owned(fitted) => FieldChange::Replaced { key: None, value: Some(format!("\"{fitted}\"").into_bytes()) },
    }
}

/// Returns true if a message has this role.
fn message_has_role(message: &[u8], role: &str) -> bool {
    let mut is_so = false;
    let read = for_each_field(message, |key, at| {
        is_so |= key == b"role" && message[at] == *role.as_bytes();
        Ok(())
    });
    read.is_ok() && is_so
}

fn is_zero(value: &[u8]) -> bool {
    serde_json::from_slice::<f64>(value).is_ok_and(|number| number == 0.0)
}

/// Returns the limit that a number exceeds; `None` if the value is within the range or is not a number.
fn exceeded_limit(value: &[u8], least: &'static str, maximum: &'static str) -> Option<&'static str> {
    let number = |text: &[u8]| serde_json::from_slice::<f64>(text).ok();
    let parsed = number(value)?;
    if parsed < number(least.as_bytes())? {
        return Some(least);
    }
    (parsed > number(maximum.as_bytes())?).then_some(maximum)
}

fn is_empty_value(value: &[u8]) -> bool {
    matches!(value, b"null" | b"[]" | b"{}" | b"\"\"")
}

/// Returns the name of the top-level field in `outer.inner`.
fn top_level_name(name: &'static str) -> &'static str {
    name.split_once('.').map_or(name, |(outer, _)| outer)
}

fn rename_field(to: &'static str, value: &[u8]) -> FieldChange {
    let within = to.split_once('.').map(|(_, within)| [b"{\"", within.as_bytes(), b"\":", value, b"}"].concat());
    FieldChange::Replaced { key: Some(top_level_name(to)), value: within }
}

/// Reports a dropped field, unless its value is empty or equals the default.
fn report_dropped(name: &str, value: &[u8], dropped: &mut DroppedParams) {
    if !(is_empty_value(value) || value == b"false" && name != PARALLEL_TOOL_CALLS) {
        dropped.add(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_rules(rules: &ParamRules, body: &str) -> Option<(String, String)> {
        rules
            .apply(body.as_bytes())
            .map(|(mapped, dropped)| (String::from_utf8(mapped).unwrap(), dropped.header_value()))
    }

    #[test]
    fn unaffected_bodies_stay_unchanged() {
        let body =
            r#"{"model":"m","messages":[{"role":"user","content":"\"max_completion_tokens\" developer"}],"n":1}"#;
        for rules in [&IDENTITY, &OPENAI_COMPATIBLE, &LEGACY_MAX_TOKENS, &MISTRAL, &OPENROUTER, &CEREBRAS] {
            assert_eq!(apply_rules(rules, body), None);
        }
        assert_eq!(apply_rules(&OPENAI_COMPATIBLE, r#"{"messages":[{"role":"user","content":["developer"]}]}"#), None);
        assert_eq!(apply_rules(&LEGACY_MAX_TOKENS, r#"{"max_completion_tokens":1"#), None);
        assert_eq!(apply_rules(&IDENTITY, r#"{"messages":[{"role":"developer"}]}"#), None);
    }

    #[test]
    fn provider_name_wins_over_the_openai_name() {
        let both = r#"{"max_completion_tokens":1, "max_tokens":2}"#;
        assert_eq!(
            apply_rules(&LEGACY_MAX_TOKENS, both),
            Some((r#"{ "max_tokens":2}"#.into(), "max_completion_tokens".into()))
        );
        let null = r#"{"max_tokens":null,"max_completion_tokens":1}"#;
        assert_eq!(apply_rules(&LEGACY_MAX_TOKENS, null), Some((r#"{"max_tokens":1}"#.into(), String::new())));
        let provider_body = r#"{"reasoning":{"max_tokens":9},"reasoning_effort":"low"}"#;
        assert_eq!(
            apply_rules(&OPENROUTER, provider_body),
            Some((r#"{"reasoning":{"max_tokens":9}}"#.into(), "reasoning_effort".into()))
        );
    }

    #[test]
    fn reports_dropped_fields_unless_they_state_the_default() {
        let body = r#"{"model":"m","logprobs":false,"parallel_tool_calls":false,"logit_bias":{}}"#;
        assert_eq!(apply_rules(&CEREBRAS, body), Some((r#"{"model":"m"}"#.into(), "parallel_tool_calls".into())));
    }

    #[test]
    fn maps_roles_and_leaves_other_text_unchanged() {
        let body = r#"{"messages":[ {"content":"developer","role":"developer","name":"developer"} ],"x":"developer"}"#;
        let expected = body.replace(r#""role":"developer""#, r#""role":"system""#);
        assert_eq!(apply_rules(&OPENAI_COMPATIBLE, body), Some((expected, String::new())));
    }
}
