//! What providers that speak `OpenAI`'s API call otherwise than `OpenAI` does, or do not take: a table each, written into the
//! bytes of a request. What needs no change stays as it came.

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

/// What is said otherwise. Where a body has a field under the provider's own name too, that one is meant.
#[derive(Debug)]
pub struct ParamRules {
    /// Fields, and what they are called there; behind a dot stands the name within an object.
    pub renames: &'static [(&'static str, &'static str)],
    /// Roles of messages, and what they are there; both as JSON.
    pub role_map: &'static [(&'static str, &'static str)],
    /// A field, what it may say, and what it says there; both as JSON.
    pub value_map: &'static [(&'static str, &'static str, &'static str)],
    /// Fields that are not taken: they are named to the caller.
    pub dropped_fields: &'static [&'static str],
    /// Fields that are not taken, and ask for what is done anyway: they go, and nothing is lost by that.
    pub ignored_fields: &'static [&'static str],
    /// Fields of messages that are not taken: they are named. A role that has one all the same stands beside it, as JSON.
    pub dropped_message_fields: &'static [(&'static str, &'static str)],
    /// A field that is not taken in messages, their parts or tools, wherever it stands: it is named.
    pub dropped_nested_field: Option<&'static str>,
    /// Fields whose nothing is another number there: one that says 0 goes, and nothing is lost by that.
    pub zero_is_default: &'static [&'static str],
    /// Numbers, and where their scales begin and end, as JSON: what is beyond is put to the end of the scale, and named.
    pub ranges: &'static [NumberRange],
    /// Which ids calls of tools may have; the others have another there, and so has what the tools gave back.
    pub call_id_format: Option<CallIdFormat>,
    /// What the assistant says, as JSON, to what tools gave back, where a user must not be the next to speak: that is named.
    pub bridge_message: Option<&'static str>,
}

/// Everything is called as `OpenAI` calls it.
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
/// Likewise of completions, whose scales end where they end in chats.
pub(crate) static OPENAI_COMPLETIONS: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ("logprobs", "0", "5")],
    ..IDENTITY
};
/// As it was when others became compatible with it.
pub(crate) static OPENAI_COMPATIBLE: ParamRules =
    ParamRules { role_map: &[DEVELOPER_TO_SYSTEM], ranges: OPENAI_RANGES, ..IDENTITY };
/// Likewise, and the limit of an answer has its old name.
pub(crate) static LEGACY_MAX_TOKENS: ParamRules = ParamRules { renames: &[RENAME_MAX_TOKENS], ..OPENAI_COMPATIBLE };

/// Likewise, and there is one answer.
pub(crate) static SINGLE_CHOICE: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ONE_CHOICE],
    ..LEGACY_MAX_TOKENS
};
/// What is said there was put in its words before.
pub(crate) static PREDIBASE: ParamRules =
    ParamRules { ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, ONE_CHOICE], ..IDENTITY };
/// With the limit of an answer by its old name, and a scale of temperatures that ends at 1.
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
/// Likewise, of completions.
pub(crate) static REPETITION_PENALTY_COMPLETIONS: ParamRules =
    ParamRules { renames: &[RENAME_FREQUENCY_PENALTY], zero_is_default: &[RENAME_FREQUENCY_PENALTY.0], ..IDENTITY };

/// It refuses whatever it does not know, in messages too.
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
    // Its streams end with their usage.
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
/// Mistral's models where others host them: what their templates refuse.
static MISTRAL_HOSTED: ParamRules =
    ParamRules { call_id_format: MISTRAL.call_id_format, bridge_message: MISTRAL.bridge_message, ..OPENAI_COMPATIBLE };
/// Likewise, of texts that become vectors.
pub(crate) static MISTRAL_EMBEDDINGS: ParamRules =
    ParamRules { renames: &[("dimensions", "output_dimension")], dropped_fields: &["user"], ..IDENTITY };
/// Likewise; and that numbers are to be numbers is said by saying nothing.
pub(crate) static VOYAGE_EMBEDDINGS: ParamRules =
    ParamRules { value_map: &[("encoding_format", r#""float""#, "null")], ..MISTRAL_EMBEDDINGS };
/// It refuses what it does not know.
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
/// Likewise, of completions.
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

/// It refuses what it does not know, in messages too.
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
/// Likewise.
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
/// It has learnt to call tools and to keep to a format.
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

/// A number, and where its scale begins and ends.
type NumberRange = (&'static str, &'static str, &'static str);
const OPENAI_RANGES: &[NumberRange] =
    &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE];
const TEMPERATURE_RANGE: NumberRange = ("temperature", "0", "2");
const TEMPERATURE_0_TO_1: NumberRange = ("temperature", "0", "1");
const TOP_P_RANGE: NumberRange = ("top_p", "0", "1");
const PRESENCE_PENALTY_RANGE: NumberRange = ("presence_penalty", "-2", "2");
/// So many answers.
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
/// Who says no to it wants something.
const PARALLEL_TOOL_CALLS: &str = "parallel_tool_calls";

const MESSAGES_KEY: &[u8] = b"messages";
const TOOLS_KEY: &[u8] = b"tools";

/// Which of the renamed fields a body has, by their places in the table: a bit each.
#[derive(Default)]
struct PresentFields {
    /// Under `OpenAI`'s name.
    openai_names: u32,
    /// Under the provider's.
    provider_names: u32,
}

impl ParamRules {
    /// Whether a request can have anything that is said otherwise.
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

    /// The request in these words, and what it says no longer; `None` where nothing changes.
    pub fn apply(&self, body: &[u8]) -> Option<(Vec<u8>, DroppedParams)> {
        let has_role = self.role_map.iter().any(|(from, _)| memmem::find(body, from.as_bytes()).is_some());
        if !has_role && self.leaves_fields_unchanged() {
            return None;
        }
        let (mut said, mut is_due) = (PresentFields::default(), has_role);
        for_each_field(body, |key, at| {
            is_due |= self.affects_field(key) || self.find_exceeded_limit(key, &body[at.clone()]).is_some();
            if body[at] != *b"null" {
                for (index, (from, to)) in self.renames.iter().enumerate() {
                    said.openai_names |= u32::from(from.as_bytes() == key) << index;
                    said.provider_names |= u32::from(top_level_name(to).as_bytes() == key) << index;
                }
            }
            Ok(())
        })
        .ok()?;
        if !is_due {
            return None;
        }
        let mut lost = DroppedParams::default();
        let told = edit::map_fields(body, |key, value| self.change_field(key, value, &said, &mut lost)).ok()?;
        (told != body).then_some((told, lost))
    }

    /// Where the scale of a number ends that it is beyond.
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

    fn change_field(&self, key: &[u8], value: &[u8], said: &PresentFields, lost: &mut DroppedParams) -> FieldChange {
        if let Some(name) = self.dropped_fields.iter().find(|name| name.as_bytes() == key) {
            report_dropped(name, value, lost);
            return FieldChange::Removed;
        }
        let is_among = |names: &[&str]| names.iter().any(|name| name.as_bytes() == key);
        if is_among(self.ignored_fields) || is_among(self.zero_is_default) && is_zero(value) {
            return FieldChange::Removed;
        }
        if let Some((name, end)) = self.find_exceeded_limit(key, value) {
            lost.add(name);
            return FieldChange::Replaced { key: None, value: Some(end.as_bytes().to_vec()) };
        }
        for (index, (from, to)) in self.renames.iter().enumerate() {
            let (is_usual, is_own) = ((said.openai_names >> index) & 1 == 1, (said.provider_names >> index) & 1 == 1);
            if from.as_bytes() == key {
                if is_own {
                    report_dropped(from, value, lost);
                    return FieldChange::Removed;
                }
                return rename_field(to, value);
            }
            if is_usual && !is_own && top_level_name(to).as_bytes() == key {
                // It says null, and would say so beside the other.
                return FieldChange::Removed;
            }
        }
        let is_said = |(name, from, _): &&(&str, &str, &str)| name.as_bytes() == key && from.as_bytes() == value;
        if let Some((_, _, to)) = self.value_map.iter().find(is_said) {
            return FieldChange::Replaced { key: None, value: Some(to.as_bytes().to_vec()) };
        }
        if key == TOOLS_KEY
            && let Some(told) = self.strip_nested_field(value, lost)
        {
            return FieldChange::Replaced { key: None, value: Some(told) };
        }
        if key == MESSAGES_KEY && !(self.role_map.is_empty() && self.leaves_messages_unchanged()) {
            let heard =
                edit::map_item_fields(value, |message, key, said| self.change_message_field(message, key, said, lost));
            let told = edit::replace_values(&heard, "role", self.role_map);
            return FieldChange::Replaced { key: None, value: Some(self.insert_bridge_messages(told, lost)) };
        }
        FieldChange::Unchanged
    }

    /// Whether fields of messages stay as they are, and nothing comes between two of them.
    fn leaves_messages_unchanged(&self) -> bool {
        self.dropped_message_fields.is_empty()
            && self.dropped_nested_field.is_none()
            && self.call_id_format.is_none()
            && self.bridge_message.is_none()
    }

    /// Objects in a list without the field that is taken nowhere; `None` where they have none.
    fn strip_nested_field(&self, items: &[u8], lost: &mut DroppedParams) -> Option<Vec<u8>> {
        let hint = self.dropped_nested_field?.as_bytes();
        memmem::find(items, hint)?;
        Some(edit::map_item_fields(items, |_, key, said| {
            if key == hint { self.drop_nested_field(said, lost) } else { FieldChange::Unchanged }
        }))
    }

    fn drop_nested_field(&self, said: &[u8], lost: &mut DroppedParams) -> FieldChange {
        if let Some(hint) = self.dropped_nested_field.filter(|_| !is_empty_value(said)) {
            lost.add(hint);
        }
        FieldChange::Removed
    }

    /// What becomes of a field of a message.
    fn change_message_field(&self, message: &[u8], key: &[u8], said: &[u8], lost: &mut DroppedParams) -> FieldChange {
        if self.drops_message_field(message, key, said, lost) {
            return FieldChange::Removed;
        }
        match (self.call_id_format, key) {
            (_, b"content") => match self.strip_nested_field(said, lost) {
                Some(told) => FieldChange::Replaced { key: None, value: Some(told) },
                None => FieldChange::Unchanged,
            },
            _ if self.dropped_nested_field.is_some_and(|hint| hint.as_bytes() == key) => {
                self.drop_nested_field(said, lost)
            }
            (Some(form), b"tool_call_id") => fit_call_id(form, said),
            (Some(form), b"tool_calls") => {
                let calls = edit::map_item_fields(said, |_, key, id| {
                    if key == b"id" { fit_call_id(form, id) } else { FieldChange::Unchanged }
                });
                FieldChange::Replaced { key: None, value: Some(calls) }
            }
            _ => FieldChange::Unchanged,
        }
    }

    /// The messages, with somebody's words between those of a tool and of a user.
    fn insert_bridge_messages(&self, messages: Vec<u8>, lost: &mut DroppedParams) -> Vec<u8> {
        let Some(bridge) = self.bridge_message else { return messages };
        edit::insert_between(&messages, bridge, |before, after| {
            let meets = message_has_role(before, r#""tool""#) && message_has_role(after, r#""user""#);
            if meets {
                lost.add("messages.assistant");
            }
            meets
        })
    }

    /// Whether a field of a message goes; what it said is named.
    fn drops_message_field(&self, message: &[u8], key: &[u8], said: &[u8], lost: &mut DroppedParams) -> bool {
        let Some((name, role)) = self.dropped_message_fields.iter().find(|(name, _)| name.as_bytes() == key) else {
            return false;
        };
        if !role.is_empty() && message_has_role(message, role) {
            return false;
        }
        if !is_empty_value(said) {
            lost.add(&format!("messages.{name}"));
        }
        true
    }
}

/// Of Azure, which hosts models of many makers and has usual words for them.
pub(crate) fn multi_vendor_rules(usual: &'static ParamRules, operation: Operation, model: &str) -> &'static ParamRules {
    let is_mistrals = operation == Operation::ChatComplete && call_ids::for_chat_model(model) == call_ids::MISTRAL;
    if is_mistrals { &MISTRAL_HOSTED } else { usual }
}

/// An id of a call, as JSON, where it must be another.
fn fit_call_id(form: CallIdFormat, id: &[u8]) -> FieldChange {
    let Ok(id) = serde_json::from_slice::<String>(id) else { return FieldChange::Unchanged };
    match form.normalise_id(&id) {
        Cow::Borrowed(_) => FieldChange::Unchanged,
        Cow::Owned(fitted) => FieldChange::Replaced { key: None, value: Some(format!("\"{fitted}\"").into_bytes()) },
    }
}

/// Whether a message has this role.
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

/// The end of a scale that a number is beyond, if it is one and is beyond.
fn exceeded_limit(value: &[u8], least: &'static str, most: &'static str) -> Option<&'static str> {
    let number = |text: &[u8]| serde_json::from_slice::<f64>(text).ok();
    let said = number(value)?;
    if said < number(least.as_bytes())? {
        return Some(least);
    }
    (said > number(most.as_bytes())?).then_some(most)
}

fn is_empty_value(value: &[u8]) -> bool {
    matches!(value, b"null" | b"[]" | b"{}" | b"\"\"")
}

/// The name of a field of the body itself.
fn top_level_name(name: &'static str) -> &'static str {
    name.split_once('.').map_or(name, |(outer, _)| outer)
}

fn rename_field(to: &'static str, value: &[u8]) -> FieldChange {
    let within = to.split_once('.').map(|(_, within)| [b"{\"", within.as_bytes(), b"\":", value, b"}"].concat());
    FieldChange::Replaced { key: Some(top_level_name(to)), value: within }
}

/// Names what goes, unless it says what is so anyway.
fn report_dropped(name: &str, value: &[u8], lost: &mut DroppedParams) {
    if !(is_empty_value(value) || value == b"false" && name != PARALLEL_TOOL_CALLS) {
        lost.add(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_rules(wording: &ParamRules, body: &str) -> Option<(String, String)> {
        wording.apply(body.as_bytes()).map(|(told, lost)| (String::from_utf8(told).unwrap(), lost.header_value()))
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
        let own = r#"{"reasoning":{"max_tokens":9},"reasoning_effort":"low"}"#;
        assert_eq!(
            apply_rules(&OPENROUTER, own),
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
