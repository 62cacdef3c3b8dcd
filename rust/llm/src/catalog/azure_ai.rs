//! Azure AI Foundry provider: one base URL for a customer's models of many vendors. Claude models use Anthropic's own
//! API there.

use crate::{
    catalog::{
        azure_openai::{self, write_query_with_version},
        entra,
        grant::Grant,
        operation_groups::{
            BATCHES, CHAT, COMPLETIONS, EMBED, FILES, FINE_TUNING, IMAGE_EDIT, IMAGE_GENERATION, OCR, OperationGroup,
            REALTIME, RERANK, RESPONSES, SPEECH, TRANSCRIPTION, needs_openai_translation,
        },
        options::{OptionField, Options, concat_options, forwarded_option, gateway_option},
        param_map::{CLAUDE_MESSAGES, OPENAI_COMPATIBLE},
        path_info::PathInfo,
        path_segment,
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels},
        row::{Credential, OperationRules, PriceList, ProviderRow},
    },
    chat::providers::{anthropic_messages, openai_chat},
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct AzureAi;

const OPTIONS: [OptionField; 20] = concat_options(
    entra::OPTIONS,
    [
        gateway_option("azure_foundry_url", "azure-foundry-url"),
        gateway_option("azure_endpoint_name", "azure-endpoint-name"),
        gateway_option("azure_region", "azure-region"),
        gateway_option("azure_deployment_type", "azure-deployment-type"),
        OptionField {
            key: "azure_deployment_name",
            header: "azure-deployment-name",
            forwarded_as: Some("azureml-model-deployment"),
        },
        gateway_option("api_version", "azure-api-version"),
        gateway_option("azure_ad_token", "azure-ad-token"),
        OptionField {
            key: "deployment_id",
            header: "azure-deployment-id",
            forwarded_as: Some("azureml-model-deployment"),
        },
        OptionField { key: "azure_extra_params", header: "azure-extra-params", forwarded_as: Some("extra-parameters") },
        forwarded_option("anthropic_version", "anthropic-version"),
        RESPONSES_PROXY_OPTION,
    ],
);

/// Option that sends Responses API requests to the resource's own API. Without it they are translated to chat
/// completions, which all models support.
const RESPONSES_PROXY_OPTION: OptionField = gateway_option("provider_responses_proxy", "provider-responses-proxy");

const NATIVE_OPERATIONS: &[OperationGroup] = &[
    CHAT,
    COMPLETIONS,
    EMBED,
    IMAGE_GENERATION,
    IMAGE_EDIT,
    SPEECH,
    TRANSCRIPTION,
    OCR,
    RERANK,
    FILES,
    BATCHES,
    FINE_TUNING,
    REALTIME,
    // `CreateModelResponse` is translated, unless an option of the provider forbids it.
    &[
        Operation::GetModelResponse,
        Operation::DeleteModelResponse,
        Operation::ListResponseInputItems,
        Operation::CancelModelResponse,
    ],
];

static ROW: ProviderRow = ProviderRow {
    options: &OPTIONS,
    bearer_token_option: Some("azure_ad_token"),
    model_override_options: &["azure_deployment_name", "deployment_id"],
    param_rules: OperationRules { messages: &CLAUDE_MESSAGES, ..OperationRules::uniform(&OPENAI_COMPATIBLE) },
    hosts_many_vendors: true,
    has_custom_finish_reasons: true,
    prefill: PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit),
    can_write_azure_blobs: true,
    price_list: PriceList::named("azure"),
    ..ProviderRow::new("azure-ai", "", NATIVE_OPERATIONS)
};

impl ProviderFormats for AzureAi {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        match operation {
            Operation::Messages if is_claude_model(model) => None,
            _ if is_claude_model(model) && operation.is_chat() => Some(&anthropic_messages::ANTHROPIC),
            _ => {
                needs_openai_translation(ROW.native_operations, operation).then(|| openai_chat::format_for_model(model))
            }
        }
    }

    /// A request to the path of Anthropic's models uses Anthropic's API, whatever name the deployment has.
    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        options: &Options,
        prefix: &str,
    ) -> Option<&'static ProviderFormat> {
        if uses_native_responses_api(operation, options) && !is_claude_model(model) && !is_anthropic_path(prefix) {
            return None;
        }
        self.provider_format(operation, if is_anthropic_path(prefix) { CLAUDE_NAME } else { model })
    }
}

impl ProviderAddress for AzureAi {
    fn resolve_base_url(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let url =
            options.get("azure_foundry_url").map_or_else(|| base_url_from_names(options), |url| Ok(url.to_owned()))?;
        let url = url.trim_end_matches('/');
        if !url.starts_with("https://") {
            return Err("azure_foundry_url must begin with https://".into());
        }
        // Operations other than inference go to the resource's own path.
        let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let is_of_others = SHARED_MODEL_PATHS.contains(&&url[origin.len()..]);
        Ok(Some(match vendor_api_path(operation) {
            _ if is_resource_operation(operation) => format!("{origin}/openai"),
            // A resource lists its models; a standalone deployment has no model list.
            _ if operation == Operation::Models && is_resource_url(&origin) => format!("{origin}/openai"),
            _ if uses_native_responses_api(operation, options) && !is_anthropic_path(&url[origin.len()..]) => {
                format!("{origin}/openai")
            }
            // The vendor API is below a resource's path, or at the root of a standalone deployment.
            Some(path) if is_of_others => format!("{origin}{}", if is_resource_url(&origin) { path } else { "/v1" }),
            _ => url.to_owned(),
        }))
    }

    /// Vendor-specific APIs are not below the path that models of all vendors share.
    fn path_prefix(&self, operation: Operation, model: &str, prefix: &str) -> Option<&'static str> {
        let is_claude = operation.is_chat() && is_claude_model(model);
        // A host without a path may also belong to a standalone deployment, so the path stays empty.
        let path =
            if is_claude { Some("/anthropic") } else { vendor_api_path(operation).filter(|_| !prefix.is_empty()) };
        path.filter(|_| SHARED_MODEL_PATHS.contains(&prefix))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if path_info.operation == Operation::Realtime {
            azure_openai::write_realtime_target(path_info, options.get("api_version"), out);
            return Ok(());
        }
        let is_claude = is_claude_model(path_info.model) || is_anthropic_path(path_info.prefix);
        let is_list = path_info.operation == Operation::Models && path_info.prefix == "/openai";
        if is_list
            || is_stored_response_operation(path_info.operation)
            || uses_native_responses_api(path_info.operation, options) && !is_claude
        {
            let version = options.get("api_version").filter(|version| *version != "v1");
            let is_set = version.is_some() || path_info.prefix.ends_with("/v1");
            out.extend_from_slice(if is_set { b"" } else { b"/v1" });
            out.extend_from_slice(path_info.path.as_bytes());
            write_query_with_version(path_info, version, out);
            return Ok(());
        }
        let path = match path_info.operation {
            operation if operation.is_chat() && is_claude => "/v1/messages",
            operation => self.operation_path(operation).unwrap_or(path_info.path),
        };
        out.extend_from_slice(path.as_bytes());
        write_query_with_version(path_info, options.get("api_version"), out);
        Ok(())
    }
}

impl ProviderCredentials for AzureAi {
    fn credential(&self, _key: &str, prefix: &str) -> Credential {
        if is_anthropic_path(prefix) { Credential::Header("x-api-key") } else { Credential::Bearer }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        if ROW.bearer_token(options).is_some() { Ok(None) } else { entra::grant_from_options(options) }
    }

    fn required_header(&self, prefix: &str) -> Option<(&'static str, &'static str)> {
        // With this header, Azure drops parameters that a model does not know instead of rejecting the request.
        Some(if is_anthropic_path(prefix) { ("anthropic-version", "2023-06-01") } else { ("extra-parameters", "drop") })
    }
}

impl ProviderModels for AzureAi {}

/// Builds the base URL of a resource or of a standalone deployment from the names in the options. Used if no URL is
/// configured.
fn base_url_from_names(options: &Options) -> Result<String, String> {
    match options.get("azure_deployment_type") {
        None => {
            let lacks = "no foundry: send x-gateway-azure-foundry-url or x-gateway-azure-endpoint-name";
            options.get("azure_endpoint_name").ok_or(lacks)?;
            Ok(format!("https://{}.services.ai.azure.com/models", host_label(options, "azure_endpoint_name")?))
        }
        Some("serverless") => {
            let (name, region) = (host_label(options, "azure_deployment_name")?, host_label(options, "azure_region")?);
            Ok(format!("https://{}.{region}.models.ai.azure.com", name.to_ascii_lowercase()))
        }
        Some("managed") => {
            let (name, region) = (host_label(options, "azure_endpoint_name")?, host_label(options, "azure_region")?);
            Ok(format!("https://{name}.{region}.inference.ml.azure.com"))
        }
        Some(other) => Err(format!("azure_deployment_type `{other}` must be serverless or managed")),
    }
}

/// Returns the value of an option that becomes part of a host name. Fails if it is missing or is not a valid label.
fn host_label<'o>(options: &'o Options, key: &str) -> Result<&'o str, String> {
    let value = options.get(key).ok_or_else(|| format!("no {key}: send x-gateway-{}", key.replace('_', "-")))?;
    if path_segment::is_host_label(value) {
        Ok(value)
    } else {
        Err(format!("{key} must be letters, digits and dashes"))
    }
}

/// Base paths of a resource that models of all vendors share; empty for the host alone.
const SHARED_MODEL_PATHS: [&str; 4] = ["", "/models", "/openai", "/openai/v1"];

/// Returns the path of a vendor's own API within a resource, for operations that only that API supports.
fn vendor_api_path(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Rerank => Some("/providers/cohere/v2"),
        Operation::Ocr => Some("/providers/mistral/azure"),
        _ => None,
    }
}

/// Returns true if the URL belongs to a resource and not to a standalone deployment.
fn is_resource_url(origin: &str) -> bool {
    [".services.ai.azure.com", ".cognitiveservices.azure.com", ".openai.azure.com"]
        .iter()
        .any(|end| origin.ends_with(end))
}

/// Part of every Anthropic model's name.
const CLAUDE_NAME: &str = "claude";

fn is_claude_model(model: &str) -> bool {
    model.contains(CLAUDE_NAME)
}

fn is_anthropic_path(prefix: &str) -> bool {
    prefix.contains("anthropic")
}

fn is_resource_operation(operation: Operation) -> bool {
    [FILES, BATCHES, FINE_TUNING, REALTIME].iter().any(|group| group.contains(&operation))
        || is_stored_response_operation(operation)
}

/// Returns true if the operation concerns a response that the resource has stored.
fn is_stored_response_operation(operation: Operation) -> bool {
    operation != Operation::CreateModelResponse && RESPONSES.contains(&operation)
}

fn uses_native_responses_api(operation: Operation, options: &Options) -> bool {
    operation == Operation::CreateModelResponse && options.get(RESPONSES_PROXY_OPTION.key) == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::path_info::PathOptions;

    fn build_options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(&OPTIONS, pairs)
    }

    fn request_target(operation: Operation, path: &str, model: &str) -> String {
        let path_info = PathInfo::for_test(operation, path, model);
        let mut out = Vec::new();
        AzureAi
            .write_request_target(&path_info, &build_options(&[("api_version", "2024-05-01-preview")]), &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sends_claude_models_to_the_anthropic_path() {
        let chat = "/chat/completions";
        let version = "?api-version=2024-05-01-preview";
        assert_eq!(request_target(Operation::ChatComplete, chat, "gpt-4o"), format!("{chat}{version}"));
        assert_eq!(request_target(Operation::Messages, "/messages", "gpt-4o"), format!("{chat}{version}"));
        for (operation, path) in [(Operation::Messages, "/messages"), (Operation::ChatComplete, chat)] {
            assert_eq!(request_target(operation, path, "claude-opus-4-1"), format!("/v1/messages{version}"));
        }
        let deployed =
            PathInfo { prefix: "/anthropic", ..PathInfo::for_test(Operation::ChatComplete, chat, "our-best") };
        let mut out = Vec::new();
        AzureAi.write_request_target(&deployed, &build_options(&[]), &mut out).unwrap();
        assert_eq!(out, b"/v1/messages");
        let uses_messages = |prefix| {
            AzureAi
                .provider_format_for_target(Operation::ChatComplete, "our-best", &build_options(&[]), prefix)
                .is_some()
        };
        assert!(uses_messages("/anthropic") && !uses_messages("/models"));
        assert_eq!(AzureAi.credential("k", "/anthropic"), Credential::Header("x-api-key"));
        assert_eq!(AzureAi.credential("k", "/models"), Credential::Bearer);
    }

    #[test]
    fn sends_rerank_and_ocr_to_the_vendors_api() {
        let base = |operation, url: &str| {
            let pairs = build_options(&[("azure_foundry_url", url)]);
            AzureAi.resolve_base_url(operation, &pairs).unwrap().unwrap()
        };
        for (url, rerank, ocr) in [
            ("https://r.services.ai.azure.com/models", "/providers/cohere/v2", "/providers/mistral/azure"),
            ("https://r.services.ai.azure.com", "/providers/cohere/v2", "/providers/mistral/azure"),
            ("https://d.eastus2.models.ai.azure.com", "/v1", "/v1"),
            ("https://d.eastus2.models.ai.azure.com/v1", "/v1", "/v1"),
            ("https://d.eastus2.models.ai.azure.com/v2", "/v2", "/v2"),
            ("https://apim.example/cohere/v2", "/cohere/v2", "/cohere/v2"),
        ] {
            let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
            assert_eq!(base(Operation::Rerank, url), format!("{origin}{rerank}"));
            assert_eq!(base(Operation::Ocr, url), format!("{origin}{ocr}"));
        }
        let prefix = |operation, model, prefix| AzureAi.path_prefix(operation, model, prefix);
        for of_others in ["/models", "", "/openai/v1"] {
            assert_eq!(prefix(Operation::ChatComplete, "claude-opus-4-5", of_others), Some("/anthropic"));
            assert_eq!(prefix(Operation::Messages, "claude-opus-4-5", of_others), Some("/anthropic"));
            assert_eq!(prefix(Operation::ChatComplete, "gpt-5", of_others), None);
            assert_eq!(prefix(Operation::Embed, "claude-opus-4-5", of_others), None);
        }
        // Base paths that a custom host may have.
        assert_eq!(prefix(Operation::Rerank, "rerank-v3", "/models"), Some("/providers/cohere/v2"));
        assert_eq!(prefix(Operation::Ocr, "mistral-ocr", "/openai/v1"), Some("/providers/mistral/azure"));
        for base_path in ["", "/v1", "/cohere/v2", "/providers/cohere/v2"] {
            assert_eq!(prefix(Operation::Rerank, "rerank-v3", base_path), None, "{base_path}");
        }
        assert_eq!(prefix(Operation::Messages, "claude-opus-4-5", "/mine"), None);
    }

    #[test]
    fn uses_the_native_responses_api_if_enabled_and_for_stored_responses() {
        let create = Operation::CreateModelResponse;
        let url = ("azure_foundry_url", "https://res.services.ai.azure.com/models");
        let proxy_option = ("provider_responses_proxy", "true");
        let dated = ("api_version", "2025-04-01-preview");
        let target_for = |operation, path, model, pairs: &[(&str, &str)]| {
            let options = build_options(pairs);
            let base = AzureAi.resolve_base_url(operation, &options).unwrap().unwrap();
            let path_info = PathInfo {
                prefix: &base["https://res.services.ai.azure.com".len()..],
                ..PathInfo::for_test(operation, path, model)
            };
            let mut out = base.clone().into_bytes();
            AzureAi.write_request_target(&path_info, &options, &mut out).unwrap();
            let is_translated =
                AzureAi.provider_format_for_target(operation, model, &options, path_info.prefix).is_some();
            (String::from_utf8(out).unwrap().split_off("https://res.services.ai.azure.com".len()), is_translated)
        };
        let expected = |path: &str, is_translated| (path.to_owned(), is_translated);
        let path = "/responses";
        assert_eq!(target_for(create, path, "gpt-5", &[url]), expected("/models/chat/completions", true));
        assert_eq!(target_for(create, path, "gpt-5", &[url, proxy_option]), expected("/openai/v1/responses", false));
        let version = "/openai/responses?api-version=2025-04-01-preview";
        assert_eq!(target_for(create, path, "gpt-5", &[url, proxy_option, dated]), expected(version, false));
        // Claude has no Responses API on Azure.
        assert!(target_for(create, path, "claude-opus-4-5", &[url, proxy_option]).1);
        let anthropic_url = ("azure_foundry_url", "https://res.services.ai.azure.com/anthropic");
        assert_eq!(
            target_for(create, path, "our-best", &[anthropic_url, proxy_option]),
            expected("/anthropic/v1/messages", true)
        );
        let items = target_for(Operation::ListResponseInputItems, "/responses/r-1/input_items", "", &[url]);
        assert_eq!(items, expected("/openai/v1/responses/r-1/input_items", false));
        assert_eq!(target_for(Operation::Models, "/models", "", &[url]), expected("/openai/v1/models", false));
        let dated_list = target_for(Operation::Models, "/models", "", &[url, dated]);
        assert_eq!(dated_list, expected("/openai/models?api-version=2025-04-01-preview", false));
        let stored = target_for(Operation::GetModelResponse, "/responses/r-1", "", &[url, ("api_version", "v1")]);
        assert_eq!(stored, expected("/openai/v1/responses/r-1", false));
    }

    #[test]
    fn builds_realtime_target_for_the_api_version() {
        let session = |pairs: &[(&str, &str)]| {
            let path_options = PathOptions::default();
            let (operation, path, query, prefix) = (Operation::Realtime, "/realtime", "model=gpt-realtime", "/openai");
            let path_info = PathInfo {
                operation,
                path,
                query,
                prefix,
                model: "",
                user: "",
                is_streaming: false,
                has_prefill: false,
                path_options,
            };
            let mut out = Vec::new();
            AzureAi.write_request_target(&path_info, &build_options(pairs), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(session(&[]), "/v1/realtime?model=gpt-realtime");
        let preview = session(&[("api_version", "2025-04-01-preview")]);
        assert_eq!(preview, "/realtime?deployment=gpt-realtime&api-version=2025-04-01-preview");
    }

    #[test]
    fn sends_files_to_the_resource_and_not_to_its_models() {
        let options = build_options(&[("azure_foundry_url", "https://res.services.ai.azure.com/models/")]);
        let base = |operation| AzureAi.resolve_base_url(operation, &options).unwrap().unwrap();
        assert_eq!(base(Operation::ChatComplete), "https://res.services.ai.azure.com/models");
        for operation in [Operation::Realtime, Operation::UploadFile, Operation::ListFinetuneCheckpoints] {
            assert_eq!(base(operation), "https://res.services.ai.azure.com/openai");
        }
        let for_endpoint =
            |name| AzureAi.resolve_base_url(Operation::ChatComplete, &build_options(&[("azure_endpoint_name", name)]));
        assert_eq!(for_endpoint("my-res").unwrap().unwrap(), "https://my-res.services.ai.azure.com/models");
        assert!(for_endpoint("evil.example/").unwrap_err().contains("azure_endpoint_name"));
        let for_type = |kind| {
            let endpoint = [("azure_endpoint_name", "e"), ("azure_deployment_name", "D"), ("azure_region", "eastus2")];
            let pairs = [&endpoint[..], &[("azure_deployment_type", kind)]].concat();
            AzureAi.resolve_base_url(Operation::ChatComplete, &build_options(&pairs)).map(Option::unwrap)
        };
        assert_eq!(for_type("serverless").unwrap(), "https://d.eastus2.models.ai.azure.com");
        assert_eq!(for_type("managed").unwrap(), "https://e.eastus2.inference.ml.azure.com");
        assert!(for_type("other").unwrap_err().contains("serverless or managed"));
        assert!(
            AzureAi
                .resolve_base_url(Operation::Embed, &build_options(&[]))
                .unwrap_err()
                .contains("x-gateway-azure-foundry-url")
        );
    }
}
