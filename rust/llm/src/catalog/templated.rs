//! `OpenAI`-compatible providers with a customer-specific base URL: one row each, with a URL template.

use crate::{
    catalog::{
        grant::Grant,
        openai_compatible::select_chat_format,
        operation_groups::{
            CHAT, CREATE_RESPONSE, EMBED, OperationGroup, contains_operation, needs_openai_translation,
        },
        options::{OptionField, Options, gateway_option},
        oracle,
        own_endpoint::{OwnEndpoint, find_endpoint, path_with_model, write_endpoint_path},
        param_map::{LEGACY_MAX_TOKENS, OPENAI_COMPATIBLE},
        path_info::PathInfo,
        path_segment,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{OperationRules, PriceList, ProviderRow},
        signing_keys::SigningKeys,
    },
    chat::providers::openai_chat,
    error_response::ErrorFallback,
    images::image_formats,
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct TemplatedProvider {
    row: ProviderRow,
    /// Base URL; `{}` stands for the value of the first option.
    base_url_template: &'static str,
    /// Value for the template if the client sends none.
    default_value: Option<&'static str>,
    /// Returns the path that follows the template.
    base_path: fn(&Options) -> Result<String, String>,
    /// Rejects options that contradict the model.
    check_model: fn(&Options, &str) -> Result<(), String>,
    /// Option with the serving endpoint to call, even if the request names another model.
    endpoint_option: Option<OptionField>,
    endpoints: &'static [OwnEndpoint],
    signing_keys: for<'o> fn(&'o Options) -> Result<Option<SigningKeys<'o>>, String>,
    grant: fn(&Options) -> Result<Option<Grant>, String>,
}

/// Default values of the rows: a provider without differences from others.
const DEFAULT_TEMPLATED_PROVIDER: TemplatedProvider = TemplatedProvider {
    row: templated_row("", &[], &[]),
    base_url_template: "",
    default_value: None,
    base_path: |_| Ok(String::new()),
    check_model: |_, _| Ok(()),
    endpoint_option: None,
    endpoints: &[],
    signing_keys: |_| Ok(None),
    grant: |_| Ok(None),
};

/// Returns the row of a provider. The models come from many vendors, and so do their finish reasons.
const fn templated_row(
    slug: &'static str,
    native_operations: &'static [OperationGroup],
    options: &'static [OptionField],
) -> ProviderRow {
    ProviderRow {
        options,
        param_rules: OperationRules::uniform(&OPENAI_COMPATIBLE),
        has_custom_finish_reasons: true,
        ..ProviderRow::new(slug, "", native_operations)
    }
}

pub(crate) static TEMPLATED_PROVIDERS: &[TemplatedProvider] = &[
    TemplatedProvider {
        row: templated_row("byteplus", &[CHAT, EMBED], &[gateway_option("byteplus_region", "byteplus-region")]),
        base_url_template: "https://ark.{}.bytepluses.com/api/v3",
        default_value: Some("ap-southeast"),
        ..DEFAULT_TEMPLATED_PROVIDER
    },
    TemplatedProvider {
        row: ProviderRow {
            has_model_list: false,
            ..templated_row("cortex", &[CHAT], &[gateway_option("snowflake_account", "snowflake-account")])
        },
        base_url_template: "https://{}.snowflakecomputing.com/api/v2/cortex/v1",
        ..DEFAULT_TEMPLATED_PROVIDER
    },
    TemplatedProvider {
        row: ProviderRow {
            model_override_options: &[DATABRICKS_ENDPOINT.key],
            model_in_path: databricks_endpoint,
            // Amazon models on Databricks reject `stream_options`; each event already reports the usage so far.
            always_streams_usage: true,
            has_model_list: false,
            ..templated_row("databricks", &[CHAT, EMBED], DATABRICKS_OPTIONS)
        },
        base_url_template: "https://{}.cloud.databricks.com/serving-endpoints",
        endpoint_option: Some(DATABRICKS_ENDPOINT),
        ..DEFAULT_TEMPLATED_PROVIDER
    },
    TemplatedProvider {
        row: ProviderRow {
            has_model_list: false,
            error_fallback: ErrorFallback::CodeAsType,
            ..templated_row("oracle", &[CHAT, CREATE_RESPONSE], oracle::OPTIONS)
        },
        base_url_template: "https://inference.generativeai.{}.oci.oraclecloud.com",
        base_path: oracle::base_path,
        check_model: oracle::check_serving_mode,
        signing_keys: oracle::signing_keys,
        grant: oracle::grant,
        ..DEFAULT_TEMPLATED_PROVIDER
    },
    TemplatedProvider {
        row: ProviderRow {
            version_segment: "/v1",
            // Model names contain slashes.
            model_in_path: |path| path.split_once("/run/").map(|(_, name)| name),
            param_rules: OperationRules::uniform(&LEGACY_MAX_TOKENS),
            price_list: PriceList::named("cloudflare"),
            ..templated_row(
                "workers-ai",
                &[CHAT, EMBED],
                &[gateway_option("workers_ai_account_id", "workers-ai-account-id")],
            )
        },
        base_url_template: "https://api.cloudflare.com/client/v4/accounts/{}/ai",
        endpoints: &WORKERS_AI_ENDPOINTS,
        ..DEFAULT_TEMPLATED_PROVIDER
    },
];

/// Hosts of these providers, as templates with `{}`.
pub(crate) fn host_templates() -> impl Iterator<Item = &'static str> {
    TEMPLATED_PROVIDERS.iter().filter_map(|row| row.base_url_template.split('/').nth(2))
}

/// Serving endpoint of the workspace to call, even if the request names another model.
const DATABRICKS_ENDPOINT: OptionField =
    gateway_option("databricks_serving_endpoint_name", "databricks-serving-endpoint-name");

const DATABRICKS_OPTIONS: &[OptionField] =
    &[gateway_option("databricks_workspace", "databricks-workspace"), DATABRICKS_ENDPOINT];

/// Finds the serving endpoint in a path. Endpoint names are the first path segment below the base URL.
fn databricks_endpoint(path: &str) -> Option<&str> {
    path_segment::segment_after(path, &["/serving-endpoints/"])
        .or_else(|| path.ends_with("/invocations").then(|| path_segment::first_segment(path)))
}

/// Endpoints of Workers AI: image operations, with the model in the path, and the model search, which lists all models.
static WORKERS_AI_ENDPOINTS: [OwnEndpoint; 2] = [
    OwnEndpoint::for_images(&image_formats::WORKERS_AI, |info| path_with_model(info, "/run/:model")),
    OwnEndpoint::for_model_list(&openai_chat::COMPATIBLE, Some(|_| Ok("/models/search?per_page=1000".into()))),
];

impl ProviderFormats for TemplatedProvider {
    fn row(&self) -> &ProviderRow {
        &self.row
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        if let Some(endpoint) = find_endpoint(self.endpoints, operation, model) {
            return Some(endpoint.format);
        }
        needs_openai_translation(self.row.native_operations, operation).then(|| select_chat_format(&self.row, model))
    }
}

impl ProviderAddress for TemplatedProvider {
    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let [option, ..] = self.row.options else { return Ok(None) };
        let missing = || format!("no {}: send x-gateway-{}", option.key, option.header);
        let value = options.get(option.key).or(self.default_value).ok_or_else(missing)?;
        // An account may have a region after a dot.
        if !value.split('.').all(path_segment::is_host_label) {
            return Err(format!("{} must be letters, digits, dots and dashes", option.key));
        }
        Ok(Some(self.base_url_template.replace("{}", value) + &(self.base_path)(options)?))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if write_endpoint_path(self.endpoints, path_info, out)? {
            return Ok(());
        }
        (self.check_model)(options, path_info.model)?;
        if let Some(endpoint) = self.endpoint_option.and_then(|option| options.get(option.key))
            && (contains_operation(self.row.native_operations, path_info.operation)
                || self.provider_format(path_info.operation, path_info.model).is_some())
        {
            out.extend_from_slice(format!("/{}/invocations", path_segment::encode_model(endpoint)?).as_bytes());
            return Ok(());
        }
        write_path(self, path_info, out);
        Ok(())
    }
}

impl ProviderCredentials for TemplatedProvider {
    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        (self.signing_keys)(options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        (self.grant)(options)
    }
}

impl ProviderModels for TemplatedProvider {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_accepts_only_plain_values_for_the_template() {
        for row in TEMPLATED_PROVIDERS {
            let base = |value: &str| {
                let mut options = Options::default();
                options.insert_if_absent(row.row.options[0], value.into());
                row.resolve_base_url(Operation::ChatComplete, &options)
            };
            let url = base("my-own").unwrap().unwrap();
            assert!(url.starts_with("https://") && url.contains("my-own"), "{url}");
            for wrong in ["evil.example/", "a@b", "", "a/../b", "a b"] {
                assert!(base(wrong).is_err(), "{} {wrong}", row.row.slug);
            }
            let alone = row.resolve_base_url(Operation::ChatComplete, &Options::default());
            assert_eq!(alone.is_ok(), row.default_value.is_some(), "{}", row.row.slug);
        }
    }

    #[test]
    fn databricks_endpoint_option_overrides_the_model() {
        let row = TEMPLATED_PROVIDERS.iter().find(|row| row.row.slug == "databricks").unwrap();
        let target = |operation, pairs: &[(&str, &str)]| {
            let path_options = crate::catalog::path_info::PathOptions::default();
            let (path, query, prefix, model, user) = ("/chat/completions", "", "/serving-endpoints", "m", "");
            let path_info = crate::catalog::path_info::PathInfo {
                operation,
                path,
                query,
                prefix,
                model,
                user,
                is_streaming: false,
                has_prefill: false,
                path_options,
            };
            let mut out = Vec::new();
            row.write_request_target(&path_info, &Options::from_pairs(row.row.options, pairs), &mut out)?;
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
        let row = TEMPLATED_PROVIDERS.iter().find(|row| row.row.slug == "workers-ai").unwrap();
        let info_for = |operation, model| crate::catalog::path_info::PathInfo {
            prefix: "/client/v4/accounts/a/ai",
            ..crate::catalog::path_info::PathInfo::for_test(operation, "/chat/completions", model)
        };
        let target = |path_info| {
            let mut out = Vec::new();
            row.write_request_target(&path_info, &Options::default(), &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        let image_target = target(info_for(Operation::ImageGenerate, "@cf/black-forest-labs/flux-1-schnell"));
        assert_eq!(image_target.unwrap(), "/run/%40cf/black-forest-labs/flux-1-schnell");
        assert!(target(info_for(Operation::ImageGenerate, "@cf/../x")).is_err());
        assert_eq!(target(info_for(Operation::ChatComplete, "@cf/m")).unwrap(), "/v1/chat/completions");
    }
}
