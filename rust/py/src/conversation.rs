//! A WebSocket as Python holds it: what comes for the caller is taken, what the caller says is given.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use penstock_core::{
    endpoints::realtime::{self, CloseCode, CloseFrame, Message, UpgradeOutcome, WebSocketSession},
    gateway::Gateway,
    ingress::headers::{Headers, RequestHead},
    process::edge::{idle_connections::RequestGuard, sock_diag},
    response::outgoing::{ClientResponse, ClientResponseBody},
};
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

use crate::{peer::Way, runtime::Jobs};

/// Messages that wait either way, besides the one that is on its way out.
const WAITING: usize = 2;
/// How often is looked whether a caller is still there.
const LOOK: Duration = Duration::from_millis(250);

/// One thing for the caller.
enum Event {
    Accept(Option<String>),
    Deny(ClientResponse),
    Say(Message),
}

/// What the engine's thread and the event loop share.
struct Desk {
    /// What is to be taken; the next comes when it was.
    next: Mutex<Option<Event>>,
    taken: Notify,
    is_left: AtomicBool,
    /// Called when there is something to take, and when there is room for what could not be given.
    there: Py<PyAny>,
    room: Py<PyAny>,
}

/// One WebSocket of a caller.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Conversation {
    desk: Arc<Desk>,
    jobs: Jobs,
    /// None when the caller has left.
    to_provider: Mutex<Option<mpsc::Sender<Message>>>,
}

#[pymethods]
impl Conversation {
    /// The next message for the caller as ASGI has it; nothing where there is none yet.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let event = self.desk.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(event) = event else { return Ok(None) };
        self.desk.taken.notify_one();
        let list = PyList::empty(py);
        match event {
            Event::Accept(protocol) => list.append(accepted(py, protocol)?)?,
            Event::Deny(answer) => denied(&list, &answer)?,
            Event::Say(message) => list.append(said(py, &message)?)?,
        }
        Ok(Some(list))
    }

    /// Gives a message of the caller; false where there is no room for it: then it must be given again.
    fn give(&self, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let message = if let Ok(text) = message.cast::<PyString>() {
            Message::Text(text.to_str()?.into())
        } else {
            Message::Binary(message.cast::<PyBytes>()?.as_bytes().to_vec().into())
        };
        let to_provider = self.to_provider.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &*to_provider else { return Ok(true) };
        match sender.try_send(message) {
            // Nobody hears it any more: why, is said the other way.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(true),
            Err(TrySendError::Full(_)) => {
                let (sender, desk) = (sender.clone(), Arc::clone(&self.desk));
                self.jobs.spawn(async move {
                    drop(sender.reserve().await);
                    Python::attach(|py| drop(desk.room.call0(py)));
                });
                Ok(false)
            }
        }
    }

    /// The caller has closed its side, or is gone.
    #[pyo3(signature = (code = None, reason = None))]
    fn leave(&self, code: Option<u16>, reason: Option<String>) {
        let Some(sender) = self.to_provider.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // Gone without a word is not closed: the channel just ends. The server has one code for that and for no code.
        let said = code.map(CloseCode::from).filter(|code| !matches!(code, CloseCode::Abnormal | CloseCode::Status));
        let Some(code) = said else { return };
        let frame = Some(CloseFrame { code, reason: reason.unwrap_or_default().into() });
        self.jobs.spawn(async move { drop(sender.send(Message::Close(frame)).await) });
    }
}

impl Conversation {
    /// Has the engine look for a provider that agrees. Until it is over its caller's connection is `under_way`.
    pub fn begin(
        jobs: &Jobs,
        gateway: Arc<Gateway>,
        (head, under_way, way): (RequestHead, Option<RequestGuard>, Option<Way>),
        there: Py<PyAny>,
        room: Py<PyAny>,
    ) -> Self {
        let desk = Arc::new(Desk {
            next: Mutex::new(None),
            taken: Notify::new(),
            is_left: AtomicBool::new(false),
            there,
            room,
        });
        let (to_provider, from_caller) = mpsc::channel(WAITING);
        let told = Arc::clone(&desk);
        jobs.spawn(async move {
            let mut teller = Teller { desk: told, is_accepted: false, is_over: false };
            let connected = tokio::select! {
                biased;
                connected = realtime::handle_upgrade(&gateway, head) => Some(connected),
                () = left(way) => None,
            };
            match connected {
                Some(UpgradeOutcome::Rejected(answer)) => drop(teller.desk.put(Event::Deny(answer)).await),
                Some(UpgradeOutcome::Accepted(session)) => teller.converse(&gateway, *session, from_caller).await,
                // Nobody reads it; the server's own task ends with it.
                None => teller.desk.lay(Event::Deny(ClientResponse::internal_error())),
            }
            teller.is_over = true;
            drop(under_way);
        });
        Self { desk, jobs: jobs.clone(), to_provider: Mutex::new(Some(to_provider)) }
    }
}

/// Resolves when the caller of a WebSocket that is not there yet has left: until it is accepted the server tells nobody.
async fn left(way: Option<Way>) {
    let is_open = |Way { local, remote }| sock_diag::is_connection_open(local, remote).ok();
    // Of a connection that the kernel does not know nothing can be said.
    let Some(way) = way.filter(|way| is_open(*way) == Some(true)) else { return pending().await };
    loop {
        sleep(LOOK).await;
        if is_open(way) == Some(false) {
            return;
        }
    }
}

impl Drop for Conversation {
    /// Nobody takes any more: who waits for that must not wait for ever.
    fn drop(&mut self) {
        self.desk.is_left.store(true, Ordering::Release);
        self.desk.taken.notify_one();
    }
}

/// Tells the caller what becomes of a request for a WebSocket, a panic too.
struct Teller {
    desk: Arc<Desk>,
    is_accepted: bool,
    is_over: bool,
}

impl Teller {
    async fn converse(
        &mut self,
        gateway: &Gateway,
        mut session: WebSocketSession,
        from_caller: mpsc::Receiver<Message>,
    ) {
        let accept = Event::Accept(session.protocol.take());
        self.is_accepted = true;
        self.desk.put(accept).await;
        let (to_caller, mut heard) = mpsc::channel(WAITING);
        let desk = &self.desk;
        let telling = async move {
            while let Some(message) = heard.recv().await {
                if !desk.put(Event::Say(message)).await {
                    break;
                }
            }
        };
        tokio::join!(session.relay(gateway, from_caller, to_caller), telling);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if !self.is_over {
            let frame = CloseFrame { code: CloseCode::Error, reason: "the gateway failed".into() };
            self.desk.lay(if self.is_accepted {
                Event::Say(Message::Close(Some(frame)))
            } else {
                Event::Deny(ClientResponse::internal_error())
            });
        }
    }
}

impl Desk {
    fn lay(&self, event: Event) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
        Python::attach(|py| drop(self.there.call0(py)));
    }

    /// Lays something down, and waits until it was taken; false where nobody takes any more.
    async fn put(&self, event: Event) -> bool {
        if !self.is_left.load(Ordering::Acquire) {
            self.lay(event);
            self.taken.notified().await;
        }
        !self.is_left.load(Ordering::Acquire)
    }
}

fn accepted(py: Python<'_>, protocol: Option<String>) -> PyResult<Bound<'_, PyDict>> {
    let message = PyDict::new(py);
    message.set_item(intern!(py, "type"), intern!(py, "websocket.accept"))?;
    message.set_item(intern!(py, "subprotocol"), protocol)?;
    Ok(message)
}

/// The answer instead of a WebSocket.
fn denied(list: &Bound<'_, PyList>, answer: &ClientResponse) -> PyResult<()> {
    let py = list.py();
    let start = PyDict::new(py);
    start.set_item(intern!(py, "type"), intern!(py, "websocket.http.response.start"))?;
    start.set_item(intern!(py, "status"), answer.head.status)?;
    start.set_item(intern!(py, "headers"), pairs(py, &answer.head.headers)?)?;
    list.append(start)?;
    let end = PyDict::new(py);
    let bytes: &[u8] = match &answer.body {
        ClientResponseBody::Complete(bytes) => bytes,
        ClientResponseBody::Stream(_) => b"",
    };
    end.set_item(intern!(py, "type"), intern!(py, "websocket.http.response.body"))?;
    end.set_item(intern!(py, "body"), PyBytes::new(py, bytes))?;
    list.append(end)
}

fn pairs<'py>(py: Python<'py>, headers: &Headers) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (name, value) in headers.iter() {
        list.append(PyTuple::new(py, [PyBytes::new(py, name), PyBytes::new(py, value)])?)?;
    }
    Ok(list)
}

fn said<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    let kind = if matches!(message, Message::Close(_)) { "websocket.close" } else { "websocket.send" };
    told.set_item(intern!(py, "type"), kind)?;
    match message {
        Message::Text(text) => told.set_item(intern!(py, "text"), text.as_str())?,
        Message::Close(Some(frame)) => {
            told.set_item(intern!(py, "code"), u16::from(frame.code))?;
            told.set_item(intern!(py, "reason"), frame.reason.as_str())?;
        }
        Message::Close(None) => told.set_item(intern!(py, "code"), u16::from(CloseCode::Normal))?,
        other => told.set_item(intern!(py, "bytes"), PyBytes::new(py, &other.clone().into_data()))?,
    }
    Ok(told)
}
