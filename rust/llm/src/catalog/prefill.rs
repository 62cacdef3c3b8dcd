//! Whose models go on from the beginning of an answer with which a conversation ends, and how each is told to.

use serde_json::Value;

use super::Provider;
use crate::json::edit;

/// How a provider is told that the last message is a beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrefillMark {
    /// It knows a beginning where it sees one.
    Implicit,
    /// By a field of that message that is true.
    MessageField(&'static str),
    /// The beginning stands in a field of the request, and not among its messages.
    RequestField(&'static str),
}

/// What is known of a provider.
#[derive(Debug)]
pub struct PrefillSupport {
    slug: &'static str,
    /// Whether a model of its goes on. Others begin anew, or refuse a beginning.
    supports_model: fn(&str) -> bool,
    mark: PrefillMark,
    /// What stands in the place of the version in its paths, where it has this elsewhere.
    pub version_segment: Option<&'static str>,
    /// Whether its answer may begin with what it was given.
    pub may_repeat_prefill: bool,
    /// Whether that is so of responses, too, where it has its own.
    supports_responses: bool,
}

const fn row(slug: &'static str, goes_on: fn(&str) -> bool, mark: PrefillMark) -> PrefillSupport {
    PrefillSupport {
        slug,
        supports_model: goes_on,
        mark,
        version_segment: None,
        may_repeat_prefill: false,
        supports_responses: false,
    }
}

// Slug, which models, how they are told.
static ROWS: &[PrefillSupport] = &[
    row("anthropic", is_claude_up_to_4_5, PrefillMark::Implicit),
    row("azure-ai", is_claude_up_to_4_5, PrefillMark::Implicit),
    row("bedrock", is_claude_up_to_4_5, PrefillMark::Implicit),
    row("claude-platform-aws", is_claude_up_to_4_5, PrefillMark::Implicit),
    row("dashscope", is_non_thinking_qwen, PrefillMark::MessageField("partial")),
    PrefillSupport {
        version_segment: Some("/beta"),
        ..row("deepseek", any_model, PrefillMark::MessageField("prefix"))
    },
    row("groq", is_llama_chat_model, PrefillMark::Implicit),
    PrefillSupport { may_repeat_prefill: true, ..row("mistral-ai", any_model, PrefillMark::MessageField("prefix")) },
    // The pretend provider does what its model's name says.
    PrefillSupport {
        supports_responses: true,
        ..row("mock", |model| model.contains("prefix=on"), PrefillMark::Implicit)
    },
    row("moonshot", any_model, PrefillMark::MessageField("partial")),
    row("openrouter", is_claude_up_to_4_5, PrefillMark::Implicit),
    PrefillSupport {
        may_repeat_prefill: true,
        ..row("siliconflow", is_non_reasoning_model, PrefillMark::RequestField("prefix"))
    },
    row("vertex-ai", is_claude_up_to_4_5, PrefillMark::Implicit),
];

/// Of whom nothing is known: a config may know better.
static UNKNOWN_PROVIDER: PrefillSupport = row("", |_| false, PrefillMark::Implicit);

fn any_model(_model: &str) -> bool {
    true
}

/// Models up to 4.5; later ones refuse it.
fn is_claude_up_to_4_5(model: &str) -> bool {
    claude_version(model).is_some_and(|version| version <= (4, 5))
}

/// The version in the name of one of Anthropic's models, whatever stands before and behind it: `claude-opus-4-7` is (4, 7).
/// `None` for other models, and for those whose names have no number.
pub(crate) fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let numbers = name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    // What is longer is a date.
    let mut version = numbers.take_while(|number| *number < 100);
    version.next().map(|major| (major, version.next().unwrap_or(0)))
}

/// Text models that answer without thinking first.
fn is_non_thinking_qwen(model: &str) -> bool {
    model.starts_with("qwen") && !["thinking", "omni", "audio", "-mt", "-ocr"].iter().any(|kind| model.contains(kind))
}

fn is_llama_chat_model(model: &str) -> bool {
    model.contains("llama") && !model.contains("guard")
}

fn is_non_reasoning_model(model: &str) -> bool {
    !["DeepSeek-R1", "Thinking", "QwQ", "QVQ", "-Z1-"].iter().any(|kind| model.contains(kind))
}

impl dyn Provider {
    /// How it is told to go on.
    pub fn prefill_support(&self) -> &'static PrefillSupport {
        find_prefill_support(self.slug())
    }
}

pub(crate) fn find_prefill_support(slug: &str) -> &'static PrefillSupport {
    ROWS.iter().find(|row| row.slug == slug).unwrap_or(&UNKNOWN_PROVIDER)
}

impl PrefillSupport {
    /// Why a model does not go on, if so; `is_response` where its provider is asked for a response of its own.
    pub fn unsupported_reason(&self, model: &str, is_response: bool) -> Option<&'static str> {
        match self.slug {
            "" => Some("nothing says that its provider's models go on"),
            _ if is_response && !self.supports_responses => Some("nothing says that its provider's responses go on"),
            _ if (self.supports_model)(model) => None,
            _ => Some("its model begins anew"),
        }
    }

    /// The body of a chat with its last message marked as a beginning; `None` where there is nothing to mark.
    pub fn mark_prefill(&self, body: &[u8]) -> Option<Vec<u8>> {
        if self.mark == PrefillMark::Implicit {
            return None;
        }
        let Value::Array(mut messages) = edit::pick_values(body, &["messages".to_owned()]).pop()?? else { return None };
        let mut last = messages.pop().filter(|last| last["role"] == "assistant")?;
        let mut fields = Vec::with_capacity(2);
        match self.mark {
            PrefillMark::Implicit => (),
            PrefillMark::MessageField(name) => {
                last[name] = true.into();
                messages.push(last);
            }
            PrefillMark::RequestField(name) => fields.push(edit::json_field(name, &last["content"])),
        }
        fields.push(edit::json_field("messages", &messages.into()));
        edit::set_fields(body, &[], &fields).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supports_prefill(slug: &str, model: &str) -> bool {
        find_prefill_support(slug).unsupported_reason(model, false).is_none()
    }

    #[test]
    fn claude_up_to_4_5_supports_prefill_at_every_provider() {
        for model in [
            "claude-3-5-sonnet-20241022",
            "claude-sonnet-4-20250514",
            "claude-opus-4-1",
            "claude-haiku-4-5-20251001",
            "us.anthropic.claude-3-haiku-20240307-v1:0",
            "anthropic.claude-opus-4-20250514-v1:0",
            "claude-2.1",
        ] {
            assert!(["anthropic", "bedrock", "vertex-ai"].iter().all(|slug| supports_prefill(slug, model)), "{model}");
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
            assert!(!supports_prefill("anthropic", model), "{model}");
        }
    }

    #[test]
    fn reasoning_models_do_not_support_prefill() {
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
            assert_eq!(supports_prefill(slug, model), expected, "{slug} {model}");
        }
        let why = |slug, is_response| find_prefill_support(slug).unsupported_reason("gemma", is_response).unwrap();
        let reasons = std::collections::HashSet::from([why("groq", false), why("groq", true), why("openai", false)]);
        assert_eq!(reasons.len(), 3, "which of them it is can be told");
    }

    #[test]
    fn marks_the_prefill_and_leaves_the_rest_unchanged() {
        const BODY: &str = r#"{ "model":"m", "messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"One"}],"x":1 }"#;
        let marked = |slug| {
            find_prefill_support(slug).mark_prefill(BODY.as_bytes()).map(|body| String::from_utf8(body).unwrap())
        };
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
            assert_eq!(find_prefill_support("mistral-ai").mark_prefill(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn each_row_names_a_known_provider() {
        assert!(ROWS.iter().all(|row| super::super::find_provider(row.slug).is_some()));
    }
}
