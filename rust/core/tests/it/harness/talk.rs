//! The caller's side of a `WebSocket` session.

use std::sync::Arc;

use penstock_core::{
    endpoints::realtime::{self, CloseCode, CloseFrame, Message, UpgradeOutcome},
    response::outgoing::{ClientResponse, ClientResponseBody},
};
use serde_json::Value;
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};

use super::{Ask, Rig, in_time};

pub const REALTIME: &str = "/v1/realtime?model=gpt-realtime";

/// The caller's side of a session.
pub struct Talk {
    pub protocol: Option<String>,
    pub says: Option<Sender<Message>>,
    hears: Receiver<Message>,
    relay: JoinHandle<()>,
}

pub fn ask(target: &str) -> Ask {
    Ask::new("GET", target).header("x-gateway-provider", "mock")
}

pub async fn connect(rig: &Rig, ask: Ask) -> UpgradeOutcome {
    Box::pin(in_time(realtime::handle_upgrade(&rig.gateway, ask.request().head))).await
}

pub async fn open(rig: &Rig, ask: Ask) -> Talk {
    match connect(rig, ask).await {
        UpgradeOutcome::Accepted(session) => {
            let (says, from_caller) = mpsc::channel(2);
            let (to_caller, hears) = mpsc::channel(2);
            let (gateway, protocol) = (Arc::clone(&rig.gateway), session.protocol.clone());
            let relay = tokio::spawn(async move { session.relay(&gateway, from_caller, to_caller).await });
            Talk { protocol, says: Some(says), hears, relay }
        }
        UpgradeOutcome::Rejected(answer) => match answer.body {
            ClientResponseBody::Complete(body) => panic!("{}", String::from_utf8_lossy(&body)),
            ClientResponseBody::Stream(_) => panic!("a stream"),
        },
    }
}

pub async fn refused(rig: &Rig, ask: Ask) -> (u16, Value) {
    match connect(rig, ask).await {
        UpgradeOutcome::Rejected(answer) => {
            let ClientResponseBody::Complete(body) = &answer.body else { panic!("a stream") };
            (status(&answer), serde_json::from_slice(body).unwrap_or_default())
        }
        UpgradeOutcome::Accepted(_) => panic!("it was opened"),
    }
}

pub fn status(answer: &ClientResponse) -> u16 {
    answer.head.status
}

impl Talk {
    pub async fn say(&self, event: Value) {
        self.send(Message::text(event.to_string())).await;
    }

    pub async fn send(&self, message: Message) {
        in_time(self.says.as_ref().unwrap().send(message)).await.unwrap();
    }

    pub async fn hear(&mut self) -> Message {
        in_time(self.hears.recv()).await.expect("nothing more is said")
    }

    pub async fn event(&mut self) -> Value {
        serde_json::from_str(self.hear().await.to_text().unwrap()).unwrap()
    }

    /// Hears until an event of this type.
    pub async fn until(&mut self, kind: &str) -> Value {
        for _ in 0..100 {
            let event = self.event().await;
            if event["type"] == kind {
                return event;
            }
        }
        panic!("no {kind}");
    }

    pub async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        self.send(Message::Close(Some(frame))).await;
        self.says = None;
        in_time(self.relay).await.unwrap();
    }

    pub async fn over(self) {
        in_time(self.relay).await.unwrap();
    }
}

pub fn closed(message: &Message) -> (u16, String) {
    let Message::Close(Some(frame)) = message else { panic!("{message:?}") };
    (frame.code.into(), frame.reason.to_string())
}
