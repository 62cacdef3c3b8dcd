//! Vertex AI: Gemini and Claude, the project and the region in the path, an access token of Google's as bearer.

use super::{
    Asked, FILES, GEMINI, GEMINI_COUNT, Grant, Group, JOBS, Known, Options, Provider, Stated, external_account,
    google::write_own,
    is_in,
    options::{PROVIDER_MODEL, known, sent},
};
use crate::catalog::{batch_jobs, path_segment};
use crate::{
    chat::providers::{Wire, anthropic_hosted, anthropic_messages, gemini, openai_chat},
    embeddings::embedding_formats,
    files::{self, FileStore},
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
    rerank::rerank_formats,
    translation::{self},
};

pub(crate) struct VertexAi;

const OPTIONS: &[Known] = &[
    known("vertex_project_id", "vertex-project-id"),
    known("vertex_region", "vertex-region"),
    known("vertex_auth_type", "vertex-auth-type"),
    known("vertex_skip_ptu_cost_attribution", "vertex-skip-ptu-cost-attribution"),
    known("vertex_service_account_json", "vertex-service-account-json"),
    known("vertex_storage_bucket_name", "vertex-storage-bucket-name"),
    known("provider_file_name", "provider-file-name"),
    PROVIDER_MODEL,
    known("provider_batch_endpoint", "provider-batch-endpoint"),
    sent("anthropic_beta", "anthropic-beta"),
    known("anthropic_version", "anthropic-version"),
];

/// The way of authenticating whose file says who vouches.
const FEDERATED: &str = "workloadIdentityFederation";
/// What a service account asks to be let do.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

impl Provider for VertexAi {
    fn slug(&self) -> &'static str {
        "vertex-ai"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[GEMINI, GEMINI_COUNT, JOBS, FILES]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn base(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let is_object = matches!(operation, Operation::PutBatchObject | Operation::GetBatchObject);
        if is_object || FILES.contains(&operation) {
            return Ok(Some("https://storage.googleapis.com".into()));
        }
        if operation == Operation::Rerank {
            return Ok(Some("https://discoveryengine.googleapis.com".into()));
        }
        Ok(Some(match region(options)? {
            "global" => "https://aiplatform.googleapis.com".into(),
            // Several regions at once.
            wide @ ("us" | "eu") => format!("https://aiplatform.{wide}.rep.googleapis.com"),
            region => format!("https://{region}-aiplatform.googleapis.com"),
        }))
    }

    fn keeper(&self) -> Option<FileStore> {
        Some(FileStore::Bucket(&files::GCS))
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        let key_file = options.get("vertex_service_account_json").map(ToOwned::to_owned);
        match options.get("vertex_auth_type") {
            // A token that comes along is all there is.
            Some("basic") => return Ok(None),
            Some("serviceAccount" | FEDERATED) if key_file.is_none() => {
                return Err("no key file: send x-gateway-vertex-service-account-json".into());
            }
            None | Some("serviceAccount" | FEDERATED) => (),
            Some(other) => {
                return Err(format!("vertex_auth_type `{other}` must be basic, serviceAccount or {FEDERATED}"));
            }
        }
        let Some(key_file) = key_file else { return Ok(None) };
        // Read for every request: a key file is not, for it has no such word.
        let is_federated = options.get("vertex_auth_type") == Some(FEDERATED);
        if is_federated || memchr::memmem::find(key_file.as_bytes(), b"\"external_account\"").is_some() {
            let account = external_account::read(&key_file, SCOPE)?;
            return Ok(Some(Grant::ExternalAccount(Box::new(account))));
        }
        Ok(Some(Grant::ServiceAccount { key_file, scope: SCOPE }))
    }

    fn is_prepaid(&self, options: &Options) -> bool {
        options.get("vertex_skip_ptu_cost_attribution") == Some("true")
    }

    fn pinned<'o>(&self, options: &'o Options, _stated: Stated<'o>) -> Option<&'o str> {
        options.get(PROVIDER_MODEL.key)
    }

    fn job_models(&self, job: &[u8]) -> Vec<String> {
        let Some(name) = batch_jobs::model(job, "model") else { return Vec::new() };
        let found = name.strip_prefix("publishers/").and_then(|rest| rest.split_once("/models/"));
        let Some((whose, model)) = found else { return vec![name] };
        // Of some publishers' models it goes without saying whose they are.
        let bare = (publisher(model) == (whose, model)).then(|| model.to_owned());
        let full = format!("{whose}.{model}");
        [name.clone(), full].into_iter().chain(bare).collect()
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        let publisher = publisher(model).0;
        if is_in(&[JOBS, FILES], operation) || publisher == "google" && is_in(&[GEMINI, GEMINI_COUNT], operation) {
            return None;
        }
        let wire: &'static dyn Wire = match (operation, publisher) {
            (operation, _) if operation.tunes() => &fine_tuning_providers::VERTEX,
            (operation, _) if operation.batches() => &batch_providers::VERTEX,
            (Operation::Models, _) => &gemini::VERTEX,
            (operation, "google") if operation.counts_tokens() => &gemini::VERTEX,
            (Operation::Messages, "anthropic") => &anthropic_hosted::VERTEX,
            (operation, "anthropic") if operation.counts_tokens() => &anthropic_hosted::VERTEX,
            (operation, "google") if operation.embeds() => &embedding_formats::PREDICT,
            (Operation::Rerank, _) => &rerank_formats::GOOGLE,
            (Operation::ImageGenerate, "google") => super::google::painting(model),
            (operation, _) if !translation::is_talk(operation) => return None,
            (_, "anthropic") => &anthropic_messages::VERTEX,
            (_, "google") => &gemini::VERTEX,
            _ => &openai_chat::VERTEX,
        };
        Some(wire)
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if asked.operation == Operation::Models {
            out.extend_from_slice(b"/v1beta1/publishers/google/models?pageSize=200");
            crate::catalog::model_lists::write_next(asked, "pageToken", out);
            return Ok(());
        }
        if FILES.contains(&asked.operation) {
            out.extend_from_slice(files::GCS.request_target(asked, options)?.as_bytes());
            return Ok(());
        }
        let version = if asked.prefix.ends_with("/v1") { "" } else { "/v1" };
        if asked.operation == Operation::Rerank {
            // It is the same everywhere.
            let project = project(options)?;
            let configs = format!("{version}/projects/{project}/locations/global/rankingConfigs");
            out.extend_from_slice(format!("{configs}/default_ranking_config:rank").as_bytes());
            return Ok(());
        }
        if JOBS.contains(&asked.operation) {
            let jobs = format!("{version}/{}/batchPredictionJobs", place(options)?);
            let bucket = options.get("vertex_storage_bucket_name");
            let bucket = bucket.ok_or("no bucket: send x-gateway-vertex-storage-bucket-name");
            out.extend_from_slice(batch_jobs::path(asked, (&jobs, ":cancel"), bucket)?.as_bytes());
            return Ok(());
        }
        let is_its_own = publisher(asked.model).0 == "google" && is_in(&[GEMINI, GEMINI_COUNT], asked.operation);
        if self.wire(asked.operation, asked.model).is_none() && !is_its_own {
            if asked.operation == Operation::CountTokens {
                return Err(format!("the model `{}` cannot be asked for countTokens here", asked.model));
            }
            super::write_path(self, asked, out);
            return Ok(());
        }
        if is_its_own {
            return write_google(asked, version, options, out);
        }
        let place = place(options)?;
        if asked.operation.is_of_jobs() {
            let kind = if asked.operation.tunes() { "tuningJobs" } else { "batchPredictionJobs" };
            out.extend_from_slice(format!("{version}/{place}/{kind}").as_bytes());
            return write_job(asked, out);
        }
        let (publisher, model) = publisher(asked.model);
        let escaped = path_segment::model(model)?;
        let path = match publisher {
            "meta" => format!("/v1beta1/{place}/endpoints/openapi/chat/completions"),
            "endpoints" => format!("{version}/{place}/endpoints/{escaped}/chat/completions"),
            _ if asked.operation.counts_tokens() && publisher == "anthropic" => {
                format!("{version}/{place}/publishers/anthropic/models/count-tokens:rawPredict")
            }
            _ => format!("{version}/{place}/publishers/{publisher}/models/{escaped}:{}", verb_of(asked, publisher)),
        };
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }
}

/// What Google's own clients ask for. Where no option names a project, the one that they name counts; a key may do without.
fn write_google(asked: &Asked<'_>, version: &str, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
    let stated = asked.stated.google;
    let version = if stated.is_some_and(|stated| stated.version == "/v1beta1") { "/v1beta1" } else { version };
    let place = match (place(options), stated.and_then(|stated| stated.place)) {
        (Ok(place), _) => format!("/{place}"),
        (Err(_), Some("")) => String::new(),
        (Err(_), Some(place)) => format!("/{place}"),
        (Err(missing), None) => return Err(missing),
    };
    let model = path_segment::model(publisher(asked.model).1)?;
    out.extend_from_slice(format!("{version}{place}/publishers/google/models/{model}:").as_bytes());
    write_own(asked, out);
    Ok(())
}

/// Project and region, as they stand in paths.
fn place(options: &Options) -> Result<String, String> {
    let region = region(options)?;
    Ok(format!("projects/{}/locations/{region}", project(options)?))
}

fn project(options: &Options) -> Result<String, String> {
    let stated = options.get("vertex_project_id").map(ToOwned::to_owned).or_else(|| own_project(options));
    Ok(path_segment::escaped(&stated.ok_or("no project: send x-gateway-vertex-project-id")?))
}

/// A job of a kind, or all of them: which part of a list is told is decided here.
fn write_job(asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    match asked.operation {
        Operation::ListFinetunes | Operation::ListBatches => out.extend_from_slice(b"?pageSize=100"),
        Operation::CreateFinetune | Operation::CreateBatch => (),
        operation => {
            let is_end = matches!(operation, Operation::CancelFinetune | Operation::CancelBatch);
            let verb = if is_end { ":cancel" } else { "" };
            out.extend_from_slice(format!("/{}{verb}", super::job(asked.path)?).as_bytes());
        }
    }
    Ok(())
}

/// What is done with a model.
fn verb_of(asked: &Asked<'_>, publisher: &str) -> &'static str {
    match (publisher, asked.operation, asked.streams) {
        ("google", operation, _) if operation.embeds() => "predict",
        ("google", ..) => super::google::verb_of(asked),
        (_, _, true) => "streamRawPredict",
        (_, _, false) => "rawPredict",
    }
}

/// The project that a service account belongs to.
fn own_project(options: &Options) -> Option<String> {
    let key_file: serde_json::Value = serde_json::from_str(options.get("vertex_service_account_json")?).ok()?;
    Some(key_file["project_id"].as_str()?.to_owned())
}

fn region(options: &Options) -> Result<&str, String> {
    let region = options.get("vertex_region").ok_or("no region: send x-gateway-vertex-region")?;
    if path_segment::is_label(region) {
        Ok(region)
    } else {
        Err("vertex_region must be letters, digits and dashes".into())
    }
}

/// A model as jobs over many lines call it, which may do so themselves.
pub(crate) fn full_name(model: &str) -> String {
    if model.contains('/') {
        return model.to_owned();
    }
    let (publisher, model) = publisher(model);
    format!("publishers/{publisher}/models/{model}")
}

/// Whose model it is, and its name. Google's go without saying.
fn publisher(model: &str) -> (&'static str, &str) {
    const OTHERS: [&str; 5] = ["google", "anthropic", "meta", "mistralai", "endpoints"];
    let split =
        model.split_once('.').and_then(|(first, rest)| Some((*OTHERS.iter().find(|one| **one == first)?, rest)));
    split.unwrap_or((if model.starts_with("claude") { "anthropic" } else { "google" }, model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::OfGoogle;

    fn target(model: &str, streams: bool) -> Result<String, String> {
        let mut options = Options::default();
        options.put(OPTIONS[0], "my-project".into());
        options.put(OPTIONS[1], "europe-west4".into());
        let operation = Operation::ChatComplete;
        let asked = Asked { streams, ..Asked::of(operation, "/chat/completions", model) };
        let mut out = Vec::new();
        VertexAi.write_target(&asked, &options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn who_publishes_a_model_decides_where_it_is_asked() {
        let gemini =
            "/v1/projects/my-project/locations/europe-west4/publishers/google/models/gemini-2.5-pro:generateContent";
        assert_eq!(target("gemini-2.5-pro", false).unwrap(), gemini);
        assert_eq!(target("google.gemini-2.5-pro", false).unwrap(), gemini);
        let claude = target("anthropic.claude-sonnet-4-5@20250929", true).unwrap();
        assert!(
            claude.ends_with("/publishers/anthropic/models/claude-sonnet-4-5%4020250929:streamRawPredict"),
            "{claude}"
        );
        let place = "projects/my-project/locations/europe-west4";
        let llama = target("meta.llama-4-maverick", false).unwrap();
        assert_eq!(llama, format!("/v1beta1/{place}/endpoints/openapi/chat/completions"));
        let mistral = target("mistralai.mistral-small-2503", true).unwrap();
        assert_eq!(mistral, format!("/v1/{place}/publishers/mistralai/models/mistral-small-2503:streamRawPredict"));
        assert_eq!(target("endpoints.123", false).unwrap(), format!("/v1/{place}/endpoints/123/chat/completions"));
    }

    #[test]
    fn googles_own_client_is_asked_for_in_its_version_and_in_its_project_where_no_option_names_one() {
        let target = |google, given: &[(&str, &str)]| {
            let asked = Asked::of(Operation::GenerateContent, "/models/g:generateContent", "g");
            let asked = Asked { stated: Stated { google, ..asked.stated }, ..asked };
            let mut out = Vec::new();
            VertexAi.write_target(&asked, &Options::of(OPTIONS, given), &mut out)?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        let stated = |version, place| Some(OfGoogle { version, place });
        let own = [("vertex_project_id", "mine"), ("vertex_region", "global")];
        let there = "projects/p/locations/eu";
        for (google, given, sent) in [
            (None, &own[..], "/v1/projects/mine/locations/global/"),
            (stated("/v1beta", None), &own, "/v1/projects/mine/locations/global/"),
            (stated("/v1beta1", Some(there)), &own, "/v1beta1/projects/mine/locations/global/"),
            (stated("/v1beta1", Some(there)), &own[1..], "/v1beta1/projects/p/locations/eu/"),
            (stated("/v1", Some(there)), &own[1..], "/v1/projects/p/locations/eu/"),
            (stated("/v1beta1", Some("")), &own[1..], "/v1beta1/"),
        ] {
            assert_eq!(target(google, given).unwrap(), format!("{sent}publishers/google/models/g:generateContent"));
        }
        assert!(target(stated("/v1beta", None), &own[1..]).unwrap_err().contains("no project"));
    }

    #[test]
    fn how_a_token_comes_is_said_or_seen() {
        let file = ("vertex_service_account_json", "{}");
        let grant = |given: &[(&str, &str)]| VertexAi.grant(&Options::of(OPTIONS, given));
        assert!(matches!(grant(&[file]), Ok(Some(Grant::ServiceAccount { .. }))));
        assert!(matches!(grant(&[file, ("vertex_auth_type", "serviceAccount")]), Ok(Some(_))));
        assert_eq!(grant(&[file, ("vertex_auth_type", "basic")]), Ok(None));
        assert!(grant(&[("vertex_auth_type", "serviceAccount")]).unwrap_err().contains("x-gateway-vertex-service"));
        assert!(grant(&[("vertex_auth_type", "other")]).unwrap_err().contains("basic, serviceAccount or"));
    }

    #[test]
    fn who_is_known_by_somebody_elses_word_says_where_that_is() {
        let grant = |file: &str, way| {
            let given = [("vertex_service_account_json", file), ("vertex_auth_type", way)];
            VertexAi.grant(&Options::of(OPTIONS, &given))
        };
        let file = |source: &str| {
            format!(
                r#"{{"type":"external_account","audience":"//a","subject_token_type":"urn:t",
                "token_url":"https://sts.googleapis.com/v1/token","credential_source":{source}}}"#
            )
        };
        for way in ["serviceAccount", FEDERATED] {
            let Ok(Some(own)) = grant(&file(r#"{"file":"/run/token"}"#), way) else { panic!("a grant") };
            assert!(own.is_machines() && !own.is_to_sign(), "{way}");
        }
        let asked = grant(&file(r#"{"url":"https://idp.test/t","headers":{"a":"b"}}"#), FEDERATED);
        assert!(matches!(asked, Ok(Some(ref grant)) if !grant.is_machines()));
        let executable = file(r#"{"executable":{"command":"rm"}}"#);
        for (told, words) in [("{}", "type"), (file("{}").as_str(), "credential_source"), (&executable, "executable")] {
            assert!(grant(told, FEDERATED).unwrap_err().contains(words), "{told}");
        }
        for odd in [
            r#"{"url":"https://i.test","headers":{"a b":"c"}}"#,
            r#"{"url":"https://i.test","headers":{"a":"b\r\nc: d"}}"#,
        ] {
            assert!(grant(&file(odd), FEDERATED).unwrap_err().contains("headers"), "{odd}");
        }
        assert!(grant(r#"{"type":"service_account"}"#, FEDERATED).unwrap_err().contains("external_account"));
    }

    #[test]
    fn a_region_is_part_of_a_host_and_nothing_else() {
        let base = |region: &str| {
            let mut options = Options::default();
            options.put(OPTIONS[1], region.into());
            VertexAi.base(Operation::ChatComplete, &options)
        };
        assert_eq!(base("us-east5").unwrap().unwrap(), "https://us-east5-aiplatform.googleapis.com");
        assert_eq!(base("global").unwrap().unwrap(), "https://aiplatform.googleapis.com");
        assert_eq!(base("us").unwrap().unwrap(), "https://aiplatform.us.rep.googleapis.com");
        assert_eq!(base("eu").unwrap().unwrap(), "https://aiplatform.eu.rep.googleapis.com");
        assert!(base("evil.example/").is_err() && VertexAi.base(Operation::ChatComplete, &Options::default()).is_err());
    }
}
