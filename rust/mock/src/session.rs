//! WebSocket sessions for the Realtime and Responses APIs. Each event of the client gets its response events. Events
//! named `mock.*` make a session misbehave.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error, Message};

/// WebSocket subprotocol that is selected if the client offers it.
const SUBPROTOCOL: &str = "realtime";
const DELTA_TEXTS: [&str; 3] = ["Hello", " from", " mock"];

/// Parts of a WebSocket upgrade request that the session needs.
pub struct UpgradeRequest {
    websocket_key: String,
    offers_subprotocol: bool,
    is_responses_api: bool,
    model: String,
}

impl UpgradeRequest {
    /// Parses an upgrade request; returns `None` if the request does not ask for a WebSocket.
    pub fn parse(head: &[u8], target: &[u8]) -> Option<Self> {
        let head = String::from_utf8_lossy(head);
        let field = |key: &str| {
            let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
            fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value.trim())
        };
        field("upgrade").filter(|value| value.eq_ignore_ascii_case("websocket"))?;
        let target = String::from_utf8_lossy(target);
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let model = query.split('&').find_map(|pair| pair.strip_prefix("model=")).unwrap_or("mock");
        let offered = field("sec-websocket-protocol").unwrap_or_default();
        Some(Self {
            websocket_key: field("sec-websocket-key")?.to_owned(),
            offers_subprotocol: offered.split(',').any(|name| name.trim() == SUBPROTOCOL),
            is_responses_api: path.ends_with("/responses"),
            model: model.to_owned(),
        })
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn handshake_response(&self) -> String {
        let accept = derive_accept_key(self.websocket_key.as_bytes());
        let protocol_header = if self.offers_subprotocol { "sec-websocket-protocol: realtime\r\n" } else { "" };
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
            sec-websocket-accept: {accept}\r\n{protocol_header}\r\n"
        )
    }
}

/// State of one WebSocket session.
pub struct Session {
    socket: WebSocketStream<TcpStream>,
    upgrade: UpgradeRequest,
    response_count: u64,
    ping_count: u64,
}

/// Next action after an event.
enum NextAction {
    Continue,
    End,
}

/// Runs a session; returns true if it was closed cleanly.
pub async fn run_session(stream: TcpStream, read: Vec<u8>, upgrade: UpgradeRequest) -> bool {
    let socket = WebSocketStream::from_partially_read(stream, read, Role::Server, None).await;
    let mut session = Session { socket, upgrade, response_count: 0, ping_count: 0 };
    session.run().await.is_ok()
}

impl Session {
    async fn run(&mut self) -> Result<(), Error> {
        if !self.upgrade.is_responses_api {
            let about = json!({"id": "sess_mock", "object": "realtime.session", "model": self.upgrade.model});
            self.send_event(&json!({"type": "session.created", "session": about})).await?;
        }
        loop {
            match self.socket.next().await.ok_or(Error::ConnectionClosed)?? {
                Message::Text(text) => {
                    let event: Value = serde_json::from_str(&text).unwrap_or_default();
                    if let NextAction::End = self.handle_event(&event).await? {
                        return Ok(());
                    }
                }
                Message::Binary(bytes) => self.socket.send(Message::Binary(bytes)).await?,
                Message::Ping(_) => self.ping_count += 1,
                Message::Close(_) => {
                    // The socket sends its reply to the close frame when it is polled again.
                    let _ = self.socket.next().await;
                    return Ok(());
                }
                Message::Pong(_) | Message::Frame(_) => (),
            }
        }
    }

    async fn send_event(&mut self, event: &Value) -> Result<(), Error> {
        self.socket.send(Message::text(event.to_string())).await
    }

    async fn handle_event(&mut self, event: &Value) -> Result<NextAction, Error> {
        let number = |name: &str| event[name].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "session.update" => {
                let about = &event["session"];
                self.send_event(&json!({"type": "session.updated", "session": about})).await?;
            }
            "conversation.item.create" => {
                self.send_event(&json!({"type": "conversation.item.created", "item": event["item"]})).await?;
            }
            "response.create" => {
                // In the Responses API, each request names its model.
                let model = event["model"].as_str().unwrap_or(&self.upgrade.model).to_owned();
                self.send_response(&model).await?;
            }
            // Accepts audio input without a reply.
            "input_audio_buffer.append" => (),
            "input_audio_buffer.commit" => {
                let usage = json!({"type": "tokens", "total_tokens": 22, "input_tokens": 13, "output_tokens": 9,
                    "input_token_details": {"text_tokens": 1, "audio_tokens": 12}});
                self.send_event(
                    &json!({"type": "conversation.item.input_audio_transcription.completed", "item_id": "item_mock",
                    "content_index": 0, "transcript": "Hi", "usage": usage}),
                )
                .await?;
            }
            "mock.pings" => {
                let pings = self.ping_count;
                self.send_event(&json!({"type": "mock.pings", "count": pings})).await?;
            }
            "mock.flood" => {
                let text = "x".repeat(usize::try_from(number("bytes")).unwrap_or_default());
                for at in 0..number("count") {
                    self.send_event(&json!({"type": "mock.chunk", "at": at, "text": text})).await?;
                }
            }
            "mock.close" => return self.close_socket(event).await,
            "mock.drop" => return Ok(NextAction::End),
            "mock.silence" => tokio::time::sleep(Duration::from_hours(1)).await,
            kind => {
                let message = format!("unknown event type `{kind}`");
                self.send_event(
                    &json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}}),
                )
                .await?;
            }
        }
        Ok(NextAction::Continue)
    }

    async fn send_response(&mut self, model: &str) -> Result<(), Error> {
        self.response_count += 1;
        let id = format!("resp_mock_{}", self.response_count);
        let about = |status: &str| json!({"id": id, "object": "response", "status": status, "model": model});
        let (created, mut done) = (about("in_progress"), about("completed"));
        self.send_event(&json!({"type": "response.created", "response": created})).await?;
        for delta in DELTA_TEXTS {
            self.send_event(&json!({"type": "response.output_text.delta", "response_id": id, "delta": delta})).await?;
        }
        let kind = if self.upgrade.is_responses_api { "response.completed" } else { "response.done" };
        done["usage"] = json!({"total_tokens": 20, "input_tokens": 12, "output_tokens": 8,
            "input_token_details": {"text_tokens": 7, "audio_tokens": 5, "cached_tokens": 0},
            "output_token_details": {"text_tokens": 8, "audio_tokens": 0}});
        self.send_event(&json!({"type": kind, "response": done})).await
    }

    async fn close_socket(&mut self, event: &Value) -> Result<NextAction, Error> {
        let code = u16::try_from(event["code"].as_u64().unwrap_or(1000)).unwrap_or(1000);
        let reason = event["reason"].as_str().unwrap_or_default().to_owned();
        self.socket.close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() })).await?;
        // Waits until the client has closed its side too.
        while let Some(Ok(_)) = self.socket.next().await {}
        Ok(NextAction::End)
    }
}
