//! Done-callbacks for futures of the ASGI server. They complete Rust waits without running the gateway's Python code.

use std::sync::{Mutex, PoisonError};

use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};
use tokio::sync::oneshot;

use crate::{reader::BodyReader, runtime::JobRunner};

/// Event that a callback waits for.
pub enum WaitEvent {
    /// The next chunk of a request body, for the reader with this id.
    BodyChunk(JobRunner, u64),
    /// The client disconnects.
    Disconnect(Py<PyAny>, oneshot::Sender<()>),
    /// The server can accept more bytes for a client that reads slowly.
    Writable(oneshot::Sender<()>),
}

/// Done-callback for a future of the server.
#[pyclass(frozen, module = "penstock._engine")]
pub struct Callback(Mutex<Option<WaitEvent>>);

#[pymethods]
impl Callback {
    /// The event loop calls this if the engine does not intercept `call_soon_threadsafe`.
    fn __call__(&self, future: &Bound<'_, PyAny>) {
        self.fire(future);
    }
}

impl Callback {
    /// Delivers the event. Only the first call has an effect.
    pub fn fire(&self, future: &Bound<'_, PyAny>) {
        let event = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match event {
            Some(WaitEvent::BodyChunk(jobs, id)) => {
                // A missing reader was removed before, because its wait had timed out.
                if let Some(reader) = jobs.body_readers.take_reader(id) {
                    reader.handle_chunk(future.py(), parse_message(future));
                }
            }
            Some(WaitEvent::Disconnect(proto, sender)) => match parse_message(future) {
                // This message only reports the end of the unread body. The disconnect message comes next.
                Some(BodyMessage { has_more: false, .. }) => watch_disconnect(future.py(), &proto, sender),
                Some(BodyMessage { has_more: true, .. }) | None => drop(sender.send(())),
            },
            Some(WaitEvent::Writable(sender)) => drop(sender.send(())),
            None => (),
        }
    }
}

/// Body chunk from an `http.request` message.
pub struct BodyMessage<'py> {
    pub body: Option<Bound<'py, PyBytes>>,
    pub has_more: bool,
}

/// Parses the result of a `receive` future. Returns `None` if the client disconnected or broke the framing.
fn parse_message<'py>(future: &Bound<'py, PyAny>) -> Option<BodyMessage<'py>> {
    let py = future.py();
    let message = future.call_method0(intern!(py, "result")).ok()?;
    let message = message.cast::<PyDict>().ok()?;
    let kind = message.get_item(intern!(py, "type")).ok()??;
    if kind.cast::<PyString>().ok()?.to_str().ok()? != "http.request" {
        return None;
    }
    let body = message.get_item(intern!(py, "body")).ok()?.and_then(|body| body.cast_into::<PyBytes>().ok());
    let more = message.get_item(intern!(py, "more_body")).ok()?.is_some_and(|more| more.is_truthy().unwrap_or(false));
    Some(BodyMessage { body, has_more: more })
}

/// Makes a reader wait for the next chunk of a request body.
pub fn receive_chunk(py: Python<'_>, proto: &Py<PyAny>, reader: Box<BodyReader>) {
    let Ok(future) = call_receive(py, proto) else { return reader.handle_chunk(py, None) };
    let (jobs, id) = (reader.job_runner().clone(), reader.id());
    // Registers the reader before the callback, which may fire at once.
    jobs.body_readers.wait_for_chunk(reader, future.clone().unbind());
    wait_for_future(&future, WaitEvent::BodyChunk(jobs, id));
}

/// Sends on `sender` when the client disconnects.
pub fn watch_disconnect(py: Python<'_>, proto: &Py<PyAny>, sender: oneshot::Sender<()>) {
    let event = WaitEvent::Disconnect(proto.clone_ref(py), sender);
    match call_receive(py, proto) {
        Ok(future) => wait_for_future(&future, event),
        Err(_) => deliver_without_future(py, event),
    }
}

/// Calls the server's `receive`. An error means that the wait is already over.
fn call_receive<'py>(py: Python<'py>, proto: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    proto.bind(py).call_method0(intern!(py, "receive"))
}

/// Adds a callback for `event` to a future of the server. Delivers the event at once if that fails.
pub fn wait_for_future(future: &Bound<'_, PyAny>, event: WaitEvent) {
    let py = future.py();
    let Ok(callback) = Bound::new(py, Callback(Mutex::new(Some(event)))) else { return };
    if future.call_method1(intern!(py, "add_done_callback"), (&callback, py.None())).is_err() {
        let event = callback.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(event) = event {
            deliver_without_future(py, event);
        }
    }
}

fn deliver_without_future(py: Python<'_>, event: WaitEvent) {
    match event {
        WaitEvent::BodyChunk(jobs, id) => {
            if let Some(reader) = jobs.body_readers.take_reader(id) {
                reader.handle_chunk(py, None);
            }
        }
        WaitEvent::Disconnect(_, sender) | WaitEvent::Writable(sender) => drop(sender.send(())),
    }
}
