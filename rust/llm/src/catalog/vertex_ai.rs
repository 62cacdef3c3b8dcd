//! Vertex AI: Gemini, Claude and other publishers. The path names the project and the region; a Google access token is
//! sent as the bearer.

use crate::{
    catalog::{
        batch_jobs, external_account,
        google::{self, write_native_verb},
        grant::Grant,
        model_lists,
        operation_groups::{FILES, GEMINI, GEMINI_COUNT, NATIVE_BATCH_JOBS, contains_operation},
        options::{OptionField, Options, PROVIDER_MODEL, forwarded_option, gateway_option},
        path_info::PathInfo,
        path_segment::{self, job_id_in_path},
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{PriceList, ProviderRow},
        vertex_publishers::split_publisher,
    },
    chat::providers::{anthropic_hosted, anthropic_messages, gemini, openai_chat},
    embeddings::embedding_formats,
    files::{self, FileStore},
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
    provider_format::ProviderFormat,
    rerank::rerank_formats,
};

pub(crate) struct VertexAi;

const OPTIONS: &[OptionField] = &[
    gateway_option("vertex_project_id", "vertex-project-id"),
    gateway_option("vertex_region", "vertex-region"),
    gateway_option("vertex_auth_type", "vertex-auth-type"),
    gateway_option("vertex_skip_ptu_cost_attribution", "vertex-skip-ptu-cost-attribution"),
    gateway_option("vertex_service_account_json", "vertex-service-account-json"),
    gateway_option("vertex_storage_bucket_name", "vertex-storage-bucket-name"),
    gateway_option("provider_file_name", "provider-file-name"),
    PROVIDER_MODEL,
    gateway_option("provider_batch_endpoint", "provider-batch-endpoint"),
    forwarded_option("anthropic_beta", "anthropic-beta"),
    gateway_option("anthropic_version", "anthropic-version"),
];

/// Auth type for workload identity federation; the credential file defines where the subject token comes from.
const FEDERATED_AUTH_TYPE: &str = "workloadIdentityFederation";
/// OAuth scope of the access tokens.
const OAUTH_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

static ROW: ProviderRow = ProviderRow {
    options: OPTIONS,
    model_override_options: &[PROVIDER_MODEL.key],
    prepaid_option: Some("vertex_skip_ptu_cost_attribution"),
    prefill: PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit),
    file_store: Some(FileStore::Bucket(&files::GCS)),
    price_list: PriceList::named("google"),
    ..ProviderRow::new("vertex-ai", "", &[GEMINI, GEMINI_COUNT, NATIVE_BATCH_JOBS, FILES])
};

impl ProviderFormats for VertexAi {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        let publisher = split_publisher(model).0;
        if contains_operation(&[NATIVE_BATCH_JOBS, FILES], operation)
            || publisher == "google" && contains_operation(&[GEMINI, GEMINI_COUNT], operation)
        {
            return None;
        }
        let format: &'static ProviderFormat = match (operation, publisher) {
            (operation, _) if operation.is_fine_tuning() => &fine_tuning_providers::VERTEX,
            (operation, _) if operation.is_batch() => &batch_providers::VERTEX,
            (Operation::Models, _) => &gemini::VERTEX_AI,
            (operation, "google") if operation.counts_tokens() => &gemini::VERTEX_AI,
            (Operation::Messages, "anthropic") => &anthropic_hosted::VERTEX,
            (operation, "anthropic") if operation.counts_tokens() => &anthropic_hosted::VERTEX,
            (operation, "google") if operation.is_embedding() => &embedding_formats::VERTEX_PREDICT,
            (Operation::Rerank, _) => &rerank_formats::GOOGLE,
            (Operation::ImageGenerate, "google") => google::image_format(model),
            (operation, _) if !operation.is_chat() => return None,
            (_, "anthropic") => &anthropic_messages::VERTEX,
            (_, "google") => &gemini::VERTEX_AI,
            _ => &openai_chat::VERTEX_PARTNER_MODELS,
        };
        Some(format)
    }
}

impl ProviderAddress for VertexAi {
    fn resolve_base_url(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let is_object = matches!(operation, Operation::PutBatchObject | Operation::GetBatchObject);
        if is_object || FILES.contains(&operation) {
            return Ok(Some("https://storage.googleapis.com".into()));
        }
        if operation == Operation::Rerank {
            return Ok(Some("https://discoveryengine.googleapis.com".into()));
        }
        Ok(Some(match require_region(options)? {
            "global" => "https://aiplatform.googleapis.com".into(),
            // Multi-region endpoints.
            wide @ ("us" | "eu") => format!("https://aiplatform.{wide}.rep.googleapis.com"),
            region => format!("https://{region}-aiplatform.googleapis.com"),
        }))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if path_info.operation == Operation::Models {
            out.extend_from_slice(b"/v1beta1/publishers/google/models?pageSize=200");
            model_lists::write_page_token(path_info, "pageToken", out);
            return Ok(());
        }
        if FILES.contains(&path_info.operation) {
            out.extend_from_slice(files::GCS.request_target(path_info, options)?.as_bytes());
            return Ok(());
        }
        let version = if path_info.prefix.ends_with("/v1") { "" } else { "/v1" };
        if path_info.operation == Operation::Rerank {
            // Reranking always uses the `global` location and the default ranking config.
            let project = require_project(options)?;
            let configs = format!("{version}/projects/{project}/locations/global/rankingConfigs");
            out.extend_from_slice(format!("{configs}/default_ranking_config:rank").as_bytes());
            return Ok(());
        }
        if NATIVE_BATCH_JOBS.contains(&path_info.operation) {
            let jobs = format!("{version}/{}/batchPredictionJobs", location_path(options)?);
            let bucket = options.get("vertex_storage_bucket_name");
            let bucket = bucket.ok_or("no bucket: send x-gateway-vertex-storage-bucket-name");
            out.extend_from_slice(batch_jobs::request_path(path_info, &jobs, ":cancel", bucket)?.as_bytes());
            return Ok(());
        }
        let is_native_format = split_publisher(path_info.model).0 == "google"
            && contains_operation(&[GEMINI, GEMINI_COUNT], path_info.operation);
        if self.provider_format(path_info.operation, path_info.model).is_none() && !is_native_format {
            if path_info.operation == Operation::CountTokens {
                return Err(format!("the model `{}` does not support countTokens here", path_info.model));
            }
            write_path(self, path_info, out);
            return Ok(());
        }
        if is_native_format {
            return write_gemini_target(path_info, version, options, out);
        }
        let location = location_path(options)?;
        if path_info.operation.is_provider_job() {
            let kind = if path_info.operation.is_fine_tuning() { "tuningJobs" } else { "batchPredictionJobs" };
            out.extend_from_slice(format!("{version}/{location}/{kind}").as_bytes());
            return write_job_path(path_info, out);
        }
        let (publisher, model) = split_publisher(path_info.model);
        let escaped = path_segment::encode_model(model)?;
        let path = match publisher {
            "meta" => format!("/v1beta1/{location}/endpoints/openapi/chat/completions"),
            "endpoints" => format!("{version}/{location}/endpoints/{escaped}/chat/completions"),
            _ if path_info.operation.counts_tokens() && publisher == "anthropic" => {
                format!("{version}/{location}/publishers/anthropic/models/count-tokens:rawPredict")
            }
            _ => {
                format!(
                    "{version}/{location}/publishers/{publisher}/models/{escaped}:{}",
                    model_method(path_info, publisher)
                )
            }
        };
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }
}

impl ProviderCredentials for VertexAi {
    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        let key_file = options.get("vertex_service_account_json").map(ToOwned::to_owned);
        match options.get("vertex_auth_type") {
            // The client sends the access token itself.
            Some("basic") => return Ok(None),
            Some("serviceAccount" | FEDERATED_AUTH_TYPE) if key_file.is_none() => {
                return Err("no key file: send x-gateway-vertex-service-account-json".into());
            }
            None | Some("serviceAccount" | FEDERATED_AUTH_TYPE) => (),
            Some(other) => {
                return Err(format!(
                    "vertex_auth_type `{other}` must be basic, serviceAccount or {FEDERATED_AUTH_TYPE}"
                ));
            }
        }
        let Some(key_file) = key_file else { return Ok(None) };
        // An external account file is parsed for every request. The key file of a service account is not parsed here;
        // it does not contain the type `external_account`.
        let is_federated = options.get("vertex_auth_type") == Some(FEDERATED_AUTH_TYPE);
        if is_federated || memchr::memmem::find(key_file.as_bytes(), b"\"external_account\"").is_some() {
            let account = external_account::parse_external_account(&key_file, OAUTH_SCOPE)?;
            return Ok(Some(Grant::ExternalAccount(Box::new(account))));
        }
        Ok(Some(Grant::ServiceAccount { key_file, scope: OAUTH_SCOPE }))
    }
}

impl ProviderModels for VertexAi {
    fn job_models(&self, job: &[u8]) -> Vec<String> {
        let Some(name) = batch_jobs::read_model(job, "model") else { return Vec::new() };
        let model_path = name.strip_prefix("publishers/").and_then(|rest| rest.split_once("/models/"));
        let Some((publisher, model)) = model_path else { return vec![name] };
        // Some names imply their publisher; clients may then also use the bare name.
        let bare = (split_publisher(model) == (publisher, model)).then(|| model.to_owned());
        let full = format!("{publisher}.{model}");
        [name.clone(), full].into_iter().chain(bare).collect()
    }
}

/// Writes the request target for Gemini's own operations. If no option names a project, the project in the client's
/// path is used. Requests with an API key may have no project.
fn write_gemini_target(
    path_info: &PathInfo<'_>,
    version: &str,
    options: &Options,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let google_path = path_info.path_options.google;
    let version =
        if google_path.is_some_and(|google_path| google_path.version == "/v1beta1") { "/v1beta1" } else { version };
    let location = match (location_path(options), google_path.and_then(|google_path| google_path.project_and_location))
    {
        (Ok(location), _) => format!("/{location}"),
        (Err(_), Some("")) => String::new(),
        (Err(_), Some(location)) => format!("/{location}"),
        (Err(missing), None) => return Err(missing),
    };
    let model = path_segment::encode_model(split_publisher(path_info.model).1)?;
    out.extend_from_slice(format!("{version}{location}/publishers/google/models/{model}:").as_bytes());
    write_native_verb(path_info, out);
    Ok(())
}

/// Returns the project and the region as a path.
fn location_path(options: &Options) -> Result<String, String> {
    let region = require_region(options)?;
    Ok(format!("projects/{}/locations/{region}", require_project(options)?))
}

fn require_project(options: &Options) -> Result<String, String> {
    let project = options.get("vertex_project_id").map(ToOwned::to_owned).or_else(|| service_account_project(options));
    Ok(path_segment::encode_segment(&project.ok_or("no project: send x-gateway-vertex-project-id")?))
}

/// Writes the path of one job or of the job list. Lists request a fixed page size.
fn write_job_path(path_info: &PathInfo<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    match path_info.operation {
        Operation::ListFinetunes | Operation::ListBatches => out.extend_from_slice(b"?pageSize=100"),
        Operation::CreateFinetune | Operation::CreateBatch => (),
        operation => {
            let is_end = matches!(operation, Operation::CancelFinetune | Operation::CancelBatch);
            let verb = if is_end { ":cancel" } else { "" };
            out.extend_from_slice(format!("/{}{verb}", job_id_in_path(path_info.path)?).as_bytes());
        }
    }
    Ok(())
}

/// Returns the method that is called on the model.
fn model_method(path_info: &PathInfo<'_>, publisher: &str) -> &'static str {
    match (publisher, path_info.operation, path_info.is_streaming) {
        ("google", operation, _) if operation.is_embedding() => "predict",
        ("google", ..) => google::translated_verb(path_info),
        (_, _, true) => "streamRawPredict",
        (_, _, false) => "rawPredict",
    }
}

/// Returns the project of the service account in the key file.
fn service_account_project(options: &Options) -> Option<String> {
    let key_file: serde_json::Value = serde_json::from_str(options.get("vertex_service_account_json")?).ok()?;
    Some(key_file["project_id"].as_str()?.to_owned())
}

fn require_region(options: &Options) -> Result<&str, String> {
    let region = options.get("vertex_region").ok_or("no region: send x-gateway-vertex-region")?;
    if path_segment::is_host_label(region) {
        Ok(region)
    } else {
        Err("vertex_region must be letters, digits and dashes".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{GooglePathOptions, PathOptions};

    fn request_target(model: &str, streams: bool) -> Result<String, String> {
        let mut options = Options::default();
        options.insert_if_absent(OPTIONS[0], "my-project".into());
        options.insert_if_absent(OPTIONS[1], "europe-west4".into());
        let operation = Operation::ChatComplete;
        let path_info = PathInfo { is_streaming: streams, ..PathInfo::for_test(operation, "/chat/completions", model) };
        let mut out = Vec::new();
        VertexAi.write_request_target(&path_info, &options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn publisher_of_the_model_selects_the_path() {
        let gemini =
            "/v1/projects/my-project/locations/europe-west4/publishers/google/models/gemini-2.5-pro:generateContent";
        assert_eq!(request_target("gemini-2.5-pro", false).unwrap(), gemini);
        assert_eq!(request_target("google.gemini-2.5-pro", false).unwrap(), gemini);
        let claude = request_target("anthropic.claude-sonnet-4-5@20250929", true).unwrap();
        assert!(
            claude.ends_with("/publishers/anthropic/models/claude-sonnet-4-5%4020250929:streamRawPredict"),
            "{claude}"
        );
        let location = "projects/my-project/locations/europe-west4";
        let llama = request_target("meta.llama-4-maverick", false).unwrap();
        assert_eq!(llama, format!("/v1beta1/{location}/endpoints/openapi/chat/completions"));
        let mistral = request_target("mistralai.mistral-small-2503", true).unwrap();
        assert_eq!(mistral, format!("/v1/{location}/publishers/mistralai/models/mistral-small-2503:streamRawPredict"));
        assert_eq!(
            request_target("endpoints.123", false).unwrap(),
            format!("/v1/{location}/endpoints/123/chat/completions")
        );
    }

    #[test]
    fn gemini_clients_keep_their_api_version_and_their_project_if_no_option_names_one() {
        let target = |google, pairs: &[(&str, &str)]| {
            let path_info = PathInfo::for_test(Operation::GenerateContent, "/models/g:generateContent", "g");
            let path_info = PathInfo { path_options: PathOptions { google, ..path_info.path_options }, ..path_info };
            let mut out = Vec::new();
            VertexAi.write_request_target(&path_info, &Options::from_pairs(OPTIONS, pairs), &mut out)?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        let google_path = |version, location| Some(GooglePathOptions { version, project_and_location: location });
        let project_options = [("vertex_project_id", "mine"), ("vertex_region", "global")];
        let client_location = "projects/p/locations/eu";
        for (google, pairs, sent) in [
            (None, &project_options[..], "/v1/projects/mine/locations/global/"),
            (google_path("/v1beta", None), &project_options, "/v1/projects/mine/locations/global/"),
            (
                google_path("/v1beta1", Some(client_location)),
                &project_options,
                "/v1beta1/projects/mine/locations/global/",
            ),
            (
                google_path("/v1beta1", Some(client_location)),
                &project_options[1..],
                "/v1beta1/projects/p/locations/eu/",
            ),
            (google_path("/v1", Some(client_location)), &project_options[1..], "/v1/projects/p/locations/eu/"),
            (google_path("/v1beta1", Some("")), &project_options[1..], "/v1beta1/"),
        ] {
            assert_eq!(target(google, pairs).unwrap(), format!("{sent}publishers/google/models/g:generateContent"));
        }
        assert!(target(google_path("/v1beta", None), &project_options[1..]).unwrap_err().contains("no project"));
    }

    #[test]
    fn auth_type_selects_the_grant() {
        let file = ("vertex_service_account_json", "{}");
        let grant = |pairs: &[(&str, &str)]| VertexAi.grant(&Options::from_pairs(OPTIONS, pairs));
        assert!(matches!(grant(&[file]), Ok(Some(Grant::ServiceAccount { .. }))));
        assert!(matches!(grant(&[file, ("vertex_auth_type", "serviceAccount")]), Ok(Some(_))));
        assert_eq!(grant(&[file, ("vertex_auth_type", "basic")]), Ok(None));
        assert!(grant(&[("vertex_auth_type", "serviceAccount")]).unwrap_err().contains("x-gateway-vertex-service"));
        assert!(grant(&[("vertex_auth_type", "other")]).unwrap_err().contains("basic, serviceAccount or"));
    }

    #[test]
    fn validates_the_credential_source_of_an_external_account() {
        let grant = |file: &str, auth_type| {
            let pairs = [("vertex_service_account_json", file), ("vertex_auth_type", auth_type)];
            VertexAi.grant(&Options::from_pairs(OPTIONS, &pairs))
        };
        let file = |source: &str| {
            format!(
                r#"{{"type":"external_account","audience":"//a","subject_token_type":"urn:t",
                "token_url":"https://sts.googleapis.com/v1/token","credential_source":{source}}}"#
            )
        };
        for auth_type in ["serviceAccount", FEDERATED_AUTH_TYPE] {
            let Ok(Some(granted)) = grant(&file(r#"{"file":"/run/token"}"#), auth_type) else { panic!("a grant") };
            assert!(granted.is_machine_identity() && !granted.requires_signing(), "{auth_type}");
        }
        let by_url = grant(&file(r#"{"url":"https://idp.test/t","headers":{"a":"b"}}"#), FEDERATED_AUTH_TYPE);
        assert!(matches!(by_url, Ok(Some(ref grant)) if !grant.is_machine_identity()));
        let executable = file(r#"{"executable":{"command":"rm"}}"#);
        for (account_json, expected) in
            [("{}", "type"), (file("{}").as_str(), "credential_source"), (&executable, "executable")]
        {
            assert!(grant(account_json, FEDERATED_AUTH_TYPE).unwrap_err().contains(expected), "{account_json}");
        }
        for invalid in [
            r#"{"url":"https://i.test","headers":{"a b":"c"}}"#,
            r#"{"url":"https://i.test","headers":{"a":"b\r\nc: d"}}"#,
        ] {
            assert!(grant(&file(invalid), FEDERATED_AUTH_TYPE).unwrap_err().contains("headers"), "{invalid}");
        }
        assert!(grant(r#"{"type":"service_account"}"#, FEDERATED_AUTH_TYPE).unwrap_err().contains("external_account"));
    }

    #[test]
    fn region_cannot_change_the_domain() {
        let base = |region: &str| {
            let mut options = Options::default();
            options.insert_if_absent(OPTIONS[1], region.into());
            VertexAi.resolve_base_url(Operation::ChatComplete, &options)
        };
        assert_eq!(base("us-east5").unwrap().unwrap(), "https://us-east5-aiplatform.googleapis.com");
        assert_eq!(base("global").unwrap().unwrap(), "https://aiplatform.googleapis.com");
        assert_eq!(base("us").unwrap().unwrap(), "https://aiplatform.us.rep.googleapis.com");
        assert_eq!(base("eu").unwrap().unwrap(), "https://aiplatform.eu.rep.googleapis.com");
        assert!(
            base("evil.example/").is_err()
                && VertexAi.resolve_base_url(Operation::ChatComplete, &Options::default()).is_err()
        );
    }
}
