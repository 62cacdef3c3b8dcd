//! WebSocket relay between client and provider, with backpressure in both directions.

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
use penstock_llm::{operation::Operation, stream::session::SessionMeter as Meter};
use penstock_net::{MAX_MESSAGE_BYTES, ProviderWebSocket};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::mpsc::{Receiver, Sender},
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_tungstenite::tungstenite::{self, error::CapacityError};

use super::{CloseCode, CloseFrame, Message};
use crate::{
    accounting::{
        record::{Outcome, Record, RequestLog, SessionUsage},
        saved_models::SavedModels,
    },
    endpoints::limit_admission,
    error::{Error, Result},
    gateway_state::GatewayState,
};

/// How long each side may take to complete the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of the reason in a close frame, in bytes.
const MAX_CLOSE_REASON_BYTES: usize = 123;
/// Event type of a client message that starts a response.
const RESPONSE_CREATE: &str = "response.create";

/// WebSocket session whose upgrade the provider has accepted.
pub struct WebSocketSession {
    pub protocol: Option<String>,
    pub(crate) socket: Box<ProviderWebSocket>,
    pub(crate) record: Record,
}

/// Restricts which models the client may name in its messages.
struct ModelGuard {
    /// Allowed models. `None` if the models are not restricted.
    allowed_models: Option<Arc<SavedModels>>,
    /// True for Responses sessions, where each message names a model. A realtime session has one model, but its
    /// messages may name secondary models.
    requires_model_per_message: bool,
}

/// Fields in which a message may name a model. Deserialisation rejects a message that repeats one of these fields.
#[derive(Deserialize)]
struct ModelFields<'m> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'m, str>>,
    #[serde(borrow)]
    model: Option<Cow<'m, str>>,
    #[serde(borrow)]
    response: Option<ResponseField<'m>>,
}

#[derive(Deserialize)]
struct ResponseField<'m> {
    #[serde(borrow)]
    model: Option<Cow<'m, str>>,
}

impl ModelGuard {
    fn from_record(record: &Record) -> Self {
        let requires_model_per_message = record.log.operation == Some(Operation::CreateModelResponse);
        Self {
            allowed_models: record.log.billing.tariff.saved_models.clone().filter(|models| models.is_restricted()),
            requires_model_per_message,
        }
    }

    fn check_message(&self, message: &Message) -> Result<()> {
        let (payload, models): (&[u8], _) = match (message, &self.allowed_models) {
            (Message::Text(text), Some(models)) => (text.as_bytes(), models),
            (Message::Binary(bytes), Some(models)) => (bytes, models),
            _ => return Ok(()),
        };
        if self.requires_model_per_message {
            check_message_models(models, payload)?;
        }
        models.check_named_models(payload, &[])
    }
}

fn check_message_models(models: &SavedModels, payload: &[u8]) -> Result<()> {
    let ModelFields { kind, model, response } = serde_json::from_slice(payload)
        .map_err(|error| Error::BodyInvalid { offset: error.column(), message: "a message must be one JSON object" })?;
    let mut requested = model.into_iter().chain(response.and_then(|within| within.model)).peekable();
    if requested.peek().is_none() && kind.is_some_and(|kind| kind == RESPONSE_CREATE) {
        // Without a model the provider may select one itself, for example from a stored prompt.
        return Err(Error::model_not_allowed(""));
    }
    let refused = requested.find(|model| !models.is_allowed(model));
    refused.map_or(Ok(()), |model| Err(Error::model_not_allowed(model)))
}

/// Reason why a session ended.
enum SessionEnd {
    /// The client sent a close frame.
    ClosedByClient(Option<CloseFrame>),
    /// The client disconnected without a close frame, or stopped reading.
    ClientDisconnected,
    /// The client sent a message that exceeds the size limit.
    MessageTooLarge,
    /// A client message names a model that is not allowed, or cannot be parsed.
    MessageDenied(Error),
    /// The provider sent a close frame.
    ClosedByProvider(Option<CloseFrame>),
    /// The provider's connection failed, it stopped reading, or its message exceeds the size limit. Holds the close
    /// reason.
    ProviderFailed(&'static str),
    /// The provider sent nothing, not even a pong, for this many milliseconds.
    ProviderTimedOut(u64),
    /// Nothing is left of a budget that the session counts for.
    LimitReached(Error),
    Draining,
}

/// Tracks when the provider last sent a frame.
struct ActivityTracker {
    started_at: Instant,
    last_received_ms: AtomicU64,
}

impl ActivityTracker {
    fn record_activity(&self) {
        self.last_received_ms.store(self.started_at.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn idle_time(&self) -> Duration {
        self.started_at.elapsed().saturating_sub(Duration::from_millis(self.last_received_ms.load(Ordering::Relaxed)))
    }
}

impl WebSocketSession {
    /// Relays messages in both directions until one side closes, an error occurs or the gateway drains. Then closes
    /// both sides and finishes the record.
    pub async fn relay(self, state: &GatewayState, mut from: Receiver<Message>, to: Sender<Message>) {
        let Self { socket, mut record, .. } = self;
        let (mut out, mut into) = socket.split();
        let pulse = ActivityTracker { started_at: Instant::now(), last_received_ms: AtomicU64::new(0) };
        let mut meter = Meter::default();
        let guard = ModelGuard::from_record(&record);
        let end = tokio::select! {
            end = relay_to_provider(state, &mut from, &guard, &mut out, &pulse) => end,
            end = relay_to_client(state, &mut into, &pulse, &to, &mut meter, &mut record) => end,
            () = state.wait_for_drain_start() => SessionEnd::Draining,
        };
        let (client_close, provider_close) = end.close_frames();
        if let Some(event) = end.error_event() {
            drop(timeout(CLOSE_TIMEOUT, to.send(Message::Text(event.into()))).await);
        }
        if let Some(frame) = client_close {
            // If the client no longer reads, the close frame is dropped after the timeout.
            drop(timeout(CLOSE_TIMEOUT, to.send(Message::Close(Some(frame)))).await);
        } else if matches!(end, SessionEnd::ClosedByProvider(None)) {
            drop(timeout(CLOSE_TIMEOUT, to.send(Message::Close(None))).await);
        }
        drop((to, from));
        let closing = async {
            drop(out.send(Message::Close(provider_close)).await);
            // The provider may report usage in messages that it sends before it closes.
            while let Some(Ok(message)) = into.next().await {
                if let Message::Text(text) = &message {
                    record.add_event(meter.read_event(text.as_bytes()));
                }
            }
        };
        drop(timeout(CLOSE_TIMEOUT, closing).await);
        let (outcome, error) = end.outcome();
        record.log.error_code = error;
        set_session_usage(&mut record, &meter);
        record.finish(meter.total_usage(), None, outcome);
    }
}

/// Sets the usage of each model of a session. If the request named no model, the record gets the first one of the
/// session and its price.
fn set_session_usage(record: &mut Record, meter: &Meter) {
    if record.log.model.is_empty()
        && let Some(model) = &meter.model
    {
        record.log.billing.tariff = record.log.billing.tariff.for_other_model(model);
        record.log.model.clone_from(model);
    }
    let others = meter.other_models.clone();
    record.log.billing.session_usage =
        (!others.is_empty()).then(|| Box::new(SessionUsage { main: meter.usage, other_models: others }));
}

/// Reserves the amount that a session has used so far.
///
/// # Errors
/// If nothing is left of a budget.
async fn extend_limits(state: &GatewayState, record: &mut Record, meter: &Meter) -> Result<()> {
    if record.log.limits.is_none() {
        return Ok(());
    }
    record.log.billing.usage = meter.total_usage();
    set_session_usage(record, meter);
    let usage = record.usage_so_far();
    update_budgets(state, &mut record.log);
    limit_admission::extend_attempt(state, &mut record.log, usage).await
}

/// Reads the budgets of a session again. An administrator may have changed or deleted them since it began.
fn update_budgets(state: &GatewayState, log: &mut RequestLog) {
    if let (Some(holds), Some(workspace)) = (&mut log.limits, &log.details.identity.workspace_id) {
        holds.update_budgets(state.load_snapshot().find_limits(workspace));
    }
}

impl SessionEnd {
    /// Returns the event with the reason that the client receives before the connection closes.
    fn error_event(&self) -> Option<String> {
        let Self::LimitReached(error) = self else { return None };
        let details = json!({"type": "invalid_request_error", "code": error.code(), "message": error.to_string()});
        Some(json!({"type": "error", "error": details}).to_string())
    }

    /// Returns the close frames for the client and for the provider, in this order.
    fn close_frames(&self) -> (Option<CloseFrame>, Option<CloseFrame>) {
        let frame = |code, reason: &str| Some(CloseFrame { code, reason: reason.into() });
        match self {
            Self::ClosedByClient(frame) => (None, frame.clone().and_then(filter_sendable)),
            Self::ClientDisconnected => (None, frame(CloseCode::Away, "the client disconnected")),
            Self::MessageTooLarge => {
                let reason = format!("a message may have at most {MAX_MESSAGE_BYTES} bytes");
                (frame(CloseCode::Size, &reason), frame(CloseCode::Away, "the gateway closed the client's connection"))
            }
            Self::MessageDenied(_) => {
                let reason = "the model that the message names may not be used here";
                (frame(CloseCode::Policy, reason), frame(CloseCode::Away, "the gateway closed the client's connection"))
            }
            Self::ClosedByProvider(frame) => (frame.clone().and_then(filter_sendable), None),
            Self::ProviderFailed(why) => (frame(CloseCode::Error, why), None),
            Self::ProviderTimedOut(_) => (frame(CloseCode::Error, "the provider does not respond"), None),
            Self::LimitReached(_) => (
                frame(CloseCode::Policy, "the budget of this session is used up"),
                frame(CloseCode::Away, "the gateway closed the client's connection"),
            ),
            Self::Draining => (
                frame(CloseCode::Restart, "the gateway is restarting"),
                frame(CloseCode::Away, "the gateway is restarting"),
            ),
        }
    }

    fn outcome(&self) -> (Outcome, Option<&'static str>) {
        let broke = || Some(Error::UpstreamResponseBroken { cause: String::new() }.code());
        match self {
            Self::ClosedByClient(_) => (Outcome::Complete, None),
            Self::ClientDisconnected => (Outcome::Aborted, None),
            Self::MessageTooLarge => (Outcome::Refused, Some(Error::BodyTooLarge { limit: MAX_MESSAGE_BYTES }.code())),
            Self::MessageDenied(error) => (Outcome::Refused, Some(error.code())),
            Self::LimitReached(error) => (Outcome::Truncated, Some(error.code())),
            Self::ClosedByProvider(frame) => {
                let is_good = frame
                    .as_ref()
                    .is_none_or(|frame| matches!(frame.code, CloseCode::Normal | CloseCode::Away | CloseCode::Status));
                if is_good { (Outcome::Complete, None) } else { (Outcome::Truncated, broke()) }
            }
            Self::ProviderFailed(_) => (Outcome::Truncated, broke()),
            Self::ProviderTimedOut(milliseconds) => {
                (Outcome::Truncated, Some(Error::IdleTimeout { milliseconds: *milliseconds }.code()))
            }
            Self::Draining => (Outcome::Truncated, Some(Error::Draining.code())),
        }
    }
}

/// Returns the frame if it may be sent. Some codes only mean that no code was present (RFC 6455 §7.4.1).
fn filter_sendable(frame: CloseFrame) -> Option<CloseFrame> {
    let is_fine = frame.code.is_allowed() && frame.reason.len() <= MAX_CLOSE_REASON_BYTES;
    is_fine.then_some(frame)
}

/// Relays messages from the client to the provider. Pings the provider when it has been idle for a heartbeat.
async fn relay_to_provider(
    state: &GatewayState,
    from: &mut Receiver<Message>,
    guard: &ModelGuard,
    out: &mut SplitSink<Box<ProviderWebSocket>, Message>,
    pulse: &ActivityTracker,
) -> SessionEnd {
    let beat = Duration::from_millis(state.settings.heartbeat_ms);
    let (idle, stall) = (state.settings.idle_timeout_ms, state.settings.write_stall_ms);
    let every = if beat.is_zero() { Duration::from_hours(24 * 365) } else { beat };
    let mut beats = interval_at(Instant::now() + every, every);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = from.recv() => match message {
                None => return SessionEnd::ClientDisconnected,
                Some(Message::Close(frame)) => return SessionEnd::ClosedByClient(frame),
                Some(message) if message.len() > MAX_MESSAGE_BYTES => return SessionEnd::MessageTooLarge,
                Some(message) => match guard.check_message(&message) {
                    Ok(()) => message,
                    Err(error) => return SessionEnd::MessageDenied(error),
                },
            },
            _ = beats.tick() => match pulse.idle_time() {
                silence if silence < beat => continue,
                silence if silence >= Duration::from_millis(idle) => return SessionEnd::ProviderTimedOut(idle),
                _ => Message::Ping(Vec::new().into()),
            },
        };
        match timeout(Duration::from_millis(stall), out.send(message)).await {
            Ok(Ok(())) => (),
            // Messages from before the failure may still be unread. `relay_to_client` reads them and reports the
            // reason.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return SessionEnd::ProviderFailed("the provider does not read"),
        }
    }
}

/// Relays messages from the provider to the client and meters their usage.
async fn relay_to_client(
    state: &GatewayState,
    into: &mut SplitStream<Box<ProviderWebSocket>>,
    pulse: &ActivityTracker,
    to: &Sender<Message>,
    meter: &mut Meter,
    record: &mut Record,
) -> SessionEnd {
    let stall = Duration::from_millis(state.settings.write_stall_ms);
    let mut used = None;
    loop {
        if meter.total_usage() != used {
            used = meter.total_usage();
            if let Err(error) = Box::pin(extend_limits(state, record, meter)).await {
                return SessionEnd::LimitReached(error);
            }
        }
        let message = match into.next().await {
            Some(Ok(message)) => message,
            Some(Err(tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. }))) => {
                return SessionEnd::ProviderFailed("the provider's message is too large");
            }
            Some(Err(_)) | None => return SessionEnd::ProviderFailed("the connection to the provider was lost"),
        };
        pulse.record_activity();
        match &message {
            Message::Text(text) => record.add_event(meter.read_event(text.as_bytes())),
            Message::Binary(_) => (),
            Message::Close(frame) => return SessionEnd::ClosedByProvider(frame.clone()),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        }
        let length = message.len() as u64;
        match timeout(stall, to.send(message)).await {
            Ok(Ok(())) => record.record_message(length),
            Ok(Err(_)) | Err(_) => return SessionEnd::ClientDisconnected,
        }
    }
}
