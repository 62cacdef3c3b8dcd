//! WebSocket requests: admits and routes the upgrade request like any other request, and opens the session.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_net::{UpstreamWebSocket, body::Body, uri};
use tokio::time::timeout as limit_time;

use crate::{
    accounting::record::{Record, RequestLog},
    auth::caller,
    endpoints::{
        builtin::{find_head_error, reject_without_record},
        limit_admission,
        realtime::{WebSocketSession, model_from_query, offered_protocols, upgrade_target},
    },
    error::{Error, Result},
    features::timeout,
    gateway_state::GatewayState,
    ingress::{
        control_headers::ControlHeaders,
        message::RequestHead,
        route::{Route, is_misspelled, reserved_feature},
    },
    resolve::{models::RequestedModel, target_resolver::ClientRequest},
    response::{
        client_response::{ClientResponse, ClientResponseBody},
        delivery::{self, UpstreamResponse},
    },
    routing,
    state::snapshot::Snapshot,
};

/// Maximum number of bytes that are read of the body with which a provider rejects an upgrade.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Maximum time to read the body with which a provider rejects an upgrade.
const REFUSAL_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Outcome of a WebSocket upgrade request.
pub enum UpgradeOutcome {
    Rejected(ClientResponse),
    Accepted(Box<WebSocketSession>),
}

/// Handles one WebSocket upgrade request: validates, admits, routes and opens the upstream connection.
pub async fn handle_upgrade(state: &GatewayState, head: RequestHead) -> UpgradeOutcome {
    let outcome = connect_or_reject(state, head).await;
    if let (UpgradeOutcome::Rejected(_), Some(spool)) = (&outcome, state.record_sink.durable_spool()) {
        Box::pin(spool.wait_until_durable()).await;
    }
    outcome
}

async fn connect_or_reject(state: &GatewayState, head: RequestHead) -> UpgradeOutcome {
    let snapshot = state.snapshot.load_full();
    let path_error = uri::find_path_error(&head.path);
    let fault = path_error.map(|message| Error::HeaderInvalid { name: "path", message: message.into() });
    let fault = fault.or_else(|| find_head_error(&state.settings, &head));
    let head = Arc::new(head);
    let is_management = |path: &str| snapshot.is_management_path(path);
    let is_provider_path = !is_management(&head.path)
        && reserved_feature(&head.path).is_none()
        && !is_misspelled(&head.method, &head.path, is_management);
    let route = Route::parse_websocket(&head.path).filter(|_| is_provider_path);
    let Some(route) = route else {
        return UpgradeOutcome::Rejected(reject_without_record(
            &state.settings,
            &fault.unwrap_or(Error::NotFound),
            &head,
        ));
    };
    let client_request =
        ClientRequest::new(route, &head, ControlHeaders::parse(&head.headers, &state.settings.header_aliases));
    let mut record = Record::open(Arc::clone(&head), Arc::clone(&state.record_sink));
    record.log.read_request(&client_request, &state.record_sink);
    record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
    if let Some(fault) = fault {
        return UpgradeOutcome::Rejected(delivery::respond_with_error(&fault, &client_request, record));
    }
    let opened = tokio::select! {
        biased;
        opened = open_websocket(state, &snapshot, &client_request, &mut record.log) => opened,
        () = state.wait_for_drain_start() => Err(Error::Draining),
    };
    match opened {
        Ok(UpstreamResponse { upgraded: Some(opened), .. }) => {
            record.log.status = 101;
            record.log.time_to_first_byte = Some(record.elapsed());
            record.log.bodies.deliver();
            let UpstreamWebSocket { socket, protocol } = *opened;
            let protocol = protocol.or_else(|| offered_protocols(&head.headers).first().map(|name| (*name).to_owned()));
            UpgradeOutcome::Accepted(Box::new(WebSocketSession { protocol, socket, record }))
        }
        Ok(response) => UpgradeOutcome::Rejected(
            Box::pin(async {
                buffer_refusal(delivery::deliver_response(state, response, &client_request, record).await).await
            })
            .await,
        ),
        Err(error) => UpgradeOutcome::Rejected(delivery::respond_with_error(&error, &client_request, record)),
    }
}

/// Admits the request and opens a WebSocket to a target of the config. Returns a 101 response with the socket, or the
/// provider's rejection.
async fn open_websocket(
    state: &GatewayState,
    snapshot: &Snapshot,
    client_request: &ClientRequest<'_>,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    if state.is_overloaded() {
        return Err(Error::Overloaded);
    }
    let (fields, control) = (&client_request.head.headers, &client_request.control);
    let token = caller::authenticate_token(snapshot, fields, control)?;
    let caller = caller::admit(token.as_ref(), snapshot, state.settings.require_key, fields, control)?;
    log.set_caller(&caller, snapshot);
    let resolver = state.target_resolver(snapshot, client_request, &caller);
    let _prepared = resolver.prepare_config().await?;
    let plan = resolver.build_plan()?;
    log.details.config = plan.config.identity();
    log.metadata.validate()?;
    limit_admission::admit_request(state, client_request, &caller, log).await?;
    log.is_streaming = true;
    log.model = model_from_query(&client_request.head.query);
    drop(log.begin_record(client_request.head, &state.record_sink, Body::empty()).await);
    if !plan.config.is_plain || control.should_explain() || routing::hooks::has_defaults(&resolver) {
        return routing::open_websocket(state, &resolver, &plan, log).await;
    }
    let until = control.client_timeout.and_then(timeout::client_deadline);
    let requested_model = log.model.clone();
    let (mut target, model_override) = resolver.resolve_target(&plan, &plan.config.root, &requested_model)?;
    log.provider = target.provider.slug();
    if let Some(model) = model_override {
        model.clone_into(&mut log.model);
    }
    let requested = RequestedModel { model: &log.model, in_query: &requested_model };
    target.apply_model(client_request, requested, b"")?;
    target.cap_timeout(until);
    upgrade_target(state, client_request, &target, &requested_model, log).await
}

/// Reads a rejection that the provider streams into one complete response. Bounded by `MAX_REFUSAL_BYTES` and
/// `REFUSAL_READ_TIMEOUT`.
async fn buffer_refusal(response: ClientResponse) -> ClientResponse {
    let ClientResponseBody::Stream(mut stream) = response.body else { return response };
    let mut bytes = Vec::new();
    let reading = async {
        while bytes.len() < MAX_REFUSAL_BYTES
            && let Ok(Some(chunk)) = stream.next().await
        {
            bytes.extend_from_slice(&chunk);
        }
    };
    // A timeout is not an error: the bytes received so far are returned.
    drop(limit_time(REFUSAL_READ_TIMEOUT, reading).await);
    bytes.truncate(MAX_REFUSAL_BYTES);
    let mut reply = response.head;
    reply.headers.retain(|name| name != b"content-length");
    reply.set_content_length(Some(bytes.len()));
    ClientResponse { head: reply, body: Bytes::from(bytes).into() }
}
