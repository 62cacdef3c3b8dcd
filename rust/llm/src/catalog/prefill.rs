//! Whose models go on from the beginning of an answer with which a conversation ends, and how each is told to.

use serde_json::Value;

use super::Provider;
use crate::json::edit;

/// How a provider is told that the last message is a beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// It knows a beginning where it sees one.
    Nothing,
    /// By a field of that message that is true.
    Message(&'static str),
    /// The beginning stands in a field of the request, and not among its messages.
    Request(&'static str),
}

/// What is known of a provider.
#[derive(Debug)]
pub struct Continuing {
    slug: &'static str,
    /// Whether a model of its goes on. Others begin anew, or refuse a beginning.
    goes_on: fn(&str) -> bool,
    mark: Mark,
    /// What stands in the place of the version in its paths, where it has this elsewhere.
    pub version: Option<&'static str>,
    /// Whether its answer may begin with what it was given.
    pub repeats: bool,
    /// Whether that is so of responses, too, where it has its own.
    in_responses: bool,
}

const fn row(slug: &'static str, goes_on: fn(&str) -> bool, mark: Mark) -> Continuing {
    Continuing { slug, goes_on, mark, version: None, repeats: false, in_responses: false }
}

// Slug, which models, how they are told.
static ROWS: &[Continuing] = &[
    row("anthropic", claude, Mark::Nothing),
    row("azure-ai", claude, Mark::Nothing),
    row("bedrock", claude, Mark::Nothing),
    row("claude-platform-aws", claude, Mark::Nothing),
    row("dashscope", qwen, Mark::Message("partial")),
    Continuing { version: Some("/beta"), ..row("deepseek", any, Mark::Message("prefix")) },
    row("groq", llama, Mark::Nothing),
    Continuing { repeats: true, ..row("mistral-ai", any, Mark::Message("prefix")) },
    // The pretend provider does what its model's name says.
    Continuing { in_responses: true, ..row("mock", |model| model.contains("prefix=on"), Mark::Nothing) },
    row("moonshot", any, Mark::Message("partial")),
    row("openrouter", claude, Mark::Nothing),
    Continuing { repeats: true, ..row("siliconflow", does_not_reason, Mark::Request("prefix")) },
    row("vertex-ai", claude, Mark::Nothing),
];

/// Of whom nothing is known: a config may know better.
static UNKNOWN: Continuing = row("", |_| false, Mark::Nothing);

fn any(_model: &str) -> bool {
    true
}

/// Models up to 4.5; later ones refuse it.
fn claude(model: &str) -> bool {
    version_of_claude(model).is_some_and(|version| version <= (4, 5))
}

/// The version in the name of one of Anthropic's models, whatever stands before and behind it: `claude-opus-4-7` is (4, 7).
/// `None` for other models, and for those whose names have no number.
pub(crate) fn version_of_claude(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let numbers = name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    // What is longer is a date.
    let mut version = numbers.take_while(|number| *number < 100);
    version.next().map(|major| (major, version.next().unwrap_or(0)))
}

/// Text models that answer without thinking first.
fn qwen(model: &str) -> bool {
    model.starts_with("qwen") && !["thinking", "omni", "audio", "-mt", "-ocr"].iter().any(|kind| model.contains(kind))
}

fn llama(model: &str) -> bool {
    model.contains("llama") && !model.contains("guard")
}

fn does_not_reason(model: &str) -> bool {
    !["DeepSeek-R1", "Thinking", "QwQ", "QVQ", "-Z1-"].iter().any(|kind| model.contains(kind))
}

impl dyn Provider {
    /// How it is told to go on.
    pub fn continuing(&self) -> &'static Continuing {
        of(self.slug())
    }
}

pub(crate) fn of(slug: &str) -> &'static Continuing {
    ROWS.iter().find(|row| row.slug == slug).unwrap_or(&UNKNOWN)
}

impl Continuing {
    /// Why a model does not go on, if so; `is_response` where its provider is asked for a response of its own.
    pub fn refusal(&self, model: &str, is_response: bool) -> Option<&'static str> {
        match self.slug {
            "" => Some("nothing says that its provider's models go on"),
            _ if is_response && !self.in_responses => Some("nothing says that its provider's responses go on"),
            _ if (self.goes_on)(model) => None,
            _ => Some("its model begins anew"),
        }
    }

    /// The body of a chat with its last message marked as a beginning; `None` where there is nothing to mark.
    pub fn marked(&self, body: &[u8]) -> Option<Vec<u8>> {
        if self.mark == Mark::Nothing {
            return None;
        }
        let Value::Array(mut messages) = edit::pick_values(body, &["messages".to_owned()]).pop()?? else { return None };
        let mut last = messages.pop().filter(|last| last["role"] == "assistant")?;
        let mut fields = Vec::with_capacity(2);
        match self.mark {
            Mark::Nothing => (),
            Mark::Message(name) => {
                last[name] = true.into();
                messages.push(last);
            }
            Mark::Request(name) => fields.push(edit::json_field(name, &last["content"])),
        }
        fields.push(edit::json_field("messages", &messages.into()));
        edit::set_fields(body, &[], &fields).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_on(slug: &str, model: &str) -> bool {
        of(slug).refusal(model, false).is_none()
    }

    #[test]
    fn claude_up_to_four_and_a_half_goes_on_from_a_beginning_wherever_it_is_served() {
        for model in [
            "claude-3-5-sonnet-20241022",
            "claude-sonnet-4-20250514",
            "claude-opus-4-1",
            "claude-haiku-4-5-20251001",
            "us.anthropic.claude-3-haiku-20240307-v1:0",
            "anthropic.claude-opus-4-20250514-v1:0",
            "claude-2.1",
        ] {
            assert!(["anthropic", "bedrock", "vertex-ai"].iter().all(|slug| goes_on(slug, model)), "{model}");
        }
        for model in [
            "claude-opus-4-6",
            "us.anthropic.claude-opus-4-6-v1",
            "claude-sonnet-4-6",
            "claude-opus-4-7-20270101",
            "claude-next",
            "claude-opus-5",
            "gpt-5",
            "",
        ] {
            assert!(!goes_on("anthropic", model), "{model}");
        }
    }

    #[test]
    fn models_that_think_first_begin_anew() {
        for (slug, model, expected) in [
            ("dashscope", "qwen-plus", true),
            ("dashscope", "qwen3-235b-a22b-thinking-2507", false),
            ("dashscope", "deepseek-v3", false),
            ("groq", "llama-3.3-70b-versatile", true),
            ("groq", "openai/gpt-oss-120b", false),
            ("siliconflow", "deepseek-ai/DeepSeek-V2.5", true),
            ("siliconflow", "deepseek-ai/DeepSeek-R1", false),
            ("openrouter", "anthropic/claude-3.5-sonnet", true),
            ("openrouter", "openai/gpt-4o", false),
            ("moonshot", "kimi-k2.5", true),
            ("openai", "gpt-4o", false),
        ] {
            assert_eq!(goes_on(slug, model), expected, "{slug} {model}");
        }
        let why = |slug, is_response| of(slug).refusal("gemma", is_response).unwrap();
        let reasons = std::collections::HashSet::from([why("groq", false), why("groq", true), why("openai", false)]);
        assert_eq!(reasons.len(), 3, "which of them it is can be told");
    }

    #[test]
    fn a_beginning_is_marked_as_its_provider_wants_it_and_all_else_stays() {
        const BODY: &str = r#"{ "model":"m", "messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"One"}],"x":1 }"#;
        let marked = |slug| of(slug).marked(BODY.as_bytes()).map(|body| String::from_utf8(body).unwrap());
        let with = |field: &str| BODY.replace("\"One\"", &format!("\"One\",\"{field}\":true"));
        assert_eq!(marked("mistral-ai"), Some(with("prefix")));
        assert_eq!(marked("deepseek"), Some(with("prefix")));
        assert_eq!(marked("moonshot"), Some(with("partial")));
        assert_eq!(marked("dashscope"), Some(with("partial")));
        let beside = r#"{ "model":"m", "messages":[{"role":"user","content":"Hi"}],"x":1,"prefix":"One" }"#;
        assert_eq!(marked("siliconflow").as_deref(), Some(beside));
        for slug in ["anthropic", "groq", "mock", "openai"] {
            assert_eq!(marked(slug), None, "{slug}");
        }
        for body in
            [r#"{"messages":[{"role":"user","content":"Hi"}]}"#, r#"{"prompt":"Hi"}"#, "[]", r#"{"messages":[]}"#]
        {
            assert_eq!(of("mistral-ai").marked(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn every_row_is_a_providers() {
        assert!(ROWS.iter().all(|row| super::super::find(row.slug).is_some()));
    }
}
