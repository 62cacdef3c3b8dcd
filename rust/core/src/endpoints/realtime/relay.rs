//! Both ways between a caller and a provider over `WebSockets`, each no faster than the other side takes it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use penstock_llm::{operation::Operation, usage::Session as Meter};
use serde::Deserialize;
use tokio::{
    sync::mpsc::{Receiver, Sender},
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_tungstenite::tungstenite::{self, error::CapacityError};

use super::{CloseCode, CloseFrame, Message};
use crate::{
    accounting::record::{Outcome, Record, Shares},
    error::{Error, Result},
    gateway::Gateway,
    resolve::models::Models,
    upstream::{LARGEST_MESSAGE, Socket},
};

/// How long a provider may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
/// Longest reason of a close frame, in bytes.
const LONGEST_REASON: usize = 123;
/// Messages that ask for an answer.
const CREATE: &str = "response.create";

/// A WebSocket whose provider has agreed to it.
pub struct Session {
    pub protocol: Option<String>,
    pub(crate) socket: Box<Socket>,
    pub(crate) record: Record,
}

/// Which models a caller may name in its messages.
struct Ward {
    /// Where not all may be.
    models: Option<Arc<Models>>,
    /// Those of Responses each name one; a realtime session has one, and may name others beside it.
    each_names_one: bool,
}

/// Where a message may name a model. Whoever names two of one name is not understood.
#[derive(Deserialize)]
struct Named<'m> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'m, str>>,
    #[serde(borrow)]
    model: Option<Cow<'m, str>>,
    #[serde(borrow)]
    response: Option<Within<'m>>,
}

#[derive(Deserialize)]
struct Within<'m> {
    #[serde(borrow)]
    model: Option<Cow<'m, str>>,
}

impl Ward {
    fn of(record: &Record) -> Self {
        let each_names_one = record.facts.operation == Some(Operation::CreateModelResponse);
        Self {
            models: record.facts.paid.tariff.others.clone().filter(|models| models.are_restricted()),
            each_names_one,
        }
    }

    fn admit(&self, message: &Message) -> Result<()> {
        let (said, models): (&[u8], _) = match (message, &self.models) {
            (Message::Text(text), Some(models)) => (text.as_bytes(), models),
            (Message::Binary(bytes), Some(models)) => (bytes, models),
            _ => return Ok(()),
        };
        if self.each_names_one {
            admit_named(models, said)?;
        }
        models.admit_beside(said)
    }
}

fn admit_named(models: &Models, said: &[u8]) -> Result<()> {
    let Named { kind, model, response } = serde_json::from_slice(said)
        .map_err(|error| Error::BodyInvalid { at: error.column(), message: "a message is not one JSON object" })?;
    let mut named = model.into_iter().chain(response.and_then(|within| within.model)).peekable();
    if named.peek().is_none() && kind.is_some_and(|kind| kind == CREATE) {
        // Its provider may take one that nobody named, such as that of a prompt that it keeps.
        return Err(Error::ModelRefused { model: String::new() });
    }
    let refused = named.find(|model| !models.admits(model));
    refused.map_or(Ok(()), |model| Err(Error::ModelRefused { model: model.into_owned() }))
}

/// Why a session is over.
enum End {
    /// The caller closed it.
    Closed(Option<CloseFrame>),
    /// The caller is gone without a word, or reads nothing any more.
    Left,
    /// The caller said too much at once.
    TooLarge,
    /// The caller asked a model that it may not use, or in words that cannot be read.
    Unadmitted(Error),
    /// The provider closed it.
    Ended(Option<CloseFrame>),
    /// The provider's connection broke, or it said too much at once.
    Broke(&'static str),
    /// The provider says nothing, not even that it is there.
    Silent(u64),
    Draining,
}

/// The way to a provider, and when something came from it last.
struct Pulse {
    since: Instant,
    heard_ms: AtomicU64,
}

impl Pulse {
    fn heard(&self) {
        self.heard_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)))
    }
}

impl Session {
    /// Until one of the two has enough, or this process ends.
    pub async fn relay(self, gateway: &Gateway, mut from: Receiver<Message>, to: Sender<Message>) {
        let Self { socket, mut record, .. } = self;
        let (mut out, mut into) = socket.split();
        let pulse = Pulse { since: Instant::now(), heard_ms: AtomicU64::new(0) };
        let mut meter = Meter::default();
        let ward = Ward::of(&record);
        let end = tokio::select! {
            end = up(gateway, (&mut from, &ward), &mut out, &pulse) => end,
            end = down(gateway, (&mut into, &pulse), &to, (&mut meter, &mut record)) => end,
            () = gateway.leaving() => End::Draining,
        };
        let (told, said) = end.words();
        if let Some(told) = told {
            // Whoever does not read any more misses nothing.
            drop(timeout(FAREWELL, to.send(Message::Close(Some(told)))).await);
        } else if matches!(end, End::Ended(None)) {
            drop(timeout(FAREWELL, to.send(Message::Close(None))).await);
        }
        drop((to, from));
        let farewell = async {
            drop(out.send(Message::Close(said)).await);
            // What it used may be among its last words.
            while let Some(Ok(message)) = into.next().await {
                if let Message::Text(text) = &message {
                    record.mark(meter.hear(text.as_bytes()));
                }
            }
        };
        drop(timeout(FAREWELL, farewell).await);
        let (outcome, error) = end.outcome();
        record.facts.error = error;
        if let (true, Some(model)) = (record.facts.model.is_empty(), meter.model.take()) {
            record.facts.paid.tariff = record.facts.paid.tariff.of_another(&model);
            record.facts.model = model;
        }
        let usage = meter.total();
        let Meter { usage: rest, others, .. } = meter;
        record.facts.paid.shares = (!others.is_empty()).then(|| Box::new(Shares { rest, others }));
        record.settle(usage, None, outcome);
    }
}

impl End {
    /// What the caller is told, and what the provider is.
    fn words(&self) -> (Option<CloseFrame>, Option<CloseFrame>) {
        let frame = |code, reason: &str| Some(CloseFrame { code, reason: reason.into() });
        match self {
            Self::Closed(frame) => (None, frame.clone().and_then(sendable)),
            Self::Left => (None, frame(CloseCode::Away, "the caller left")),
            Self::TooLarge => {
                let reason = format!("a message may have {LARGEST_MESSAGE} bytes");
                (frame(CloseCode::Size, &reason), frame(CloseCode::Away, "the caller was sent away"))
            }
            Self::Unadmitted(_) => {
                let reason = "the model that a message names may not be used here";
                (frame(CloseCode::Policy, reason), frame(CloseCode::Away, "the caller was sent away"))
            }
            Self::Ended(frame) => (frame.clone().and_then(sendable), None),
            Self::Broke(why) => (frame(CloseCode::Error, why), None),
            Self::Silent(_) => (frame(CloseCode::Error, "the provider says nothing"), None),
            Self::Draining => {
                (frame(CloseCode::Restart, "the gateway restarts"), frame(CloseCode::Away, "the gateway restarts"))
            }
        }
    }

    fn outcome(&self) -> (Outcome, Option<&'static str>) {
        let broke = || Some(Error::UpstreamBroke { cause: String::new() }.code());
        match self {
            Self::Closed(_) => (Outcome::Complete, None),
            Self::Left => (Outcome::Aborted, None),
            Self::TooLarge => (Outcome::Refused, Some(Error::BodyTooLarge { limit: LARGEST_MESSAGE }.code())),
            Self::Unadmitted(error) => (Outcome::Refused, Some(error.code())),
            Self::Ended(frame) => {
                let is_good = frame
                    .as_ref()
                    .is_none_or(|frame| matches!(frame.code, CloseCode::Normal | CloseCode::Away | CloseCode::Status));
                if is_good { (Outcome::Complete, None) } else { (Outcome::Cut, broke()) }
            }
            Self::Broke(_) => (Outcome::Cut, broke()),
            Self::Silent(milliseconds) => (Outcome::Cut, Some(Error::Silence { milliseconds: *milliseconds }.code())),
            Self::Draining => (Outcome::Cut, Some(Error::Draining.code())),
        }
    }
}

/// A frame that may be sent: some codes only say that there was none (RFC 6455 §7.4.1).
fn sendable(frame: CloseFrame) -> Option<CloseFrame> {
    let is_fine = frame.code.is_allowed() && frame.reason.len() <= LONGEST_REASON;
    is_fine.then_some(frame)
}

/// From the caller to the provider, who is asked now and then whether it is still there.
async fn up(
    gateway: &Gateway,
    (from, ward): (&mut Receiver<Message>, &Ward),
    out: &mut SplitSink<Box<Socket>, Message>,
    pulse: &Pulse,
) -> End {
    let beat = Duration::from_millis(gateway.settings.heartbeat_ms);
    let (idle, stall) = (gateway.settings.idle_timeout_ms, gateway.settings.write_stall_ms);
    let every = if beat.is_zero() { Duration::from_hours(24 * 365) } else { beat };
    let mut beats = interval_at(Instant::now() + every, every);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = from.recv() => match message {
                None => return End::Left,
                Some(Message::Close(frame)) => return End::Closed(frame),
                Some(message) if message.len() > LARGEST_MESSAGE => return End::TooLarge,
                Some(message) => match ward.admit(&message) {
                    Ok(()) => message,
                    Err(error) => return End::Unadmitted(error),
                },
            },
            _ = beats.tick() => match pulse.silence() {
                silence if silence < beat => continue,
                silence if silence >= Duration::from_millis(idle) => return End::Silent(idle),
                _ => Message::Ping(Vec::new().into()),
            },
        };
        match timeout(Duration::from_millis(stall), out.send(message)).await {
            Ok(Ok(())) => (),
            // What it said before is still to be read: the other way tells why.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return End::Broke("the provider reads nothing"),
        }
    }
}

/// From the provider to the caller.
async fn down(
    gateway: &Gateway,
    (into, pulse): (&mut SplitStream<Box<Socket>>, &Pulse),
    to: &Sender<Message>,
    (meter, record): (&mut Meter, &mut Record),
) -> End {
    let stall = Duration::from_millis(gateway.settings.write_stall_ms);
    loop {
        let message = match into.next().await {
            Some(Ok(message)) => message,
            Some(Err(tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. }))) => {
                return End::Broke("the provider's message is too large");
            }
            Some(Err(_)) | None => return End::Broke("the provider's connection broke off"),
        };
        pulse.heard();
        match &message {
            Message::Text(text) => record.mark(meter.hear(text.as_bytes())),
            Message::Binary(_) => (),
            Message::Close(frame) => return End::Ended(frame.clone()),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        }
        let length = message.len() as u64;
        match timeout(stall, to.send(message)).await {
            Ok(Ok(())) => record.relayed(length),
            Ok(Err(_)) | Err(_) => return End::Left,
        }
    }
}
