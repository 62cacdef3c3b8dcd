//! Provider registry. `all_providers` is the only list of providers.

use crate::{
    api_format::format::ApiFormat,
    catalog::{
        anthropic, aws_hosted, azure_ai, azure_openai, bedrock, cohere, fireworks, google, openai, openai_compatible,
        options::OptionField, predibase, provider::Provider, row::PriceList, single_operation, templated, vertex_ai,
    },
    operation::Operation,
};

/// Iterates over all providers.
pub fn all_providers() -> impl Iterator<Item = &'static dyn Provider> {
    let modules: [&'static dyn Provider; 13] = [
        &anthropic::Anthropic,
        &azure_ai::AzureAi,
        &azure_openai::AzureOpenAi,
        &bedrock::Bedrock,
        &cohere::Cohere,
        &fireworks::Fireworks,
        &google::Google,
        &aws_hosted::ClaudePlatform,
        &aws_hosted::Mantle,
        &aws_hosted::SageMaker,
        &openai::OpenAi,
        &predibase::Predibase,
        &vertex_ai::VertexAi,
    ];
    let rows = openai_compatible::ROWS.iter().map(|row| row as &'static dyn Provider);
    let templated = templated::TEMPLATED_PROVIDERS.iter().map(|row| row as &'static dyn Provider);
    let single_operation = single_operation::ROWS.iter().map(|row| row as &'static dyn Provider);
    modules.into_iter().chain(rows).chain(templated).chain(single_operation)
}

/// Returns the providers as a JSON array of `{"slug", "base_url", "api_format", "offers", "options"}`.
pub fn providers_json() -> serde_json::Value {
    let row = |provider: &'static dyn Provider| {
        let api_format = match provider.row().api_format {
            ApiFormat::OpenAi => "openai",
            ApiFormat::Anthropic => "anthropic",
            ApiFormat::Gemini => "gemini",
            ApiFormat::Bedrock => "bedrock",
        };
        let offers: Vec<_> = Operation::ALL
            .iter()
            .filter(|operation| provider.supports(**operation))
            .map(|operation| operation.id())
            .collect();
        let options: Vec<_> = provider.row().options.iter().map(|option| (option.key, option.header)).collect();
        let PriceList { name, foreign_prefixes, foreign_suffixes, has_variants } = provider.row().price_list;
        serde_json::json!({
            "slug": provider.slug(), "base_url": provider.row().base_url, "api_format": api_format,
            "offers": offers, "options": options,
            "price_list": {
                "name": name.unwrap_or(provider.slug()), "foreign_prefixes": foreign_prefixes,
                "foreign_suffixes": foreign_suffixes, "has_variants": has_variants,
            },
        })
    };
    all_providers().map(row).collect()
}

/// Finds an option by its name in any provider.
pub fn find_option(name: &str) -> Option<OptionField> {
    all_providers().flat_map(|provider| provider.row().options).find(|option| option.matches_config_name(name)).copied()
}

/// Finds the provider with this slug.
pub fn find_provider(slug: &str) -> Option<&'static dyn Provider> {
    all_providers().find(|provider| provider.slug() == slug)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{operation_groups::contains_operation, options::Options, path_info::PathInfo};

    fn request_target(slug: &str, prefix: &str, operation: Operation, path: &str) -> String {
        let path_info = PathInfo { query: "a=1", prefix, ..PathInfo::for_test(operation, path, "") };
        let mut out = Vec::new();
        find_provider(slug).unwrap().write_request_target(&path_info, &Options::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn slugs_are_unique_and_lower_case() {
        let mut slugs: Vec<_> = all_providers().map(<dyn Provider>::slug).collect();
        let count = slugs.len();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), count);
        assert!(
            slugs.iter().all(|slug| slug.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
    }

    #[test]
    fn base_urls_are_https_and_have_no_trailing_slash() {
        for provider in all_providers().filter(|provider| !provider.row().base_url.is_empty()) {
            let local = provider.row().base_url.starts_with("http://localhost");
            assert!(provider.row().base_url.starts_with("https://") || local, "{}", provider.slug());
            assert!(!provider.row().base_url.ends_with('/'), "{}", provider.slug());
        }
    }

    #[test]
    fn only_forwarded_operations_are_supported_by_default() {
        let serves = |slug: &str, operation| find_provider(slug).unwrap().supports(operation);
        assert!(serves("groq", Operation::ChatComplete) && !serves("groq", Operation::Embed));
        assert!(serves("anthropic", Operation::Messages) && !serves("anthropic", Operation::Embed));
        assert!(!serves("openai", Operation::MessagesCountTokens) && serves("mistral-ai", Operation::Ocr));
        for provider in all_providers() {
            assert!(
                provider.supports(Operation::Proxy) && provider.supports(Operation::Moderate),
                "{}",
                provider.slug()
            );
        }
        // The mock provider leaves token counting to the gateway and has no native batch jobs.
        let is_own = |operation: &Operation| {
            ["BatchJob", "BatchObject", "BatchDataset"].iter().any(|suffix| operation.id().ends_with(suffix))
        };
        let mut others = Operation::ALL.iter().filter(|operation| !is_own(operation) && !operation.counts_tokens());
        assert!(others.all(|operation| serves("mock", *operation)));
    }

    #[test]
    fn model_in_path_knows_the_paths_of_each_provider() {
        for (slug, path, expected) in [
            ("azure-openai", "/openai/deployments/d%201/chat/completions", Some("d%201")),
            ("bedrock", "/model/amazon.nova-lite-v1%3A0/converse", Some("amazon.nova-lite-v1%3A0")),
            ("google", "/v1beta/tunedModels/mine:generateContent", Some("mine:generateContent")),
            ("vertex-ai", "/v1/projects/p/locations/l/endpoints/7:predict", Some("7:predict")),
            ("sagemaker", "/endpoints/e/invocations", Some("e")),
            ("databricks", "/my-endpoint/invocations", Some("my-endpoint")),
            ("databricks", "/api/2.0/serving-endpoints/mine/config", Some("mine")),
            ("workers-ai", "/run/@cf/meta/llama", Some("@cf/meta/llama")),
            ("predibase", "/acme/deployments/v2/llms/llama-3/generate", Some("llama-3")),
            ("stability-ai", "/v1/generation/sdxl/image-to-image", Some("sdxl")),
            ("segmind", "/sdxl1.0-txt2img", Some("sdxl1.0-txt2img")),
            ("fal-ai", "/fal-ai/flux/dev", Some("fal-ai/flux/dev")),
            ("openai", "/models/gpt-5", Some("gpt-5")),
            ("openai", "/chat/completions", None),
            ("databricks", "/chat/completions", None),
        ] {
            assert_eq!(find_provider(slug).unwrap().row().model_in_path(path), expected, "{slug} {path}");
        }
    }

    #[test]
    fn translated_operations_have_a_provider_format_and_native_ones_have_none() {
        let has_format = |slug: &str, operation| find_provider(slug).unwrap().provider_format(operation, "m").is_some();
        assert!(has_format("anthropic", Operation::ChatComplete) && has_format("openai", Operation::Messages));
        assert!(has_format("groq", Operation::Messages) && !has_format("mock", Operation::Messages));
        for provider in all_providers() {
            for operation in Operation::ALL
                .iter()
                .filter(|operation| contains_operation(provider.row().native_operations, **operation))
            {
                assert!(provider.provider_format(*operation, "m").is_none(), "{} {operation:?}", provider.slug());
            }
        }
    }

    #[test]
    fn translated_operations_use_the_provider_path() {
        assert_eq!(request_target("anthropic", "/v1", Operation::ChatComplete, "/chat/completions"), "/messages?a=1");
        assert_eq!(request_target("deepseek", "", Operation::Messages, "/messages"), "/v1/chat/completions?a=1");
    }

    #[test]
    fn version_segment_is_not_duplicated() {
        let chat = |slug, prefix| request_target(slug, prefix, Operation::ChatComplete, "/chat/completions");
        assert_eq!(chat("openai", "/v1"), "/chat/completions?a=1");
        assert_eq!(chat("deepseek", ""), "/v1/chat/completions?a=1");
        assert_eq!(chat("ollama", "/v1"), "/chat/completions?a=1");
        let prefill_target = |slug, operation, path| {
            let path_info =
                PathInfo { is_streaming: true, has_prefill: true, ..PathInfo::for_test(operation, path, "") };
            let mut out = Vec::new();
            find_provider(slug).unwrap().write_request_target(&path_info, &Options::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(prefill_target("deepseek", Operation::ChatComplete, "/chat/completions"), "/beta/chat/completions");
        assert_eq!(prefill_target("deepseek", Operation::Messages, "/messages"), "/beta/chat/completions");
        assert_eq!(prefill_target("deepseek", Operation::Proxy, "/user/balance"), "/user/balance");
        assert_eq!(prefill_target("moonshot", Operation::ChatComplete, "/chat/completions"), "/v1/chat/completions");
        let proxy = |slug, prefix, path| request_target(slug, prefix, Operation::Proxy, path);
        assert_eq!(proxy("anthropic", "/v1", "/v1/messages/batches"), "/messages/batches?a=1");
        assert_eq!(proxy("deepseek", "", "/user/balance"), "/user/balance?a=1");
        assert_eq!(proxy("deepseek", "", "/v1/models"), "/v1/models?a=1");
    }
}
