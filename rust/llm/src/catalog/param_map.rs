//! Parameter mapping for `OpenAI`-compatible providers: one table each of renamed, unsupported and restricted
//! parameters. It edits the bytes of a request, so that everything else stays exactly as received.

use std::borrow::Cow;

use memchr::memmem;

use crate::{
    chat::call_ids::{self, CallIdFormat},
    json::{
        edit::{self, FieldChange},
        scan::for_each_field,
    },
    operation::Operation,
    translation::DroppedParams,
};

/// Parameter mapping of one provider. If a body has a field under both names, the provider's name wins.
#[derive(Debug)]
pub struct ParamRules {
    /// Fields and their names at the provider; `outer.inner` names a field within an object.
    pub renames: &'static [(&'static str, &'static str)],
    /// Message roles and their replacements, both as JSON.
    pub role_map: &'static [(&'static str, &'static str)],
    /// Field, its value, and the value that replaces it; values as JSON.
    pub value_map: &'static [(&'static str, &'static str, &'static str)],
    /// Unsupported fields; they are removed and reported to the client.
    pub dropped_fields: &'static [&'static str],
    /// Unsupported fields that request what the provider does anyway; they are removed without a report.
    pub ignored_fields: &'static [&'static str],
    /// Unsupported fields of messages; they are removed and reported. The second value is a role, as JSON, whose
    /// messages may have the field; empty if none.
    pub dropped_message_fields: &'static [(&'static str, &'static str)],
    /// Field that is removed from messages, their parts and tools, and reported.
    pub dropped_nested_field: Option<&'static str>,
    /// Fields whose neutral value is not 0 at the provider; a value of 0 is removed without a report, because it is the
    /// default.
    pub zero_is_default: &'static [&'static str],
    /// Numeric fields with their minimum and maximum, as JSON. Values outside are clamped and reported.
    pub ranges: &'static [NumberRange],
    /// Required format of tool call ids. Other ids are replaced, in calls and in tool results.
    pub call_id_format: Option<CallIdFormat>,
    /// Assistant message, as JSON, to insert between a tool result and a user message, for providers that reject that
    /// order. The insertion is reported.
    pub bridge_message: Option<&'static str>,
}

/// No change: `OpenAI`'s own names and ranges.
pub static IDENTITY: ParamRules = ParamRules {
    renames: &[],
    role_map: &[],
    value_map: &[],
    dropped_fields: &[],
    ignored_fields: &[],
    dropped_message_fields: &[],
    dropped_nested_field: None,
    zero_is_default: &[],
    ranges: &[],
    call_id_format: None,
    bridge_message: None,
};
/// Text completions of `OpenAI`, with the same ranges as chat completions.
pub(crate) static OPENAI_COMPLETIONS: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ("logprobs", "0", "5")],
    ..IDENTITY
};
/// Most compatible providers: no `developer` role, and `OpenAI`'s ranges.
pub(crate) static OPENAI_COMPATIBLE: ParamRules =
    ParamRules { role_map: &[DEVELOPER_TO_SYSTEM], ranges: OPENAI_RANGES, ..IDENTITY };
/// Same, with the older name `max_tokens` for the output limit.
pub(crate) static LEGACY_MAX_TOKENS: ParamRules = ParamRules { renames: &[RENAME_MAX_TOKENS], ..OPENAI_COMPATIBLE };

/// Same, limited to one choice.
pub(crate) static SINGLE_CHOICE: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ONE_CHOICE],
    ..LEGACY_MAX_TOKENS
};
/// Predibase; its provider format has already renamed the fields, so only ranges apply.
pub(crate) static PREDIBASE: ParamRules =
    ParamRules { ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, ONE_CHOICE], ..IDENTITY };
/// `max_tokens`, and a maximum temperature of 1.
pub(crate) static TEMPERATURE_UP_TO_ONE: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE],
    ..LEGACY_MAX_TOKENS
};
pub(crate) static DEEPSEEK: ParamRules = ParamRules {
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("top_logprobs", "0", "20"),
    ],
    ..LEGACY_MAX_TOKENS
};

pub(crate) static REPETITION_PENALTY: ParamRules = ParamRules {
    renames: &[RENAME_MAX_TOKENS, RENAME_FREQUENCY_PENALTY],
    zero_is_default: &[RENAME_FREQUENCY_PENALTY.0],
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE],
    ..OPENAI_COMPATIBLE
};
pub(crate) static PERPLEXITY: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, ONE_CHOICE, ("top_k", "0", "2048")],
    ..REPETITION_PENALTY
};
/// Same for text completions.
pub(crate) static REPETITION_PENALTY_COMPLETIONS: ParamRules =
    ParamRules { renames: &[RENAME_FREQUENCY_PENALTY], zero_is_default: &[RENAME_FREQUENCY_PENALTY.0], ..IDENTITY };

/// Mistral rejects unknown fields, in messages too.
pub(crate) static MISTRAL: ParamRules = ParamRules {
    renames: &[RENAME_MAX_TOKENS, ("seed", "random_seed"), ("safe_mode", "safe_prompt")],
    value_map: &[("tool_choice", r#""required""#, r#""any""#)],
    dropped_fields: &[
        "functions",
        "function_call",
        "user",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "service_tier",
        "store",
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    // Mistral's streams always end with their usage.
    ignored_fields: &[STREAM_OPTIONS],
    dropped_message_fields: &[
        ("name", r#""tool""#),
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("function_call", ""),
        ("reasoning", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE],
    call_id_format: Some(call_ids::MISTRAL),
    bridge_message: Some(r#"{"role":"assistant","content":"OK."}"#),
    ..OPENAI_COMPATIBLE
};
/// Mistral's models on other hosts, whose chat templates enforce call ids and message order.
static MISTRAL_HOSTED: ParamRules =
    ParamRules { call_id_format: MISTRAL.call_id_format, bridge_message: MISTRAL.bridge_message, ..OPENAI_COMPATIBLE };
/// Mistral's embeddings.
pub(crate) static MISTRAL_EMBEDDINGS: ParamRules =
    ParamRules { renames: &[("dimensions", "output_dimension")], dropped_fields: &["user"], ..IDENTITY };
/// Voyage's embeddings: same as Mistral's, but the `float` encoding is requested with null.
pub(crate) static VOYAGE_EMBEDDINGS: ParamRules =
    ParamRules { value_map: &[("encoding_format", r#""float""#, "null")], ..MISTRAL_EMBEDDINGS };
/// Fireworks rejects unknown fields.
pub(crate) static FIREWORKS: ParamRules = ParamRules {
    dropped_fields: &["store", MODALITIES, AUDIO, WEB_SEARCH_OPTIONS, SAFETY_IDENTIFIER, VERBOSITY],
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("n", "1", "128"),
        ("top_k", "1", "128"),
    ],
    ..LEGACY_MAX_TOKENS
};
/// Same for text completions.
pub(crate) static FIREWORKS_COMPLETIONS: ParamRules = ParamRules {
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("logprobs", "0", "5"),
        ("n", "1", "128"),
        ("top_k", "1", "128"),
    ],
    ..IDENTITY
};
pub(crate) static OLLAMA: ParamRules =
    ParamRules { renames: &[RENAME_MAX_TOKENS, ("thinking", "think")], ..OPENAI_COMPATIBLE };
pub(crate) static OPENROUTER: ParamRules =
    ParamRules { renames: &[RENAME_MAX_TOKENS, ("reasoning_effort", "reasoning.effort")], ..OPENAI_COMPATIBLE };

/// Groq rejects unknown fields, in messages too.
pub(crate) static GROQ: ParamRules = ParamRules {
    dropped_fields: &[
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "store",
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    dropped_message_fields: &[
        ("name", ""),
        ("metadata", ""),
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ..OPENAI_COMPATIBLE
};
/// Cerebras rejects unknown fields, in messages too.
pub(crate) static CEREBRAS: ParamRules = ParamRules {
    dropped_fields: &[
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "metadata",
        "prompt_cache_key",
        "service_tier",
        "store",
        PARALLEL_TOOL_CALLS,
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    dropped_message_fields: &[
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE],
    ..OPENAI_COMPATIBLE
};
/// `SambaNova` supports tool calls and response formats.
pub(crate) static SAMBANOVA: ParamRules = ParamRules {
    dropped_fields: &[
        "functions",
        "function_call",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "user",
        "seed",
        "logprobs",
    ],
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE],
    ..OPENAI_COMPATIBLE
};
pub(crate) static LEMONFOX: ParamRules = ParamRules {
    dropped_fields: &[
        "functions",
        "function_call",
        "n",
        "logit_bias",
        "user",
        "seed",
        "tools",
        "tool_choice",
        "response_format",
        "logprobs",
        STREAM_OPTIONS,
    ],
    ..OPENAI_COMPATIBLE
};
pub(crate) static NSCALE: ParamRules = ParamRules {
    dropped_fields: &["functions", "function_call", "user", "seed", "tools", "tool_choice", STREAM_OPTIONS],
    ..OPENAI_COMPATIBLE
};

/// Numeric field with its minimum and maximum.
type NumberRange = (&'static str, &'static str, &'static str);
const OPENAI_RANGES: &[NumberRange] =
    &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE];
const TEMPERATURE_RANGE: NumberRange = ("temperature", "0", "2");
const TEMPERATURE_0_TO_1: NumberRange = ("temperature", "0", "1");
const TOP_P_RANGE: NumberRange = ("top_p", "0", "1");
const PRESENCE_PENALTY_RANGE: NumberRange = ("presence_penalty", "-2", "2");
/// Exactly one choice.
const ONE_CHOICE: NumberRange = ("n", "1", "1");
const FREQUENCY_PENALTY_RANGE: NumberRange = ("frequency_penalty", "-2", "2");

const RENAME_MAX_TOKENS: (&str, &str) = ("max_completion_tokens", "max_tokens");
const RENAME_FREQUENCY_PENALTY: (&str, &str) = ("frequency_penalty", "repetition_penalty");
const DEVELOPER_TO_SYSTEM: (&str, &str) = (r#""developer""#, r#""system""#);
const STREAM_OPTIONS: &str = "stream_options";
const MODALITIES: &str = "modalities";
const AUDIO: &str = "audio";
const WEB_SEARCH_OPTIONS: &str = "web_search_options";
const SAFETY_IDENTIFIER: &str = "safety_identifier";
const CACHE_CONTROL: &str = "cache_control";
const VERBOSITY: &str = "verbosity";
/// Its value `false` differs from the default, so dropping it must be reported.
const PARALLEL_TOOL_CALLS: &str = "parallel_tool_calls";

const MESSAGES_KEY: &[u8] = b"messages";
const TOOLS_KEY: &[u8] = b"tools";

/// Renamed fields that a body contains: one bit per index in `renames`.
#[derive(Default)]
struct PresentFields {
    /// Present under `OpenAI`'s name.
    openai_names: u32,
    /// Present under the provider's name.
    provider_names: u32,
}

impl ParamRules {
    /// Returns true if no rule can change a request.
    pub fn is_identity(&self) -> bool {
        self.role_map.is_empty() && self.leaves_fields_unchanged()
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
        let (name, least, most) = self.ranges.iter().find(|(name, ..)| name.as_bytes() == key)?;
        exceeded_limit(value, least, most).map(|end| (*name, end))
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
        let is_said = |(name, from, _): &&(&str, &str, &str)| name.as_bytes() == key && from.as_bytes() == value;
        if let Some((_, _, to)) = self.value_map.iter().find(is_said) {
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

    /// Returns a list of objects without the nested field that is dropped; `None` if no object has it.
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

    /// Returns the change of one field of a message.
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
/// have `usual`.
pub(crate) fn multi_vendor_rules(usual: &'static ParamRules, operation: Operation, model: &str) -> &'static ParamRules {
    let is_mistrals = operation == Operation::ChatComplete && call_ids::for_chat_model(model) == call_ids::MISTRAL;
    if is_mistrals { &MISTRAL_HOSTED } else { usual }
}

/// Replaces a tool call id, as JSON, that does not fit the format.
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

/// Returns the limit that a number exceeds; `None` if the value is within the range or no number.
fn exceeded_limit(value: &[u8], least: &'static str, most: &'static str) -> Option<&'static str> {
    let number = |text: &[u8]| serde_json::from_slice::<f64>(text).ok();
    let parsed = number(value)?;
    if parsed < number(least.as_bytes())? {
        return Some(least);
    }
    (parsed > number(most.as_bytes())?).then_some(most)
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

    fn apply_rules(wording: &ParamRules, body: &str) -> Option<(String, String)> {
        wording
            .apply(body.as_bytes())
            .map(|(mapped, dropped)| (String::from_utf8(mapped).unwrap(), dropped.header_value()))
    }

    #[test]
    fn unaffected_bodies_stay_unchanged() {
        let body =
            r#"{"model":"m","messages":[{"role":"user","content":"\"max_completion_tokens\" developer"}],"n":1}"#;
        for wording in [&IDENTITY, &OPENAI_COMPATIBLE, &LEGACY_MAX_TOKENS, &MISTRAL, &OPENROUTER, &CEREBRAS] {
            assert_eq!(apply_rules(wording, body), None);
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
