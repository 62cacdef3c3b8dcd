//! Client side of a `WebSocket` session.

use std::sync::Arc;

use penstock_core::{
    endpoints::realtime::{CloseCode, CloseFrame, Message},
    gateway::UpgradeOutcome,
    response::client_response::{ClientResponse, ClientResponseBody},
};
use serde_json::Value;
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};

use super::{TestGateway, TestRequest, with_timeout};

pub const REALTIME_PATH: &str = "/v1/realtime?model=gpt-realtime";

/// Client side of a session.
pub struct RealtimeClient {
    pub protocol: Option<String>,
    pub sender: Option<Sender<Message>>,
    receiver: Receiver<Message>,
    relay_task: JoinHandle<()>,
}

pub fn realtime_request(target: &str) -> TestRequest {
    TestRequest::new("GET", target).header("x-gateway-provider", "mock")
}

pub async fn connect_realtime(gateway: &TestGateway, request: TestRequest) -> UpgradeOutcome {
    Box::pin(with_timeout(penstock_core::gateway::handle_upgrade(&gateway.state, request.build().head))).await
}

pub async fn open_realtime(gateway: &TestGateway, request: TestRequest) -> RealtimeClient {
    match connect_realtime(gateway, request).await {
        UpgradeOutcome::Accepted(session) => {
            let (client_sender, from_caller) = mpsc::channel(2);
            let (to_caller, hears) = mpsc::channel(2);
            let (state, protocol) = (Arc::clone(&gateway.state), session.protocol.clone());
            let relay = tokio::spawn(async move { session.relay(&state, from_caller, to_caller).await });
            RealtimeClient { protocol, sender: Some(client_sender), receiver: hears, relay_task: relay }
        }
        UpgradeOutcome::Rejected(answer) => match answer.body {
            ClientResponseBody::Complete(body) => panic!("{}", String::from_utf8_lossy(&body)),
            ClientResponseBody::Stream(_) => panic!("a stream"),
        },
    }
}

pub async fn expect_rejection(gateway: &TestGateway, request: TestRequest) -> (u16, Value) {
    match connect_realtime(gateway, request).await {
        UpgradeOutcome::Rejected(answer) => {
            let ClientResponseBody::Complete(body) = &answer.body else { panic!("a stream") };
            (response_status(&answer), serde_json::from_slice(body).unwrap_or_default())
        }
        UpgradeOutcome::Accepted(_) => panic!("it was opened"),
    }
}

pub fn response_status(response: &ClientResponse) -> u16 {
    response.head.status
}

impl RealtimeClient {
    pub async fn send_event(&self, event: Value) {
        self.send_message(Message::text(event.to_string())).await;
    }

    pub async fn send_message(&self, message: Message) {
        with_timeout(self.sender.as_ref().unwrap().send(message)).await.unwrap();
    }

    pub async fn receive_message(&mut self) -> Message {
        with_timeout(self.receiver.recv()).await.expect("the session sent no further message")
    }

    pub async fn receive_event(&mut self) -> Value {
        serde_json::from_str(self.receive_message().await.to_text().unwrap()).unwrap()
    }

    /// Receives events until one has this type; panics after 100 events.
    pub async fn receive_until(&mut self, kind: &str) -> Value {
        for _ in 0..100 {
            let event = self.receive_event().await;
            if event["type"] == kind {
                return event;
            }
        }
        panic!("no {kind}");
    }

    pub async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        self.send_message(Message::Close(Some(frame))).await;
        self.sender = None;
        with_timeout(self.relay_task).await.unwrap();
    }

    pub async fn wait_until_closed(self) {
        with_timeout(self.relay_task).await.unwrap();
    }
}

pub fn close_code_and_reason(message: &Message) -> (u16, String) {
    let Message::Close(Some(frame)) = message else { panic!("{message:?}") };
    (frame.code.into(), frame.reason.to_string())
}
