//! Route of a data-plane request. Parses the operation and the values that provider SDKs put in the path.

use std::borrow::Cow;

use penstock_llm::{
    api_format::ApiFormat,
    catalog::{GooglePathOptions, PathOptions},
    operation::Operation,
};
use penstock_net::headers::Headers;
use percent_encoding::percent_decode_str;

use crate::ingress::{client_sdk, lenient_path, message::RequestHead};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'r> {
    pub operation: Operation,
    /// Path after `/v1` or `/v1/proxy`, with its leading slash.
    pub path: &'r str,
    pub path_params: PathOptions<'r>,
    /// Operation of a forwarded request whose path has another spelling or base than the gateway's routes.
    pub forwarded: Operation,
}

/// Methods that the gateway lists in the `Allow` header if a method is not supported.
pub const ALLOWED_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Methods that are rejected. Responses to TRACE and TRACK echo the credential that was sent to the provider.
const REJECTED_METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// Version prefixes of Google's API, except for `/v1`, which other providers use too.
const GOOGLE_VERSIONS: [&str; 3] = ["/v1beta", "/v1alpha", "/v1beta1"];

/// Prefix of the paths at which Google's SDKs start and continue uploads, followed by a version.
const GOOGLE_UPLOAD_PREFIX: &str = "/upload";

/// First path segments below `/v1` that belong to features of the management API, with or without an implementation.
/// Requests to them are never forwarded to a provider, because they contain data for the gateway.
pub const RESERVED_SEGMENTS: [&str; 22] = [
    "admin",
    "agent",
    "agent-integrations",
    "agent-servers",
    "analytics",
    "collections",
    "execute-guardrails",
    "feedback",
    "gateway",
    "guardrails",
    "labels",
    "logs",
    "mcp",
    "mcp-integrations",
    "mcp-servers",
    "oauth",
    "otel",
    "policies",
    "prompt",
    "prompts",
    "scim",
    "workspace-exclusions",
];

/// Names of first path segments that are singular instead of plural, or plural instead of singular, such as `config` in
/// `/v1/config` for `/v1/configs`. No provider has a path with these names.
const WRONG_NUMBERS: [&str; 20] = [
    "analytic",
    "api-key",
    "audit-log",
    "collection",
    "config",
    "execute-guardrail",
    "feedbacks",
    "guardrail",
    "integration",
    "label",
    "limit",
    "log",
    "model-config",
    "policy",
    "provider",
    "secret-reference",
    "trace",
    "virtual-key",
    "workspace",
    "workspace-exclusion",
];

/// Returns the management feature that a path belongs to, by its first segment below `/v1`. The path of a newer route
/// is `/v1/v2/…` if the base URL of the client ends in `/v1`.
pub fn reserved_feature(path: &str) -> Option<&'static str> {
    find_first_segment(path, &RESERVED_SEGMENTS)
}

/// Returns the name that equals the first segment below `/v1`, regardless of case and percent-encoding.
fn find_first_segment(path: &str, names: &[&'static str]) -> Option<&'static str> {
    let rest = path.strip_prefix("/v1/")?;
    let rest = rest.strip_prefix("v2/").unwrap_or(rest);
    let segment = rest.split('/').next()?;
    let decoded = percent_decode_str(segment).decode_utf8_lossy();
    names.iter().find(|name| name.eq_ignore_ascii_case(&decoded)).copied()
}

/// Returns true if a path is a misspelled path of the management API, of files, batches or models, such as
/// `/v1//configs` or `/v1/config`. No provider may get such a request, because rights are checked for the exact
/// spelling only. `is_management` decides for an exact path.
pub fn is_misspelled(method: &str, path: &str, is_management: impl Fn(&str) -> bool) -> bool {
    if path.starts_with("/v1/proxy/") {
        return false;
    }
    if lenient_path::is_plain(path) {
        return find_first_segment(path, &WRONG_NUMBERS).is_some();
    }
    let plain = lenient_path::read_leniently(path);
    let plain = lenient_path::strip_repeated_version(&plain);
    let is_reserved = || reserved_feature(plain).or_else(|| find_first_segment(plain, &WRONG_NUMBERS)).is_some();
    if plain != path && (is_management(plain) || is_reserved()) {
        return true;
    }
    let operation = plain.strip_prefix("/v1").map(|rest| Operation::from_spelled_path(method, rest));
    operation.is_some_and(|operation| operation.is_about_stored_data() || operation == Operation::Models)
        && Route::parse(method, path).is_some_and(|route| route.operation == Operation::Proxy)
}

/// Returns true if Google's SDKs start or continue uploads at a path.
pub fn is_upload_path(path: &str) -> bool {
    strip_path_prefix(path, GOOGLE_UPLOAD_PREFIX)
        .is_some_and(|rest| strip_path_prefix(rest, "/v1").is_some() || is_google_path(rest))
}

/// Splits the URL of an upload into its path and query. `None` for other URLs.
pub fn split_upload_url(url: &str) -> Option<(&str, &str)> {
    let (_, rest) = url.split_once("://")?;
    let target = &rest[rest.find('/')?..];
    Some(target.split_once('?').unwrap_or((target, ""))).filter(|(path, _)| is_upload_path(path))
}

/// Returns true if requests with this method are forwarded. A valid custom method is forwarded, because a provider may
/// support it.
pub fn is_forwarded_method(method: &str) -> bool {
    ALLOWED_METHODS.contains(&method)
        || !REJECTED_METHODS.iter().any(|none| none.eq_ignore_ascii_case(method))
            && http::Method::from_bytes(method.as_bytes()).is_ok()
}

/// Returns true if the path has one of Google's own version prefixes.
pub fn is_google_path(path: &str) -> bool {
    GOOGLE_VERSIONS.iter().any(|version| strip_path_prefix(path, version).is_some())
}

/// Path suffix of streaming requests for Claude on Vertex AI.
const STREAM_RAW_PREDICT: &str = ":streamRawPredict";

/// Path prefix of fine-tuning jobs.
const FINE_TUNING_JOBS: &str = "/v1/fine_tuning/jobs/";

/// Returns the cancel path for a POST to a fine-tuning job itself, which some clients use to cancel it. `None` for
/// other requests.
pub fn rewrite_cancel_path(method: &str, path: &str) -> Option<String> {
    let job = path.strip_prefix(FINE_TUNING_JOBS).filter(|_| method == "POST")?;
    (!job.is_empty() && !job.contains('/')).then(|| format!("{path}/cancel"))
}

impl<'r> Route<'r> {
    /// Creates the route of a path after `/v1`.
    pub fn new(operation: Operation, path: &'r str) -> Self {
        Self { operation, path, path_params: PathOptions::default(), forwarded: Operation::Proxy }
    }

    /// Parses the path of a request. `None` if it does not belong to the data plane.
    pub fn parse(method: &str, path: &'r str) -> Option<Self> {
        let route = Self::parse_exactly(method, path)?;
        if route.operation != Operation::Proxy {
            return Some(route);
        }
        // A client whose base URL ends with `/v1` repeats it in the path.
        let exact = Operation::from_method_and_path(method, strip_path_prefix(route.path, "/v1").unwrap_or(route.path));
        let forwarded = match exact {
            Operation::Proxy => lenient_path::find_operation(method, route.path),
            exact => exact,
        };
        Some(Self { forwarded, ..route })
    }

    fn parse_exactly(method: &str, path: &'r str) -> Option<Self> {
        let Some(rest) = strip_path_prefix(path, "/v1") else {
            return strip_path_prefix(path, "/openai")
                .map(|rest| Self::parse_azure(method, rest))
                .or_else(|| Self::parse_google(method, path))
                .or_else(|| Self::parse_bedrock(method, path))
                .or_else(|| Self::parse_cohere(path));
        };
        match rest.strip_prefix("/proxy").filter(|rest| rest.starts_with('/')) {
            Some(raw) => Some(Self::new(Operation::Proxy, raw)),
            None => Some(Self::parse_vertex(method, "/v1", rest).unwrap_or_else(|| Self::from_path(method, rest))),
        }
    }

    /// Returns the route for a request. The output of a batch has a path of the gateway, and is read at whichever
    /// provider has the batch.
    #[must_use]
    pub fn for_request(self, head: &RequestHead) -> Self {
        if head.batch_output.is_some() { self } else { self.for_client(&head.headers) }
    }

    /// Returns the route for a client with these headers. Files and batches of Google's API have the same paths as
    /// `OpenAI`'s, but not their format, so they are forwarded.
    #[must_use]
    pub fn for_client(self, headers: &Headers) -> Self {
        let operation = self.operation;
        let is_shared = operation.is_file_operation() || operation.is_batch();
        // Google's clients create no batches or files at these paths, so their headers do not count there. Otherwise a
        // header could prevent that a batch of another provider is billed.
        let is_shared = is_shared
            && !matches!(operation, Operation::CreateBatch | Operation::CreateBatchJob | Operation::UploadFile);
        let is_google = is_shared && client_sdk::is_google_client(headers);
        if is_google { Self { operation: Operation::Proxy, forwarded: operation, ..self } } else { self }
    }

    /// Returns the operation of the request, also for paths under `/v1/proxy` and for other spellings of a path.
    pub fn effective_operation(&self) -> Operation {
        if self.operation == Operation::Proxy { self.forwarded } else { self.operation }
    }

    /// Returns true if a complete stream of this route ends with a final event.
    pub fn ends_with_event(&self, method: &str) -> bool {
        let path = strip_path_prefix(self.path, "/v1").unwrap_or(self.path);
        let is_run = || {
            path == "/fim/completions"
                || path.starts_with("/threads/") && (path.ends_with("/runs") || path.ends_with("/submit_tool_outputs"))
        };
        let is_claude = || is_vertex_claude_path(path) && path.ends_with(STREAM_RAW_PREDICT);
        self.effective_operation().has_terminal_event() || method == "POST" && (is_run() || is_claude())
    }

    /// Parses the path of a WebSocket upgrade request.
    pub fn parse_websocket(path: &'r str) -> Option<Self> {
        let route = Self::parse("GET", path)?;
        let is_raw = path.starts_with("/v1/proxy/");
        let operation = if is_raw { Operation::Proxy } else { Operation::from_websocket_path(route.path) };
        let forwarded = match lenient_path::find_operation("GET", route.path) {
            Operation::Realtime => Operation::Realtime,
            // A WebSocket of the Responses API has the path of its `POST`.
            _ => lenient_path::find_operation("POST", route.path),
        };
        Some(Self { operation, forwarded, ..route })
    }

    fn from_path(method: &str, path: &'r str) -> Self {
        Self::new(Operation::from_method_and_path(method, path), path)
    }

    /// Parses paths of Google's SDKs, which have their own versions. Operations that the gateway does not support are
    /// forwarded with the same path.
    fn parse_google(method: &str, path: &'r str) -> Option<Self> {
        if is_upload_path(path) {
            return Some(Self::new(Operation::Proxy, path));
        }
        let (version, rest) =
            GOOGLE_VERSIONS.iter().find_map(|version| Some((*version, strip_path_prefix(path, version)?)))?;
        if let Some(route) = Self::parse_vertex(method, version, rest) {
            return Some(route);
        }
        let route = Self::from_path(method, rest);
        let stated = PathOptions {
            google: Some(GooglePathOptions { version, project_and_location: None }),
            ..PathOptions::default()
        };
        let is_read = route.operation.api_format() == Some(ApiFormat::Gemini);
        Some(if is_read {
            Self { path_params: stated, ..route }
        } else {
            Self { operation: Operation::Proxy, path, ..route }
        })
    }

    /// Parses Vertex AI paths of Google's SDK. Only content generation by Google's models is supported.
    fn parse_vertex(method: &str, version: &'r str, rest: &'r str) -> Option<Self> {
        // Checks the prefixes first, because the substring search is the most expensive step.
        let begins = strip_path_prefix(rest, "/publishers").or_else(|| strip_path_prefix(rest, "/projects"));
        let (project_path, models) =
            begins.and_then(|_| rest.split_at_checked(rest.find("/publishers/google/models/")?))?;
        let is_place = match project_path.split('/').collect::<Vec<_>>()[..] {
            [""] => true,
            ["", "projects", project, "locations", location] => !project.is_empty() && !location.is_empty(),
            _ => false,
        };
        let project_path = project_path.strip_prefix('/').unwrap_or(project_path);
        let stated = PathOptions {
            google: Some(GooglePathOptions { version, project_and_location: Some(project_path) }),
            ..PathOptions::default()
        };
        let route = Self { path_params: stated, ..Self::from_path(method, models.strip_prefix("/publishers/google")?) };
        let is_chat = route.operation.api_format() == Some(ApiFormat::Gemini) && !route.operation.is_embedding();
        (is_place && is_chat).then_some(route)
    }

    /// Parses paths of Amazon's SDKs, which have no version.
    fn parse_bedrock(method: &str, path: &'r str) -> Option<Self> {
        strip_path_prefix(path, "/model").or_else(|| strip_path_prefix(path, "/guardrail"))?;
        Some(Self::from_path(method, path))
    }

    /// Parses paths of Cohere's SDK. Their requests are only forwarded, never translated.
    fn parse_cohere(path: &'r str) -> Option<Self> {
        let is_known = matches!(path, "/v2/chat" | "/v2/embed" | "/v2/rerank");
        is_known.then_some(Self::new(Operation::Proxy, path))
    }

    /// Returns the model in the path, percent-decoded. `None` if the path names none.
    pub fn model(&self) -> Option<Cow<'r, str>> {
        self.operation.model_from_path(self.path).map(|name| percent_decode_str(name).decode_utf8_lossy())
    }

    /// Parses paths of Azure's SDK, which name a deployment or an API version.
    fn parse_azure(method: &str, rest: &'r str) -> Self {
        if let Some(path) = strip_path_prefix(rest, "/v1") {
            return Self {
                path_params: PathOptions { version: Some("v1"), ..PathOptions::default() },
                ..Self::from_path(method, path)
            };
        }
        let deployment_path =
            rest.strip_prefix("/deployments/").and_then(|tail| tail.split_at_checked(tail.find('/')?));
        let deployed = deployment_path.map(|(name, path)| Self {
            path_params: PathOptions { deployment: Some(name), ..PathOptions::default() },
            ..Self::from_path(method, path)
        });
        deployed.filter(|route| route.operation != Operation::Proxy).unwrap_or_else(|| Self::from_path(method, rest))
    }
}

/// Returns true for paths of Anthropic's Vertex AI SDK, which sends the API version in the body.
pub fn is_vertex_claude_path(path: &str) -> bool {
    let is_raw_predict = || path.ends_with(":rawPredict") || path.ends_with(STREAM_RAW_PREDICT);
    is_raw_predict() && path.contains("/publishers/anthropic/")
}

/// Strips a prefix that ends at a segment boundary. `None` if nothing follows it.
fn strip_path_prefix<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with('/') && rest.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_openai_and_proxy_paths() {
        let route = |path| Route::parse("POST", path);
        assert_eq!(route("/v1/chat/completions").unwrap().operation, Operation::ChatComplete);
        let raw = route("/v1/proxy/chat/completions").unwrap();
        assert_eq!((raw.operation, raw.path), (Operation::Proxy, "/chat/completions"));
        assert_eq!((route("/v1"), route("/v1/"), route("/v2/x"), route("/v1x/y")), (None, None, None, None));
    }

    #[test]
    fn reads_model_from_google_and_amazon_paths() {
        let route = |path| {
            let route = Route::parse("POST", path).unwrap();
            (route.operation.id(), route.path, route.model().map(Cow::into_owned))
        };
        let model_name = |model: &str| Some(model.to_owned());
        assert_eq!(
            route("/v1beta/models/gemini:generateContent"),
            ("generateContent", "/models/gemini:generateContent", model_name("gemini"))
        );
        assert_eq!(route("/v1/models/@mine/gpt:streamGenerateContent").2, model_name("@mine/gpt"));
        assert_eq!(
            route("/model/%40mine%2Fgpt%3A0/converse-stream"),
            ("converseStream", "/model/%40mine%2Fgpt%3A0/converse-stream", model_name("@mine/gpt:0"))
        );
        for raw in [
            "/upload/v1/files",
            "/upload/v1beta/files",
            "/v1beta/models/m:predict",
            "/v1beta/files",
            "/v1alpha/files",
            "/v1beta1/projects/p/locations/l/publishers/google/models/m:predict",
            "/guardrail/g/version/1/apply",
            "/v2/chat",
        ] {
            assert_eq!(route(raw), ("proxy", raw, None));
        }
        assert_eq!(
            (Route::parse("GET", "/model"), Route::parse("GET", "/models/x"), Route::parse("GET", "/v1beta")),
            (None, None, None)
        );
    }

    #[test]
    fn reserves_paths_of_management_features() {
        for segment in RESERVED_SEGMENTS {
            for path in [format!("/v1/{segment}"), format!("/v1/{segment}/a/b"), format!("/v1/v2/{segment}/a")] {
                assert_eq!(reserved_feature(&path), Some(segment), "{path}");
            }
            assert_eq!(reserved_feature(&format!("/v1/proxy/{segment}")), None);
            assert_eq!(reserved_feature(&format!("/v1/{segment}x")), None);
        }
        assert_eq!(reserved_feature("/v1/Feedback"), Some("feedback"));
        assert_eq!(reserved_feature("/v1/%66eedback"), Some("feedback"));
        assert_eq!(reserved_feature("/v1/workspace-exclusions/input-guardrails"), Some("workspace-exclusions"));
        for path in [
            "/v1/agents/completions",
            "/v1/chat/completions",
            "/v1/conversations",
            "/v1/deployments/a/b/predictions",
            "/v1/evals",
            "/v1/responses",
            "/v1/sessions",
            "/v1/v2/chat",
            "/v1/videos",
            "/v1/webhooks",
        ] {
            assert_eq!(reserved_feature(path), None, "{path}");
        }
    }

    #[test]
    fn the_other_number_of_a_management_path_is_misspelled() {
        for path in
            ["/v1/config", "/v1/Feedbacks", "/v1/guardrail/pg-1", "/v1/%61pi-key", "/v1//config", "/v1/v2/policy"]
        {
            assert!(is_misspelled("GET", path, |_| false), "{path}");
        }
        for path in
            ["/v1/proxy/config", "/v1/agents/completions", "/v1/configurations", "/v1/chat/completions", "/config"]
        {
            assert!(!is_misspelled("GET", path, |_| false), "{path}");
        }
    }

    #[test]
    fn post_to_a_fine_tuning_job_cancels_it() {
        assert_eq!(
            rewrite_cancel_path("POST", "/v1/fine_tuning/jobs/ft-1").as_deref(),
            Some("/v1/fine_tuning/jobs/ft-1/cancel")
        );
        for (method, path) in [
            ("GET", "/v1/fine_tuning/jobs/ft-1"),
            ("POST", "/v1/fine_tuning/jobs"),
            ("POST", "/v1/fine_tuning/jobs/"),
            ("POST", "/v1/fine_tuning/jobs/ft-1/pause"),
            ("POST", "/v1/proxy/fine_tuning/jobs/ft-1"),
        ] {
            assert_eq!(rewrite_cancel_path(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn reads_version_and_location_from_google_paths() {
        fn parse_route(path: &str) -> (&'static str, &str, Option<(&str, Option<&str>)>) {
            let Route { operation, path, path_params: stated, .. } = Route::parse("POST", path).unwrap();
            (
                operation.id(),
                path,
                stated.google.map(|GooglePathOptions { version, project_and_location: location }| (version, location)),
            )
        }
        const GENERATE_PATH: &str = "/models/g:generateContent";
        let location = "projects/p/locations/global";
        for (path, stated) in [
            (format!("/v1beta{GENERATE_PATH}"), ("/v1beta", None)),
            (format!("/v1alpha{GENERATE_PATH}"), ("/v1alpha", None)),
            (format!("/v1beta1/{location}/publishers/google{GENERATE_PATH}"), ("/v1beta1", Some(location))),
            (format!("/v1/{location}/publishers/google{GENERATE_PATH}"), ("/v1", Some(location))),
            (format!("/v1beta1/publishers/google{GENERATE_PATH}"), ("/v1beta1", Some(""))),
        ] {
            assert_eq!(parse_route(&path), ("generateContent", GENERATE_PATH, Some(stated)), "{path}");
        }
        for path in [
            "/v1/projects/p/locations/l/publishers/meta/models/m:generateContent",
            "/v1/projects/p/locations/l/x/publishers/google/models/m:generateContent",
            "/v1/projects//locations/l/publishers/google/models/m:generateContent",
            "/v1/projects/p/locations/l/publishers/google/models/m:embedContent",
        ] {
            assert_eq!(parse_route(path), ("proxy", &path[3..], None), "{path}");
        }
    }

    #[test]
    fn splits_upload_urls_of_google() {
        let google = "https://generativelanguage.googleapis.com";
        for (url, expected) in [
            ("/upload/v1beta/files?upload_id=A-b", ("/upload/v1beta/files", "upload_id=A-b")),
            ("/upload/v1/files", ("/upload/v1/files", "")),
            ("/upload/v1alpha/fileSearchStores/a:upload?x", ("/upload/v1alpha/fileSearchStores/a:upload", "x")),
        ] {
            assert_eq!(split_upload_url(&format!("{google}{url}")), Some(expected), "{url}");
        }
        for elsewhere in ["https://storage.example/bucket/x?upload_id=A", "/upload/v1/files", "https://x", ""] {
            assert_eq!(split_upload_url(elsewhere), None, "{elsewhere}");
        }
        for other in ["/upload/v1", "/upload/v2/files", "/upload/files", "/uploads/v1/files", "/v1/upload/v1/files"] {
            assert!(!is_upload_path(other), "{other}");
        }
    }

    #[test]
    fn forwards_files_and_batches_of_google_clients() {
        let operation = |method, path, header: &'static [u8]| {
            let headers = [(header, &b"1"[..])].into_iter().collect();
            Route::parse(method, path).unwrap().for_client(&headers).operation
        };
        for (method, path, is_shared) in [
            ("GET", "/v1/files", true),
            ("GET", "/v1/files/a", true),
            ("DELETE", "/v1/files/a", true),
            ("GET", "/v1/batches", true),
            ("GET", "/v1/batches/a", true),
            ("POST", "/v1/batches", false),
            ("POST", "/v1/files", false),
            ("GET", "/v1/models", false),
            ("POST", "/v1/models/m:generateContent", false),
            ("POST", "/v1/chat/completions", false),
        ] {
            let plain = Route::parse(method, path).unwrap().operation;
            assert_eq!(operation(method, path, b"x-api-key"), plain);
            for header in [&b"x-goog-api-key"[..], b"x-goog-api-client"] {
                let actual = operation(method, path, header);
                assert_eq!(actual, if is_shared { Operation::Proxy } else { plain }, "{method} {path}");
            }
        }
    }

    #[test]
    fn reads_deployment_and_version_from_azure_paths() {
        let route = |path| {
            let Route { operation, path, path_params: PathOptions { deployment, version, .. }, .. } =
                Route::parse("POST", path).unwrap();
            (operation.id(), path, deployment, version)
        };
        assert_eq!(
            route("/openai/deployments/d%201/chat/completions"),
            ("chatComplete", "/chat/completions", Some("d%201"), None)
        );
        assert_eq!(route("/openai/v1/responses"), ("createModelResponse", "/responses", None, Some("v1")));
        assert_eq!(route("/openai/files"), ("uploadFile", "/files", None, None));
        assert_eq!(route("/openai/deployments/d/other"), ("proxy", "/deployments/d/other", None, None));
        assert_eq!(Route::parse("GET", "/openai"), None);
    }
}
