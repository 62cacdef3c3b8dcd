//! WebSocket sessions: the handshake with the provider, and the relay of messages between client and provider.

pub(crate) mod connect;
mod relay;

use penstock_net::headers::Headers;
pub use tokio_tungstenite::tungstenite::{
    Message, Utf8Bytes,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

pub(crate) use connect::{model_from_query, upgrade_target};
pub use relay::WebSocketSession;

/// Prefix of a WebSocket subprotocol entry that carries an API key.
const API_KEY_PROTOCOL_PREFIX: &str = "openai-insecure-api-key.";

/// Returns the subprotocols that the client offers, without entries that carry API keys.
pub(crate) fn offered_protocols(headers: &Headers) -> Vec<&str> {
    let names = headers.get_str("sec-websocket-protocol").unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty() && !name.starts_with(API_KEY_PROTOCOL_PREFIX)).collect()
}
