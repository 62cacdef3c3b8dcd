//! What providers that speak `OpenAI`'s API call otherwise than `OpenAI` does, or do not take: a table each, written into the
//! bytes of a request. What needs no change stays as it came.

use std::borrow::Cow;

use memchr::memmem;

use crate::{
    chat::call_ids::{self, Form},
    json::{
        edit::{self, FieldChange},
        scan::for_each_field,
    },
    operation::Operation,
    translation::Lost,
};

/// What is said otherwise. Where a body has a field under the provider's own name too, that one is meant.
#[derive(Debug)]
pub struct Wording {
    /// Fields, and what they are called there; behind a dot stands the name within an object.
    pub renames: &'static [(&'static str, &'static str)],
    /// Roles of messages, and what they are there; both as JSON.
    pub roles: &'static [(&'static str, &'static str)],
    /// A field, what it may say, and what it says there; both as JSON.
    pub words: &'static [(&'static str, &'static str, &'static str)],
    /// Fields that are not taken: they are named to the caller.
    pub drops: &'static [&'static str],
    /// Fields that are not taken, and ask for what is done anyway: they go, and nothing is lost by that.
    pub needless: &'static [&'static str],
    /// Fields of messages that are not taken: they are named. A role that has one all the same stands beside it, as JSON.
    pub unheard: &'static [(&'static str, &'static str)],
    /// A field that is not taken in messages, their parts or tools, wherever it stands: it is named.
    pub hint: Option<&'static str>,
    /// Fields whose nothing is another number there: one that says 0 goes, and nothing is lost by that.
    pub neutral: &'static [&'static str],
    /// Numbers, and where their scales begin and end, as JSON: what is beyond is put to the end of the scale, and named.
    pub bounds: &'static [Scale],
    /// Which ids calls of tools may have; the others have another there, and so has what the tools gave back.
    pub call_ids: Option<Form>,
    /// What the assistant says, as JSON, to what tools gave back, where a user must not be the next to speak: that is named.
    pub bridge: Option<&'static str>,
}

/// Everything is called as `OpenAI` calls it.
pub static SAME: Wording = Wording {
    renames: &[],
    roles: &[],
    words: &[],
    drops: &[],
    needless: &[],
    unheard: &[],
    hint: None,
    neutral: &[],
    bounds: &[],
    call_ids: None,
    bridge: None,
};
/// Likewise of completions, whose scales end where they end in chats.
pub(crate) static TEXT: Wording =
    Wording { bounds: &[TEMPERATURE, TOP_P, PRESENCE, FREQUENCY, ("logprobs", "0", "5")], ..SAME };
/// As it was when others became compatible with it.
pub(crate) static USUAL: Wording = Wording { roles: &[DEVELOPER], bounds: SCALES, ..SAME };
/// Likewise, and the limit of an answer has its old name.
pub(crate) static SHORT: Wording = Wording { renames: &[LIMIT], ..USUAL };

/// Likewise, and there is one answer.
pub(crate) static SINGLE: Wording = Wording { bounds: &[TEMPERATURE, TOP_P, PRESENCE, FREQUENCY, ONE], ..SHORT };
/// What is said there was put in its words before.
pub(crate) static PREDIBASE: Wording = Wording { bounds: &[COOLER, TOP_P, ONE], ..SAME };
/// With the limit of an answer by its old name, and a scale of temperatures that ends at 1.
pub(crate) static COOL: Wording = Wording { bounds: &[COOLER, TOP_P, PRESENCE, FREQUENCY], ..SHORT };
pub(crate) static DEEPSEEK: Wording =
    Wording { bounds: &[TEMPERATURE, TOP_P, PRESENCE, FREQUENCY, ("top_logprobs", "0", "20")], ..SHORT };

pub(crate) static PENALISED: Wording =
    Wording { renames: &[LIMIT, PENALTY], neutral: &[PENALTY.0], bounds: &[TEMPERATURE, TOP_P, PRESENCE], ..USUAL };
pub(crate) static PERPLEXITY: Wording =
    Wording { bounds: &[TEMPERATURE, TOP_P, PRESENCE, ONE, ("top_k", "0", "2048")], ..PENALISED };
/// Likewise, of completions.
pub(crate) static PENALISED_TEXT: Wording = Wording { renames: &[PENALTY], neutral: &[PENALTY.0], ..SAME };

/// It refuses whatever it does not know, in messages too.
pub(crate) static MISTRAL: Wording = Wording {
    renames: &[LIMIT, ("seed", "random_seed"), ("safe_mode", "safe_prompt")],
    words: &[("tool_choice", r#""required""#, r#""any""#)],
    drops: &[
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
        SEARCH,
        SAFETY,
        VERBOSITY,
    ],
    // Its streams end with their usage.
    needless: &[STREAM_OPTIONS],
    unheard: &[
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
    hint: Some(CACHE),
    bounds: &[COOLER, TOP_P, PRESENCE, FREQUENCY],
    call_ids: Some(call_ids::MISTRAL),
    bridge: Some(r#"{"role":"assistant","content":"OK."}"#),
    ..USUAL
};
/// Mistral's models where others host them: what their templates refuse.
static MISTRAL_HOSTED: Wording = Wording { call_ids: MISTRAL.call_ids, bridge: MISTRAL.bridge, ..USUAL };
/// Likewise, of texts that become vectors.
pub(crate) static MISTRAL_VECTORS: Wording =
    Wording { renames: &[("dimensions", "output_dimension")], drops: &["user"], ..SAME };
/// Likewise; and that numbers are to be numbers is said by saying nothing.
pub(crate) static VOYAGE_VECTORS: Wording =
    Wording { words: &[("encoding_format", r#""float""#, "null")], ..MISTRAL_VECTORS };
/// It refuses what it does not know.
pub(crate) static FIREWORKS: Wording = Wording {
    drops: &["store", MODALITIES, AUDIO, SEARCH, SAFETY, VERBOSITY],
    bounds: &[TEMPERATURE, TOP_P, PRESENCE, FREQUENCY, ("n", "1", "128"), ("top_k", "1", "128")],
    ..SHORT
};
/// Likewise, of completions.
pub(crate) static FIREWORKS_TEXT: Wording = Wording {
    bounds: &[
        TEMPERATURE,
        TOP_P,
        PRESENCE,
        FREQUENCY,
        ("logprobs", "0", "5"),
        ("n", "1", "128"),
        ("top_k", "1", "128"),
    ],
    ..SAME
};
pub(crate) static OLLAMA: Wording = Wording { renames: &[LIMIT, ("thinking", "think")], ..USUAL };
pub(crate) static OPENROUTER: Wording =
    Wording { renames: &[LIMIT, ("reasoning_effort", "reasoning.effort")], ..USUAL };

/// It refuses what it does not know, in messages too.
pub(crate) static GROQ: Wording = Wording {
    drops: &[
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "store",
        MODALITIES,
        AUDIO,
        SEARCH,
        SAFETY,
        VERBOSITY,
    ],
    unheard: &[
        ("name", ""),
        ("metadata", ""),
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    hint: Some(CACHE),
    ..USUAL
};
/// Likewise.
pub(crate) static CEREBRAS: Wording = Wording {
    drops: &[
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "metadata",
        "prompt_cache_key",
        "service_tier",
        "store",
        PARALLEL,
        MODALITIES,
        AUDIO,
        SEARCH,
        SAFETY,
        VERBOSITY,
    ],
    unheard: &[
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    hint: Some(CACHE),
    bounds: &[TEMPERATURE, TOP_P],
    ..USUAL
};
/// It has learnt to call tools and to keep to a format.
pub(crate) static SAMBANOVA: Wording = Wording {
    drops: &[
        "functions",
        "function_call",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "user",
        "seed",
        "logprobs",
    ],
    bounds: &[TEMPERATURE, TOP_P],
    ..USUAL
};
pub(crate) static LEMONFOX: Wording = Wording {
    drops: &[
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
    ..USUAL
};
pub(crate) static NSCALE: Wording =
    Wording { drops: &["functions", "function_call", "user", "seed", "tools", "tool_choice", STREAM_OPTIONS], ..USUAL };

/// A number, and where its scale begins and ends.
type Scale = (&'static str, &'static str, &'static str);
const SCALES: &[Scale] = &[TEMPERATURE, TOP_P, PRESENCE, FREQUENCY];
const TEMPERATURE: Scale = ("temperature", "0", "2");
const COOLER: Scale = ("temperature", "0", "1");
const TOP_P: Scale = ("top_p", "0", "1");
const PRESENCE: Scale = ("presence_penalty", "-2", "2");
/// So many answers.
const ONE: Scale = ("n", "1", "1");
const FREQUENCY: Scale = ("frequency_penalty", "-2", "2");

const LIMIT: (&str, &str) = ("max_completion_tokens", "max_tokens");
const PENALTY: (&str, &str) = ("frequency_penalty", "repetition_penalty");
const DEVELOPER: (&str, &str) = (r#""developer""#, r#""system""#);
const STREAM_OPTIONS: &str = "stream_options";
const MODALITIES: &str = "modalities";
const AUDIO: &str = "audio";
const SEARCH: &str = "web_search_options";
const SAFETY: &str = "safety_identifier";
const CACHE: &str = "cache_control";
const VERBOSITY: &str = "verbosity";
/// Who says no to it wants something.
const PARALLEL: &str = "parallel_tool_calls";

const MESSAGES: &[u8] = b"messages";
const TOOLS: &[u8] = b"tools";

/// Which of the renamed fields a body has, by their places in the table: a bit each.
#[derive(Default)]
struct Said {
    /// Under `OpenAI`'s name.
    usual: u32,
    /// Under the provider's.
    own: u32,
}

impl Wording {
    /// Whether a request can have anything that is said otherwise.
    pub fn is_same(&self) -> bool {
        self.roles.is_empty() && self.keeps_fields()
    }

    pub(crate) fn takes(&self, name: &str) -> bool {
        !self.drops.contains(&name) && !self.needless.contains(&name)
    }

    fn keeps_fields(&self) -> bool {
        let keeps_all = self.drops.is_empty() && self.needless.is_empty() && self.is_deaf();
        keeps_all && self.renames.is_empty() && self.words.is_empty() && self.bounds.is_empty()
    }

    /// The request in these words, and what it says no longer; `None` where nothing changes.
    pub fn say(&self, body: &[u8]) -> Option<(Vec<u8>, Lost)> {
        let has_role = self.roles.iter().any(|(from, _)| memmem::find(body, from.as_bytes()).is_some());
        if !has_role && self.keeps_fields() {
            return None;
        }
        let (mut said, mut is_due) = (Said::default(), has_role);
        for_each_field(body, |key, at| {
            is_due |= self.concerns(key) || self.end_of(key, &body[at.clone()]).is_some();
            if body[at] != *b"null" {
                for (index, (from, to)) in self.renames.iter().enumerate() {
                    said.usual |= u32::from(from.as_bytes() == key) << index;
                    said.own |= u32::from(outermost(to).as_bytes() == key) << index;
                }
            }
            Ok(())
        })
        .ok()?;
        if !is_due {
            return None;
        }
        let mut lost = Lost::default();
        let told = edit::map_fields(body, |key, value| self.change(key, value, &said, &mut lost)).ok()?;
        (told != body).then_some((told, lost))
    }

    /// Where the scale of a number ends that it is beyond.
    fn end_of(&self, key: &[u8], value: &[u8]) -> Option<(&'static str, &'static str)> {
        let (name, least, most) = self.bounds.iter().find(|(name, ..)| name.as_bytes() == key)?;
        bounded(value, least, most).map(|end| (*name, end))
    }

    fn concerns(&self, key: &[u8]) -> bool {
        self.renames.iter().any(|(from, _)| from.as_bytes() == key)
            || self.words.iter().any(|(name, ..)| name.as_bytes() == key)
            || self.drops.iter().chain(self.needless).any(|name| name.as_bytes() == key)
            || !self.is_deaf() && key == MESSAGES
            || self.hint.is_some() && key == TOOLS
    }

    fn change(&self, key: &[u8], value: &[u8], said: &Said, lost: &mut Lost) -> FieldChange {
        if let Some(name) = self.drops.iter().find(|name| name.as_bytes() == key) {
            lose(name, value, lost);
            return FieldChange::Removed;
        }
        let is_among = |names: &[&str]| names.iter().any(|name| name.as_bytes() == key);
        if is_among(self.needless) || is_among(self.neutral) && is_zero(value) {
            return FieldChange::Removed;
        }
        if let Some((name, end)) = self.end_of(key, value) {
            lost.add(name);
            return FieldChange::Replaced { key: None, value: Some(end.as_bytes().to_vec()) };
        }
        for (index, (from, to)) in self.renames.iter().enumerate() {
            let (is_usual, is_own) = ((said.usual >> index) & 1 == 1, (said.own >> index) & 1 == 1);
            if from.as_bytes() == key {
                if is_own {
                    lose(from, value, lost);
                    return FieldChange::Removed;
                }
                return renamed(to, value);
            }
            if is_usual && !is_own && outermost(to).as_bytes() == key {
                // It says null, and would say so beside the other.
                return FieldChange::Removed;
            }
        }
        let is_said = |(name, from, _): &&(&str, &str, &str)| name.as_bytes() == key && from.as_bytes() == value;
        if let Some((_, _, to)) = self.words.iter().find(is_said) {
            return FieldChange::Replaced { key: None, value: Some(to.as_bytes().to_vec()) };
        }
        if key == TOOLS
            && let Some(told) = self.unhinted(value, lost)
        {
            return FieldChange::Replaced { key: None, value: Some(told) };
        }
        if key == MESSAGES && !(self.roles.is_empty() && self.is_deaf()) {
            let heard = edit::map_item_fields(value, |message, key, said| self.heard(message, key, said, lost));
            let told = edit::replace_values(&heard, "role", self.roles);
            return FieldChange::Replaced { key: None, value: Some(self.bridged(told, lost)) };
        }
        FieldChange::Unchanged
    }

    /// Whether fields of messages stay as they are, and nothing comes between two of them.
    fn is_deaf(&self) -> bool {
        self.unheard.is_empty() && self.hint.is_none() && self.call_ids.is_none() && self.bridge.is_none()
    }

    /// Objects in a list without the field that is taken nowhere; `None` where they have none.
    fn unhinted(&self, items: &[u8], lost: &mut Lost) -> Option<Vec<u8>> {
        let hint = self.hint?.as_bytes();
        memmem::find(items, hint)?;
        Some(edit::map_item_fields(
            items,
            |_, key, said| if key == hint { self.forget(said, lost) } else { FieldChange::Unchanged },
        ))
    }

    fn forget(&self, said: &[u8], lost: &mut Lost) -> FieldChange {
        if let Some(hint) = self.hint.filter(|_| !says_nothing(said)) {
            lost.add(hint);
        }
        FieldChange::Removed
    }

    /// What becomes of a field of a message.
    fn heard(&self, message: &[u8], key: &[u8], said: &[u8], lost: &mut Lost) -> FieldChange {
        if self.is_unheard(message, key, said, lost) {
            return FieldChange::Removed;
        }
        match (self.call_ids, key) {
            (_, b"content") => match self.unhinted(said, lost) {
                Some(told) => FieldChange::Replaced { key: None, value: Some(told) },
                None => FieldChange::Unchanged,
            },
            _ if self.hint.is_some_and(|hint| hint.as_bytes() == key) => self.forget(said, lost),
            (Some(form), b"tool_call_id") => called(form, said),
            (Some(form), b"tool_calls") => {
                let calls =
                    edit::map_item_fields(
                        said,
                        |_, key, id| if key == b"id" { called(form, id) } else { FieldChange::Unchanged },
                    );
                FieldChange::Replaced { key: None, value: Some(calls) }
            }
            _ => FieldChange::Unchanged,
        }
    }

    /// The messages, with somebody's words between those of a tool and of a user.
    fn bridged(&self, messages: Vec<u8>, lost: &mut Lost) -> Vec<u8> {
        let Some(bridge) = self.bridge else { return messages };
        edit::insert_between(&messages, bridge, |before, after| {
            let meets = is_of(before, r#""tool""#) && is_of(after, r#""user""#);
            if meets {
                lost.add("messages.assistant");
            }
            meets
        })
    }

    /// Whether a field of a message goes; what it said is named.
    fn is_unheard(&self, message: &[u8], key: &[u8], said: &[u8], lost: &mut Lost) -> bool {
        let Some((name, role)) = self.unheard.iter().find(|(name, _)| name.as_bytes() == key) else { return false };
        if !role.is_empty() && is_of(message, role) {
            return false;
        }
        if !says_nothing(said) {
            lost.add(&format!("messages.{name}"));
        }
        true
    }
}

/// Of Azure, which hosts models of many makers and has usual words for them.
pub(crate) fn of_many(usual: &'static Wording, operation: Operation, model: &str) -> &'static Wording {
    let is_mistrals = operation == Operation::ChatComplete && call_ids::of_chat(model) == call_ids::MISTRAL;
    if is_mistrals { &MISTRAL_HOSTED } else { usual }
}

/// An id of a call, as JSON, where it must be another.
fn called(form: Form, id: &[u8]) -> FieldChange {
    let Ok(id) = serde_json::from_slice::<String>(id) else { return FieldChange::Unchanged };
    match form.fit(&id) {
        Cow::Borrowed(_) => FieldChange::Unchanged,
        Cow::Owned(fitted) => FieldChange::Replaced { key: None, value: Some(format!("\"{fitted}\"").into_bytes()) },
    }
}

/// Whether a message has this role.
fn is_of(message: &[u8], role: &str) -> bool {
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
fn bounded(value: &[u8], least: &'static str, most: &'static str) -> Option<&'static str> {
    let number = |text: &[u8]| serde_json::from_slice::<f64>(text).ok();
    let said = number(value)?;
    if said < number(least.as_bytes())? {
        return Some(least);
    }
    (said > number(most.as_bytes())?).then_some(most)
}

fn says_nothing(value: &[u8]) -> bool {
    matches!(value, b"null" | b"[]" | b"{}" | b"\"\"")
}

/// The name of a field of the body itself.
fn outermost(name: &'static str) -> &'static str {
    name.split_once('.').map_or(name, |(outer, _)| outer)
}

fn renamed(to: &'static str, value: &[u8]) -> FieldChange {
    let within = to.split_once('.').map(|(_, within)| [b"{\"", within.as_bytes(), b"\":", value, b"}"].concat());
    FieldChange::Replaced { key: Some(outermost(to)), value: within }
}

/// Names what goes, unless it says what is so anyway.
fn lose(name: &str, value: &[u8], lost: &mut Lost) {
    if !(says_nothing(value) || value == b"false" && name != PARALLEL) {
        lost.add(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(wording: &Wording, body: &str) -> Option<(String, String)> {
        wording.say(body.as_bytes()).map(|(told, lost)| (String::from_utf8(told).unwrap(), lost.text()))
    }

    #[test]
    fn what_has_nothing_to_change_stays_as_it_came() {
        let body =
            r#"{"model":"m","messages":[{"role":"user","content":"\"max_completion_tokens\" developer"}],"n":1}"#;
        for wording in [&SAME, &USUAL, &SHORT, &MISTRAL, &OPENROUTER, &CEREBRAS] {
            assert_eq!(told(wording, body), None);
        }
        assert_eq!(told(&USUAL, r#"{"messages":[{"role":"user","content":["developer"]}]}"#), None);
        assert_eq!(told(&SHORT, r#"{"max_completion_tokens":1"#), None);
        assert_eq!(told(&SAME, r#"{"messages":[{"role":"developer"}]}"#), None);
    }

    #[test]
    fn the_providers_own_name_is_meant_where_it_stands_too() {
        let both = r#"{"max_completion_tokens":1, "max_tokens":2}"#;
        assert_eq!(told(&SHORT, both), Some((r#"{ "max_tokens":2}"#.into(), "max_completion_tokens".into())));
        let null = r#"{"max_tokens":null,"max_completion_tokens":1}"#;
        assert_eq!(told(&SHORT, null), Some((r#"{"max_tokens":1}"#.into(), String::new())));
        let own = r#"{"reasoning":{"max_tokens":9},"reasoning_effort":"low"}"#;
        assert_eq!(
            told(&OPENROUTER, own),
            Some((r#"{"reasoning":{"max_tokens":9}}"#.into(), "reasoning_effort".into()))
        );
    }

    #[test]
    fn what_goes_is_named_unless_it_says_what_is_so_anyway() {
        let body = r#"{"model":"m","logprobs":false,"parallel_tool_calls":false,"logit_bias":{}}"#;
        assert_eq!(told(&CEREBRAS, body), Some((r#"{"model":"m"}"#.into(), "parallel_tool_calls".into())));
    }

    #[test]
    fn a_role_changes_and_the_text_beside_it_does_not() {
        let body = r#"{"messages":[ {"content":"developer","role":"developer","name":"developer"} ],"x":"developer"}"#;
        let expected = body.replace(r#""role":"developer""#, r#""role":"system""#);
        assert_eq!(told(&USUAL, body), Some((expected, String::new())));
    }
}
