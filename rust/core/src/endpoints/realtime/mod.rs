//! `WebSockets`: whoever asks for one is admitted and led to a target as with any request, and then talks with the provider.

pub(crate) mod connect;
mod relay;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;
pub use tokio_tungstenite::tungstenite::{
    Message, Utf8Bytes,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

pub(crate) use crate::endpoints::realtime::connect::{UpstreamWebSocket, model_from_query, upgrade_target};
use crate::{
    accounting::record::Record,
    error::Error,
    gateway::Gateway,
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

/// What names a key among the protocols that a client offers.
const API_KEY_PROTOCOL_PREFIX: &str = "openai-insecure-api-key.";

/// So much is told of what a provider says instead of opening one, and so long it is waited for.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
const REFUSAL_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What becomes of a request for a WebSocket.
pub enum UpgradeOutcome {
    Rejected(ClientResponse),
    Accepted(Box<WebSocketSession>),
}

/// Once per request for a WebSocket.
pub async fn handle_upgrade(gateway: &Gateway, head: RequestHead) -> UpgradeOutcome {
    let snapshot = gateway.snapshot.load_full();
    let odd = headers::find_path_error(&head.path);
    let fault = odd.map(|message| Error::HeaderInvalid { name: "path", message: message.into() });
    let fault = fault.or_else(|| gateway.find_head_error(&head));
    let head = Arc::new(head);
    let route = Route::parse_websocket(&head.path).filter(|_| !snapshot.is_management_path(&head.path));
    let Some(route) = route else {
        return UpgradeOutcome::Rejected(gateway.reject_without_record(&fault.unwrap_or(Error::NotFound), &head));
    };
    let call =
        Call { route, head: &head, control: ControlHeaders::parse(&head.headers, &gateway.settings.header_aliases) };
    let mut record = Record::open(Arc::clone(&head), Arc::clone(&gateway.record_sink));
    record.log.read_request(&call, &gateway.record_sink);
    record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
    if let Some(fault) = fault {
        return UpgradeOutcome::Rejected(delivery::respond_with_error(&fault, &call, record));
    }
    let opened = tokio::select! {
        biased;
        opened = connect::open_websocket(gateway, &snapshot, &call, &mut record.log) => opened,
        () = gateway.wait_for_drain_start() => Err(Error::Draining),
    };
    match opened {
        Ok(UpstreamResponse { upgraded: Some(opened), .. }) => {
            record.log.status = 101;
            record.log.time_to_first_byte = Some(record.elapsed());
            let UpstreamWebSocket { socket, protocol } = *opened;
            let protocol = protocol.or_else(|| offered_protocols(&head.headers).first().map(|name| (*name).to_owned()));
            UpgradeOutcome::Accepted(Box::new(WebSocketSession { protocol, socket, record }))
        }
        Ok(served) => UpgradeOutcome::Rejected(
            Box::pin(async { buffer_refusal(delivery::deliver_response(gateway, served, &call, record).await).await })
                .await,
        ),
        Err(error) => UpgradeOutcome::Rejected(delivery::respond_with_error(&error, &call, record)),
    }
}

/// A provider's refusal, which is told at once: of one that comes in pieces what is there soon.
async fn buffer_refusal(answer: ClientResponse) -> ClientResponse {
    let ClientResponseBody::Stream(mut stream) = answer.body else { return answer };
    let mut bytes = Vec::new();
    let reading = async {
        while bytes.len() < MAX_REFUSAL_BYTES
            && let Ok(Some(piece)) = stream.next().await
        {
            bytes.extend_from_slice(&piece);
        }
    };
    // What is not there by then is not waited for.
    drop(timeout(REFUSAL_READ_TIMEOUT, reading).await);
    bytes.truncate(MAX_REFUSAL_BYTES);
    let mut reply = answer.head;
    reply.headers.retain(|name| name != b"content-length");
    reply.set_content_length(Some(bytes.len()));
    ClientResponse { head: reply, body: Bytes::from(bytes).into() }
}

/// The protocols that a client offers, without the keys that it puts among them.
fn offered_protocols(headers: &Headers) -> Vec<&str> {
    let names = headers.get_str("sec-websocket-protocol").unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty() && !name.starts_with(API_KEY_PROTOCOL_PREFIX)).collect()
}
