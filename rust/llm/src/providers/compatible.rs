//! The providers that speak `OpenAI`'s API: one row each.

use super::Provider;

pub(super) struct Compatible {
    slug: &'static str,
    base_url: &'static str,
}

impl Provider for Compatible {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        self.base_url
    }
}

const fn row(slug: &'static str, base_url: &'static str) -> Compatible {
    Compatible { slug, base_url }
}

pub(super) static ROWS: &[Compatible] = &[
    row("deepseek", "https://api.deepseek.com/v1"),
    row("fireworks-ai", "https://api.fireworks.ai/inference/v1"),
    row("groq", "https://api.groq.com/openai/v1"),
    row("mistral-ai", "https://api.mistral.ai/v1"),
    // The pretend provider of this project: it speaks both dialects; its address is a setting.
    row("mock", ""),
    // Runs beside the caller: a custom host says where.
    row("ollama", ""),
    row("openai", "https://api.openai.com/v1"),
    row("openrouter", "https://openrouter.ai/api/v1"),
    row("together-ai", "https://api.together.xyz/v1"),
];
