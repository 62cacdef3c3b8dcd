//! Guardrails on the lines of a batch that a provider runs. Only the control process of this node requests it, with the
//! headers of the client that created the batch.

use std::sync::Arc;

use penstock_net::body::Body;

use crate::{
    auth::caller,
    endpoints::{
        builtin::reject_without_record,
        collected_body::collect_body,
        management_proxy::{BATCH_PASS_HEADER, is_batch_pass},
        prompts::json_response,
    },
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::{Request, control_headers::ControlHeaders, message::RequestHead, route::Route},
    resolve::target_resolver::ClientRequest,
    response::{client_response::ClientResponse, offload::run_offloaded},
    routing::{LineToCheck, check_batch_line},
    state::snapshot::Snapshot,
};

const PATH: &str = "/v1/batch_guardrails";
/// Headers of the request that do not belong to the line.
const DROPPED_HEADERS: [&[u8]; 2] = [b"content-length", BATCH_PASS_HEADER.as_bytes()];

/// Returns true if the request asks to check a line.
pub(crate) fn is_line_check(head: &RequestHead) -> bool {
    head.method == "POST" && head.path == PATH && head.headers.get_str(BATCH_PASS_HEADER).is_some()
}

pub(crate) async fn handle(state: &Arc<GatewayState>, snapshot: Arc<Snapshot>, request: Request) -> ClientResponse {
    state.store_weak_reference();
    let Request { head, body } = request;
    match check_line(state, &snapshot, &head, body).await {
        Ok(json) => json_response(state, &head, json),
        Err(error) => reject_without_record(&state.settings, &error, &head),
    }
}

async fn check_line(state: &GatewayState, snapshot: &Snapshot, head: &RequestHead, body: Body) -> Result<String> {
    // Identified first, so that only callers can cause requests to the control process.
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let token = caller::authenticate_token(snapshot, &head.headers, &control)?;
    let caller = caller::admit(token.as_ref(), snapshot, state.settings.require_key, &head.headers, &control)?;
    if !is_batch_pass(state, &head.headers).await {
        return Err(Error::NotFound);
    }
    if state.is_overloaded() {
        return Err(Error::Overloaded);
    }
    let (bytes, _share) = collect_body(state, body).await?;
    let parsed = run_offloaded(bytes.len(), move || serde_json::from_slice::<LineToCheck>(&bytes)).await?;
    let line = parsed.map_err(|_| Error::BodyInvalid { offset: 0, message: "it is not a line of a batch" })?;
    let mut headers = head.headers.clone();
    headers.retain(|name| !DROPPED_HEADERS.contains(&name));
    let head = RequestHead { method: "POST".to_owned(), path: line.path.clone(), headers, ..RequestHead::default() };
    let route = Route::parse(&head.method, &head.path).ok_or(Error::NotFound)?;
    let client_request = ClientRequest::new(route, &head, control);
    let resolver = state.target_resolver(snapshot, &client_request, &caller);
    Box::pin(check_batch_line(state, &resolver, line)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_with_a_pass_check_lines() {
        let mut head = RequestHead { method: "POST".to_owned(), path: PATH.to_owned(), ..RequestHead::default() };
        assert!(!is_line_check(&head));
        head.headers.push(BATCH_PASS_HEADER.as_bytes(), b"name");
        assert!(is_line_check(&head));
        head.path = "/v1/chat/completions".to_owned();
        assert!(!is_line_check(&head));
    }
}
