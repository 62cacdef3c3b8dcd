//! Header fields of the client that checks send to other hosts, and those that are never sent.

use penstock_net::headers::{Headers, is_cloud_metadata};

/// Header fields that are never forwarded.
const FORBIDDEN_HEADERS: &[&str] = &[
    "authorization",
    "x-api-key",
    "ocp-apim-subscription-key",
    "proxy-authorization",
    "cookie",
    "connection",
    "host",
    "transfer-encoding",
    "content-length",
    "content-type",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "proxy-authenticate",
    "proxy-connection",
    "api-key",
    "x-goog-api-key",
];
/// Header fields of the gateway that may be forwarded.
const OWN_HEADERS: &[&str] = &["x-gateway-trace-id", "x-gateway-span-id"];

/// Checks the names of the client's header fields that a check forwards to its host.
///
/// # Errors
/// If a name is not allowed. The message contains the first such name.
pub(super) fn validate_names(names: &[String]) -> Result<(), String> {
    let is_forbidden = |name: &&String| {
        let is_own = name.starts_with("x-gateway-") && !OWN_HEADERS.contains(&name.as_str());
        is_own || FORBIDDEN_HEADERS.contains(&name.as_str()) || is_cloud_metadata(name.as_bytes())
    };
    match names.iter().find(is_forbidden) {
        Some(name) => Err(format!("must not name `{name}`, which is never forwarded")),
        None => Ok(()),
    }
}

/// Returns the named header fields of a request, without those that the check sets itself.
pub(super) fn find_forwarded(names: &[String], client: &Headers, own: &[(String, String)]) -> Vec<(String, String)> {
    let is_free = |name: &&String| !own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let forwarded = names.iter().filter(is_free);
    forwarded.filter_map(|name| client.get_str(name).map(|value| (name.clone(), value.to_owned()))).collect()
}
