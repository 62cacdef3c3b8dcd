//! Azure `OpenAI` provider: one host per customer resource, the deployment in the path, the API version in the query.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::{
    catalog::{
        entra,
        grant::Grant,
        openai::NATIVE_OPERATIONS,
        options::{OptionField, Options, concat_options, forwarded_option, gateway_option},
        path_info::{PathInfo, PathOptions},
        path_segment::encode_segment,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels},
        row::{Credential, PriceList, ProviderRow},
    },
    operation::Operation,
};

pub(crate) struct AzureOpenAi;

const RESOURCE_OPTION: OptionField = gateway_option("resource_name", "azure-resource-name");

/// Host suffix after the resource name.
const HOST_SUFFIX: &str = ".openai.azure.com";

const OPTIONS: [OptionField; 15] = concat_options(
    entra::OPTIONS,
    [
        RESOURCE_OPTION,
        gateway_option("deployment_id", "azure-deployment-id"),
        gateway_option("api_version", "azure-api-version"),
        gateway_option("azure_ad_token", "azure-ad-token"),
        gateway_option("azure_model_name", "azure-model-name"),
        forwarded_option("openai_beta", "openai-beta"),
    ],
);

/// Prefix of access tokens, which are JSON web tokens; the service's API keys never have it.
const ACCESS_TOKEN_PREFIX: &str = "eyJ";

/// API version whose URLs contain neither a deployment in the path nor a version in the query.
const API_VERSION_V1: &str = "v1";

/// First API version that accepts `stream_options`; earlier versions reject it.
const MIN_STREAM_OPTIONS_VERSION: &str = "2024-09-01";

static ROW: ProviderRow = ProviderRow {
    options: &OPTIONS,
    bearer_token_option: Some("azure_ad_token"),
    model_name_options: &["azure_model_name"],
    model_override_options: &["deployment_id"],
    can_write_azure_blobs: true,
    // Newer models reject `max_tokens`.
    chat_output_limit: "max_completion_tokens",
    price_list: PriceList::named("azure"),
    ..ProviderRow::new("azure-openai", "", NATIVE_OPERATIONS)
};

impl ProviderFormats for AzureOpenAi {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn accepts_stream_options(&self, version: Option<&str>, options: &Options) -> bool {
        // API versions are dates, except `v1`, which is the newest and sorts after them.
        let version = version.or_else(|| options.get("api_version"));
        version.is_some_and(|version| version >= MIN_STREAM_OPTIONS_VERSION)
    }
}

impl ProviderAddress for AzureOpenAi {
    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let name = options.get("resource_name").ok_or("no resource: send x-gateway-azure-resource-name")?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err("resource_name must be letters, digits and dashes".into());
        }
        Ok(Some(format!("https://{name}{HOST_SUFFIX}/openai")))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let version = path_info.path_options.version.or_else(|| options.get("api_version"));
        let path_info = &PathInfo { path: strip_resource_host(path_info)?, ..*path_info };
        let is_raw = path_info.operation == Operation::Proxy && is_complete_path(path_info.path);
        if version == Some(API_VERSION_V1) && !is_raw {
            out.extend_from_slice(b"/v1");
        } else if self.has_deployment_path(path_info.operation) {
            out.extend_from_slice(b"/deployments/");
            out.extend_from_slice(deployment_segment(path_info, options)?.as_bytes());
        }
        out.extend_from_slice(self.operation_path(path_info.operation).unwrap_or(path_info.path).as_bytes());
        let query = realtime_query(path_info, version, options);
        let path_info = &PathInfo { query: query.as_deref().unwrap_or(path_info.query), ..*path_info };
        write_query_with_version(path_info, version.filter(|version| *version != API_VERSION_V1), out);
        let has_version =
            version.is_some() || has_version_parameter(path_info.query) || path_info.operation == Operation::Proxy;
        if has_version { Ok(()) } else { Err("no API version: send x-gateway-azure-api-version".into()) }
    }

    fn option_in_path<'p>(&self, path: &'p str) -> Option<(OptionField, &'p str)> {
        split_resource_host(path).map(|(resource, _)| (RESOURCE_OPTION, resource))
    }
}

impl ProviderCredentials for AzureOpenAi {
    fn credential(&self, key: &str, _prefix: &str) -> Credential {
        if key.starts_with(ACCESS_TOKEN_PREFIX) { Credential::Bearer } else { Credential::Header("api-key") }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        // A configured token takes precedence over a fetched one.
        if ROW.bearer_token(options).is_some() { Ok(None) } else { entra::grant_from_options(options) }
    }
}

impl ProviderModels for AzureOpenAi {
    fn model_override<'o>(&self, options: &'o Options, path_options: PathOptions<'o>) -> Option<&'o str> {
        ROW.model_override(options).or(path_options.deployment)
    }

    fn body_model_override<'o>(
        &self,
        operation: Operation,
        options: &'o Options,
        path_options: PathOptions<'o>,
    ) -> Option<Cow<'o, str>> {
        let version = path_options.version.or_else(|| options.get("api_version"));
        let is_in_path = version != Some(API_VERSION_V1) && self.has_deployment_path(operation);
        let needs_deployment = self.has_deployment_path(operation) || operation == Operation::CreateModelResponse;
        if is_in_path || !needs_deployment {
            return None;
        }
        let path_deployment =
            || path_options.deployment.map(|deployment| percent_decode_str(deployment).decode_utf8_lossy());
        options.get("deployment_id").map(Cow::Borrowed).or_else(path_deployment)
    }
}

impl AzureOpenAi {
    /// Returns true if the path contains a deployment in API versions before v1.
    fn has_deployment_path(&self, operation: Operation) -> bool {
        is_deployment_operation(operation) || self.provider_format(operation, "").is_some()
    }
}

/// Splits a path that begins with a resource's host. Returns the resource name and the path after the host.
fn split_resource_host(path: &str) -> Option<(&str, &str)> {
    let (host, _) = path.strip_prefix('/')?.split_once('/')?;
    Some((host.strip_suffix(HOST_SUFFIX)?, &path[1 + host.len()..]))
}

/// Returns the path below the base URL. Pass-through requests may have the resource's host at the front, which is
/// removed.
fn strip_resource_host<'p>(path_info: &PathInfo<'p>) -> Result<&'p str, String> {
    let Some((_, path)) = split_resource_host(path_info.path).filter(|_| path_info.operation == Operation::Proxy)
    else {
        return Ok(path_info.path);
    };
    let below = path.strip_prefix("/openai").filter(|rest| rest.starts_with('/'));
    below.ok_or_else(|| "a path that begins with a resource's host must continue with /openai/".into())
}

/// Returns true if a path already contains everything that follows the base URL.
fn is_complete_path(path: &str) -> bool {
    path.starts_with("/deployments/") || path.starts_with("/v1/")
}

/// Returns true if a deployment serves the operation; all others belong to the resource.
fn is_deployment_operation(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ChatComplete
            | Operation::Messages
            | Operation::Complete
            | Operation::Embed
            | Operation::ImageGenerate
            | Operation::ImageEdit
            | Operation::CreateSpeech
            | Operation::CreateTranscription
            | Operation::CreateTranslation
    )
}

/// Returns the deployment as an escaped path segment. It comes from the options, else from the client's path, else from
/// the model name.
fn deployment_segment(path_info: &PathInfo<'_>, options: &Options) -> Result<String, String> {
    let path_deployment = || path_info.path_options.deployment.map(ToOwned::to_owned);
    let from_model = || Some(path_info.model).filter(|model| !model.is_empty()).map(encode_segment);
    let segment = options.get("deployment_id").map(encode_segment).or_else(path_deployment).or_else(from_model);
    let segment = segment.ok_or("no deployment: send x-gateway-azure-deployment-id, or name a model")?;
    if segment == "." || segment == ".." { Err("the deployment must not be `.` or `..`".into()) } else { Ok(segment) }
}

pub(crate) fn write_query_with_version(path_info: &PathInfo<'_>, version: Option<&str>, out: &mut Vec<u8>) {
    let version = version.filter(|_| !has_version_parameter(path_info.query));
    if !path_info.query.is_empty() || version.is_some() {
        out.push(b'?');
    }
    out.extend_from_slice(path_info.query.as_bytes());
    if let Some(version) = version {
        if !path_info.query.is_empty() {
            out.push(b'&');
        }
        out.extend_from_slice(b"api-version=");
        out.extend_from_slice(encode_segment(version).as_bytes());
    }
}

/// Writes the target of a realtime session. Uses the v1 path if `version` is `None` or `v1`.
pub(crate) fn write_realtime_target(path_info: &PathInfo<'_>, version: Option<&str>, out: &mut Vec<u8>) {
    let version = version.filter(|version| *version != API_VERSION_V1);
    let renamed = version.map(|_| rename_model_to_deployment(path_info.query));
    out.extend_from_slice(if version.is_some() { b"/realtime" } else { b"/v1/realtime" });
    write_query_with_version(
        &PathInfo { query: renamed.as_deref().unwrap_or(path_info.query), ..*path_info },
        version,
        out,
    );
}

/// Renames `model` to `deployment` in a realtime query, as API versions before v1 expect. If both are present, `model`
/// wins, because the gateway has checked that value.
fn rename_model_to_deployment(query: &str) -> String {
    let names_model = query.split('&').any(|pair| parameter_name(pair) == "model");
    let pairs = query.split('&').filter(|pair| !(names_model && parameter_name(pair) == "deployment"));
    let pairs = pairs.map(|pair| match pair.split_once('=') {
        Some((_, model)) if parameter_name(pair) == "model" => format!("deployment={model}"),
        _ => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns the rewritten query of a realtime session: with the configured deployment, under the name that the API
/// version expects. `None` if the query stays unchanged.
fn realtime_query(path_info: &PathInfo<'_>, version: Option<&str>, options: &Options) -> Option<String> {
    if path_info.operation != Operation::Realtime {
        return None;
    }
    let pinned_query = options.get("deployment_id").map(|deployment| {
        let others = path_info.query.split('&').filter(|pair| !pair.is_empty() && !is_model_or_deployment_pair(pair));
        let all: Vec<_> =
            others.map(ToOwned::to_owned).chain([format!("model={}", encode_segment(deployment))]).collect();
        all.join("&")
    });
    let query = pinned_query.as_deref().unwrap_or(path_info.query);
    if version == Some(API_VERSION_V1) { pinned_query } else { Some(rename_model_to_deployment(query)) }
}

fn is_model_or_deployment_pair(pair: &str) -> bool {
    matches!(&*parameter_name(pair), "model" | "deployment")
}

/// Returns the decoded name of a query parameter. A provider decodes it too, so `mod%65l` names the model.
fn parameter_name(pair: &str) -> Cow<'_, str> {
    percent_decode_str(pair.split('=').next().unwrap_or_default()).decode_utf8_lossy()
}

fn has_version_parameter(query: &str) -> bool {
    query.split('&').any(|pair| pair.starts_with("api-version="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::path_info::PathOptions;

    fn build_options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(&OPTIONS, pairs)
    }

    const CHAT_PATH_INFO: PathInfo<'_> =
        PathInfo { prefix: "/openai", ..PathInfo::for_test(Operation::ChatComplete, "/chat/completions", "gpt-4o") };

    fn request_target(path_info: &PathInfo<'_>, pairs: &[(&str, &str)]) -> Result<String, String> {
        let mut out = Vec::new();
        AzureOpenAi.write_request_target(path_info, &build_options(pairs), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn accepts_only_plain_resource_names() {
        let base =
            |name| AzureOpenAi.resolve_base_url(Operation::ChatComplete, &build_options(&[("resource_name", name)]));
        assert_eq!(base("my-res").unwrap().unwrap(), "https://my-res.openai.azure.com/openai");
        for name in ["", "evil.example/", "a.b", "a@b", "a:80", "ä"] {
            assert!(base(name).is_err(), "{name}");
        }
        assert!(
            AzureOpenAi
                .resolve_base_url(Operation::ChatComplete, &Options::default())
                .unwrap_err()
                .contains("x-gateway-azure-resource-name")
        );
    }

    #[test]
    fn pass_through_path_may_begin_with_the_host() {
        let path_info = |path| PathInfo { operation: Operation::Proxy, path, query: "api-version=1", ..CHAT_PATH_INFO };
        let path = "/my-res.openai.azure.com/openai/deployments/d/chat/completions";
        assert_eq!(AzureOpenAi.option_in_path(path), Some((RESOURCE_OPTION, "my-res")));
        assert_eq!(request_target(&path_info(path), &[]).unwrap(), "/deployments/d/chat/completions?api-version=1");
        for other in ["/files", "/my-res.openai.azure.com", "/my-res.openai.azure.com.evil.example/openai/x"] {
            assert_eq!(AzureOpenAi.option_in_path(other), None, "{other}");
        }
        for elsewhere in ["/my-res.openai.azure.com/x", "/my-res.openai.azure.com/openaix/y"] {
            assert!(request_target(&path_info(elsewhere), &[]).unwrap_err().contains("/openai/"), "{elsewhere}");
        }
    }

    #[test]
    fn takes_deployment_from_option_path_or_model() {
        let version = ("api_version", "2024-10-21");
        let translated = PathInfo {
            operation: Operation::GenerateContent,
            path: "/models/gpt-4o:generateContent",
            ..CHAT_PATH_INFO
        };
        assert_eq!(
            request_target(&translated, &[version]).unwrap(),
            "/deployments/gpt-4o/chat/completions?api-version=2024-10-21"
        );
        assert_eq!(
            request_target(&CHAT_PATH_INFO, &[version, ("deployment_id", "d 1")]).unwrap(),
            "/deployments/d%201/chat/completions?api-version=2024-10-21"
        );
        let path_options = PathOptions { deployment: Some("a%2Fb"), version: None, ..PathOptions::default() };
        assert_eq!(
            request_target(
                &PathInfo { path_options, query: "api-version=2025-01-01&x=1", ..CHAT_PATH_INFO },
                &[version]
            )
            .unwrap(),
            "/deployments/a%2Fb/chat/completions?api-version=2025-01-01&x=1"
        );
        assert!(request_target(&CHAT_PATH_INFO, &[version]).unwrap().starts_with("/deployments/gpt-4o/"));
        assert!(
            request_target(&PathInfo { model: "", ..CHAT_PATH_INFO }, &[version])
                .unwrap_err()
                .contains("no deployment")
        );
        assert!(request_target(&PathInfo { model: "..", ..CHAT_PATH_INFO }, &[version]).is_err());
        let split = request_target(&PathInfo { model: "a HTTP/1.1\r\nx: /?#", ..CHAT_PATH_INFO }, &[version]).unwrap();
        assert!(!split.contains([' ', '\r', '#']) && split.matches('?').count() == 1, "{split}");
    }

    #[test]
    fn requires_an_api_version() {
        assert!(request_target(&CHAT_PATH_INFO, &[]).unwrap_err().contains("x-gateway-azure-api-version"));
        assert!(request_target(&PathInfo { query: "api-version=1", ..CHAT_PATH_INFO }, &[]).is_ok());
    }

    #[test]
    fn v1_has_no_deployment_and_no_version_query() {
        assert_eq!(request_target(&CHAT_PATH_INFO, &[("api_version", "v1")]).unwrap(), "/v1/chat/completions");
        let path_options = PathOptions { deployment: None, version: Some("v1"), ..PathOptions::default() };
        assert_eq!(
            request_target(&PathInfo { path_options, query: "x=1", ..CHAT_PATH_INFO }, &[]).unwrap(),
            "/v1/chat/completions?x=1"
        );
    }

    #[test]
    fn body_names_the_deployment_if_the_path_does_not() {
        let path_options = PathOptions { deployment: Some("a%2Fb"), version: None, ..PathOptions::default() };
        let spliced = |operation, pairs: &[(&str, &str)], path_options| {
            AzureOpenAi.body_model_override(operation, &build_options(pairs), path_options).map(Cow::into_owned)
        };
        let (v1, dated, d) = (("api_version", "v1"), ("api_version", "2024-10-21"), ("deployment_id", "d"));
        let none = PathOptions::default();
        for (operation, pairs, path_options, expected) in [
            (Operation::ChatComplete, &[v1, d][..], none, Some("d")),
            (Operation::Messages, &[v1, d], path_options, Some("d")),
            (Operation::CreateTranscription, &[v1], path_options, Some("a/b")),
            (Operation::CreateModelResponse, &[dated, d], none, Some("d")),
            (Operation::CreateModelResponse, &[dated], none, None),
            (Operation::ChatComplete, &[dated, d], none, None),
            (Operation::ChatComplete, &[v1], none, None),
            (Operation::ListFiles, &[v1, d], none, None),
        ] {
            assert_eq!(spliced(operation, pairs, path_options).as_deref(), expected, "{operation:?} {pairs:?}");
        }
        let version = PathOptions { deployment: None, version: Some("v1"), ..PathOptions::default() };
        assert_eq!(spliced(Operation::Embed, &[dated, d], version).as_deref(), Some("d"));
    }

    #[test]
    fn resource_operations_have_no_deployment_in_the_path() {
        let files = PathInfo { operation: Operation::ListFiles, path: "/files", query: "limit=2", ..CHAT_PATH_INFO };
        assert_eq!(
            request_target(&files, &[("api_version", "2024-10-21")]).unwrap(),
            "/files?limit=2&api-version=2024-10-21"
        );
    }

    #[test]
    fn realtime_sessions_name_a_deployment_before_v1() {
        let session =
            PathInfo { operation: Operation::Realtime, path: "/realtime", query: "a=1&model=gpt", ..CHAT_PATH_INFO };
        let preview = request_target(&session, &[("api_version", "2025-04-01-preview")]).unwrap();
        assert_eq!(preview, "/realtime?a=1&deployment=gpt&api-version=2025-04-01-preview");
        assert_eq!(request_target(&session, &[("api_version", "v1")]).unwrap(), "/v1/realtime?a=1&model=gpt");
        let pinned = request_target(&session, &[("api_version", "v1"), ("deployment_id", "d 1")]).unwrap();
        assert_eq!(pinned, "/v1/realtime?a=1&model=d%201");
        let pinned = request_target(&session, &[("api_version", "2"), ("deployment_id", "d")]).unwrap();
        assert_eq!(pinned, "/realtime?a=1&deployment=d&api-version=2");
        let both = PathInfo { query: "model=seen&deployment=other", ..session };
        let target = request_target(&both, &[("api_version", "2025-04-01-preview")]).unwrap();
        assert_eq!(target, "/realtime?deployment=seen&api-version=2025-04-01-preview");
        assert_eq!(rename_model_to_deployment("mod%65l=a&d%65ployment=b&x=1"), "deployment=a&x=1");
    }

    #[test]
    fn pass_through_adds_the_api_version_if_configured() {
        let raw = |path, pairs: &[(&str, &str)]| {
            request_target(&PathInfo { operation: Operation::Proxy, path, ..CHAT_PATH_INFO }, pairs)
        };
        assert_eq!(raw("/assistants", &[]).unwrap(), "/assistants");
        assert_eq!(raw("/assistants", &[("api_version", "2")]).unwrap(), "/assistants?api-version=2");
        assert_eq!(raw("/conversations", &[("api_version", "v1")]).unwrap(), "/v1/conversations");
        assert_eq!(raw("/deployments/d/x", &[("api_version", "v1")]).unwrap(), "/deployments/d/x");
    }

    #[test]
    fn sends_tokens_as_bearer_and_keys_in_the_api_key_header() {
        assert_eq!(AzureOpenAi.credential("eyJhbGciOi", ""), Credential::Bearer);
        assert_eq!(AzureOpenAi.credential("0123456789abcdef", ""), Credential::Header("api-key"));
        assert_eq!(ROW.bearer_token(&build_options(&[("azure_ad_token", "t")])), Some("t"));
        let both = build_options(&[("azure_ad_token", "t"), ("azure_auth_mode", "managed")]);
        assert_eq!(AzureOpenAi.grant(&both), Ok(None));
        assert!(AzureOpenAi.grant(&build_options(&[("azure_auth_mode", "other")])).is_err());
    }
}
