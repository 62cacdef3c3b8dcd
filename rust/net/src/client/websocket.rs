//! WebSocket client for providers. Opens an unpooled connection under the same rules as other requests and performs the
//! handshake.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use super::http1;
use super::incoming::IncomingResponse;
use super::message::ResponseHead;
use super::message::upstream_error;
use super::upstream::Upstream;
use crate::{
    connect::{connection::Connection, origin::Origin},
    error::{Error, Result},
    headers::Headers,
};

/// Maximum size of a message in either direction. The largest limit of a provider is 15 MiB.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of bytes that wait to be written to the socket, in addition to one message.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// An open WebSocket to a provider.
pub type ProviderWebSocket = WebSocketStream<Connection>;

/// Result of a WebSocket handshake.
pub enum UpgradeResult {
    Open(Box<ProviderWebSocket>, Headers),
    Rejected(Box<IncomingResponse>),
}

/// Header fields that a WebSocket handshake adds to a request head.
pub struct Handshake {
    key: String,
    /// Offered subprotocols, joined by commas.
    subprotocols: Option<String>,
}

impl Handshake {
    pub fn new(protocols: &[&str]) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&fastrand::u64(..).to_ne_bytes());
        key[8..].copy_from_slice(&fastrand::u64(..).to_ne_bytes());
        let subprotocols = (!protocols.is_empty()).then(|| protocols.join(", "));
        Self { key: STANDARD.encode(key), subprotocols }
    }

    /// Appends the handshake fields to a complete head, before its blank line.
    pub fn append_to(&self, head: &mut Vec<u8>) {
        head.truncate(head.len().saturating_sub(2));
        head.extend_from_slice(b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n");
        let protocols = self.subprotocols.as_deref().map(|names| ("sec-websocket-protocol", names));
        for (name, value) in [("sec-websocket-key", self.key.as_str())].into_iter().chain(protocols) {
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        head.extend_from_slice(b"\r\n");
    }

    /// Checks that a response accepts this handshake (RFC 6455 §4.1).
    fn check_response(&self, response: &ResponseHead) -> Result<()> {
        let fields = &response.headers;
        let is_switched = fields.has_token("upgrade", "websocket") && fields.has_token("connection", "upgrade");
        let subprotocol = fields.get_str("sec-websocket-protocol").map(str::trim);
        let is_offered = |name: &str| {
            self.subprotocols.as_ref().is_some_and(|offered| offered.split(',').any(|part| part.trim() == name))
        };
        let fault = if !is_switched {
            "its response does not switch to WebSocket"
        } else if fields.get_str("sec-websocket-accept").map(str::trim) != Some(&derive_accept_key(self.key.as_bytes()))
        {
            "its sec-websocket-accept does not match the handshake"
        } else if fields.get("sec-websocket-extensions").is_some() {
            "it uses an extension that was not offered"
        } else if !subprotocol.is_none_or(is_offered) {
            "it chose a subprotocol that was not offered"
        } else {
            return Ok(());
        };
        Err(Error::ResponseBroken { cause: fault.to_owned() })
    }
}

impl Upstream {
    /// Opens a WebSocket over an unpooled connection. Has no timeout of its own.
    pub async fn open_websocket(
        &self,
        origin: &Origin,
        mut head: Vec<u8>,
        handshake: &Handshake,
    ) -> Result<UpgradeResult> {
        handshake.append_to(&mut head);
        if let Some(proxy) = self.dialer.forward_proxy(origin) {
            head = proxy.to_absolute_form(&head, origin);
        }
        let mut connection = self.dialer.connect_http1(origin).await?;
        connection.write(&head, &[]).await.map_err(|error| upstream_error(&error))?;
        let message_head = http1::read_upgrade_response(&mut connection).await?;
        if message_head.response.status != 101 {
            let body = http1::Http1BodyReader::new(connection, message_head.framing, None, self.read_timeout).into();
            return Ok(UpgradeResult::Rejected(Box::new(IncomingResponse { head: message_head.response, body })));
        }
        handshake.check_response(&message_head.response)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES))
            .write_buffer_size(0)
            .max_write_buffer_size(MAX_MESSAGE_BYTES + WRITE_BUFFER_BYTES);
        let read = connection.buffer.split().to_vec();
        let socket = WebSocketStream::from_partially_read(connection, read, Role::Client, Some(config)).await;
        Ok(UpgradeResult::Open(Box::new(socket), message_head.response.headers))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
            return self.poll_read_transport(context, into);
        }
        let length = self.buffer.len().min(into.remaining());
        into.put_slice(&self.buffer[..length]);
        self.buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_buf(context, &bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_transport(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown_transport(context)
    }
}

/// Open WebSocket connection to a provider.
pub struct UpstreamWebSocket {
    pub socket: Box<ProviderWebSocket>,
    /// Subprotocol that the provider selected.
    pub protocol: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrade_response(fields: &[(&str, &str)]) -> ResponseHead {
        let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        ResponseHead { status: 101, headers }
    }

    #[test]
    fn accepts_only_a_response_to_this_handshake() {
        // RFC 6455 §1.3
        let handshake = Handshake { key: "dGhlIHNhbXBsZSBub25jZQ==".into(), subprotocols: Some("realtime, b".into()) };
        let good = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ];
        assert!(handshake.check_response(&upgrade_response(&good)).is_ok());
        for (index, field) in
            [(0, ("connection", "close")), (1, ("upgrade", "h2c")), (2, ("sec-websocket-accept", "x"))]
        {
            let mut bad = good;
            bad[index] = field;
            assert!(handshake.check_response(&upgrade_response(&bad)).is_err(), "{field:?}");
        }
        let more = |field| upgrade_response(&[good[0], good[1], good[2], field]);
        assert!(handshake.check_response(&more(("sec-websocket-protocol", "realtime"))).is_ok());
        assert!(handshake.check_response(&more(("sec-websocket-protocol", "other"))).is_err());
        assert!(handshake.check_response(&more(("sec-websocket-extensions", "permessage-deflate"))).is_err());
    }

    #[test]
    fn appends_the_handshake_once_before_one_blank_line() {
        let mut head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec();
        Handshake::new(&["realtime"]).append_to(&mut head);
        let text = String::from_utf8(head).unwrap();
        assert_eq!(text.matches("\r\n\r\n").count(), 1);
        assert!(text.ends_with("sec-websocket-protocol: realtime\r\n\r\n") && text.contains("sec-websocket-key: "));
    }
}
