//! Files and batches: decides which requests the gateway's own store serves, and which need the batch handler.

pub(crate) mod allowlist;
pub(crate) mod azure_blob_output;
pub(crate) mod delete;
pub(crate) mod line_check;
pub mod line_requests;
pub(crate) mod provider_or_store;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

use crate::{
    auth::caller::{self, Caller},
    ingress::{client_sdk, control_headers::ControlHeaders, message::RequestHead},
    state::snapshot::{GatewayKey, Snapshot},
};

/// Provider name that selects the gateway's own store.
const GATEWAY_PROVIDER: &str = "gateway";
pub(crate) const FILE_ID_PREFIX: &str = "gw_file_";
const BATCH_ID_PREFIX: &str = "gw_batch_";
const BATCHES_PATH: &str = "/v1/batches";
const FILES_PATH: &str = "/v1/files";
const OUTPUT_SUFFIX: &str = "/output";
/// Characters that are percent-encoded in a path segment.
pub(crate) const PATH_SEGMENT_ENCODE_SET: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns true if the path belongs to the files API, whose bodies can have any size.
pub fn is_files_path(path: &str) -> bool {
    path.strip_prefix(FILES_PATH).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Returns true if the path may concern files or batches in the gateway's own store.
pub(crate) fn is_store_path(path: &str) -> bool {
    path.starts_with(FILES_PATH) || path.starts_with(BATCHES_PATH)
}

/// Returns true if the request concerns files or batches in the gateway's own store: it names one of their IDs, or no
/// provider at all.
pub fn is_for_gateway_store(snapshot: &Snapshot, head: &RequestHead, aliases: &[String]) -> bool {
    let Some(below) = head.path.strip_prefix(FILES_PATH).or_else(|| head.path.strip_prefix(BATCHES_PATH)) else {
        return false;
    };
    if !snapshot.has_model_catalogue || !(below.is_empty() || below.starts_with('/')) {
        return false;
    }
    if below.strip_prefix('/').is_some_and(is_gateway_id) {
        return true;
    }
    if client_sdk::is_google_client(&head.headers) {
        // Google's API has the same paths for its own files and batches.
        return false;
    }
    let control = ControlHeaders::parse(&head.headers, aliases);
    match control.provider {
        Some(name) => is_gateway_name(name, aliases),
        None => {
            control.virtual_key.is_none() && control.config.is_none() && !has_default_config(snapshot, head, &control)
        }
    }
}

/// Returns true if a provider name selects the gateway's own store: `gateway`, or the name in an alias of the header
/// prefix, such as `portkey` in `x-portkey-`.
fn is_gateway_name(name: &str, aliases: &[String]) -> bool {
    let other = |alias: &String| alias.strip_prefix("x-").and_then(|alias| alias.strip_suffix('-')) == Some(name);
    name == GATEWAY_PROVIDER || aliases.iter().any(other)
}

fn is_gateway_id(id: &str) -> bool {
    id.starts_with(FILE_ID_PREFIX) || id.starts_with(BATCH_ID_PREFIX)
}

/// Returns true if the API key of the request has a default config, which routes all its requests.
fn has_default_config(snapshot: &Snapshot, head: &RequestHead, control: &ControlHeaders<'_>) -> bool {
    let token = caller::authenticate_token(snapshot, &head.headers, control).ok().flatten();
    let admitted = caller::admit(token.as_ref(), snapshot, true, &head.headers, control);
    admitted.is_ok_and(|Caller { key, .. }| key.and_then(GatewayKey::default_config).is_some())
}

/// Returns true if the request needs the batch handler. Batch creation is routed by its body, and batch output takes
/// two upstream requests.
pub fn needs_batch_handler(snapshot: &Snapshot, head: &RequestHead) -> bool {
    head.path.starts_with(BATCHES_PATH) && (creates_batch(snapshot, head) || output_batch_path(head).is_some())
}

fn creates_batch(snapshot: &Snapshot, head: &RequestHead) -> bool {
    snapshot.has_model_catalogue && head.method == "POST" && head.path == BATCHES_PATH
}

/// Returns the path of the batch whose output is requested.
pub(crate) fn output_batch_path(head: &RequestHead) -> Option<&str> {
    let path = head.path.strip_suffix(OUTPUT_SUFFIX).filter(|_| head.method == "GET")?;
    let id = path.strip_prefix(BATCHES_PATH)?.strip_prefix('/')?;
    (!id.is_empty() && !id.contains('/')).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT_JSON: &str = r#"{"epoch":"1","catalogue":true,"keys":[
        {"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
         "defaults":{"config_id":"pc-1"}}]}"#;

    fn request_head(method: &str, path: &str, fields: &[(&str, &str)]) -> RequestHead {
        let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        RequestHead { method: method.into(), path: path.into(), headers, ..RequestHead::default() }
    }

    #[test]
    fn requests_with_gateway_ids_or_without_a_provider_go_to_the_gateway_store() {
        let snapshot = Snapshot::compile(SNAPSHOT_JSON.as_bytes()).unwrap();
        let is_gateway_store =
            |path, fields: &[(&str, &str)]| is_for_gateway_store(&snapshot, &request_head("GET", path, fields), &[]);
        let openai = ("x-gateway-provider", "openai");
        assert!(
            is_gateway_store("/v1/files", &[])
                && is_gateway_store("/v1/batches/x/cancel", &[])
                && is_gateway_store("/v1/files", &[("x-gateway-provider", "gateway")])
        );
        assert!(
            is_gateway_store("/v1/files/gw_file_1/content", &[openai])
                && is_gateway_store("/v1/batches/gw_batch_1", &[openai])
        );
        assert!(!is_gateway_store("/v1/files", &[openai]) && !is_gateway_store("/v1/files/file-1", &[openai]));
        for header in [("x-gateway-config", "pc-2"), ("x-gateway-virtual-key", "v"), ("x-gateway-api-key", "abc")] {
            assert!(!is_gateway_store("/v1/batches", &[header]), "{header:?}");
        }
        assert!(!is_gateway_store("/v1/files/a", &[("x-goog-api-key", "k")]));
        assert!(is_gateway_store("/v1/files/gw_file_1", &[("x-goog-api-key", "k")]));
        assert!(!is_gateway_store("/v1/filesystem", &[]) && !is_gateway_store("/v1/vector_stores/v/files", &[]));
        let is_gateway_provider = |name: &str, aliases: &[&str]| {
            let aliases: Vec<_> = aliases.iter().map(|&alias| alias.to_owned()).collect();
            is_for_gateway_store(
                &snapshot,
                &request_head("GET", "/v1/files", &[("x-gateway-provider", name)]),
                &aliases,
            )
        };
        assert!(is_gateway_provider("portkey", &["x-portkey-"]) && is_gateway_provider("gateway", &[]));
        assert!(
            !is_gateway_provider("portkey", &[])
                && !is_gateway_provider("x-portkey-", &["x-portkey-"])
                && !is_gateway_provider("portkey", &["x-other-"])
        );
        let storeless = Snapshot::compile(br#"{"epoch":"1"}"#).unwrap();
        assert!(!is_for_gateway_store(&storeless, &request_head("GET", "/v1/files", &[]), &[]));
    }

    #[test]
    fn only_batch_creation_and_output_need_the_batch_handler() {
        let snapshot = Snapshot::compile(SNAPSHOT_JSON.as_bytes()).unwrap();
        let needs_handler = |method, path| needs_batch_handler(&snapshot, &request_head(method, path, &[]));
        assert!(needs_handler("POST", "/v1/batches") && needs_handler("GET", "/v1/batches/b/output"));
        for (method, path) in [
            ("GET", "/v1/batches"),
            ("GET", "/v1/batches/b"),
            ("POST", "/v1/batches/b/output"),
            ("GET", "/v1/batches//output"),
            ("GET", "/v1/batches/a/b/output"),
            ("POST", "/v1/chat/completions"),
        ] {
            assert!(!needs_handler(method, path), "{method} {path}");
        }
    }
}
