//! Requests for batches. Decides by the body whether the gateway or a provider runs a batch. Fetches the output of a
//! batch that a provider ran.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_net::body::Body;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;

use crate::{
    auth::caller,
    endpoints::{
        batches::{FILE_ID_PREFIX, PATH_SEGMENT_ENCODE_SET, output_batch_path},
        builtin::reject_without_record,
        collected_body::collect_body,
        management_proxy,
        provider_pipeline::ProviderPipeline,
    },
    error::Error,
    gateway_state::GatewayState,
    ingress::{
        Request,
        control_headers::ControlHeaders,
        message::{BatchOutput, RequestHead},
    },
    response::client_response::{ClientResponse, ClientResponseBody},
    state::snapshot::Snapshot,
};

/// Maximum size of a batch object; real ones are far smaller.
const MAX_BATCH_OBJECT_BYTES: usize = 1024 * 1024;

/// Handles a request for which `needs_batch_handler` returns true.
pub(crate) async fn handle(pipeline: ProviderPipeline, request: Request) -> ClientResponse {
    let (state, Request { head, body }) = (&pipeline.state, request);
    if let Some(path) = output_batch_path(&head) {
        let path = path.to_owned();
        return fetch_output(&pipeline, head, path).await;
    }
    if state.is_overloaded() || is_unauthenticated(state, &pipeline.snapshot, &head) {
        // The body of a request that will be rejected is not read.
        return pipeline.send(head, body).await;
    }
    match collect_body(state, body).await {
        Ok((bytes, _share)) if uses_gateway_file(&bytes) => {
            management_proxy::forward_management_request(state, head, Body::Complete(bytes)).await
        }
        Ok((bytes, share)) => {
            // Released here, because the pipeline charges the memory budget itself. No other task runs in between.
            drop(share);
            pipeline.send(head, Body::Complete(bytes)).await
        }
        Err(error) => pipeline.reject(head, error).await,
    }
}

/// Returns true if the request has no known caller. A known caller without the right to call models may still create
/// batches in the gateway's store.
fn is_unauthenticated(state: &GatewayState, snapshot: &Snapshot, head: &RequestHead) -> bool {
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let token = caller::authenticate_token(snapshot, &head.headers, &control);
    let require = state.settings.require_key;
    let admitted =
        token.and_then(|token| caller::admit(token.as_ref(), snapshot, require, &head.headers, &control).map(|_| ()));
    !matches!(admitted, Ok(()) | Err(Error::KeyForbidden { .. } | Error::TokenForbidden { .. }))
}

/// Returns true if the batch is created from a file in the gateway's own store.
fn uses_gateway_file(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct BatchInputFile<'b> {
        #[serde(borrow)]
        input_file_id: Cow<'b, str>,
    }
    serde_json::from_slice::<BatchInputFile<'_>>(body)
        .is_ok_and(|input| input.input_file_id.starts_with(FILE_ID_PREFIX))
}

/// Asks the provider for the batch to find its output file, then requests the content of that file.
async fn fetch_output(pipeline: &ProviderPipeline, head: RequestHead, path: String) -> ClientResponse {
    let mut first = RequestHead {
        path,
        headers: head.headers.clone(),
        batch_output: Some(Box::new(BatchOutput::Batch)),
        ..clone_without_headers(&head)
    };
    // The batch is parsed here, so it must not be compressed.
    first.headers.retain(|name| name != b"accept-encoding");
    let batch = pipeline.send(first, Body::empty()).await;
    if batch.head.status != 200 {
        return batch;
    }
    match parse_output(collect_response(batch.body).await) {
        Ok((id, output)) => {
            let output = Some(Box::new(output));
            let path = format!("/v1/files/{}/content", utf8_percent_encode(&id, PATH_SEGMENT_ENCODE_SET));
            pipeline.send(RequestHead { path, batch_output: output, ..head }, Body::empty()).await
        }
        Err(status) => reject_without_record(&pipeline.state.settings, &Error::NoBatchOutput { status }, &head),
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
    let build_value = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(id) = build_value(batch.output_file_id) {
        let (endpoint, model) = (batch.endpoint.unwrap_or_default(), batch.model.unwrap_or_default());
        return Ok((id, BatchOutput::ProviderFile { endpoint, model }));
    }
    let url = build_value(batch.output_blob).ok_or(batch.status)?;
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
