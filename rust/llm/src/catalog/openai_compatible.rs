//! The providers that speak `OpenAI`'s API: one row each.

use super::{
    Asked, BATCHES, CHAT, COMPLETE, Credential, EMBED, FILES, FINE_TUNING, Group, IMAGE, IMAGE_EDIT, Known, MESSAGES,
    OCR, Options, Provider, REALTIME, RERANK, RESPOND, RESPONSES, SPEECH, STORED, TRANSCRIBE, by_openai, openai_path,
    options::{known, sent},
    write_path,
};
use crate::catalog::{
    param_map::{
        self, CEREBRAS, COOL, DEEPSEEK, GROQ, LEMONFOX, MISTRAL, MISTRAL_VECTORS, NSCALE, OLLAMA, OPENROUTER,
        PENALISED, PENALISED_TEXT, PERPLEXITY, SAMBANOVA, SAME, SHORT, SINGLE, TEXT, USUAL, VOYAGE_VECTORS, Wording,
    },
    path_segment,
};
use crate::{
    chat::providers::{Wire, openai_chat, triton},
    embeddings::embedding_formats,
    images::image_formats::{self, Painting},
    operation::Operation,
    rerank::rerank_formats,
};

#[derive(Clone, Copy)]
pub(crate) struct Compatible {
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [Group],
    options: &'static [Known],
    credential: Credential,
    /// How images are asked for, and at which path, where that is not `OpenAI`'s.
    paints: Option<(&'static Painting, &'static str)>,
    /// What it calls otherwise in chats, in completions, and of texts that become vectors.
    wordings: [&'static Wording; 3],
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

    fn base(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        if operation == Operation::Models && self.slug == "bytez" {
            // Of the API that is not OpenAI's.
            return Ok(Some("https://api.bytez.com/models/v2/list".to_owned()));
        }
        Ok(options.get(ENDPOINT.key).map(|url| url.trim_end_matches('/').to_owned()))
    }

    fn takes_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        self.takes_usage_options()
    }

    fn wording(&self, operation: Operation) -> &'static Wording {
        let [chat, complete, embed] = self.wordings;
        match operation {
            Operation::Complete => complete,
            Operation::Embed => embed,
            _ => chat,
        }
    }

    fn wording_of(&self, operation: Operation, model: &str) -> &'static Wording {
        let usual = self.wording(operation);
        if self.slug == "github" { param_map::of_many(usual, operation, model) } else { usual }
    }

    fn has_own_ends(&self) -> bool {
        !ENDS_AS_OPENAI.contains(&self.slug)
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        let is_versioned = operation == Operation::CreateModelResponse && self.slug == "perplexity-ai";
        // Of all that it has, this alone is below a version.
        let own = is_versioned.then_some("/v1/responses");
        own.or_else(|| by_openai(self.offers, operation).then(|| openai_path(operation)))
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match self.paints {
            _ if operation == Operation::Models && BARE_LISTS.contains(&self.slug) => Some(&openai_chat::COMPATIBLE),
            _ if self.completes(operation) => Some(&triton::Triton),
            _ if operation == Operation::Rerank && self.slug == "voyage" => Some(&rerank_formats::VOYAGE),
            _ if operation.embeds() && self.sees(model) => Some(&embedding_formats::MULTIMODAL),
            Some((painting, _)) if operation == Operation::ImageGenerate => Some(painting),
            _ if self.slug == "github" => {
                by_openai(self.offers, operation).then(|| openai_chat::of_many(model) as &dyn Wire)
            }
            _ if WANTS_THOUGHTS.contains(&self.slug) => {
                by_openai(self.offers, operation).then_some(&openai_chat::THOUGHTFUL)
            }
            _ if self.slug == "openrouter" => by_openai(self.offers, operation).then_some(&openai_chat::DETAILED),
            _ if !self.takes_usage_options() => by_openai(self.offers, operation).then_some(&openai_chat::UNASKED),
            _ => by_openai(self.offers, operation).then_some(&openai_chat::COMPATIBLE),
        }
    }

    fn wire_at(
        &self,
        operation: Operation,
        model: &str,
        (options, _prefix): (&Options, &str),
    ) -> Option<&'static dyn Wire> {
        if continues_itself(operation, options) { None } else { self.wire(operation, model) }
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        match self.paints {
            _ if continues_itself(asked.operation, options) => {
                let version = if asked.prefix.ends_with("/v1") { "" } else { self.version };
                out.extend_from_slice(format!("{version}/completions").as_bytes());
            }
            Some((_, path)) if asked.operation == Operation::ImageGenerate => {
                // Names with slashes stand in the path as they are.
                let model: Vec<_> = asked.model.split('/').map(path_segment::model).collect::<Result<_, _>>()?;
                out.extend_from_slice(self.version.as_bytes());
                out.extend_from_slice(path.replace(MODEL, &model.join("/")).as_bytes());
            }
            _ if asked.operation == Operation::Models && self.slug == "bytez" && asked.query.is_empty() => {
                // All that it can run are more models than are read, and these are the ones that its chats know.
                write_path(self, &Asked { query: "task=chat", ..*asked }, out);
            }
            _ if asked.operation.embeds() && self.sees(asked.model) => {
                let version = if asked.prefix.ends_with("/v1") { "" } else { self.version };
                out.extend_from_slice(format!("{version}/multimodalembeddings").as_bytes());
            }
            _ if self.completes(asked.operation) => {
                out.extend_from_slice(if asked.streams { b"/generate_stream" } else { b"/generate" });
            }
            _ if asked.operation == Operation::ChatComplete && options.get(FIM.key) == Some("true") => {
                out.extend_from_slice(FIM_PATH.as_bytes());
            }
            _ => write_path(self, asked, out),
        }
        Ok(())
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.slug {
            // All of the path is the model's name.
            "fal-ai" => path.strip_prefix('/'),
            _ => path_segment::after(path, path_segment::OF_MODELS),
        }
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        // As at Azure, whose API it is: what a model does not know is no reason to refuse a request.
        (self.slug == "github").then_some(("extra-parameters", "drop"))
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        self.credential
    }
}

impl Compatible {
    /// The same, which says some things otherwise in chats.
    pub(crate) const fn says(self, chat: &'static Wording) -> Self {
        Self { wordings: [chat, self.wordings[1], self.wordings[2]], ..self }
    }

    /// Likewise in completions.
    pub(crate) const fn completes_in(self, words: &'static Wording) -> Self {
        Self { wordings: [self.wordings[0], words, self.wordings[2]], ..self }
    }

    /// Likewise of texts that become vectors.
    const fn embeds_in(self, words: &'static Wording) -> Self {
        Self { wordings: [self.wordings[0], self.wordings[1], words], ..self }
    }

    /// Whether it says what a stream cost when that is asked for.
    fn takes_usage_options(&self) -> bool {
        !TELLS_UNASKED.contains(&self.slug) && self.wordings[0].takes("stream_options")
    }

    /// Whether a model embeds pictures in a way of its own.
    fn sees(&self, model: &str) -> bool {
        self.slug == "voyage" && model.contains("multimodal")
    }

    /// Whether it continues texts in the way of a server that does nothing else.
    fn completes(&self, operation: Operation) -> bool {
        self.slug == "triton" && operation == Operation::Complete
    }
}

/// Whose lists of models are arrays, and nothing around them.
const BARE_LISTS: [&str; 2] = ["github", "together-ai"];

/// Whose streams end with their usage in any case. Mistral's refuses what it does not know.
const TELLS_UNASKED: [&str; 4] = ["cerebras", "mistral-ai", "perplexity-ai", "together-ai"];

/// Who wants back what its models thought (`reasoning_content`), and may refuse a turn that called tools where it is missing.
const WANTS_THOUGHTS: [&str; 3] = ["deepseek", "moonshot", "z-ai"];

/// Whose completions end in `OpenAI`'s words alone. Others have `insufficient_system_resource`, `eos_token`, `model_length`,
/// `error`, `eos`, `end_turn`, `sensitive`, `abort`, `load` and whatever the servers say by which they run models of others.
const ENDS_AS_OPENAI: [&str; 3] = ["cerebras", "groq", "mock"];

/// Where an endpoint of one's own is, with a provider that runs some.
const ENDPOINT: Known = known("huggingface_base_url", "huggingface-base-url");

/// Whether one is asked to continue a text: what stands there otherwise does nothing but chat.
fn continues_itself(operation: Operation, options: &Options) -> bool {
    operation == Operation::Complete && options.get(ENDPOINT.key).is_some()
}

/// What is asked as a chat is text with a gap, to be filled in.
const FIM: Known = known("mistral_fim_completion", "mistral-fim-completion");
const FIM_PATH: &str = "/fim/completions";

/// Which application asks, for who lists them.
const APP: [Known; 2] = [sent("http_referer", "http-referer"), sent("x_title", "x-title")];

/// Where the model stands in a path.
const MODEL: &str = ":model";

/// A row whose key goes elsewhere.
const fn keyed(row: Compatible, credential: Credential) -> Compatible {
    Compatible { credential, ..row }
}

/// A row that makes images in a way of its own.
pub(crate) const fn paints(row: Compatible, painting: &'static Painting, path: &'static str) -> Compatible {
    Compatible { paints: Some((painting, path)), ..row }
}

pub(crate) const fn row(
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [Group],
) -> Compatible {
    let (credential, wordings) = (Credential::Bearer, [&USUAL, &TEXT, &SAME]);
    Compatible { slug, base_url, version, offers, options: &[], credential, paints: None, wordings }
}

// Slug, base URL, what stands between it and an operation's path, what is offered.
pub(crate) static ROWS: &[Compatible] = &[
    row("302ai", "https://api.302.ai", "/v1", &[CHAT]).says(&SHORT),
    row("aibadgr", "https://aibadgr.com/api/v1", "", &[CHAT]),
    row("ai21", "https://api.ai21.com/studio/v1", "", &[CHAT]).says(&COOL),
    row("anyscale", "https://api.endpoints.anyscale.com/v1", "", &[CHAT, COMPLETE, EMBED]).says(&SHORT),
    keyed(row("bytez", "https://api.bytez.com/models/v2/openai/v1", "", &[CHAT]), Credential::Scheme("Key"))
        .says(&SHORT),
    row("cerebras", "https://api.cerebras.ai/v1", "", &[CHAT]).says(&CEREBRAS),
    row("cometapi", "https://api.cometapi.com/v1", "", &[CHAT, EMBED]),
    row("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "", &[CHAT, EMBED]),
    row("deepbricks", "https://api.deepbricks.ai/v1", "", &[CHAT, IMAGE]).says(&SHORT),
    keyed(row("deepgram", "https://api.deepgram.com/v1", "", &[]), Credential::Scheme("Token")),
    row("deepinfra", "https://api.deepinfra.com/v1/openai", "", &[CHAT]).says(&SINGLE),
    row("deepseek", "https://api.deepseek.com", "/v1", &[CHAT]).says(&DEEPSEEK),
    keyed(row("fal-ai", "https://fal.run", "", &[]), Credential::Scheme("Key")),
    row("featherless-ai", "https://api.featherless.ai/v1", "", &[CHAT, COMPLETE]),
    row("github", "https://models.inference.ai.azure.com", "", &[CHAT, COMPLETE, EMBED]),
    row("groq", "https://api.groq.com/openai/v1", "", &[CHAT, RESPOND, SPEECH, TRANSCRIBE]).says(&GROQ),
    Compatible {
        options: &[ENDPOINT],
        ..row("huggingface", "https://router.huggingface.co", "/v1", &[CHAT]).says(&SHORT)
    },
    paints(
        row("hyperbolic", "https://api.hyperbolic.xyz", "/v1", &[CHAT]),
        &image_formats::HYPERBOLIC,
        "/image/generation",
    ),
    row("inference-net", "https://api.inference.net/v1", "", &[CHAT]),
    row("iointelligence", "https://api.intelligence.io.solutions/api/v1", "", &[CHAT, EMBED, RESPOND]),
    row("jina", "https://api.jina.ai/v1", "", &[EMBED, RERANK]),
    row("kluster-ai", "https://api.kluster.ai/v1", "", &[CHAT, EMBED, FILES, BATCHES]),
    row("krutrim", "https://cloud.olakrutrim.com/v1", "", &[CHAT]),
    row("lambda", "https://api.lambdalabs.com/v1", "", &[CHAT, COMPLETE]),
    row("lemonfox-ai", "https://api.lemonfox.ai/v1", "", &[CHAT, IMAGE, TRANSCRIBE]).says(&LEMONFOX),
    row("lepton", "https://api.lepton.ai", "/api/v1", &[CHAT, COMPLETE, TRANSCRIBE]).says(&SHORT),
    row("lightning-ai", "https://lightning.ai/api/v1", "", &[CHAT]),
    row("lingyi", "https://api.lingyiwanwu.com", "/v1", &[CHAT]).says(&SHORT),
    row("matterai", "https://api.matterai.so/v1", "", &[CHAT]),
    row("meshy", "https://api.meshy.ai/openapi/v1", "", &[]),
    row("milvus", "", "", &[]),
    row("minimax", "https://api.minimax.io/v1", "", &[CHAT]),
    Compatible {
        options: &[FIM],
        ..row("mistral-ai", "https://api.mistral.ai/v1", "", &[CHAT, EMBED, OCR])
            .says(&MISTRAL)
            .embeds_in(&MISTRAL_VECTORS)
    },
    // The pretend provider of this project: it speaks both dialects; its address is a setting.
    Compatible { options: EVERY_OPTION, ..row("mock", "", "", EVERYTHING).says(&SAME).completes_in(&SAME) },
    row("modal", "https://api.modal.com/v1", "", &[CHAT, COMPLETE]),
    row("monsterapi", "https://llm.monsterapi.ai/v1", "", &[CHAT]).says(&COOL),
    row("moonshot", "https://api.moonshot.cn", "/v1", &[CHAT]).says(&SHORT),
    row("ncompass", "https://api.ncompass.tech/v1", "", &[CHAT]).says(&SINGLE),
    row("nebius", "https://api.studio.nebius.ai/v1", "", &[CHAT, COMPLETE, EMBED]),
    row("nextbit", "https://api.nextbit256.com/v1", "", &[CHAT, COMPLETE]),
    row("novita-ai", "https://api.novita.ai/v3/openai", "/v1", &[CHAT, COMPLETE])
        .says(&SHORT)
        .completes_in(&PENALISED_TEXT),
    row("nscale", "https://inference.api.nscale.com/v1", "", &[CHAT, IMAGE]).says(&NSCALE),
    // Runs beside the caller: a custom host says where.
    row("ollama", "", "/v1", &[CHAT, EMBED]).says(&OLLAMA),
    Compatible {
        options: &APP,
        ..row("openrouter", "https://openrouter.ai/api", "/v1", &[CHAT, RESPOND]).says(&OPENROUTER)
    },
    row("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", "", &[CHAT]),
    // Its models are gone; what its API still has is reached as it is.
    keyed(
        row("palm", "https://generativelanguage.googleapis.com/v1beta3", "", &[]),
        Credential::Header("x-goog-api-key"),
    ),
    row("perplexity-ai", "https://api.perplexity.ai", "", &[CHAT, RESPOND]).says(&PERPLEXITY),
    keyed(row("qdrant", "", "", &[]), Credential::Header("api-key")),
    row("recraft-ai", "https://external.api.recraft.ai/v1", "", &[IMAGE]),
    keyed(row("reka-ai", "https://api.reka.ai/v1", "", &[CHAT]), Credential::Header("x-api-key")).says(&SHORT),
    row("replicate", "https://api.replicate.com/v1", "", &[]),
    row("sambanova", "https://api.sambanova.ai", "/v1", &[CHAT]).says(&SAMBANOVA),
    keyed(row("scenario-ai", "https://api.cloud.scenario.com/v1", "", &[]), Credential::Scheme("Basic")),
    paints(
        row("siliconflow", "https://api.siliconflow.cn/v1", "", &[CHAT, EMBED, RERANK]).says(&SHORT),
        &image_formats::SILICONFLOW,
        "/images/generations",
    ),
    row("together-ai", "https://api.together.xyz", "/v1", &[CHAT, COMPLETE, EMBED])
        .says(&PENALISED)
        .completes_in(&PENALISED_TEXT),
    row("tripo3d", "https://api.tripo3d.ai/v2/openapi", "", &[]),
    // An address for each server and model.
    row("triton", "", "", &[]),
    row("upstage", "https://api.upstage.ai/v1/solar", "", &[CHAT, EMBED]),
    // Ranks in its own way.
    row("voyage", "https://api.voyageai.com/v1", "", &[EMBED]).embeds_in(&VOYAGE_VECTORS),
    row("x-ai", "https://api.x.ai/v1", "", &[CHAT, COMPLETE, EMBED, RESPOND, STORED]),
    row("z-ai", "https://api.z.ai/api/paas/v4", "", &[CHAT]),
    row("zhipu", "https://open.bigmodel.cn/api/paas/v4", "", &[CHAT, EMBED]).says(&SHORT),
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
    REALTIME,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_filled_where_that_is_said_and_a_chat_is_held_where_it_is_not() {
        let row = ROWS.iter().find(|row| row.slug == "mistral-ai").unwrap();
        let target = |said, operation| {
            let stated = super::super::Stated::default();
            let (path, query, prefix, model, user) = ("/chat/completions", "", "/v1", "codestral-latest", "");
            let asked = Asked { operation, path, query, prefix, model, user, streams: false, begun: false, stated };
            let mut out = Vec::new();
            let options = Options::of(row.options, &[("mistral_fim_completion", said)]);
            row.write_target(&asked, &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(target("true", Operation::ChatComplete), "/fim/completions");
        assert_eq!(target("false", Operation::ChatComplete), "/chat/completions");
        assert_eq!(target("true", Operation::Messages), "/chat/completions");
    }

    #[test]
    fn an_endpoint_of_ones_own_stands_where_the_provider_would() {
        let row = ROWS.iter().find(|row| row.slug == "huggingface").unwrap();
        let base = |own: Option<&str>| {
            let mut options = Options::default();
            if let Some(own) = own {
                options.put(ENDPOINT, own.into());
            }
            row.base(Operation::ChatComplete, &options).unwrap()
        };
        assert_eq!(base(None), None);
        assert_eq!(base(Some("https://mine.example/")).as_deref(), Some("https://mine.example"));
        let completes = |own: &[(&str, &str)], prefix: &'static str| {
            let options = Options::of(row.options, own);
            let asked = Asked { prefix, ..Asked::of(Operation::Complete, "/completions", "m") };
            let mut out = Vec::new();
            row.write_target(&asked, &options, &mut out).unwrap();
            let is_told = row.wire_at(Operation::Complete, "m", (&options, "")).is_some();
            (String::from_utf8(out).unwrap(), is_told)
        };
        let own = [("huggingface_base_url", "https://mine.example")];
        assert_eq!(completes(&own, ""), ("/v1/completions".into(), false));
        assert_eq!(completes(&own, "/v1"), ("/completions".into(), false));
        assert_eq!(completes(&[], ""), ("/v1/chat/completions".into(), true));
    }
}
