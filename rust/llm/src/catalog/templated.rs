//! `OpenAI`-compatible providers with a customer-specific base URL: one row each, with a URL template.

use super::{
    CHAT, CREATE_RESPONSE, EMBED, Grant, OperationGroup, OptionField, Options, Provider, SigningKeys,
    contains_operation, needs_openai_translation, options::gateway_option, oracle,
};
use crate::catalog::{
    param_map::{LEGACY_MAX_TOKENS, OPENAI_COMPATIBLE, ParamRules},
    path_segment,
};
use crate::{
    chat::providers::{ProviderFormat, openai_chat},
    images::image_formats,
    operation::Operation,
};

pub(crate) struct TemplatedProvider {
    slug: &'static str,
    /// Base URL; `{}` stands for the value of the first option.
    base_url_template: &'static str,
    native_operations: &'static [OperationGroup],
    options: &'static [OptionField],
    /// Value for the template if the client sends none.
    default_value: Option<&'static str>,
}

pub(crate) static TEMPLATED_PROVIDERS: &[TemplatedProvider] = &[
    TemplatedProvider {
        slug: "byteplus",
        base_url_template: "https://ark.{}.bytepluses.com/api/v3",
        native_operations: &[CHAT, EMBED],
        options: &[gateway_option("byteplus_region", "byteplus-region")],
        default_value: Some("ap-southeast"),
    },
    TemplatedProvider {
        slug: "cortex",
        base_url_template: "https://{}.snowflakecomputing.com/api/v2/cortex/v1",
        native_operations: &[CHAT],
        options: &[gateway_option("snowflake_account", "snowflake-account")],
        default_value: None,
    },
    TemplatedProvider {
        slug: "databricks",
        base_url_template: "https://{}.cloud.databricks.com/serving-endpoints",
        native_operations: &[CHAT, EMBED],
        options: &[gateway_option("databricks_workspace", "databricks-workspace"), DATABRICKS_ENDPOINT],
        default_value: None,
    },
    TemplatedProvider {
        slug: "oracle",
        base_url_template: "https://inference.generativeai.{}.oci.oraclecloud.com",
        native_operations: &[CHAT, CREATE_RESPONSE],
        options: oracle::OPTIONS,
        default_value: None,
    },
    TemplatedProvider {
        slug: "workers-ai",
        base_url_template: "https://api.cloudflare.com/client/v4/accounts/{}/ai",
        native_operations: &[CHAT, EMBED],
        options: &[gateway_option("workers_ai_account_id", "workers-ai-account-id")],
        default_value: None,
    },
];

/// Hosts of these providers, as templates with `{}`.
pub(crate) fn host_templates() -> impl Iterator<Item = &'static str> {
    TEMPLATED_PROVIDERS.iter().filter_map(|row| row.base_url_template.split('/').nth(2))
}

/// Serving endpoint of the workspace to call, whatever model the request names.
const DATABRICKS_ENDPOINT: OptionField =
    gateway_option("databricks_serving_endpoint_name", "databricks-serving-endpoint-name");

impl TemplatedProvider {
    /// Returns true if the operation generates images at a path that contains the model.
    fn is_image_generation(&self, operation: Operation) -> bool {
        self.is_workers_ai() && operation == Operation::ImageGenerate
    }

    /// Returns true if the operation lists models at the provider's own search path.
    fn is_model_search(&self, operation: Operation) -> bool {
        self.is_workers_ai() && operation == Operation::Models
    }

    fn is_workers_ai(&self) -> bool {
        self.slug == "workers-ai"
    }
}

impl Provider for TemplatedProvider {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn version_segment(&self) -> &'static str {
        if self.is_workers_ai() { "/v1" } else { "" }
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        self.native_operations
    }

    fn options(&self) -> &'static [OptionField] {
        self.options
    }

    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let [option, ..] = self.options else { return Ok(None) };
        let missing = || format!("no {}: send x-gateway-{}", option.key, option.header);
        let value = options.get(option.key).or(self.default_value).ok_or_else(missing)?;
        // An account may have a region after a dot.
        if !value.split('.').all(path_segment::is_host_label) {
            return Err(format!("{} must be letters, digits, dots and dashes", option.key));
        }
        let version = if self.slug == "oracle" { oracle::base_path(options)? } else { String::new() };
        Ok(Some(self.base_url_template.replace("{}", value) + &version))
    }

    fn write_request_target(
        &self,
        path_info: &super::PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.is_model_search(path_info.operation) {
            out.extend_from_slice(b"/models/search?per_page=1000");
            return Ok(());
        }
        if self.slug == "oracle" {
            oracle::check_serving_mode(options, path_info.model)?;
        }
        if let Some(endpoint) = options.get(DATABRICKS_ENDPOINT.key)
            && (contains_operation(self.native_operations, path_info.operation)
                || self.provider_format(path_info.operation, path_info.model).is_some())
        {
            out.extend_from_slice(format!("/{}/invocations", path_segment::encode_model(endpoint)?).as_bytes());
            return Ok(());
        }
        if !self.is_image_generation(path_info.operation) {
            super::write_path(self, path_info, out);
            return Ok(());
        }
        // Model names contain slashes, which stay unencoded in the path.
        let model: Vec<_> = path_info.model.split('/').map(path_segment::encode_model).collect::<Result<_, _>>()?;
        out.extend_from_slice(format!("/run/{}", model.join("/")).as_bytes());
        Ok(())
    }

    fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.slug {
            // Model names contain slashes.
            "workers-ai" => path.split_once("/run/").map(|(_, name)| name),
            // Endpoint names are the first path segment below the base URL.
            "databricks" => path_segment::segment_after(path, &["/serving-endpoints/"])
                .or_else(|| path.ends_with("/invocations").then(|| path_segment::first_segment(path))),
            _ => path_segment::segment_after(path, path_segment::MODEL_PATH_MARKERS),
        }
    }

    fn model_override<'o>(&self, options: &'o Options, _stated: super::PathOptions<'o>) -> Option<&'o str> {
        options.get(DATABRICKS_ENDPOINT.key)
    }

    fn accepts_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        // Amazon models on Databricks reject `stream_options`; each event already reports the usage so far.
        self.slug != "databricks"
    }

    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        if self.slug == "oracle" { oracle::signing_keys(options) } else { Ok(None) }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        if self.slug == "oracle" { oracle::grant(options) } else { Ok(None) }
    }

    /// The models come from many vendors, and so do their finish reasons.
    fn has_custom_finish_reasons(&self) -> bool {
        true
    }

    fn param_rules(&self, _operation: Operation) -> &'static ParamRules {
        if self.is_workers_ai() { &LEGACY_MAX_TOKENS } else { &OPENAI_COMPATIBLE }
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        if self.is_image_generation(operation) {
            return Some(&image_formats::WORKERS_AI);
        }
        let wire =
            if self.slug == "databricks" { &openai_chat::USAGE_ALWAYS_STREAMED } else { &openai_chat::COMPATIBLE };
        (self.is_model_search(operation) || needs_openai_translation(self.native_operations, operation)).then_some(wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_accepts_only_plain_values_for_the_template() {
        for row in TEMPLATED_PROVIDERS {
            let base = |value: &str| {
                let mut options = Options::default();
                options.insert_if_absent(row.options[0], value.into());
                row.resolve_base_url(Operation::ChatComplete, &options)
            };
            let url = base("my-own").unwrap().unwrap();
            assert!(url.starts_with("https://") && url.contains("my-own"), "{url}");
            for wrong in ["evil.example/", "a@b", "", "a/../b", "a b"] {
                assert!(base(wrong).is_err(), "{} {wrong}", row.slug);
            }
            let alone = row.resolve_base_url(Operation::ChatComplete, &Options::default());
            assert_eq!(alone.is_ok(), row.default_value.is_some(), "{}", row.slug);
        }
    }

    #[test]
    fn databricks_endpoint_option_overrides_the_model() {
        let row = TEMPLATED_PROVIDERS.iter().find(|row| row.slug == "databricks").unwrap();
        let target = |operation, given: &[(&str, &str)]| {
            let stated = super::super::PathOptions::default();
            let (path, query, prefix, model, user) = ("/chat/completions", "", "/serving-endpoints", "m", "");
            let path_info = super::super::PathInfo {
                operation,
                path,
                query,
                prefix,
                model,
                user,
                is_streaming: false,
                has_prefill: false,
                path_options: stated,
            };
            let mut out = Vec::new();
            row.write_request_target(&path_info, &Options::from_pairs(row.options, given), &mut out)?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        let endpoint_option = [("databricks_serving_endpoint_name", "my/own")];
        for operation in [Operation::ChatComplete, Operation::Messages, Operation::Embed] {
            assert_eq!(target(operation, &endpoint_option).unwrap(), "/my%2Fown/invocations");
        }
        assert_eq!(target(Operation::ChatComplete, &[]).unwrap(), "/chat/completions");
        assert_eq!(target(Operation::Proxy, &endpoint_option).unwrap(), "/chat/completions");
        assert!(target(Operation::Embed, &[("databricks_serving_endpoint_name", "..")]).is_err());
    }

    #[test]
    fn workers_ai_puts_the_image_model_into_the_path() {
        let row = TEMPLATED_PROVIDERS.iter().find(|row| row.slug == "workers-ai").unwrap();
        let info_for = |operation, model| super::super::PathInfo {
            prefix: "/client/v4/accounts/a/ai",
            ..super::super::PathInfo::for_test(operation, "/chat/completions", model)
        };
        let target = |path_info| {
            let mut out = Vec::new();
            row.write_request_target(&path_info, &Options::default(), &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        let drawn = target(info_for(Operation::ImageGenerate, "@cf/black-forest-labs/flux-1-schnell"));
        assert_eq!(drawn.unwrap(), "/run/%40cf/black-forest-labs/flux-1-schnell");
        assert!(target(info_for(Operation::ImageGenerate, "@cf/../x")).is_err());
        assert_eq!(target(info_for(Operation::ChatComplete, "@cf/m")).unwrap(), "/v1/chat/completions");
    }
}
