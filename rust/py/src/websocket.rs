//! Python handle of a client WebSocket. Python takes messages for the client and passes on messages from the client.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use penstock_core::{
    endpoints::realtime::{CloseCode, CloseFrame, Message, WebSocketSession},
    gateway::{self, UpgradeOutcome},
    gateway_state::GatewayState,
    ingress::message::RequestHead,
    process::edge::{idle_connections::RequestGuard, sock_diag},
    response::client_response::{ClientResponse, ClientResponseBody},
};
use penstock_net::headers::Headers;
use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};
use tokio::{
    sync::{
        Notify,
        mpsc::{self, error::TrySendError},
    },
    time::sleep,
};

use crate::{peer::ConnectionAddresses, runtime::JobRunner};

/// Maximum number of queued messages per direction, besides the one being sent.
const MAX_QUEUED_MESSAGES: usize = 2;
/// Interval of the checks for a disconnected client.
const DISCONNECT_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Event that Python delivers to the client.
enum ClientEvent {
    Accept(Option<String>),
    Deny(ClientResponse),
    Send(Message),
}

/// State shared between the engine's thread and the event loop.
struct Mailbox {
    /// Next event for Python. The engine posts another one only after Python took this one.
    pending: Mutex<Option<ClientEvent>>,
    consumed: Notify,
    is_closed: AtomicBool,
    /// Python callback that reports that an event is ready to be taken.
    on_event: Py<PyAny>,
    /// Python callback that reports that the queue to the provider has space again.
    on_writable: Py<PyAny>,
}

/// WebSocket of one client.
#[pyclass(frozen, module = "penstock._engine")]
pub struct WebSocketHandle {
    mailbox: Arc<Mailbox>,
    jobs: JobRunner,
    /// Queue of messages for the provider; `None` after the client has closed or disconnected.
    to_provider: Mutex<Option<mpsc::Sender<Message>>>,
}

#[pymethods]
impl WebSocketHandle {
    /// Returns the next messages for the client in ASGI form; `None` if there are none yet.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let event = self.mailbox.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(event) = event else { return Ok(None) };
        self.mailbox.consumed.notify_one();
        let list = PyList::empty(py);
        match event {
            ClientEvent::Accept(protocol) => list.append(accept_message(py, protocol)?)?,
            ClientEvent::Deny(response) => append_denial(&list, &response)?,
            ClientEvent::Send(message) => list.append(to_asgi_message(py, &message)?)?,
        }
        Ok(Some(list))
    }

    /// Queues a message from the client for the provider. Returns false if the queue is full. Python must then send the
    /// message again after `on_writable`.
    fn send(&self, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let message = if let Ok(text) = message.cast::<PyString>() {
            Message::Text(text.to_str()?.into())
        } else {
            Message::Binary(message.cast::<PyBytes>()?.as_bytes().to_vec().into())
        };
        let to_provider = self.to_provider.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &*to_provider else { return Ok(true) };
        match sender.try_send(message) {
            // If the channel is closed, the session reads no more messages. The close event for the client gives the
            // reason.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(true),
            Err(TrySendError::Full(_)) => {
                let (sender, mailbox) = (sender.clone(), Arc::clone(&self.mailbox));
                self.jobs.spawn(async move {
                    drop(sender.reserve().await);
                    Python::attach(|py| drop(mailbox.on_writable.call0(py)));
                });
                Ok(false)
            }
        }
    }

    /// Handles a close or disconnect by the client.
    #[pyo3(signature = (code = None, reason = None))]
    fn close(&self, code: Option<u16>, reason: Option<String>) {
        let Some(sender) = self.to_provider.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // A disconnect without a close frame only ends the channel. The server reports the same code for a disconnect
        // and for a close frame without a code.
        let close_code =
            code.map(CloseCode::from).filter(|code| !matches!(code, CloseCode::Abnormal | CloseCode::Status));
        let Some(code) = close_code else { return };
        let frame = Some(CloseFrame { code, reason: reason.unwrap_or_default().into() });
        self.jobs.spawn(async move { drop(sender.send(Message::Close(frame)).await) });
    }
}

impl WebSocketHandle {
    /// Starts the upstream handshake and then the relay. The client's connection counts as busy until the session ends.
    pub fn start(
        jobs: &JobRunner,
        state: Arc<GatewayState>,
        head: RequestHead,
        under_way: Option<RequestGuard>,
        addresses: Option<ConnectionAddresses>,
        on_event: Py<PyAny>,
        on_writable: Py<PyAny>,
    ) -> Self {
        let mailbox = Arc::new(Mailbox {
            pending: Mutex::new(None),
            consumed: Notify::new(),
            is_closed: AtomicBool::new(false),
            on_event,
            on_writable,
        });
        let (to_provider, from_caller) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let sender_mailbox = Arc::clone(&mailbox);
        jobs.spawn(async move {
            let mut writer = ClientEventSender { mailbox: sender_mailbox, is_accepted: false, is_finished: false };
            let connected = tokio::select! {
                biased;
                connected = gateway::handle_upgrade(&state, head) => Some(connected),
                () = wait_for_disconnect(addresses) => None,
            };
            match connected {
                Some(UpgradeOutcome::Rejected(response)) => {
                    let _delivered = writer.mailbox.post_and_wait(ClientEvent::Deny(response)).await;
                }
                Some(UpgradeOutcome::Accepted(session)) => writer.relay_session(&state, *session, from_caller).await,
                // The client disconnected, so this event has no reader. It only ends the server's task.
                None => writer.mailbox.post(ClientEvent::Deny(ClientResponse::internal_error())),
            }
            writer.is_finished = true;
            drop(under_way);
        });
        Self { mailbox, jobs: jobs.clone(), to_provider: Mutex::new(Some(to_provider)) }
    }
}

/// Resolves when the client of a WebSocket that is not yet accepted disconnects. Needed because the server reports no
/// disconnect before the accept.
async fn wait_for_disconnect(addresses: Option<ConnectionAddresses>) {
    let is_open = |ConnectionAddresses { local, remote }| sock_diag::is_connection_open(local, remote).ok();
    // If the kernel does not know the connection, its state is unknown, so this never resolves.
    let Some(addresses) = addresses.filter(|addresses| is_open(*addresses) == Some(true)) else {
        return pending().await;
    };
    loop {
        sleep(DISCONNECT_POLL_INTERVAL).await;
        if is_open(addresses) == Some(false) {
            return;
        }
    }
}

impl Drop for WebSocketHandle {
    /// Wakes the engine if it waits for Python to take an event, because Python takes no more events.
    fn drop(&mut self) {
        self.mailbox.is_closed.store(true, Ordering::Release);
        self.mailbox.consumed.notify_one();
    }
}

/// Sends the outcome of a WebSocket request to the client, also after a panic.
struct ClientEventSender {
    mailbox: Arc<Mailbox>,
    is_accepted: bool,
    is_finished: bool,
}

impl ClientEventSender {
    async fn relay_session(
        &mut self,
        state: &GatewayState,
        mut session: WebSocketSession,
        from_caller: mpsc::Receiver<Message>,
    ) {
        let accept = ClientEvent::Accept(session.protocol.take());
        self.is_accepted = true;
        self.mailbox.post_and_wait(accept).await;
        let (to_caller, mut from_provider) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let mailbox = &self.mailbox;
        let forward_events = async move {
            while let Some(message) = from_provider.recv().await {
                if !mailbox.post_and_wait(ClientEvent::Send(message)).await {
                    break;
                }
            }
        };
        tokio::join!(session.relay(state, from_caller, to_caller), forward_events);
    }
}

impl Drop for ClientEventSender {
    fn drop(&mut self) {
        if !self.is_finished {
            let frame = CloseFrame { code: CloseCode::Error, reason: "the gateway failed".into() };
            self.mailbox.post(if self.is_accepted {
                ClientEvent::Send(Message::Close(Some(frame)))
            } else {
                ClientEvent::Deny(ClientResponse::internal_error())
            });
        }
    }
}

impl Mailbox {
    fn post(&self, event: ClientEvent) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
        Python::attach(|py| drop(self.on_event.call0(py)));
    }

    /// Posts an event and waits until Python takes it. Returns false if Python takes no more events.
    async fn post_and_wait(&self, event: ClientEvent) -> bool {
        if !self.is_closed.load(Ordering::Acquire) {
            self.post(event);
            self.consumed.notified().await;
        }
        !self.is_closed.load(Ordering::Acquire)
    }
}

fn accept_message(py: Python<'_>, protocol: Option<String>) -> PyResult<Bound<'_, PyDict>> {
    let message = PyDict::new(py);
    message.set_item(intern!(py, "type"), intern!(py, "websocket.accept"))?;
    message.set_item(intern!(py, "subprotocol"), protocol)?;
    Ok(message)
}

/// Appends the ASGI messages of an HTTP response that rejects the WebSocket.
fn append_denial(list: &Bound<'_, PyList>, response: &ClientResponse) -> PyResult<()> {
    let py = list.py();
    let start = PyDict::new(py);
    start.set_item(intern!(py, "type"), intern!(py, "websocket.http.response.start"))?;
    start.set_item(intern!(py, "status"), response.head.status)?;
    start.set_item(intern!(py, "headers"), header_pairs(py, &response.head.headers)?)?;
    list.append(start)?;
    let end = PyDict::new(py);
    let bytes: &[u8] = match &response.body {
        ClientResponseBody::Complete(bytes) => bytes,
        ClientResponseBody::Stream(_) => b"",
    };
    end.set_item(intern!(py, "type"), intern!(py, "websocket.http.response.body"))?;
    end.set_item(intern!(py, "body"), PyBytes::new(py, bytes))?;
    list.append(end)
}

fn header_pairs<'py>(py: Python<'py>, headers: &Headers) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (name, value) in headers.iter() {
        list.append(PyTuple::new(py, [PyBytes::new(py, name), PyBytes::new(py, value)])?)?;
    }
    Ok(list)
}

fn to_asgi_message<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyDict>> {
    let event = PyDict::new(py);
    let kind = if matches!(message, Message::Close(_)) { "websocket.close" } else { "websocket.send" };
    event.set_item(intern!(py, "type"), kind)?;
    match message {
        Message::Text(text) => event.set_item(intern!(py, "text"), text.as_str())?,
        Message::Close(Some(frame)) => {
            event.set_item(intern!(py, "code"), u16::from(frame.code))?;
            event.set_item(intern!(py, "reason"), frame.reason.as_str())?;
        }
        Message::Close(None) => event.set_item(intern!(py, "code"), u16::from(CloseCode::Normal))?,
        other => event.set_item(intern!(py, "bytes"), PyBytes::new(py, &other.clone().into_data()))?,
    }
    Ok(event)
}
