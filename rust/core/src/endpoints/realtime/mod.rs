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

pub(crate) use crate::endpoints::realtime::connect::{Opened, ask, model};
use crate::{
    accounting::record::Record,
    error::Error,
    gateway::Gateway,
    ingress::{
        headers::{self, Control, Head, Headers},
        route::Route,
    },
    resolve::target_resolver::Call,
    response::{
        delivery::{self, Served},
        outgoing::{Answer, Contents},
    },
};
pub use relay::Session;

/// What names a key among the protocols that a client offers.
const KEY: &str = "openai-insecure-api-key.";

/// So much is told of what a provider says instead of opening one, and so long it is waited for.
const MOST_OF_REFUSAL: usize = 64 * 1024;
const LONGEST_REFUSAL: Duration = Duration::from_secs(5);

/// What becomes of a request for a WebSocket.
pub enum Connected {
    Refused(Answer),
    Open(Box<Session>),
}

/// Once per request for a WebSocket.
pub async fn connect(gateway: &Gateway, head: Head) -> Connected {
    let snapshot = gateway.snapshot.load_full();
    let odd = headers::odd_path(&head.path);
    let fault = odd.map(|message| Error::HeaderInvalid { name: "path", message: message.into() });
    let fault = fault.or_else(|| gateway.fault(&head));
    let head = Arc::new(head);
    let route = Route::of_socket(&head.path).filter(|_| !snapshot.is_management(&head.path));
    let Some(route) = route else {
        return Connected::Refused(gateway.turned_away(&fault.unwrap_or(Error::NotFound), &head));
    };
    let call = Call { route, head: &head, control: Control::read(&head.headers, &gateway.settings.header_aliases) };
    let mut record = Record::open(Arc::clone(&head), Arc::clone(&gateway.sink));
    record.facts.begin(&call, &gateway.sink);
    record.facts.paid.tariff.prices = Arc::clone(&snapshot.prices);
    if let Some(fault) = fault {
        return Connected::Refused(delivery::refuse(&fault, &call, record));
    }
    let opened = tokio::select! {
        biased;
        opened = connect::open(gateway, &snapshot, &call, &mut record.facts) => opened,
        () = gateway.leaving() => Err(Error::Draining),
    };
    match opened {
        Ok(Served { opened: Some(opened), .. }) => {
            record.facts.status = 101;
            record.facts.first_byte = Some(record.elapsed());
            let Opened { socket, protocol } = *opened;
            let protocol = protocol.or_else(|| offered(&head.headers).first().map(|name| (*name).to_owned()));
            Connected::Open(Box::new(Session { protocol, socket, record }))
        }
        Ok(served) => Connected::Refused(
            Box::pin(async { held(delivery::deliver(gateway, served, &call, record).await).await }).await,
        ),
        Err(error) => Connected::Refused(delivery::refuse(&error, &call, record)),
    }
}

/// A provider's refusal, which is told at once: of one that comes in pieces what is there soon.
async fn held(answer: Answer) -> Answer {
    let Contents::Stream(mut stream) = answer.body else { return answer };
    let mut bytes = Vec::new();
    let reading = async {
        while bytes.len() < MOST_OF_REFUSAL
            && let Ok(Some(piece)) = stream.next().await
        {
            bytes.extend_from_slice(&piece);
        }
    };
    // What is not there by then is not waited for.
    drop(timeout(LONGEST_REFUSAL, reading).await);
    bytes.truncate(MOST_OF_REFUSAL);
    let mut reply = answer.reply;
    reply.headers.retain(|name| name != b"content-length");
    reply.set_length(Some(bytes.len()));
    Answer { reply, body: Bytes::from(bytes).into() }
}

/// The protocols that a client offers, without the keys that it puts among them.
fn offered(headers: &Headers) -> Vec<&str> {
    let names = headers.text("sec-websocket-protocol").unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty() && !name.starts_with(KEY)).collect()
}
