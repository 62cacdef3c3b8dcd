//! Azure `OpenAI`: an address for each customer, the deployment in the path, the API's version in the query.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::{
    Asked, Credential, Grant, Group, Known, Options, Provider, Stated, entra,
    openai::OFFERS,
    options::{joined, known, sent},
};
use crate::catalog::path_segment::escaped;
use crate::operation::Operation;

pub(crate) struct AzureOpenAi;

const RESOURCE: Known = known("resource_name", "azure-resource-name");

/// What follows a resource in the name of its host.
const DOMAIN: &str = ".openai.azure.com";

const OPTIONS: [Known; 15] = joined(
    entra::OPTIONS,
    [
        RESOURCE,
        known("deployment_id", "azure-deployment-id"),
        known("api_version", "azure-api-version"),
        known("azure_ad_token", "azure-ad-token"),
        known("azure_model_name", "azure-model-name"),
        sent("openai_beta", "openai-beta"),
    ],
);

/// Access tokens are JSON web tokens and begin so; keys of the service are not.
const TOKEN_PREFIX: &str = "eyJ";

/// The version whose paths name no deployment and whose queries no version.
const VERSION_ONE: &str = "v1";

/// Versions before refuse them.
const FIRST_WITH_STREAM_OPTIONS: &str = "2024-09-01";

impl Provider for AzureOpenAi {
    fn slug(&self) -> &'static str {
        "azure-openai"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        OFFERS
    }

    fn options(&self) -> &'static [Known] {
        &OPTIONS
    }

    fn base(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let name = options.get("resource_name").ok_or("no resource: send x-gateway-azure-resource-name")?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err("resource_name must be letters, digits and dashes".into());
        }
        Ok(Some(format!("https://{name}{DOMAIN}/openai")))
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        let version = asked.stated.version.or_else(|| options.get("api_version"));
        let asked = &Asked { path: below_host(asked)?, ..*asked };
        let is_raw = asked.operation == Operation::Proxy && is_whole(asked.path);
        if version == Some(VERSION_ONE) && !is_raw {
            out.extend_from_slice(b"/v1");
        } else if self.is_below_deployment(asked.operation) {
            out.extend_from_slice(b"/deployments/");
            out.extend_from_slice(deployment(asked, options)?.as_bytes());
        }
        out.extend_from_slice(self.path(asked.operation).unwrap_or(asked.path).as_bytes());
        let query = session_query(asked, version, options);
        let asked = &Asked { query: query.as_deref().unwrap_or(asked.query), ..*asked };
        write_query(asked, version.filter(|version| *version != VERSION_ONE), out);
        let has_version = version.is_some() || names_version(asked.query) || asked.operation == Operation::Proxy;
        if has_version { Ok(()) } else { Err("no API version: send x-gateway-azure-api-version".into()) }
    }

    fn takes_stream_options(&self, version: Option<&str>, options: &Options) -> bool {
        // Versions are dates, but for the newest.
        let version = version.or_else(|| options.get("api_version"));
        version.is_some_and(|version| version >= FIRST_WITH_STREAM_OPTIONS)
    }

    fn credential(&self, key: &str, _prefix: &str) -> Credential {
        if key.starts_with(TOKEN_PREFIX) { Credential::Bearer } else { Credential::Header("api-key") }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        // A token that is there goes before one that is fetched.
        if self.token(options).is_some() { Ok(None) } else { entra::grant(options) }
    }

    fn leaves_blobs(&self) -> bool {
        true
    }

    fn token<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("azure_ad_token")
    }

    fn pinned<'o>(&self, options: &'o Options, stated: Stated<'o>) -> Option<&'o str> {
        options.get("deployment_id").or(stated.deployment)
    }

    fn spliced<'o>(&self, operation: Operation, options: &'o Options, stated: Stated<'o>) -> Option<Cow<'o, str>> {
        let version = stated.version.or_else(|| options.get("api_version"));
        let is_in_path = version != Some(VERSION_ONE) && self.is_below_deployment(operation);
        let is_asked = self.is_below_deployment(operation) || operation == Operation::CreateModelResponse;
        if is_in_path || !is_asked {
            return None;
        }
        let stated = || stated.deployment.map(|named| percent_decode_str(named).decode_utf8_lossy());
        options.get("deployment_id").map(Cow::Borrowed).or_else(stated)
    }

    fn said_in_path<'p>(&self, path: &'p str) -> Option<(Known, &'p str)> {
        host_in(path).map(|(resource, _)| (RESOURCE, resource))
    }

    fn model<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("azure_model_name")
    }
}

impl AzureOpenAi {
    /// Whether a deployment stands in the path, but for version one.
    fn is_below_deployment(&self, operation: Operation) -> bool {
        is_deployed(operation) || self.wire(operation, "").is_some()
    }
}

/// The resource whose host a path begins with, and what follows the host.
fn host_in(path: &str) -> Option<(&str, &str)> {
    let (host, _) = path.strip_prefix('/')?.split_once('/')?;
    Some((host.strip_suffix(DOMAIN)?, &path[1 + host.len()..]))
}

/// The path below the base, where it is passed on with or without the host.
fn below_host<'p>(asked: &Asked<'p>) -> Result<&'p str, String> {
    let Some((_, path)) = host_in(asked.path).filter(|_| asked.operation == Operation::Proxy) else {
        return Ok(asked.path);
    };
    let below = path.strip_prefix("/openai").filter(|rest| rest.starts_with('/'));
    below.ok_or_else(|| "a path that begins with a resource's host must go on with /openai/".into())
}

/// Whether a path says all that there is to say after the base.
fn is_whole(path: &str) -> bool {
    path.starts_with("/deployments/") || path.starts_with("/v1/")
}

/// Whether a deployment serves it; all else belongs to the resource.
fn is_deployed(operation: Operation) -> bool {
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

/// The deployment as a segment of the path: the options', the one in the caller's path, or the one of the model's name.
fn deployment(asked: &Asked<'_>, options: &Options) -> Result<String, String> {
    let stated = || asked.stated.deployment.map(ToOwned::to_owned);
    let named = || Some(asked.model).filter(|model| !model.is_empty()).map(escaped);
    let segment = options.get("deployment_id").map(escaped).or_else(stated).or_else(named);
    let segment = segment.ok_or("no deployment: send x-gateway-azure-deployment-id, or name a model")?;
    if segment == "." || segment == ".." { Err("a deployment must not be dots".into()) } else { Ok(segment) }
}

pub(crate) fn write_query(asked: &Asked<'_>, version: Option<&str>, out: &mut Vec<u8>) {
    let version = version.filter(|_| !names_version(asked.query));
    if !asked.query.is_empty() || version.is_some() {
        out.push(b'?');
    }
    out.extend_from_slice(asked.query.as_bytes());
    if let Some(version) = version {
        if !asked.query.is_empty() {
            out.push(b'&');
        }
        out.extend_from_slice(b"api-version=");
        out.extend_from_slice(escaped(version).as_bytes());
    }
}

/// Where a session is, with whoever has no version of its own for it: in version one.
pub(crate) fn write_session(asked: &Asked<'_>, version: Option<&str>, out: &mut Vec<u8>) {
    let version = version.filter(|version| *version != VERSION_ONE);
    let renamed = version.map(|_| by_deployment(asked.query));
    out.extend_from_slice(if version.is_some() { b"/realtime" } else { b"/v1/realtime" });
    write_query(&Asked { query: renamed.as_deref().unwrap_or(asked.query), ..*asked }, version, out);
}

/// Before version one a session is asked of a deployment, by the name that others have for a model. Where both are named it
/// is the model that was looked at.
fn by_deployment(query: &str) -> String {
    let names_model = query.split('&').any(|pair| pair.starts_with("model="));
    let pairs = query.split('&').filter(|pair| !(names_model && pair.starts_with("deployment=")));
    let pairs = pairs.map(|pair| match pair.strip_prefix("model=") {
        Some(model) => format!("deployment={model}"),
        None => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// The query of a session, where it is asked of a deployment that stands for the model or by that name; `None` where it goes as
/// it came.
fn session_query(asked: &Asked<'_>, version: Option<&str>, options: &Options) -> Option<String> {
    if asked.operation != Operation::Realtime {
        return None;
    }
    let named = options.get("deployment_id").map(|deployment| {
        let others = asked.query.split('&').filter(|pair| !pair.is_empty() && !names_asked(pair));
        let all: Vec<_> = others.map(ToOwned::to_owned).chain([format!("model={}", escaped(deployment))]).collect();
        all.join("&")
    });
    let query = named.as_deref().unwrap_or(asked.query);
    if version == Some(VERSION_ONE) { named } else { Some(by_deployment(query)) }
}

fn names_asked(pair: &str) -> bool {
    pair.starts_with("model=") || pair.starts_with("deployment=")
}

fn names_version(query: &str) -> bool {
    query.split('&').any(|pair| pair.starts_with("api-version="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Stated;

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(&OPTIONS, given)
    }

    const CHAT: Asked<'_> =
        Asked { prefix: "/openai", ..Asked::of(Operation::ChatComplete, "/chat/completions", "gpt-4o") };

    fn target(asked: &Asked<'_>, given: &[(&str, &str)]) -> Result<String, String> {
        let mut out = Vec::new();
        AzureOpenAi.write_target(asked, &options(given), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_resource_is_a_host_and_nothing_else() {
        let base = |name| AzureOpenAi.base(Operation::ChatComplete, &options(&[("resource_name", name)]));
        assert_eq!(base("my-res").unwrap().unwrap(), "https://my-res.openai.azure.com/openai");
        for name in ["", "evil.example/", "a.b", "a@b", "a:80", "ä"] {
            assert!(base(name).is_err(), "{name}");
        }
        assert!(
            AzureOpenAi
                .base(Operation::ChatComplete, &Options::default())
                .unwrap_err()
                .contains("x-gateway-azure-resource-name")
        );
    }

    #[test]
    fn a_path_that_is_passed_on_may_begin_with_the_host() {
        let asked = |path| Asked { operation: Operation::Proxy, path, query: "api-version=1", ..CHAT };
        let path = "/my-res.openai.azure.com/openai/deployments/d/chat/completions";
        assert_eq!(AzureOpenAi.said_in_path(path), Some((RESOURCE, "my-res")));
        assert_eq!(target(&asked(path), &[]).unwrap(), "/deployments/d/chat/completions?api-version=1");
        for other in ["/files", "/my-res.openai.azure.com", "/my-res.openai.azure.com.evil.example/openai/x"] {
            assert_eq!(AzureOpenAi.said_in_path(other), None, "{other}");
        }
        for elsewhere in ["/my-res.openai.azure.com/x", "/my-res.openai.azure.com/openaix/y"] {
            assert!(target(&asked(elsewhere), &[]).unwrap_err().contains("/openai/"), "{elsewhere}");
        }
    }

    #[test]
    fn a_deployment_is_named_by_an_option_the_path_or_the_model() {
        let version = ("api_version", "2024-10-21");
        let translated =
            Asked { operation: Operation::GenerateContent, path: "/models/gpt-4o:generateContent", ..CHAT };
        assert_eq!(
            target(&translated, &[version]).unwrap(),
            "/deployments/gpt-4o/chat/completions?api-version=2024-10-21"
        );
        assert_eq!(
            target(&CHAT, &[version, ("deployment_id", "d 1")]).unwrap(),
            "/deployments/d%201/chat/completions?api-version=2024-10-21"
        );
        let stated = Stated { deployment: Some("a%2Fb"), version: None, ..Stated::default() };
        assert_eq!(
            target(&Asked { stated, query: "api-version=2025-01-01&x=1", ..CHAT }, &[version]).unwrap(),
            "/deployments/a%2Fb/chat/completions?api-version=2025-01-01&x=1"
        );
        assert!(target(&CHAT, &[version]).unwrap().starts_with("/deployments/gpt-4o/"));
        assert!(target(&Asked { model: "", ..CHAT }, &[version]).unwrap_err().contains("no deployment"));
        assert!(target(&Asked { model: "..", ..CHAT }, &[version]).is_err());
        let split = target(&Asked { model: "a HTTP/1.1\r\nx: /?#", ..CHAT }, &[version]).unwrap();
        assert!(!split.contains([' ', '\r', '#']) && split.matches('?').count() == 1, "{split}");
    }

    #[test]
    fn a_version_must_be_said_somewhere() {
        assert!(target(&CHAT, &[]).unwrap_err().contains("x-gateway-azure-api-version"));
        assert!(target(&Asked { query: "api-version=1", ..CHAT }, &[]).is_ok());
    }

    #[test]
    fn version_one_has_neither_deployment_nor_query() {
        assert_eq!(target(&CHAT, &[("api_version", "v1")]).unwrap(), "/v1/chat/completions");
        let stated = Stated { deployment: None, version: Some("v1"), ..Stated::default() };
        assert_eq!(target(&Asked { stated, query: "x=1", ..CHAT }, &[]).unwrap(), "/v1/chat/completions?x=1");
    }

    #[test]
    fn where_no_path_names_a_deployment_the_body_does() {
        let stated = Stated { deployment: Some("a%2Fb"), version: None, ..Stated::default() };
        let spliced = |operation, given: &[(&str, &str)], stated| {
            AzureOpenAi.spliced(operation, &options(given), stated).map(Cow::into_owned)
        };
        let (one, dated, d) = (("api_version", "v1"), ("api_version", "2024-10-21"), ("deployment_id", "d"));
        let none = Stated::default();
        for (operation, given, stated, expected) in [
            (Operation::ChatComplete, &[one, d][..], none, Some("d")),
            (Operation::Messages, &[one, d], stated, Some("d")),
            (Operation::CreateTranscription, &[one], stated, Some("a/b")),
            (Operation::CreateModelResponse, &[dated, d], none, Some("d")),
            (Operation::CreateModelResponse, &[dated], none, None),
            (Operation::ChatComplete, &[dated, d], none, None),
            (Operation::ChatComplete, &[one], none, None),
            (Operation::ListFiles, &[one, d], none, None),
        ] {
            assert_eq!(spliced(operation, given, stated).as_deref(), expected, "{operation:?} {given:?}");
        }
        let version = Stated { deployment: None, version: Some("v1"), ..Stated::default() };
        assert_eq!(spliced(Operation::Embed, &[dated, d], version).as_deref(), Some("d"));
    }

    #[test]
    fn what_belongs_to_the_resource_is_not_below_a_deployment() {
        let files = Asked { operation: Operation::ListFiles, path: "/files", query: "limit=2", ..CHAT };
        assert_eq!(target(&files, &[("api_version", "2024-10-21")]).unwrap(), "/files?limit=2&api-version=2024-10-21");
    }

    #[test]
    fn a_session_is_asked_of_a_deployment_before_version_one() {
        let session = Asked { operation: Operation::Realtime, path: "/realtime", query: "a=1&model=gpt", ..CHAT };
        let preview = target(&session, &[("api_version", "2025-04-01-preview")]).unwrap();
        assert_eq!(preview, "/realtime?a=1&deployment=gpt&api-version=2025-04-01-preview");
        assert_eq!(target(&session, &[("api_version", "v1")]).unwrap(), "/v1/realtime?a=1&model=gpt");
        let pinned = target(&session, &[("api_version", "v1"), ("deployment_id", "d 1")]).unwrap();
        assert_eq!(pinned, "/v1/realtime?a=1&model=d%201");
        let pinned = target(&session, &[("api_version", "2"), ("deployment_id", "d")]).unwrap();
        assert_eq!(pinned, "/realtime?a=1&deployment=d&api-version=2");
        let both = Asked { query: "model=seen&deployment=other", ..session };
        let asked = target(&both, &[("api_version", "2025-04-01-preview")]).unwrap();
        assert_eq!(asked, "/realtime?deployment=seen&api-version=2025-04-01-preview");
    }

    #[test]
    fn a_pass_through_gets_a_version_where_one_is_known() {
        let raw = |path, given: &[(&str, &str)]| target(&Asked { operation: Operation::Proxy, path, ..CHAT }, given);
        assert_eq!(raw("/assistants", &[]).unwrap(), "/assistants");
        assert_eq!(raw("/assistants", &[("api_version", "2")]).unwrap(), "/assistants?api-version=2");
        assert_eq!(raw("/conversations", &[("api_version", "v1")]).unwrap(), "/v1/conversations");
        assert_eq!(raw("/deployments/d/x", &[("api_version", "v1")]).unwrap(), "/deployments/d/x");
    }

    #[test]
    fn a_token_is_a_bearer_and_a_key_is_not() {
        assert_eq!(AzureOpenAi.credential("eyJhbGciOi", ""), Credential::Bearer);
        assert_eq!(AzureOpenAi.credential("0123456789abcdef", ""), Credential::Header("api-key"));
        assert_eq!(AzureOpenAi.token(&options(&[("azure_ad_token", "t")])), Some("t"));
        let both = options(&[("azure_ad_token", "t"), ("azure_auth_mode", "managed")]);
        assert_eq!(AzureOpenAi.grant(&both), Ok(None));
        assert!(AzureOpenAi.grant(&options(&[("azure_auth_mode", "other")])).is_err());
    }
}
