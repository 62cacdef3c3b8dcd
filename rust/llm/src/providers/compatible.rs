//! The providers that speak `OpenAI`'s API: one row each.

use super::{
    BATCHES, CHAT, COMPLETE, EMBED, FILES, FINE_TUNING, Group, IMAGE, IMAGE_EDIT, Known, MESSAGES, OCR, Provider,
    RESPOND, RESPONSES, SPEECH, TRANSCRIBE, options::sent,
};
use crate::operation::Operation;

pub(super) struct Compatible {
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [Group],
    options: &'static [Known],
}

impl Provider for Compatible {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        self.base_url
    }

    fn version(&self) -> &'static str {
        self.version
    }

    fn offers(&self) -> &'static [Group] {
        self.offers
    }

    fn options(&self) -> &'static [Known] {
        self.options
    }
}

const fn row(
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [Group],
) -> Compatible {
    Compatible { slug, base_url, version, offers, options: &[] }
}

// Slug, base URL, what stands between it and an operation's path, what is offered.
pub(super) static ROWS: &[Compatible] = &[
    row("deepseek", "https://api.deepseek.com", "/v1", &[CHAT]),
    row("fireworks-ai", "https://api.fireworks.ai/inference/v1", "", &[CHAT, COMPLETE, EMBED]),
    row("groq", "https://api.groq.com/openai/v1", "", &[CHAT, RESPOND, SPEECH, TRANSCRIBE]),
    row("mistral-ai", "https://api.mistral.ai/v1", "", &[CHAT, EMBED, OCR]),
    // The pretend provider of this project: it speaks both dialects; its address is a setting.
    Compatible { options: EVERY_OPTION, ..row("mock", "", "", EVERYTHING) },
    // Runs beside the caller: a custom host says where.
    row("ollama", "", "/v1", &[CHAT, EMBED]),
    row("openrouter", "https://openrouter.ai/api", "/v1", &[CHAT, RESPOND]),
    row("together-ai", "https://api.together.xyz", "/v1", &[CHAT, COMPLETE, EMBED]),
];

/// As real providers of either dialect have them.
const EVERY_OPTION: &[Known] = &[
    sent("openai_organization", "openai-organization"),
    sent("openai_project", "openai-project"),
    sent("openai_beta", "openai-beta"),
    sent("anthropic_version", "anthropic-version"),
    sent("anthropic_beta", "anthropic-beta"),
];

const EVERYTHING: &[Group] = &[
    CHAT,
    MESSAGES,
    RESPONSES,
    EMBED,
    COMPLETE,
    IMAGE,
    IMAGE_EDIT,
    SPEECH,
    TRANSCRIBE,
    FILES,
    BATCHES,
    FINE_TUNING,
    OCR,
    &[Operation::Rerank],
];
