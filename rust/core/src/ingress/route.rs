//! The path of a data-plane request, taken apart: what it asks for, and what a provider's own client says in it.

use std::borrow::Cow;

use penstock_llm::{
    api_format::Dialect,
    catalog::{OfGoogle, Stated},
    operation::Operation,
};
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'r> {
    pub operation: Operation,
    /// After `/v1` or `/v1/proxy`, with its leading slash.
    pub path: &'r str,
    pub stated: Stated<'r>,
}

/// The methods that are told to who asked with none of the data plane.
pub const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Those that are none. The answers to TRACE and TRACK hold the credential that the provider was sent.
const NONE: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// Google's own versions of its API, but for the one that others have too.
const VERSIONS: [&str; 3] = ["/v1beta", "/v1alpha", "/v1beta1"];

/// Where Google's own clients begin to upload files, and go on.
const UPLOADS: [&str; 2] = ["/upload/v1/files", "/upload/v1beta/files"];

/// The address with the same path and query here, where that is one under which an upload goes on.
pub fn upload_here(there: &str, scheme: &str, host: &str) -> Option<String> {
    let (_, rest) = there.split_once("://")?;
    let asked = &rest[rest.find('/')?..];
    let path = asked.split('?').next()?;
    UPLOADS.contains(&path).then(|| format!("{scheme}://{host}{asked}"))
}

/// Whether requests with this method go anywhere: all do of which a provider may know what they mean.
pub fn is_passed(method: &str) -> bool {
    METHODS.contains(&method)
        || !NONE.iter().any(|none| none.eq_ignore_ascii_case(method))
            && http::Method::from_bytes(method.as_bytes()).is_ok()
}

/// Whether a path is one of Google's own versions.
pub fn is_of_google(path: &str) -> bool {
    VERSIONS.iter().any(|version| below(path, version).is_some())
}

/// The verb of a stream of Claude's at Vertex AI.
const STREAMED: &str = ":streamRawPredict";

/// The jobs of fine-tuning.
const TUNING: &str = "/v1/fine_tuning/jobs/";

/// The path that is meant, where it is not the one that was asked: a job of fine-tuning itself is cancelled with POST.
pub fn meant(method: &str, path: &str) -> Option<String> {
    let job = path.strip_prefix(TUNING).filter(|_| method == "POST")?;
    (!job.is_empty() && !job.contains('/')).then(|| format!("{path}/cancel"))
}

impl<'r> Route<'r> {
    /// `None` where the path is not one of the data plane.
    pub fn of(method: &str, path: &'r str) -> Option<Self> {
        let Some(rest) = below(path, "/v1") else {
            return below(path, "/openai")
                .map(|rest| Self::of_azure(method, rest))
                .or_else(|| Self::of_google(method, path))
                .or_else(|| Self::of_amazon(method, path))
                .or_else(|| Self::of_cohere(path));
        };
        match rest.strip_prefix("/proxy").filter(|rest| rest.starts_with('/')) {
            Some(raw) => Some(Self { operation: Operation::Proxy, path: raw, stated: Stated::default() }),
            None => Some(Self::of_vertex(method, "/v1", rest).unwrap_or_else(|| Self::plain(method, rest))),
        }
    }

    /// What is asked for, also where it is forwarded as it came.
    pub fn asked_for(&self, method: &str) -> Operation {
        match *self {
            Self { operation: Operation::Proxy, path, .. } if path.ends_with(":streamGenerateContent") => {
                Operation::StreamGenerateContent
            }
            // A client whose base has its own `/v1` says it twice.
            Self { operation: Operation::Proxy, path, .. } => Operation::of(method, below(path, "/v1").unwrap_or(path)),
            Self { operation, .. } => operation,
        }
    }

    /// Whether a good stream of it ends with an event that says so.
    pub fn ends_with_event(&self, method: &str) -> bool {
        let path = below(self.path, "/v1").unwrap_or(self.path);
        let is_run = || {
            path == "/fim/completions"
                || path.starts_with("/threads/") && (path.ends_with("/runs") || path.ends_with("/submit_tool_outputs"))
        };
        let is_claudes = || is_of_claude(path) && path.ends_with(STREAMED);
        self.asked_for(method).ends_with_event() || method == "POST" && (is_run() || is_claudes())
    }

    /// The path of a request for a WebSocket.
    pub fn of_socket(path: &'r str) -> Option<Self> {
        let route = Self::of("GET", path)?;
        let is_raw = path.starts_with("/v1/proxy/");
        let operation = if is_raw { Operation::Proxy } else { Operation::of_socket(route.path) };
        Some(Self { operation, ..route })
    }

    fn plain(method: &str, path: &'r str) -> Self {
        Self { operation: Operation::of(method, path), path, stated: Stated::default() }
    }

    /// The paths of Google's own clients, whose API has versions of its own; what is not read goes on under the same.
    fn of_google(method: &str, path: &'r str) -> Option<Self> {
        if UPLOADS.contains(&path) {
            return Some(Self { operation: Operation::Proxy, path, stated: Stated::default() });
        }
        let (version, rest) = VERSIONS.iter().find_map(|version| Some((*version, below(path, version)?)))?;
        if let Some(route) = Self::of_vertex(method, version, rest) {
            return Some(route);
        }
        let route = Self::plain(method, rest);
        let stated = Stated { google: Some(OfGoogle { version, place: None }), ..Stated::default() };
        let is_read = route.operation.dialect() == Some(Dialect::Gemini);
        Some(if is_read { Self { stated, ..route } } else { Self { operation: Operation::Proxy, path, ..route } })
    }

    /// The paths of Google's own client where it means Vertex AI: of the talk with Google's models, that is.
    fn of_vertex(method: &str, version: &'r str, rest: &'r str) -> Option<Self> {
        // A search costs more than all else that is looked at.
        let begins = below(rest, "/publishers").or_else(|| below(rest, "/projects"));
        let (place, models) = begins.and_then(|_| rest.split_at_checked(rest.find("/publishers/google/models/")?))?;
        let is_place = match place.split('/').collect::<Vec<_>>()[..] {
            [""] => true,
            ["", "projects", project, "locations", location] => !project.is_empty() && !location.is_empty(),
            _ => false,
        };
        let place = place.strip_prefix('/').unwrap_or(place);
        let stated = Stated { google: Some(OfGoogle { version, place: Some(place) }), ..Stated::default() };
        let route = Self { stated, ..Self::plain(method, models.strip_prefix("/publishers/google")?) };
        let is_talk = route.operation.dialect() == Some(Dialect::Gemini) && !route.operation.embeds();
        (is_place && is_talk).then_some(route)
    }

    /// The paths of Amazon's own clients, which have no version.
    fn of_amazon(method: &str, path: &'r str) -> Option<Self> {
        below(path, "/model").or_else(|| below(path, "/guardrail"))?;
        Some(Self::plain(method, path))
    }

    /// The paths of Cohere's own client, which are not read: they go to who has them.
    fn of_cohere(path: &'r str) -> Option<Self> {
        let is_known = matches!(path, "/v2/chat" | "/v2/embed" | "/v2/rerank");
        is_known.then_some(Self { operation: Operation::Proxy, path, stated: Stated::default() })
    }

    /// The model, where the path names it.
    pub fn model(&self) -> Option<Cow<'r, str>> {
        self.operation.model_in(self.path).map(|name| percent_decode_str(name).decode_utf8_lossy())
    }

    /// The paths of Azure's own client: it says there which deployment is meant, or that its API has a version of its own.
    fn of_azure(method: &str, rest: &'r str) -> Self {
        if let Some(path) = below(rest, "/v1") {
            return Self { stated: Stated { version: Some("v1"), ..Stated::default() }, ..Self::plain(method, path) };
        }
        let named = rest.strip_prefix("/deployments/").and_then(|named| named.split_at_checked(named.find('/')?));
        let deployed = named.map(|(name, path)| Self {
            stated: Stated { deployment: Some(name), ..Stated::default() },
            ..Self::plain(method, path)
        });
        deployed.filter(|route| route.operation != Operation::Proxy).unwrap_or_else(|| Self::plain(method, rest))
    }
}

/// Whether it is the path by which Anthropic's own SDK asks Vertex AI: its version stands in the body there.
pub fn is_of_claude(path: &str) -> bool {
    let is_asked = || path.ends_with(":rawPredict") || path.ends_with(STREAMED);
    is_asked() && path.contains("/publishers/anthropic/")
}

/// What follows a prefix that ends where a segment ends; `None` where that is nothing.
fn below<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with('/') && rest.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_paths_apart() {
        let route = |path| Route::of("POST", path);
        assert_eq!(route("/v1/chat/completions").unwrap().operation, Operation::ChatComplete);
        let raw = route("/v1/proxy/chat/completions").unwrap();
        assert_eq!((raw.operation, raw.path), (Operation::Proxy, "/chat/completions"));
        assert_eq!((route("/v1"), route("/v1/"), route("/v2/x"), route("/v1x/y")), (None, None, None, None));
    }

    #[test]
    fn clients_of_google_and_amazon_name_the_model_in_the_path() {
        let route = |path| {
            let route = Route::of("POST", path).unwrap();
            (route.operation.id(), route.path, route.model().map(Cow::into_owned))
        };
        let named = |model: &str| Some(model.to_owned());
        assert_eq!(
            route("/v1beta/models/gemini:generateContent"),
            ("generateContent", "/models/gemini:generateContent", named("gemini"))
        );
        assert_eq!(route("/v1/models/@mine/gpt:streamGenerateContent").2, named("@mine/gpt"));
        assert_eq!(
            route("/model/%40mine%2Fgpt%3A0/converse-stream"),
            ("converseStream", "/model/%40mine%2Fgpt%3A0/converse-stream", named("@mine/gpt:0"))
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
            (Route::of("GET", "/model"), Route::of("GET", "/models/x"), Route::of("GET", "/v1beta")),
            (None, None, None)
        );
    }

    #[test]
    fn a_job_is_cancelled_by_a_post_to_itself_too() {
        assert_eq!(meant("POST", "/v1/fine_tuning/jobs/ft-1").as_deref(), Some("/v1/fine_tuning/jobs/ft-1/cancel"));
        for (method, path) in [
            ("GET", "/v1/fine_tuning/jobs/ft-1"),
            ("POST", "/v1/fine_tuning/jobs"),
            ("POST", "/v1/fine_tuning/jobs/"),
            ("POST", "/v1/fine_tuning/jobs/ft-1/pause"),
            ("POST", "/v1/proxy/fine_tuning/jobs/ft-1"),
        ] {
            assert_eq!(meant(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn googles_own_client_says_the_version_and_the_place_in_its_path() {
        fn route(path: &str) -> (&'static str, &str, Option<(&str, Option<&str>)>) {
            let Route { operation, path, stated } = Route::of("POST", path).unwrap();
            (operation.id(), path, stated.google.map(|OfGoogle { version, place }| (version, place)))
        }
        const READ: &str = "/models/g:generateContent";
        let place = "projects/p/locations/global";
        for (path, stated) in [
            (format!("/v1beta{READ}"), ("/v1beta", None)),
            (format!("/v1alpha{READ}"), ("/v1alpha", None)),
            (format!("/v1beta1/{place}/publishers/google{READ}"), ("/v1beta1", Some(place))),
            (format!("/v1/{place}/publishers/google{READ}"), ("/v1", Some(place))),
            (format!("/v1beta1/publishers/google{READ}"), ("/v1beta1", Some(""))),
        ] {
            assert_eq!(route(&path), ("generateContent", READ, Some(stated)), "{path}");
        }
        for path in [
            "/v1/projects/p/locations/l/publishers/meta/models/m:generateContent",
            "/v1/projects/p/locations/l/x/publishers/google/models/m:generateContent",
            "/v1/projects//locations/l/publishers/google/models/m:generateContent",
            "/v1/projects/p/locations/l/publishers/google/models/m:embedContent",
        ] {
            assert_eq!(route(path), ("proxy", &path[3..], None), "{path}");
        }
    }

    #[test]
    fn an_upload_goes_on_here() {
        let here = |there| upload_here(there, "https", "gw.example:8787");
        let there =
            "https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id=A-b&upload_protocol=resumable";
        let expected = "https://gw.example:8787/upload/v1beta/files?upload_id=A-b&upload_protocol=resumable";
        assert_eq!(here(there).as_deref(), Some(expected));
        for elsewhere in ["https://storage.example/bucket/x?upload_id=A", "/upload/v1/files", "https://x", ""] {
            assert_eq!(here(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn azures_own_client_says_more_in_its_path() {
        let route = |path| {
            let Route { operation, path, stated: Stated { deployment, version, .. } } =
                Route::of("POST", path).unwrap();
            (operation.id(), path, deployment, version)
        };
        assert_eq!(
            route("/openai/deployments/d%201/chat/completions"),
            ("chatComplete", "/chat/completions", Some("d%201"), None)
        );
        assert_eq!(route("/openai/v1/responses"), ("createModelResponse", "/responses", None, Some("v1")));
        assert_eq!(route("/openai/files"), ("uploadFile", "/files", None, None));
        assert_eq!(route("/openai/deployments/d/other"), ("proxy", "/deployments/d/other", None, None));
        assert_eq!(Route::of("GET", "/openai"), None);
    }
}
