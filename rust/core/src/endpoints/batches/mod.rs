//! Routing of files and batches: decides which requests the gateway's own store serves, and fetches the output of
//! batches that a provider runs.

pub(crate) mod allowlist;
pub(crate) mod azure_blob_output;
pub mod line_requests;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use penstock_llm::translation::Translation;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::{
    accounting::record::RequestLog,
    auth::caller::{self, Caller},
    endpoints::management_proxy,
    error::Error,
    gateway::{Gateway, Request},
    ingress::{
        body::Body,
        headers::{ControlHeaders, RequestHead},
    },
    request::translate,
    resolve::{target::Target, target_resolver::Call},
    response::{
        delivery::UpstreamResponse,
        outgoing::{ClientResponse, ClientResponseBody},
    },
    state::{
        shared::memory_budget::MemoryPermit,
        snapshot::{GatewayKey, Snapshot},
    },
};

/// Provider name that selects the gateway's own store.
const GATEWAY_PROVIDER: &str = "gateway";
const FILE_ID_PREFIX: &str = "gw_file_";
const BATCH_ID_PREFIX: &str = "gw_batch_";
const BATCHES_PATH: &str = "/v1/batches";
const FILES_PATH: &str = "/v1/files";
const OUTPUT_SUFFIX: &str = "/output";
/// Maximum size of a batch object; real ones are far smaller.
const MAX_BATCH_OBJECT_BYTES: usize = 1024 * 1024;
/// Characters that are percent-encoded in a path segment.
pub(crate) const PATH_SEGMENT_ENCODE_SET: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns true if the path belongs to the files API, whose bodies can have any size.
pub fn is_files_path(path: &str) -> bool {
    path.strip_prefix(FILES_PATH).is_some_and(|below| below.is_empty() || below.starts_with('/'))
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
    let control = ControlHeaders::parse(&head.headers, aliases);
    match control.provider {
        Some(name) => is_gateway_name(name, aliases),
        None => {
            control.virtual_key.is_none() && control.config.is_none() && !has_default_config(snapshot, head, &control)
        }
    }
}

/// Returns true if the provider name means the gateway itself: its own name, or that of the other gateway whose header
/// prefix is accepted as an alias.
fn is_gateway_name(name: &str, aliases: &[String]) -> bool {
    let other = |alias: &String| alias.strip_prefix("x-").and_then(|alias| alias.strip_suffix('-')) == Some(name);
    name == GATEWAY_PROVIDER || aliases.iter().any(other)
}

fn is_gateway_id(id: &str) -> bool {
    id.starts_with(FILE_ID_PREFIX) || id.starts_with(BATCH_ID_PREFIX)
}

/// Returns true if the API key of the request has a default config, which routes all its requests.
fn has_default_config(snapshot: &Snapshot, head: &RequestHead, control: &ControlHeaders<'_>) -> bool {
    let token_identity = caller::authenticate_token(snapshot, &head.headers, control).ok().flatten();
    let admitted = caller::admit(token_identity.as_ref(), snapshot, true, &head.headers, control);
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
fn output_batch_path(head: &RequestHead) -> Option<&str> {
    let path = head.path.strip_suffix(OUTPUT_SUFFIX).filter(|_| head.method == "GET")?;
    let id = path.strip_prefix(BATCHES_PATH)?.strip_prefix('/')?;
    (!id.is_empty() && !id.contains('/')).then_some(path)
}

/// Handles a request for which `needs_batch_handler` returns true.
pub async fn handle_request(gateway: &Arc<Gateway>, snapshot: Arc<Snapshot>, request: Request) -> ClientResponse {
    let Request { head, body } = request;
    if let Some(path) = output_batch_path(&head) {
        let path = path.to_owned();
        return fetch_output(gateway, snapshot, head, path).await;
    }
    if gateway.is_overloaded() || is_unauthenticated(gateway, &snapshot, &head) {
        // The body of a request that will be rejected is not read.
        return gateway.handle_provider_request(snapshot, Request { head, body }, None).await;
    }
    match collect_body(gateway, body).await {
        Ok((bytes, _share)) if uses_gateway_file(&bytes) => {
            management_proxy::forward_management_request(gateway, head, Body::Complete(bytes)).await
        }
        Ok((bytes, share)) => {
            // The path to the provider charges the memory budget itself. No other task runs in between.
            drop(share);
            gateway.handle_provider_request(snapshot, Request { head, body: Body::Complete(bytes) }, None).await
        }
        Err(error) => {
            gateway.handle_provider_request(snapshot, Request { head, body: Body::empty() }, Some(error)).await
        }
    }
}

/// Returns true if the request has no known caller. A known caller without the right to call models may still create
/// batches in the gateway's store.
fn is_unauthenticated(gateway: &Gateway, snapshot: &Snapshot, head: &RequestHead) -> bool {
    let control = ControlHeaders::parse(&head.headers, &gateway.settings.header_aliases);
    let token_identity = caller::authenticate_token(snapshot, &head.headers, &control);
    let require = gateway.settings.require_key;
    let admitted = token_identity.and_then(|token_identity| {
        caller::admit(token_identity.as_ref(), snapshot, require, &head.headers, &control).map(|_| ())
    });
    !matches!(admitted, Ok(()) | Err(Error::KeyForbidden { .. } | Error::TokenForbidden { .. }))
}

/// Collects the body and returns it with its memory permit. A body that arrived complete is not charged yet.
async fn collect_body(gateway: &Gateway, body: Body) -> crate::error::Result<(Bytes, Option<MemoryPermit>)> {
    match body.with_limits(gateway.body_limits)? {
        body @ Body::Complete(_) => body.collect_with_permit().await,
        body @ Body::Streamed(..) => body.with_memory_budget(&gateway.shared.body_memory)?.collect_with_permit().await,
    }
}

/// Returns true if the batch is created from a file in the gateway's own store.
fn uses_gateway_file(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct CreateBatchBody<'b> {
        #[serde(borrow)]
        input_file_id: Cow<'b, str>,
    }
    serde_json::from_slice::<CreateBatchBody<'_>>(body).is_ok_and(|made| made.input_file_id.starts_with(FILE_ID_PREFIX))
}

/// Asks the provider for the batch to find its output file, then requests the content of that file.
async fn fetch_output(
    gateway: &Arc<Gateway>,
    snapshot: Arc<Snapshot>,
    head: RequestHead,
    path: String,
) -> ClientResponse {
    let mut first = RequestHead { path, headers: head.headers.clone(), ..clone_without_headers(&head) };
    // The batch is parsed here, so it must not be compressed.
    first.headers.retain(|name| name != b"accept-encoding");
    let batch = gateway
        .handle_provider_request(Arc::clone(&snapshot), Request { head: first, body: Body::empty() }, None)
        .await;
    if batch.head.status != 200 {
        return batch;
    }
    match parse_output(collect_response(batch.body).await) {
        Ok((id, output)) => {
            let output = Some(Box::new(output));
            let path = format!("/v1/files/{}/content", utf8_percent_encode(&id, PATH_SEGMENT_ENCODE_SET));
            gateway
                .handle_provider_request(
                    snapshot,
                    Request { head: RequestHead { path, batch_output: output, ..head }, body: Body::empty() },
                    None,
                )
                .await
        }
        Err(status) => gateway.reject_without_record(&Error::NoBatchOutput { status }, &head),
    }
}

fn clone_without_headers(head: &RequestHead) -> RequestHead {
    RequestHead {
        method: head.method.clone(),
        query: head.query.clone(),
        peer_ip: head.peer_ip,
        ..RequestHead::default()
    }
}

/// Cancels a batch at a provider that deletes it. Reads the batch first, because its state cannot be read afterwards.
pub(crate) async fn delete_batch(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    translation: Translation,
    log: &mut RequestLog,
) -> Result<UpstreamResponse, Error> {
    let [look, end] = ["GET", "DELETE"].map(|method| RequestHead { method: method.into(), ..call.head.clone() });
    let nothing = || (Body::empty(), Some(&translation));
    let (mut found, mut deadline) =
        gateway.send_to_target(&translate::job_status_call(call, &look), target, nothing(), log).await?;
    if found.head.status < 300 {
        let end = Call { route: call.route, head: &end, control: call.control };
        let (ended, _) = deadline.enforce(gateway.send_to_target(&end, target, nothing(), log)).await?;
        found = if ended.head.status < 300 { found } else { ended };
    }
    let told = translate::translate_response(call, translation, found, &mut deadline).await?;
    Ok(UpstreamResponse::new(told, call.client_api_format(), deadline))
}

/// Location of a batch's output, as the batch object reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutput {
    /// The output is in the customer's own storage at this URL.
    Blob(String),
    /// The output is a file at the provider, with response lines for this endpoint and model.
    ProviderFile { endpoint: String, model: String },
}

/// Returns the name and location of a batch's output, or the status of a batch that has no output.
fn parse_output(batch: Option<Bytes>) -> Result<(String, BatchOutput), String> {
    #[derive(Default, Deserialize)]
    struct Batch {
        #[serde(default)]
        status: String,
        output_file_id: Option<String>,
        output_blob: Option<String>,
        endpoint: Option<String>,
        model: Option<String>,
    }
    let batch: Batch = batch.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(id) = said(batch.output_file_id) {
        let (endpoint, model) = (batch.endpoint.unwrap_or_default(), batch.model.unwrap_or_default());
        return Ok((id, BatchOutput::ProviderFile { endpoint, model }));
    }
    let url = said(batch.output_blob).ok_or(batch.status)?;
    // Removes the signature in the query, which must not appear in a record.
    Ok((url.split('?').next().unwrap_or_default().to_owned(), BatchOutput::Blob(url)))
}

/// Returns the complete body; `None` if it is too large or truncated.
async fn collect_response(contents: ClientResponseBody) -> Option<Bytes> {
    let mut stream = match contents {
        ClientResponseBody::Complete(bytes) => return Some(bytes),
        ClientResponseBody::Stream(stream) => stream,
    };
    let mut read = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(bytes)) if read.len() + bytes.len() <= MAX_BATCH_OBJECT_BYTES => read.extend_from_slice(&bytes),
            Ok(None) => return Some(read.into()),
            Ok(Some(_)) | Err(_) => return None,
        }
    }
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
        let ours =
            |path, fields: &[(&str, &str)]| is_for_gateway_store(&snapshot, &request_head("GET", path, fields), &[]);
        let openai = ("x-gateway-provider", "openai");
        assert!(
            ours("/v1/files", &[])
                && ours("/v1/batches/x/cancel", &[])
                && ours("/v1/files", &[("x-gateway-provider", "gateway")])
        );
        assert!(ours("/v1/files/gw_file_1/content", &[openai]) && ours("/v1/batches/gw_batch_1", &[openai]));
        assert!(!ours("/v1/files", &[openai]) && !ours("/v1/files/file-1", &[openai]));
        for named in [("x-gateway-config", "pc-2"), ("x-gateway-virtual-key", "v"), ("x-gateway-api-key", "abc")] {
            assert!(!ours("/v1/batches", &[named]), "{named:?}");
        }
        assert!(!ours("/v1/filesystem", &[]) && !ours("/v1/vector_stores/v/files", &[]));
        let named = |name: &str, aliases: &[&str]| {
            let aliases: Vec<_> = aliases.iter().map(|&alias| alias.to_owned()).collect();
            is_for_gateway_store(
                &snapshot,
                &request_head("GET", "/v1/files", &[("x-gateway-provider", name)]),
                &aliases,
            )
        };
        assert!(named("portkey", &["x-portkey-"]) && named("gateway", &[]));
        assert!(!named("portkey", &[]) && !named("x-portkey-", &["x-portkey-"]) && !named("portkey", &["x-other-"]));
        let storeless = Snapshot::compile(br#"{"epoch":"1"}"#).unwrap();
        assert!(!is_for_gateway_store(&storeless, &request_head("GET", "/v1/files", &[]), &[]));
    }

    #[test]
    fn only_batch_creation_and_output_need_the_batch_handler() {
        let snapshot = Snapshot::compile(SNAPSHOT_JSON.as_bytes()).unwrap();
        let apart = |method, path| needs_batch_handler(&snapshot, &request_head(method, path, &[]));
        assert!(apart("POST", "/v1/batches") && apart("GET", "/v1/batches/b/output"));
        for (method, path) in [
            ("GET", "/v1/batches"),
            ("GET", "/v1/batches/b"),
            ("POST", "/v1/batches/b/output"),
            ("GET", "/v1/batches//output"),
            ("GET", "/v1/batches/a/b/output"),
            ("POST", "/v1/chat/completions"),
        ] {
            assert!(!apart(method, path), "{method} {path}");
        }
    }

    #[test]
    fn detects_a_batch_of_a_gateway_file_by_its_body() {
        assert!(uses_gateway_file(br#"{"a":[1],"input_file_id":"gw_file_1"}"#));
        for body in [&br#"{"input_file_id":"file-1","metadata":{"input_file_id":"gw_file_1"}}"#[..], b"[]", b"", b"{"] {
            assert!(!uses_gateway_file(body));
        }
    }

    #[test]
    fn reads_the_output_location_from_the_batch() {
        let of = |batch: &'static str| parse_output(Some(Bytes::from_static(batch.as_bytes())));
        let lines =
            |endpoint: &str, model: &str| BatchOutput::ProviderFile { endpoint: endpoint.into(), model: model.into() };
        let plain = of(r#"{"status":"completed","output_file_id":"file-1"}"#);
        assert_eq!(plain, Ok(("file-1".into(), lines("", ""))));
        let url = "https://a/b?sig=1".to_owned();
        let blob = of(r#"{"output_file_id":null,"output_blob":"https://a/b?sig=1"}"#);
        assert_eq!(blob, Ok(("https://a/b".into(), BatchOutput::Blob(url))));
        let both = of(r#"{"output_file_id":"f","output_blob":"https://a/b","endpoint":"/v1/x","model":"m"}"#);
        assert_eq!(both, Ok(("f".into(), lines("/v1/x", "m"))));
        assert_eq!(of(r#"{"status":"validating","output_blob":""}"#), Err("validating".into()));
        assert_eq!(of(r#"{"status":"in_progress","output_file_id":null}"#), Err("in_progress".into()));
        assert_eq!((of("no"), parse_output(None)), (Err(String::new()), Err(String::new())));
    }
}
