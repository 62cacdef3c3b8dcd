//! Assistant prefill: which models continue a trailing assistant message, and how each provider expects it to be
//! marked.

use serde_json::Value;

use crate::{chat::claude_version::claude_version, json::edit};

/// How a request marks its last message as a prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrefillMark {
    /// No mark: the provider treats a trailing assistant message as a prefill.
    Implicit,
    /// A field of the message with this name is set to true.
    MessageField(&'static str),
    /// The prefill moves from the messages into a request field with this name.
    RequestField(&'static str),
}

/// Prefill support of a provider.
#[derive(Debug, Clone, Copy)]
pub struct PrefillSupport {
    /// False for providers whose support nobody has checked. A config may still enable prefill for them.
    pub(crate) is_known: bool,
    /// Returns true if a model continues a prefill. Other models start a new response or reject the request.
    pub(crate) supports_model: fn(&str) -> bool,
    pub(crate) mark: PrefillMark,
    /// Version segment that replaces the usual one in the path, if prefill needs another API version.
    pub version_segment: Option<&'static str>,
    /// True if the response may begin with a copy of the prefill.
    pub may_repeat_prefill: bool,
    /// True if the provider's native Responses API supports prefill as well.
    pub(crate) supports_responses: bool,
}

pub(crate) fn any_model(_model: &str) -> bool {
    true
}

/// Returns true for Claude models up to 4.5; later ones reject a prefill.
pub(crate) fn is_claude_up_to_4_5(model: &str) -> bool {
    claude_version(model).is_some_and(|version| version <= (4, 5))
}

/// Returns true for Qwen text models that respond without thinking first.
pub(crate) fn is_non_thinking_qwen(model: &str) -> bool {
    model.starts_with("qwen") && !["thinking", "omni", "audio", "-mt", "-ocr"].iter().any(|kind| model.contains(kind))
}

pub(crate) fn is_llama_chat_model(model: &str) -> bool {
    model.contains("llama") && !model.contains("guard")
}

pub(crate) fn is_non_reasoning_model(model: &str) -> bool {
    !["DeepSeek-R1", "Thinking", "QwQ", "QVQ", "-Z1-"].iter().any(|kind| model.contains(kind))
}

impl PrefillSupport {
    pub(crate) const UNKNOWN: Self = Self { is_known: false, ..Self::new(|_| false, PrefillMark::Implicit) };

    pub(crate) const fn new(supports_model: fn(&str) -> bool, mark: PrefillMark) -> Self {
        Self {
            is_known: true,
            supports_model,
            mark,
            version_segment: None,
            may_repeat_prefill: false,
            supports_responses: false,
        }
    }

    /// Returns the reason why a model cannot continue a prefill; `None` if it can. `is_response` is true for a request
    /// to the provider's native Responses API.
    pub fn unsupported_reason(&self, model: &str, is_response: bool) -> Option<&'static str> {
        match is_response {
            _ if !self.is_known => Some("its provider is not known to continue a partial response"),
            true if !self.supports_responses => {
                Some("its provider's Responses API is not known to continue a partial response")
            }
            _ if (self.supports_model)(model) => None,
            _ => Some("its model does not continue a partial response"),
        }
    }

    /// Returns the chat body with its last message marked as a prefill. `None` if the provider needs no mark, or if the
    /// last message is not the assistant's.
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
    use crate::catalog;

    fn find_prefill_support(slug: &str) -> &'static PrefillSupport {
        &catalog::find_provider(slug).unwrap().row().prefill
    }

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
        let reason = |slug, is_response| find_prefill_support(slug).unsupported_reason("gemma", is_response).unwrap();
        let reasons =
            std::collections::HashSet::from([reason("groq", false), reason("groq", true), reason("openai", false)]);
        assert_eq!(reasons.len(), 3, "each reason is distinct");
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
        let hints = r#"{ "model":"m", "messages":[{"role":"user","content":"Hi"}],"x":1,"prefix":"One" }"#;
        assert_eq!(marked("siliconflow").as_deref(), Some(hints));
        for slug in ["anthropic", "groq", "mock", "openai"] {
            assert_eq!(marked(slug), None, "{slug}");
        }
        for body in
            [r#"{"messages":[{"role":"user","content":"Hi"}]}"#, r#"{"prompt":"Hi"}"#, "[]", r#"{"messages":[]}"#]
        {
            assert_eq!(find_prefill_support("mistral-ai").mark_prefill(body.as_bytes()), None, "{body}");
        }
    }
}
