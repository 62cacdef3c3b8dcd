//! The providers that speak `OpenAI`'s API: one row each.

use super::{
    BATCHES, CHAT, COMPLETE, EMBED, FILES, FINE_TUNING, Group, IMAGE, IMAGE_EDIT, Known, MESSAGES, OCR, Provider,
    RERANK, RESPOND, RESPONSES, SPEECH, STORED, TRANSCRIBE, by_chat, options::sent,
};
use crate::{
    operation::Operation,
    translation::wires::{Wire, chat},
};

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

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        by_chat(self.offers, operation).then_some(&chat::COMPATIBLE)
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
    row("302ai", "https://api.302.ai", "/v1", &[CHAT]),
    row("aibadgr", "https://aibadgr.com/api/v1", "", &[CHAT]),
    row("anyscale", "https://api.endpoints.anyscale.com/v1", "", &[CHAT, COMPLETE, EMBED]),
    row("cerebras", "https://api.cerebras.ai/v1", "", &[CHAT]),
    row("cometapi", "https://api.cometapi.com/v1", "", &[CHAT, EMBED]),
    row("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "", &[CHAT, EMBED]),
    row("deepbricks", "https://api.deepbricks.ai/v1", "", &[CHAT, IMAGE]),
    row("deepinfra", "https://api.deepinfra.com/v1/openai", "", &[CHAT]),
    row("deepseek", "https://api.deepseek.com", "/v1", &[CHAT]),
    row("featherless-ai", "https://api.featherless.ai/v1", "", &[CHAT, COMPLETE]),
    row("fireworks-ai", "https://api.fireworks.ai/inference/v1", "", &[CHAT, COMPLETE, EMBED]),
    row("github", "https://models.inference.ai.azure.com", "", &[CHAT, COMPLETE, EMBED]),
    row("groq", "https://api.groq.com/openai/v1", "", &[CHAT, RESPOND, SPEECH, TRANSCRIBE]),
    row("huggingface", "https://router.huggingface.co", "/v1", &[CHAT]),
    row("hyperbolic", "https://api.hyperbolic.xyz", "/v1", &[CHAT]),
    row("inference-net", "https://api.inference.net/v1", "", &[CHAT]),
    row("iointelligence", "https://api.intelligence.io.solutions/api/v1", "", &[CHAT, EMBED, RESPOND]),
    row("jina", "https://api.jina.ai/v1", "", &[EMBED, RERANK]),
    row("kluster-ai", "https://api.kluster.ai/v1", "", &[CHAT, EMBED]),
    row("krutrim", "https://cloud.olakrutrim.com/v1", "", &[CHAT]),
    row("lambda", "https://api.lambdalabs.com/v1", "", &[CHAT, COMPLETE]),
    row("lemonfox-ai", "https://api.lemonfox.ai/v1", "", &[CHAT, TRANSCRIBE]),
    row("lepton", "https://api.lepton.ai", "/api/v1", &[CHAT, COMPLETE]),
    row("lingyi", "https://api.lingyiwanwu.com", "/v1", &[CHAT]),
    row("matterai", "https://api.matterai.so/v1", "", &[CHAT]),
    row("meshy", "https://api.meshy.ai/openapi/v1", "", &[]),
    row("milvus", "", "", &[]),
    row("mistral-ai", "https://api.mistral.ai/v1", "", &[CHAT, EMBED, OCR]),
    // The pretend provider of this project: it speaks both dialects; its address is a setting.
    Compatible { options: EVERY_OPTION, ..row("mock", "", "", EVERYTHING) },
    row("modal", "https://api.modal.com/v1", "", &[CHAT, COMPLETE]),
    row("moonshot", "https://api.moonshot.cn", "/v1", &[CHAT]),
    row("ncompass", "https://api.ncompass.tech/v1", "", &[CHAT]),
    row("nebius", "https://api.studio.nebius.ai/v1", "", &[CHAT, COMPLETE, EMBED]),
    row("nextbit", "https://api.nextbit256.com/v1", "", &[CHAT, COMPLETE]),
    row("novita-ai", "https://api.novita.ai/v3/openai", "/v1", &[CHAT, COMPLETE]),
    row("nscale", "https://inference.api.nscale.com/v1", "", &[CHAT]),
    // Runs beside the caller: a custom host says where.
    row("ollama", "", "/v1", &[CHAT, EMBED]),
    row("openrouter", "https://openrouter.ai/api", "/v1", &[CHAT, RESPOND]),
    row("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", "", &[CHAT]),
    row("perplexity-ai", "https://api.perplexity.ai", "", &[CHAT]),
    row("recraft-ai", "https://external.api.recraft.ai/v1", "", &[IMAGE]),
    row("replicate", "https://api.replicate.com/v1", "", &[]),
    row("sambanova", "https://api.sambanova.ai", "/v1", &[CHAT]),
    row("siliconflow", "https://api.siliconflow.cn/v1", "", &[CHAT, EMBED]),
    row("together-ai", "https://api.together.xyz", "/v1", &[CHAT, COMPLETE, EMBED]),
    row("tripo3d", "https://api.tripo3d.ai/v2/openapi", "", &[]),
    row("upstage", "https://api.upstage.ai/v1/solar", "", &[CHAT, EMBED]),
    row("voyage", "https://api.voyageai.com/v1", "", &[EMBED, RERANK]),
    row("x-ai", "https://api.x.ai/v1", "", &[CHAT, COMPLETE, EMBED, RESPOND, STORED]),
    row("z-ai", "https://api.z.ai/api/paas/v4", "", &[CHAT]),
    row("zhipu", "https://open.bigmodel.cn/api/paas/v4", "", &[CHAT, EMBED]),
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
    RERANK,
];
