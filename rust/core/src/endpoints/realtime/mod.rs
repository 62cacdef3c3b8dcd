//! WebSocket endpoint. Admits and routes the upgrade request like any other request, then relays messages between
//! client and provider.

pub(crate) mod connect;
mod relay;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;
pub use tokio_tungstenite::tungstenite::{
    Message, Utf8Bytes,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

pub(crate) use crate::endpoints::realtime::connect::{model_from_query, upgrade_target};
use crate::{
    accounting::record::Record,
    endpoints::builtin::{find_head_error, reject_without_record},
    error::Error,
    gateway_state::GatewayState,
    ingress::{
        headers::{self, ControlHeaders, Headers, RequestHead},
        route::Route,
    },
    resolve::target_resolver::Call,
    response::{
        delivery::{self, UpstreamResponse},
        outgoing::{ClientResponse, ClientResponseBody},
    },
};
pub use relay::WebSocketSession;

/// Prefix of a WebSocket subprotocol entry that carries an API key.
const API_KEY_PROTOCOL_PREFIX: &str = "openai-insecure-api-key.";

/// Limits for the body that a provider sends when it rejects the upgrade: how many bytes are read, and for how long.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
const REFUSAL_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Outcome of a WebSocket upgrade request.
pub enum UpgradeOutcome {
    Rejected(ClientResponse),
    Accepted(Box<WebSocketSession>),
}

/// Handles one WebSocket upgrade request: validates, admits, routes and opens the upstream connection.
pub async fn handle_upgrade(state: &GatewayState, head: RequestHead) -> UpgradeOutcome {
    let snapshot = state.snapshot.load_full();
    let path_error = headers::find_path_error(&head.path);
    let fault = path_error.map(|message| Error::HeaderInvalid { name: "path", message: message.into() });
    let fault = fault.or_else(|| find_head_error(&state.settings, &head));
    let head = Arc::new(head);
    let route = Route::parse_websocket(&head.path).filter(|_| !snapshot.is_management_path(&head.path));
    let Some(route) = route else {
        return UpgradeOutcome::Rejected(reject_without_record(
            &state.settings,
            &fault.unwrap_or(Error::NotFound),
            &head,
        ));
    };
    let call =
        Call { route, head: &head, control: ControlHeaders::parse(&head.headers, &state.settings.header_aliases) };
    let mut record = Record::open(Arc::clone(&head), Arc::clone(&state.record_sink));
    record.log.read_request(&call, &state.record_sink);
    record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
    if let Some(fault) = fault {
        return UpgradeOutcome::Rejected(delivery::respond_with_error(&fault, &call, record));
    }
    let opened = tokio::select! {
        biased;
        opened = connect::open_websocket(state, &snapshot, &call, &mut record.log) => opened,
        () = state.wait_for_drain_start() => Err(Error::Draining),
    };
    match opened {
        Ok(UpstreamResponse { upgraded: Some(opened), .. }) => {
            record.log.status = 101;
            record.log.time_to_first_byte = Some(record.elapsed());
            let crate::upstream::UpstreamWebSocket { socket, protocol } = *opened;
            let protocol = protocol.or_else(|| offered_protocols(&head.headers).first().map(|name| (*name).to_owned()));
            UpgradeOutcome::Accepted(Box::new(WebSocketSession { protocol, socket, record }))
        }
        Ok(response) => UpgradeOutcome::Rejected(
            Box::pin(async { buffer_refusal(delivery::deliver_response(state, response, &call, record).await).await })
                .await,
        ),
        Err(error) => UpgradeOutcome::Rejected(delivery::respond_with_error(&error, &call, record)),
    }
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
    drop(timeout(REFUSAL_READ_TIMEOUT, reading).await);
    bytes.truncate(MAX_REFUSAL_BYTES);
    let mut reply = response.head;
    reply.headers.retain(|name| name != b"content-length");
    reply.set_content_length(Some(bytes.len()));
    ClientResponse { head: reply, body: Bytes::from(bytes).into() }
}

/// Returns the subprotocols that the client offers, without entries that carry API keys.
fn offered_protocols(headers: &Headers) -> Vec<&str> {
    let names = headers.get_str("sec-websocket-protocol").unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty() && !name.starts_with(API_KEY_PROTOCOL_PREFIX)).collect()
}
